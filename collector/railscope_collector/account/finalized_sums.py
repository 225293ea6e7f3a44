"""The ledger's sums of the GPUs in the account."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from railscope.timestamps import DAY_NS, FOREVER_NS
from railscope_collector.account import account_sums
from railscope_collector.metering import evidence as usage_evidence
from railscope_collector.metering.units import Units, exact


@dataclass(slots=True)
class FinalizedSums:
    """The ledger's sums by month of the GPUs in the account, and the last finalized day of each.

    The present day is never finalized, so single days are not needed; there would be too many.
    """

    sums: account_sums.TimeSums = field(default_factory=dict)
    days: dict[str, int] = field(default_factory=dict)
    capacity: Units = 0
    clock_suspect: Counter[usage_evidence.ClockDoubt] = field(default_factory=Counter)
    """GPU-days with evidence that was received while the collector's clock was suspect."""

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
        self.clock_suspect.update(new.clock_suspect)
        self.clock_suspect.subtract(old.clock_suspect)
        # Removes marks without days.
        self.clock_suspect += Counter()

    def add_gpus(self, gpus: account_sums.FinalizedGpus) -> None:
        """Add the ledger's sums by month, and its marks, of GPUs up to their last days."""
        account_sums.add_sums(self.sums, gpus.sums)
        self.capacity = exact(self.capacity + sum(gpus.sums.values()))
        self.days |= gpus.days
        self.clock_suspect.update(gpus.clock_suspect)
