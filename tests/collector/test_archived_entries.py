"""A running collector whose old audit entries are in an archive: API, console, restart, metrics."""

from __future__ import annotations

import asyncio
from pathlib import Path

from running_collector import RunningCollector, run_collector, settings_in
from support.audit import draft

from railscope.audit.record import decode_audit_record
from railscope.timestamps import DAY_NS
from railscope_collector.access.credentials import digest_token
from railscope_collector.audit.entry_proof import check_proof
from railscope_collector.config import ArchiveSettings, AuditSettings, CollectorSettings
from railscope_collector.http.audit_api import ARCHIVE_UNREADABLE

RECORDS = 300


def archived_settings(directory: Path) -> CollectorSettings:
    (directory / "archive").mkdir(exist_ok=True)
    settings = settings_in(
        directory,
        archive=ArchiveSettings(url=str(directory / "archive")),
        audit=AuditSettings(required_witnesses=0, keep_entries_days=30),
    )
    with (directory / "tokens.toml").open("a") as file:
        file.write(f'[auditors]\nexternal = "{digest_token("token-auditor")}"\n')
    return settings


async def archive_all(one: RunningCollector) -> None:
    """Record, sign and archive some entries, as if they were old."""
    log, retention = one.collector.trail.log, one.collector.audit.archive
    await asyncio.gather(*(log.append(draft(number)) for number in range(RECORDS)))
    await log.sign()
    now_ns = one.collector.clock.now_ns() + 31 * DAY_NS
    retention.now_ns = lambda: now_ns
    assert not await retention.attempt()
    assert (retention.problem, retention.archived) == ("", 256)


async def test_archived_entries_are_served_and_a_missing_archive_is_an_error(
    tmp_path: Path,
) -> None:
    async with run_collector(archived_settings(tmp_path)) as running:
        await archive_all(running)
        page = await running.json("/api/v1/audit?from=250&limit=20", "token-auditor")
        assert [entry["index"] for entry in page["entries"]] == list(range(250, 270))
        status, proof = await running.get("/api/v1/audit/entries/250", "token-auditor")
        record = decode_audit_record(check_proof(proof, running.collector.entries.key))
        assert (status, record.seq) == (200, 250)
        model = await running.json("/audit/250", "token-auditor")
        assert [entry["record"]["seq"] for entry in model["entries"]] == [250]
        metrics = (await running.get("/metrics"))[1]
        assert "railscope_audit_archived_records 256" in metrics
        assert "railscope_audit_archive_failures_total 0" in metrics

        (tmp_path / "archive").rename(tmp_path / "away")
        for path in ("/api/v1/audit?from=250", "/api/v1/audit/entries/3", "/audit/3"):
            status, text = await running.get(path, "token-auditor", "application/json")
            assert (status, ARCHIVE_UNREADABLE in text) == (503, True), path
            assert str(tmp_path) not in text
        for path in (
            "/api/v1/audit?from=256",
            "/api/v1/audit/entries/260",
            "/api/v1/audit/checkpoint",
        ):
            assert (await running.get(path, "token-auditor"))[0] == 200
        assert (await running.get("/api/v1/audit/consistency?old=7", "token-auditor"))[0] == 200
