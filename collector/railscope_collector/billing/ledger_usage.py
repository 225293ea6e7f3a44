"""Usage of GPU-days, read from the ledger claim by claim and day by day.

Slots that one claim holds together are one usage
with their capacity added. Unobserved time is included, as rating depends on the length of the gap;
so is unbilled time of a claim, such as an outage, as its minimum depends on it. All other time of a
GPU is omitted. A usage is within one UTC day, so that each charge refers to one revision of the
ledger.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from railscope.claim_terms import GPU_CAPACITY
from railscope.reading import Absent, Reading
from railscope.timestamps import FOREVER_NS
from railscope_collector.billing.usage import UNSEEN, WITH_TENANT, Usage
from railscope_collector.ledger.day_tiling import DayTiling, HeldClaim
from railscope_collector.metering import amount_shares, counter_increments, evidence, tiling
from railscope_collector.metering.units import Tiling, Units, exact

_RATED = WITH_TENANT | UNSEEN | {tiling.SlotState.UNCLAIMED, tiling.SlotState.REVIEW}


class _UsageKey(NamedTuple):
    """Properties that the entries of one usage have in common."""

    state: tiling.SlotState
    node_evidence: evidence.NodeEvidence | None
    tenant: str
    claim: str
    gap_ns: int
    reason: str
    counted_on: str


class _CapacityInterval(NamedTuple):
    """A time in which a holding has a constant number of capacity units."""

    start_ns: int
    end_ns: int
    units: Units
    key: _UsageKey


def usages_of_days(days: Iterable[DayTiling]) -> list[Usage]:
    """All usage of GPU-days, in order of start."""
    tilings = list(days)
    began, ends = _claim_starts(tilings), _claim_ends(tilings)
    used = [usage for day in tilings for usage in _day_usages(day, began, ends)]
    return sorted(used, key=lambda usage: (usage.start_ns, usage.end_ns, usage.claim))


def _claim_starts(days: Iterable[DayTiling]) -> dict[tuple[str, str], int]:
    """Start of each claim on a GPU: from the ledger's claim rows, or else from its first entry."""
    first_starts: dict[tuple[str, str], int] = {}
    for day in days:
        starts = [(claim.id, claim.start_ns) for claim in day.claims]
        starts += [(entry.claim, entry.t0_ns) for entry in day.entries if entry.claim]
        for claim, start_ns in starts:
            key = (day.gpu, claim)
            first_starts[key] = min(start_ns, first_starts.get(key, start_ns))
    return first_starts


def _claim_ends(days: Iterable[DayTiling]) -> dict[tuple[str, str], int]:
    """End of each claim on a GPU, `FOREVER_NS` if it is open on the last day that names it.

    A claim may end long after its last usage, while another one has its slots. Ledgers of earlier
    releases do not contain the end: such a claim ends with its usage, unless that lasts to the end
    of the days.
    """
    shown: dict[tuple[str, str], int] = {}
    stated: dict[tuple[str, str], int] = {}
    known_until: dict[str, int] = {}
    for day in sorted(days, key=lambda day: day.day):
        known_until[day.gpu] = day.end_ns
        for entry in day.entries:
            if entry.claim:
                shown[day.gpu, entry.claim] = max(entry.t1_ns, shown.get((day.gpu, entry.claim), 0))
        for claim in day.claims:
            # Set by all releases that also state ends: an older row without an end may have ended.
            if claim.rank is not None:
                stated[day.gpu, claim.id] = FOREVER_NS if claim.end_ns is None else claim.end_ns
    for key, end_ns in shown.items():
        if end_ns == known_until[key[0]]:
            shown[key] = FOREVER_NS
    return shown | stated


