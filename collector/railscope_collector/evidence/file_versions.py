"""Versions of administrators' files in the database: the newest of each kind counts. All calls block, and raise UnusableLedgerError."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, NamedTuple

import sqlalchemy as sa
import structlog

from railscope.timestamps import FOREVER_NS
from railscope_collector.evidence import evidence_records, fact_store
from railscope_collector.files import (
    calendar_file,
    claims_file,
    inventory_file,
    retirements_file,
    tenants_file,
)
from railscope_collector.ledger import audit_outbox, schema, transactions
from railscope_collector.ledger.database import Database

log = structlog.get_logger(__name__)

file_versions = sa.Table(
    "evidence_file",
    schema.metadata,
    *schema.key_texts("kind"),
    *schema.key_numbers("recorded_ns"),
    *schema.key_texts("digest"),
    *schema.texts("content"),
)
schema.make_append_only(file_versions)


@dataclass(frozen=True, slots=True)
class AdministratorInputs:
    """Administrators' files that metering reads."""

    claims: claims_file.FileClaims = field(default_factory=claims_file.FileClaims)
    tenants: tenants_file.TenantMappings = field(default_factory=tenants_file.TenantMappings)
    calendar: calendar_file.Calendar = field(default_factory=calendar_file.Calendar)
    retired: retirements_file.RetiredGpus = field(default_factory=retirements_file.RetiredGpus)
    inventory: inventory_file.DeviceInventory = field(
        default_factory=inventory_file.DeviceInventory
    )
    """An inventory without rows counts as none."""


PARSERS: dict[str, Callable[[str], Any]] = {
    "claims": claims_file.parse_claims,
    "tenants": tenants_file.parse_tenants,
    "calendar": calendar_file.parse_calendar,
    "retired": retirements_file.parse_retirements,
    "inventory": inventory_file.parse_inventory,
}
"""Parser of each kind of file that metering depends on."""


class FileDifference(NamedTuple):
    """Node, GPU (empty for any) and time of a difference between two versions of a file."""

    node: str
    gpu: str
    start_ns: int
    end_ns: int


class FileStore:
    """Files of all collectors of a database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._parsed: dict[str, tuple[int, Any]] = {}
        """Version of each kind that was parsed last, by the time at which it was recorded, and its content."""

    def write(self, kind: str, text: str, wall_ns: Callable[[], int], days: range) -> bool:
        """Add a version of a file unless it is the newest already, and mark the days of the window that it changes."""
        digest = sha256(text.encode()).hexdigest()
        with self._database.transaction(writes=True) as connection:
            transactions.limit_idle_time(connection)
            newest, recorded_ns = _newest(connection, kind), wall_ns()
            if newest and newest.digest == digest:
                return False
            if newest:
                # Later than the newest version, whatever the clock: the order of versions decides which one counts.
                recorded_ns = max(recorded_ns, newest.recorded_ns + 1)
            before = newest.content if newest else ""
            version = evidence_records.FileVersion(kind, text, before, digest, recorded_ns)
            row = {"kind": kind, "recorded_ns": recorded_ns, "digest": digest, "content": text}
            connection.execute(file_versions.insert().values(row))
            for name, draft in version.drafts():
                audit_outbox.put_record(connection, name, draft)
            for each in find_differences(kind, before, text):
                fact_store.mark_difference(connection, each, days)
        return True

    def read_all(self) -> AdministratorInputs:
        """Return the newest version of each file."""
        with self._database.transaction() as connection:
            return self.read_in(connection)

    def read_in(self, connection: sa.Connection) -> AdministratorInputs:
        """Return the newest version of each file in a transaction; equal objects for equal versions."""
        newest = sa.func.max(file_versions.c.recorded_ns)
        query = sa.select(file_versions.c.kind, newest).group_by(file_versions.c.kind)
        found = {kind: ns for kind, ns in connection.execute(query) if kind in PARSERS}
        for kind, recorded_ns in found.items():
            if self._parsed.get(kind, (0, None))[0] != recorded_ns and (
                row := _newest(connection, kind)
            ):
                self._parsed[kind] = row.recorded_ns, PARSERS[kind](row.content)
        return AdministratorInputs(**{kind: self._parsed[kind][1] for kind in found})

    def read(self, kind: str) -> str | None:
        """Return the newest version of one file; None if none was ever stored."""
        with self._database.transaction() as connection:
            row = _newest(connection, kind)
        return row.content if row else None

    def record_problems(self, problems: Sequence[evidence_records.EvidenceProblem]) -> None:
        """Put problems of the evidence into the outbox of the audit log, each once."""
        if not problems:
            return
        with self._database.transaction(writes=True) as connection:
            for problem in problems:
                try:
                    audit_outbox.put_record(connection, problem.id, problem.draft())
                # One problem that cannot be recorded, such as one with an invalid name, must not withhold the others.
                except audit_outbox.OutboxError as error:
                    kind, gpu = problem.kind, problem.gpu
                    log.error(
                        "evidence_problem_write_failed", kind=kind, gpu=gpu, problem=str(error)
                    )


def _newest(connection: sa.Connection, kind: str) -> sa.Row[Any] | None:
    newest_first = file_versions.c.recorded_ns.desc()
    query = sa.select(file_versions).where(file_versions.c.kind == kind)
    return connection.execute(query.order_by(newest_first).limit(1)).first()


def find_differences(kind: str, before: str, after: str) -> list[FileDifference]:
    """Return the differences between two versions of a file."""
    if kind not in PARSERS:
        return []
    entries = [set(PARSERS[kind](text)) if text else set() for text in (before, after)]
    different = entries[0] ^ entries[1]
    if kind == "retired":
        rows = {FileDifference("", each.gpu, each.start_ns, each.end_ns) for each in different}
        return sorted(rows)
    if kind == "inventory":
        if not all(entries) and different:
            # Without rows, all nodes are in service at any time: the first row or the last one changes all others.
            return [FileDifference("", "", 0, FOREVER_NS)]
        return sorted(
            {FileDifference(each.node, "", each.start_ns, each.end_ns) for each in different}
        )
    if not different:
        return []
    start_ns = min(each.start_ns for each in different)
    return [FileDifference("", "", start_ns, max(each.end_ns for each in different))]
