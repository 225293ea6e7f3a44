"""Ledger days of GPUs: days that are due, their metering and writing, and sums of finalized days.

Days are metered from the evidence. `due_days` returns those that are to be written, and
`group_due_days` limits their number per step. Amounts of the open days are increments of counters,
as far as the database has their readings.

`read_finalized` reads the ledger sums of GPUs that a collector begins to account for. A year of ten
thousand GPUs is millions of GPU-days: they are added up in the database, some GPUs at a time; of
single days only the revisions are loaded, and only for days that may change.

All calls that read or write the database block, and raise UnusableLedgerError.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

from sqlalchemy import Connection

from railscope.timestamps import DAY_NS, SECOND_NS
from railscope_collector.account import account_sums, live_account
from railscope_collector.evidence import (
    claim_events,
    evidence_book,
    evidence_records,
    evidence_store,
    evidence_tables,
    gpu_evidence,
)
from railscope_collector.fleet.schema_columns import AGENT_MEASURES
from railscope_collector.ledger import (
    database,
    day_metering,
    day_tiling,
    head_chain,
    ledger_queries,
    ledger_store,
    row_conversion,
)
from railscope_collector.metering import measures, units
from railscope_collector.metering.tiling import SlotState

ENGINE_VERSION = "1"
GPUS_AT_ONCE = 64
GpuNodes = Mapping[str, Mapping[str, int]]
"""Nodes of each GPU, and since when it was in them."""


class MeteringStores(NamedTuple):
    """The open database: its ledger and its evidence."""

    ledger: ledger_store.Ledger
    store: evidence_store.EvidenceStore
    check: Callable[[Connection], None] = ledger_store.accept_any
    """Called in each transaction that writes days: the check of a lease."""


class DueDays(NamedTuple):
    """Days of a GPU that are to be written."""

    gpu: str
    days: tuple[int, ...]


class WrittenDay(NamedTuple):
    """A GPU-day as the ledger has it, and as it was when this collector last read it."""

    gpu: str
    day: int
    revision: int
    new: account_sums.DaySums
    old: account_sums.DaySums


class DayWrites(NamedTuple):
    """Result of writing days."""

    days: list[WrittenDay]
    rejected: dict[row_conversion.GpuDay, str]
    """Days that could not be metered or written, and the problem of each."""


class CountRequest(NamedTuple):
    """Counters of a GPU that are to be added up, from after a timestamp on."""

    gpu: str
    after_ns: int


class OpenDayCount(NamedTuple):
    """Amounts counted up to a timestamp."""

    gpu: str
    upto_ns: int
    days: account_sums.OpenDayTotals
    resets: list[tuple[measures.CountedQuantity, measures.CounterRestart]]
    """Resets of counters that the device keeps."""


def group_by_nodes(jobs: Sequence[Any], homes: GpuNodes) -> Iterator[list[Any]]:
    """Group jobs of GPUs that share nodes, so that a node's evidence is read once."""
    together: dict[tuple[str, ...], list[Any]] = {}
    for job in jobs:
        together.setdefault(tuple(sorted(homes[job.gpu])), []).append(job)
    waiting: list[Any] = []
    for group in together.values():
        waiting += group
        if len(waiting) >= GPUS_AT_ONCE:
            yield waiting
            waiting = []
    if waiting:
        yield waiting


def write_days(
    stores: MeteringStores,
    homes: GpuNodes,
    jobs: Sequence[DueDays],
    counted: Mapping[row_conversion.GpuDay, int],
    now_ns: int,
) -> DayWrites:
    """Meter days of GPUs and write them; `counted` has the revisions that were last read.

    A day that cannot be metered or written does not prevent the others. Raises LostLeaseError.
    """
    ledger, store, check = stores
    files = store.files()
    start_ns = min(job.days[0] for job in jobs) * DAY_NS
    end_ns = (max(job.days[-1] for job in jobs) + 1) * DAY_NS
    gpus = [job.gpu for job in jobs]
    loaded = store.load_each(gpus, {gpu: set(homes[gpu]) for gpu in gpus}, start_ns, end_ns)
    computed = day_metering.MeteringComputation(ENGINE_VERSION, now_ns)
    tilings: list[day_tiling.DayTiling] = []
    rejected: dict[row_conversion.GpuDay, str] = {}
    for job in jobs:
        try:
            metered = loaded[job.gpu]().assemble(job.gpu, files).meter()
            tilings += [metered.day(day, computed) for day in job.days]
        except Exception as fault:  # noqa: BLE001 - all other GPUs continue
            days = [row_conversion.GpuDay(job.gpu, day) for day in job.days]
            rejected |= dict.fromkeys(days, f"{type(fault).__name__}: {fault}")
    written = list(_write_each(ledger, tilings, check, rejected))
    new = {
        row_conversion.GpuDay(tiling.gpu, tiling.day): account_sums.DaySums.from_tiling(tiling)
        for tiling, _ in written
    }
    old = {
        day: counted.get(day, revision.revision - revision.added)
        for day, (_, revision) in zip(new, written, strict=True)
    }
    before = _read_sums(ledger, old)
    found = [
        WrittenDay(*day, revision.revision, sums, before.get(day, _NO_SUMS))
        for (day, sums), (_, revision) in zip(new.items(), written, strict=True)
    ]
    return DayWrites(found, rejected)


