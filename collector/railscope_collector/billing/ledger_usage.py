"""Usage of GPU-days, read from the ledger claim by claim and day by day.

Parts of a GPU that one claim holds together are one usage
with their capacity added. Unobserved time is included, as rating depends on the length of the gap;
so is unbilled time of a claim, such as an outage, as its minimum depends on it. All other time of a
GPU is omitted. A usage is within one UTC day, so that each charge refers to one revision of the
ledger.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from railscope.reading import Absent, Reading
from railscope.timestamps import FOREVER_NS
from railscope_collector.billing.usage import UNSEEN, WITH_TENANT, Usage
from railscope_collector.metering import evidence, metered_day, slot_state
from railscope_collector.metering.counter_increments import CountedQuantity
from railscope_collector.metering.units import Units, exact

_RATED = WITH_TENANT | UNSEEN | {slot_state.SlotState.UNCLAIMED, slot_state.SlotState.REVIEW}


class _UsageKey(NamedTuple):
    """Properties that the parts of one usage have in common."""

    state: slot_state.SlotState
    node_evidence: evidence.NodeEvidence
    tenant: str
    claim: str
    gap_ns: int
    reason: str


class _CapacityInterval(NamedTuple):
    """A time in which a holding has a constant number of capacity units."""

    start_ns: int
    end_ns: int
    units: Units
    key: _UsageKey


def usages_of_days(days: Iterable[metered_day.MeteredDay]) -> list[Usage]:
    """All usage of GPU-days, in order of start."""
    found = list(days)
    began, ends = _claim_starts(found), _claim_ends(found)
    used = [usage for day in found for usage in _day_usages(day, began, ends)]
    return sorted(used, key=lambda usage: (usage.start_ns, usage.end_ns, usage.claim))


def _claim_starts(days: Iterable[metered_day.MeteredDay]) -> dict[tuple[str, str], int]:
    """Start of each claim on a GPU: as the ledger states it, or else its first part."""
    first_starts: dict[tuple[str, str], int] = {}
    for day in days:
        starts = [(claim.id, claim.start_ns) for claim in day.claims]
        starts += [
            (part.claim, piece.start_ns)
            for piece in day.pieces
            for part in piece.parts
            if part.claim
        ]
        for claim, start_ns in starts:
            key = (day.gpu, claim)
            first_starts[key] = min(start_ns, first_starts.get(key, start_ns))
    return first_starts


def _claim_ends(days: Iterable[metered_day.MeteredDay]) -> dict[tuple[str, str], int]:
    """End of each claim on a GPU, `FOREVER_NS` if it is open on the last day that names it.

    A claim may end long after its last usage, while another one has its GPU.
    """
    return {
        (day.gpu, claim.id): FOREVER_NS if claim.end_ns is None else claim.end_ns
        for day in sorted(days, key=lambda day: day.day)
        for claim in day.claims
    }


def _day_usages(
    day: metered_day.MeteredDay,
    began: Mapping[tuple[str, str], int],
    ends: Mapping[tuple[str, str], int],
) -> Iterator[Usage]:
    intervals = _sum_capacity(day.pieces)
    energy = _energies(day, intervals)
    claims = {claim.id: claim for claim in day.claims}
    for interval in intervals:
        holding = interval.key
        claim = claims.get(holding.claim)
        yield Usage(
            tenant=holding.tenant,
            resource=day.gpu,
            sku=day.sku,
            start_ns=interval.start_ns,
            end_ns=interval.end_ns,
            capacity_units=interval.units,
            state=holding.state,
            node_evidence=holding.node_evidence,
            claim=holding.claim,
            claim_start_ns=began.get((day.gpu, holding.claim), interval.start_ns),
            energy_millijoules=energy.get(interval, Absent.UNSUPPORTED),
            mig_profile=claim.mig_profile if claim else "",
            instance_units=claim.instance if claim else 0,
            gap_ns=holding.gap_ns,
            reason=holding.reason,
            claim_end_ns=ends.get((day.gpu, holding.claim)),
        )


def _sum_capacity(pieces: Iterable[metered_day.DayPiece]) -> list[_CapacityInterval]:
    """Intervals with the total capacity of each holding; equal neighbours are merged."""
    intervals: list[_CapacityInterval] = []
    open_at: dict[_UsageKey, int] = {}
    for piece in pieces:
        sizes: dict[_UsageKey, Units] = {}
        for part in piece.parts:
            if part.state in _RATED or part.claim:
                key = _UsageKey(
                    part.state,
                    part.node_evidence,
                    part.tenant,
                    part.claim,
                    part.gap_ns,
                    part.reason,
                )
                sizes[key] = exact(sizes.get(key, 0) + part.size)
        for key, size in sizes.items():
            at = open_at.get(key)
            last = intervals[at] if at is not None else None
            if at is not None and last and (last.end_ns, last.units) == (piece.start_ns, size):
                intervals[at] = last._replace(end_ns=piece.end_ns)
            else:
                open_at[key] = len(intervals)
                intervals.append(_CapacityInterval(piece.start_ns, piece.end_ns, size, key))
    return intervals


# Energy ------------------------------------------------------------------------------------------


def _energies(
    day: metered_day.MeteredDay, intervals: Iterable[_CapacityInterval]
) -> dict[_CapacityInterval, Reading]:
    """Energy of each held interval, from the counter; empty if no counter was read.

    The ledger has energy by claim. It is spread evenly over the time in which the claim
    is held, exact to the millijoule.
    """
    counted = [
        amount
        for amount in day.amounts
        if amount.measure is CountedQuantity.ENERGY and amount.reason != metered_day.ABSENT
    ]
    if not counted:
        return {}
    by_claim: dict[str, list[_CapacityInterval]] = defaultdict(list)
    for interval in intervals:
        if interval.key.state in slot_state.HELD_STATES:
            by_claim[interval.key.claim].append(interval)
    energies = {interval: 0 for of_claim in by_claim.values() for interval in of_claim}
    for amount in counted:
        if not amount.reason and amount.claim in by_claim:
            span = (amount.start_ns, amount.end_ns) if amount.end_ns else (day.start_ns, day.end_ns)
            spread = _spread_amount(amount.amount, span, sorted(by_claim[amount.claim]))
            for interval, part in spread:
                energies[interval] += part
    return dict(energies)


def _spread_amount(
    amount: int, span: tuple[int, int], intervals: Sequence[_CapacityInterval]
) -> Iterator[tuple[_CapacityInterval, int]]:
    """Spread an amount over the intervals that overlap its time, or over the last one before it."""
    parts = [
        (interval, length)
        for interval in intervals
        if (length := min(interval.end_ns, span[1]) - max(interval.start_ns, span[0])) > 0
    ]
    if not parts:
        before = [interval for interval in intervals if interval.start_ns <= span[1]]
        # Readings lag behind: the counter's increment may end after the claim has.
        yield (before or intervals)[-1 if before else 0], amount
        return
    whole = sum(length for _, length in parts)
    passed = assigned = 0
    for interval, length in parts:
        passed += length
        # Cumulative, so that the parts add up to the amount without a rounding difference.
        until = amount * passed // whole
        yield interval, until - assigned
        assigned = until
