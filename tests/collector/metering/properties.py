"""Properties of metering: quantities, windows, samples and counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

import model
import msgspec
from histories import MeteringCase, S
from support.metered import tile

from railscope.claim_terms import GPU_CAPACITY
from railscope_collector.metering.amount_shares import AmountShare, attribute_shares
from railscope_collector.metering.counter_increments import CounterIncrements, compute_increments
from railscope_collector.metering.evidence import Evidence
from railscope_collector.metering.observation import GAP_NS
from railscope_collector.metering.slot_owners import find_owners
from railscope_collector.metering.tiling import SlotState, TilingEntry
from railscope_collector.metering.units import Tiling, Units


def shares(
    evidence: Evidence, counted: CounterIncrements, start: int, end: int
) -> list[AmountShare]:
    """Amounts counted in one window."""
    return attribute_shares(find_owners(evidence), counted, start, end)


KIND = {
    SlotState.OBSERVED: "held",
    SlotState.INFERRED: "held",
    SlotState.IDLE: "free",
    SlotState.UNKNOWN: "free",
}


"""States between which samples move time."""


def everything(entries: Iterable[TilingEntry]) -> Counter:
    """Quantity by all content of entries but their slots and times."""
    total: Counter = Counter()
    for entry in entries:
        expected_text = msgspec.structs.astuple(entry)
        total[(expected_text[0], expected_text[1], *expected_text[6:])] += entry.quantity
    return total


def by_claim(entries: Iterable[TilingEntry]) -> Counter:
    """Quantity by whose it is, whatever was seen of it."""
    total: Counter = Counter()
    for e in entries:
        kind = KIND.get(e.state, e.state)
        total[e.tiling, e.node, kind, e.tenant, e.workload, e.claim, e.layout] += e.quantity
    return total


def present_ns(case: MeteringCase) -> int:
    """Time of the window in which the GPU was in some node."""
    edges = {case.start, case.end}
    edges |= {e for stay in case.evidence.stays for e in (stay.start_ns, stay.end_ns)}
    inside = sorted(edge for edge in edges if case.start <= edge <= case.end)
    return sum(b - a for a, b in pairwise(inside) if model.present(case.evidence, a))


def p1_quantities_add_up_to_capacity(case: MeteringCase) -> None:
    total: Counter = Counter()
    for entry in tile(case.evidence, case.start, case.end):
        assert entry.quantity > 0
        assert case.start <= entry.t0_ns < entry.t1_ns <= case.end
        total[entry.tiling] += entry.quantity
    for each in Tiling:
        assert total[each] == GPU_CAPACITY * present_ns(case)


def p2_order_and_repetition_change_nothing(case: MeteringCase) -> None:
    again = case.shuffled()
    assert tile(again, case.start, case.end) == tile(case.evidence, case.start, case.end)
    counted = compute_increments(case.readings)
    repeated = compute_increments(case.mixed(case.readings))
    window = (case.start, case.end)
    assert shares(again, repeated, *window) == shares(case.evidence, counted, *window)


def p3_pointwise_oracle(case: MeteringCase) -> None:
    evidence = case.evidence
    entries = tile(evidence, case.start, case.end)
    for instant, slot in case.points:
        for each in Tiling:
            if case.start <= instant < case.end and model.present(evidence, instant):
                entry = model.the_entry(entries, each, slot, instant)
                _equals_the_model(evidence, entry, slot, instant)
            else:
                assert not model.at(entries, each, slot, instant)


def _equals_the_model(evidence: Evidence, entry: TilingEntry, slot: Units, instant: int) -> None:
    claim = model.holder(evidence, entry.tiling, slot, instant)
    outage = model.out_of_order(evidence, instant)
    assert entry.node == model.node(evidence, instant)
    if claim:
        holder = (claim.id, claim.tenant, claim.workload, claim.assumed)
        assert (entry.claim, entry.tenant, entry.workload, entry.assumed) == holder
    elif entry.state is not SlotState.RESERVED:
        assert (entry.claim, entry.tenant) == ("", "")
    if outage:
        assert entry.state is outage
    elif claim:
        expected = {SlotState.OBSERVED, SlotState.INFERRED}
        expected = {SlotState.UNCLAIMED} if claim.authority == 1 else expected
        expected = {SlotState.SYSTEM} if claim.system else expected
        expected = {SlotState.REVIEW} if claim.authority == 0 else expected
        assert entry.state in expected
        assert entry.reason == (claim.review if entry.state is SlotState.REVIEW else "")
    elif model.stranded(evidence, entry.tiling, slot, instant):
        assert entry.state is SlotState.STRANDED
    elif reservation := model.reservation(evidence, entry.tiling, slot, instant):
        assert entry.state is SlotState.RESERVED
        assert (entry.claim, entry.tenant) == (reservation.id, reservation.tenant)
    else:
        assert entry.state in {SlotState.IDLE, SlotState.UNKNOWN}
    if entry.state in KIND and not any(s.uncertainty_ns for s in evidence.sample_spans):
        seen = entry.state in {SlotState.OBSERVED, SlotState.IDLE}
        assert seen == model.seen(evidence, instant)
        if entry.state is SlotState.INFERRED:
            assert entry.gap_ns == model.gap_ns(evidence, instant)
            assert entry.node_evidence is model.node_evidence(evidence, instant)
    assert (
        (entry.node_evidence is not None)
        == (entry.gap_ns > 0)
        == (entry.state is SlotState.INFERRED)
    )


def p4_windows_add_up(case: MeteringCase) -> None:
    whole, one, other = (
        everything(tile(case.evidence, start, end)) for start, end in _windows(case)
    )
    assert whole == one + other
    counted = compute_increments(case.readings)
    whole, one, other = (
        _by_use(shares(case.evidence, counted, start, end)) for start, end in _windows(case)
    )
    assert whole == one + other


def _windows(case: MeteringCase) -> tuple[tuple[int, int], ...]:
    return (case.start, case.end), (case.start, case.middle), (case.middle, case.end)


def _by_use(found: Iterable[AmountShare]) -> Counter:
    total: Counter = Counter()
    for share in found:
        total[share.use, share.claim] += share.amount
    return total


def p5_samples_never_move_time_between_tenants(case: MeteringCase) -> None:
    for sample_spans in (case.other_sample_spans, ()):
        evidence = msgspec.structs.replace(case.evidence, sample_spans=sample_spans)
        assert by_claim(tile(evidence, case.start, case.end)) == by_claim(
            tile(case.evidence, case.start, case.end)
        )


def p6_nothing_is_seen_within_a_gap(case: MeteringCase) -> None:
    """For clocks that are uncertain, as far as they are certain."""
    samples = sorted({(s.boot, s.first_ns) for s in case.evidence.sample_spans})
    slack = max((span.uncertainty_ns for span in case.evidence.sample_spans), default=0)
    spans: list[tuple[int, int]] = []
    for start, end in sorted(
        (before - slack, after + slack)
        for (boot, before), (other, after) in pairwise(samples)
        if boot == other and after - before <= GAP_NS
    ):
        joins = spans and start <= spans[-1][1]
        first, last = spans.pop() if joins else (start, end)
        spans.append((first, max(last, end)))
    for entry in tile(case.evidence, case.start, case.end):
        if entry.state in {SlotState.OBSERVED, SlotState.IDLE}:
            assert any(start <= entry.t0_ns and entry.t1_ns <= end for start, end in spans)


def p7_slots_have_one_tenant(case: MeteringCase) -> None:
    entries = tile(case.evidence, case.start, case.end)
    for each in Tiling:
        tiles = sorted(
            (e.t0_ns, e.t1_ns, e.slot_lo, e.slot_hi) for e in entries if e.tiling is each
        )
        for low in {part[2] for part in tiles}:
            over = [part for part in tiles if part[2] <= low < part[3]]
            assert all(before[1] <= after[0] for before, after in pairwise(over))


def p12_amounts_add_up_to_the_counter(case: MeteringCase) -> None:
    evidence = case.evidence
    counted = compute_increments(case.readings)
    found = shares(evidence, counted, case.start, case.end)
    assert all(share.amount > 0 for share in found)
    increments = model.counted(case.readings)
    assert int(counted.amounts.sum()) == sum(amount for _, _, amount, _ in increments)
    assert {(r.last_ns, r.first_ns) for r in counted.resets()} == {
        (t0, t1) for t0, t1, _, same in increments if not same
    }
    assert sum(share.amount for share in found) == sum(
        amount for _, t1, amount, _ in increments if case.start < t1 <= case.end
    )
    assert _by_use(found) == model.shares(evidence, case.readings, case.start, case.end)


def p13_handover_has_one_holder_at_every_instant(case: MeteringCase) -> None:
    evidence = case.evidence
    entries = tile(evidence, case.start, case.end)
    instants = {instant for change in model.instants(evidence) for instant in (change - 1, change)}
    for instant in instants:
        if not (case.start <= instant < case.end and model.present(evidence, instant)):
            continue
        for each in Tiling:
            for slot in {0, *(claim.slots(each).low for claim in evidence.claims)}:
                entry = model.the_entry(entries, each, slot, instant)
                _equals_the_model(evidence, entry, slot, instant)


def p14_both_tilings_are_complete_in_every_layout(case: MeteringCase) -> None:
    entries = tile(case.evidence, case.start, case.end)
    for change in {case.start, *(layout.start_ns for layout in case.evidence.layouts)}:
        if not (case.start <= change < case.end and model.present(case.evidence, change)):
            continue
        begun = [layout for layout in case.evidence.layouts if layout.start_ns <= change]
        layout = max(begun, key=lambda layout: (layout.start_ns, layout.id), default=None)
        for each in Tiling:
            now = [e for e in entries if e.tiling is each and e.t0_ns <= change < e.t1_ns]
            assert sum(entry.slot_hi - entry.slot_lo for entry in now) == GPU_CAPACITY
            assert {entry.layout for entry in now} == {layout.id if layout else ""}


def p15_a_wrong_clock_moves_no_claim(case: MeteringCase) -> None:
    shift = case.random.randrange(-300, 300) * S
    moved = tuple(
        msgspec.structs.replace(s, first_ns=s.first_ns + shift, last_ns=s.last_ns + shift)
        for s in case.evidence.sample_spans
    )
    evidence = msgspec.structs.replace(case.evidence, sample_spans=moved)
    assert by_claim(tile(evidence, case.start, case.end)) == by_claim(
        tile(case.evidence, case.start, case.end)
    )


PROPERTIES = [
    p1_quantities_add_up_to_capacity,
    p2_order_and_repetition_change_nothing,
    p3_pointwise_oracle,
    p4_windows_add_up,
    p5_samples_never_move_time_between_tenants,
    p6_nothing_is_seen_within_a_gap,
    p7_slots_have_one_tenant,
    p12_amounts_add_up_to_the_counter,
    p13_handover_has_one_holder_at_every_instant,
    p14_both_tilings_are_complete_in_every_layout,
    p15_a_wrong_clock_moves_no_claim,
]