def _write_each(
    ledger: ledger_store.Ledger,
    tilings: Sequence[day_tiling.DayTiling],
    check: Callable[[Connection], None],
    rejected: dict[row_conversion.GpuDay, str],
) -> Iterator[tuple[day_tiling.DayTiling, ledger_store.WrittenRevision]]:
    """Write all; if one is rejected, write each separately, so that one GPU does not block the others."""
    try:
        yield from zip(tilings, ledger.write_days(tilings, check), strict=True)
    except (day_tiling.TilingError, database.RejectedValueError):
        for tiling in tilings:
            try:
                yield tiling, ledger.write_days([tiling], check)[0]
            except (day_tiling.TilingError, database.RejectedValueError) as error:
                rejected[row_conversion.GpuDay(tiling.gpu, tiling.day)] = str(error)


_NO_SUMS = account_sums.DaySums.from_tiling(None)
_HEADS_AT_ONCE = 8
"""All revisions that they added, of the GPUs in the account, are in memory at once, with the previous ones."""


class AddedDays(NamedTuple):
    """Days that heads added to the ledger, and the number of the last head."""

    head: int
    days: list[WrittenDay]


@dataclass(slots=True)
class AccountedDays:
    """Ledger days that the account includes."""

    gpus: dict[str, int] = field(default_factory=dict)
    """GPUs in the account, each with the head of the ledger when its days were read."""
    revisions: dict[row_conversion.GpuDay, int] = field(default_factory=dict)
    """Revisions in the account, of the days that may still change."""
    head: int = 0
    """Head of the ledger up to which added days are in the account."""

    def add_gpus(self, finalized: account_sums.FinalizedGpus) -> None:
        """Record GPUs whose days were read."""
        if not self.gpus:
            self.head = min(finalized.heads.values(), default=0)
        self.revisions |= finalized.numbers
        self.gpus |= finalized.heads

    def forget_revisions(self, before_day: int) -> None:
        """Remove the revisions of days that no longer change."""
        self.revisions = {key: n for key, n in self.revisions.items() if key.day >= before_day}

    def read_added(self, ledger: ledger_store.Ledger) -> AddedDays | None:
        """Return the days that the next heads added, by any collector; None if there is no head."""
        with ledger.database.transaction() as connection:
            heads = head_chain.read_added(connection, "revision", self.head, _HEADS_AT_ONCE)
        if not heads:
            return None
        new: dict[row_conversion.GpuDay, int] = {}
        old: dict[row_conversion.GpuDay, int] = {}
        for head, keys in heads:
            for gpu, day, number in (key.rsplit("/", 2) for key in keys):
                gpu_day, revision = row_conversion.GpuDay(gpu, int(day)), int(number)
                accounted = self.revisions.get(gpu_day, 0)
                if self.gpus.get(gpu, head) < head and revision > accounted:
                    old.setdefault(gpu_day, accounted or revision - 1)
                    new[gpu_day] = revision
        before, sums = _read_sums(ledger, old), _read_sums(ledger, new)
        days = [
            WrittenDay(*day, revision, sums[day], before.get(day, _NO_SUMS))
            for day, revision in new.items()
        ]
        return AddedDays(heads[-1][0], days)


def _read_sums(
    ledger: ledger_store.Ledger, numbers: Mapping[row_conversion.GpuDay, int]
) -> dict[row_conversion.GpuDay, account_sums.DaySums]:
    """Return the sums of revisions; there is none of number 0."""
    numbers = {day: number for day, number in numbers.items() if number}
    return {
        row_conversion.GpuDay(r.tiling.gpu, r.tiling.day): account_sums.DaySums.from_tiling(
            r.tiling
        )
        for r in ledger.revisions(numbers)
    }


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


