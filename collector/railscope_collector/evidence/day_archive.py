"""Archive of days: the input of `meter_day` for one day and pod as one Parquet file.

    day_file         newest file of a pod and day, with the SHA-256 of its content

A file has one row group for each node, with all facts about the GPUs that were in it: what is metered from a row
group is what is metered from the database. A file whose day changes is written again, under a name that contains its
hash. The files of days that can no longer change are written and read once more, and are final; only then are the
facts deleted that no later day reads. All calls block, and raise ArchiveError and UnusableLedgerError.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import NamedTuple
from urllib.parse import quote

import msgspec
import sqlalchemy as sa

from railscope.timestamps import DAY_NS, SECOND_NS, format_timestamp
from railscope_collector import archive_stores
from railscope_collector.evidence import archive_files, fact_deletion, fact_store, fact_tables
from railscope_collector.evidence.claim_events import ReportedClaim
from railscope_collector.evidence.day_facts import DatedValue, DatedValues, DayFacts, spans_on
from railscope_collector.evidence.day_metering import DayMeter
from railscope_collector.evidence.file_versions import AdministratorInputs
from railscope_collector.evidence.node_intervals import decode_interval, encode_interval
from railscope_collector.ledger import day_documents, schema, transactions

COLUMNS = KIND, KEY, CONTENT = ("kind", "key", "content")
QUARTER, BOOTS, GPU = "quarter", "boots", "gpu"
_MARGIN_NS = 300 * SECOND_NS
"""Maximum delay until a revision that another collector recorded becomes visible."""
_RUN = "railscope collector archive run"
_LOCK = 0x7261_696C_6461_7966  # "raildayf" in ASCII

day_files = sa.Table(
    "day_file",
    fact_tables.metadata,
    *schema.key_texts("pod"),
    *schema.key_numbers("day"),
    *schema.texts("location", "name", "sha256"),
    *schema.integers("size_bytes", "gpus", "written_ns", "is_final"),
)
"""`written_ns` is the time before the facts were read. Final files never change."""
for _table, _column in (
    (fact_tables.quarters, "end_ns"),
    (fact_tables.claims, "start_ns"),
    (fact_tables.claim_ends, "end_ns"),
):
    _is_archived = f"day_file.is_final = 1 AND OLD.{_column} < (day_file.day + 1) * {DAY_NS}"
    _condition = f"EXISTS (SELECT 1 FROM day_file WHERE {_is_archived})"  # noqa: S608 - constants
    schema.permit_deletion(_table, _condition, day_files)


class DayFile(NamedTuple):
    """Newest file of a pod and day."""

    pod: str
    day: int
    location: str
    name: str
    sha256: str
    size_bytes: int
    gpus: int
    written_ns: int
    is_final: int


class _GpuFacts(msgspec.Struct, array_like=True):
    nodes: list[DatedValue]
    contested: list[DatedValue]
    models: list[DatedValue]
    layouts: list[DatedValue]
    claims: list[ReportedClaim]
    ends: list[tuple[str, str, int]]
    """Node, claim and end."""


@dataclass(slots=True)
class RecomputedDay:
    """Result of one day: its GPUs that are equal, and a problem for each that is not."""

    day: int
    equal: int = 0
    former: int = 0
    """Number of GPU-days that release 0.3 metered, by its own rules: they are not compared."""
    problems: list[str] = field(default_factory=list)


class DayArchive:
    """Archive of the days of one database."""

    def __init__(
        self,
        store: fact_store.FactStore,
        files: archive_stores.ArchiveStore,
        pod_pattern: re.Pattern[str] | None = None,
        *,
        is_isolating: bool = False,
    ) -> None:
        """With `is_isolating`, a file that fails does not stop the others; `failures` has its problem."""
        self.store, self.database, self._files = store, store.database, files
        self._pod_pattern = pod_pattern
        self.failures = archive_stores.FileFailures(files if is_isolating else None)

    # Writing -----------------------------------------------------------------------------------

    def write_due(self, end_day: int, now_ns: int) -> Iterator[DayFile]:
        """Write the files of days before `end_day` that have none, or whose days were revised since; yield each."""
        places, first_day = self._read_places()
        for day in range(first_day, end_day):
            groups = self._group_nodes(places, day)
            written = {file.pod: file.written_ns for file in self.files(range(day, day + 1))}
            revised_ns = self._find_newest_revision(day)
            for pod, nodes in groups.items():
                if written.get(pod, -1) < revised_ns + _MARGIN_NS or pod not in written:
                    with self.failures.isolate():
                        yield self._write_file(pod, day, nodes, now_ns)

    def close_days(self, end_day: int, now_ns: int) -> Iterator[int]:
        """Make the files of days before `end_day` final, and delete what no later day reads.

        Yields the number of deleted facts of each transaction. A day whose file fails stays, with all later ones. Those
        days must no longer change.
        """
        places, first_day = self._read_places()
        for day in range(first_day, end_day):
            failures = len(self.failures.problems)
            for pod, nodes in self._group_nodes(places, day).items():
                # Once more: what does not change the day may have arrived since, and is deleted too.
                with self.failures.isolate():
                    self._write_file(pod, day, nodes, now_ns)
            if len(self.failures.problems) > failures:
                break
            with self.database.transaction(writes=True) as connection:
                is_closed = day_files.c.day <= day
                connection.execute(day_files.update().where(is_closed).values(is_final=1))
        with self.database.transaction() as connection:
            closed_day = find_first_open_day(connection)
        if closed_day:
            yield from fact_deletion.delete_facts(self.store, closed_day)

    def _read_places(self) -> tuple[DatedValues, int]:
        """Return the nodes of all GPUs, and the first day with GPUs that has no final file."""
        with self.database.transaction(is_snapshot=True) as connection:
            places = fact_tables.read_places(connection)
            open_day = find_first_open_day(connection)
        first_ns = min((rows[0].since_ns for rows in places.values()), default=0)
        return places, max(open_day, first_ns // DAY_NS)

    def _group_nodes(self, places: DatedValues, day: int) -> Mapping[str, Sequence[str]]:
        """Return the nodes that had GPUs on a day, by pod."""
        found = {span.value for rows in places.values() for span in spans_on(rows, day)}
        groups: dict[str, list[str]] = {}
        for node in sorted(found):
            groups.setdefault(self.pod_of(node), []).append(node)
        return groups

    def pod_of(self, node: str) -> str:
        """Return the pod of a node as a part of a path; `none` where the pattern does not match."""
        if self._pod_pattern is None:
            return "all"
        match = self._pod_pattern.fullmatch(node)
        return quote((match and match["pod"]) or "none", safe="")

    def _find_newest_revision(self, day: int) -> int:
        days = day_documents.ledger_days
        newest = sa.select(sa.func.max(days.c.recorded_ns)).where(days.c.day == day)
        with self.database.transaction() as connection:
            return connection.execute(newest).scalar() or -_MARGIN_NS

    def _write_file(self, pod: str, day: int, nodes: Sequence[str], now_ns: int) -> DayFile:
        """Create a file, read it back, and record it."""
        content, gpus = self._encode(day, nodes)
        digest = sha256(content).hexdigest()
        name = f"day={format_day(day)}/pod={pod}/facts-{digest[:32]}.parquet"
        file = DayFile(
            pod, day, self._files.location, name, digest, len(content), gpus, now_ns, is_final=0
        )
        if len(content) > archive_stores.MAX_FILE_BYTES:
            message = (
                f"the facts of {format_day(day)} in pod {pod} are {len(content):,} bytes: expected at most"
                f" {archive_stores.MAX_FILE_BYTES:,}; fix: divide the nodes by archive.pod_pattern"
            )
            raise archive_stores.ArchiveError(message)
        self._files.create(name, content)
        # Before the facts are deleted: the store may have another file of this name, or have lost it.
        self.read(file)
        with self.database.transaction(writes=True) as connection:
            transactions.lock(connection, _LOCK)
            if day >= find_first_open_day(connection):
                is_file = sa.and_(day_files.c.pod == pod, day_files.c.day == day)
                connection.execute(sa.delete(day_files).where(is_file))
                connection.execute(day_files.insert().values(file._asdict()))
        return file

    def _encode(self, day: int, nodes: Sequence[str]) -> tuple[bytes, int]:
        """Return the file of a day, and the number of its GPUs; equal facts give equal files."""
        arrow, parquet = archive_files.import_pyarrow()
        types = dict(zip(COLUMNS, (arrow.string(), arrow.string(), arrow.binary()), strict=True))
        table = arrow.schema(list(types.items()))
        content, count = io.BytesIO(), 0
        with parquet.ParquetWriter(content, table, compression="zstd") as writer:
            # Node by node: the facts of a pod may be larger than the memory.
            for node in nodes:
                with self.database.transaction(is_snapshot=True) as connection:
                    gpus = fact_store.gpus_on(connection, node, day)
                    rows = list(_encode_rows(self.store.read_day(connection, gpus, day)))
                count += len(gpus)
                columns = zip(zip(*rows, strict=True), types.values(), strict=True)
                arrays = [arrow.array(column, kind) for column, kind in columns]
                writer.write_table(arrow.table(arrays, schema=table), row_group_size=len(rows))
        return content.getvalue(), count

    # Reading -----------------------------------------------------------------------------------

    def files(self, days: range) -> list[DayFile]:
        """Return the files of days, by day and pod."""
        within = (day_files.c.day >= days.start, day_files.c.day < days.stop)
        query = sa.select(day_files).where(*within).order_by(day_files.c.day, day_files.c.pod)
        with self.database.transaction() as connection:
            return [DayFile(*row) for row in connection.execute(query)]

    def read(self, file: DayFile) -> bytes:
        """Return the content of a file. Raises ArchiveError if it is missing, or is not what was written."""
        # Twice the size is enough for a correct answer: a store may return anything.
        content = self._files.read(file.name, 2 * file.size_bytes)
        if sha256(content).hexdigest() != file.sha256:
            message = (
                f"{file.location}/{file.name} is not what was written: expected SHA-256 {file.sha256};"
                " fix: restore the file from a copy"
            )
            raise archive_stores.ArchiveError(message)
        return content

    def recompute_day(self, day: int, files: AdministratorInputs, node: str = "") -> RecomputedDay:
        """Compute the ledger days of all GPUs, or those of a node, from the files of a day alone."""
        result, name = RecomputedDay(day), format_day(day)
        with self.database.transaction(is_snapshot=True) as connection:
            numbers = day_documents.newest_numbers(connection, range(day, day + 1))
            revisions = {
                revision.day.gpu: revision
                for revision in day_documents.read_revisions(connection, numbers)
                # Days of imported job lists have no facts.
                if not revision.day.source
            }
        missing = {
            gpu
            for gpu, revision in revisions.items()
            if node in {"", *(piece.node for piece in revision.day.pieces)}
        }
        former = {gpu for gpu in missing if revisions[gpu].is_former}
        result.former, computed = len(former), former
        for file in self.files(range(day, day + 1)):
            for found in decode_file(self.read(file)):
                meter = DayMeter.of_facts(day, found, files)
                for gpu, places in found.nodes.items():
                    nodes = {span.value for span in spans_on(places, day)}
                    # A GPU that moved is in the row groups of both nodes, with the same facts.
                    if gpu in computed or (node and node not in nodes):
                        continue
                    computed.add(gpu)
                    again, revision = meter.meter(gpu), revisions.get(gpu)
                    if again == revision.day if revision else not again.pieces:
                        result.equal += revision is not None
                    elif revision is None:
                        result.problems.append(
                            f"{gpu} on {name}: the archive has facts, and the ledger has no such day"
                        )
                    else:
                        result.problems.append(_describe(revision, name, file))
        for gpu in sorted(missing - computed):
            result.problems.append(
                f"{gpu} on {name}: no file of the archive has this GPU; fix: {_RUN}"
            )
        return result


def find_first_open_day(connection: sa.Connection) -> int:
    """Return the first day without a final file."""
    newest = sa.select(sa.func.max(day_files.c.day)).where(day_files.c.is_final == 1)
    last_day = connection.execute(newest).scalar()
    return 0 if last_day is None else last_day + 1


def format_day(day: int) -> str:
    """Return the date of a day."""
    return format_timestamp(day * DAY_NS)[:10]


def _describe(revision: day_documents.Revision, name: str, file: DayFile) -> str:
    """Return a line about a GPU-day that differs."""
    gpu = revision.day.gpu
    if revision.recorded_ns > file.written_ns:
        revised, written = map(format_timestamp, (revision.recorded_ns, file.written_ns))
        return f"{gpu} on {name}: revised {revised}, archived {written}; fix: {_RUN}"
    return f"{gpu} on {name}: differs from revision {revision.number} of the ledger"


def _encode_rows(found: DayFacts) -> Iterator[tuple[str, str, bytes]]:
    """Yield the rows of a row group, in one order for equal facts."""
    encode = msgspec.msgpack.Encoder(order="deterministic").encode
    for node, of_node in sorted(found.boots.items()):
        yield BOOTS, node, encode(of_node)
    for gpu in sorted(found.nodes):
        ends = sorted(
            (node, claim, end_ns) for (node, of, claim), end_ns in found.ends.items() if of == gpu
        )
        reports = sorted(found.claims.get(gpu, ()))
        of_gpu = _GpuFacts(
            found.nodes[gpu],
            found.contested.get(gpu, []),
            found.models.get(gpu, []),
            found.layouts.get(gpu, []),
            reports,
            ends,
        )
        yield GPU, gpu, encode(of_gpu)
    for node, quarters in sorted(found.quarters.items()):
        for content in sorted(encode_interval(each) for each in quarters):
            yield QUARTER, node, content


def decode_file(content: bytes) -> Iterator[DayFacts]:
    """Yield the facts of each node of a file. Raises ArchiveError for any other content."""
    arrow, parquet = archive_files.import_pyarrow()
    try:
        file = parquet.ParquetFile(io.BytesIO(content))
        for number in range(file.num_row_groups):
            table = file.read_row_group(number)
            columns = [table.column(name).to_pylist() for name in COLUMNS]
            yield _decode_rows(zip(*columns, strict=True))
    except (arrow.ArrowException, OSError, KeyError, ValueError, msgspec.MsgspecError) as error:
        message = f"invalid file of a day: {' '.join(str(error).split())[:200]}"
        raise archive_stores.ArchiveError(message) from error


def _decode_rows(rows: Iterator[tuple[str, str, bytes]]) -> DayFacts:
    found = DayFacts({}, {}, {}, {}, {}, {}, {}, {})
    for kind, key, content in rows:
        if kind == QUARTER:
            found.quarters.setdefault(key, []).append(decode_interval(content))
        elif kind == BOOTS:
            found.boots[key] = msgspec.msgpack.decode(content, type=dict[str, int])
        else:
            facts = msgspec.msgpack.decode(content, type=_GpuFacts)
            found.nodes[key], found.contested[key] = facts.nodes, facts.contested
            found.models[key], found.layouts[key] = facts.models, facts.layouts
            found.claims[key] = facts.claims
            found.ends.update({(node, key, claim): end_ns for node, claim, end_ns in facts.ends})
    return found
