"""Sums of the account: GPU time, and amounts of counters, of finalized and of open days.

GPU time is summed by day, state and tenant, in cap-unit-nanoseconds. Amounts of counters are
summed by measure and tenant: finalized days come from the ledger, open days from their documents.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from fractions import Fraction
from functools import cache
from typing import NamedTuple

from railscope.claim_terms import GPU_CAPACITY
from railscope.timestamps import FOREVER_NS
from railscope_collector.ledger import day_documents, head_chain
from railscope_collector.ledger.day_documents import GpuDay, TotalKey
from railscope_collector.ledger.ledger_store import Ledger
from railscope_collector.metering import counter_increments, slot_state
from railscope_collector.metering.metered_day import MeteredDay
from railscope_collector.metering.units import Units, exact, round_parts

_STATES = frozenset(state.value for state in slot_state.SlotState)
_EPOCH = date(1970, 1, 1)
_FIRST = _EPOCH.toordinal()


class TimeKey(NamedTuple):
    """Key of an amount of time."""

    day: int
    state: slot_state.SlotState
    tenant: str


TimeSums = dict[TimeKey, Units]


@cache
def month_start(day: int) -> int:
    """Return the first day of the month of a day, all counted from the epoch."""
    return (_EPOCH + timedelta(days=day)).replace(day=1).toordinal() - _FIRST


@dataclass(frozen=True, slots=True)
class GpuTimeAccount:
    """GPU time of the cluster up to a timestamp. `capacity` is GPUs times time; of ledger days, the sum of their states."""

    until_ns: int
    gpus: int
    capacity: Units
    sums: Mapping[TimeKey, Units] = field(default_factory=dict)

    @property
    def balances(self) -> bool:
        """True if the states add up to the capacity, to the unit and nanosecond."""
        # Of open days only: a day of the ledger is checked when it is written (`MeteredDay.check`).
        return sum(self.sums.values()) == self.capacity

    def states(self) -> dict[slot_state.SlotState, Units]:
        """Return cap-unit-nanoseconds by state."""
        sums: dict[slot_state.SlotState, Units] = dict.fromkeys(slot_state.SlotState, 0)
        for key, quantity in self.sums.items():
            sums[key.state] = exact(sums[key.state] + quantity)
        return sums

    def tenants(self) -> dict[str, dict[slot_state.SlotState, Units]]:
        """Return the same by tenant, for tenants with any."""
        tenants: dict[str, dict[slot_state.SlotState, Units]] = {}
        for key, quantity in sorted(self.sums.items()):
            if key.tenant:
                states = tenants.setdefault(key.tenant, {})
                states[key.state] = exact(states.get(key.state, 0) + quantity)
        return tenants

    def held_time(self, first_day: int, end_day: int) -> dict[str, Units]:
        """Return the time held by each tenant on days of [first, end): of open days, or of whole months."""
        times: dict[str, Units] = {}
        for key, quantity in self.sums.items():
            if key.state in slot_state.HELD_STATES and first_day <= key.day < end_day:
                times[key.tenant] = exact(times.get(key.tenant, 0) + quantity)
        return times


def gpu_nanoseconds(parts: Mapping[slot_state.SlotState, Units]) -> dict[slot_state.SlotState, int]:
    """Return GPU-nanoseconds of whole GPUs, rounded so that they add up to their rounded sum."""
    whole = {name: Fraction(units) / GPU_CAPACITY for name, units in parts.items()}
    return round_parts(whole, int(sum(whole.values(), Fraction(0))))


class AmountKey(NamedTuple):
    """Key of an amount; without a tenant, `reason` states why."""

    measure: counter_increments.CountedQuantity
    reason: str
    tenant: str


AmountTotals = dict[AmountKey, int]


@dataclass(slots=True)
class FinalizedTotals:
    """Totals of the ledger, read again when it has another head."""

    head: int = -1
    totals: dict[tuple[int, TotalKey], Fraction] = field(default_factory=dict)
    missing: frozenset[GpuDay] = frozenset()

    def read(self, ledger: Ledger, documents: Mapping[GpuDay, object]) -> FinalizedTotals:
        """Return the totals as of now, and the days of `documents` that they do not include. Blocking."""
        with ledger.database.transaction(is_snapshot=True) as connection:
            # In one snapshot: a day is either in the totals or missing.
            head = head_chain.newest_head(connection)
            if self.head != (number := head.n if head else 0):
                self.totals = day_documents.read_totals(connection, range(FOREVER_NS))
                self.head = number
            days = [key.day for key in documents]
            within = range(min(days, default=0), max(days, default=-1) + 1)
            present = day_documents.newest_numbers(connection, within)
        self.missing = frozenset(documents.keys() - present.keys())
        return self


def add_up(
    finalized: FinalizedTotals, documents: Mapping[GpuDay, MeteredDay], until_ns: int
) -> tuple[GpuTimeAccount, AmountTotals]:
    """Return GPU time and amounts of the ledger and of the days that it does not have, up to a timestamp."""
    sums: TimeSums = {}
    amounts: AmountTotals = {}
    capacity: Units = 0
    for (day, total), quantity in finalized.totals.items():
        if total.name in _STATES:
            key = TimeKey(month_start(day), slot_state.SlotState(total.name), total.tenant)
            sums[key] = exact(sums.get(key, 0) + quantity * GPU_CAPACITY)
            capacity = exact(capacity + quantity * GPU_CAPACITY)
            continue
        measure, _, reason = total.name.partition("/")
        amount_key = AmountKey(counter_increments.CountedQuantity(measure), reason, total.tenant)
        amounts[amount_key] = amounts.get(amount_key, 0) + int(quantity)
    gpus: set[str] = set()
    for gpu_day, document in documents.items():
        gpus.add(gpu_day.gpu)
        if gpu_day not in finalized.missing:
            continue
        for piece in document.pieces:
            length_ns = min(piece.end_ns, until_ns) - piece.start_ns
            if length_ns <= 0:
                continue
            capacity += GPU_CAPACITY * length_ns
            for part in piece.parts:
                key = TimeKey(gpu_day.day, part.state, part.tenant)
                sums[key] = exact(sums.get(key, 0) + part.size * length_ns)
        for each in document.amounts:
            if each.amount:
                amount_key = AmountKey(each.measure, each.reason, each.tenant)
                amounts[amount_key] = amounts.get(amount_key, 0) + each.amount
    return GpuTimeAccount(until_ns, len(gpus), capacity, sums), amounts
