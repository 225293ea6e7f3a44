"""Ledger days that the account includes, and those that heads added since.

All calls that read the database block, and raise UnusableLedgerError.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from railscope_collector.account import account_sums
from railscope_collector.ledger import day_documents, head_chain, ledger_store
from railscope_collector.ledger.day_documents import GpuDay


class WrittenDay(NamedTuple):
    """A GPU-day as the ledger has it, and as it was when this collector last read it."""

    gpu: str
    day: int
    revision: int
    new: account_sums.DaySums
    old: account_sums.DaySums


NO_SUMS = account_sums.DaySums({}, {})
_HEADS_AT_ONCE = 8
"""All revisions that they added are in memory at once, with the previous ones."""


class AddedDays(NamedTuple):
    """Days that heads added to the ledger, and the number of the last head."""

    head: int
    days: list[WrittenDay]


@dataclass(slots=True)
class AccountedDays:
    """Ledger days that the account includes."""

    gpus: set[str] = field(default_factory=set)
    """GPUs with open days in the account."""
    is_read: bool = False
    """True once the ledger's sums were read."""
    revisions: dict[GpuDay, int] = field(default_factory=dict)
    """Revisions in the account, of the days that may still change."""
    head: int = 0
    """Head of the ledger up to which added days are in the account."""

    def begin(self, finalized: account_sums.FinalizedGpus) -> None:
        """Record that the ledger's sums were read."""
        self.head, self.is_read = finalized.head, True
        self.revisions |= finalized.numbers

    def forget_revisions(self, before_day: int) -> None:
        """Remove the revisions of days that no longer change."""
        self.revisions = {key: n for key, n in self.revisions.items() if key.day >= before_day}

    def read_added(self, ledger: ledger_store.Ledger) -> AddedDays | None:
        """Return the days that the next heads added, by any collector; None if there is no head."""
        with ledger.database.transaction() as connection:
            heads = head_chain.read_added(connection, day_documents.KIND, self.head, _HEADS_AT_ONCE)
        if not heads:
            return None
        new: dict[GpuDay, int] = {}
        old: dict[GpuDay, int] = {}
        for _, keys in heads:
            for gpu, day, number in (key.rsplit("/", 2) for key in keys):
                gpu_day, revision = GpuDay(gpu, int(day)), int(number)
                accounted = self.revisions.get(gpu_day, 0)
                if revision > accounted:
                    # The revision that the account includes and not the one before the new one: a day may have several
                    # new revisions.
                    old.setdefault(gpu_day, accounted or revision - 1)
                    new[gpu_day] = revision
        before, sums = read_sums(ledger, old), read_sums(ledger, new)
        days = [
            WrittenDay(*day, revision, sums[day], before.get(day, NO_SUMS))
            for day, revision in new.items()
        ]
        return AddedDays(heads[-1][0], days)


def read_sums(
    ledger: ledger_store.Ledger, numbers: Mapping[GpuDay, int]
) -> dict[GpuDay, account_sums.DaySums]:
    """Return the sums of revisions; there is none of number 0."""
    numbers = {day: number for day, number in numbers.items() if number}
    return {
        revision.key: account_sums.DaySums.from_day(revision.day)
        for revision in ledger.revisions(numbers)
    }
