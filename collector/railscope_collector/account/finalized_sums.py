"""The ledger's sums in the account."""

from __future__ import annotations

from dataclasses import dataclass, field

from railscope.timestamps import DAY_NS, FOREVER_NS
from railscope_collector.account import account_sums
from railscope_collector.metering.units import Units, exact


@dataclass(slots=True)
class FinalizedSums:
    """The ledger's sums by month, and the last finalized day of each GPU.

    The present day is never finalized, so single days are not needed; there would be too many.
    """

    sums: account_sums.TimeSums = field(default_factory=dict)
    days: dict[str, int] = field(default_factory=dict)
    capacity: Units = 0

    def open_ns(self, gpu: str) -> int:
        """Return the start of a GPU's time that is not in the ledger."""
        return (self.days[gpu] + 1) * DAY_NS if gpu in self.days else -FOREVER_NS

    def finalize(
        self, gpu: str, day: int, new: account_sums.DaySums, old: account_sums.DaySums
    ) -> None:
        """Record a GPU-day that was written to the ledger, new or revised."""
        for day_sums, sign in ((new.times, 1), (old.times, -1)):
            for key, quantity in day_sums.items():
                month_key = key._replace(day=account_sums.month_start(key.day))
                account_sums.add_sums(self.sums, {month_key: quantity}, sign)
        self.capacity = exact(self.capacity + sum(new.times.values()) - sum(old.times.values()))
        self.days[gpu] = max(day, self.days.get(gpu, day))

    def add_gpus(self, gpus: account_sums.FinalizedGpus) -> None:
        """Add the ledger's sums by month of GPUs up to their last days."""
        account_sums.add_sums(self.sums, gpus.sums)
        self.capacity = exact(self.capacity + sum(gpus.sums.values()))
        self.days |= gpus.days
