"""Examples with one GPU of the rules that properties check in general."""

import sys
from fractions import Fraction

import numpy as np
import pytest
from support.metered import replica, tile

from railscope.claim_terms import ClaimAuthority
from railscope.timestamps import FOREVER_NS
from railscope_collector.metering.amount_shares import (
    AmountAttribution,
    AmountShare,
    attribute_shares,
)
from railscope_collector.metering.counter_increments import (
    CounterReadings,
    CounterRestart,
    compute_increments,
)
from railscope_collector.metering.evidence import (
    ClaimRelease,
    Evidence,
    GpuOutage,
    MeteredClaim,
    MigInstanceSlots,
    NodeEvidence,
    NodeSighting,
    NodeStay,
    PartitionLayout,
    SlotReservation,
)
from railscope_collector.metering.observation import (
    BootSampleSpan,
    join_sample_spans,
    join_samples,
)
from railscope_collector.metering.overlaps import OverlapKind, find_overlaps
from railscope_collector.metering.slot_owners import find_owners
from railscope_collector.metering.tiling import SlotState
from railscope_collector.metering.units import GPU_HOUR, Tiling, compute_slices, memory_slices

S = 1_000_000_000
HERE = (NodeStay(0, "n1"),)


def reported(evidence, end=100, tiling=Tiling.COMPUTE, start=0):
    """Seconds, state and claim of each entry of a tiling."""
    return [
        (entry.t0_ns // S, entry.t1_ns // S, entry.state, entry.claim)
        for entry in tile(evidence, start * S, end * S)
        if entry.tiling is tiling
    ]


def claim(name, start, end, authority=ClaimAuthority.SCHEDULER, **rest: object):
    return MeteredClaim(authority, start * S, name, f"tenant of {name}", end * S, **rest)


def seen(*seconds: int, boot="a", uncertainty=0):
    found = join_samples(boot, np.array(seconds, np.int64) * S, uncertainty * S)
    return tuple(found)


def test_an_hour_of_a_gpu_is_one_gpu_hour_in_both_tilings():
    entries = tile(Evidence("g", HERE), 0, 3600 * S)
    assert [(e.tiling, e.quantity, e.state) for e in entries] == [
        (Tiling.COMPUTE, GPU_HOUR, SlotState.UNKNOWN),
        (Tiling.MEMORY, GPU_HOUR, SlotState.UNKNOWN),
    ]


def moved(evidence):
    """Start, end, both claims, kind and units of each overlap in compute."""
    return [
        (
            overlap.start_ns // S,
            overlap.end_ns // S,
            overlap.claim,
            overlap.other,
            overlap.kind,
            overlap.units,
        )
        for overlap in find_overlaps(evidence)
        if overlap.tiling is Tiling.COMPUTE
    ]


def test_the_earlier_of_two_equal_claims_holds_again_and_an_overlap_names_both():
    evidence = Evidence("g", HERE, claims=(claim("a", 0, 90), claim("b", 20, 40)))
    assert reported(evidence) == [
        (0, 20, SlotState.INFERRED, "a"),
        (20, 40, SlotState.INFERRED, "b"),
        (40, 90, SlotState.INFERRED, "a"),
        (90, 100, SlotState.UNKNOWN, ""),
    ]
    assert moved(evidence) == [(20, 40, "a", "b", OverlapKind.CONFLICT, 840)]


def test_shared_claims_without_a_share_have_equal_parts_while_both_last():
    shared = (claim("a", 0, 90, exclusive=False), claim("b", 20, 40, exclusive=False))
    evidence = Evidence("g", HERE, claims=shared)
    entries = [e for e in tile(evidence, 0, 90 * S) if e.tiling is Tiling.COMPUTE]
    assert [(e.t0_ns // S, e.t1_ns // S, e.slot_lo, e.slot_hi, e.claim) for e in entries] == [
        (0, 20, 0, 840, "a"),
        (20, 40, 0, 420, "a"),
        (20, 40, 420, 840, "b"),
        (40, 90, 0, 840, "a"),
    ]
    assert moved(evidence) == []


def test_an_exclusive_claim_on_one_instance_does_not_divide_shares_of_another():
    first, second = (
        {"compute": compute_slices(3 * at, 3), "memory": memory_slices(4 * at, 4)} for at in (0, 1)
    )
    shared = {**second, "exclusive": False, "share": Fraction(3, 4)}
    claims = (
        claim("a", 0, 90, **shared),
        claim("m", 10, 90, **first),
        claim("b", 20, 90, **shared),
    )
    evidence = Evidence("g", HERE, claims=claims)
    entries = [e for e in tile(evidence, 30 * S, 90 * S) if e.tiling is Tiling.COMPUTE]
    assert [(e.slot_lo, e.slot_hi, e.claim) for e in entries] == [
        (0, 360, "m"),
        (360, 540, "a"),
        (540, 720, "b"),
        (720, 840, ""),
    ]
    found = [overlap for overlap in find_overlaps(evidence) if overlap.tiling is Tiling.COMPUTE]
    assert [(o.claim, o.other, o.kind, o.units, o.ratio) for o in found] == [
        ("a", "b", OverlapKind.OVERSUBSCRIBED, 90, Fraction(3, 2)),
        ("b", "a", OverlapKind.OVERSUBSCRIBED, 90, Fraction(3, 2)),
    ]


def test_a_share_that_another_group_of_its_rank_leaves_nothing_is_in_conflict():
    part = {"exclusive": False, "share": Fraction(1, 2)}
    claims = (claim("a", 0, 90, **part), claim("m", 10, 90), claim("b", 20, 90, **part))
    assert moved(Evidence("g", HERE, claims=claims)) == [
        (10, 20, "a", "m", OverlapKind.CONFLICT, 420),
        (20, 90, "a", "b", OverlapKind.CONFLICT, 420),
        (20, 90, "m", "b", OverlapKind.CONFLICT, 420),
    ]


def test_a_claim_keeps_its_precedence_where_the_gpu_comes_later():
    late = (NodeStay(50 * S, "n1"), NodeStay(70 * S, "n1"))
    claims = (claim("z", 0, 90, node="n1"), claim("a", 20, 80, node="n1"))
    assert reported(Evidence("g", late, claims=claims)) == [
        (50, 80, SlotState.INFERRED, "a"),
        (80, 90, SlotState.INFERRED, "z"),
        (90, 100, SlotState.UNKNOWN, ""),
    ]


def test_a_claim_without_a_node_is_in_force_while_the_gpu_is_in_any():
    moves = (NodeStay(10 * S, "n1", 20 * S), NodeStay(40 * S, "n2"))
    evidence = Evidence("g", moves, claims=(claim("a", 0, 60), claim("b", 15, 50)))
    assert [(row[0], row[1], row[3]) for row in reported(evidence)] == [
        (10, 15, "a"),
        (15, 20, "b"),
        (40, 50, "b"),
        (50, 60, "a"),
        (60, 100, ""),
    ]
    assert [row[:4] for row in moved(evidence)] == [(15, 20, "a", "b"), (40, 50, "a", "b")]


@pytest.mark.parametrize(
    ("lower", "higher"),
    [("9", "10"), ("j9", "j10"), ("a", "aa"), ("1", "a"), ("07", "7"), ("a2b", "a10"), ("Z", "a")],
)
def test_ids_are_ordered_by_the_numbers_in_them(lower, higher):
    both = (claim(lower, 0, 100), claim(higher, 0, 40))
    assert [row[3] for row in reported(Evidence("g", HERE, claims=both))] == [higher, lower]


def test_a_higher_rank_holds_for_as_long_as_it_lasts():
    override = claim("o", 20, 40, ClaimAuthority.ADMINISTRATOR, system=True)
    evidence = Evidence("g", HERE, claims=(claim("a", 0, 60), override))
    assert reported(evidence) == [
        (0, 20, SlotState.INFERRED, "a"),
        (20, 40, SlotState.SYSTEM, "o"),
        (40, 60, SlotState.INFERRED, "a"),
        (60, 100, SlotState.UNKNOWN, ""),
    ]
    assert moved(evidence) == [(20, 40, "a", "o", OverlapKind.OVERRIDE, 840)]


def test_a_claim_under_review_holds_what_no_other_claim_does():
    late = claim("r", 0, 50, ClaimAuthority.REVIEW, review="received too late")
    evidence = Evidence("g", HERE, claims=(late, claim("p", 20, 30, ClaimAuthority.PROCESS)))
    assert reported(evidence) == [
        (0, 20, SlotState.REVIEW, "r"),
        (20, 30, SlotState.UNCLAIMED, "p"),
        (30, 50, SlotState.REVIEW, "r"),
        (50, 100, SlotState.UNKNOWN, ""),
    ]
    reasons = {entry.reason for entry in tile(evidence, 0, 100 * S) if entry.claim == "r"}
    assert reasons == {"received too late"}


def test_a_process_without_a_claim_is_unclaimed_use():
    evidence = Evidence(
        "g", HERE, claims=(claim("p", 10, 20, ClaimAuthority.PROCESS), claim("s", 15, 50))
    )
    assert [row[2] for row in reported(evidence)] == [
        SlotState.UNKNOWN,
        SlotState.UNCLAIMED,
        SlotState.INFERRED,
        SlotState.UNKNOWN,
    ]


def test_a_release_may_come_before_its_claim_and_the_first_counts():
    releases = (ClaimRelease("a", 50 * S), ClaimRelease("a", 30 * S), ClaimRelease("other", 0))
    open_end = MeteredClaim(ClaimAuthority.SCHEDULER, 10 * S, "a", "t")
    evidence = Evidence("g", HERE, claims=(open_end,), releases=releases)
    assert reported(evidence)[1] == (10, 30, SlotState.INFERRED, "a")
    never = Evidence("g", HERE, claims=(open_end,), releases=(ClaimRelease("a", 5 * S),))
    assert reported(never) == [(0, 100, SlotState.UNKNOWN, "")]


def test_a_claim_that_is_reported_again_with_its_end_has_ended():
    open_end = MeteredClaim(ClaimAuthority.SCHEDULER, 10 * S, "a", "t")
    evidence = Evidence(
        "g",
        HERE,
        claims=(MeteredClaim(ClaimAuthority.SCHEDULER, 10 * S, "a", "t", 30 * S), open_end),
    )
    assert reported(evidence)[1:] == [
        (10, 30, SlotState.INFERRED, "a"),
        (30, 100, SlotState.UNKNOWN, ""),
    ]


def test_a_claim_on_a_node_holds_while_the_gpu_is_in_it():
    moves = (NodeStay(0, "n1", 30 * S), NodeStay(40 * S, "n2"))
    here, there = claim("c1", 10, 90, node="n1"), claim("c2", 0, 80, node="n2")
    evidence = Evidence("g", moves, claims=(here, there))
    assert reported(evidence) == [
        (0, 10, SlotState.UNKNOWN, ""),
        (10, 30, SlotState.INFERRED, "c1"),
        (40, 80, SlotState.INFERRED, "c2"),
        (80, 100, SlotState.UNKNOWN, ""),
    ]
    assert moved(evidence) == []


def test_a_gap_is_inferred_with_the_best_evidence_and_its_whole_length():
    evidence = Evidence(
        "g",
        HERE,
        claims=(claim("a", 0, 100),),
        sample_spans=(*seen(0, 10, 20), *seen(80, 90)),
        sightings=(
            NodeSighting(NodeEvidence.BMC, 0, 60 * S),
            NodeSighting(NodeEvidence.SCHEDULER, 30 * S, 50 * S),
        ),
    )
    entries = [e for e in tile(evidence, 0, 100 * S) if e.tiling is Tiling.MEMORY]
    assert [(e.t0_ns // S, e.state, e.node_evidence, e.gap_ns) for e in entries] == [
        (0, SlotState.OBSERVED, None, 0),
        (20, SlotState.INFERRED, NodeEvidence.BMC, 60 * S),
        (30, SlotState.INFERRED, NodeEvidence.SCHEDULER, 60 * S),
        (50, SlotState.INFERRED, NodeEvidence.BMC, 60 * S),
        (60, SlotState.INFERRED, NodeEvidence.NONE, 60 * S),
        (80, SlotState.OBSERVED, None, 0),
        (90, SlotState.INFERRED, NodeEvidence.NONE, FOREVER_NS),
    ]


def test_a_first_sample_just_after_a_claim_began_leaves_no_sliver():
    late = Evidence(
        "g", HERE, claims=(claim("a", 9, 50),), sample_spans=seen(10, 30, 51, uncertainty=1)
    )
    assert reported(late) == [
        (0, 9, SlotState.UNKNOWN, ""),
        (9, 50, SlotState.OBSERVED, "a"),
        (50, 100, SlotState.UNKNOWN, ""),
    ]
    exact = Evidence("g", HERE, claims=(claim("a", 9, 50),), sample_spans=seen(10, 30, 51))
    assert [row[:2] for row in reported(exact)] == [(0, 9), (9, 10), (10, 50), (50, 51), (51, 100)]


def test_samples_of_a_clock_a_minute_off_show_nothing():
    off = tuple(BootSampleSpan("a", first * S, first * S, 0, 61 * S) for first in (0, 10))
    assert reported(Evidence("g", HERE, sample_spans=off)) == [(0, 100, SlotState.UNKNOWN, "")]
    assert reported(Evidence("g", HERE, sample_spans=seen(0, 10)))[0] == (0, 10, SlotState.IDLE, "")


def test_what_mig_cannot_use_is_stranded_in_one_tiling_only():
    halves = tuple(
        MigInstanceSlots(compute_slices(3 * half, 3), memory_slices(4 * half, 4)) for half in (0, 1)
    )
    evidence = Evidence(
        "g",
        HERE,
        sample_spans=seen(0, 20, 40, 60, 80, 100),
        layouts=(PartitionLayout(50 * S, "l", halves),),
    )
    entries = tile(evidence, 0, 100 * S)
    assert [(e.tiling, e.t0_ns // S, e.slot_lo, e.slot_hi, e.state, e.layout) for e in entries] == [
        (Tiling.COMPUTE, 0, 0, 840, SlotState.IDLE, ""),
        (Tiling.COMPUTE, 50, 0, 720, SlotState.IDLE, "l"),
        (Tiling.COMPUTE, 50, 720, 840, SlotState.STRANDED, "l"),
        (Tiling.MEMORY, 0, 0, 840, SlotState.IDLE, ""),
        (Tiling.MEMORY, 50, 0, 840, SlotState.IDLE, "l"),
    ]
    one = PartitionLayout(50 * S, "l", halves[:1])
    assert one.stranded_slots(Tiling.COMPUTE) == one.stranded_slots(Tiling.MEMORY) == ()
    with pytest.raises(ValueError, match="overlap"):
        PartitionLayout(0, "l", (halves[0], halves[0]))


def test_maintenance_is_not_an_outage_and_a_reservation_counts_where_it_is_not_used():
    evidence = Evidence(
        "g",
        HERE,
        claims=(claim("a", 0, 60),),
        outages=(GpuOutage(False, 10 * S, 40 * S), GpuOutage(True, 20 * S, 30 * S)),  # noqa: FBT003
        reservations=(SlotReservation(50 * S, "r", "kept", 90 * S),),
    )
    assert reported(evidence) == [
        (0, 10, SlotState.INFERRED, "a"),
        (10, 20, SlotState.DOWN, "a"),
        (20, 30, SlotState.MAINTENANCE, "a"),
        (30, 40, SlotState.DOWN, "a"),
        (40, 60, SlotState.INFERRED, "a"),
        (60, 90, SlotState.RESERVED, "r"),
        (90, 100, SlotState.UNKNOWN, ""),
    ]


def test_samples_in_columns_and_one_by_one_are_the_same_spans():
    seconds = [100, 10, 20, 50, 81, 90, 10]
    singly = [part for second in seconds for part in seen(second)]
    assert join_sample_spans(singly) == list(seen(*seconds))
    assert [(s.first_ns // S, s.last_ns // S) for s in seen(*seconds)] == [(10, 50), (81, 100)]
    assert seen() == ()


def counters(*pairs: tuple[int, int], boot="a", age=0):
    seconds, values = (np.array(each, np.int64) for each in zip(*pairs, strict=True))
    return CounterReadings(boot, seconds * S, values, ages_ns=(seconds + age) * S if age else None)


def test_energy_over_a_gap_is_the_holders_and_over_a_handover_unattributed():
    evidence = Evidence("g", HERE, claims=(claim("a", 0, 55), claim("b", 55, 100)))
    counted = compute_increments(
        [counters((0, 1000), (10, 1100), (50, 1500), (60, 1570), (70, 1600))]
    )
    assert attribute_shares(find_owners(evidence), counted, 0, 70 * S) == [
        AmountShare(0, 55 * S, 0, 840, AmountAttribution.ATTRIBUTED, 500, "tenant of a", "", "a"),
        AmountShare(50 * S, 60 * S, 0, 840, AmountAttribution.UNATTRIBUTED, 70),
        AmountShare(
            55 * S, 70 * S, 0, 840, AmountAttribution.ATTRIBUTED, 30, "tenant of b", "", "b"
        ),
    ]
    assert counted.resets() == []


def test_a_counter_that_starts_over_counts_from_zero_and_reports_the_loss():
    runs = [counters((0, 1000), (10, 1200), (20, 50), (30, 90)), counters((60, 400), boot="b")]
    counted = compute_increments(runs)
    assert counted.amounts.tolist() == [200, 50, 40, 400]
    assert counted.resets() == [CounterRestart(10 * S, 20 * S), CounterRestart(30 * S, 60 * S)]
    found = attribute_shares(find_owners(Evidence("g", HERE)), counted, 0, 100 * S)
    assert [(share.use, share.amount) for share in found] == [
        (AmountAttribution.IDLE, 240),
        (AmountAttribution.UNATTRIBUTED, 50),
        (AmountAttribution.UNATTRIBUTED, 400),
    ]


def test_overlapping_boots_continue_their_own_counters():
    second_host = [(5, 70), (15, 75), (8000, 100), (8100, 130)]
    runs = [
        counters((0, 1000), (10, 1010), (20, 1030), (9000, 1090), boot="a", age=50_000),
        counters(*second_host, boot="b", age=90_000),
    ]
    counted = compute_increments(runs)
    spans = zip(counted.starts_ns // S, counted.ends_ns // S, strict=True)
    assert [(*span, n) for span, n in zip(spans, counted.amounts, strict=True)] == [
        (0, 5, 0),
        (0, 10, 10),
        (5, 15, 5),
        (10, 20, 20),
        (20, 8000, 0),
        (8000, 8100, 30),
        (8100, 9000, 0),
    ]
    lost = [(0, 5), (20, 8000), (8100, 9000)]
    assert counted.resets() == [CounterRestart(first * S, last * S) for first, last in lost]


def test_the_energy_of_a_shared_gpu_is_divided_to_the_last_millijoule():
    thirds = tuple(
        claim(f"c{i}", 0, 100, compute=replica(i, 3), memory=replica(i, 3)) for i in range(3)
    )
    counted = compute_increments([counters((0, 0), (10, 100))])
    found = attribute_shares(find_owners(Evidence("g", HERE, claims=thirds)), counted, 0, 100 * S)
    assert [(share.claim, share.amount) for share in found] == [("c0", 33), ("c1", 33), ("c2", 34)]


def test_the_bytes_of_a_fast_port_are_divided_exactly():
    most = (1 << 63) - 1
    counted = compute_increments([counters((0, 0), (10, most), (20, 5), (30, most))])
    found = attribute_shares(
        find_owners(Evidence("g", HERE, claims=(claim("a", 0, 100),))), counted, 0, 100 * S
    )
    assert [(share.use, share.amount) for share in found] == [
        (AmountAttribution.ATTRIBUTED, 2 * most - 5),
        (AmountAttribution.UNATTRIBUTED, 5),
    ]
    thirds = tuple(
        claim(f"c{i}", 0, 100, compute=replica(i, 3), memory=replica(i, 3)) for i in range(3)
    )
    counted = compute_increments([counters((0, 0), (10, most))])
    found = attribute_shares(find_owners(Evidence("g", HERE, claims=thirds)), counted, 0, 100 * S)
    assert [share.amount for share in found] == [
        most * (i + 1) // 3 - most * i // 3 for i in range(3)
    ]


def test_counters_below_zero_are_rejected():
    with pytest.raises(ValueError, match="expected 0 or more"):
        counters((0, -1))
    with pytest.raises(ValueError, match="1 counters: expected 2, one per time"):
        CounterReadings("a", np.zeros(2, np.int64), np.zeros(1, np.int64))
    with pytest.raises(ValueError, match="3 ages: expected 2, one per time"):
        CounterReadings("a", *np.zeros((2, 2), np.int64), ages_ns=np.zeros(3, np.int64))


def calls_of_overlaps(number: int) -> int:
    """Calls of functions to find the overlaps of jobs that begin and end under an administrator's claim."""
    top = MeteredClaim(ClaimAuthority.ADMINISTRATOR, 0, "top", "admin", end_ns=FOREVER_NS)
    jobs = (
        MeteredClaim(ClaimAuthority.SCHEDULER, at * S, f"j{at}", "team", end_ns=(10_000 + at) * S)
        for at in range(number)
    )
    evidence = Evidence("GPU-1", (NodeStay(0, "n1"),), (top, *jobs))
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        found = find_overlaps(evidence)
    finally:
        sys.setprofile(before)
    assert len(found) == 2 * number
    return calls


def test_claims_whose_holder_stays_are_not_visited_whenever_another_begins_or_ends():
    assert calls_of_overlaps(120) < 3 * calls_of_overlaps(60), "linear and not the square"
