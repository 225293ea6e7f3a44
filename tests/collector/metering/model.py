"""The rules of metering once more, for one slot and instant at a time and with no regard to speed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import floor

import msgspec

from railscope.timestamps import FOREVER_NS, SECOND_NS
from railscope_collector.metering.amount_shares import AmountAttribution
from railscope_collector.metering.counter_increments import CounterReadings
from railscope_collector.metering.evidence import (
    Evidence,
    MeteredClaim,
    NodeEvidence,
    SlotReservation,
)
from railscope_collector.metering.observation import GAP_NS
from railscope_collector.metering.tiling import SlotState, TilingEntry
from railscope_collector.metering.units import CapacityRange, Tiling, Units


@dataclass(frozen=True)
class ClaimedSlots:
    """Slots [low, high) of a GPU and the claim that holds them, if any."""

    low: Fraction
    high: Fraction
    claim: MeteredClaim | None = None


def natural_before(one: str, other: str) -> bool:
    """True if one id is lower than another one of the same start and rank."""
    while one and other:
        (first, one), (second, other) = _run(one), _run(other)
        if first == second:
            continue
        if first.isdigit() and second.isdigit():
            if int(first) != int(second):
                return int(first) < int(second)
        elif first.isdigit() or second.isdigit():
            return first.isdigit()
        elif first != second:
            return first < second
    return bool(other) and not one


def _run(text: str) -> tuple[str, str]:
    """The first run of ASCII digits or of other characters, and the rest."""
    digits = text[0] in "0123456789"
    end = next((at for at, c in enumerate(text) if (c in "0123456789") != digits), len(text))
    return text[:end], text[end:]


def before(one: MeteredClaim, other: MeteredClaim) -> bool:
    """True if one claim takes slots after another: lower rank, earlier start, lower id or source."""
    if (one.authority, one.start_ns) != (other.authority, other.start_ns):
        return (one.authority, one.start_ns) < (other.authority, other.start_ns)
    if one.id != other.id:
        return id_before(one.id, other.id)
    return one.source < other.source


def id_before(one: str, other: str) -> bool:
    """True if an id is lower: naturally, or by its bytes where that makes no difference."""
    if natural_before(one, other) or natural_before(other, one):
        return natural_before(one, other)
    return one.encode() < other.encode()


def greatest_first(claims: Iterable[MeteredClaim]) -> list[MeteredClaim]:
    """Claims in descending precedence."""
    left, found = list(claims), []
    while left:
        top = next(c for c in left if not any(before(c, d) for d in left if d is not c))
        left = [claim for claim in left if claim is not top]
        found.append(top)
    return found


def in_force(evidence: Evidence, instant: int) -> list[MeteredClaim]:
    """Claims in force at an instant, greatest first."""
    here = node(evidence, instant) if present(evidence, instant) else None
    found = [
        claim
        for claim in set(ended(evidence))
        if claim.start_ns <= instant < claim.end_ns
        if here is not None and claim.node in ("", here)
    ]
    return greatest_first(found)


def slots(fact: MeteredClaim | SlotReservation, tiling: Tiling) -> CapacityRange:
    """Slots of a claim or a reservation in one of the tilings."""
    return fact.compute if tiling is Tiling.COMPUTE else fact.memory


def divided(claims: list[MeteredClaim], tiling: Tiling) -> list[ClaimedSlots]:
    """The division of a GPU among claims that are in force, given greatest first."""
    parts = [ClaimedSlots(Fraction(0), Fraction(840))]
    waiting = list(claims)
    while waiting:
        first = waiting[0]
        if first.exclusive:
            parts = _give(parts, first, slots(first, tiling), Fraction(840))
            waiting = waiting[1:]
            continue
        group = _group(waiting, tiling)
        for device in sorted({slots(c, tiling) for c in group}, key=lambda s: (s[1] - s[0], s)):
            members = [claim for claim in group if slots(claim, tiling) == device]
            sizes = amounts(members, device, _left(parts, device))
            for claim in reversed(members):
                parts = _give(parts, claim, device, sizes[claim])
        waiting = [claim for claim in waiting if claim not in group]
    return parts


def _group(waiting: list[MeteredClaim], tiling: Tiling) -> list[MeteredClaim]:
    """The shared claims of the first one's rank without an exclusive claim on their device between."""
    same = [claim for claim in waiting if claim.authority == waiting[0].authority]
    return [
        claim
        for at, claim in enumerate(same)
        if not claim.exclusive
        if not any(d.exclusive and meet(slots(d, tiling), slots(claim, tiling)) for d in same[:at])
    ]


def meet(one: tuple, other: tuple) -> bool:
    """True if two ranges of slots have one in common."""
    return max(one[0], other[0]) < min(one[1], other[1])


