"""An archived day can be computed again from the archive alone, without the claims of the database."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from archiving_site import METERING, NOW, ArchivingCollector, reported
from sqlalchemy import delete
from support.audit import without_triggers
from support.command_line import run
from support.finalizing import FinalizingCollector
from support.story import DAY, DAY_SECONDS, NodeReporter, at

from railscope.timestamps import format_timestamp
from railscope_collector.evidence import claim_archive, evidence_tables
from railscope_collector.evidence.evidence_archive import CLAIMS
from railscope_collector.finalization import archived_days


def lose_claims(archiving: ArchivingCollector) -> None:
    """Delete everything from the database that a day is computed from, as an administrator of it can."""
    with archiving.database.engine.connect() as connection:
        without_triggers(connection)
        for table in (evidence_tables.evidence_intervals, *claim_archive.TABLES.values()):
            connection.execute(delete(table))
        connection.commit()


def recomputed(archiving: ArchivingCollector, day: int) -> archived_days.RecomputedDay:
    return archived_days.recompute_day(archiving.archive, archiving.site.stores.ledger, day)


def stamp(second: int) -> str:
    return format_timestamp(at(second))


def add_end(archiving: ArchivingCollector, recorded: int = NOW) -> None:
    """Add an end of a claim, as recorded at a second; no ledger day has been computed from it."""
    with archiving.database.transaction(writes=True) as connection:
        end = {"fact": "end", "gpu_uuid": "GPU-0", "node": "n1", "claim_id": "b"}
        end |= {"instant_ns": at(20 * 3600), "recorded_ns": at(recorded)}
        connection.execute(evidence_tables.claim_ends.insert().values(end))


@pytest.mark.thorough
async def test_a_day_that_is_revised_after_its_archive_is_archived_again(url: str, tmp_path: Path):
    metering = msgspec.structs.replace(METERING, max_revision_age_days=30)
    site = FinalizingCollector(tmp_path / "one", url, metering)
    await reported(site, NodeReporter())
    archiving = ArchivingCollector(site, tmp_path / "archive", metering=metering)
    archiving.now += 7200
    assert await archiving.retention.attempt()
    day, second = DAY + 1, DAY_SECONDS + 7200
    site.texts["claims"] = f"tenant,holds,from,to\nred,GPU-0,{stamp(second)},{stamp(second + 60)}\n"
    await site.round(NOW + 9000, everything=True)
    assert recomputed(archiving, day).problems == [
        (
            "GPU-0 on 2026-09-05: revised 2026-09-09T04:30:00Z, archived 2026-09-09T04:00:00Z; "
            "fix: railscope collector archive run"
        )
    ]
    assert recomputed(archiving, day + 1).equal == 1
    files = len(archiving.files(CLAIMS))
    archiving.now = NOW + 9060
    assert await archiving.retention.attempt()
    assert len(archiving.files(CLAIMS)) == files + 1, "the files of the revised day"
    lose_claims(archiving)
    assert recomputed(archiving, day) == archived_days.RecomputedDay(day, equal=1)
    archiving.check_audit()
    site.finalizer.close()


async def test_the_command_compares_days_with_the_ledger(
    archiving: ArchivingCollector, tmp_path: Path
):
    config = tmp_path / "collector.toml"
    config.write_text(
        f'[ledger]\nurl = "{archiving.site.url}"\n[archive]\nurl = "{archiving.directory}"\n'
    )

    def recompute(*arguments: str, status: int = 0) -> list[str]:
        command = ("collector", "archive", "recompute", *arguments, "--config", str(config))
        outcome = run(*command)
        assert outcome.exit_code == status, outcome.output
        return outcome.output.splitlines()

    assert await archiving.retention.attempt()
    lose_claims(archiving)
    assert recompute("2026-09-04..2026-09-05") == [
        "2026-09-04: 1 GPU-day equal, 0 problems",
        "2026-09-05: 1 GPU-day equal, 0 problems",
    ]
    assert recompute("2026-09-04..2026-09-04", "--node", "n2") == [
        "2026-09-04: 0 GPU-days equal, 0 problems"
    ]
    assert recompute("2026-09-07..2026-09-07", status=1)[1] == (
        "DIFFERS the day after 2026-09-07 is not in the archive yet"
    )


@pytest.mark.thorough
async def test_evidence_of_which_the_ledger_has_no_revision_is_reported(
    archiving: ArchivingCollector,
):
    add_end(archiving)
    assert await archiving.retention.attempt()
    assert recomputed(archiving, DAY).problems == [
        "GPU-0 on 2026-09-04: differs from revision 1 of the ledger"
    ]


async def test_claims_are_archived_again_before_the_intervals_of_their_day_are_deleted(
    archiving: ArchivingCollector, tmp_path: Path
):
    keeping = ArchivingCollector(archiving.site, tmp_path / "archive", delete_after_days=0)
    keeping.now += 7200
    archiving.now += 7260
    assert await keeping.retention.attempt()
    keeping.retention.close()
    files = len(keeping.files(CLAIMS))
    add_end(archiving)
    steps = archiving.retention.steps()
    lines = [line for line in steps if line.startswith("2026-09-04")]
    assert lines[0] == "2026-09-04: claims of 1 nodes archived"
    assert lines[1].endswith("facts deleted")
    assert len(keeping.files(CLAIMS)) == files + 2, "of the two days whose intervals were deleted"
