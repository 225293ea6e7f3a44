"""The mark of GPU-days whose evidence was received while the collector's clock was suspect."""

from __future__ import annotations

from functools import partial

import msgspec
from core_queries import ALICE
from msgspec.structs import replace
from reports import HOUR, read_again, sample_envelopes, wrong_clock_envelopes
from support.finalizing import FinalizingCollector
from support.metered import revision_of
from support.story import (
    DAY,
    DAY_SECONDS,
    SECOND,
    Envelopes,
    NodeReporter,
    accept,
    at,
    claim_ended,
    claim_started,
    gpus_of,
    known_of,
)

from railscope_collector.account.account_cells import account_document
from railscope_collector.evidence.node_intervals import MAX_DOUBTS, EvidenceInterval, SuspectPeriod
from railscope_collector.finalization.day_writes import ENGINE_VERSION
from railscope_collector.ledger.day_metering import MeteredGpu, MeteringComputation
from railscope_collector.ledger.row_conversion import GpuDay
from railscope_collector.metering.evidence import ClockDoubt
from railscope_collector.state.collector_state import CollectorState

DAYS = range(DAY - 1, DAY + 9)
LAST = 2 * DAY_SECONDS + 3 * HOUR


two_days = partial(sample_envelopes, "GPU-0", until=2 * DAY_SECONDS + HOUR)


def suspect(envelopes: Envelopes, start: float, end: float) -> tuple[Envelopes, int]:
    """The same, where the clock was suspect between two seconds; and since when it was."""
    since_ns = at(start)
    return [
        (replace(r, doubted_since_ns=since_ns, is_suspect=True), e)
        if at(start) <= r.received_wall_ns < at(end)
        else (r, e)
        for r, e in envelopes
    ], since_ns


def marks(site: FinalizingCollector) -> dict[GpuDay, tuple[ClockDoubt, ...]]:
    ledger = site.stores.ledger
    numbers = ledger.newest(DAYS.start, DAYS.stop)
    found = ledger.clock_suspect(numbers)
    for key, number in numbers.items():
        assert revision_of(ledger, *key, number).tiling.clock_suspect == found.get(key, ())
    return found


async def test_days_with_evidence_of_a_suspect_time_are_marked_and_no_others(
    site: FinalizingCollector,
):
    """The clock returned by itself: received facts are placed correctly and marked."""
    mine, since_ns = suspect(two_days(), 30 * HOUR, 31 * HOUR)
    accept(site.core, [*mine, *sample_envelopes("GPU-9", until=2 * DAY_SECONDS + HOUR, node="n2")])
    await site.round(LAST, everything=True)
    assert marks(site) == {GpuDay("GPU-0", DAY + 1): (ClockDoubt(since_ns, 0),)}
    account = msgspec.to_builtins(account_document(await site.account(LAST)))
    expected = ({"since_ns": str(since_ns), "delta_ns": "0", "gpu_days": 1},)
    assert account["clock_suspect"] == expected
    assert account["balances"]

    site.restart()
    await site.round(LAST, everything=True)
    accept(site.core, two_days()[:1])
    await site.round(LAST, everything=True)
    assert (
        msgspec.to_builtins(account_document(await site.account(LAST)))["clock_suspect"] == expected
    )


async def test_a_decision_keeps_the_mark_and_is_its_explanation(site: FinalizingCollector):
    envelopes = two_days()
    first, end = len(envelopes) // 4, len(envelopes) // 3
    delta_ns = -5 * HOUR * SECOND
    wrong, since_ns = wrong_clock_envelopes(envelopes, first, end, delta_ns)
    assert all(at(0) <= r.received_wall_ns < at(DAY_SECONDS) for r, _ in envelopes[first:end])
    site._begin(read_again(wrong, {since_ns: delta_ns}))  # noqa: SLF001 - what the new start reads
    await site.round(LAST, everything=True)
    assert marks(site) == {GpuDay("GPU-0", DAY): (ClockDoubt(since_ns, delta_ns),)}


async def test_a_clock_that_was_only_unconfirmed_leaves_no_mark(site: FinalizingCollector):
    envelopes = [(replace(r, doubted_since_ns=at(0)), e) for r, e in two_days()]
    accept(site.core, envelopes)
    await site.round(LAST, everything=True)
    assert len(site.stores.ledger.newest(DAYS.start, DAYS.stop)) >= 2
    assert marks(site) == {}


