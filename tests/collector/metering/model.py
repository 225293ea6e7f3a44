"""The rules of metering once more, for one slot and instant at a time and with no regard to speed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

import msgspec

from collector.metering.evidence import Claim, Evidence, Witness
from collector.metering.measures import Readings, Use
from collector.metering.observation import GAP_NS
from collector.metering.tiling import Entry, State
from collector.metering.units import FOREVER_NS, Tiling


def holder(claims: Iterable[Claim], tiling: Tiling, slot: int, instant: int) -> Claim | None:
    """Who holds a slot at an instant, for claims without nodes that end when they end."""
    over = [
        c
        for c in claims
        if c.start_ns < c.end_ns and c.slots(tiling)[0] <= slot < c.slots(tiling)[1]
    ]
    later = {
        c: [d for d in over if d.level == c.level and (d.start_ns, d.id) > (c.start_ns, c.id)]
        for c in over
    }
    ends = {
        c: min([c.end_ns, *(d.start_ns for d in later[c] if c.exclusive or d.exclusive)])
        for c in over
    }
    live = [c for c in over if c.start_ns <= instant < ends[c]]
    return max(live, key=lambda c: (c.level, c.start_ns, c.id), default=None)  # fmt: skip


def anywhere(evidence: Evidence) -> Evidence:
    """The same evidence, with claims that do not ask where the GPU is."""
    claims = tuple(msgspec.structs.replace(claim, node="") for claim in evidence.claims)
    return msgspec.structs.replace(evidence, claims=claims)


def ended(evidence: Evidence) -> list[Claim]:
    """Claims with the ends that releases gave them."""
    return [
        msgspec.structs.replace(
            claim,
            end_ns=min(
                [claim.end_ns, *(r.instant_ns for r in evidence.releases if r.claim == claim.id)]
            ),
        )
        for claim in evidence.claims
    ]


def ended_early(evidence: Evidence) -> list[tuple[Claim, Claim]]:
    """Two claims of one level on one slot at one instant, not both shared, the earlier first."""
    claims = [claim for claim in ended(evidence) if claim.start_ns < claim.end_ns]
    return [
        (c, d)
        for c in claims
        for d in claims
        if (c.level, c.start_ns, c.id) < (d.level, d.start_ns, d.id) and c.level == d.level
        if d.start_ns < c.end_ns and (c.exclusive or d.exclusive)
        if any(set(range(*c.slots(each))) & set(range(*d.slots(each))) for each in Tiling)
    ]


def present(evidence: Evidence, instant: int) -> bool:
    return any(stay.start_ns <= instant < stay.end_ns for stay in evidence.stays)


def node(evidence: Evidence, instant: int) -> str:
    """Where the GPU is by the latest word."""
    here = [stay for stay in evidence.stays if stay.start_ns <= instant < stay.end_ns]
    return max(here, key=lambda stay: (stay.start_ns, stay.node)).node


def witness(evidence: Evidence, instant: int) -> Witness:
    """The best of those who say that the node was there."""
    said = [s.witness for s in evidence.sightings if s.start_ns <= instant < s.end_ns]
    return max(said, default=Witness.NONE)


def silence_ns(evidence: Evidence, instant: int) -> int:
    """From the last sample to the next, of whatever boot."""
    samples = [stretch.first_ns for stretch in evidence.stretches]
    before = [sample for sample in samples if sample <= instant]
    after = [sample for sample in samples if sample > instant]
    return min(after) - max(before) if before and after else FOREVER_NS


def seen(evidence: Evidence, instant: int) -> bool:
    """Whether samples of one boot lie on both sides near enough, for samples with exact clocks."""
    samples = {(stretch.boot, stretch.first_ns) for stretch in evidence.stretches}
    return any(
        boot == other and before <= instant < after <= before + GAP_NS
        for boot, before in samples
        for other, after in samples
    )


def out_of_order(evidence: Evidence, instant: int) -> State | None:
    """The outage that an instant lies in."""
    kinds = {o.announced for o in evidence.outages if o.start_ns <= instant < o.end_ns}
    if not kinds:
        return None
    return State.MAINTENANCE if True in kinds else State.DOWN


def stranded(evidence: Evidence, tiling: Tiling, slot: int, instant: int) -> bool:
    """Whether no instance has the slot and none can be made with it."""
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
    return slot not in taken[tiling] and bool(full)


def the_entry(entries: Iterable[Entry], tiling: Tiling, slot: int, instant: int) -> Entry:
    """The one entry that says something of a slot and instant."""
    found = at(entries, tiling, slot, instant)
    assert len(found) == 1
    return found[0]


def at(entries: Iterable[Entry], tiling: Tiling, slot: int, instant: int) -> list[Entry]:
    """All entries that say something of a slot and instant."""
    return [
        entry
        for entry in entries
        if entry.tiling is tiling
        and entry.slot_lo <= slot < entry.slot_hi
        and entry.t0_ns <= instant < entry.t1_ns
    ]


def instants(evidence: Evidence) -> set[int]:
    """All instants at which a claim or an outage begins or ends."""
    return {
        instant
        for fact in (*evidence.claims, *evidence.outages)
        for instant in (fact.start_ns, fact.end_ns)
    } | {release.instant_ns for release in evidence.releases}


def counted(runs: Iterable[Readings]) -> list[tuple[int, int, int, bool]]:
    """Start, end, energy and whether the counter went on, of every two readings in turn."""
    boots: dict[str, set[tuple[int, int]]] = {}
    for run in runs:
        pairs = zip(run.instants_ns.tolist(), run.counters.tolist(), strict=True)
        boots.setdefault(run.boot, set()).update(pairs)
    found = []
    last: tuple[str, int, int] | None = None
    for boot, pairs in sorted(boots.items(), key=lambda b: (min(b[1])[0], b[0])):
        for instant, counter in sorted(pairs):
            if last:
                same = last[0] == boot and counter >= last[2]
                amount = counter - last[2] if same else counter
                found.append((min(last[1], instant), instant, amount, same))
            last = boot, instant, counter
    return found


def shares(evidence: Evidence, runs: Iterable[Readings], start: int, end: int) -> Counter:
    """Energy by use and claim, in a window."""
    claims = ended(evidence)
    cuts = sorted({0, 840, *(edge for claim in claims for edge in claim.compute)})
    changes = instants(evidence)
    total: Counter = Counter()
    for t0, t1, amount, same in counted(runs):
        if not start < t1 <= end:
            continue
        within = [t0, *(change for change in changes if t0 < change < t1)]
        for low, high in pairwise(cuts):
            share = amount * high // 840 - amount * low // 840
            held = {
                None if out_of_order(evidence, instant) else by and by.id
                for instant in within
                for by in [holder(claims, Tiling.COMPUTE, low, instant)]
            }
            if not same or len(held) > 1:
                total[Use.UNATTRIBUTED, ""] += share
            else:
                claim = held.pop()
                total[(Use.ATTRIBUTED, claim) if claim else (Use.IDLE, "")] += share
    return +total
