"""The rules of metering once more, for one instant at a time and with no regard to speed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

import msgspec
from support.gpu_evidence import Evidence

from railscope.timestamps import FOREVER_NS, SECOND_NS
from railscope_collector.metering.counter_increments import CounterReadings
from railscope_collector.metering.evidence import MeteredClaim, NodeEvidence, SlotReservation
from railscope_collector.metering.observation import GAP_NS
from railscope_collector.metering.slot_state import SlotState
from railscope_collector.metering.units import CapacityRange


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


def divided(claims: list[MeteredClaim]) -> list[ClaimedSlots]:
    """The division of a GPU among claims that are in force, given greatest first."""
    parts = [ClaimedSlots(Fraction(0), Fraction(840))]
    waiting = list(claims)
    while waiting:
        first = waiting[0]
        if first.exclusive:
            parts = _give(parts, first, first.compute, Fraction(840))
            waiting = waiting[1:]
            continue
        group = _group(waiting)
        for device in sorted({c.compute for c in group}, key=lambda s: (s[1] - s[0], s)):
            members = [claim for claim in group if claim.compute == device]
            sizes = amounts(members, device, _left(parts, device))
            for claim in reversed(members):
                parts = _give(parts, claim, device, sizes[claim])
        waiting = [claim for claim in waiting if claim not in group]
    return parts


def _group(waiting: list[MeteredClaim]) -> list[MeteredClaim]:
    """The shared claims of the first one's rank without an exclusive claim on their device between."""
    same = [claim for claim in waiting if claim.authority == waiting[0].authority]
    return [
        claim
        for at, claim in enumerate(same)
        if not claim.exclusive
        if not any(d.exclusive and meet(d.compute, claim.compute) for d in same[:at])
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


def held(claims: list[MeteredClaim]) -> dict[MeteredClaim, Fraction]:
    """Holds of the claims in force, given greatest first."""
    found = dict.fromkeys(claims, Fraction(0))
    for part in divided(claims):
        if part.claim is not None:
            found[part.claim] += part.high - part.low
    return found


def reservation(evidence: Evidence, instant: int) -> SlotReservation | None:
    """The reservation at an instant: the one that began last."""
    found = [each for each in evidence.reservations if each.start_ns <= instant < each.end_ns]
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


def stranded(evidence: Evidence, instant: int) -> int:
    """Compute that no instance has and none can be made with, as no memory is left."""
    begun = [layout for layout in evidence.layouts if layout.start_ns <= instant]
    layout = max(begun, key=lambda layout: (layout.start_ns, layout.id, layout), default=None)
    taken = list(layout.instances) if layout else []
    compute, memory = (sum(slots[at].high - slots[at].low for slots in taken) for at in (0, 1))
    return 840 - compute if taken and memory == 840 else 0


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
    """Amount of each claim in a window: of a size that it held from reading to reading."""
    changes = instants(evidence)
    sizes = {
        at: {} if out_of_order(evidence, at) else held(in_force(evidence, at)) for at in changes
    }
    total: Counter = Counter()
    for t0, t1, amount, same in counted(runs):
        if not start < t1 <= end:
            continue
        # The last change counts until the next one.
        before = max((change for change in changes if change <= t0), default=None)
        within = [sizes.get(each, {}) for each in (before, *(c for c in changes if t0 < c < t1))]
        lasting = {
            claim: min(each.get(claim, Fraction(0)) for each in within) for claim in within[0]
        }
        for claim, size in lasting.items():
            total[claim.id] += amount * size / 840 if same else 0
        total[""] += amount
    return total
