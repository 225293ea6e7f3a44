"""Amounts of counters by measure and tenant: finalized days from the ledger, and the open days."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from collector.evidence.assemble import Known
from collector.ledger.tiling import DAY_NS, MeasuredShare
from collector.metering.measures import Measure, Use, owners, shares


class Whose(NamedTuple):
    """Key of an amount."""

    measure: Measure
    use: Use
    tenant: str


Totals = dict[Whose, int]
OpenTotals = dict[int, Totals]
"""By day."""


@dataclass(slots=True)
class OpenAmounts:
    """The open days of a GPU, up to the last counted reading."""

    upto_ns: int
    days: OpenTotals = field(default_factory=dict)


@dataclass(slots=True)
class Amounts:
    """Amounts of the finalized days and of the open days."""

    open: dict[str, OpenAmounts] = field(default_factory=dict)
    _sum: Totals = field(default_factory=dict)

    def totals(self) -> Totals:
        """Return all amounts so far."""
        return {whose: amount for whose, amount in self._sum.items() if amount}

    def take_up(self, totals: Totals) -> None:
        """Add totals of the ledger."""
        add(self._sum, totals)

    def settle(self, gpu: str, day: int, new: Totals, old: Totals) -> None:
        """Record a GPU-day that was written to the ledger, new or revised."""
        add(self._sum, new)
        add(self._sum, old, -1)
        if gpu in self.open:
            add(self._sum, self.open[gpu].days.pop(day, {}), -1)

    def count(self, gpu: str, upto_ns: int, days: OpenTotals, *, anew: bool) -> None:
        """Add amounts of a GPU's open days up to a timestamp; with `anew`, replace the previous ones."""
        amounts = self.open.get(gpu)
        if amounts is None or anew:
            for totals in amounts.days.values() if amounts else ():
                add(self._sum, totals, -1)
            amounts = self.open[gpu] = OpenAmounts(upto_ns)
        for day, totals in days.items():
            add(amounts.days.setdefault(day, {}), totals)
            add(self._sum, totals)
        amounts.upto_ns = max(upto_ns, amounts.upto_ns)


def add(totals: Totals, more: Mapping[Whose, int], sign: int = 1) -> None:
    """Add totals to others, or subtract them."""
    for whose, amount in more.items():
        totals[whose] = totals.get(whose, 0) + sign * amount


def of_shares(found: Iterable[MeasuredShare]) -> Totals:
    """Return the totals of a day in the ledger."""
    totals: Totals = {}
    for one in found:
        whose = Whose(one.measure, one.share.use, one.share.tenant)
        totals[whose] = totals.get(whose, 0) + one.share.amount
    return totals


def counted_in(known: Known, start_ns: int, end_ns: int) -> OpenTotals:
    """Return the amounts of readings after the start and up to the end, by day."""
    owned = owners(known.evidence)
    found: OpenTotals = {}
    for measure, increments in known.counted.items():
        if not len(increments.ends_ns):
            continue
        first = max(start_ns, int(increments.ends_ns[0]) - 1)
        last = min(end_ns, int(increments.ends_ns[-1]))
        # A reading at midnight belongs to the previous day.
        while first < last:
            day = first // DAY_NS
            until = min(last, (day + 1) * DAY_NS)
            measured = (
                MeasuredShare(measure, share) for share in shares(owned, increments, first, until)
            )
            add(found.setdefault(day, {}), of_shares(measured))
            first = until
    return found