def amounts(
    members: list[MeteredClaim], device: CapacityRange, left: Fraction
) -> dict[MeteredClaim, Fraction]:
    """Part of the remainder of a device that each claim of a group on it gets."""
    size = Fraction(device.high - device.low)
    asked = {claim: size * claim.share for claim in members if claim.share is not None}
    total = sum(asked.values(), Fraction(0))
    scale = left / total if total > left else Fraction(1)
    found = {claim: d * scale for claim, d in asked.items()}
    rest = left - sum(found.values(), Fraction(0))
    bare = [claim for claim in members if claim.share is None]
    return found | {claim: rest / len(bare) for claim in bare}


def _left(parts: list[ClaimedSlots], device: CapacityRange) -> Fraction:
    found = (
        min(p.high, device.high) - max(p.low, device.low)
        for p in parts
        if p.claim is None and meet((p.low, p.high), device)
    )
    return sum(found, Fraction(0))


def _give(
    parts: list[ClaimedSlots], claim: MeteredClaim, device: CapacityRange, size: Fraction
) -> list[ClaimedSlots]:
    """The lowest free slots of a device, up to a size, go to a claim."""
    found = []
    for part in parts:
        low = max(part.low, Fraction(device.low))
        high = min(part.high, Fraction(device.high), low + size)
        if part.claim is not None or low >= high:
            found.append(part)
            continue
        size -= high - low
        edges = [(part.low, low, None), (low, high, claim), (high, part.high, None)]
        found += [ClaimedSlots(*edge) for edge in edges if edge[0] < edge[1]]
    return found


def held(claims: list[MeteredClaim], tiling: Tiling) -> dict[MeteredClaim, Fraction]:
    """Holds of the claims in force, given greatest first."""
    found = dict.fromkeys(claims, Fraction(0))
    for part in divided(claims, tiling):
        if part.claim is not None:
            found[part.claim] += part.high - part.low
    return found


def holder(evidence: Evidence, tiling: Tiling, slot: Units, instant: int) -> MeteredClaim | None:
    """The claim that holds a slot at an instant."""
    claims = in_force(evidence, instant)
    if all(claim.exclusive for claim in claims):
        over = [c for c in claims if slots(c, tiling).low <= slot < slots(c, tiling).high]
        return over[0] if over else None
    return next(part.claim for part in divided(claims, tiling) if part.low <= slot < part.high)


def reservation(
    evidence: Evidence, tiling: Tiling, slot: Units, instant: int
) -> SlotReservation | None:
    """The reservation of a slot at an instant: the one that began last."""
    found = [
        reservation
        for reservation in evidence.reservations
        if reservation.start_ns <= instant < reservation.end_ns
        if slots(reservation, tiling).low <= slot < slots(reservation, tiling).high
    ]
    return max(found, key=lambda r: (r.start_ns, r.id, r.tenant, r.end_ns), default=None)


def ended(evidence: Evidence) -> list[MeteredClaim]:
    """Claims with the earliest end that a report or a release gave them."""
    ends = {
        claim.id: min(
            [
                *(other.end_ns for other in evidence.claims if other.id == claim.id),
                *(r.timestamp_ns for r in evidence.releases if r.claim == claim.id),
            ]
        )
        for claim in evidence.claims
    }
    return [msgspec.structs.replace(claim, end_ns=ends[claim.id]) for claim in evidence.claims]


def present(evidence: Evidence, instant: int) -> bool:
    return any(stay.start_ns <= instant < stay.end_ns for stay in evidence.stays)


def node(evidence: Evidence, instant: int) -> str:
    """Node of the GPU by the latest report."""
    here = [stay for stay in evidence.stays if stay.start_ns <= instant < stay.end_ns]
    return max(here, key=lambda stay: (stay.start_ns, stay.node)).node


def node_evidence(evidence: Evidence, instant: int) -> NodeEvidence:
    """The best evidence that the node was there."""
    expected_text = [
        s.node_evidence for s in evidence.sightings if s.start_ns <= instant < s.end_ns
    ]
    return max(expected_text, default=NodeEvidence.NONE)


def gap_ns(evidence: Evidence, instant: int) -> int:
    """From the last sample to the next, of whatever boot."""
    samples = [span.first_ns for span in evidence.sample_spans]
    before = [sample for sample in samples if sample <= instant]
    after = [sample for sample in samples if sample > instant]
    return min(after) - max(before) if before and after else FOREVER_NS


def seen(evidence: Evidence, instant: int) -> bool:
    """True if samples of one boot lie on both sides near enough, for samples with exact clocks."""
    samples = {(span.boot, span.first_ns) for span in evidence.sample_spans}
    return any(
        boot == other and before <= instant < after <= before + GAP_NS
        for boot, before in samples
        for other, after in samples
    )


