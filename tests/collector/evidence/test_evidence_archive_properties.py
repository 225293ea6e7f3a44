"""For any history and any bounds: what was archived, deleted and restored is the same, and never less is used."""

from __future__ import annotations

import tempfile
from pathlib import Path

from fleet_history import fleet_histories, spelled_files
from hypothesis import given, strategies as st
from sqlalchemy import select
from support.examples import fewer_examples
from support.finalizing import FinalizingCollector, content
from support.metered import revision_of, tile
from support.story import DAY, DAY_SECONDS, accept, at

from railscope.timestamps import DAY_NS
from railscope_collector.archive_stores import open_archive_store
from railscope_collector.config import ArchiveSettings, CollectorSettings, MeteringSettings
from railscope_collector.evidence.evidence_archive import EvidenceArchive
from railscope_collector.evidence.evidence_contents import ArchivedEvidenceError
from railscope_collector.evidence.evidence_tables import evidence_intervals
from railscope_collector.finalization import archived_days, day_writes, due_days
from railscope_collector.finalization.evidence_retention import EvidenceRetention
from railscope_collector.ledger.database import Database
from railscope_collector.ledger.day_metering import join_entries

METERING = MeteringSettings(quiet_seconds=60, finalize_delay_seconds=3600, max_revision_age_days=1)
DAYS = range(DAY, DAY + 4)
GROUPS = ((DAY,), (DAY + 1,), (DAY + 2, DAY + 3))
"""Days that the two rounds write together."""
NOW = len(DAYS) * DAY_SECONDS + 7200
PODS = st.sampled_from(["", "(?P<pod>n1)", r"(?P<pod>n\d)", "(?P<pod>rack.*)-.*"])


def facts(database: Database) -> set[tuple[object, ...]]:
    with database.transaction() as connection:
        return {tuple(row) for row in connection.execute(select(evidence_intervals))}


def metered_as_in_the_ledger(site: FinalizingCollector) -> int:
    """Compare each GPU-day with its evidence; return the number of those that are only in the archive."""
    ledger, store = site.stores.ledger, site.stores.store
    missing = 0
    for gpu in store.homes():
        for day in DAYS:
            window = day * DAY_NS, (day + 1) * DAY_NS
            try:
                known = store.evidence(gpu, *window)
            except ArchivedEvidenceError:
                missing += 1
                continue
            found = revision_of(ledger, gpu, day)
            assert join_entries(tile(known.evidence, *window)) == (
                found.day.pieces if found else ()
            )
    return missing


@fewer_examples(25)
@given(
    fleet_histories(),
    spelled_files(),
    st.integers(0, 12),
    PODS,
    st.integers(1, 1 << 14),
    st.lists(st.booleans(), min_size=6, max_size=6),
)
async def test_archived_deleted_and_restored_evidence_gives_the_same_ledger(  # noqa: PLR0913, PLR0917
    story, texts, kept_reports, pods, max_file_bytes, restored
):
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        url = f"sqlite:///{directory / 'ledger.db'}"
        site = FinalizingCollector(directory / "one", url, METERING)
        site.texts = dict(texts)
        accept(site.core, story.envelopes([40]))
        await site.round(DAY_SECONDS + 7200, everything=True)
        await site.round(NOW, everything=True)
        database = site.stores.ledger.database
        before, ledger = facts(database), content(site.stores.ledger, DAYS)
        chosen = ArchiveSettings(
            url=str(directory), archive_after_days=1, delete_after_days=1, pod_pattern=pods
        )
        retention = EvidenceRetention(
            CollectorSettings(archive=chosen, metering=METERING),
            lambda: database,
            wall_ns=lambda: at(NOW),
            kept_reports=kept_reports,
            max_file_bytes=max_file_bytes,
        )
        assert await retention.attempt()
        assert retention.archived == len(before)
        assert len(before - facts(database)) == retention.deleted
        assert bool(metered_as_in_the_ledger(site)) >= (retention.deleted > 0)
        archive = EvidenceArchive(database, open_archive_store(chosen))
        for day in DAYS[:-2]:
            assert not archived_days.recompute_day(archive, site.stores.ledger, day).problems
        files = archive.files(0, 1 << 40)
        for file, is_restored in zip(files, restored, strict=False):
            if is_restored:
                archive.restore(file, at(NOW))
        metered_as_in_the_ledger(site)
        for file in files:
            archive.restore(file, at(NOW))
        assert facts(database) == before
        assert metered_as_in_the_ledger(site) == 0
        homes = site.stores.store.homes()
        for days in GROUPS:
            jobs = [due_days.DueDays(gpu, days) for gpu in sorted(homes)]
            for group in due_days.group_due(jobs, homes):
                day_writes.write_days(site.stores, homes, group, {}, at(NOW))
        assert content(site.stores.ledger, DAYS) == ledger
        site.finalizer.close()
