"""P24: whatever nodes report later changes nothing before its own horizon but to `review`."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given, strategies as st
from support.examples import fewer_examples
from support.metered import tile
from support.story import (
    SECOND,
    Envelopes,
    NodeReporter,
    accept,
    at,
    claim_ended,
    claim_started,
    core_in,
    gpus_of,
)

from railscope.frame import Event
from railscope_collector.evidence.claim_placement import ClaimPlacer
from railscope_collector.evidence.gpu_evidence import AdministratorInputs
from railscope_collector.metering.units import Tiling
from railscope_collector.state.collector_state import CollectorState

HOUR = 3600
SENT = 600
"""Seconds from one envelope to the next."""
BOOTED = 5000
REBOOTED = 10 * HOUR
REPORTED = 20 * HOUR
HORIZON = REPORTED - SENT - HOUR
"""Timestamp from which reports at `REPORTED` or later count."""
LAST = 24 * HOUR
GPUS = ("GPU-0", "GPU-1")
BOOT_1, BOOT_2 = -BOOTED, REBOOTED - 60
Events = dict[int, list[Event]]


def two_boots(first: Events, second: Events, step: int = 30) -> Envelopes:
    """The node in a boot up to `REBOOTED` and in another from then on."""
    one = NodeReporter()
    other = NodeReporter(boot_id="boot-2", run="run-2", booted_at=REBOOTED - 60, is_known=True)
    each = SENT // step
    return [
        *one.envelopes_of(gpus_of(*GPUS), range(0, REBOOTED, step), each=each, events=first),
        *other.envelopes_of(
            gpus_of(*GPUS), range(REBOOTED, LAST + 1, step), each=each, events=second
        ),
    ]


class SlotCell(NamedTuple):
    """A state of some slots of a GPU for some time."""

    span: tuple[int, int]
    slots: tuple[int, int]
    state: str
    tenant: str


def cells(core: CollectorState, gpu: str) -> list[SlotCell]:
    """The time of a GPU before the horizon, with the claims that were placed on it."""
    evidence, _ = ClaimPlacer(core.evidence, AdministratorInputs()).evidence(gpu)
    return [
        SlotCell((e.t0_ns, e.t1_ns), (e.slot_lo, e.slot_hi), e.state.value, e.tenant)
        for e in tile(evidence, at(0), at(HORIZON))
        if e.tiling is Tiling.COMPUTE
    ]


def changed(before: list[SlotCell], after: list[SlotCell]) -> list[tuple[SlotCell, SlotCell]]:
    """Cells that overlap in time and slots and differ, except for time under review.

    That is time that is under review now, or was and has no holder: a late claim has a late end.
    """
    return [
        (one, other)
        for one in before
        for other in after
        if other.state != "review" and one[2:] != other[2:]
        if one.state != "review" or other.tenant
        if all(max(a[0], b[0]) < min(a[1], b[1]) for a, b in zip(one[:2], other[:2], strict=True))
    ]


@st.composite
def claim_events(draw: st.DrawFn, booted: int) -> Event:
    """A start or an end of one of a few claims, with whatever a node may state of it."""
    gpu, name = draw(st.sampled_from([*GPUS, ""])), draw(st.sampled_from(["job", "other"]))
    start = draw(st.integers(HOUR, LAST))
    if draw(st.integers(0, 3)) == 0:
        event = claim_ended(gpu, name, start)
    else:
        facts = {
            "tenant": draw(st.sampled_from(["red", "blue"])),
            "level": draw(st.sampled_from(["scheduler", "scheduler", "node_plugin", "process"])),
            "workload": draw(st.sampled_from(["", "w"])),
        }
        if not gpu:
            facts["count"] = draw(st.sampled_from(["1", "2"]))
        if start >= booted and draw(st.booleans()):
            facts["start_boot_ns"] = str((start - booted) * SECOND)
        if draw(st.integers(0, 3)) == 0:
            facts["end_ns"] = str(at(draw(st.integers(HOUR, LAST))))
        if draw(st.integers(0, 3)) == 0:
            facts |= {"share": "1/2", "exclusive": "false"}
        event = claim_started(gpu, name, start, unclaimed=draw(st.booleans()), **facts)
    boot_ns = draw(st.sampled_from([0, (start - booted) * SECOND, LAST * SECOND, 1 << 60]))
    return Event(event.event_class, event.entity, event.wall_ns, boot_ns, event.facts)


def events_between(low: int, high: int, booted: int) -> st.SearchStrategy[Events]:
    """Some events in frames between two seconds."""
    seconds = st.integers(low // SENT, high // SENT - 1).map(lambda number: number * SENT)
    some = st.lists(claim_events(booted), min_size=1, max_size=2)
    return st.dictionaries(seconds, some, min_size=1, max_size=4)


@fewer_examples(50)
@given(
    events_between(0, REBOOTED, BOOT_1),
    events_between(REBOOTED, REPORTED, BOOT_2),
    events_between(REPORTED, LAST, BOOT_2),
)
def test_p24_later_reports_change_nothing_before_their_horizon_but_to_review(
    tmp_path_factory, first, second, later
):
    one, other = (core_in(tmp_path_factory.mktemp("schemas")) for _ in range(2))
    accept(one, two_boots(first, second, step=SENT))
    accept(other, two_boots(first, second | later, step=SENT))
    for gpu in GPUS:
        assert not changed(cells(one, gpu), cells(other, gpu))
