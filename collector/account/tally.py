"""Sums of GPU time by day, state and tenant, in cap-unit-nanoseconds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from fractions import Fraction
from functools import cache
from typing import NamedTuple

from collector.ledger.tiling import DAY_NS
from collector.metering.evidence import ClockDoubt
from collector.metering.tiling import HELD, Entry, State
from collector.metering.units import GPU_CAPACITY, Tiling, Units, exact

_EPOCH = date(1970, 1, 1)
_FIRST = _EPOCH.toordinal()


class Key(NamedTuple):
    """Key of an amount of time."""

    day: int
    state: State
    tenant: str


class Rate(NamedTuple):
    """Number of units of a GPU in a state."""

    state: State
    tenant: str
    units: Units


Sums = dict[Key, Units]


def spread(sums: Sums, rate: Rate, start_ns: int, end_ns: int) -> None:
    """Add a span of time, day by day."""
    while start_ns < end_ns:
        day = start_ns // DAY_NS
        until_ns = min(end_ns, (day + 1) * DAY_NS)
        key = Key(day, rate.state, rate.tenant)
        sums[key] = exact(sums.get(key, 0) + rate.units * (until_ns - start_ns))
        start_ns = until_ns


def tally(entries: Iterable[Entry]) -> Sums:
    """Return the sums of entries: all compute slots of the GPU, each once."""
    sums: Sums = {}
    for entry in entries:
        if entry.tiling is Tiling.COMPUTE:
            rate = Rate(entry.state, entry.tenant, entry.slot_hi - entry.slot_lo)
            spread(sums, rate, entry.t0_ns, entry.t1_ns)
    return sums


def add(sums: Sums, more: Mapping[Key, Units], sign: int = 1) -> None:
    """Add sums to others, or subtract them."""
    for key, quantity in more.items():
        total = sums.get(key, 0) + sign * quantity
        if total:
            sums[key] = exact(total)
        else:
            sums.pop(key, None)


@cache
def month_of(day: int) -> int:
    """Return the first day of the month of a day, all counted from the epoch."""
    return (_EPOCH + timedelta(days=day)).replace(day=1).toordinal() - _FIRST


@dataclass(frozen=True, slots=True)
class Account:
    """GPU time of the cluster up to a timestamp. `capacity` is GPUs times time, counted separately."""

    until_ns: int
    gpus: int
    capacity: Units
    sums: Mapping[Key, Units] = field(default_factory=dict)
    clock_suspect: Mapping[ClockDoubt, int] = field(default_factory=dict)
    """GPU-days of the ledger with evidence that was received while the collector's clock was suspect."""

    @property
    def balances(self) -> bool:
        """True if the states add up to the capacity, to the unit and nanosecond."""
        return sum(self.sums.values()) == self.capacity

    def states(self) -> dict[State, Units]:
        """Return cap-unit-nanoseconds by state."""
        found: dict[State, Units] = dict.fromkeys(State, 0)
        for key, quantity in self.sums.items():
            found[key.state] = exact(found[key.state] + quantity)
        return found

    def tenants(self) -> dict[str, dict[State, Units]]:
        """Return the same by tenant, for tenants with any."""
        found: dict[str, dict[State, Units]] = {}
        for key, quantity in sorted(self.sums.items()):
            if key.tenant:
                states = found.setdefault(key.tenant, {})
                states[key.state] = exact(states.get(key.state, 0) + quantity)
        return found

    def held(self, first_day: int, end_day: int) -> dict[str, Units]:
        """Return the time held by each tenant on days of [first, end): of open days, or of whole months."""
        found: dict[str, Units] = {}
        for key, quantity in self.sums.items():
            if key.state in HELD and first_day <= key.day < end_day:
                found[key.tenant] = exact(found.get(key.tenant, 0) + quantity)
        return found


def nanoseconds(parts: Mapping[State, Units]) -> dict[State, int]:
    """Return GPU-nanoseconds of whole GPUs, rounded so that they add up to their rounded sum.

    Parts of a GPU are not whole nanoseconds; the largest remainders are rounded up.
    """
    whole = {name: Fraction(units) / GPU_CAPACITY for name, units in parts.items()}
    found = {name: value.numerator // value.denominator for name, value in whole.items()}
    missing = int(sum(whole.values(), Fraction(0))) - sum(found.values())
    by_remainder = sorted(whole, key=lambda name: (found[name] - whole[name], name))
    for name in by_remainder[:missing]:
        found[name] += 1
    return found
