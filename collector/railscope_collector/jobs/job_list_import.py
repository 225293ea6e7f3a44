"""Import of job lists into a ledger: the days of every GPU of their jobs.

All time is `inferred`; rating leaves it undecided, as no agent observed the GPU for more than an hour. An operator without agents may count the scheduler's report
as observation; such days state it as their source.

The ledger is a function of the newest list of each source and period. A list states all jobs of its
source and period, so a GPU that it names is present throughout the period. A GPU that no list of a
day names has no entries on that day.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import NamedTuple

from sqlalchemy import Connection

from railscope.claim_terms import ClaimAuthority
from railscope.timestamps import DAY_NS, FOREVER_NS
from railscope_collector.jobs import gpu_models, imported_lists, job_list, job_metering
from railscope_collector.jobs.placeholder_gpus import is_placeholder
from railscope_collector.ledger import (
    day_documents,
    ledger_store,
    record_draft,
    transactions,
)
from railscope_collector.ledger.day_documents import GpuDay
from railscope_collector.metering import evidence, timeline, units
from railscope_collector.metering.metered_day import MeteredDay

_AT_ONCE = 1000
_GPUS_AT_ONCE = 64


class ImportCounts(NamedTuple):
    """Numbers of GPU-days that were written, and that were unchanged."""

    added: int
    unchanged: int


def list_source(*, as_observed: bool = False) -> str:
    """Source of the days of a list."""
    return "job list, used as observed" if as_observed else "job list, as reported by the scheduler"


# Lists by source and period ----------------------------------------------------------------------


def place_jobs(
    jobs: job_list.JobList,
    models: gpu_models.GpuModels,
    numbered: Mapping[job_list.ListedGpu, str] | None = None,
) -> list[imported_lists.PlacedJob]:
    """The jobs of a list by GPU, with models. Raises JobLedgerError for a GPU with two models.

    `numbered` contains the models of placeholders.
    """
    unended = {job.claim: job.end_ns for job in jobs.unended}
    placed = dict(numbered or {})
    for job in jobs.jobs:
        for gpu in job.gpus:
            # A placeholder has its model in its name: another one would be another placeholder.
            if gpu in (numbered or {}):
                continue
            model = models.model(gpu, job.model)
            before = placed.setdefault(gpu, model)
            # The default stands for an unknown model: one that a job names is more specific.
            if models.default in (model, before):
                placed[gpu] = before if model == models.default else model
            elif before != model:
                raise imported_lists.JobLedgerError(
                    _conflicting_models(str(gpu), {before, model}, [job.id])
                )
    return [
        imported_lists.PlacedJob(
            str(gpu),
            job.start_ns,
            job.id,
            job.tenant,
            job.end_ns,
            gpu.node,
            placed[gpu],
            "1" if part == job_list.WHOLE_GPU_PART else f"{part.low}-{part.high}",
            job.end_ns < unended.get(job.claim, job.end_ns),
            job.run_start_ns,
        )
        for job in jobs.jobs
        for gpu in job.gpus
        for part in (job.part_on(gpu),)
    ]


def check_replaced_list(
    ledger: ledger_store.Ledger, new: imported_lists.NewList, *, corrects: bool
) -> None:
    """Raise JobLedgerError if a list would replace one that it is no newer version of.

    A list that `corrects` another has a job in common with it: one without any is probably of
    another cluster. Other lists are equal to the newest one of their source and period.
    """
    for other in imported_lists.newest_lists(ledger.database):
        if (other.source, other.period) != (new.source, new.period) or (
            other.content_hash == new.content_hash
        ):
            continue
        if not corrects:
            message = (
                f"cannot import the list: the ledger has another one of {other}: expected the same one; fix: import all"
                " jobs of the period at once with --period, or use --replace"
            )
            raise imported_lists.JobLedgerError(message)
        with ledger.database.transaction() as connection:
            replaced = imported_lists.read_runs(connection, other.number)
        if replaced and replaced.isdisjoint(job.run for job in new.jobs):
            message = (
                f"cannot import the list: it has none of the jobs of the list of {other} that it would replace: expected"
                " a later list of the same cluster; fix: name another cluster with --source, or use --replace"
            )
            raise imported_lists.JobLedgerError(message)


def import_list(
    ledger: ledger_store.Ledger, new: imported_lists.NewList, by: record_draft.TimedActor
) -> ImportCounts:
    """Record a list and write the days that it changes, all or nothing.

    Every GPU that a list of this source and period has ever named is computed again, from the
    newest lists of all sources. Raises JobLedgerError, UnusableLedgerError.
    """
    added = unchanged = 0
    with ledger.database.transaction(writes=True) as connection:
        transactions.lock(connection, imported_lists.IMPORT_LOCK)
        day_documents.lock_days(connection)
        imported_lists.add_list(connection, new, by)
        # Superseded lists included: a GPU that the new list does not name any more must lose its days.
        gpus = imported_lists.find_listed_gpus(connection, new.source, new.period)
        rest = _NewestLists.read(connection, new.period, by.now_ns).days(connection, sorted(gpus))
        # In parts of bounded memory, and in one transaction: a list is imported as a whole or not at all.
        while chunk := list(islice(rest, _AT_ONCE)):
            for written in day_documents.write_days(connection, chunk, by.now_ns):
                added += written.added
                unchanged += not written.added
    return ImportCounts(added, unchanged)


@dataclass(frozen=True, slots=True)
class _NewestLists:
    """The newest lists that have days of a period, by number."""

    heads: Mapping[int, imported_lists.ImportedList]
    period: units.Period
    now_ns: int

    @classmethod
    def read(cls, connection: Connection, period: units.Period, now_ns: int) -> _NewestLists:
        """Read the lists of a database."""
        lists = [
            imported
            for imported in imported_lists.read_newest_lists(connection)
            if imported.period.overlaps(period)
        ]
        return cls({imported.number: imported for imported in lists}, period, now_ns)

    def days(self, connection: Connection, gpus: Sequence[str]) -> Iterator[MeteredDay]:
        """The days of some GPUs in the period, according to the lists."""
        span = range(self.period.start_ns // DAY_NS, self.period.end_ns // DAY_NS)
        # A day that has not begun has no entries, whatever a running job reserves.
        next_day = self.now_ns // DAY_NS + 1
        for offset in range(0, len(gpus), _GPUS_AT_ONCE):
            gpu_group = gpus[offset : offset + _GPUS_AT_ONCE]
            present = day_documents.newest_numbers(connection, span, gpu_group)
            for gpu, by_list in imported_lists.read_listed_jobs(
                connection, gpu_group, self.heads
            ).items():
                for part in self._segments(by_list):
                    covering = {
                        number: by_list[number]
                        for number in by_list
                        if self._is_listed_on(number, part)
                    }
                    until = max(part.start, min(part.stop, next_day)) if covering else part.start
                    if part.start < until:
                        yield from self._listed_days(gpu, range(part.start, until), covering)
                    yield from self._empty_days(gpu, range(until, part.stop), present)

    def _segments(self, numbers: Iterable[int]) -> Iterator[range]:
        """The days of the period, split where the set of covering lists changes."""
        edges = {self.period.start_ns, self.period.end_ns}
        for number in numbers:
            edges |= {self.heads[number].period.start_ns, self.heads[number].period.end_ns}
        inside = (edge for edge in edges if self.period.start_ns <= edge <= self.period.end_ns)
        for start_ns, end_ns in pairwise(sorted(inside)):
            yield range(start_ns // DAY_NS, end_ns // DAY_NS)

    def _is_listed_on(self, number: int, part: range) -> bool:
        return self.heads[number].period.overlaps(
            units.Period(part.start * DAY_NS, part.stop * DAY_NS)
        )

    def _empty_days(
        self, gpu: str, part: range, present: Mapping[GpuDay, int]
    ) -> Iterator[MeteredDay]:
        """Empty days: no list names the GPU any more, or the day has not begun."""
        for day in part:
            # An empty revision only where there is one to supersede.
            if GpuDay(gpu, day) in present:
                yield MeteredDay(gpu, day, "", source=list_source())

    def _listed_days(
        self, gpu: str, part: range, by_list: Mapping[int, Sequence[imported_lists.PlacedJob]]
    ) -> Iterator[MeteredDay]:
        """Days of a GPU that the same lists cover. Raises JobLedgerError."""
        models = {job.model for jobs in by_list.values() for job in jobs if job.model}
        if len(models) > 1:
            named = [str(self.heads[number]) for number in by_list]
            raise imported_lists.JobLedgerError(_conflicting_models(gpu, models, named))
        as_observed = all(self.heads[number].as_observed for number in by_list)
        by_source = {self.heads[number].source: jobs for number, jobs in by_list.items()}
        # The stay has no end, as the last day ends no claim.
        nodes = {job.node for jobs in by_source.values() for job in jobs}
        stay = timeline.TimePiece(part.start * DAY_NS, FOREVER_NS, min(nodes))
        found = job_metering.claims_timeline(
            gpu,
            stay,
            list(_listed_claims(gpu, part, by_source)),
            next(iter(models), ""),
            as_observed=as_observed,
        )
        for day in part:
            yield found.meter(day, list_source(as_observed=as_observed))


def _listed_claims(
    gpu: str, span: range, by_source: Mapping[str, Sequence[imported_lists.PlacedJob]]
) -> Iterator[evidence.MeteredClaim]:
    """Yield the claims on a GPU on some days, from the lists of some sources."""
    start_ns, end_ns = span.start * DAY_NS, span.stop * DAY_NS
    for source, jobs in sorted(by_source.items()):
        unfinished = {job.claim for job in jobs if job.unfinished}
        for job in jobs:
            if job.start_ns < end_ns and start_ns < job.end_ns:
                claim = evidence.MeteredClaim(
                    ClaimAuthority.SCHEDULER_LIST,
                    job.start_ns,
                    # With the source: two schedulers may use the same job id.
                    f"{source}/{job.claim}",
                    job.tenant,
                    job.end_ns,
                    job.job_id,
                    job.node,
                    job_metering.part_slots(job.part),
                    counted=is_placeholder(gpu),
                    is_open=job.claim in unfinished,
                )
                yield job_metering.claim_since(job.run_start_ns, claim)


def _conflicting_models(gpu: str, models: Iterable[str], lists: Iterable[str]) -> str:
    return (
        f"conflicting models of {gpu}: {' and '.join(sorted(models))} ({', '.join(sorted(set(lists)))}): expected "
        "one model; fix: name it in the file of --inventory"
    )
