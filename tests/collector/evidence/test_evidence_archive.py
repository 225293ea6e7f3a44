"""The archive of the evidence: nothing is deleted before its file is verified, and a restored day is the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from archiving_site import DAYS, METERING, NOW, ArchivingCollector
from ledger_days import HOURS
from sqlalchemy import delete, select, text, update
from sqlalchemy.exc import DBAPIError
from structlog.testing import capture_logs
from support.audit import without_triggers
from support.books import PRICES
from support.command_line import run
from support.finalizing import FinalizingCollector, content
from support.metered import revision_of, tile
from support.story import DAY, DAY_SECONDS, NodeReporter, accept, at, gpus_of

from railscope.audit.record import RecordActor
from railscope.timestamps import DAY_NS
from railscope_collector.archive_stores import MAX_FILE_BYTES, ArchiveStore
from railscope_collector.billing import administration
from railscope_collector.billing.period_closing import BillingBooks
from railscope_collector.evidence.claim_archive import ClaimArchive
from railscope_collector.evidence.evidence_contents import ArchivedEvidenceError
from railscope_collector.evidence.evidence_tables import (
    archived_facts,
    archives,
    evidence_intervals,
    gpu_nodes,
    removals,
    reported_claims,
)
from railscope_collector.finalization import day_writes, due_days
from railscope_collector.finalization.evidence_retention import find_first_needed_day
from railscope_collector.ledger import schema
from railscope_collector.ledger.day_metering import join_entries
from railscope_collector.ledger.record_draft import TimedActor
from railscope_collector.metering.units import Period


@pytest.mark.statements
async def test_archived_deleted_and_restored_evidence_is_the_same_and_so_is_the_ledger_day(
    archiving: ArchivingCollector,
):
    before, ledger = (
        archiving.facts(),
        content(archiving.site.stores.ledger, range(DAY, DAY + DAYS)),
    )
    assert await archiving.retention.attempt()
    left = archiving.facts()
    assert left < before
    assert len(before - left) == archiving.retention.deleted > 90
    assert {row[2] // DAY_NS for row in before - left} == {DAY, DAY + 1}  # type: ignore[operator]
    left_archived = archiving.archived_intervals()
    assert len(left_archived) == archiving.retention.archived - archiving.retention.deleted
    with pytest.raises(
        ArchivedEvidenceError,
        match=r"n1 from 2026-09-04\.\.2026-09-05 is only in the archive; fix: railscope collector "
        r"archive restore 2026-09-04\.\.2026-09-05 --node n1",
    ):
        archiving.site.stores.store.evidence("GPU-0", at(0), at(DAY_SECONDS))
    archiving.restore_all()
    assert archiving.facts() == before
    again = archiving.metered_again()
    assert [day.revision for day in again] == [1] * DAYS, "recomputed days add no revision"
    assert content(archiving.site.stores.ledger, range(DAY, DAY + DAYS)) == ledger
    known = archiving.site.stores.store.evidence("GPU-0", at(0), at(DAY_SECONDS)).evidence
    found = revision_of(archiving.site.stores.ledger, "GPU-0", DAY)
    assert found is not None
    assert join_entries(tile(known, at(0), at(DAY_SECONDS))) == found.day.pieces
    files = len(archiving.files(kind=""))
    assert sorted(archiving.records()) == [
        *["evidence.archive"] * files, *["evidence.delete"] * 2, *["evidence.restore"] * 2,
    ]  # fmt: skip
    archiving.check_audit()


@pytest.mark.statements
async def test_the_database_rejects_deletions_of_what_is_not_archived(
    archiving: ArchivingCollector,
):
    engine = archiving.database.engine

    def rejected(statement: object) -> None:
        with engine.connect() as connection:
            with pytest.raises(DBAPIError, match="append-only"):
                connection.execute(statement)  # type: ignore[call-overload]
            connection.rollback()

    rejected(delete(evidence_intervals))
    for table in (reported_claims, gpu_nodes):
        rejected(delete(table))
        rejected(update(table).values({table.c.node: "x"}))
    assert await archiving.retention.attempt()
    known = archiving.archived_intervals()
    with archiving.database.transaction() as connection:
        parts = set(connection.execute(select(evidence_intervals.c.part)).scalars())
    assert known < parts
    rejected(delete(evidence_intervals))
    rejected(delete(evidence_intervals).where(evidence_intervals.c.part == min(parts - known)))
    rejected(delete(archived_facts))
    for table in (evidence_intervals, archived_facts, archives, removals):
        rejected(update(table).values({next(iter(table.primary_key.columns)): None}))
    rejected(delete(archives))
    if engine.dialect.name == "postgresql":
        rejected(text("TRUNCATE evidence_part"))
        rejected(text("TRUNCATE evidence_archived_fact"))
    with archiving.database.transaction(writes=True) as connection:
        one = evidence_intervals.c.part == min(known)
        assert connection.execute(delete(evidence_intervals).where(one)).rowcount == 1


async def test_a_round_that_ends_after_any_step_loses_nothing_and_is_completed(
    archiving: ArchivingCollector,
):
    before = archiving.facts()
    count = steps = 0
    while True:
        retention = archiving.begin()
        for number, _ in enumerate(retention.steps()):
            if number == steps:
                break
        else:
            break
        count += 1
        steps = number if retention.deleted else 0
        stored = {row[0] for row in archiving.facts()}
        for file in archiving.files():
            stored |= {row.part for row in archiving.archive.read(file)}
        assert stored == {row[0] for row in before}
        archiving.check_audit()
        assert count < 100
    archiving.restore_all()
    assert archiving.facts() == before
    assert len({file.name for file in archiving.files()}) == len(archiving.files())


class DamagedStore:
    """A store that fails for files of one day."""

    def __init__(self, store: ArchiveStore, day: str) -> None:
        self._store, self.location, self.probe = store, store.location, store.probe
        self.day, self.reads = f"day={day}/", 0

    def create(self, name: str, content: bytes) -> None:
        if not name.startswith(self.day):
            self._store.create(name, content)

    def read(self, name: str, max_bytes: int = MAX_FILE_BYTES) -> bytes:
        self.reads += 1
        return self._store.read(name, max_bytes)


@pytest.mark.parametrize("is_restarted", [True, False])
async def test_a_file_that_cannot_be_written_stops_no_other_one_and_is_tried_again(
    archiving: ArchivingCollector, *, is_restarted: bool
):
    before, retention = archiving.facts(), archiving.retention
    store = retention._store  # noqa: SLF001 - replaced by one with a fault
    assert store is not None
    retention._store = DamagedStore(store, "2026-09-05")  # noqa: SLF001 - as above
    with capture_logs() as lines:
        assert not await retention.attempt()
        assert not await retention.attempt()
    failed = [line["problem"] for line in lines if line["event"] == "evidence_archive_failed"]
    assert len(failed) == 1
    assert "missing file" in failed[0]
    assert "day=2026-09-05" in failed[0]
    assert {file.day - DAY for file in archiving.files()} == {0, 2, 3}
    assert {row[2] // DAY_NS for row in before - archiving.facts()} == {DAY}  # type: ignore[operator]
    unarchived = {cell.metric.name: cell.value for cell in retention.cells()}
    assert unarchived["railscope_collector_evidence_unarchived_days"] == 3
    assert retention.failures == 2
    retention.close()
    if is_restarted:
        archiving.retention = archiving.begin()
    else:
        retention._store = store  # noqa: SLF001 - repaired
    assert await archiving.retention.attempt()
    assert {file.day - DAY for file in archiving.files()} == {0, 1, 2, 3}
    assert {row[2] // DAY_NS for row in before - archiving.facts()} == {DAY, DAY + 1}  # type: ignore[operator]
    claims = ClaimArchive(archiving.archive)
    assert all(claims.is_complete(DAY + day) for day in range(4))
    archiving.restore_all()
    assert archiving.facts() == before
    archiving.check_audit()


async def test_the_commands_list_verify_and_restore_and_bills_name_what_is_missing(
    archiving: ArchivingCollector, tmp_path: Path
):
    config = tmp_path / "collector.toml"
    config.write_text(
        f'state_directory = "{tmp_path}/state"\n[ledger]\nurl = "{archiving.site.url}"\n'
        f'[archive]\nurl = "{archiving.directory}"\narchive_after_days = 1\n'
        "[metering]\nmax_revision_age_days = 1\n"
    )

    def archive(*arguments: str, status: int = 0) -> str:
        outcome = run("collector", "archive", *arguments, "--config", str(config))
        assert outcome.exit_code == status, outcome.output
        return outcome.output

    days = "2026-09-04..2026-09-05"
    assert archive("list") == "no file\n"
    ran = archive("run")
    assert "2026-09-04: 97 facts archived" in ran
    assert ran.splitlines()[-1].endswith("facts archived, 0 deleted")
    assert archive("run").splitlines() == ["0 facts archived, 0 deleted"]
    before = archiving.facts()
    assert await archiving.retention.attempt()
    by = TimedActor(RecordActor("operator", "ada"), at(NOW))
    books = BillingBooks.for_ledger(archiving.site.stores.ledger)
    administration.publish(books, PRICES.replace('"h100"', '"h100-80gb-hbm3"'), "prices.toml", by)
    listed = archive("list", days).splitlines()
    assert listed[0].split() == [
        "day",
        "pod",
        "kind",
        "nodes",
        "facts",
        "bytes",
        "deleted",
        "from",
        "file",
    ]
    assert [line.split()[:5] for line in listed[1:]] == [
        ["2026-09-04", "all", "intervals", "1", "97"],
        ["2026-09-04", "all", "claims", "1", "1"],
        ["2026-09-04", "all", "claims", "1", "1"],
        ["2026-09-05", "all", "intervals", "1", "96"],
        ["2026-09-05", "all", "claims", "1", "1"],
        ["2026-09-05", "all", "claims", "1", "1"],
    ]
    assert all("1 node" in line for line in (listed[1], listed[4]))
    reconciled = run("bill", "reconcile", days, "--config", str(config))
    assert reconciled.exit_code == 1
    assert f"railscope collector archive restore {days} --node n1" in reconciled.output
    assert "6 files compared, 0 broken" in archive("verify", days)
    assert archive("restore", days, "--node", "n2").startswith("nothing to restore: ")
    file = archiving.directory / archiving.files()[0].name
    content_ = file.read_bytes()
    file.chmod(0o640)
    file.write_bytes(content_[:-1] + b"x")
    assert "BROKEN" in archive("verify", days, status=1)
    assert "was changed: SHA-256" in archive("restore", days, status=1)
    file.write_bytes(content_)
    assert archive("restore", days, "--as", "ada").count("restored day=2026-09-0") == 2
    assert archiving.facts() == before
    reconciled = run("bill", "reconcile", days, "--config", str(config))
    assert "R7" in reconciled.output
    assert "DIFFERS" not in reconciled.output
    archiving.check_audit()


@pytest.mark.thorough
async def test_evidence_around_days_that_are_not_in_the_ledger_is_kept(url: str, tmp_path: Path):
    """Of their nodes only, and as far as their metering may read it; all other evidence is deleted."""
    site = FinalizingCollector(tmp_path / "one", url, METERING)
    nodes = [NodeReporter(), NodeReporter("n2", "boot-2", "run-2"), NodeReporter("n3", "boot-3")]
    for number, node in enumerate(nodes):
        seconds = range(0, 9 * DAY_SECONDS, 300)
        accept(site.core, node.envelopes_of(gpus_of(f"GPU-{number}"), seconds, each=200))
    now = 9 * DAY_SECONDS + 2 * HOURS
    await site.round(now, everything=True)
    while len(site.stores.ledger.newest(DAY, DAY + 9)) < 3 * 9:  # a round may outlast the lease
        await site.round(now)
    archiving = ArchivingCollector(site, tmp_path / "archive")
    archiving.now = now
    with archiving.database.transaction(writes=True) as connection:
        without_triggers(connection)
        for table in (schema.entries, schema.shares, schema.claims, schema.revisions):
            is_missing = (table.c.gpu_uuid == "GPU-0") & (table.c.day == DAY + 2)
            late = (table.c.gpu_uuid == "GPU-2") & (table.c.day >= DAY + 5)
            connection.execute(table.delete().where(is_missing | late))
    with capture_logs() as lines:
        for _ in range(2):
            assert await archiving.retention.attempt()
    kept = [line for line in lines if line["event"] == "missing_days_found"]
    assert [(line["count"], line["first"]) for line in kept] == [(3, "GPU-0 on 2026-09-06")]
    left: dict[str, set[int]] = {}
    for row in archiving.facts():
        left.setdefault(str(row[1]), set()).add(row[2] // DAY_NS - DAY)  # type: ignore[operator]
    assert left == {"n1": {0, 1, 2, 3, 4, 6, 7, 8}, "n2": {0, 6, 7, 8}, "n3": {0, 3, 4, 5, 6, 7, 8}}
    jobs = {"GPU-0": (DAY + 2,), "GPU-2": tuple(range(DAY + 5, DAY + 9))}
    due = [due_days.DueDays(*job) for job in jobs.items()]
    homes = site.stores.store.homes()
    groups = due_days.group_due(due, homes)
    written = [
        day_writes.write_days(site.stores, homes, group, {}, at(now)).days for group in groups
    ]
    assert sum(map(len, written)) == 5
    assert await archiving.retention.attempt()
    assert {row[2] // DAY_NS - DAY for row in archiving.facts()} <= {0, 6, 7, 8}  # type: ignore[operator]
    site.finalizer.close()


async def test_evidence_of_days_that_are_not_closed_is_not_deleted(archiving: ArchivingCollector):
    later = at(NOW + 100 * DAY_SECONDS)
    books = BillingBooks.for_ledger(archiving.site.stores.ledger)
    by = TimedActor(RecordActor("operator", "ada"), later)

    def needed() -> int:
        return find_first_needed_day(archiving.database, METERING, later) - DAY

    assert needed() > DAYS
    administration.publish(books, PRICES.replace('"h100"', '"h100-80gb-hbm3"'), "prices.toml", by)
    assert needed() < 0
    administration.set_opening(books, at(2 * DAY_SECONDS), "the contract begins", by)
    assert needed() == 1
    books.close(Period(at(2 * DAY_SECONDS), at(3 * DAY_SECONDS)), by)
    assert needed() == 2
