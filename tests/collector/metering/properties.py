"""What must be true of metering, whoever does it: functions of an implementation and a case."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, pairwise

import model
import msgspec
from histories import LAST, Case, S

from collector.metering import measures, overlaps, tiling
from collector.metering.evidence import GAP_NS, ClaimAuthority, Evidence, MeteredClaim, NodeStay
from collector.metering.measures import AmountShare, CounterIncrements, CounterReadings, SlotOwners
from collector.metering.overlaps import Overlap, OverlapKind
from collector.metering.tiling import SlotState, TilingEntry
from collector.metering.units import FOREVER_NS, GPU_CAPACITY, WHOLE, CapacityRange, Tiling, Units


@dataclass(frozen=True)
class Metering:
    """An implementation of metering; ours, if nothing else is said."""

    tile: Callable[[Evidence, int, int], list[TilingEntry]] = tiling.tile
    overlaps: Callable[[Evidence], list[Overlap]] = overlaps.overlaps
    increments: Callable[[Iterable[CounterReadings]], CounterIncrements] = measures.increments
    owners: Callable[[Evidence], SlotOwners] = measures.owners
    divide: Callable[[SlotOwners, CounterIncrements, int, int], list[AmountShare]] = measures.shares

    def shares(
        self, evidence: Evidence, counted: CounterIncrements, start: int, end: int
    ) -> list[AmountShare]:
        """What was counted in one window."""
        return self.divide(self.owners(evidence), counted, start, end)


KIND = {
    SlotState.OBSERVED: "held",
    SlotState.INFERRED: "held",
    SlotState.IDLE: "free",
    SlotState.UNKNOWN: "free",
}
"""States between which samples move time."""


def everything(entries: Iterable[TilingEntry]) -> Counter:
    """Quantity by all that entries say but for their slots and times."""
    total: Counter = Counter()
    for entry in entries:
        said = msgspec.structs.astuple(entry)
        total[(said[0], said[1], *said[6:])] += entry.quantity
    return total


def by_claim(entries: Iterable[TilingEntry]) -> Counter:
    """Quantity by whose it is, whatever was seen of it."""
    total: Counter = Counter()
    for e in entries:
        kind = KIND.get(e.state, e.state)
        total[e.tiling, e.node, kind, e.tenant, e.workload, e.claim, e.layout] += e.quantity
    return total


def present_ns(case: Case) -> int:
    """How much of the window the GPU was in some node."""
    edges = {case.start, case.end}
    edges |= {e for stay in case.evidence.stays for e in (stay.start_ns, stay.end_ns)}
    inside = sorted(edge for edge in edges if case.start <= edge <= case.end)
    return sum(b - a for a, b in pairwise(inside) if model.present(case.evidence, a))


def p1_quantities_add_up_to_capacity(metering: Metering, case: Case) -> None:
    total: Counter = Counter()
    for entry in metering.tile(case.evidence, case.start, case.end):
        assert entry.quantity > 0
        assert case.start <= entry.t0_ns < entry.t1_ns <= case.end
        total[entry.tiling] += entry.quantity
    for each in Tiling:
        assert total[each] == GPU_CAPACITY * present_ns(case)


def p2_order_and_repetition_change_nothing(metering: Metering, case: Case) -> None:
    again = case.shuffled()
    assert metering.tile(again, case.start, case.end) == metering.tile(
        case.evidence, case.start, case.end
    )
    assert metering.overlaps(again) == metering.overlaps(case.evidence)
    counted = metering.increments(case.readings)
    repeated = metering.increments(case.mixed(case.readings))
    window = (case.start, case.end)
    assert metering.shares(again, repeated, *window) == metering.shares(
        case.evidence, counted, *window
    )


def p3_pointwise_oracle(metering: Metering, case: Case) -> None:
    evidence = case.evidence
    entries = metering.tile(evidence, case.start, case.end)
    for instant, slot in case.points:
        for each in Tiling:
            if case.start <= instant < case.end and model.present(evidence, instant):
                entry = model.the_entry(entries, each, slot, instant)
                _as_the_model_says(evidence, entry, slot, instant)
            else:
                assert not model.at(entries, each, slot, instant)


def _as_the_model_says(evidence: Evidence, entry: TilingEntry, slot: Units, instant: int) -> None:
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
        expected = {SlotState.UNCLAIMED} if claim.level == 1 else expected
        expected = {SlotState.SYSTEM} if claim.system else expected
        expected = {SlotState.REVIEW} if claim.level == 0 else expected
        assert entry.state in expected
        assert entry.reason == (claim.review if entry.state is SlotState.REVIEW else "")
    elif model.stranded(evidence, entry.tiling, slot, instant):
        assert entry.state is SlotState.STRANDED
    elif any(
        r.start_ns <= instant < r.end_ns
        and r.slots(entry.tiling)[0] <= slot < r.slots(entry.tiling)[1]
        for r in evidence.reservations
    ):
        assert entry.state is SlotState.RESERVED
    else:
        assert entry.state in {SlotState.IDLE, SlotState.UNKNOWN}
    if entry.state in KIND and not any(s.uncertainty_ns for s in evidence.stretches):
        seen = entry.state in {SlotState.OBSERVED, SlotState.IDLE}
        assert seen == model.seen(evidence, instant)
        if entry.state is SlotState.INFERRED:
            assert entry.silence_ns == model.silence_ns(evidence, instant)
            assert entry.witness is model.witness(evidence, instant)
    assert (
        (entry.witness is not None) == (entry.silence_ns > 0) == (entry.state is SlotState.INFERRED)
    )


def p4_windows_add_up(metering: Metering, case: Case) -> None:
    whole, one, other = (
        everything(metering.tile(case.evidence, start, end)) for start, end in _windows(case)
    )
    assert whole == one + other
    counted = metering.increments(case.readings)
    whole, one, other = (
        _by_use(metering.shares(case.evidence, counted, start, end))
        for start, end in _windows(case)
    )
    assert whole == one + other


def _windows(case: Case) -> tuple[tuple[int, int], ...]:
    return (case.start, case.end), (case.start, case.middle), (case.middle, case.end)


def _by_use(found: Iterable[AmountShare]) -> Counter:
    total: Counter = Counter()
    for share in found:
        total[share.use, share.claim] += share.amount
    return total


def p5_samples_never_move_time_between_tenants(metering: Metering, case: Case) -> None:
    for stretches in (case.other_stretches, ()):
        evidence = msgspec.structs.replace(case.evidence, stretches=stretches)
        assert by_claim(metering.tile(evidence, case.start, case.end)) == by_claim(
            metering.tile(case.evidence, case.start, case.end)
        )


def p6_nothing_is_seen_within_a_gap(metering: Metering, case: Case) -> None:
    """For clocks that are uncertain, as far as they are certain."""
    samples = sorted({(s.boot, s.first_ns) for s in case.evidence.stretches})
    slack = max((stretch.uncertainty_ns for stretch in case.evidence.stretches), default=0)
    spans: list[tuple[int, int]] = []
    for start, end in sorted(
        (before - slack, after + slack)
        for (boot, before), (other, after) in pairwise(samples)
        if boot == other and after - before <= GAP_NS
    ):
        joins = spans and start <= spans[-1][1]
        first, last = spans.pop() if joins else (start, end)
        spans.append((first, max(last, end)))
    for entry in metering.tile(case.evidence, case.start, case.end):
        if entry.state in {SlotState.OBSERVED, SlotState.IDLE}:
            assert any(start <= entry.t0_ns and entry.t1_ns <= end for start, end in spans)


def p7_slots_have_one_tenant(metering: Metering, case: Case) -> None:
    entries = metering.tile(case.evidence, case.start, case.end)
    for each in Tiling:
        tiles = sorted(
            (e.t0_ns, e.t1_ns, e.slot_lo, e.slot_hi) for e in entries if e.tiling is each
        )
        for low in {tile[2] for tile in tiles}:
            over = [tile for tile in tiles if tile[2] <= low < tile[3]]
            assert all(before[1] <= after[0] for before, after in pairwise(over))


def p12_amounts_add_up_to_the_counter(metering: Metering, case: Case) -> None:
    evidence = case.evidence
    counted = metering.increments(case.readings)
    found = metering.shares(evidence, counted, case.start, case.end)
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


def p13_handover_has_one_holder_at_every_instant(metering: Metering, case: Case) -> None:
    evidence = case.evidence
    entries = metering.tile(evidence, case.start, case.end)
    instants = {instant for change in model.instants(evidence) for instant in (change - 1, change)}
    for instant in instants:
        if not (case.start <= instant < case.end and model.present(evidence, instant)):
            continue
        for each in Tiling:
            for slot in {0, *(claim.slots(each).low for claim in evidence.claims)}:
                entry = model.the_entry(entries, each, slot, instant)
                _as_the_model_says(evidence, entry, slot, instant)


def p14_both_tilings_are_complete_in_every_layout(metering: Metering, case: Case) -> None:
    entries = metering.tile(case.evidence, case.start, case.end)
    for change in {case.start, *(layout.start_ns for layout in case.evidence.layouts)}:
        if not (case.start <= change < case.end and model.present(case.evidence, change)):
            continue
        begun = [layout for layout in case.evidence.layouts if layout.start_ns <= change]
        layout = max(begun, key=lambda layout: (layout.start_ns, layout.id), default=None)
        for each in Tiling:
            now = [e for e in entries if e.tiling is each and e.t0_ns <= change < e.t1_ns]
            assert sum(entry.slot_hi - entry.slot_lo for entry in now) == GPU_CAPACITY
            assert {entry.layout for entry in now} == {layout.id if layout else ""}


def p15_a_wrong_clock_moves_no_claim(metering: Metering, case: Case) -> None:
    shift = case.random.randrange(-300, 300) * S
    moved = tuple(
        msgspec.structs.replace(s, first_ns=s.first_ns + shift, last_ns=s.last_ns + shift)
        for s in case.evidence.stretches
    )
    evidence = msgspec.structs.replace(case.evidence, stretches=moved)
    assert by_claim(metering.tile(evidence, case.start, case.end)) == by_claim(
        metering.tile(case.evidence, case.start, case.end)
    )


def claim_time(entries: Iterable[TilingEntry]) -> Counter:
    """What each claim holds, by tiling."""
    total: Counter = Counter()
    for entry in entries:
        if entry.claim and entry.state is not SlotState.RESERVED:
            total[entry.claim, entry.tiling] += entry.quantity
    return total


def with_claims(evidence: Evidence, *claims: MeteredClaim) -> Evidence:
    return msgspec.structs.replace(evidence, claims=(*evidence.claims, *claims))


def without_claim(evidence: Evidence, name: str) -> Evidence:
    left = tuple(claim for claim in evidence.claims if claim.id != name)
    return msgspec.structs.replace(evidence, claims=left)


def p19_a_claim_changes_no_holder_outside_its_span(metering: Metering, case: Case) -> None:
    both = with_claims(case.evidence, case.extra)
    for one in {claim.id: claim for claim in model.ended(both)}.values():
        alone = without_claim(both, one.id)
        for start, end in ((case.start, one.start_ns), (one.end_ns, case.end)):
            window = max(start, case.start), min(end, case.end)
            if window[0] < window[1]:
                assert by_claim(metering.tile(both, *window)) == by_claim(
                    metering.tile(alone, *window)
                )


def p19_a_claim_frees_nothing_that_was_held(metering: Metering, case: Case) -> None:
    """Shares of a GPU and of its instances alike; only devices that lie across one another do not exist."""
    both = with_claims(case.evidence, case.extra)
    shared = [claim for claim in both.claims if not claim.exclusive]
    for one, other in combinations(shared, 2):
        if any(_lie_across(one.slots(t), other.slots(t)) for t in Tiling):
            return
    before = metering.tile(case.evidence, case.start, case.end)
    after = metering.tile(both, case.start, case.end)
    for entry in before:
        if not entry.claim or entry.state is SlotState.RESERVED:
            continue
        still = [
            other
            for other in after
            if other.tiling is entry.tiling
            and other.claim
            and other.state is not SlotState.RESERVED
        ]
        kept = sum(
            max(0, min(o.t1_ns, entry.t1_ns) - max(o.t0_ns, entry.t0_ns))
            * max(0, min(o.slot_hi, entry.slot_hi) - max(o.slot_lo, entry.slot_lo))
            for o in still
        )
        assert kept == entry.quantity


def _lie_across(one: CapacityRange, other: CapacityRange) -> bool:
    """True if two devices have slots in common and neither lies within the other."""
    within = (max(one.low, other.low), min(one.high, other.high)) in {one, other}
    return model.meet(one, other) and not within


def p20_requested_is_held_and_moved(metering: Metering, case: Case) -> None:
    evidence = with_claims(case.evidence, case.extra)
    asked: Counter = Counter()
    edges = {edge for edge in model.instants(evidence) if case.start < edge < case.end}
    for start, end in pairwise(sorted({case.start, *edges, case.end})):
        for claim in model.in_force(evidence, start):
            for each in Tiling:
                size = model.requested(claim, each)
                asked[claim.id, each] += (size or 0) * (end - start)
    bare = {claim.id for claim in evidence.claims if not claim.exclusive and claim.share is None}
    found = claim_time(metering.tile(evidence, case.start, case.end))
    for one in metering.overlaps(evidence):
        assert one.units > 0
        length = min(one.end_ns, case.end) - max(one.start_ns, case.start)
        found[one.claim, one.tiling] += one.units * max(0, length)
        assert one.claim not in bare
        _names_both_claims(evidence, one)
    assert {key: time for key, time in found.items() if time and key[0] not in bare} == {
        key: time for key, time in asked.items() if time
    }


def _names_both_claims(evidence: Evidence, one: Overlap) -> None:
    """Both claims are in force throughout, and the kind is that of their ranks."""
    for instant in (one.start_ns, one.end_ns - 1):
        levels = {claim.id: claim.level for claim in model.in_force(evidence, instant)}
        assert {one.claim, one.other} <= levels.keys()
        higher = levels[one.other] > levels[one.claim]
        assert higher == (one.kind is OverlapKind.OVERRIDE)
        assert levels[one.other] >= levels[one.claim]


def p21_only_the_order_of_ids_matters(metering: Metering, case: Case) -> None:
    lowest_first: list[str] = []
    for name in {claim.id for claim in case.evidence.claims}:
        later = (at for at, o in enumerate(lowest_first) if model.id_before(name, o))
        lowest_first.insert(next(later, len(lowest_first)), name)
    renamed = {name: f"j{at + 8}" for at, name in enumerate(lowest_first)}
    back = {new: old for old, new in renamed.items()}
    claims = tuple(
        msgspec.structs.replace(claim, id=renamed[claim.id]) for claim in case.evidence.claims
    )
    releases = tuple(
        msgspec.structs.replace(one, claim=renamed.get(one.claim, one.claim))
        for one in case.evidence.releases
    )
    evidence = msgspec.structs.replace(case.evidence, claims=claims, releases=releases)
    found = [
        msgspec.structs.replace(entry, claim=back.get(entry.claim, entry.claim))
        for entry in metering.tile(evidence, case.start, case.end)
    ]
    assert found == metering.tile(case.evidence, case.start, case.end)
    moved = {
        msgspec.structs.replace(one, claim=back[one.claim], other=back[one.other])
        for one in metering.overlaps(evidence)
    }
    assert moved == set(metering.overlaps(case.evidence))


def p22_shares_are_exact_in_any_order(metering: Metering, case: Case) -> None:
    """Claims of one rank on a GPU, a part of which a claim of a higher rank may hold."""
    usual = {"level": ClaimAuthority.SCHEDULER, "review": "", "exclusive": False, "node": "",
             "compute": WHOLE, "memory": WHOLE, "end_ns": FOREVER_NS}  # fmt: skip
    first = {claim.id: claim for claim in case.evidence.claims}.values()
    members = [
        msgspec.structs.replace(claim, **usual, share=claim.share or Fraction(1, 1 + len(claim.id)))
        for claim in first
    ]
    above = msgspec.structs.replace(
        case.extra, level=ClaimAuthority.ADMINISTRATOR, review="", exclusive=True, share=None, start_ns=0,
        end_ns=FOREVER_NS, node="",
    )  # fmt: skip
    starts = [claim.start_ns for claim in members]
    case.random.shuffle(starts)
    mixed = [
        msgspec.structs.replace(claim, start_ns=start)
        for claim, start in zip(members, starts, strict=True)
    ]
    window = (LAST * S, (LAST + 1) * S)
    for higher in ((), (above,)):
        for claims in (members, mixed):
            evidence = Evidence("GPU-1", (NodeStay(0, "n1"),), (*claims, *higher))
            found = claim_time(metering.tile(evidence, *window))
            for each in Tiling:
                left = GPU_CAPACITY - sum(c.slots(each).high - c.slots(each).low for c in higher)
                asked = sum((Fraction(GPU_CAPACITY) * (c.share or 0) for c in members), Fraction(0))
                scale = min(Fraction(1), Fraction(left) / asked) if asked else Fraction(1)
                for claim in members:
                    size = GPU_CAPACITY * (claim.share or 0) * scale
                    assert found[claim.id, each] == size * S


def p23_no_envelope_changes_what_an_administrator_gave(metering: Metering, case: Case) -> None:
    level = min(case.extra.level, ClaimAuthority.SCHEDULER)
    extra = msgspec.structs.replace(case.extra, level=level)
    high = {
        claim.id for claim in case.evidence.claims if claim.level is ClaimAuthority.ADMINISTRATOR
    }
    before, after = (
        claim_time(metering.tile(evidence, case.start, case.end))
        for evidence in (case.evidence, with_claims(case.evidence, extra))
    )
    for key in before.keys() | after.keys():
        assert key[0] not in high or before[key] == after[key]


def p24_a_claim_under_review_moves_no_other_claims_time(metering: Metering, case: Case) -> None:
    extra = msgspec.structs.replace(case.extra, level=ClaimAuthority.REVIEW, review="late")
    waiting = {claim.id for claim in case.evidence.claims if claim.level is ClaimAuthority.REVIEW}
    entries = metering.tile(with_claims(case.evidence, extra), case.start, case.end)
    before = claim_time(metering.tile(case.evidence, case.start, case.end))
    after = claim_time(entries)
    for key in before.keys() | after.keys():
        assert key[0] in {*waiting, "extra"} or before[key] == after[key]
    outage = {SlotState.DOWN, SlotState.MAINTENANCE}
    assert {e.state for e in entries if e.claim == "extra"} <= {SlotState.REVIEW, *outage}


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
    p19_a_claim_changes_no_holder_outside_its_span,
    p19_a_claim_frees_nothing_that_was_held,
    p20_requested_is_held_and_moved,
    p21_only_the_order_of_ids_matters,
    p22_shares_are_exact_in_any_order,
    p23_no_envelope_changes_what_an_administrator_gave,
    p24_a_claim_under_review_moves_no_other_claims_time,
]
