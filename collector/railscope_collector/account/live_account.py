"""The account of all GPUs, updated in slices: finalized sums, and the open days of each GPU."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial

import msgspec

from railscope.claim_terms import GPU_CAPACITY
from railscope.service import run_in_thread
from railscope_collector.account import account_sums
from railscope_collector.account.finalized_sums import FinalizedSums
from railscope_collector.account.gpu_account import GpuAccount
from railscope_collector.evidence import (
    claim_events,
    claim_placement,
    evidence_book,
    evidence_records,
    gpu_evidence,
    gpu_node_history,
    node_intervals,
)
from railscope_collector.metering import evidence as usage_evidence, observation, placement, tiling
from railscope_collector.metering.units import Units, exact
from railscope_collector.workloads import job_roster, pod_jobs

_UNCHANGED_GPUS_PER_YIELD = 32
"""GPUs that are only extended, not computed, between two yields to other tasks: an extension is arithmetic."""
_MAX_RATES = 10_000
"""States of GPUs that are kept for sharing."""
MAX_CLAIMS_ON_LOOP = 64
"""Maximum claims of a GPU that are metered on the event loop: the cost grows with their number squared."""


@dataclass(slots=True)
class LiveAccount:
    """Finalized sums, and the open days of every GPU in the book."""

    book: evidence_book.EvidenceBook
    files: Callable[[], gpu_evidence.AdministratorInputs]
    finalized: FinalizedSums = field(default_factory=FinalizedSums)
    amounts: account_sums.CounterAmounts = field(default_factory=account_sums.CounterAmounts)
    is_ready: bool = True
    """True once the ledger's sums have been loaded."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held during a refresh: finalized sums change between two refreshes, not within one."""
    roster: job_roster.JobRoster = field(default_factory=job_roster.JobRoster)
    """Holdings of jobs as of the last refresh."""
    pod_job_pattern: re.Pattern[str] = pod_jobs.NO_PODS
    _gpus: dict[str, GpuAccount] = field(default_factory=dict)
    _rates: dict[account_sums.Rates, account_sums.Rates] = field(default_factory=dict)
    """Shared by GPUs in equal states."""
    _fixed: account_sums.TimeSums = field(default_factory=dict)
    _held_units: dict[str, Units] = field(default_factory=dict)
    _excess: dict[str, Sequence[placement.ClaimExcess]] = field(default_factory=dict)
    """Excess of the claims without devices, by node."""
    _unclaimed: tuple[object, GpuAccount | None] = (None, None)
    """Evidence and account of the last computed GPU without claims."""
    _files: gpu_evidence.AdministratorInputs | None = None
    _placer: claim_placement.ClaimPlacer | None = None
    """Placer of the current refresh: a node's claims are placed once for all of its GPUs."""

    async def refresh(
        self, now_ns: int, offer: Callable[[], Awaitable[None]]
    ) -> account_sums.GpuTimeAccount:
        """Return the account up to a timestamp, awaiting `offer` between GPUs to yield to other tasks."""
        async with self.lock:
            files = self.files()
            # By identity: a file that was read again is a new object, and may change any GPU.
            if files is not self._files:
                self._files = files
                self.book.changed.update(self.book.gpus)
            totals = account_sums.OpenSums(now_ns)
            capacity = gpus = 0
            self._placer = claim_placement.ClaimPlacer(self.book, files)
            for number, gpu in enumerate(filter(claim_events.is_gpu, list(self.book.gpus))):
                account = self._gpus.get(gpu)
                if gpu in self.book.changed or (account and not account.is_extensible(now_ns)):
                    account = await self._compute(gpu, files, now_ns)
                    await offer()
                elif number % _UNCHANGED_GPUS_PER_YIELD == 0:
                    await offer()
                if account is not None:
                    account.extend(totals, now_ns)
                    capacity += account.served_ns(now_ns)
                gpus += account is not None or gpu in self.finalized.days
            self._placer = None
            # No await from here on, so that all parts are of one time.
            sums, capacity = totals.close(), GPU_CAPACITY * capacity
            account_sums.add_sums(sums, self._fixed)
            account_sums.add_sums(sums, self.finalized.sums)
            return account_sums.GpuTimeAccount(
                now_ns, gpus, capacity + self.finalized.capacity, sums
            )

    def add_finalized(self, gpus: account_sums.FinalizedGpus) -> None:
        """Add the ledger's sums of all GPUs, with or without facts here; `lock` is held."""
        self.finalized.add_gpus(gpus)
        self.amounts.add_gpus(gpus.amounts)
        self.is_ready = True

    def release_finalized(self, new: Iterable[str]) -> None:
        """Release the facts of finalized days of GPUs that are new here; `lock` is held."""
        for gpu in new:
            self.book.changed.add(gpu)
            self.book.forget(gpu, self.finalized.open_ns(gpu))

    def holders(self, gpu: str) -> set[str]:
        """Return the tenants that hold a part of a GPU, as of the last refresh."""
        account = self._gpus.get(gpu)
        return account.holders if account else set()

    def held_units(self) -> dict[str, Units]:
        """Return the units of GPUs that each tenant holds, as of the last refresh."""
        return {tenant: units for tenant, units in self._held_units.items() if units}

    def unplaced(self, now_ns: int) -> dict[str, Fraction]:
        """Return the excess of each node's claims at a timestamp, in GPUs, as of the last refresh."""
        amounts = {
            node: sum((e.amount for e in excesses if e.start_ns <= now_ns < e.end_ns), Fraction(0))
            for node, excesses in self._excess.items()
        }
        return {node: amount for node, amount in sorted(amounts.items()) if amount}

    def _count_held(self, account: GpuAccount, sign: int) -> None:
        for rate in account.rates[1]:
            if rate.state in tiling.HELD_STATES:
                before = self._held_units.get(rate.tenant, 0)
                self._held_units[rate.tenant] = exact(before + sign * rate.units)

    async def _compute(
        self, gpu: str, files: gpu_evidence.AdministratorInputs, now_ns: int
    ) -> GpuAccount | None:
        # Before the computation, which may yield: a change during it marks the GPU again.
        self.book.changed.discard(gpu)
        self.book.newest_spans.pop(gpu, None)
        placer = self._placer or claim_placement.ClaimPlacer(self.book, files)
        evidence, history = placer.evidence(gpu)
        newest_span = self._find_newest_span(gpu, history)
        if newest_span:
            self.book.newest_spans[gpu] = newest_span
        open_ns = self.finalized.open_ns(gpu)
        if evidence.claims:
            of = partial(GpuAccount.compute, evidence, newest_span, open_ns, now_ns)
            # In a thread only beyond the bound: a hand-over to a thread costs more than a usual computation.
            new = await run_in_thread(of) if len(evidence.claims) > MAX_CLAIMS_ON_LOOP else of()
        else:
            new = self._compute_unclaimed(evidence, newest_span, open_ns, now_ns)
        if old := self._gpus.pop(gpu, None):
            account_sums.add_sums(self._fixed, old.fixed, -1)
            self._count_held(old, -1)
        self._report_rejected(gpu, history)
        self._report_excess(placer, history)
        self.roster.set_holdings(
            gpu, pod_jobs.join_pod_holdings(new.holdings, self.pod_job_pattern) if new else ()
        )
        if new is None:
            if evidence.stays:
                self.book.changed.add(gpu)  # a later start is processed by the next refresh
            return None
        new.rates = self._rates.setdefault(new.rates, new.rates)
        if len(self._rates) > _MAX_RATES:
            self._rates.clear()  # only affects the number of GPUs that are added up at once
        self._gpus[gpu] = new
        account_sums.add_sums(self._fixed, new.fixed)
        self._count_held(new, 1)
        return new

    def _compute_unclaimed(
        self,
        evidence: usage_evidence.Evidence,
        newest_span: node_intervals.SampleSpan | None,
        open_ns: int,
        now_ns: int,
    ) -> GpuAccount | None:
        """Compute the account of a GPU without claims, once for GPUs with equal evidence.

        The GPUs of a node usually have equal evidence, because each frame lists all of them.
        """
        facts = msgspec.structs.replace(evidence, gpu=""), copy(newest_span), open_ns, now_ns
        if facts != self._unclaimed[0]:
            account = GpuAccount.compute(evidence, newest_span, open_ns, now_ns)
            self._unclaimed = facts, account
        account = self._unclaimed[1]
        return account and replace(account, newest_span=newest_span)

    def _find_newest_span(
        self, gpu: str, history: gpu_node_history.GpuNodeHistory
    ) -> node_intervals.SampleSpan | None:
        """Return the newest samples that count, as the span that the book extends."""
        usable = (s for s in history.sample_spans if s.skew_ns <= observation.QUARANTINE_NS)
        newest = max(usable, key=lambda s: (s.last_ns, s.boot), default=None)
        if newest is None:
            return None
        for presence in self.book.gpus[gpu].presences.values():
            for span in presence.spans:
                same = span.skew_ns == newest.skew_ns and span.last_ns == newest.last_ns
                if same and presence.boot == newest.boot:
                    return span
        return None

    def _report_excess(
        self, placer: claim_placement.ClaimPlacer, history: gpu_node_history.GpuNodeHistory
    ) -> None:
        """Report claims without a device that do not fit into their node."""
        for node in {stay.node for stay in history.stays}:
            excess = placer.excess(node)
            self._excess[node] = excess
            if not excess:
                del self._excess[node]
            for claim in excess:
                facts = {"claim": claim.claim, "tenant": claim.tenant, "gpus": str(claim.amount)}
                self.book.problems.report(
                    evidence_records.EvidenceProblem(
                        "unplaced_excess", "", node, claim.start_ns, facts
                    )
                )

    def _report_rejected(self, gpu: str, history: gpu_node_history.GpuNodeHistory) -> None:
        """Report two nodes with one GPU."""
        for holding_node, rejected_node in history.rejected:
            facts = {"stands": holding_node, "refused": rejected_node}
            self.book.problems.report(
                evidence_records.EvidenceProblem(
                    "seen_twice", gpu, rejected_node, history.stays[0].start_ns, facts
                )
            )
