"""Sums of the account: GPU time, and amounts of counters, of finalized and of open days.

GPU time is summed by day, state and tenant, in cap-unit-nanoseconds. Amounts of counters are
summed by measure and tenant: finalized days come from the ledger, open days are counted here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from fractions import Fraction
from functools import cache
from typing import Any, NamedTuple

from railscope.claim_terms import GPU_CAPACITY
from railscope.timestamps import DAY_NS
from railscope_collector.evidence.gpu_evidence import AssembledGpu
from railscope_collector.ledger.day_documents import GpuDay
from railscope_collector.metering import (
    amount_shares,
    counter_increments,
    slot_owners,
    tiling,
)
from railscope_collector.metering.metered_day import MeteredDay
from railscope_collector.metering.units import Tiling, Units, exact, round_parts

_EPOCH = date(1970, 1, 1)
_FIRST = _EPOCH.toordinal()


class TimeKey(NamedTuple):
    """Key of an amount of time."""

    day: int
    state: tiling.SlotState
    tenant: str


class StateUnits(NamedTuple):
    """Number of units of a GPU in a state."""

    state: tiling.SlotState
    tenant: str
    units: Units


TimeSums = dict[TimeKey, Units]


def add_span(sums: TimeSums, rate: StateUnits, start_ns: int, end_ns: int) -> None:
    """Add a span of time, day by day."""
    while start_ns < end_ns:
        day = start_ns // DAY_NS
        until_ns = min(end_ns, (day + 1) * DAY_NS)
        key = TimeKey(day, rate.state, rate.tenant)
        sums[key] = exact(sums.get(key, 0) + rate.units * (until_ns - start_ns))
        start_ns = until_ns


def sum_entries(entries: Iterable[tiling.TilingEntry]) -> TimeSums:
    """Return the sums of entries: all compute slots of the GPU, each once."""
    sums: TimeSums = {}
    for entry in entries:
        # The memory tiling covers the same time again.
        if entry.tiling is Tiling.COMPUTE:
            rate = StateUnits(entry.state, entry.tenant, entry.slot_hi - entry.slot_lo)
            add_span(sums, rate, entry.t0_ns, entry.t1_ns)
    return sums


def add_sums(sums: TimeSums, more: Mapping[TimeKey, Units], sign: int = 1) -> None:
    """Add sums to others, or subtract them."""
    for key, quantity in more.items():
        total = sums.get(key, 0) + sign * quantity
        # A key whose time was moved elsewhere would otherwise be reported as zero forever.
        if total:
            sums[key] = exact(total)
        else:
            sums.pop(key, None)


Rates = tuple[tuple[StateUnits, ...], tuple[StateUnits, ...]]
"""States of a GPU up to its last sample, and after it."""


@dataclass(slots=True)
class OpenSums:
    """Sums of open time up to a timestamp; the time of GPUs in equal states is added up first."""

    now_ns: int
    sums: TimeSums = field(default_factory=dict)
    today_ns: int = field(init=False)
    _groups: dict[tuple[int, int], list[Any]] = field(default_factory=dict)
    """Rates, GPUs, and sums of both timestamps, by identity of the rates and day."""

    def __post_init__(self) -> None:
        """Determine the start of the present day."""
        self.today_ns = self.now_ns // DAY_NS * DAY_NS

    def add(self, rates: Rates, since_ns: int, observed_ns: int) -> None:
        """Add the time of a GPU since a timestamp; it was observed until another one of the present day."""
        # By identity: `LiveAccount` shares equal rates, and comparing them for each GPU would be slow.
        key = id(rates), since_ns // DAY_NS
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = [rates, 0, 0, 0]
        group[1] += 1
        group[2] += since_ns
        group[3] += observed_ns

    def close(self) -> TimeSums:
        """Return the sums, with those of all groups."""
        today = self.today_ns // DAY_NS
        for (_, day), (rates, gpus, since_ns, observed_ns) in self._groups.items():
            observed, unobserved = rates
            starts_ns = since_ns if day == today else gpus * self.today_ns
            for rate in observed:
                self._add(rate, today, observed_ns - starts_ns)
                if day < today:
                    self._add(rate, day, gpus * (day + 1) * DAY_NS - since_ns)
                for between in range(day + 1, today):
                    self._add(rate, between, gpus * DAY_NS)
            for rate in unobserved:
                self._add(rate, today, gpus * self.now_ns - observed_ns)
        self._groups.clear()
        return self.sums

    def _add(self, rate: StateUnits, day: int, duration_ns: int) -> None:
        if duration_ns:
            key = TimeKey(day, rate.state, rate.tenant)
            self.sums[key] = exact(self.sums.get(key, 0) + rate.units * duration_ns)


@cache
def month_start(day: int) -> int:
    """Return the first day of the month of a day, all counted from the epoch."""
    return (_EPOCH + timedelta(days=day)).replace(day=1).toordinal() - _FIRST


@dataclass(frozen=True, slots=True)
class GpuTimeAccount:
    """GPU time of the cluster up to a timestamp. `capacity` is GPUs times time, counted separately."""

    until_ns: int
    gpus: int
    capacity: Units
    sums: Mapping[TimeKey, Units] = field(default_factory=dict)

    @property
    def balances(self) -> bool:
        """True if the states add up to the capacity, to the unit and nanosecond."""
        # The capacity is added up independently, so a time that is missing or counted twice shows here.
        return sum(self.sums.values()) == self.capacity

    def states(self) -> dict[tiling.SlotState, Units]:
        """Return cap-unit-nanoseconds by state."""
        sums: dict[tiling.SlotState, Units] = dict.fromkeys(tiling.SlotState, 0)
        for key, quantity in self.sums.items():
            sums[key.state] = exact(sums[key.state] + quantity)
        return sums

    def tenants(self) -> dict[str, dict[tiling.SlotState, Units]]:
        """Return the same by tenant, for tenants with any."""
        tenants: dict[str, dict[tiling.SlotState, Units]] = {}
        for key, quantity in sorted(self.sums.items()):
            if key.tenant:
                states = tenants.setdefault(key.tenant, {})
                states[key.state] = exact(states.get(key.state, 0) + quantity)
        return tenants

    def held_time(self, first_day: int, end_day: int) -> dict[str, Units]:
        """Return the time held by each tenant on days of [first, end): of open days, or of whole months."""
        times: dict[str, Units] = {}
        for key, quantity in self.sums.items():
            if key.state in tiling.HELD_STATES and first_day <= key.day < end_day:
                times[key.tenant] = exact(times.get(key.tenant, 0) + quantity)
        return times


def gpu_nanoseconds(parts: Mapping[tiling.SlotState, Units]) -> dict[tiling.SlotState, int]:
    """Return GPU-nanoseconds of whole GPUs, rounded so that they add up to their rounded sum."""
    whole = {name: Fraction(units) / GPU_CAPACITY for name, units in parts.items()}
    return round_parts(whole, int(sum(whole.values(), Fraction(0))))


class AmountKey(NamedTuple):
    """Key of an amount."""

    measure: counter_increments.CountedQuantity
    use: amount_shares.AmountAttribution
    tenant: str


AmountTotals = dict[AmountKey, int]
OpenDayTotals = dict[int, AmountTotals]
"""Totals of the open days, by day."""


class DaySums(NamedTuple):
    """Sums of one GPU-day in the ledger; empty without a day."""

    times: TimeSums
    amounts: AmountTotals

    @classmethod
    def from_day(cls, day: MeteredDay) -> DaySums:
        """Add up a day."""
        sums = cls({}, {})
        for piece in day.pieces:
            for part in piece.parts:
                key = TimeKey(day.day, part.state, part.tenant)
                quantity = part.size * (piece.end_ns - piece.start_ns)
                sums.times[key] = exact(sums.times.get(key, 0) + quantity)
        for each in day.amounts:
            if each.amount:
                use = amount_shares.AmountAttribution(each.reason or "attributed")
                amount_key = AmountKey(each.measure, use, each.tenant)
                sums.amounts[amount_key] = sums.amounts.get(amount_key, 0) + each.amount
        return sums


@dataclass(slots=True)
class OpenDayAmounts:
    """The open days of a GPU, up to the last counted reading."""

    upto_ns: int
    days: OpenDayTotals = field(default_factory=dict)


@dataclass(slots=True)
class CounterAmounts:
    """Amounts of the finalized days and of the open days."""

    open: dict[str, OpenDayAmounts] = field(default_factory=dict)
    _sum: AmountTotals = field(default_factory=dict)

    def totals(self) -> AmountTotals:
        """Return all amounts so far."""
        return {key: amount for key, amount in self._sum.items() if amount}

    def add_gpus(self, totals: AmountTotals) -> None:
        """Add totals of the ledger."""
        add_totals(self._sum, totals)

    def finalize(self, gpu: str, day: int, new: AmountTotals, old: AmountTotals) -> None:
        """Record a GPU-day that was written to the ledger, new or revised."""
        add_totals(self._sum, new)
        add_totals(self._sum, old, -1)
        # The open amounts of this day are now those of the ledger.
        if gpu in self.open:
            add_totals(self._sum, self.open[gpu].days.pop(day, {}), -1)

    def count(self, gpu: str, upto_ns: int, days: OpenDayTotals, *, restart: bool) -> None:
        """Add amounts of a GPU's open days up to a timestamp; with `restart`, replace the previous ones."""
        amounts = self.open.get(gpu)
        if amounts is None or restart:
            for totals in amounts.days.values() if amounts else ():
                add_totals(self._sum, totals, -1)
            amounts = self.open[gpu] = OpenDayAmounts(upto_ns)
        for day, totals in days.items():
            add_totals(amounts.days.setdefault(day, {}), totals)
            add_totals(self._sum, totals)
        amounts.upto_ns = max(upto_ns, amounts.upto_ns)


