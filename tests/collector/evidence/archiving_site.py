"""A collector whose evidence is archived, with days of a node in its ledger."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path

import pytest
from ledger_days import HOURS, a_day
from sqlalchemy import func, select
from support.finalizing import FinalizingCollector
from support.story import DAY, DAY_SECONDS, Envelopes, NodeReporter, accept, at, gpus_of

from railscope_collector.audit.ledger_check import compare_ledger, read_outbox_records
from railscope_collector.config import ArchiveSettings, CollectorSettings, MeteringSettings
from railscope_collector.evidence.evidence_archive import INTERVALS, EvidenceArchive, EvidenceFile
from railscope_collector.evidence.evidence_tables import archived_facts, evidence_intervals
from railscope_collector.finalization import accounted_days, day_writes, due_days
from railscope_collector.finalization.evidence_retention import EvidenceRetention
from railscope_collector.ledger.audit_outbox import outbox_rows
from railscope_collector.ledger.database import Database

METERING = MeteringSettings(quiet_seconds=60, finalize_delay_seconds=3600, max_revision_age_days=1)
DAYS = 5
NOW = DAYS * DAY_SECONDS + 2 * HOURS
KEPT = 8
"""Reports of a node that stay: two hours."""


class ArchivingCollector:
    """A collector whose evidence is archived in a directory."""

    def __init__(
        self,
        site: FinalizingCollector,
        directory: Path,
        metering: MeteringSettings = METERING,
        **settings: object,
    ) -> None:
        directory.mkdir(exist_ok=True)
        self.site, self.directory = site, directory
        options = {"archive_after_days": 1, "delete_after_days": 1, **settings}
        self.settings = CollectorSettings(
            archive=ArchiveSettings(url=str(directory), **options),  # type: ignore[arg-type]
            metering=metering,
        )
        self.now = float(NOW)
        self.retention = self.begin()

    @property
    def database(self) -> Database:
        return self.site.stores.ledger.database

    def begin(self) -> EvidenceRetention:
        """A collector after a restart."""
        return EvidenceRetention(
            self.settings,
            lambda: self.database,
            wall_ns=lambda: at(self.now),
            kept_reports=KEPT,
        )

    @property
    def archive(self) -> EvidenceArchive:
        return EvidenceArchive(self.database, self.retention._store)  # noqa: SLF001 - as the commands open it

    def files(self, kind: str = INTERVALS) -> list[EvidenceFile]:
        return self.archive.files(0, 1 << 40, kind=kind)

    def archived_intervals(self) -> set[str]:
        """Names of the intervals in the database that are in a file."""
        with self.database.transaction() as connection:
            part, fact = evidence_intervals.c.part, archived_facts.c.fact
            return set(connection.execute(select(part).where(part == fact)).scalars())

    def facts(self) -> set[tuple[object, ...]]:
        with self.database.transaction() as connection:
            return {tuple(row) for row in connection.execute(select(evidence_intervals))}

    def count(self, table: object) -> int:
        with self.database.transaction() as connection:
            return connection.execute(select(func.count()).select_from(table)).scalar_one()  # type: ignore[arg-type]

    def records(self) -> list[str]:
        with self.database.transaction() as connection:
            types = connection.execute(select(outbox_rows.c.type)).scalars()
            return [kind for kind in types if kind.startswith("evidence.")]

    def restore_all(self) -> None:
        for file in self.files():
            self.archive.restore(file, at(self.now))

    def metered_again(self) -> list[accounted_days.WrittenDay]:
        """Meter all days again from the evidence, and write them."""
        homes = self.site.stores.store.homes()
        jobs = [due_days.DueDays(gpu, tuple(range(DAY, DAY + DAYS))) for gpu in sorted(homes)]
        return day_writes.write_days(self.site.stores, homes, jobs, {}, at(self.now)).days

    def check_audit(self) -> None:
        """Compare the database with its records in the audit log's outbox."""
        with self.database.transaction() as connection:
            compared = compare_ledger(connection, read_outbox_records(connection))
        assert compared.differences == []


async def reported(site: FinalizingCollector, *nodes: NodeReporter) -> None:
    """Days of nodes with a GPU each, in the ledger."""
    for number, node in enumerate(nodes):
        gpu = gpus_of(f"GPU-{number}")
        accept(site.core, a_day(node) if number == 0 else [])
        first = DAY_SECONDS + HOURS if number == 0 else 0
        seconds = range(first, NOW, 30)
        accept(site.core, node.envelopes_of(gpu, seconds, each=200))
    await site.round(NOW, everything=True)


@cache
def days_of_a_node() -> Envelopes:
    """Five days of a node with a GPU: a quarter of the time of most tests, which share it."""
    node = NodeReporter()
    first_day = a_day(node, step=300)
    further = node.envelopes_of(gpus_of("GPU-0"), range(DAY_SECONDS + HOURS, NOW, 300), each=20)
    return [*first_day, *further]


@pytest.fixture
async def archiving(url: str, tmp_path: Path) -> AsyncIterator[ArchivingCollector]:
    """Five days of a node; its evidence can be archived."""
    site = FinalizingCollector(tmp_path / "one", url, METERING)
    accept(site.core, days_of_a_node())
    await site.round(NOW, everything=True)
    yield ArchivingCollector(site, tmp_path / "archive")
    site.finalizer.close()
