"""Computation of ledger days from the archive alone, without the evidence of the ledger's database.

The intervals of a day and those around it, and the claims of the day, are read from verified files into a temporary
database, some nodes at a time. Each GPU of the day is metered there, and compared with its newest revision in the ledger.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import sqlalchemy as sa

from railscope.timestamps import DAY_NS, FOREVER_NS, format_timestamp
from railscope_collector import tables
from railscope_collector.billing import period_completeness
from railscope_collector.evidence import (
    claim_archive,
    evidence_archive,
    evidence_contents,
    evidence_store,
    evidence_tables,
)
from railscope_collector.jobs.imported_lists import is_listed_gpu
from railscope_collector.ledger import (
    ledger_store,
    schema,
)
from railscope_collector.ledger.database import Database
from railscope_collector.ledger.day_documents import GpuDay, Revision

_NODES_AT_ONCE = 16
"""The intervals of these nodes, of three days or more, are in the temporary database at once."""
_MARGINS = (1, 16, 64, 256, 1024, 1 << 20)
"""Days around a day whose intervals are read: more where a node did not report, or a GPU is listed far away."""
_RUN = "railscope collector archive run"


@dataclass(slots=True)
class RecomputedDay:
    """Result of one day: its GPUs that are equal, and a problem for each that is not."""

    day: int
    equal: int = 0
    problems: list[str] = field(default_factory=list)


def recompute_day(
    archive: evidence_archive.EvidenceArchive,
    ledger: ledger_store.Ledger,
    day: int,
    node: str = "",
) -> RecomputedDay:
    """Compute the ledger days of all GPUs, or those of a node, again. Blocking.

    Raises ArchiveError, UnusableLedgerError.
    """
    result, name = RecomputedDay(day), evidence_archive.format_day(day)
    files = claim_archive.ClaimArchive(archive)
    if not files.is_complete(day):
        result.problems.append(f"the claims of {name} are not in the archive; fix: {_RUN}")
        return result
    # A day depends on the intervals after it.
    if not files.is_complete(day + 1):
        result.problems.append(f"the day after {name} is not in the archive yet")
        return result
    found = list(_read_claims(archive, day))
    homes: dict[str, set[str]] = defaultdict(set)
    for claims in found:
        for gpu, home in claims.homes:
            homes[gpu].add(home)
    written = {key.gpu: number for key, number in ledger.newest(day, day + 1).items()}
    # GPUs of imported job lists have no evidence of agents.
    gpus = {gpu for gpu in written if not is_listed_gpu(gpu)}
    selected = {gpu for gpu in homes.keys() | gpus if not node or node in homes.get(gpu, ())}
    result.problems += [
        f"{gpu}: no node of it is in the archive of {name}"
        for gpu in sorted(selected - homes.keys())
    ]
    selected &= homes.keys()
    intervals = archive.files(0, FOREVER_NS // DAY_NS, kind=evidence_archive.INTERVALS)
    earlier = archive.files(0, day, kind=evidence_archive.CLAIMS)
    for nodes in _group_nodes({gpu: homes[gpu] for gpu in selected}):
        few = sorted(gpu for gpu in selected if homes[gpu] <= nodes)
        numbers = {GpuDay(gpu, day): written[gpu] for gpu in few if gpu in written}
        revisions = {each.day.gpu: each for each in ledger.revisions(numbers)}
        recomputation = _Recomputation(archive, day, nodes, found, intervals, earlier)
        differing = recomputation.find_differing(few, revisions)
        result.equal += len(few) - len(differing)
        result.problems += [_describe(gpu, name, revisions.get(gpu), archive) for gpu in differing]
    return result


def _read_claims(
    archive: evidence_archive.EvidenceArchive, day: int
) -> Iterator[claim_archive.NodeClaims]:
    for file in archive.files(day, day + 1, kind=evidence_archive.CLAIMS):
        yield from map(claim_archive.decode_row, archive.read(file))


def _group_nodes(homes: Mapping[str, Iterable[str]]) -> Iterator[set[str]]:
    """Divide nodes into groups; the nodes of a GPU are in one group."""
    together: list[set[str]] = []
    for nodes in homes.values():
        joined = set(nodes)
        apart = [group for group in together if not group & joined]
        for group in together:
            if group & joined:
                joined |= group
        together = [*apart, joined]
    waiting: set[str] = set()
    for group in sorted(together, key=min):
        waiting |= group
        if len(waiting) >= _NODES_AT_ONCE:
            yield waiting
            waiting = set()
    if waiting:
        yield waiting


def _describe(
    gpu: str,
    name: str,
    revision: Revision | None,
    archive: evidence_archive.EvidenceArchive,
) -> str:
    """Return a line about a GPU-day that differs."""
    if revision is None:
        return f"{gpu} on {name}: the archive has evidence, and the ledger has no such day"
    day = revision.day.day
    last_ns = max(file.verified_ns for file in archive.files(day, day + 1))
    if revision.recorded_ns > last_ns:
        computed, archived = map(format_timestamp, (revision.recorded_ns, last_ns))
        return f"{gpu} on {name}: revised {computed}, archived {archived}; fix: {_RUN}"
    return f"{gpu} on {name}: differs from revision {revision.number} of the ledger"


@dataclass(slots=True)
class _Recomputation:
    """A day of some nodes."""

    archive: evidence_archive.EvidenceArchive
    day: int
    nodes: set[str]
    claims: list[claim_archive.NodeClaims]
    intervals: list[evidence_archive.EvidenceFile]
    """Files of all days and nodes."""
    earlier_claims: list[evidence_archive.EvidenceFile]
    """Files of earlier days: counters may have increased since a day whose claims have ended."""

    def find_differing(self, gpus: list[str], revisions: Mapping[str, Revision]) -> list[str]:
        """Return the GPUs whose day differs from its revision, or has none."""
        for margin in _MARGINS:
            with self._open(margin) as store:
                evidence = period_completeness.DatabaseEvidence(store)
                try:
                    differing = list(self._compare(evidence, gpus, revisions))
                # A part that is further away is needed: the next margin contains it, at the cost of more files.
                except evidence_contents.ArchivedEvidenceError:
                    if margin == _MARGINS[-1]:
                        raise
                    continue
            if not differing:
                break
        return differing

    def _compare(
        self,
        evidence: period_completeness.DatabaseEvidence,
        gpus: list[str],
        revisions: Mapping[str, Revision],
    ) -> Iterator[str]:
        start_ns, end_ns = self.day * DAY_NS, (self.day + 1) * DAY_NS
        evidence.gpus(start_ns, end_ns)
        for gpu in gpus:
            metered = evidence.evidence(gpu, start_ns, end_ns).meter()
            again = metered.day(self.day)
            revision = revisions.get(gpu)
            if again != revision.day if revision else again.pieces:
                yield gpu

    @contextmanager
    def _open(self, margin: int) -> Iterator[evidence_store.EvidenceStore]:
        """Open a temporary database with the claims of the day and those before it, and the intervals around it.

        Other files of intervals of these nodes are recorded as deleted, so that metering cannot use less than there is.
        """
        days = range(self.day - margin, self.day + margin + 1)
        with tempfile.TemporaryDirectory(prefix="railscope-") as directory:
            url = f"sqlite:///{Path(directory) / 'evidence.sqlite'}"
            database = Database(url, tables.metadata)
            try:
                with database.transaction(writes=True) as connection:
                    for claims in self.claims:
                        if claims.node in {*self.nodes, claim_archive.FILES_NODE}:
                            claims.insert(connection)
                    for claims in self._read_earlier_claims(self.day - margin):
                        claims.insert(connection, claim_archive.CLAIM_TABLES)
                self._insert_intervals(database, days)
                yield evidence_store.EvidenceStore(database)
            finally:
                database.close()

    def _read_earlier_claims(self, first_day: int) -> Iterator[claim_archive.NodeClaims]:
        for file in self.earlier_claims:
            if file.day >= first_day and self.nodes & set(file.nodes):
                rows = (row for row in self.archive.read(file) if row.node in self.nodes)
                yield from map(claim_archive.decode_row, rows)

    def _insert_intervals(self, database: Database, days: range) -> None:
        files = [file for file in self.intervals if self.nodes & set(file.nodes)]
        for file in (file for file in files if file.day in days):
            rows = [row._asdict() for row in self.archive.read(file) if row.node in self.nodes]
            with database.transaction(writes=True) as connection:
                evidence_tables.insert_new_rows(
                    connection, evidence_tables.evidence_intervals, rows
                )
        with database.transaction(writes=True) as connection:
            for few in evidence_tables.group_items([f for f in files if f.day not in days]):
                _insert_removed(connection, few)


def _insert_removed(
    connection: sa.Connection, files: Sequence[evidence_archive.EvidenceFile]
) -> None:
    """Record that the facts of files are not in this database: `check_present` names them."""
    archives, removals = evidence_archive.archives, evidence_archive.removals
    rows = [
        schema.to_row(archives, file, nodes=msgspec.json.encode(file.nodes).decode())
        for file in files
    ]
    connection.execute(archives.insert(), rows)
    removed = [
        {"number": row["number"], "archive": row["number"], "nodes": row["nodes"]} for row in rows
    ]
    action = {"action": evidence_archive.DELETED, "recorded_ns": 0}
    connection.execute(removals.insert(), [row | action for row in removed])