class FinalizedGpus(NamedTuple):
    """The ledger's sums by month, and the last finalized day of each GPU."""

    sums: TimeSums
    amounts: AmountTotals
    days: dict[str, int]
    numbers: dict[GpuDay, int]
    """The newest revision of each day that may still change."""
    head: int
    """Number of the newest head of the chain when it was read."""


def add_totals(totals: AmountTotals, more: Mapping[AmountKey, int], sign: int = 1) -> None:
    """Add totals to others, or subtract them."""
    for key, amount in more.items():
        totals[key] = totals.get(key, 0) + sign * amount


def count_amounts(assembled: AssembledGpu, start_ns: int, end_ns: int) -> OpenDayTotals:
    """Return the amounts of readings after the start and up to the end, by day."""
    owned = slot_owners.find_owners(assembled.evidence)
    totals: OpenDayTotals = {}
    for measure, increments in assembled.counted.items():
        if not len(increments.ends_ns):
            continue
        # One before the first reading, as increments after `first` count.
        first = max(start_ns, int(increments.ends_ns[0]) - 1)
        last = min(end_ns, int(increments.ends_ns[-1]))
        # A reading at midnight belongs to the previous day.
        while first < last:
            day = first // DAY_NS
            until = min(last, (day + 1) * DAY_NS)
            day_totals = totals.setdefault(day, {})
            for share in amount_shares.attribute_shares(owned, increments, first, until):
                key = AmountKey(measure, share.use, share.tenant)
                day_totals[key] = day_totals.get(key, 0) + share.amount
            first = until
    return totals
