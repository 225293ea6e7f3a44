"""Facts go to the database, days to the ledger: at a period, off the event loop.

A part of the evidence leaves the memory once the database has it. A day is written once it is over and
its delay has passed, and again as a new revision where later facts change it. While the database is
away everything stays in memory and in the checkpoint, and is tried again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from collector.account.live import LiveAccount
from collector.config import MeteringSettings
from collector.evidence.book import EvidenceBook, Kept
from collector.evidence.chunk import encode
from collector.evidence.days import (
    Door,
    Homes,
    Job,
    Settlement,
    groups,
    settled_so_far,
    write_days,
)
from collector.evidence.open_days import OpenDays
from collector.evidence.queries import CONTEXT_NS
from collector.evidence.store import Change, Written, ready
from collector.evidence.told import Ended, Told
from collector.evidence.trouble import Trouble
from collector.ledger.database import LedgerError
from collector.ledger.rows import GpuDay
from collector.ledger.tiling import DAY_NS
from collector.segments import write_durably

log = structlog.get_logger(__name__)

NS = 1_000_000_000
_MARGIN_NS = 300 * NS
"""As far as what another collector recorded may come to be seen late."""
_YIELD_EVERY = 16


@dataclass(slots=True)
class Counts:
    """What the settling has done since the start."""

    parts: int = 0
    days: int = 0
    revisions: int = 0
    failures: int = 0


@dataclass(slots=True)
class Settler:
    """Keeps database and ledger up with the book. `open` blocks; it raises LedgerError."""

    book: EvidenceBook
    live: LiveAccount
    open: Callable[[], Door]
    texts: Callable[[], Mapping[str, str] | None]
    """What administrators' files say; None while one of them could never be read."""
    settings: MeteringSettings
    state: Path
    """A file that remembers up to when changes of the database have been looked at."""
    wall_ns: Callable[[], int] = time.time_ns
    counts: Counts = field(default_factory=Counts)
    failing: bool = False
    _troubles: list[Trouble] = field(default_factory=list)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _door: Door | None = None
    _open_days: OpenDays = field(init=False)
    _written: dict[str, str] = field(default_factory=dict)
    """What files said when they were written last: another collector's may say something else."""
    _handled: set[Change] = field(default_factory=set)
    _counted: dict[GpuDay, int] = field(default_factory=dict)
    """The revisions that are in the settled sums, of the days that may still change."""
    _asked: set[str] = field(default_factory=set)
    """GPUs whose claims in the database are known here."""

    def __post_init__(self) -> None:
        """Listen to what is wrong with the evidence."""
        self.book.listeners.append(self._troubles.append)
        self._open_days = OpenDays(self.book, self.live)

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            await self.attempt()
            await asyncio.sleep(self.settings.period_seconds)

    def close(self) -> None:
        """Close the database."""
        if self._door is not None:
            self._door.ledger.close()
            self._door = None

    async def attempt(self) -> bool:
        """One round; false where the database could not be used, which is said once.

        Whatever it is that goes wrong, frames must be taken in nevertheless.
        """
        try:
            await self.round()
        except Exception as fault:  # noqa: BLE001 - see above
            self.counts.failures += 1
            if not self.failing:
                known = isinstance(fault, (LedgerError, OSError))
                problem = str(fault) if known else f"{type(fault).__name__}: {fault}"
                log.error("evidence_not_stored", problem=problem, parts=len(self.book.chunks),
                          advice="it stays in memory and in the checkpoint, and is tried again")  # fmt: skip
            self.failing = True
            return False
        if self.failing:
            log.info("evidence_stored_again")
        self.failing = False
        return True

    async def round(self, *, everything: bool = False) -> None:
        """Store what is ready (or everything), count the open days on, settle days that are due."""
        async with self._turn:
            await self._round(everything=everything)

    async def _round(self, *, everything: bool) -> None:
        door = await self._opened()
        await self._tell_auditors(door)
        texts = self.texts()
        now_ns = self.wall_ns()
        for kind, text in (texts or {}).items():
            if self._written.get(kind) != text:
                await asyncio.to_thread(door.store.write_file, kind, text, now_ns)
                self._written[kind] = text
        await self._store(door, now_ns, everything=everything)
        if texts is None:
            return
        files = await asyncio.to_thread(door.store.files)
        homes = await asyncio.to_thread(door.store.homes)
        await self._settle(door, homes, now_ns)
        await self._open_days.count_on(door, files, homes)

    async def _tell_auditors(self, door: Door) -> None:
        """Have what is wrong recorded, each thing once for ever."""
        told, self._troubles[:] = list(self._troubles), []
        try:
            await asyncio.to_thread(door.store.tell_auditors, told)
        except BaseException:
            self._troubles.extend(told)
            raise

    async def _opened(self) -> Door:
        if self._door is None:
            door = await asyncio.to_thread(self.open)
            oldest_day = self.wall_ns() // DAY_NS - self.settings.revise_days - 1
            gpus = set(self.book.gpus)
            so_far = await asyncio.to_thread(settled_so_far, door.ledger, gpus, oldest_day)
            async with self.live.lock:
                self.live.settled, self._counted = so_far.settled, so_far.counted
                self.live.amounts.begin(so_far.amounts)
                self.book.changed.update(gpus)
                self.live.ready = True
            self._open_days.stale.update(self.book.gpus)
            self._door = door
        return self._door

    def _apply(self, day: Settlement) -> None:
        self._counted[GpuDay(day.gpu, day.day)] = day.revision
        self.live.settled.settle(day.gpu, day.day, day.new, day.old)
        self.live.amounts.settle(day.gpu, day.day, day.new_amounts, day.old_amounts)
        self.book.changed.add(day.gpu)
        if day.gpu in self.book.gpus:
            self.book.forget(day.gpu, self.live.settled.open_ns(day.gpu))

    # Storing -----------------------------------------------------------------------------------

    async def _store(self, door: Door, now_ns: int, *, everything: bool) -> None:
        quiet_ns = now_ns - round(self.settings.quiet_seconds * NS)
        kept = [
            one
            for one in self.book.chunks.values()
            if not one.stored and (everything or one.touched_ns <= quiet_ns)
        ]
        told = list(self.book.unwritten)
        if kept or told:
            written = [ready(one.chunk, content) async for one, content in _encoded(kept)]
            await self._write(door, kept, written, told, now_ns)
        for key, one in list(self.book.chunks.items()):
            if one.stored:
                del self.book.chunks[key]

    async def _write(
        self,
        door: Door,
        kept: Sequence[Kept],
        written: Sequence[Written],
        told: Sequence[Told | Ended],
        now_ns: int,
    ) -> None:
        try:
            await asyncio.to_thread(door.store.write, written, told, now_ns)
        except BaseException:
            for one in kept:
                one.stored = False
            raise
        for fact in told:
            self.book.unwritten.pop(fact, None)
        self.counts.parts += len(written)
        for one in kept:
            self._open_days.stored(one.chunk)

    # Settling ----------------------------------------------------------------------------------

    async def _settle(self, door: Door, homes: Homes, now_ns: int) -> None:
        delay_ns = round(self.settings.settle_delay_seconds * NS)
        end_day = (now_ns - delay_ns) // DAY_NS
        seen_ns = await asyncio.to_thread(self._seen_ns)
        changes = set(await asyncio.to_thread(door.store.changes, seen_ns))
        if any(not (change.node or change.gpu) for change in changes - self._handled):
            self.book.late.update(self.book.gpus)  # a file may name other tenants now
        await self._learn(door, changes - self._handled)
        new = changes - self._handled
        due = await asyncio.to_thread(self._due, set(self.book.gpus), homes, end_day, new)
        for some in groups(due, homes):
            days = await asyncio.to_thread(write_days, door, homes, some, self._counted, now_ns)
            async with self.live.lock:
                for day in days:
                    self._apply(day)
            self.counts.days += len(days)
            self.counts.revisions += sum(day.revision > 1 and day.old != day.new for day in days)
        self._handled = changes
        if due:
            oldest_day = end_day - self.settings.revise_days
            for gpu_day in [known for known in self._counted if known.day < oldest_day]:
                del self._counted[gpu_day]
        await asyncio.to_thread(self._remember, now_ns - _MARGIN_NS)

    async def _learn(self, door: Door, changes: Iterable[Change]) -> None:
        """Take claims that other collectors were told, of GPUs that are known here by now."""
        wanted = {change.gpu for change in changes if change.gpu}
        wanted |= self.book.gpus.keys() - self._asked
        self._asked.update(self.book.gpus)
        by_start: dict[int, list[str]] = {}
        for gpu in sorted(wanted & self.book.gpus.keys()):
            by_start.setdefault(max(0, self.live.settled.open_ns(gpu)), []).append(gpu)
        for start_ns, gpus in by_start.items():
            self.book.learn(await asyncio.to_thread(door.store.told, gpus, start_ns))

    def _due(
        self, gpus: set[str], homes: Homes, end_day: int, changes: Iterable[Change]
    ) -> list[Job]:
        """The days of each GPU that are to be written, for the first time or anew."""
        about: dict[tuple[str, str], list[Change]] = {}
        for change in changes:
            about.setdefault((change.node, change.gpu), []).append(change)
        oldest_day = end_day - self.settings.revise_days
        found = []
        for gpu in sorted(gpus & homes.keys()):
            since_day = min(homes[gpu].values()) // DAY_NS
            next_day = self.live.settled.days.get(gpu, since_day - 1) + 1
            days = set(range(max(next_day, since_day), end_day))
            keys = [("", gpu), ("", ""), *((node, "") for node in homes[gpu])]
            for change in (change for key in keys for change in about.get(key, ())):
                first = max((change.start_ns - CONTEXT_NS) // DAY_NS, since_day, oldest_day)
                last = min((change.end_ns + CONTEXT_NS) // DAY_NS, next_day - 1)
                days.update(range(first, last + 1))
            if days:
                found.append(Job(gpu, tuple(sorted(days))))
        return found

    def _seen_ns(self) -> int:
        try:
            return int(self.state.read_text())
        except (FileNotFoundError, ValueError):
            return 0

    def _remember(self, seen_ns: int) -> None:
        write_durably(self.state, str(seen_ns).encode())


async def _encoded(kept: Sequence[Kept]) -> AsyncIterator[tuple[Kept, bytes]]:
    """Chunks with their bytes, letting others go first now and then."""
    for number, one in enumerate(kept):
        one.stored = True
        yield one, encode(one.chunk)
        if number % _YIELD_EVERY == 0:
            await asyncio.sleep(0)
