"""Facts from memory to disk (`waiting_evidence`), and from there to the database.

If the database rejects a value, the facts are divided until all but the rejected ones are written. Those stay on disk, are not
stored in the sense of acknowledgements, and are written again after the next start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import TypeVar

import structlog

from railscope import service
from railscope_collector.evidence import (
    evidence_records,
    fact_store,
    node_intervals,
    open_quarters,
    waiting_evidence,
)
from railscope_collector.ledger import database

log = structlog.get_logger(__name__)

_AT_ONCE = 256
"""Facts of one transaction on disk."""
_YIELD_EVERY = 16
T = TypeVar("T")


@dataclass(slots=True)
class FactWriter:
    """Writes the facts of a book."""

    book: open_quarters.OpenQuarters
    waiting: waiting_evidence.WaitingEvidence
    changeable_days: Callable[[], range]
    """Returns the days that are over, and that facts may still change."""
    on_stored: Callable[[], None]
    """Called for each interval that was written."""
    rejected: set[int] = field(default_factory=set)
    """Numbers of the facts on disk that the database rejected."""
    _moving: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def move(self, quiet_ns: int | None) -> None:
        """Move claims to disk, and the intervals that are due at a time; all of them if it is None.

        Raises OSError, WaitingEvidenceError: then they stay in memory.
        """
        memory, waiting = self.book.quarters, self.waiting
        async with self._moving:
            # First: what is received from here on may be held back.
            facts = self.book.unwritten_of_others(waiting.full)
            node_count = len(memory.counts.keys() | waiting.used.keys())
            for of_facts in _groups(facts):
                encoded = [waiting_evidence.EncodedFact.of_claim(*each) for each in of_facts]
                fits = await service.run_in_thread(waiting.write, encoded, node_count)
                # Only now: until then memory and snapshots have the only copy.
                self.book.leave_memory(fact for fact, _ in compress(of_facts, fits))
            for keys in _groups(list(memory.by_key)):
                await asyncio.sleep(0)  # there may be 50,000 of them
                memory.begin_leaving(keys, quiet_ns)
            intervals = [each for each in memory.leaving if each.interval.node not in waiting.full]
            for of_intervals in _groups(intervals):
                encoded = []
                for number, each in enumerate(of_intervals):
                    found = waiting_evidence.EncodedFact.of_quarter(each.interval, each.position)
                    encoded.append(found)
                    if number % _YIELD_EVERY == 0:
                        await asyncio.sleep(0)
                fits = await service.run_in_thread(waiting.write, encoded, node_count)
                memory.release(list(compress(of_intervals, fits)))

    async def upload(self, store: fact_store.FactStore) -> None:
        """Write the facts on disk to the database, oldest first; a damaged or rejected one delays no other.

        Raises UnusableLedgerError, LostLeaseError, OSError.
        """
        waiting, last = self.waiting, 0
        while rows := await service.run_in_thread(waiting.read, last):
            last = rows[-1].number
            facts = [
                row for row in rows if row.fact is not None and row.number not in self.rejected
            ]
            stored = await self._store(store, facts)
            # If this fails, they are written again in the next round, which changes nothing.
            await service.run_in_thread(waiting.delete, stored)
        waiting.full.clear()
        if last:
            await service.run_in_thread(waiting.store.shrink)

    async def _store(
        self, store: fact_store.FactStore, rows: Sequence[waiting_evidence.WaitingFact]
    ) -> list[int]:
        """Write facts but not those that the database rejects; return the numbers of those that it has."""
        if not rows:
            return []
        intervals = [r.fact for r in rows if isinstance(r.fact, node_intervals.EvidenceInterval)]
        claims = [
            row.fact
            for row in rows
            if row.fact is not None and not isinstance(row.fact, node_intervals.EvidenceInterval)
        ]
        try:
            contests = await database.call_database(
                store.write, intervals, claims, self.changeable_days()
            )
        except database.RejectedValueError as error:
            if len(rows) == 1:
                self._reject(rows[0], error)
                return []
            middle = len(rows) // 2
            halves = rows[:middle], rows[middle:]
            return [number for half in halves for number in await self._store(store, half)]
        for gpu, node, holder, since_ns in contests:
            about = {"stands": holder, "refused": node}
            problem = evidence_records.EvidenceProblem("seen_twice", gpu, node, since_ns, about)
            self.book.problems.report(problem)
        for _ in intervals:
            self.on_stored()
        return [row.number for row in rows]

    def _reject(
        self, row: waiting_evidence.WaitingFact, error: database.RejectedValueError
    ) -> None:
        """Report a fact that the database rejects, which is not written again before the next start."""
        self.rejected.add(row.number)
        advice = (
            "it is kept, and not written before the next start; correct the database, then restart"
        )
        log.error("evidence_rejected", node=row.node, problem=str(error), advice=advice)


def _groups(items: Sequence[T]) -> list[Sequence[T]]:
    """Divide items into groups of one transaction."""
    return [items[at : at + _AT_ONCE] for at in range(0, len(items), _AT_ONCE)]