def _day_usages(
    day: DayTiling, began: Mapping[tuple[str, str], int], ends: Mapping[tuple[str, str], int]
) -> Iterator[Usage]:
    intervals = [
        interval
        for holding, entries in _by_holding(day.entries).items()
        for interval in _sum_capacity(holding, entries)
    ]
    energy = _energies(day, intervals)
    claims: dict[str, HeldClaim] = {claim.id: claim for claim in day.claims}
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
            node_evidence=holding.node_evidence or evidence.NodeEvidence.NONE,
            claim=holding.claim,
            claim_start_ns=began.get((day.gpu, holding.claim), interval.start_ns),
            energy_millijoules=energy.get(interval, Absent.UNSUPPORTED),
            mig_profile=claim.mig_profile if claim else "",
            instance_units=exact(Fraction(claim.instance or 0) * GPU_CAPACITY) if claim else 0,
            gap_ns=holding.gap_ns,
            reason=holding.reason,
            claim_end_ns=ends.get((day.gpu, holding.claim)),
            counted_on=holding.counted_on,
        )


def _by_holding(
    entries: Iterable[tiling.TilingEntry],
) -> Mapping[_UsageKey, list[tiling.TilingEntry]]:
    entries_by_holding: dict[_UsageKey, list[tiling.TilingEntry]] = {}
    for entry in entries:
        if entry.tiling is Tiling.COMPUTE and (entry.state in _RATED or entry.claim):
            holding = (entry.tenant, entry.claim)
            node = entry.node if entry.counted else ""
            usage_key = _UsageKey(
                entry.state, entry.node_evidence, *holding, entry.gap_ns, entry.reason, node
            )
            entries_by_holding.setdefault(usage_key, []).append(entry)
    return entries_by_holding


def _sum_capacity(
    holding: _UsageKey, entries: Iterable[tiling.TilingEntry]
) -> Iterator[_CapacityInterval]:
    """Intervals with the total capacity of all entries; equal neighbours are merged."""
    steps: dict[int, Units] = {}
    for entry in entries:
        size = entry.slot_hi - entry.slot_lo
        steps[entry.t0_ns] = steps.get(entry.t0_ns, 0) + size
        steps[entry.t1_ns] = steps.get(entry.t1_ns, 0) - size
    changes = sorted(timestamp_ns for timestamp_ns, step in steps.items() if step)
    units: Units = 0
    for start_ns, end_ns in pairwise(changes):
        units = exact(units + steps[start_ns])
        if units:
            yield _CapacityInterval(start_ns, end_ns, units, holding)


# Energy ------------------------------------------------------------------------------------------


def _energies(
    day: DayTiling, intervals: Iterable[_CapacityInterval]
) -> dict[_CapacityInterval, Reading]:
    """Energy of each held interval, from the counter; empty if no counter was read.

    The ledger has energy by tenure of a claim. It is spread evenly over the time in which the claim
    is held, exact to the millijoule.
    """
    counted = [
        row.share for row in day.shares if row.measure is counter_increments.CountedQuantity.ENERGY
    ]
    if not counted:
        return {}
    intervals_by_claim: dict[str, list[_CapacityInterval]] = defaultdict(list)
    for interval in intervals:
        if interval.key.state in tiling.HELD_STATES:
            intervals_by_claim[interval.key.claim].append(interval)
    energies = {
        interval: 0
        for claim_intervals in intervals_by_claim.values()
        for interval in claim_intervals
    }
    for share in counted:
        if (
            share.use is amount_shares.AmountAttribution.ATTRIBUTED
            and share.claim in intervals_by_claim
        ):
            for interval, amount in _spread_amount(share, sorted(intervals_by_claim[share.claim])):
                energies[interval] += amount
    return dict(energies)


def _spread_amount(
    share: amount_shares.AmountShare, intervals: Sequence[_CapacityInterval]
) -> Iterator[tuple[_CapacityInterval, int]]:
    """Spread an amount over the intervals that overlap its time, or over the last one before it."""
    parts = [
        (interval, length)
        for interval in intervals
        if (length := min(interval.end_ns, share.t1_ns) - max(interval.start_ns, share.t0_ns)) > 0
    ]
    if not parts:
        before = [interval for interval in intervals if interval.start_ns <= share.t1_ns]
        # Readings lag behind: the counter's increment may end after the claim has.
        yield (before or intervals)[-1 if before else 0], share.amount
        return
    whole = sum(length for _, length in parts)
    passed = assigned = 0
    for interval, length in parts:
        passed += length
        # Cumulative, so that the parts add up to the amount without a rounding difference.
        until = share.amount * passed // whole
        yield interval, until - assigned
        assigned = until
