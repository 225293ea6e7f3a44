"""The ledger holds all the time there was, and where it does not, that is found."""

from __future__ import annotations

import msgspec
from days import DAY, HOUR, START, held, histories, metered
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from collector.ledger import reconcile
from collector.ledger.database import Database
from collector.ledger.reconcile import Difference
from collector.ledger.store import Ledger, Tiled
from collector.ledger.tiling import DAY_NS
from collector.metering.units import GPU_CAPACITY, Tiling

END = START + DAY_NS
FULL = GPU_CAPACITY * DAY_NS


def test_a_whole_day_in_both_tilings_has_no_difference(ledger):
    inventory = {f"GPU-{number}": [(0, END * 2)] for number in range(3)}
    for gpu in inventory:
        ledger.write(metered(held(gpu, "red", "green")))
    assert ledger.tiled(DAY, DAY + 1) == {
        Tiled(gpu, DAY, tiling): 840 * 86_400 * 10**9 for gpu in inventory for tiling in Tiling
    }
    assert reconcile.gpu_days(ledger, inventory, DAY, DAY + 1) == []
    assert reconcile.cluster(ledger, inventory, START, END) == []
    assert reconcile.cluster(ledger, inventory, START + 1, END - 7) == []


def test_a_gpu_counts_while_it_was_in_a_node(ledger):
    stay = (START + HOUR, START + 5 * HOUR)
    ledger.write(metered(held("GPU-0", "red", stay=stay)))
    assert reconcile.gpu_days(ledger, {"GPU-0": [stay]}, DAY - 1, DAY + 2) == []
    longer = {"GPU-0": [(stay[0], stay[1] + 1)]}
    quantity = 4 * HOUR * GPU_CAPACITY
    assert reconcile.gpu_days(ledger, longer, DAY, DAY + 1) == [
        Difference(Tiled("GPU-0", DAY, tiling), quantity, quantity + GPU_CAPACITY)
        for tiling in Tiling
    ]
    assert reconcile.cluster(ledger, longer, START, END) == [
        Difference(tiling, quantity, quantity + GPU_CAPACITY) for tiling in Tiling
    ]


def test_missing_days_and_unknown_gpus_are_differences(ledger):
    ledger.write(metered(held("GPU-unknown", "red")))
    inventory = {"GPU-0": [(START, END)]}
    assert reconcile.gpu_days(ledger, inventory, DAY, DAY + 1) == [
        *(Difference(Tiled("GPU-0", DAY, tiling), 0, FULL) for tiling in Tiling),
        *(Difference(Tiled("GPU-unknown", DAY, tiling), FULL, 0) for tiling in Tiling),
    ]
    assert reconcile.cluster(ledger, {}, START, END) == [
        Difference(tiling, FULL, 0) for tiling in Tiling
    ]


def test_an_entry_added_behind_our_back_is_a_difference(url):
    ledger = Ledger.open(url)
    ledger.write(metered(held("GPU-0", "red")))
    database = Database(url)
    columns = "gpu_uuid, day, revision, tiling, slot_lo, slot_hi, t0_ns, node, state, silence_ns"
    columns += ", tenant_id, workload_id, claim_id, layout_id"
    with database.transaction(writes=True) as connection:
        connection.execute(
            text(
                f"INSERT INTO ledger_entry ({columns}, entry, t1_ns, qty_capns) "  # noqa: S608 - ours
                f"SELECT {columns}, 9, t0_ns + 1, 840 FROM ledger_entry WHERE entry = 0"
            )
        )
    database.close()
    assert reconcile.gpu_days(ledger, {"GPU-0": [(START, END)]}, DAY, DAY + 1) == [
        Difference(Tiled("GPU-0", DAY, Tiling.COMPUTE), FULL + GPU_CAPACITY, FULL)
    ]
    assert reconcile.cluster(ledger, {"GPU-0": [(START, END)]}, START, END) == [
        Difference(Tiling.COMPUTE, FULL + GPU_CAPACITY, FULL)
    ]
    ledger.close()


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    max_examples=settings().max_examples // 4,
)
@given(evidence=histories(), data=st.data())
def test_whatever_metering_makes_of_evidence_adds_up(ledger, evidence, data):
    ledger.write(metered(evidence))
    stay = evidence.stays[0]
    inventory = {evidence.gpu: [(stay.start_ns, max(stay.start_ns, stay.end_ns))]}
    assert reconcile.gpu_days(ledger, inventory, DAY, DAY + 1) == []
    start, end = sorted(data.draw(st.tuples(*[st.integers(START, END)] * 2)))
    assert reconcile.cluster(ledger, inventory, start, end) == []


def test_only_the_newest_revision_counts(ledger):
    first = metered(held("GPU-0", "red"))
    ledger.write(first)
    ledger.write(msgspec.structs.replace(first, entries=()))
    ledger.write(metered(held("GPU-0", "green")))
    assert reconcile.gpu_days(ledger, {"GPU-0": [(0, END)]}, DAY, DAY + 1) == []
    assert {total.tenant for total in ledger.totals(START, END)} == {"green"}
