"""Counts of the open days: increments of counters, as far as the database has their readings."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from railscope.timestamps import SECOND_NS
from railscope_collector.account import account_sums, live_account
from railscope_collector.evidence import (
    claim_events,
    evidence_book,
    evidence_records,
    evidence_store,
    evidence_tables,
    gpu_evidence,
)
from railscope_collector.finalization.day_writes import MeteringStores
from railscope_collector.finalization.due_days import GpuNodes, group_by_nodes
from railscope_collector.fleet.shape_columns import AGENT_MEASURES
from railscope_collector.ledger import database
from railscope_collector.metering import counter_increments


class CountRequest(NamedTuple):
    """Counters of a GPU that are to be added up, from after a timestamp on."""

    gpu: str
    after_ns: int


class OpenDayCount(NamedTuple):
    """Amounts counted up to a timestamp."""

    gpu: str
    upto_ns: int
    days: account_sums.OpenDayTotals
    resets: list[tuple[counter_increments.CountedQuantity, counter_increments.CounterRestart]]
    """Resets of counters that the device keeps."""


def open_amounts(
    store: evidence_store.EvidenceStore,
    homes: GpuNodes,
    files: gpu_evidence.AdministratorInputs,
    jobs: Sequence[CountRequest],
) -> list[OpenDayCount]:
    """Return the increments of counters after a timestamp, up to the newest readings in the database."""
    gpus = [job.gpu for job in jobs]
    start_ns = min(job.after_ns for job in jobs)
    nodes_of = {gpu: set(homes[gpu]) for gpu in gpus}
    ends_ns = store.newest_ends({node for gpu in gpus for node in homes[gpu]})
    end_ns = max(ends_ns.values(), default=start_ns)
    loaded = store.load(gpus, nodes_of, start_ns, max(start_ns, end_ns))
    counts = []
    for job in jobs:
        assembled = loaded.assemble(job.gpu, files)
        timestamps_ns = [int(i.ends_ns[-1]) for i in assembled.counted.values() if len(i.ends_ns)]
        upto_ns = max(timestamps_ns, default=job.after_ns)
        resets = [
            (measure, reset)
            for measure, increments in assembled.counted.items()
            if measure not in AGENT_MEASURES
            for reset in increments.resets()
            if reset.first_ns > job.after_ns
        ]
        days = account_sums.count_amounts(assembled, job.after_ns, upto_ns)
        counts.append(OpenDayCount(job.gpu, upto_ns, days, resets))
    return counts


@dataclass(slots=True)
class OpenDayCounter:
    """Continues the counts of GPUs, and restarts them for GPUs with late facts."""

    book: evidence_book.EvidenceBook
    live: live_account.LiveAccount
    stale: set[str] = field(default_factory=set)
    """GPUs with stored readings that their open amounts do not include."""

    def record_stored(self, gpus: Iterable[str], start_ns: int) -> None:
        """Record that evidence of GPUs from a timestamp on was stored in the database."""
        for gpu in gpus:
            self.stale.add(gpu)
            counted = self.live.amounts.open.get(gpu)
            if counted and start_ns < counted.upto_ns - SECOND_NS:
                self.book.late.add(gpu)

    def record_changes(self, changes: Collection[evidence_tables.EvidenceChange]) -> None:
        """Record that claims or files of any collector were stored in the database."""
        late = {change.gpu for change in changes} & self.book.gpus.keys()
        if any(not (change.node or change.gpu) for change in changes):
            late.update(self.book.gpus)  # a file may name other tenants now
        for change in changes:
            if change.gpu and not claim_events.is_gpu(change.gpu):
                late.update(self.book.gpus_in(claim_events.node_of_key(change.gpu)))
        self.book.late |= late

    async def count_new(
        self, stores: MeteringStores, files: gpu_evidence.AdministratorInputs, homes: GpuNodes
    ) -> None:
        """Add the increments of counters on the open days, as far as their readings are stored."""
        self.stale |= self.book.late
        stale_gpus = sorted(self.stale & homes.keys() & self.book.gpus.keys())
        late = self.book.late & set(stale_gpus)
        # Before the call: facts that arrive during it mark the GPU again.
        self.book.late -= late
        restarted = {gpu for gpu in stale_gpus if gpu in late or gpu not in self.live.amounts.open}
        jobs = [
            CountRequest(gpu, self._count_start_ns(gpu, homes, restarted)) for gpu in stale_gpus
        ]
        for job_group in group_by_nodes(jobs, homes):
            try:
                tally = await database.call_database(
                    open_amounts, stores.store, homes, files, job_group
                )
            except BaseException:
                self.book.late |= late
                raise
            for counted in tally:
                last_day = self.live.finalized.days.get(counted.gpu, -1)
                # A day that was finalized meanwhile is in the sums of the ledger.
                days = {day: sums for day, sums in counted.days.items() if day > last_day}
                self.live.amounts.count(
                    counted.gpu, counted.upto_ns, days, restart=counted.gpu in restarted
                )
                self.stale.discard(counted.gpu)
                self._report_counter_resets(counted)

    def _report_counter_resets(self, counted: OpenDayCount) -> None:
        for measure, reset in counted.resets:
            facts = {"measure": measure.value, "last_ns": str(reset.last_ns)}
            problem = evidence_records.EvidenceProblem(
                "counter_reset", counted.gpu, "", reset.first_ns, facts
            )
            self.book.problems.report(problem)

    def _count_start_ns(self, gpu: str, homes: GpuNodes, restarted: set[str]) -> int:
        """Return the timestamp from which the counters of a GPU are not added up yet."""
        if gpu not in restarted:
            return self.live.amounts.open[gpu].upto_ns
        # One nanosecond before the first report, as increments count from after this time on.
        return max(self.live.finalized.open_ns(gpu), min(homes[gpu].values()) - 1)
