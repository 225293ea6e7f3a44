"""Amounts of the open days: increments of counters, as far as the database has their readings."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from collector.account.live import LiveAccount
from collector.evidence.assemble import Files
from collector.evidence.book import EvidenceBook
from collector.evidence.chunk import Chunk
from collector.evidence.trouble import Trouble
from collector.settlement.days import Count, Counted, Door, Homes, groups, open_amounts

_NS = 1_000_000_000


@dataclass(slots=True)
class OpenDays:
    """Continues the counts of GPUs, and restarts them for GPUs with late facts."""

    book: EvidenceBook
    live: LiveAccount
    stale: set[str] = field(default_factory=set)
    """GPUs with stored readings that their open amounts do not include."""

    def stored(self, chunk: Chunk) -> None:
        """Record that a chunk was stored in the database."""
        for gpu in chunk.gpus:
            self.stale.add(gpu)
            counted = self.live.amounts.open.get(gpu)
            if counted and chunk.start_ns < counted.upto_ns - _NS:
                self.book.late.add(gpu)

    async def count_on(self, door: Door, files: Files, homes: Homes) -> None:
        """Add the increments of counters on the open days, as far as their readings are stored."""
        self.stale |= self.book.late
        wanted = sorted(self.stale & homes.keys() & self.book.gpus.keys())
        late = self.book.late & set(wanted)
        self.book.late -= late
        anew = {gpu for gpu in wanted if gpu in late or gpu not in self.live.amounts.open}
        jobs = [Count(gpu, self._counted_to(gpu, homes, anew)) for gpu in wanted]
        for some in groups(jobs, homes):
            try:
                found = await asyncio.to_thread(open_amounts, door.store, homes, files, some)
            except BaseException:
                self.book.late |= late
                raise
            for counted in found:
                last_day = self.live.settled.days.get(counted.gpu, -1)
                days = {day: found for day, found in counted.days.items() if day > last_day}
                self.live.amounts.count(
                    counted.gpu, counted.upto_ns, days, anew=counted.gpu in anew
                )
                self.stale.discard(counted.gpu)
                self._tell_resets(counted)

    def _tell_resets(self, counted: Counted) -> None:
        for measure, reset in counted.resets:
            facts = {"measure": measure.value, "last_ns": str(reset.last_ns)}
            trouble = Trouble("counter_reset", counted.gpu, "", reset.first_ns, facts)
            self.book.trouble(trouble)

    def _counted_to(self, gpu: str, homes: Homes, anew: set[str]) -> int:
        """Return the timestamp from which the counters of a GPU are not added up yet."""
        if gpu not in anew:
            return self.live.amounts.open[gpu].upto_ns
        return max(self.live.settled.open_ns(gpu), min(homes[gpu].values()) - 1)
