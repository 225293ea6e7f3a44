"""P25: after a decision about the collector's clock, the ledger is as without the step."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from fleet_history import fleet_histories
from hypothesis import given, strategies as st
from msgspec.structs import replace
from support.checkpoints import state_reader
from support.examples import fewer_examples
from support.finalizing import FinalizingCollector, content
from support.schemas import store_parts
from support.story import (
    DAY,
    DAY_SECONDS,
    SECOND,
    Envelopes,
    NodeReporter,
    accept,
    claim_ended,
    claim_started,
    gpus_of,
    temporary_core,
)

from railscope_collector.evidence.node_intervals import encode_interval
from railscope_collector.framelog.segment_files import (
    encode_record,
    frame_payload,
    start_segment,
)
from railscope_collector.state.collector_state import CollectorState
from railscope_collector.state_store import StateStore

HOUR = 3600
few = fewer_examples(60)
deltas = st.one_of(
    st.integers(-(10**6) * SECOND, 10**6 * SECOND), st.sampled_from([SECOND, -SECOND, 61 * SECOND])
)


def wrong_clock_envelopes(
    envelopes: Envelopes, first: int, end: int, delta_ns: int
) -> tuple[Envelopes, int]:
    """Return the envelopes, some of them received by a clock that was wrong, and the start of that time."""
    if first >= end:
        return envelopes, 0
    since_ns = envelopes[first][0].received_wall_ns - delta_ns
    wrong = [
        (replace(r, received_wall_ns=r.received_wall_ns - delta_ns, doubted_since_ns=since_ns), e)
        for r, e in envelopes[first:end]
    ]
    return [*envelopes[:first], *wrong, *envelopes[end:]], since_ns


def read_again(envelopes: Envelopes, corrections: dict[int, int]) -> CollectorState:
    """Return the state of a collector that starts from a frame log with these records."""
    with tempfile.TemporaryDirectory() as directory:
        return _read_again(Path(directory), envelopes, corrections)


def _read_again(
    directory: Path, envelopes: Envelopes, corrections: dict[int, int]
) -> CollectorState:
    (directory / "frames").mkdir()
    descriptor, marker = start_segment(directory / "frames", 1)
    with os.fdopen(descriptor, "wb") as file:
        file.writelines(frame_payload(marker, encode_record(record)) for record, _ in envelopes)
    core = temporary_core()
    for _, envelope in envelopes:
        store_parts(core.schemas, envelope)
    store = StateStore(directory)
    store.open()
    restart = state_reader(core, store)
    restart.corrections = corrections
    restart.restore(is_shared=True)
    assert not restart.quarantined
    store.close()
    return core


def facts_of(core: CollectorState) -> tuple[list[bytes], list[object]]:
    """All facts: quarters as they are stored, and claims."""
    quarters = sorted(
        encode_interval(each.interval) for each in core.evidence.quarters.by_key.values()
    )
    return quarters, list(core.evidence.unwritten)


@few
@given(fleet_histories(), st.lists(st.integers(1, 30), min_size=1, max_size=4), deltas, st.data())
def test_p25_frames_of_a_doubted_time_are_placed_by_the_decision(story, sizes, delta_ns, data):
    envelopes = story.envelopes(sizes)
    first = data.draw(st.integers(0, len(envelopes)))
    end = data.draw(st.integers(first, len(envelopes)))
    marked = [
        (replace(r, doubted_since_ns=1) if first <= i < end else r, e)
        for i, (r, e) in enumerate(envelopes)
    ]
    wrong, since_ns = wrong_clock_envelopes(envelopes, first, end, delta_ns)
    decided = read_again(wrong, {since_ns: delta_ns} if since_ns else {})
    assert facts_of(decided) == facts_of(read_again(marked, {}))


CLAIM = {
    2 * HOUR: [
        claim_started(
            "GPU-0", "job", 2 * HOUR, start_boot_ns=str((2 * HOUR + 5000) * SECOND), tenant="alice"
        )
    ],
    20 * HOUR: [claim_ended("GPU-0", "job", 20 * HOUR)],
}
"""Alice holds GPU-0 for 18 hours."""


async def test_p25_the_ledger_of_a_stepped_clock_is_that_of_a_right_one(make, tmp_path):
    envelopes = NodeReporter().envelopes_of(
        gpus_of("GPU-0"), range(0, DAY_SECONDS + 2 * HOUR + 1, 30), events=CLAIM, each=20
    )
    right = make("right", f"sqlite:///{tmp_path}/right.db")
    accept(right.core, envelopes)
    await right.round(DAY_SECONDS + 3 * HOUR, everything=True)
    first, end = len(envelopes) // 3, len(envelopes) // 2
    wrong, since_ns = wrong_clock_envelopes(envelopes, first, end, 5 * HOUR * SECOND)

    site: FinalizingCollector = make("stepped", f"sqlite:///{tmp_path}/stepped.db")
    accept(site.core, wrong[:first])
    await site.round(9 * HOUR, everything=True)
    accept(site.core, wrong[first:end])
    site.finalizer.hold_reason = lambda: "suspect"
    stored = site.finalizer.counts.intervals
    await site.round(40 * DAY_SECONDS, everything=True)
    assert site.finalizer.counts.intervals == stored, "nothing is kept for good while it is suspect"
    assert site.stores.ledger.newest(DAY - 1, DAY + 99) == {}, "nor is any day finalized"

    site.restart()
    decided = read_again(wrong, {since_ns: 5 * HOUR * SECOND})
    site._begin(decided)  # noqa: SLF001 - what the new start reads
    await site.round(DAY_SECONDS + 3 * HOUR, everything=True)
    days = range(DAY - 1, DAY + 99)
    assert content(site.stores.ledger, days) == content(right.stores.ledger, days) != {}
    assert max(day for _, day in site.stores.ledger.newest(days.start, days.stop)) <= DAY + 1
