"""Writes to the ledger are stored once and stay."""

from __future__ import annotations

from collections import Counter
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
from support.gpu_evidence import Evidence, NodeStay
from support.metered import revision_of, write_day

from railscope.claim_terms import GPU_CAPACITY, ClaimAuthority
from railscope.timestamps import DAY_NS
from railscope_collector.ledger.database import UnusableLedgerError
from railscope_collector.ledger.day_documents import GpuDay, TotalKey, WrittenRevision, sum_day
from railscope_collector.ledger.ledger_store import Ledger
from railscope_collector.metering.counter_increments import (
    CountedQuantity,
    CounterReadings,
    compute_increments,
)
from railscope_collector.metering.evidence import MeteredClaim
from railscope_collector.metering.metered_day import MeteredDayError
from railscope_collector.metering.units import WHOLE, CapacityRange
from railscope_collector.tables import metadata

pytestmark = pytest.mark.statements
gpu_numbers = count()
# Each example waits for the disk, so there are fewer of them.
on_one_database = settings(
    fewer_examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture]
)
LATER_NS = START + 40 * DAY_NS


@pytest.mark.parametrize(
    ("compute", "exclusive", "share", "instance"),
    [
        (CapacityRange(0, 360), True, None, Fraction(3, 7)),
        (CapacityRange(0, 360), False, Fraction(1, 2), Fraction(3, 7)),
        (WHOLE, True, None, 1),
        (WHOLE, False, Fraction(1, 2), 1),
        (WHOLE, False, None, 0),
    ],
)
def test_the_instance_of_a_claim_with_a_profile_is_its_part_of_the_gpu(
    compute, exclusive, share, instance
):
    claim = MeteredClaim(
        ClaimAuthority.SCHEDULER, START, "a", "red", compute=compute, exclusive=exclusive, share=share,
        profile="3g.40gb",
    )  # fmt: skip
    evidence = Evidence("GPU-0", (NodeStay(0, "node1"),), (claim,))
    (held_claim,) = metered(evidence).claims
    assert (held_claim.mig_profile, held_claim.instance) == ("3g.40gb", instance * GPU_CAPACITY)


def renamed(day, gpu):
    return msgspec.structs.replace(day, gpu=gpu)


@on_one_database
@given(st.lists(days(), min_size=1, max_size=4), st.randoms())
def test_what_is_written_is_read_back_whatever_the_order(ledger, drawn, random):
    whole = [renamed(day, f"GPU-{next(gpu_numbers)}") for day in drawn if day.pieces]
    shuffled = random.sample(whole, len(whole))
    assert ledger.write_days(shuffled, LATER_NS) == [WrittenRevision(1, added=True)] * len(whole)
    assert ledger.write_days(whole, LATER_NS) == [WrittenRevision(1, added=False)] * len(whole)
    numbers = {GpuDay(day.gpu, DAY): 1 for day in whole}
    assert numbers.items() <= ledger.newest(DAY, DAY + 1).items()
    found = list(ledger.revisions(numbers))
    assert [one.day for one in found] == sorted(whole, key=lambda day: day.gpu)
    assert all(one.recorded_ns == LATER_NS for one in found)


def test_of_days_written_at_once_all_are_there_or_none(ledger):
    good = metered(held("GPU-0", "red"))
    bad = msgspec.structs.replace(good, gpu="GPU-1", day=DAY + 1)
    with pytest.raises(MeteredDayError, match="expected 840 units, in order within the day"):
        ledger.write_days([good, bad], LATER_NS)
    assert ledger.newest(DAY, DAY + 2) == {}


@on_one_database
@given(days())
def test_another_amount_model_or_start_is_another_revision(ledger, drawn):
    day = renamed(drawn, f"GPU-{next(gpu_numbers)}")
    if not day.pieces:
        return
    write_day(ledger, day)
    variants = [msgspec.structs.replace(day, sku="h200-sxm")]
    if day.amounts:
        first, *rest = day.amounts
        more = msgspec.structs.replace(first, amount=first.amount + 1)
        variants.append(msgspec.structs.replace(day, amounts=(more, *rest)))
    if day.claims:
        first, *rest = day.claims
        earlier = msgspec.structs.replace(first, start_ns=first.start_ns - 1)
        variants.append(msgspec.structs.replace(day, claims=(earlier, *rest)))
    for number, variant in enumerate(variants, 2):
        assert write_day(ledger, variant) == WrittenRevision(number, added=True)


