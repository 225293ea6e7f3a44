"""The account of all GPUs, updated in slices."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial

from collector.account.amounts import Amounts
from collector.account.gpu import GpuAccount
from collector.account.tally import Account, Sums, add, month_of
from collector.evidence.assemble import Files
from collector.evidence.book import EvidenceBook
from collector.evidence.chunk import Span
from collector.evidence.claim_events import is_gpu
from collector.evidence.places import Places
from collector.evidence.trouble import Trouble
from collector.evidence.unplaced import Placer
from collector.ledger.tiling import DAY_NS
from collector.metering.evidence import ClockDoubt, Evidence, Level
from collector.metering.observation import QUARANTINE_NS
from collector.metering.overlaps import OverlapKind, overlaps
from collector.metering.placement import Excess
from collector.metering.tiling import HELD
from collector.metering.units import FOREVER_NS, GPU_CAPACITY, Tiling, Units, exact
from collector.workloads.holding import NO_PODS, together
from collector.workloads.roster import Roster

Turns = Callable[[], Awaitable[None]]


MAX_CLAIMS_ON_LOOP = 64
"""Maximum claims of a GPU that are metered on the event loop: the cost grows with their number squared."""


@dataclass(slots=True)
class Settled:
    """The ledger's sums by month of the GPUs in the account, and the last finalized day of each.

    The present day is never finalized, so single days are not needed; there would be too many.
    """

    sums: Sums = field(default_factory=dict)
    days: dict[str, int] = field(default_factory=dict)
    capacity: Units = 0
    clock_suspect: Counter[ClockDoubt] = field(default_factory=Counter)
    """GPU-days with evidence that was received while the collector's clock was suspect."""

    def open_ns(self, gpu: str) -> int:
        """Return the start of a GPU's time that is not in the ledger."""
        return (self.days[gpu] + 1) * DAY_NS if gpu in self.days else -FOREVER_NS

    def settle(self, gpu: str, day: int, new: Sums, old: Sums) -> None:
        """Record a GPU-day that was written to the ledger, new or revised."""
        for found, sign in ((new, 1), (old, -1)):
            for key, quantity in found.items():
                add(self.sums, {key._replace(day=month_of(key.day)): quantity}, sign)
        self.capacity = exact(self.capacity + sum(new.values()) - sum(old.values()))
        self.days[gpu] = max(day, self.days.get(gpu, day))

    def mark(self, new: Iterable[ClockDoubt], old: Iterable[ClockDoubt] = ()) -> None:
        """Add marks of days, and remove the old ones."""
        self.clock_suspect.update(new)
        self.clock_suspect.subtract(old)
        self.clock_suspect += Counter()

    def take_up(self, sums: Sums, days: Mapping[str, int]) -> None:
        """Add the ledger's sums by month, of GPUs up to their last days."""
        add(self.sums, sums)
        self.capacity = exact(self.capacity + sum(sums.values()))
        self.days |= days


