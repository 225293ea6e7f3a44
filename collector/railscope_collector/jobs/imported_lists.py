"""Imported job lists: the newest list of each source and period, and the jobs on its GPUs.

A list states all jobs of one source in one period. The newest list of a source and period is valid;
periods of one source are equal or do not overlap. The tables are in the database of the ledger;
rows are added and never changed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from fractions import Fraction
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa

from railscope.timestamps import DAY_NS, FOREVER_NS, SECOND_NS, format_timestamp
from railscope_collector.jobs import JobsError
from railscope_collector.jobs.job_list import WHOLE_GPU_PART, ListedGpuPart
from railscope_collector.ledger import day_documents, head_chain, record_draft, schema
from railscope_collector.ledger.database import Database
from railscope_collector.metering.units import Period, period_name

job_lists = sa.Table(
    "job_list",
    schema.metadata,
    sa.Column("list", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("source", sa.Text, nullable=False),
    *schema.integers("period_start_ns", "period_end_ns", "as_of_ns", "as_observed", "imported_ns"),
    *schema.texts("imported_by", "content_hash", "rejected"),
    sa.CheckConstraint("period_start_ns < period_end_ns", name="time_passes"),
)
"""Imported lists; the highest number of each source and period is valid; `rejected` is JSON."""

listed_jobs = sa.Table(
    "job_list_job",
    schema.metadata,
    sa.Column("list", sa.ForeignKey("job_list.list"), primary_key=True),
    sa.Column("position", sa.BigInteger, primary_key=True, autoincrement=False),
    *schema.texts("gpu_uuid", "node", "model"),
    *schema.integers("start_ns", "end_ns"),
    *schema.texts("job_id", "tenant_id", "share"),
    sa.Column("unfinished", sa.BigInteger, nullable=False),
    sa.Index("job_list_job_gpu", "gpu_uuid", "list"),
)
"""GPUs of the jobs of a list; `share` is the fraction of the GPU."""

later_parts = sa.Table(
    "job_list_later_part",
    schema.metadata,
    sa.Column("list", sa.ForeignKey("job_list.list"), primary_key=True),
    sa.Column("position", sa.BigInteger, primary_key=True, autoincrement=False),
    *schema.integers("run_start_ns"),
)
"""Starts of runs of which a job of a list is a later part."""

JOB_TABLES = (job_lists, listed_jobs, later_parts)
for _table in JOB_TABLES:
    schema.make_append_only(_table)
schema.cover_table("job list", job_lists, listed_jobs, later_parts)


MAX_REJECTED = 1000
"""Rejected lines of a list that are stored as text; all are counted."""
IMPORT_LOCK = 0x7261_696C_6A6F_6273
"""`railjobs` in ASCII: advisory locks of PostgreSQL are numbers that all applications of a database share."""


class JobLedgerError(JobsError):
    """A list cannot be imported; the message contains the reason."""


class PlacedJob(msgspec.Struct, frozen=True, order=True, gc=False):
    """A job on one of its GPUs. An unfinished job ends at the end of the time that the list covers."""

    gpu: str
    start_ns: int
    job_id: str
    tenant: str
    end_ns: int
    node: str
    model: str = ""
    share: str = "1"
    """Part of the GPU: `1` for all of it, else `low-high` in fractions of it."""
    unfinished: bool = False
    run_start_ns: int = FOREVER_NS
    """Start of its run, if this is a later part of the run."""

    @property
    def claim(self) -> str:
        """Id within its source: a requeued job runs twice, and those are two claims."""
        return f"{self.job_id}@{self.start_ns // SECOND_NS}"

    @property
    def run(self) -> tuple[str, int]:
        """Id and start of its run within its source, the same for all of its parts."""
        return self.job_id, min(self.start_ns, self.run_start_ns)

    @property
    def part(self) -> ListedGpuPart:
        """Part of the GPU."""
        low, dash, high = self.share.partition("-")
        return ListedGpuPart(Fraction(low), Fraction(high)) if dash else WHOLE_GPU_PART


class ImportedList(NamedTuple):
    """A list without its jobs."""

    number: int
    source: str
    period: Period
    as_of_ns: int
    as_observed: bool
    content_hash: str
    rejected: tuple[str, ...]
    rejected_count: int

    def __str__(self) -> str:
        return f"{self.source} {period_name(self.period)}"


class NewList(NamedTuple):
    """A list to import."""

    source: str
    period: Period
    as_of_ns: int
    as_observed: bool
    jobs: Sequence[PlacedJob]
    rejected: Sequence[str] = ()

    @property
    def content_hash(self) -> str:
        """SHA-256 over the content that determines the ledger."""
        content = (
            self.source,
            self.period.start_ns,
            self.period.end_ns,
            self.as_observed,
            [_hashed_job(job) for job in sorted(self.jobs)],
            list(self.rejected),
        )
        return sha256(msgspec.json.encode(content)).hexdigest()


def _hashed_job(job: PlacedJob) -> dict[str, Any]:
    fields = msgspec.structs.asdict(job)
    if job.run_start_ns == FOREVER_NS:
        # A list without such parts has the same hash as in releases that did not store them.
        del fields["run_start_ns"]
    return fields


def newest_lists(database: Database) -> list[ImportedList]:
    """Return the newest list of each source and period, by source and time."""
    with database.transaction() as connection:
        return read_newest_lists(connection)


def read_newest_lists(connection: sa.Connection) -> list[ImportedList]:
    """Return the newest list of each source and period, by source and time, within a transaction."""
    table = job_lists
    rows = connection.execute(sa.select(table).order_by(table.c.list))
    # In order of their numbers, so that the newest one of a source and period remains.
    lists = {(imported.source, imported.period): imported for imported in map(_imported_list, rows)}
    return [lists[key] for key in sorted(lists)]


def add_list(connection: sa.Connection, new: NewList, by: record_draft.TimedActor) -> bool:
    """Record a list as the newest of its source and period; false if it is that already.

    The same list made on a later day is recorded: it states that no other job began on the days
    until then. Within a day it states nothing new, as a day is covered only after its end.

    Raises JobLedgerError for a period that overlaps another one of the source.
    """
    for other in read_newest_lists(connection):
        if other.source != new.source:
            continue
        if other.period == new.period:
            is_newer = new.as_of_ns // DAY_NS > other.as_of_ns // DAY_NS
            if other.content_hash == new.content_hash and not is_newer:
                return False
        elif other.period.overlaps(new.period):
            message = (
                f"cannot import period {period_name(new.period)} of source {new.source}: overlaps "
                f"{period_name(other.period)}, which is imported: expected the same period or one that "
                "does not overlap; fix: import the list by that period, or name another --source"
            )
            raise JobLedgerError(message)
    table = job_lists
    number = 1 + (connection.execute(sa.select(sa.func.max(table.c.list))).scalar_one() or 0)
    rejected = {"count": len(new.rejected), "lines": list(new.rejected[:MAX_REJECTED])}
    row = schema.to_row(
        table,
        new,
        list=number,
        as_observed=int(new.as_observed),
        imported_ns=by.now_ns,
        imported_by=by.actor.id,
        rejected=msgspec.json.encode(rejected).decode(),
    )
    connection.execute(table.insert(), [row])
    _insert_jobs(connection, number, sorted(new.jobs))
    draft = by.draft(
        "billing.import",
        {
            "event": "jobs.import.v1",
            "list": number,
            "source": new.source,
            "start": format_timestamp(new.period.start_ns),
            "end": format_timestamp(new.period.end_ns),
            "as_of": format_timestamp(new.as_of_ns),
            "jobs": len({job.claim for job in new.jobs}),
            "gpus": len({job.gpu for job in new.jobs}),
            "rejected_lines": len(new.rejected),
            "content_hash": new.content_hash,
        },
    )
    stored = head_chain.record_row(connection, "job list", number, draft)
    head_chain.append_head(connection, [stored], by.now_ns)
    return True


def _insert_jobs(connection: sa.Connection, number: int, jobs: Sequence[PlacedJob]) -> None:
    rows: dict[sa.Table, list[dict[str, Any]]] = {listed_jobs: [], later_parts: []}
    for position, job in enumerate(jobs):
        place = {"list": number, "position": position}
        rows[listed_jobs].append(
            schema.to_row(listed_jobs, job, **place, unfinished=int(job.unfinished))
        )
        if job.run_start_ns < FOREVER_NS:
            rows[later_parts].append(schema.to_row(later_parts, job, **place))
    for table, table_rows in rows.items():
        for row_group in day_documents.split_items(table_rows):
            connection.execute(table.insert(), row_group)


def find_listed_gpus(connection: sa.Connection, source: str, period: Period) -> set[str]:
    """The GPUs that any list of a source and period names, superseded lists included."""
    table = job_lists
    lists = sa.select(table.c.list).where(
        table.c.source == source, table.c.period_start_ns == period.start_ns
    )
    query = sa.select(listed_jobs.c.gpu_uuid).distinct().where(listed_jobs.c.list.in_(lists))
    return set(connection.execute(query).scalars())


def read_runs(connection: sa.Connection, number: int) -> set[tuple[str, int]]:
    """The runs of the jobs of a list, as `PlacedJob.run`."""
    table = listed_jobs
    place = sa.and_(later_parts.c.list == table.c.list, later_parts.c.position == table.c.position)
    start = sa.func.coalesce(later_parts.c.run_start_ns, table.c.start_ns)
    query = sa.select(table.c.job_id, start).distinct().outerjoin(later_parts, place)
    return {
        (job, start_ns) for job, start_ns in connection.execute(query.where(table.c.list == number))
    }


def read_listed_jobs(
    connection: sa.Connection, gpus: Collection[str], numbers: Iterable[int]
) -> Mapping[str, Mapping[int, Sequence[PlacedJob]]]:
    """Jobs of some lists on some GPUs, by GPU and list."""
    jobs_by_gpu: dict[str, dict[int, list[PlacedJob]]] = {gpu: {} for gpu in gpus}
    table, list_numbers = listed_jobs, set(numbers)
    place = sa.and_(later_parts.c.list == table.c.list, later_parts.c.position == table.c.position)
    query = sa.select(table, later_parts.c.run_start_ns).outerjoin(later_parts, place)
    for gpu_group in day_documents.split_items(sorted(gpus)):
        for row in connection.execute(query.where(table.c.gpu_uuid.in_(gpu_group))):
            if row.list in list_numbers:
                job = schema.from_row(
                    PlacedJob,
                    row,
                    unfinished=bool(row.unfinished),
                    run_start_ns=FOREVER_NS if row.run_start_ns is None else row.run_start_ns,
                )
                jobs_by_gpu[row.gpu_uuid].setdefault(row.list, []).append(job)
    return jobs_by_gpu


def is_listed_gpu(gpu: str) -> bool:
    """True for a GPU of job lists, which is named `node/address`; agents report UUIDs."""
    # UUIDs of the driver contain no slash, and neither do names of nodes in `node/address`.
    return "/" in gpu


def uncovered_days(lists: Sequence[ImportedList], days: range) -> list[tuple[str, int]]:
    """Source and day of each day without a list of the source, from its first list on.

    A list that was made before the end of a day does not contain all of its jobs.
    """
    by_source: dict[str, list[range]] = {}
    for imported in lists:
        made_ns = min(imported.as_of_ns, imported.period.end_ns)
        span = range(imported.period.start_ns // DAY_NS, made_ns // DAY_NS)
        by_source.setdefault(imported.source, []).append(span)
    return [
        (source, day)
        for source, spans in sorted(by_source.items())
        for day in range(max(days.start, min(span.start for span in spans)), days.stop)
        if not any(day in span for span in spans)
    ]


def _imported_list(row: sa.Row[Any]) -> ImportedList:
    rejected = msgspec.json.decode(row.rejected)
    return schema.from_row(
        ImportedList,
        row,
        number=row.list,
        as_observed=bool(row.as_observed),
        rejected=tuple(rejected["lines"]),
        rejected_count=rejected["count"],
    )
