"""The account as cells of views: every state, parts of GPUs, quotas."""

from __future__ import annotations

from fractions import Fraction

import msgspec
from hypothesis import given, strategies as st

from railscope.catalog import METRICS, account as catalog
from railscope.claim_terms import GPU_CAPACITY
from railscope.timestamps import DAY_NS, SECOND_NS
from railscope_collector.account.account_cells import (
    account_document,
    cluster_cells,
    quota_days,
    tenant_cells,
)
from railscope_collector.account.account_sums import (
    AmountKey,
    GpuTimeAccount,
    TimeKey,
    gpu_nanoseconds,
)
from railscope_collector.files.quotas_file import parse_quotas
from railscope_collector.metering.counter_increments import CountedQuantity
from railscope_collector.metering.slot_state import SlotState

HOUR = 3_600_000_000_000
DAY = 20_700
NOW = DAY * 24 * HOUR + 12 * HOUR
HEADER = "tenant,gpu_hours,period,gpus,from,to\n"
WITH_BUDGETS = "tenant,gpu_hours,period,gpus,from,to,budget\n"


def an_account(**held: int) -> GpuTimeAccount:
    """Hours of whole GPUs by tenant, observed today; one hour of each is not observed."""
    sums = {}
    for tenant, hours in held.items():
        sums[TimeKey(DAY, SlotState.OBSERVED, tenant)] = (hours - 1) * HOUR * GPU_CAPACITY
        sums[TimeKey(DAY - 40, SlotState.INFERRED, tenant)] = HOUR * GPU_CAPACITY
    return GpuTimeAccount(NOW, 2, sum(sums.values()), sums)


def values(cells) -> dict:
    return {(cell.metric.name, *cell.labels): cell.value for cell in cells}


@given(st.dictionaries(st.sampled_from(SlotState), st.integers(0, 10**24), max_size=10))
def test_parts_of_gpus_are_rounded_so_that_they_add_up(parts):
    found = gpu_nanoseconds(parts)
    assert sum(found.values()) == sum(parts.values()) // GPU_CAPACITY
    assert all(0 <= found[s] - Fraction(units, GPU_CAPACITY) + 1 <= 2 for s, units in parts.items())


def test_an_account_in_json_adds_up_and_names_every_state():
    page = msgspec.to_builtins(account_document(an_account(alice=5, bob=3)))
    assert page["balances"]
    assert page["states"].keys() == {state.value for state in SlotState}
    assert sum(map(int, page["states"].values())) == int(page["capacity_ns"]) == 8 * HOUR
    assert page["tenants"]["alice"]["held_ns"] == str(5 * HOUR)
    assert page["tenants"]["alice"]["held_unknown_ns"] == str(HOUR)
    assert page["tenants"]["bob"]["states"] == {"observed": str(2 * HOUR), "inferred": str(HOUR)}


def test_cells_have_time_amounts_and_quotas():
    quotas = parse_quotas(
        HEADER + "alice,100,day,4,2020-01-01T00:00:00Z,\nalice,,month,,2020-01-01T00:00:00Z,\n"
        "bob,2.5,month,,2020-01-01T00:00:00Z,\nbob,7,month,,2099-01-01T00:00:00Z,\n"
    )
    amounts = {
        AmountKey(CountedQuantity.ENERGY, "", "alice"): 5000,
        AmountKey(CountedQuantity.MEMORY, "", "alice"): 3,
        AmountKey(CountedQuantity.ENERGY, "idle", ""): 77,
    }
    account = an_account(alice=5, bob=3)
    found = values(tenant_cells(account, amounts, {"alice": 420}, quotas))
    assert found[catalog.TENANT_GPU_TIME.name, "alice", "observed"] == 4 * 3600
    assert found[catalog.TENANT_ENERGY.name, "alice"] == 5
    assert found[catalog.TENANT_MEMORY.name, "alice"] == 3 * 1024
    assert found[catalog.TENANT_GPUS.name, "alice"] == 0.5
    assert found[catalog.TENANT_GPUS.name, "bob"] == 0
    assert found[catalog.QUOTA_TIME.name, "alice", "day"] == 360_000
    assert found[catalog.QUOTA_TIME_USED.name, "alice", "day"] == 4 * 3600, "not 40 days ago"
    assert found[catalog.QUOTA_GPUS.name, "alice"] == 4
    assert found[catalog.QUOTA_TIME.name, "bob", "month"] == 9000
    assert (catalog.QUOTA_TIME.name, "alice", "month") not in found
    assert (catalog.TENANT_ENERGY.name, "") not in found
    whole = values(cluster_cells(account))
    assert whole[catalog.GPU_CAPACITY.name,] == 8 * 3600
    assert whole[catalog.GPU_TIME.name, "inferred"] == 2 * 3600
    assert {name for name, *_ in [*found, *whole]} <= METRICS.keys()


def test_a_budget_is_that_of_the_newest_row_of_the_month():
    budgets = parse_quotas(
        WITH_BUDGETS + "alice,,month,,2020-01-01T00:00:00Z,,12500.50\n"
        "alice,9,day,,2020-01-01T00:00:00Z,,\n"
        "alice,,month,,2026-02-01T00:00:00Z,2026-03-01T00:00:00Z,0\n"
        "bob,5,month,,2020-01-01T00:00:00Z,,\n"
    )
    february = 1_770_000_000 * SECOND_NS
    assert budgets.find_budget("alice", february - 30 * DAY_NS) == Fraction("12500.5")
    assert budgets.find_budget("alice", february) == 0
    assert budgets.find_budget("alice", february + 30 * DAY_NS) == Fraction("12500.5")
    assert budgets.find_budget("bob", february) is None
    assert budgets.find_budget("carol", february) is None


@given(st.integers(0, 80_000))
def test_every_day_is_in_one_month(day: int):
    first, end = quota_days("month", day * 24 * HOUR)
    assert first <= day < end
    assert 28 <= end - first <= 31
    assert quota_days("month", first * 24 * HOUR) == quota_days("month", (end - 1) * 24 * HOUR)
    assert quota_days("day", day * 24 * HOUR) == (day, day + 1)