@dataclass(slots=True)
class LiveAccount:
    """Finalized sums, and the open days of every GPU in the book."""

    book: EvidenceBook
    files: Callable[[], Files]
    settled: Settled = field(default_factory=Settled)
    amounts: Amounts = field(default_factory=Amounts)
    ready: bool = True
    """True once the ledger's sums have been loaded."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held during a refresh: finalized sums change between two refreshes, not within one."""
    roster: Roster = field(default_factory=Roster)
    """Holdings of jobs as of the last refresh."""
    pod_jobs: re.Pattern[str] = NO_PODS
    _gpus: dict[str, GpuAccount] = field(default_factory=dict)
    _fixed: Sums = field(default_factory=dict)
    _held: dict[str, Units] = field(default_factory=dict)
    _excess: dict[str, Sequence[Excess]] = field(default_factory=dict)
    """By node, the excess of its claims without devices."""
    _files: Files | None = None
    _placer: Placer | None = None
    """Placer of the current refresh: a node's claims are placed once for all of its GPUs."""

    async def refresh(self, now_ns: int, offer: Turns) -> Account:
        """Return the account up to a timestamp, awaiting `offer` between GPUs to yield to other tasks."""
        async with self.lock:
            return await self._refresh(now_ns, offer)

    async def _refresh(self, now_ns: int, offer: Turns) -> Account:
        files = self.files()
        if files is not self._files:
            self._files = files
            self.book.changed.update(self.book.gpus)
        sums: Sums = {}
        capacity = 0
        gpus = 0
        self._placer = Placer(self.book, files)
        for gpu in filter(is_gpu, list(self.book.gpus)):
            account = await self._of(gpu, files, now_ns)
            if account is not None:
                account.carry(sums, now_ns)
                capacity += GPU_CAPACITY * account.served_ns(now_ns)
            gpus += account is not None or gpu in self.settled.days
            await offer()
        self._placer = None
        # No await from here on, so that all parts are of one time.
        add(sums, self._fixed)
        add(sums, self.settled.sums)
        suspect = dict(self.settled.clock_suspect)
        return Account(now_ns, gpus, capacity + self.settled.capacity, sums, suspect)

    def holders(self, gpu: str) -> set[str]:
        """Return the tenants that hold a part of a GPU, as of the last refresh."""
        account = self._gpus.get(gpu)
        return account.holders if account else set()

    def held(self) -> dict[str, Units]:
        """Return the units of GPUs that each tenant holds, as of the last refresh."""
        return {tenant: units for tenant, units in self._held.items() if units}

    def unplaced(self, now_ns: int) -> dict[str, Fraction]:
        """Return the excess of each node's claims at a timestamp, in GPUs, as of the last refresh."""
        found = {
            node: sum((e.amount for e in some if e.start_ns <= now_ns < e.end_ns), Fraction(0))
            for node, some in self._excess.items()
        }
        return {node: amount for node, amount in sorted(found.items()) if amount}

    def _hold(self, account: GpuAccount, sign: int) -> None:
        for rate in account.silent:
            if rate.state in HELD:
                before = self._held.get(rate.tenant, 0)
                self._held[rate.tenant] = exact(before + sign * rate.units)

    async def _of(self, gpu: str, files: Files, now_ns: int) -> GpuAccount | None:
        account = self._gpus.get(gpu)
        if account and gpu not in self.book.changed and account.holds(now_ns):
            return account
        if account is None and gpu not in self.book.changed:
            return None
        return await self._work_out(gpu, files, now_ns)

    async def _work_out(self, gpu: str, files: Files, now_ns: int) -> GpuAccount | None:
        self.book.changed.discard(gpu)
        self.book.tails.pop(gpu, None)
        placer = self._placer or Placer(self.book, files)
        evidence, where = placer.evidence(gpu)
        tail = self._tail(gpu, where)
        if tail:
            self.book.tails[gpu] = tail
        of = partial(GpuAccount.of, evidence, tail, self.settled.open_ns(gpu), now_ns)
        new = await asyncio.to_thread(of) if len(evidence.claims) > MAX_CLAIMS_ON_LOOP else of()
        if old := self._gpus.pop(gpu, None):
            add(self._fixed, old.fixed, -1)
            self._hold(old, -1)
        self._look_for_trouble(gpu, evidence, where)
        self._look_for_excess(placer, where)
        self.roster.put(gpu, together(new.holdings, self.pod_jobs) if new else ())
        if new is None:
            if evidence.stays:
                self.book.changed.add(gpu)  # a later start is processed by the next refresh
            return None
        self._gpus[gpu] = new
        add(self._fixed, new.fixed)
        self._hold(new, 1)
        return new

    def _tail(self, gpu: str, where: Places) -> Span | None:
        """Return the newest samples that count, as the span that the book extends."""
        believed = (s for s in where.stretches if s.skew_ns <= QUARANTINE_NS)
        newest = max(believed, key=lambda s: (s.last_ns, s.boot), default=None)
        if newest is None:
            return None
        for presence in self.book.gpus[gpu].presences.values():
            for span in presence.spans:
                same = span.skew_ns == newest.skew_ns and span.last_ns == newest.last_ns
                if same and presence.boot == newest.boot:
                    return span
        return None

    def _look_for_excess(self, placer: Placer, where: Places) -> None:
        """Report claims without a device that do not fit into their node."""
        for node in {stay.node for stay in where.stays}:
            excess = placer.excess(node)
            self._excess[node] = excess
            if not excess:
                del self._excess[node]
            for one in excess:
                facts = {"claim": one.claim, "tenant": one.tenant, "gpus": str(one.amount)}
                self.book.trouble(Trouble("unplaced_excess", "", node, one.start_ns, facts))

    def _look_for_trouble(self, gpu: str, evidence: Evidence, where: Places) -> None:
        """Report two claims on one slot, and two nodes with one GPU."""
        for stands, refused in where.refused:
            facts = {"stands": stands, "refused": refused}
            self.book.trouble(Trouble("seen_twice", gpu, refused, where.stays[0].start_ns, facts))
        levels = {claim.id: claim.level for claim in evidence.claims}
        # The ledger has the overlaps of any number of claims.
        if 1 < len(levels) <= MAX_CLAIMS_ON_LOOP:
            for one in overlaps(evidence):
                if one.kind is not OverlapKind.CONFLICT or one.tiling is not Tiling.COMPUTE:
                    continue
                if levels[one.claim] is Level.ADMINISTRATOR:
                    continue  # an exception to a claim on the node; the parser of the file reports others
                facts = {"earlier": one.claim, "later": one.other}
                node = where.stays[-1].node if where.stays else ""
                self.book.trouble(Trouble("conflict", gpu, node, one.start_ns, facts))