@on_one_database
@given(st.lists(histories(), min_size=1, max_size=6))
def test_revisions_follow_one_another_and_none_is_lost(ledger, evidences):
    gpu = f"GPU-{next(gpu_numbers)}"
    expected = []
    for evidence in evidences:
        day = renamed(metered(evidence), gpu)
        added = expected[-1] != day if expected else bool(day.pieces)
        expected += [day] if added else []
        assert write_day(ledger, day) == WrittenRevision(len(expected), added)
    for number, day in enumerate(expected, 1):
        assert revision_of(ledger, gpu, DAY, number).day == day
    assert revision_of(ledger, gpu, DAY, len(expected) + 1) is None


def test_a_day_that_the_gpu_turns_out_not_to_have_been_there_is_a_revision_too(ledger):
    write_day(ledger, metered(held("GPU-0", "red")))
    nowhere = metered(held("GPU-0", stay=(0, START)))
    assert nowhere.pieces == ()
    assert write_day(ledger, nowhere) == WrittenRevision(2, added=True)
    assert revision_of(ledger, "GPU-0", DAY).day.pieces == ()
    assert not any(ledger.totals(range(DAY, DAY + 1)).values())


@on_one_database
@given(st.lists(days(), min_size=1, max_size=5))
def test_totals_are_the_sums_of_the_newest_revisions(ledger, drawn):
    for day in drawn:
        write_day(ledger, renamed(day, f"GPU-{next(gpu_numbers) % 3}"))
    expected: Counter = Counter()
    for revision in ledger.revisions(ledger.newest(DAY, DAY + 1)):
        for key, quantity in sum_day(revision.day).items():
            expected[DAY, key] += quantity
    found = ledger.totals(range(DAY, DAY + 1))
    assert {key: q for key, q in found.items() if q} == {k: q for k, q in expected.items() if q}


def test_totals_beyond_64_bits_are_exact(ledger):
    gpus = 5 * 365
    days_ = [renamed(metered(held("GPU-0", "red")), f"GPU-{number}") for number in range(gpus)]
    ledger.write_days(days_, LATER_NS)
    totals = ledger.totals(range(DAY, DAY + 1))
    assert totals == {(DAY, TotalKey("red", "inferred")): gpus * DAY_NS}


@pytest.mark.parametrize("change", ["UPDATE {} SET {} = 7", "DELETE FROM {}"])
def test_the_database_rejects_to_change_what_is_written(ledger, change):
    counted = compute_increments(
        [CounterReadings("b", np.array([START, START + HOUR]), np.array([0, 9]))]
    )
    written = metered(held("GPU-0", "red"), counted={CountedQuantity.ENERGY: counted})
    write_day(ledger, written)
    for table, column in {"ledger_day": "recorded_ns", "ledger_schema": "version"}.items():
        with (
            pytest.raises(DBAPIError, match="append-only"),
            ledger.database.engine.begin() as connection,
        ):
            connection.execute(text(change.format(table, column)))
    assert revision_of(ledger, "GPU-0", DAY).day == written


@pytest.mark.parametrize(
    "change",
    ["SET content = replace(content, 'green', 'blue')", "SET content = '{'", "SET root = ''"],
)
def test_a_document_that_was_altered_behind_the_triggers_is_detected(url, change):
    ledger = Ledger.open(url, metadata)
    write_day(ledger, metered(held("GPU-0", "red", "green")))
    triggers = {
        "sqlite": "DROP TRIGGER ledger_day_no_update",
        "postgresql": "DROP TRIGGER ledger_day_append_only ON ledger_day",
    }
    with ledger.database.transaction(writes=True) as connection:
        connection.execute(text(triggers[connection.dialect.name]))
        connection.execute(text(f"UPDATE ledger_day {change}"))
    with pytest.raises(UnusableLedgerError, match="was altered: revision 1 of GPU-0"):
        revision_of(ledger, "GPU-0", DAY)
    ledger.close()


def test_people_read_a_day_as_it_was_hashed(ledger):
    write_day(ledger, metered(held("GPU-0", "red")))
    with ledger.database.transaction() as connection:
        content = connection.execute(text("SELECT content FROM ledger_day")).scalar()
    (piece,) = msgspec.json.decode(content)["pieces"]
    assert piece == {
        "end_ns": START + DAY_NS,
        "node": "node1",
        "parts": [
            {
                "claim": "red-0",
                "gap_ns": piece["parts"][0]["gap_ns"],
                "size": GPU_CAPACITY,
                "state": "inferred",
                "tenant": "red",
            }
        ],
        "start_ns": START,
    }
