"""The account of GPUs whose evidence other collectors store: it reads the ledger and the database, and writes nothing.

The open days follow from the facts in memory, as in the collector that received them. All else is the ledger's: sums
of accounts of several collectors would count a node twice that moved from one to another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import structlog

from railscope import timestamps
from railscope_collector import config
from railscope_collector.account import account_sums, live_account
from railscope_collector.account.finalized_sums import FinalizedSums
from railscope_collector.evidence import claim_events, evidence_book, evidence_tables
from railscope_collector.finalization import day_writes, finalized_sums, open_days
from railscope_collector.ledger import head_chain
from railscope_collector.ledger.database import call_database

log = structlog.get_logger(__name__)

_CHANGES_NS = 600 * timestamps.SECOND_NS
"""Period of changes that are read again: collectors write at different times."""


@dataclass(slots=True)
class FollowedAccount:
    """Keeps the account of a state up to date with the database."""

    book: evidence_book.EvidenceBook
    live: live_account.LiveAccount
    open: Callable[[], day_writes.MeteringStores]
    settings: config.MeteringSettings
    wall_ns: Callable[[], int]
    is_failing: bool = False
    _counter: open_days.OpenDayCounter = field(init=False)
    _head: head_chain.ChainHead | None = None
    """Newest entry of the ledger when it was read."""
    _contacts: int = -1
    """Number of first contacts in the database when they were last read."""
    _accounted: set[str] = field(default_factory=set)
    _handled: set[evidence_tables.EvidenceChange] = field(default_factory=set)
    """Changes of the period that were counted."""

    def __post_init__(self) -> None:
        """Create the counter of open days."""
        self._counter = open_days.OpenDayCounter(self.book, self.live)

    async def run(self) -> None:
        """Refresh periodically until cancelled; sooner while nothing has been read."""
        while True:
            await self.attempt()
            period_seconds = self.settings.period_seconds
            await asyncio.sleep(period_seconds if self._accounted else min(period_seconds, 1.0))

    async def attempt(self) -> bool:
        """Refresh once; false if it failed, which is logged once."""
        try:
            await self.refresh()
        except Exception as fault:  # noqa: BLE001 - the views continue, and the next attempt may succeed
            if not self.is_failing:
                problem = f"{type(fault).__name__}: {fault}"
                log.error("ledger_read_failed", problem=problem)
            self.is_failing = True
            return False
        self.is_failing = False
        return True

    async def refresh(self) -> None:
        """Read what the database has of the GPUs in memory, and release what it has received."""
        stores, now_ns = await call_database(self.open), self.wall_ns()
        count = await call_database(stores.store.count_contacts)
        if count != self._contacts:
            self.book.merge_contacts(await call_database(stores.store.contacts))
            self._contacts = count
        await self._read_ledger(stores, now_ns)
        changes = set(await call_database(stores.store.changes, now_ns - _CHANGES_NS))
        new, self._handled = changes - self._handled, changes
        try:
            await self._read_claims(stores, {change.gpu for change in new if change.gpu})
            self._record_stored(new)
        except BaseException:
            # They are read again: a change must not be lost because a query failed.
            self._handled -= new
            raise
        files = await call_database(stores.store.files)
        homes = await call_database(stores.store.homes)
        homes = {gpu: homes[gpu] for gpu in self._accounted & homes.keys()}
        await self._counter.count_new(stores, files, homes)

    async def _read_ledger(self, stores: day_writes.MeteringStores, now_ns: int) -> None:
        """Read the ledger's sums of new GPUs; of all after a day was written."""

        def read_head() -> head_chain.ChainHead | None:
            with stores.ledger.database.transaction() as connection:
                return head_chain.newest_head(connection)

        head = await call_database(read_head)
        is_same = head == self._head
        gpus = set(filter(claim_events.is_gpu, self.book.gpus))
        new = gpus - self._accounted if is_same else gpus
        if not new and self.live.is_ready:
            return
        delay_ns = round(self.settings.finalize_delay_seconds * timestamps.SECOND_NS)
        oldest_day = (now_ns - delay_ns) // timestamps.DAY_NS - self.settings.max_revision_age_days
        finalized = await call_database(
            finalized_sums.read_finalized, stores.ledger, new, oldest_day
        )
        async with self.live.lock:
            # All sums are replaced: they are totals of many GPUs, from which single days cannot be taken out.
            if not is_same:
                self.live.finalized = FinalizedSums()
                self.live.amounts = account_sums.CounterAmounts()
            self.live.add_finalized(finalized)
        self._head = head
        self._accounted |= new
        self._counter.stale |= new
        nodes = {node for gpu in new for node in self.book.nodes_of(gpu)}
        await self._read_claims(stores, new | set(map(claim_events.unplaced_key, nodes)))

    async def _read_claims(self, stores: day_writes.MeteringStores, gpus: set[str]) -> None:
        """Read claims that this state has not received as records."""
        by_start: dict[int, list[str]] = {}
        for gpu in sorted(gpus):
            if gpu in self.book.gpus or not claim_events.is_gpu(gpu):
                by_start.setdefault(max(0, self._open_ns(gpu)), []).append(gpu)
        for start_ns, group in by_start.items():
            self.book.add_claims(await call_database(stores.store.claim_facts, group, start_ns))

    def _open_ns(self, gpu: str) -> int:
        """Return the start of the time that is not in the ledger: of a GPU, or of any GPU of a node."""
        if claim_events.is_gpu(gpu):
            return self.live.finalized.open_ns(gpu)
        gpus = self.book.gpus_in(claim_events.node_of_key(gpu))
        return min(map(self.live.finalized.open_ns, gpus), default=-timestamps.FOREVER_NS)

    def _record_stored(self, changes: Collection[evidence_tables.EvidenceChange]) -> None:
        """Count what collectors have stored; the intervals in memory have no other use than to be stored."""
        self._counter.record_changes(changes)
        for change in changes:
            if change.node:
                self._counter.record_stored(self.book.gpus_in(change.node), change.start_ns)
        for interval in list(self.book.intervals.by_key.values()):
            self.book.intervals.release(interval)
        self.book.unwritten.clear()