def out_of_order(evidence: Evidence, instant: int) -> SlotState | None:
    """The outage that an instant lies in."""
    kinds = {o.announced for o in evidence.outages if o.start_ns <= instant < o.end_ns}
    if not kinds:
        return None
    return SlotState.MAINTENANCE if True in kinds else SlotState.DOWN


def stranded(evidence: Evidence, tiling: Tiling, slot: Units, instant: int) -> bool:
    """True if no instance has the slot and none can be made with it."""
    begun = [layout for layout in evidence.layouts if layout.start_ns <= instant]
    layout = max(begun, key=lambda layout: (layout.start_ns, layout.id, layout), default=None)
    if layout is None or not layout.instances:
        return False
    taken = {
        kind: {
            slot
            for instance in layout.instances
            for slot in range(*(instance.compute if kind is Tiling.COMPUTE else instance.memory))
        }
        for kind in Tiling
    }
    full = [kind for kind in Tiling if len(taken[kind]) == 840]
    return floor(slot) not in taken[tiling] and bool(full)


def the_entry(
    entries: Iterable[TilingEntry], tiling: Tiling, slot: Units, instant: int
) -> TilingEntry:
    """The one entry of a slot and time."""
    found = at(entries, tiling, slot, instant)
    assert len(found) == 1
    return found[0]


def at(
    entries: Iterable[TilingEntry], tiling: Tiling, slot: Units, instant: int
) -> list[TilingEntry]:
    """All entries of a slot and time."""
    return [
        entry
        for entry in entries
        if entry.tiling is tiling
        and entry.slot_lo <= slot < entry.slot_hi
        and entry.t0_ns <= instant < entry.t1_ns
    ]


def instants(evidence: Evidence) -> set[int]:
    """All instants at which a claim, an outage or a stay begins or ends."""
    return {
        instant
        for fact in (*evidence.claims, *evidence.outages, *evidence.stays)
        for instant in (fact.start_ns, fact.end_ns)
    } | {release.timestamp_ns for release in evidence.releases}


def counted(runs: Iterable[CounterReadings]) -> list[tuple[int, int, int, bool]]:
    """Start, end, energy and whether the counter went on, of each reading after the first."""
    read = sorted(
        {
            (instant, run.boot, counter, age)
            for run in runs
            for instant, counter, age in zip(
                run.timestamps_ns.tolist(),
                run.counters.tolist(),
                [0] * len(run.counters) if run.ages_ns is None else run.ages_ns.tolist(),
                strict=True,
            )
        }
    )
    found = []
    for at, (instant, boot, counter, age) in enumerate(read):
        earlier = read[:at]
        if not earlier:
            continue
        own = [r for r in earlier if r[1] == boot]
        if own and (own[-1] is earlier[-1] or instant - own[-1][0] <= 3600 * SECOND_NS):
            start, _, last, _ = own[-1]
            same = counter >= last
            amount = counter - last if same else counter
        else:
            (start, other, *_), same = earlier[-1], False
            amount = 0 if other != boot and instant - age <= start else counter
        found.append((start, instant, amount, same))
    return found


def shares(evidence: Evidence, runs: Iterable[CounterReadings], start: int, end: int) -> Counter:
    """Energy by use and claim, in a window."""
    changes = instants(evidence)
    parts = {
        at: [] if out_of_order(evidence, at) else divided(in_force(evidence, at), Tiling.COMPUTE)
        for at in changes
    }
    cuts = {Fraction(0), Fraction(840)}
    cuts |= {edge for found in parts.values() for part in found for edge in (part.low, part.high)}
    total: Counter = Counter()
    for t0, t1, amount, same in counted(runs):
        if not start < t1 <= end:
            continue
        # The last change counts until the next one.
        before = max((change for change in changes if change <= t0), default=None)
        within = [before, *(change for change in changes if t0 < change < t1)]
        for low, high in pairwise(sorted(cuts)):
            share = floor(amount * high / 840) - floor(amount * low / 840)
            holders = {_owner(parts.get(instant, []), low) for instant in within}
            one = holders.pop() if len(holders) == 1 else None
            if not same or holders or (one and (one.assumed or one.review)):
                total[AmountAttribution.UNATTRIBUTED, ""] += share
            else:
                total[
                    (AmountAttribution.ATTRIBUTED, one.id) if one else (AmountAttribution.IDLE, "")
                ] += share
    return +total


def _owner(parts: list[ClaimedSlots], slot: Fraction) -> MeteredClaim | None:
    return next((part.claim for part in parts if part.low <= slot < part.high), None)
