"""Later reports of known claims: they change nothing before their own horizon but to `review`."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import NamedTuple

import pytest
from core_queries import ALICE, compute_states
from hypothesis import given, strategies as st
from msgspec.structs import replace
from reports import HOUR, SENT, Events, sample_envelopes
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

from railscope.claim_terms import ClaimAuthority
from railscope.frame import Event
from railscope_collector.evidence.boot_starts import BootStart
from railscope_collector.evidence.claim_events import (
    ClaimGap,
    ReportedClaim,
    ReportedEnd,
    find_ends,
    find_gaps,
    find_untrusted_ends,
    first_report_key,
    is_repetition,
    with_receipt,
)
from railscope_collector.evidence.claim_placement import ClaimPlacer
from railscope_collector.evidence.gpu_evidence import AdministratorInputs
from railscope_collector.evidence.review_rules import ReviewDecisions, ReviewKind, ReviewSubject
from railscope_collector.metering.units import Tiling
from railscope_collector.state.collector_state import CollectorState

BOOTED = 5000
REPORTED = 20 * HOUR
HORIZON = REPORTED - SENT - HOUR
"""Timestamp from which reports at `REPORTED` or later count."""
LAST = 24 * HOUR
REBOOTED = 10 * HOUR
GPUS = ("GPU-0", "GPU-1")
few = fewer_examples(80)


def by_boot(second: float, booted: int = BOOTED) -> dict[str, str]:
    return {"start_boot_ns": str(round((second + booted) * SECOND))}


reports_of = partial(sample_envelopes, *GPUS, until=LAST)


def observed(core: CollectorState, files: AdministratorInputs | None = None) -> list[tuple]:
    return [state for state in compute_states(core, LAST, files=files) if state[0] != "idle"]


def claim(tenant: str, second: int = 6 * HOUR, **facts: str) -> Event:
    return claim_started("GPU-0", "job", second, tenant=tenant, **facts)


def reported_at(event: Event, second: int) -> Event:
    """The same with another boot time of the event itself."""
    return Event(
        event.event_class, event.entity, at(second), round((second + BOOTED) * SECOND), event.facts
    )


RED, BLUE = claim("red", **by_boot(6 * HOUR)), claim("blue", **by_boot(6 * HOUR))


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(claim_started("GPU-0", "job", 6 * HOUR, level="process"), id="process"),
        pytest.param(claim_started("GPU-0", "job", 6 * HOUR, unclaimed=True), id="unclaimed"),
        pytest.param(claim_started("GPU-0", "job", 20 * HOUR, tenant="red"), id="tenant"),
        pytest.param(claim_started("GPU-0", "job", 6 * HOUR, level="node_plugin"), id="rank"),
    ],
)
def test_a_late_claim_waits_whatever_else_is_reported_under_its_id(
    core: CollectorState, other: Event
):
    accept(core, reports_of(events={REPORTED: [other, BLUE], REPORTED + 2 * HOUR: [other]}))
    assert observed(core) == [
        ("review", "blue", 6 * HOUR, HORIZON),
        ("observed", "blue", HORIZON, LAST),
    ]


@pytest.mark.parametrize(
    "again",
    [
        pytest.param(BLUE, id="boot clock"),
        pytest.param(claim("blue"), id="wall clock"),
        pytest.param(reported_at(BLUE, 5 * HOUR), id="predated"),
        pytest.param(claim("blue", 5 * HOUR, level="scheduler"), id="earlier start"),
        pytest.param(claim("blue", level="process"), id="process"),
    ],
)
@pytest.mark.parametrize("first", [RED, claim("red")], ids=["boot clock", "wall clock"])
def test_a_later_report_of_a_claim_moves_no_time_to_another_tenant(
    core: CollectorState, first: Event, again: Event
):
    accept(core, reports_of(events={6 * HOUR: [first], REPORTED: [again]}))
    assert observed(core) == [("observed", "red", 6 * HOUR, LAST)]


def test_a_later_report_precedes_no_earlier_one_that_was_late_itself(core: CollectorState):
    """Its horizon may lie between the horizon and the receipt of the report before."""
    accept(
        core,
        reports_of(
            events={REPORTED: [reported_at(RED, REPORTED)], REPORTED + SENT: [reported_at(BLUE, 0)]}
        ),
    )
    assert {tenant for _, tenant, *_ in observed(core)} == {"red"}
    accepted = AdministratorInputs(
        decisions=ReviewDecisions({ReviewSubject(ReviewKind.CLAIM, "n1", "job"): True})
    )
    assert observed(core, accepted) == [("observed", "red", 6 * HOUR, LAST)]


@pytest.mark.parametrize("level", ["process", "scheduler"])
def test_an_end_in_a_later_report_of_a_claim_waits(core: CollectorState, level: str):
    again = claim("red", level=level, end_ns=str(at(6 * HOUR + 60)))
    accept(core, reports_of(events={6 * HOUR: [RED], REPORTED: [again]}))
    assert observed(core) == [
        ("observed", "red", 6 * HOUR, 6 * HOUR + 60),
        ("review", "red", 6 * HOUR + 60, HORIZON),
    ]


def test_a_later_end_makes_no_claim_longer(core: CollectorState):
    over = claim("red", end_ns=str(at(12 * HOUR)))
    later = {12 * HOUR: [over], REPORTED: [claim_ended("GPU-0", "job", REPORTED)]}
    accept(core, reports_of(events={6 * HOUR: [claim("red")]} | later))
    assert observed(core) == [("observed", "red", 6 * HOUR, 12 * HOUR)]


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


def test_a_claim_that_a_boot_ended_is_not_revived_before_the_horizon(core: CollectorState):
    accept(core, two_boots({6 * HOUR: [claim("red")]}, {REPORTED: [claim("red")]}))
    found = [(tenant, start, end) for _, tenant, start, end in observed(core) if tenant]
    since = REPORTED - SENT - HOUR - 30  # the newest frame of the envelope before
    assert found[0][1] == 6 * HOUR
    assert max(end for _, start, end in found if start < REBOOTED) == REBOOTED
    assert min(start for _, start, _ in found if start >= REBOOTED) >= since
    assert found[-1] == ("red", min(s for _, s, _ in found if s >= REBOOTED), LAST)


def test_a_claim_that_is_reported_after_a_reboot_goes_on(core: CollectorState):
    accept(core, two_boots({6 * HOUR: [claim("red")]}, {REBOOTED: [claim("red")]}))
    held = [one for one in observed(core) if one[1] == "red"]
    assert (held[0][2], held[-1][3]) == (6 * HOUR, LAST)
    assert all(one[3] == other[2] for one, other in pairwise(held))


def report_second(second: int, boot: str, horizon: int, **facts: int) -> ReportedClaim:
    return ReportedClaim(
        at(0),
        "GPU-0",
        "n1",
        "job",
        ClaimAuthority.SCHEDULER,
        boot=boot,
        reported_ns=at(second),
        trusted_from_ns=at(horizon),
        received_ns=at(second),
        **facts,
    )


def test_a_gap_is_from_the_boot_to_the_least_horizon_of_what_outlasted_it():
    first, revived = report_second(5, "boot-1", 0), report_second(900, "boot-2", 600)
    boots = [BootStart("n1", "boot-2", at(100), at(200))]
    assert find_gaps([first], boots) == {}
    assert find_ends([first], [], boots) == {("n1", "job"): at(200)}
    assert find_gaps([first, revived], boots) == {
        ("n1", "job"): [ClaimGap(at(100), at(200), at(600))]
    }
    assert find_ends([first, revived], [], boots) == {}
    in_time = report_second(901, "boot-3", 100)
    assert find_gaps([first, revived, in_time], boots) == {}


def test_an_end_of_a_later_boot_counts_unless_another_was_reported_by_then():
    claims = [report_second(5, "boot-1", 0), report_second(900, "boot-2", 600, end_ns=at(700))]
    before = ReportedEnd(at(500), "GPU-0", "n1", "job", at(300))
    after = ReportedEnd(at(800), "GPU-0", "n1", "job", at(650))
    assert find_ends(claims, [before], []) == {("n1", "job"): at(500)}
    assert find_untrusted_ends(claims, [before], [], find_ends(claims, [before], [])) == {}
    assert find_ends(claims, [after], []) == {("n1", "job"): at(700)}


def test_every_report_has_its_receipt_and_its_horizon():
    for start in (0, 500):
        one = ReportedClaim(
            at(start), "GPU-0", "n1", "job", ClaimAuthority.PROCESS, reported_ns=at(100)
        )
        assert with_receipt(one, at(300), at(400)) == replace(
            one, reported_ns=at(300), trusted_from_ns=at(300), received_ns=at(400)
        )
    end = with_receipt(ReportedEnd(at(900), "GPU-0", "n1", "job"), at(300), at(400))
    assert end == ReportedEnd(at(900), "GPU-0", "n1", "job", at(300))


def test_the_first_receipt_counts_whatever_the_node_states():
    first = report_second(400, "boot-1", 100)
    again = replace(first, reported_ns=at(200), received_ns=at(500), tenant="blue")
    assert min([again, first], key=first_report_key) == first
    assert is_repetition(first, replace(first, reported_ns=at(500), received_ns=at(500)))
    assert not is_repetition(first, replace(first, received_ns=at(399)))


# Whatever is reported later ---------------------------------------------------------------------


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


def test_a_claim_under_review_moves_no_claim_without_a_device(core: CollectorState):
    job = {"workload": "w", "source": "kubernetes"}
    whole = claim_started("", "count", HOUR, count="1", **job, **ALICE)
    accept(core, reports_of(events={HOUR: [whole]}))
    before = {gpu: cells(core, gpu) for gpu in GPUS}
    named = claim_started("GPU-1", "late", 2 * HOUR, tenant="mallory", **job)
    other = claim_started("GPU-0", "other", 2 * HOUR, tenant="mallory")
    accept(
        core,
        NodeReporter(run="run-2").envelopes_of(
            gpus_of(*GPUS), [LAST + 60], events={LAST + 60: [named, other]}
        ),
    )
    for gpu in GPUS:
        assert not changed(before[gpu], cells(core, gpu))


def test_a_late_claim_for_whole_gpus_moves_no_fraction_without_a_device(core: CollectorState):
    half = claim_started("", "other", 38_215, count="1", share="1/2", exclusive="false", **ALICE)
    accept(core, reports_of(events={38_400: [half]}))
    before = {gpu: cells(core, gpu) for gpu in GPUS}
    assert any(one.tenant == "alice" for one in before["GPU-0"])
    late = claim_started("", "job", REBOOTED, count="1", tenant="mallory")
    accept(
        core,
        NodeReporter(run="run-2").envelopes_of(
            gpus_of(*GPUS), [LAST + 60], events={LAST + 60: [late]}
        ),
    )
    for gpu in GPUS:
        assert not changed(before[gpu], cells(core, gpu))
    assert {cell.state for cell in cells(core, "GPU-1") if cell.tenant == "mallory"} == {"review"}


@pytest.mark.parametrize(
    "others",
    [
        pytest.param([claim_started("GPU-0", "first", HOUR, tenant="red")], id="position"),
        pytest.param([claim_started("", "job5", HOUR, count="2", tenant="blue")], id="precedence"),
    ],
)
def test_a_late_end_moves_no_claim_without_a_device(core: CollectorState, others: list[Event]):
    """It keeps the GPU that it took while another was held, and its precedence."""
    job = claim_started("", "job", HOUR, count="1", **ALICE)
    events = {HOUR: [*others, job], 3 * HOUR: [claim_ended("GPU-0", "first", 3 * HOUR)]}
    accept(core, reports_of(events=events))
    before = {gpu: cells(core, gpu) for gpu in GPUS}
    over = claim_ended("", "job", 4 * HOUR)
    accept(
        core,
        NodeReporter(run="run-2").envelopes_of(
            gpus_of(*GPUS), [LAST + 60], events={LAST + 60: [over]}
        ),
    )
    for gpu in GPUS:
        after = cells(core, gpu)
        assert not changed(before[gpu], after)
        assert held_by_others(after) == held_by_others(before[gpu])


def held_by_others(found: list[SlotCell]) -> list[SlotCell]:
    return [one for one in found if one.tenant not in {"", "alice"}]


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


BOOT_1, BOOT_2 = -BOOTED, REBOOTED - 60


@few
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
