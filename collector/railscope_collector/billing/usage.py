"""Input of rating: intervals in which one resource was in one state, read from the ledger.

States and node evidence are those of the metering ledger. A GPU has `GPU_CAPACITY` units of capacity; a
share of a GPU is an exact fraction of them. Usages of one resource in sequence give the length of
observation gaps, and overlaps.

The ledger is read claim by claim and day by day. Slots that one claim holds together are one usage
with their capacity added. Unobserved time is included, as rating depends on the length of the gap;
so is unbilled time of a claim, such as an outage, as its minimum depends on it. All other time of a
GPU is omitted. A usage is within one UTC day, so that each charge refers to one revision of the
ledger.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby, pairwise
from operator import attrgetter
from typing import NamedTuple

from railscope.claim_terms import GPU_CAPACITY
from railscope.reading import Absent, Reading
from railscope.timestamps import FOREVER_NS, format_timestamp
from railscope_collector.billing import BillingError
from railscope_collector.ledger.day_tiling import DayTiling, HeldClaim
from railscope_collector.metering import evidence, measures, tiling
from railscope_collector.metering.units import Tiling, Units, exact

WITH_TENANT = frozenset((*tiling.HELD_STATES, tiling.SlotState.RESERVED))
UNSEEN = frozenset({tiling.SlotState.INFERRED, tiling.SlotState.UNKNOWN})


@dataclass(frozen=True, slots=True)
class Usage:
    """One interval [start, end) of one resource: a GPU, a MIG instance or a replica, by its id.

    `capacity_units` is its share of a GPU. `claim` is the claim that held it, `claim_start_ns` the
    start of that claim. `gap_ns` is the length of the observation gap that contains the
    interval, as far as the ledger has it: a lower bound. Energy is the counter's difference over the
    interval, in millijoules, or the reason for its absence. Raises ValueError for an empty interval,
    more than a GPU, held time without a claim, and any number that is not an integer. Usage without
    a tenant or SKU is accepted; rating leaves it undecided.
    """

    tenant: str
    resource: str
    sku: str
    start_ns: int
    end_ns: int
    capacity_units: Units
    state: tiling.SlotState
    node_evidence: evidence.NodeEvidence = evidence.NodeEvidence.NONE
    claim: str = ""
    claim_start_ns: int = 0
    energy_millijoules: Reading = Absent.UNSUPPORTED
    mig_profile: str = ""
    instance_units: Units = 0
    """Capacity of its MIG instance, of which it may hold a share; 0 if the ledger does not state it."""
    gap_ns: int = 0
    reason: str = ""
    """Reason why a person has to decide, in state `review`."""
    claim_end_ns: int | None = None
    """End of its claim, `FOREVER_NS` if it is open; None: the claim ends with its last usage."""
    counted_on: str = ""
    """Node of the claim, if the claim is for a number of GPUs; empty if it names its devices."""

    def __post_init__(self) -> None:
        wrong = self._find_problem()
        if wrong:
            message = f"invalid usage of {self.resource or 'no resource'}: {wrong}"
            raise ValueError(message)

    def _find_problem(self) -> str:
        numbers = [self.start_ns, self.end_ns, self.claim_start_ns]
        energy = self.energy_millijoules
        if any(type(n) is not int for n in numbers) or type(energy) not in (int, Absent):
            return "expected integers as times and energy"
        if type(self.capacity_units) not in (int, Fraction):
            return "expected an integer or an exact fraction as capacity"
        claimed = bool(self.claim) and self.claim_start_ns <= self.start_ns
        units = self.capacity_units
        checks = {
            "expected an end after the start": self.start_ns >= self.end_ns,
            f"{units} units: expected more than 0 and at most {GPU_CAPACITY}": not 0
            < units
            <= GPU_CAPACITY,
            "energy: expected 0 or more": isinstance(energy, int) and energy < 0,
            f"{self.state} time: expected a claim that starts by then": self.state
            in tiling.HELD_STATES
            and not claimed,
        }
        return next((wrong for wrong, is_so in checks.items() if is_so), "")

    @property
    def instances(self) -> Fraction:
        """Share of its MIG instance that it holds; 1 if the ledger does not state the instance's size."""
        capacity = Fraction(self.capacity_units)
        return (
            min(capacity / self.instance_units, Fraction(1)) if self.instance_units else Fraction(1)
        )

    @property
    def duration_ns(self) -> int:
        """Duration in nanoseconds."""
        return self.end_ns - self.start_ns

    def __str__(self) -> str:
        profile = f" {self.mig_profile}" if self.mig_profile else ""
        claim = f", claim {self.claim}" if self.claim else ""
        span = f"{format_timestamp(self.start_ns)} to {format_timestamp(self.end_ns)}"
        return f"{self.tenant}, {self.sku}{profile}, {self.resource}{claim}, {span}"


