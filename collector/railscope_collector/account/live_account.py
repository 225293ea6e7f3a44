"""The account of GPU time: the ledger's totals, the open days, and what holds each GPU now.

Time and amounts are as of the last quarters in the database; holders are as of the last claim that was received.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from railscope.claim_terms import parse_share
from railscope.timestamps import SECOND_NS
from railscope_collector.account import account_sums, held_now
from railscope_collector.evidence import open_quarters
from railscope_collector.evidence.file_versions import AdministratorInputs
from railscope_collector.ledger import database, ledger_store
from railscope_collector.ledger.day_documents import GpuDay
from railscope_collector.metering.metered_day import MeteredDay
from railscope_collector.metering.units import Units, exact
from railscope_collector.workloads import job_roster, pod_jobs

_GPUS_PER_YIELD = 32
_STEP_NS = 60 * SECOND_NS


@dataclass(slots=True)
class LiveAccount:
    """The account, and the holders of GPUs."""

    book: open_quarters.OpenQuarters
    files: Callable[[], AdministratorInputs]
    account: account_sums.GpuTimeAccount | None = None
    """None until the ledger was read."""
    amounts: account_sums.AmountTotals = field(default_factory=dict)
    roster: job_roster.JobRoster = field(default_factory=job_roster.JobRoster)
    """Holdings of jobs as of the last refresh."""
    pod_job_pattern: re.Pattern[str] = pod_jobs.NO_PODS
    _finalized: account_sums.FinalizedTotals = field(default_factory=account_sums.FinalizedTotals)
    _held: dict[str, Mapping[str, Units]] = field(default_factory=dict)
    """Units that each tenant holds, by GPU."""
    _held_units: dict[str, Units] = field(default_factory=dict)
    _next_ns: dict[str, int] = field(default_factory=dict)
    """Time at which the holders of a GPU change without a further report."""
    _files: AdministratorInputs | None = None
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def is_ready(self) -> bool:
        """True once the ledger was read."""
        return self.account is not None

    async def update(
        self,
        ledger: ledger_store.Ledger,
        documents: Mapping[GpuDay, MeteredDay],
        now_ns: int,
        lag_ns: int,
    ) -> None:
        """Add up the ledger and the open days, up to the whole minute by which running nodes have reported."""
        until_ns = (now_ns - lag_ns) // _STEP_NS * _STEP_NS

        def add_up() -> tuple[account_sums.GpuTimeAccount, account_sums.AmountTotals]:
            finalized = self._finalized.read(ledger, documents)
            return account_sums.add_up(finalized, documents, until_ns)

        self.account, self.amounts = await database.call_database(add_up)

    async def refresh(self, now_ns: int, offer: Callable[[], Awaitable[None]]) -> None:
        """Update the holders of GPUs at a time, awaiting `offer` between GPUs to yield to other tasks."""
        async with self._turn:
            files, changed = self.files(), self.book.changed
            # By identity: a file that was read again is a new object, and may change any GPU.
            if files is not self._files:
                self._files = files
                changed.update(self.book.places)
            due = {gpu for gpu, next_ns in self._next_ns.items() if next_ns <= now_ns}
            for number, gpu in enumerate(sorted(changed | due)):
                # Before the computation: a change after it marks the GPU again.
                changed.discard(gpu)
                self._hold(gpu, files, now_ns)
                if number % _GPUS_PER_YIELD == 0:
                    await offer()

    def _hold(self, gpu: str, files: AdministratorInputs, now_ns: int) -> None:
        place = self.book.places[gpu]
        held = held_now.find_holders(self.book.claims, place.node, gpu, files, now_ns)
        for units, sign in ((self._held.get(gpu, {}), -1), (held.units, 1)):
            for tenant, size in units.items():
                self._held_units[tenant] = exact(self._held_units.get(tenant, 0) + sign * size)
        self._held[gpu] = held.units
        self._next_ns[gpu] = held.next_ns
        holdings = pod_jobs.join_pod_holdings(held.holdings, self.pod_job_pattern)
        self.roster.set_holdings(gpu, holdings)

    def holders(self, gpu: str) -> set[str]:
        """Return the tenants that hold a part of a GPU, as of the last refresh."""
        return {*self._held.get(gpu, {})}

    def held_units(self) -> dict[str, Units]:
        """Return the units of GPUs that each tenant holds, as of the last refresh."""
        return {tenant: units for tenant, units in self._held_units.items() if units}

    def unplaced(self) -> dict[str, Fraction]:
        """Return the GPUs that each node's claims without a device are for."""
        found: dict[str, Fraction] = {}
        for node in self.book.claims.nodes:
            for claim in self.book.claims.without_device(node):
                share = parse_share(claim.share) if claim.share else Fraction(1)
                found[node] = found.get(node, Fraction(0)) + claim.count * share
        return found
