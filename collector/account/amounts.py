"""What counters counted, by measure and tenant: settled days from the ledger, open days beside them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from collector.evidence.assemble import Known
from collector.ledger.tiling import DAY_NS, MeasuredShare
from collector.metering.measures import Measure, Use, owners, shares


class Whose(NamedTuple):
    """What an amount is of."""

    measure: Measure
    use: Use
    tenant: str


Totals = dict[Whose, int]
OpenTotals = dict[int, Totals]
"""By day."""


@dataclass(slots=True)
class OpenAmounts:
    """The open days of a GPU, up to the reading they were counted to."""

    upto_ns: int
    days: OpenTotals = field(default_factory=dict)


@dataclass(slots=True)
class Amounts:
    """All of it."""

    open: dict[str, OpenAmounts] = field(default_factory=dict)
    _sum: Totals = field(default_factory=dict)

    def totals(self) -> Totals:
        """Everything that was counted so far."""
        return {whose: amount for whose, amount in self._sum.items() if amount}

    def take_up(self, totals: Totals) -> None:
        """The ledger has these totals."""
        add(self._sum, totals)

    def settle(self, gpu: str, day: int, new: Totals, old: Totals) -> None:
        """A day of a GPU was written to the ledger, for the first time or anew."""
        add(self._sum, new)
        add(self._sum, old, -1)
        if gpu in self.open:
            add(self._sum, self.open[gpu].days.pop(day, {}), -1)

    def count(self, gpu: str, upto_ns: int, days: OpenTotals, *, anew: bool) -> None:
        """What was counted of a GPU's open days up to an instant, all of it or what is new."""
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
    """Add totals to others, or take them away again."""
    for whose, amount in more.items():
        totals[whose] = totals.get(whose, 0) + sign * amount


def of_shares(found: Iterable[MeasuredShare]) -> Totals:
    """The totals of a day in the ledger."""
    totals: Totals = {}
    for one in found:
        whose = Whose(one.measure, one.share.use, one.share.tenant)
        totals[whose] = totals.get(whose, 0) + one.share.amount
    return totals


def counted_in(known: Known, start_ns: int, end_ns: int) -> OpenTotals:
    """What was counted in readings after the start and up to the end."""
    owned = owners(known.evidence)
    found: OpenTotals = {}
    for measure, increments in known.counted.items():
        if not len(increments.ends_ns):
            continue
        first = max(start_ns, int(increments.ends_ns[0]) - 1)
        last = min(end_ns, int(increments.ends_ns[-1]))
        # A reading at midnight is the last of the day before.
        while first < last:
            day = first // DAY_NS
            until = min(last, (day + 1) * DAY_NS)
            measured = (
                MeasuredShare(measure, share) for share in shares(owned, increments, first, until)
            )
            add(found.setdefault(day, {}), of_shares(measured))
            first = until
    return found
