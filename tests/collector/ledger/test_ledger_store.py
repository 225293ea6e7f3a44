"""Writes to the ledger are stored once and stay."""

from __future__ import annotations

from fractions import Fraction
from itertools import count

import msgspec
import numpy as np
import pytest
from days import DAY, HOUR, START, days, held, histories, metered
from hypothesis import HealthCheck, given, settings, strategies as st
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from support.examples import fewer_examples
from support.metered import revision_of

from railscope.claim_terms import GPU_CAPACITY, ClaimAuthority
from railscope.timestamps import DAY_NS, FOREVER_NS
from railscope_collector.ledger.database import Database, UnusableLedgerError
from railscope_collector.ledger.day_metering import MeteredGpu, MeteringComputation
from railscope_collector.ledger.day_tiling import TilingError, evidence_root
from railscope_collector.ledger.ledger_store import Ledger, TimeTotalKey, WrittenRevision
from railscope_collector.ledger.row_conversion import GpuDay
from railscope_collector.metering.counter_increments import (
    CountedQuantity,
    CounterReadings,
    compute_increments,
)
from railscope_collector.metering.evidence import Evidence, MeteredClaim, NodeStay
from railscope_collector.metering.tiling import SlotState
from railscope_collector.metering.units import WHOLE, CapacityRange, Tiling
from railscope_collector.tables import metadata

