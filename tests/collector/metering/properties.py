"""Properties of metering: quantities, windows, samples and counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from itertools import pairwise

import model
import msgspec
from histories import MeteringCase, S
from support.gpu_evidence import Evidence, timeline_of

from railscope.claim_terms import GPU_CAPACITY
from railscope.timestamps import FOREVER_NS, HOUR_NS
from railscope_collector.metering.counter_increments import (
    CountedQuantity,
    CounterReadings,
    compute_increments,
)
from railscope_collector.metering.evidence import NodeEvidence
from railscope_collector.metering.metered_day import (
    ABSENT,
    CountedAmount,
    DayPart,
    DayPiece,
)
from railscope_collector.metering.observation import GAP_NS
from railscope_collector.metering.slot_state import SlotState


def divide(evidence: Evidence, start: int, end: int) -> tuple[DayPiece, ...]:
    """Parts of the GPU in one window."""
    return timeline_of(evidence).pieces(start, end)


def amounts(
    evidence: Evidence, runs: Iterable[CounterReadings], start: int, end: int
) -> list[CountedAmount]:
    """Energy counted in one window."""
    counted = {CountedQuantity.ENERGY: compute_increments(list(runs))}
    found = timeline_of(evidence, counted).amounts(start, end)
    return [each for each in found if each.reason != ABSENT]


KIND = {
    SlotState.OBSERVED: "held",
    SlotState.INFERRED: "held",
    SlotState.IDLE: "free",
    SlotState.UNKNOWN: "free",
}
"""States between which samples move time."""


def everything(pieces: Iterable[DayPiece]) -> Counter:
    """Quantity by all content of parts but their sizes."""
    total: Counter = Counter()
    for piece in pieces:
        for part in piece.parts:
            key = msgspec.structs.replace(part, size=0)
            total[piece.node, key] += part.size * (piece.end_ns - piece.start_ns)
    return total


def by_claim(pieces: Iterable[DayPiece]) -> Counter:
    """Quantity by whose it is, whatever was seen of it."""
    total: Counter = Counter()
    for piece in pieces:
        for part in piece.parts:
            kind = KIND.get(part.state, part.state)
            key = (piece.node, kind, part.tenant, part.workload, part.claim)
            total[key] += part.size * (piece.end_ns - piece.start_ns)
    return total


def present_ns(case: MeteringCase) -> int:
    """Time of the window in which the GPU was in some node."""
    edges = {case.start, case.end}
    edges |= {e for stay in case.evidence.stays for e in (stay.start_ns, stay.end_ns)}
    inside = sorted(edge for edge in edges if case.start <= edge <= case.end)
    return sum(b - a for a, b in pairwise(inside) if model.present(case.evidence, a))


def p1_quantities_add_up_to_capacity(case: MeteringCase) -> None:
    now, total = case.start, 0
    for piece in divide(case.evidence, case.start, case.end):
        assert now <= piece.start_ns < piece.end_ns <= case.end
        assert all(part.size > 0 for part in piece.parts)
        assert sum(part.size for part in piece.parts) == GPU_CAPACITY
        now = piece.end_ns
        total += piece.end_ns - piece.start_ns
    assert total == present_ns(case)


def p2_order_and_repetition_change_nothing(case: MeteringCase) -> None:
    again, window = case.shuffled(), (case.start, case.end)
    assert divide(again, *window) == divide(case.evidence, *window)
    repeated = amounts(again, case.mixed(case.readings), *window)
    assert repeated == amounts(case.evidence, case.readings, *window)


def p3_pointwise_oracle(case: MeteringCase) -> None:
    pieces = divide(case.evidence, case.start, case.end)
    for instant in case.points:
        found = [piece for piece in pieces if piece.start_ns <= instant < piece.end_ns]
        if case.start <= instant < case.end and model.present(case.evidence, instant):
            (piece,) = found
            _equals_the_model(case.evidence, piece, instant)
        else:
            assert not found


def _equals_the_model(evidence: Evidence, piece: DayPiece, instant: int) -> None:
    outage = model.out_of_order(evidence, instant)
    sizes = {claim: n for claim, n in model.held(model.in_force(evidence, instant)).items() if n}
    expected: Counter = Counter()
    for claim, size in sizes.items():
        expected[claim.id, claim.tenant, claim.workload] += size
    held = [part for part in piece.parts if part.claim and part.state is not SlotState.RESERVED]
    found: Counter = Counter()
    for part in held:
        found[part.claim, part.tenant, part.workload] += part.size
    assert piece.node == model.node(evidence, instant)
    assert found == expected
    states = {claim.id: _expected_state(claim) for claim in sizes}
    for part in held:
        assert part.state in ({outage} if outage else states[part.claim])
        _is_seen_as_in_the_model(evidence, part, instant)
    left = GPU_CAPACITY - sum(sizes.values(), Fraction(0))
    free = {part.state: part for part in piece.parts if part not in held}
    useless = 0 if outage else min(left, model.stranded(evidence, instant))
    reservation = model.reservation(evidence, instant)
    kind = SlotState.RESERVED if reservation else _free_state(evidence, instant)
    expected_free = {SlotState.STRANDED: useless, outage or kind: left - useless}
    is_certain = not any(span.uncertainty_ns for span in evidence.sample_spans)
    if is_certain or outage or reservation:
        assert {state: part.size for state, part in free.items()} == {
            state: size for state, size in expected_free.items() if size
        }
    if reservation and SlotState.RESERVED in free:
        part = free[SlotState.RESERVED]
        assert (part.claim, part.tenant) == (reservation.id, reservation.tenant)


def _expected_state(claim) -> set[SlotState]:
    if claim.system:
        return {SlotState.SYSTEM}
    if claim.authority == 1:
        return {SlotState.UNCLAIMED}
    return {SlotState.OBSERVED, SlotState.INFERRED}


def _free_state(evidence: Evidence, instant: int) -> SlotState:
    return SlotState.IDLE if model.seen(evidence, instant) else SlotState.UNKNOWN


def _is_seen_as_in_the_model(evidence: Evidence, part: DayPart, instant: int) -> None:
    if part.state not in KIND or any(span.uncertainty_ns for span in evidence.sample_spans):
        return
    assert (part.state is SlotState.OBSERVED) == model.seen(evidence, instant)
    if part.state is SlotState.INFERRED:
        gap_ns = model.gap_ns(evidence, instant)
        is_short = gap_ns <= HOUR_NS
        assert part.gap_ns == (gap_ns if is_short else FOREVER_NS)
        sign = model.node_evidence(evidence, instant)
        assert part.node_evidence is (sign if is_short else NodeEvidence.NONE)


def p4_windows_add_up(case: MeteringCase) -> None:
    whole, one, other = (
        everything(divide(case.evidence, start, end)) for start, end in _windows(case)
    )
    assert whole == one + other
    totals = [
        sum(each.amount for each in amounts(case.evidence, case.readings, start, end))
        for start, end in _windows(case)
    ]
    assert totals[0] == totals[1] + totals[2]


def _windows(case: MeteringCase) -> tuple[tuple[int, int], ...]:
    return (case.start, case.end), (case.start, case.middle), (case.middle, case.end)


def p5_samples_never_move_time_between_tenants(case: MeteringCase) -> None:
    for sample_spans in (case.other_sample_spans, ()):
        evidence = msgspec.structs.replace(case.evidence, sample_spans=sample_spans)
        assert by_claim(divide(evidence, case.start, case.end)) == by_claim(
            divide(case.evidence, case.start, case.end)
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
    for piece in divide(case.evidence, case.start, case.end):
        if any(part.state in {SlotState.OBSERVED, SlotState.IDLE} for part in piece.parts):
            assert any(start <= piece.start_ns and piece.end_ns <= end for start, end in spans)


def p12_amounts_add_up_to_the_counter(case: MeteringCase) -> None:
    counted = compute_increments(case.readings)
    increments = model.counted(case.readings)
    assert int(counted.amounts.sum()) == sum(amount for _, _, amount, _ in increments)
    assert {(r.last_ns, r.first_ns) for r in counted.resets()} == {
        (t0, t1) for t0, t1, _, same in increments if not same
    }
    found = amounts(case.evidence, case.readings, case.start, case.end)
    expected = model.shares(case.evidence, case.readings, case.start, case.end)
    assert all(each.amount > 0 for each in found)
    assert sum(each.amount for each in found) == expected.pop("", 0)
    by_id: Counter = Counter()
    for each in found:
        by_id[each.claim] += each.amount
    # Whole millijoules: one may be lost or gained by each increment's division.
    slack = len(increments)
    for claim, amount in expected.items():
        assert abs(by_id[claim] - amount) <= slack


def p13_handover_has_one_division_at_every_instant(case: MeteringCase) -> None:
    pieces = divide(case.evidence, case.start, case.end)
    changes = model.instants(case.evidence)
    for instant in {instant for change in changes for instant in (change - 1, change)}:
        if case.start <= instant < case.end and model.present(case.evidence, instant):
            (piece,) = (piece for piece in pieces if piece.start_ns <= instant < piece.end_ns)
            _equals_the_model(case.evidence, piece, instant)


def p15_a_wrong_clock_moves_no_claim(case: MeteringCase) -> None:
    shift = case.random.randrange(-300, 300) * S
    moved = tuple(
        msgspec.structs.replace(s, first_ns=s.first_ns + shift, last_ns=s.last_ns + shift)
        for s in case.evidence.sample_spans
    )
    evidence = msgspec.structs.replace(case.evidence, sample_spans=moved)
    assert by_claim(divide(evidence, case.start, case.end)) == by_claim(
        divide(case.evidence, case.start, case.end)
    )


PROPERTIES = [
    p1_quantities_add_up_to_capacity,
    p2_order_and_repetition_change_nothing,
    p3_pointwise_oracle,
    p4_windows_add_up,
    p5_samples_never_move_time_between_tenants,
    p6_nothing_is_seen_within_a_gap,
    p12_amounts_add_up_to_the_counter,
    p13_handover_has_one_division_at_every_instant,
    p15_a_wrong_clock_moves_no_claim,
]