_DAYS_AT_ONCE = 2
"""All evidence of some nodes on these days is in memory while they are written."""


def due_days(
    homes: GpuNodes,
    finalized: Mapping[str, int],
    window: range,
    changes: Iterable[evidence_tables.EvidenceChange],
    rejected: Iterable[row_conversion.GpuDay] = (),
) -> list[DueDays]:
    """Return the days of each GPU that are to be written, new or revised, or again after they were rejected.

    `finalized` has the last day of each GPU that is in the ledger. The window ends with the first day
    that is not over; changes of days before its start are too late.
    """
    again: dict[str, list[int]] = {}
    for gpu, day in rejected:
        again.setdefault(gpu, []).append(day)
    about: dict[tuple[str, str], list[evidence_tables.EvidenceChange]] = {}
    for change in changes:
        about.setdefault((change.node, change.gpu), []).append(change)
    due = []
    for gpu in sorted(homes):
        since_day = min(homes[gpu].values()) // DAY_NS
        next_day = finalized.get(gpu, since_day - 1) + 1
        days = {*range(max(next_day, since_day), window.stop), *again.get(gpu, ())}
        keys = [("", gpu), ("", "")]
        for node in homes[gpu]:
            keys += [(node, ""), ("", claim_events.unplaced_key(node))]
        for change in (change for key in keys for change in about.get(key, ())):
            first = max(
                (change.start_ns - evidence_tables.CONTEXT_NS) // DAY_NS, since_day, window.start
            )
            last = min((change.end_ns + evidence_tables.CONTEXT_NS) // DAY_NS, next_day - 1)
            days.update(range(first, last + 1))
        if days:
            due.append(DueDays(gpu, tuple(sorted(days))))
    return due


def group_due_days(jobs: Sequence[DueDays], homes: GpuNodes) -> Iterator[list[DueDays]]:
    """Divide jobs into groups of a few days, the oldest first."""
    parts: dict[int, list[DueDays]] = {}
    for job in jobs:
        for number, days in groupby(job.days, key=lambda day: day // _DAYS_AT_ONCE):
            parts.setdefault(number, []).append(DueDays(job.gpu, tuple(days)))
    for _, gpu_days in sorted(parts.items()):
        yield from group_by_nodes(gpu_days, homes)


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
        return max(self.live.finalized.open_ns(gpu), min(homes[gpu].values()) - 1)


_SUMMED_GPUS_AT_ONCE = 64
"""Their time in 24 hours fits in 64 bits, the limit of SQLite's sums."""


def read_finalized(
    ledger: ledger_store.Ledger, gpus: Collection[str], since_day: int
) -> account_sums.FinalizedGpus:
    """Return the ledger's sums of these GPUs; days from `since_day` on may still change."""
    finalized = account_sums.FinalizedGpus({}, {}, {}, {}, [], {})
    for gpu_group in ledger_queries.split_items(sorted(gpus), _SUMMED_GPUS_AT_ONCE):
        with ledger.database.transaction(is_snapshot=True) as connection:
            _read_finalized_group(finalized, connection, gpu_group, since_day)
    return finalized


def _read_finalized_group(
    finalized: account_sums.FinalizedGpus,
    connection: Connection,
    gpus: Collection[str],
    since_day: int,
) -> None:
    sums, amounts, days, numbers, clock_suspect, heads = finalized
    head = head_chain.newest_head(connection)
    heads |= dict.fromkeys(gpus, head.n if head else 0)
    times = ledger_queries.finalized_time(connection, gpus)
    for (day, state, tenant), quantity in times.items():
        key = account_sums.TimeKey(account_sums.month_start(day), SlotState(state), tenant)
        sums[key] = units.exact(sums.get(key, 0) + quantity)
    for share in connection.execute(ledger_queries.finalized_amounts(gpus)):
        amount_key = account_sums.AmountKey(
            measures.CountedQuantity(share.measure),
            measures.AmountAttribution(share.use),
            share.tenant_id,
        )
        amount = ledger_queries.HALF * int(share.high) + int(share.low)
        amounts[amount_key] = amounts.get(amount_key, 0) + amount
    for gpu in connection.execute(ledger_queries.last_days(gpus)):
        days[gpu.gpu_uuid] = gpu.day
    for text in connection.execute(ledger_queries.finalized_marks(gpus)).scalars():
        clock_suspect += row_conversion.parse_clock_suspect(text)
    last_day = max(days.values(), default=since_day)
    numbers |= ledger_queries.newest_numbers(connection, range(since_day, last_day + 1), gpus)