_RESOURCE = attrgetter("resource")


class DoubleUsageError(BillingError, ValueError):
    """Time that would be billed twice; the message contains the resource and the usage."""


def gap_lengths(ordered: Sequence[Usage]) -> list[int]:
    """For every usage, the length of the observation gap that contains it; zero if observed.

    A gap extends over claims and days as long as the resource is not observed. Usages are in order
    of resource and start.
    """
    lengths = [0] * len(ordered)
    run: list[int] = []
    until_ns = 0
    for position, usage in enumerate(ordered):
        if usage.state not in UNSEEN:
            continue
        if run and (usage.resource != ordered[run[0]].resource or usage.start_ns > until_ns):
            _set_lengths(lengths, run, until_ns - ordered[run[0]].start_ns)
            run = []
        until_ns = max(until_ns, usage.end_ns) if run else usage.end_ns
        run.append(position)
    if run:
        _set_lengths(lengths, run, until_ns - ordered[run[0]].start_ns)
    return lengths


def _set_lengths(lengths: list[int], run: Sequence[int], length_ns: int) -> None:
    for at in run:
        lengths[at] = length_ns


def reject_double_usage(ordered: Sequence[Usage]) -> None:
    """Reject a claim that uses one resource twice at once, and a resource used beyond one GPU.

    Slots of one resource that one claim holds together are one usage with their capacity added.
    Usages are in order of resource and start. Raises DoubleUsageError.
    """
    for _, group in groupby(ordered, key=_RESOURCE):
        running: list[Usage] = []
        for usage in group:
            if usage.state not in WITH_TENANT:
                continue
            running = [other for other in running if other.end_ns > usage.start_ns]
            running.append(usage)
            claims = {(other.tenant, other.claim) for other in running}
            units = sum(other.capacity_units for other in running)
            if len(claims) < len(running) or units > GPU_CAPACITY:
                message = f"usage overlaps: {usage}: expected each GPU share to be billed once"
                raise DoubleUsageError(message)


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
    counted = [row.share for row in day.shares if row.measure is measures.CountedQuantity.ENERGY]
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
        if share.use is measures.AmountAttribution.ATTRIBUTED and share.claim in intervals_by_claim:
            for interval, amount in _spread_amount(share, sorted(intervals_by_claim[share.claim])):
                energies[interval] += amount
    return dict(energies)


def _spread_amount(
    share: measures.AmountShare, intervals: Sequence[_CapacityInterval]
) -> Iterator[tuple[_CapacityInterval, int]]:
    """Spread an amount over the intervals that overlap its time, or over the last one before it."""
    parts = [
        (interval, length)
        for interval in intervals
        if (length := min(interval.end_ns, share.t1_ns) - max(interval.start_ns, share.t0_ns)) > 0
    ]
    if not parts:
        before = [interval for interval in intervals if interval.start_ns <= share.t1_ns]
        yield (before or intervals)[-1 if before else 0], share.amount
        return
    whole = sum(length for _, length in parts)
    passed = assigned = 0
    for interval, length in parts:
        passed += length
        until = share.amount * passed // whole
        yield interval, until - assigned
        assigned = until