async def test_evidence_of_a_suspect_time_marks_a_day_that_is_finalized_already(
    site: FinalizingCollector,
):
    """Frames of the first day arrive after it was finalized, by a suspect clock; its content stays."""
    envelopes = two_days()
    late = [
        envelope
        for envelope in envelopes
        if 6 * HOUR <= (envelope[0].received_wall_ns - at(0)) / SECOND < 6.2 * HOUR
    ]
    accept(site.core, [envelope for envelope in envelopes if envelope not in late])
    await site.round(LAST, everything=True)
    assert marks(site) == {}
    before = site.stores.ledger.newest(DAY, DAY + 1)
    again, since_ns = suspect(late, 0, LAST)
    accept(site.core, again)
    await site.round(LAST + HOUR, everything=True)
    assert marks(site) == {GpuDay("GPU-0", DAY): (ClockDoubt(since_ns),)}
    assert site.stores.ledger.newest(DAY, DAY + 1) != before
    assert (
        msgspec.to_builtins(account_document(await site.account(LAST + HOUR)))["clock_suspect"][0][
            "gpu_days"
        ]
        == 1
    )


async def test_a_claim_marks_the_days_that_it_reaches_back_to_on_its_gpu_only(
    site: FinalizingCollector,
):
    """It began before midnight and is reported ten minutes after it, by a suspect clock."""
    start = DAY_SECONDS - 600
    job = claim_started("GPU-0", "job", start, start_boot_ns=str((start + 5000) * SECOND), **ALICE)
    events = {
        DAY_SECONDS + 600: [job],
        DAY_SECONDS + 7200: [claim_ended("GPU-0", "job", DAY_SECONDS + 7200)],
    }
    envelopes = NodeReporter().envelopes_of(
        gpus_of("GPU-0", "GPU-1"), range(0, 2 * DAY_SECONDS + HOUR, 30), events=events, each=20
    )
    found, since_ns = suspect(envelopes, DAY_SECONDS + 300, DAY_SECONDS + 1800)
    accept(site.core, found)
    await site.round(LAST, everything=True)
    doubt = (ClockDoubt(since_ns),)
    assert marks(site) == {
        GpuDay("GPU-0", DAY): doubt,
        GpuDay("GPU-0", DAY + 1): doubt,
        GpuDay("GPU-1", DAY + 1): doubt,
    }


async def test_the_ledger_computes_its_marks_again(site: FinalizingCollector):
    """R7: the same mark and root from stored evidence."""
    found, _ = suspect(two_days(), 10 * HOUR, 30 * HOUR)
    accept(site.core, found)
    await site.round(LAST, everything=True)
    assert len(marks(site)) == 2
    known = site.stores.store.evidence("GPU-0", at(0), at(2 * DAY_SECONDS))
    gpu = MeteredGpu.compute(
        known.evidence, known.counted, known.skus, known.profiles, doubts=known.doubts
    )
    for key, doubts in marks(site).items():
        assert gpu.day(key.day, MeteringComputation(ENGINE_VERSION, 0)).clock_suspect == doubts


def test_a_node_that_a_gpu_has_left_marks_it_no_more(core: CollectorState):
    early = NodeReporter("n1").envelopes_of(gpus_of("GPU-0"), range(0, HOUR, 30), each=20)
    other = NodeReporter("n2").envelopes_of(
        gpus_of("GPU-0"), range(2 * HOUR, 3 * HOUR, 30), each=20
    )
    still = NodeReporter("n1", run="run-2").envelopes_of(
        gpus_of("GPU-1"), range(2 * HOUR + 60, 3 * HOUR, 30), each=20
    )
    accept(core, [*early, *other, *suspect(still, 0, LAST)[0]])
    assert known_of(core, "GPU-0").doubts == ()
    assert known_of(core, "GPU-1").doubts != ()


def test_marks_of_a_part_are_bounded():
    interval = EvidenceInterval("n1", "boot", 1, 0, 100)
    for number in range(3 * MAX_DOUBTS):
        interval.mark_suspect(SuspectPeriod(7, 0, f"GPU-{number}", number, number + 1))
    assert len(interval.doubts) == MAX_DOUBTS + 1
    (rest,) = [doubt for doubt in interval.doubts if not doubt.gpu]
    assert (rest.first_ns, rest.last_ns) == (MAX_DOUBTS, 3 * MAX_DOUBTS)
    assert interval.end_ns == 3 * MAX_DOUBTS
