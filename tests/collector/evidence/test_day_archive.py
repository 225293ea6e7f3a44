"""Files of days: what is metered from them, when they are written again, and which facts are deleted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from fact_stores import FILES, HOURS, NOW_NS, finalize, opened, report_gpu, write
from random_cluster import RandomCluster
from support.story import DAY, DAY_SECONDS, NodeReporter, accept, at, gpus_of, temporary_core

from railscope.timestamps import DAY_NS
from railscope_collector import config
from railscope_collector.archive_stores import ArchiveError, DirectoryStore
from railscope_collector.evidence import fact_tables
from railscope_collector.evidence.day_archive import DayArchive
from railscope_collector.evidence.day_metering import DayMeter
from railscope_collector.evidence.fact_store import FactStore
from railscope_collector.evidence.node_intervals import EvidenceInterval
from railscope_collector.finalization.day_retention import DayRetention
from railscope_collector.ledger import day_documents
from railscope_collector.ledger.database import UnusableLedgerError

LATER_NS = NOW_NS + DAY_NS


@pytest.fixture
def store(url: str) -> Iterator[FactStore]:
    with opened(url) as found:
        yield found


@pytest.fixture
def archive(store: FactStore, tmp_path: Path) -> DayArchive:
    (tmp_path / "archive").mkdir()
    return DayArchive(store, DirectoryStore(tmp_path / "archive"))


def count_rows(store: FactStore, table: sa.Table) -> int:
    with store.database.transaction() as connection:
        return connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(1, 12))]
)
def test_days_are_the_same_from_their_files_and_later_ones_without_the_facts_of_closed_days(
    store: FactStore, archive: DayArchive, seed: int
):
    cluster = RandomCluster(seed, days=3)
    days = range(DAY, DAY + cluster.days)
    write(store, cluster.facts(), days.stop)
    finalize(store, days)
    assert list(archive.write_due(days.stop, NOW_NS))
    before = count_rows(store, fact_tables.quarters), count_rows(store, fact_tables.claims)
    assert sum(archive.close_days(DAY + 2, NOW_NS))
    after = count_rows(store, fact_tables.quarters), count_rows(store, fact_tables.claims)
    assert count_rows(store, fact_tables.claim_spans) <= after[1]
    assert 0 < after[0] < before[0]
    assert 0 < after[1] < before[1]
    results = [archive.recompute_day(day, FILES) for day in days]
    assert [result.problems for result in results] == [[], [], []]
    assert all(result.equal for result in results)
    with store.database.transaction() as connection:
        numbers = day_documents.newest_numbers(connection, range(DAY + 2, days.stop))
        for revision in day_documents.read_revisions(connection, numbers):
            gpu, day = revision.key
            assert (
                DayMeter.of_facts(day, store.read_day(connection, [gpu], day), FILES).meter(gpu)
                == revision.day
            )


def test_a_file_is_written_again_only_if_its_day_was_revised(store: FactStore, archive: DayArchive):
    facts = report_gpu([HOURS, 5 * HOURS, 9 * HOURS, DAY_SECONDS + HOURS])
    late = [fact for fact in facts if isinstance(fact, EvidenceInterval)][1:2]
    write(store, [fact for fact in facts if fact not in late], DAY + 2)
    finalize(store, range(DAY, DAY + 2))
    (first, second) = archive.write_due(DAY + 2, LATER_NS)
    assert list(archive.write_due(DAY + 2, LATER_NS)) == []
    write(store, late, DAY + 2)
    finalize(store, range(DAY, DAY + 2), LATER_NS + DAY_NS)
    (problem,) = archive.recompute_day(DAY, FILES).problems
    assert "revised" in problem
    (again,) = archive.write_due(DAY + 2, LATER_NS + 2 * DAY_NS)
    assert again.day == first.day
    assert again.sha256 != first.sha256
    assert archive.files(range(DAY, DAY + 2)) == [again, second]
    assert archive.recompute_day(DAY, FILES).problems == []


def test_facts_are_not_deleted_without_a_final_file(
    store: FactStore, archive: DayArchive, tmp_path: Path
):
    write(store, report_gpu([HOURS, DAY_SECONDS + HOURS]), DAY + 2)
    finalize(store, range(DAY, DAY + 2))
    with (
        pytest.raises(UnusableLedgerError, match="append-only"),
        store.database.transaction(writes=True) as connection,
    ):
        connection.execute(sa.delete(fact_tables.quarters))
    (file, _) = archive.write_due(DAY + 2, NOW_NS)
    path = tmp_path / "archive" / file.name
    path.chmod(0o640)
    path.write_bytes(b"x" * file.size_bytes)
    count = count_rows(store, fact_tables.quarters)
    with pytest.raises(ArchiveError, match="not what was written"):
        list(archive.close_days(DAY + 2, NOW_NS))
    assert count_rows(store, fact_tables.quarters) == count
    with pytest.raises(ArchiveError, match="not what was written"):
        archive.recompute_day(DAY, FILES)


def test_a_closed_day_is_never_written_again_from_the_facts_that_are_left(
    store: FactStore, archive: DayArchive
):
    write(store, report_gpu([HOURS, 5 * HOURS, DAY_SECONDS + HOURS]), DAY + 2)
    finalize(store, range(DAY, DAY + 2))
    list(archive.close_days(DAY + 1, NOW_NS))
    closed = archive.files(range(DAY, DAY + 1))
    assert [file.day for file in archive.write_due(DAY + 2, LATER_NS)] == [DAY + 1]
    assert archive.files(range(DAY, DAY + 1)) == closed
    assert archive.recompute_day(DAY, FILES).problems == []


def test_each_pod_has_its_own_file(store: FactStore, tmp_path: Path):
    archive = DayArchive(store, DirectoryStore(tmp_path), re.compile("(?P<pod>.)-.*"))
    core = temporary_core()
    for name, gpu in (("a-1", "GPU-0"), ("b-1", "GPU-1")):
        node = NodeReporter(name, f"boot of {name}", booted_at=0)
        accept(core, [node.record(node.frames(gpus_of(gpu), range(HOURS, HOURS + 600, 30)))])
    write(store, [kept.interval for kept in core.evidence.quarters.by_key.values()], DAY + 1)
    finalize(store, range(DAY, DAY + 1))
    assert [file.pod for file in archive.write_due(DAY + 1, NOW_NS)] == ["a", "b"]
    result = archive.recompute_day(DAY, FILES, "b-1")
    assert (result.equal, result.problems) == (1, [])


async def test_a_round_archives_days_that_are_due_and_deletes_what_no_open_day_reads(
    store: FactStore, tmp_path: Path
):
    write(store, report_gpu([HOURS, 5 * HOURS, DAY_SECONDS + HOURS]), DAY + 2)
    finalize(store, range(DAY, DAY + 2), at(2 * DAY_SECONDS))
    settings = config.CollectorSettings(
        archive=config.ArchiveSettings(
            url=str(tmp_path / "archive"), archive_after_days=1, delete_after_days=1
        ),
        metering=config.MeteringSettings(max_revision_age_days=0),
    )
    retention = DayRetention(settings, lambda: store, wall_ns=lambda: at(3 * DAY_SECONDS))
    # The directory may be a mount point: nothing is deleted while it is missing.
    assert not await retention.attempt()
    assert "expected a directory" in retention.problem
    assert (retention.archived, retention.deleted) == (0, 0)
    (tmp_path / "archive").mkdir()
    assert await retention.attempt()
    assert retention.archived == 2
    assert retention.deleted
    assert await retention.attempt()
    assert retention.archived == 2
    retention.close()