pytestmark = pytest.mark.statements
gpu_numbers = count()
# Each example waits for the disk, so there are fewer of them.
on_one_database = settings(
    fewer_examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def in_sequence(day):
    """The same, in the order in which it is read back."""
    ordered = {"shares": tuple(sorted(day.shares)), "claims": tuple(sorted(day.claims))}
    return msgspec.structs.replace(day, **ordered)


@pytest.mark.parametrize(
    ("compute", "exclusive", "share", "instance"),
    [
        (CapacityRange(0, 360), True, None, "3/7"),
        (CapacityRange(0, 360), False, Fraction(1, 2), "3/7"),
        (WHOLE, True, None, "1"),
        (WHOLE, False, Fraction(1, 2), "1"),
        (WHOLE, False, None, ""),
    ],
)
def test_the_instance_of_a_claim_with_a_profile_is_its_part_of_the_gpu(
    compute, exclusive, share, instance
):
    claim = MeteredClaim(
        ClaimAuthority.SCHEDULER, START, "a", "red", compute=compute, exclusive=exclusive, share=share
    )  # fmt: skip
    evidence = Evidence("GPU-0", (NodeStay(0, "node1"),), (claim,))
    gpu = MeteredGpu.compute(evidence, {}, [(0, "h100-sxm")], {"a": "3g.40gb"})
    (held_claim,) = gpu.day(DAY, MeteringComputation("1", START + DAY_NS)).claims
    assert (held_claim.mig_profile, held_claim.instance) == ("3g.40gb", instance)


def renamed(tiling, gpu):
    entries = tuple(msgspec.structs.replace(entry, gpu=gpu) for entry in tiling.entries)
    return msgspec.structs.replace(tiling, gpu=gpu, entries=entries)


@on_one_database
@given(st.lists(days(), min_size=1, max_size=4), st.randoms())
def test_what_is_written_is_read_back_whatever_the_order(ledger, drawn, random):
    whole = [renamed(day, f"GPU-{next(gpu_numbers)}") for day in drawn]
    shuffled = []
    for day in whole:
        parts = {name: list(getattr(day, name)) for name in ("entries", "shares", "claims")}
        for part in parts.values():
            random.shuffle(part)
        parts = {name: tuple(part) for name, part in parts.items()}
        shuffled.append(msgspec.structs.replace(day, **parts))
    random.shuffle(shuffled)
    assert ledger.write_days(shuffled) == [WrittenRevision(1, added=True)] * len(whole)
    assert ledger.write_days(whole) == [WrittenRevision(1, added=False)] * len(whole)
    for day in whole:
        found = revision_of(ledger, day.gpu, DAY)
        assert (found.tiling, found.number, found.supersedes) == (in_sequence(day), 1, None)
        window = ledger.entries(START, START + DAY_NS, day.gpu)
        assert window == list(day.entries)
    numbers = {GpuDay(day.gpu, DAY): 1 for day in whole}
    assert numbers.items() <= ledger.newest(DAY, DAY + 1).items()
    assert [one.tiling for one in ledger.revisions(numbers)] == [
        in_sequence(day) for day in sorted(whole, key=lambda day: day.gpu)
    ]


def test_of_days_written_at_once_all_are_there_or_none(ledger):
    bad = msgspec.structs.replace(metered(held("GPU-1", "red")), entries=())
    bad = msgspec.structs.replace(bad, gpu="GPU-\0")
    with pytest.raises(TilingError):
        ledger.write_days([metered(held("GPU-0", "red")), bad])
    assert ledger.newest(DAY, DAY + 1) == {}


@on_one_database
@given(days())
def test_another_amount_model_or_start_is_another_revision(ledger, drawn):
    day = renamed(drawn, f"GPU-{next(gpu_numbers)}")
    ledger.write(day)
    variants = [msgspec.structs.replace(day, sku="h200-sxm")]
    if day.shares:
        first, *rest = day.shares
        more = msgspec.structs.replace(first.share, amount=first.share.amount + 1)
        altered = msgspec.structs.replace(first, share=more)
        variants.append(msgspec.structs.replace(day, shares=(altered, *rest)))
    if day.claims:
        first, *rest = day.claims
        earlier = msgspec.structs.replace(first, start_ns=first.start_ns - 1)
        variants.append(msgspec.structs.replace(day, claims=(earlier, *rest)))
    for number, variant in enumerate(variants, 2):
        assert ledger.write(variant) == WrittenRevision(number, added=True)


@on_one_database
@given(st.lists(histories(), min_size=1, max_size=6))
def test_revisions_follow_one_another_and_none_is_lost(ledger, evidences):
    gpu = f"GPU-{next(gpu_numbers)}"
    expected = []
    for evidence in evidences:
        tiling = renamed(metered(evidence), gpu)
        written = ledger.write(tiling)
        added = not expected or expected[-1].entries != tiling.entries
        if added:
            expected.append(tiling)
        assert written == WrittenRevision(len(expected), added)
    for number, tiling in enumerate(expected, 1):
        found = revision_of(ledger, gpu, DAY, number)
        assert (found.tiling, found.number) == (tiling, number)
        assert found.supersedes == (number - 1 if number > 1 else None)
    assert revision_of(ledger, gpu, DAY).tiling == expected[-1]
    assert revision_of(ledger, gpu, DAY, len(expected) + 1) is None
    assert ledger.entries(START, START + DAY_NS, gpu) == list(expected[-1].entries)


def test_a_day_that_the_gpu_turns_out_not_to_have_been_there_is_a_revision_too(ledger):
    ledger.write(metered(held("GPU-0", "red")))
    nowhere = metered(held("GPU-0", stay=(0, START)))
    assert nowhere.entries == ()
    assert ledger.write(nowhere) == WrittenRevision(2, added=True)
    assert revision_of(ledger, "GPU-0", DAY).tiling.entries == ()
    assert ledger.totals(START, START + DAY_NS) == {}


def test_totals_beyond_64_bits_are_exact(ledger):
    gpus, days = 5, 30
    for number in range(gpus):
        for day in range(DAY, DAY + days):
            ledger.write(metered(held(f"GPU-{number}", "red"), day))
    start, end = START + 1, START + days * DAY_NS - 1
    each = gpus * GPU_CAPACITY * (days * DAY_NS - 2)
    assert each > FOREVER_NS
    assert ledger.totals(start, end) == {
        TimeTotalKey(tiling, "red", SlotState.INFERRED): each for tiling in Tiling
    }


@given(data=st.data())
@on_one_database
def test_totals_of_a_window_are_the_sums_of_its_entries(ledger, data):
    ledger.write(metered(data.draw(histories())))
    start, end = sorted(data.draw(st.tuples(*[st.integers(START, START + DAY_NS)] * 2)))
    expected: dict[TimeTotalKey, int] = {}
    for entry in ledger.entries(start, end):
        assert start <= entry.t0_ns < entry.t1_ns <= end
        key = TimeTotalKey(entry.tiling, entry.tenant, entry.state)
        expected[key] = expected.get(key, 0) + entry.quantity
    assert ledger.totals(start, end) == expected


@pytest.mark.parametrize("change", ["UPDATE {} SET {} = 7", "DELETE FROM {}"])
def test_the_database_rejects_to_change_what_is_written(ledger, change):
    counted = compute_increments(
        [CounterReadings("b", np.array([START, START + HOUR]), np.array([0, 9]))]
    )
    written = metered(held("GPU-0", "red"), counted={CountedQuantity.ENERGY: counted})
    ledger.write(written)
    columns = {
        "ledger_entry": "silence_ns", "ledger_revision": "computed_ns", "ledger_share": "amount",
        "ledger_claim": "start_ns", "ledger_schema": "version",
    }  # fmt: skip
    for table, column in columns.items():
        with (
            pytest.raises(DBAPIError, match="append-only"),
            ledger.database.engine.begin() as connection,
        ):
            connection.execute(text(change.format(table, column)))
    assert revision_of(ledger, "GPU-0", DAY).tiling == written


def test_entries_that_were_altered_behind_the_triggers_are_detected(url):
    ledger = Ledger.open(url, metadata)
    ledger.write(metered(held("GPU-0", "red", "green")))
    database = Database(url, metadata)
    triggers = {
        "sqlite": "DROP TRIGGER ledger_entry_no_update",
        "postgresql": "DROP TRIGGER ledger_entry_append_only ON ledger_entry",
    }
    with database.transaction(writes=True) as connection:
        connection.execute(text(triggers[connection.dialect.name]))
        connection.execute(text("UPDATE ledger_entry SET tenant_id = 'blue' WHERE entry = 1"))
    database.close()
    with pytest.raises(UnusableLedgerError, match="was altered: revision 1 of GPU-0"):
        revision_of(ledger, "GPU-0", DAY)
    ledger.close()


def test_people_read_entries_with_their_revision(url):
    ledger = Ledger.open(url, metadata)
    written = metered(held("GPU-0", "red"))
    ledger.write(written)
    ledger.close()
    database = Database(url, metadata)
    with database.transaction() as connection:
        rows = connection.execute(text("SELECT * FROM ledger ORDER BY entry_id")).all()
    database.close()
    compute, memory = rows
    assert compute.entry_id == f"GPU-0/{DAY}/1/0"
    assert (compute.slot_lo, compute.slot_hi, compute.mem_lo, compute.mem_hi) == (
        0,
        84_000,
        None,
        None,
    )
    assert (memory.slot_lo, memory.slot_hi, memory.mem_lo, memory.mem_hi) == (None, None, 0, 84_000)
    for row in rows:
        assert row.evidence_root == written.evidence_root
        assert int(row.qty_capns) == 84_000 * DAY_NS  # text in SQLite, as it may exceed 64 bits
        assert (row.tenant_id, row.state, row.witness) == ("red", "inferred", "none")


@on_one_database
@given(histories(), st.data())
def test_a_tiling_with_a_hole_or_an_overlap_is_rejected(ledger, evidence, data):
    whole = metered(evidence)
    if not whole.entries:
        return
    victim = data.draw(st.sampled_from(whole.entries))
    rest = tuple(entry for entry in whole.entries if entry is not victim)
    shorter = msgspec.structs.replace(victim, t1_ns=victim.t1_ns - 1)
    for entries in (rest, (*rest, shorter), (*whole.entries, victim)):
        with pytest.raises(TilingError):
            ledger.write(msgspec.structs.replace(whole, entries=entries))


def test_entries_of_another_gpu_or_day_are_rejected(ledger):
    whole = metered(held("GPU-0", "red"))
    with pytest.raises(TilingError, match="expected the GPU of its tiling, GPU-1"):
        ledger.write(msgspec.structs.replace(whole, gpu="GPU-1"))
    with pytest.raises(TilingError, match="expected times within day"):
        ledger.write(msgspec.structs.replace(whole, day=DAY + 1))
    assert revision_of(ledger, "GPU-1", DAY) is None


@given(histories(), st.randoms())
def test_the_root_of_evidence_is_independent_of_order_and_repetition(evidence, random):
    claims = [*evidence.claims, *evidence.claims]
    random.shuffle(claims)
    shuffled = msgspec.structs.replace(evidence, claims=tuple(claims))
    assert evidence_root(shuffled) == evidence_root(evidence)
    more = msgspec.structs.replace(evidence, stays=())
    assert evidence_root(more) != evidence_root(evidence)
