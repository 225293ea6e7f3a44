"""Old entries move to an archive: every step may be interrupted, and no record is lost or replaced."""

from __future__ import annotations

import asyncio
import shutil
from hashlib import sha256
from itertools import count
from pathlib import Path

import pytest
from entry_archives import (
    KEEP_DAYS,
    STEPS,
    archive_records,
    archived_files,
    archiving,
    full_tiles,
    interrupt_after,
    numbers_of,
    open_log,
    retention_of,
    store_in,
    verified,
    write_archived,
)
from hypothesis import given, strategies as st
from support.audit import KEY, NOON_NS, append_drafts, running_log
from support.examples import fewer_examples

from railscope.audit.merkle import leaf_hash
from railscope.service import run_in_thread
from railscope.settings import SettingsError
from railscope.timestamps import DAY_NS
from railscope_collector.audit.cosignatures import CosignedCheckpoint
from railscope_collector.audit.entry_retention import open_entry_archive
from railscope_collector.audit.tiles import Tiles
from railscope_collector.audit.verification import verify_log
from railscope_collector.config import ArchiveSettings, AuditSettings, CollectorSettings


def test_old_entries_are_archived_recorded_and_deleted(tmp_path: Path) -> None:
    write_archived(tmp_path)
    assert full_tiles(tmp_path) == []
    first, second = archived_files(tmp_path)
    genesis = leaf_hash(Tiles(tmp_path / "log", 601, store_in(tmp_path)).record(0)).hex()
    assert {first.parent, second.parent} == {tmp_path / "archive" / "audit" / genesis}
    (record,) = archive_records(tmp_path)
    assert record.data == {
        "first": 0,
        "records": 512,
        "sha256": sha256(first.read_bytes() + second.read_bytes()).hexdigest(),
        "archive": str(tmp_path / "archive"),
    }
    assert numbers_of(tmp_path) == list(range(600))


async def test_entries_that_are_not_old_or_not_signed_or_not_cosigned_stay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with archiving(tmp_path, 300) as retention:
        log = retention.audit
        await append_drafts(log, range(300, 600))
        retention.wall_ns = lambda: NOON_NS + 511 + KEEP_DAYS * DAY_NS
        assert log.signed.size == 300
        retention.required_witnesses = lambda: 2
        note = log.publisher.note
        log.witnesses.put("n1", CosignedCheckpoint(note, "key"))
        assert not await retention.attempt()
        assert not await retention.attempt()
        assert (retention.archived, retention.is_waiting) == (0, True), "one of two witnesses"
        assert capsys.readouterr().out.count("audit_archive_postponed") == 1
        log.witnesses.put("n2", CosignedCheckpoint(note, "key"))
        await retention.attempt()
        assert retention.archived == 256, "the second tile is not signed"
        await log.sign()
        await retention.attempt()
        assert retention.archived == 256, "the second tile is not cosigned"
        retention.required_witnesses = lambda: 0
        retention.wall_ns = lambda: NOON_NS + 510 + KEEP_DAYS * DAY_NS
        await retention.attempt()
        assert retention.archived == 256, "the newest record of the second tile is not old"
        retention.wall_ns = lambda: NOON_NS + 511 + KEEP_DAYS * DAY_NS
        await retention.attempt()
        assert retention.archived == 512


@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("step", STEPS)
def test_a_round_interrupted_after_any_step_is_continued(
    tmp_path: Path, step: str, times: int
) -> None:
    async def interrupted() -> None:
        async with archiving(tmp_path, 600) as retention:
            retention.after_step = interrupt_after(step, times)
            await retention.attempt()
            assert ("KilledError" in retention.problem) == (
                times == 1 or step not in {"recorded", "signed"}
            )
            # What is on the disk at this point is what a killed collector leaves behind.
            shutil.copytree(tmp_path / "log", tmp_path / "killed" / "log")
            shutil.copytree(tmp_path / "archive", tmp_path / "killed" / "archive")
            retention.after_step = lambda _step: None
            assert not await retention.attempt(), "the same process continues, too"
            assert (retention.archived, retention.problem) == (512, "")

    asyncio.run(interrupted())
    assert numbers_of(tmp_path) == list(range(600))
    assert len(archive_records(tmp_path)) == 1
    killed = tmp_path / "killed"
    verified(killed)
    write_archived(killed, 0, "b1")
    assert numbers_of(killed) == list(range(600))
    assert full_tiles(killed) == []
    assert len(archived_files(killed)) == 2


async def test_a_file_that_another_program_created_stops_archiving(tmp_path: Path) -> None:
    async with archiving(tmp_path, 300) as retention:
        name, _ = Tiles(tmp_path / "log", 300).archive_name(0)
        store_in(tmp_path).create(name, b"something else")
        await retention.attempt()
        assert "does not contain what was written; fix: check the archive" in retention.problem
        assert full_tiles(tmp_path) == ["000"]
        (tmp_path / "archive" / name).unlink()
        await retention.attempt()
        assert retention.archived == 256


def test_altered_entries_are_not_archived(tmp_path: Path) -> None:
    async def archive() -> str:
        async with archiving(tmp_path, 300) as retention:
            tile = tmp_path / "log" / "tile" / "entries" / "000"
            tile.write_bytes(tile.read_bytes().replace(b"node-1", b"node-7", 1))
            await retention.attempt()
            return retention.problem

    assert "records 0 to 255 do not match the signed root" in asyncio.run(archive())
    assert archived_files(tmp_path) == []


def test_a_setting_without_an_archive_is_invalid(tmp_path: Path) -> None:
    kept = AuditSettings(keep_entries_days=30)
    with pytest.raises(
        SettingsError, match=r"audit\.keep_entries_days = 30.*fix: set archive\.url"
    ):
        open_entry_archive(CollectorSettings(audit=kept))
    settings = CollectorSettings(audit=kept, archive=ArchiveSettings(url=str(tmp_path)))
    assert open_entry_archive(settings) is not None
    assert open_entry_archive(CollectorSettings()) is None


class ArchivedLog:
    """A log and its archive under any order of events; what was acknowledged must stay."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.acknowledged = 0
        self.boots = count()

    async def live(self, events: list[str]) -> None:
        """One run of the collector, which ends at once if it is killed."""
        boot = f"b{next(self.boots)}"
        async with running_log(open_log(self.directory, boot)) as log:
            retention = retention_of(log)
            retention.max_bundles = 2
            for event in events:
                if event == "append":
                    await append_drafts(log, range(self.acknowledged, self.acknowledged + 150))
                    self.acknowledged += 150
                elif event == "sign":
                    await log.sign()
                elif event == "archive":
                    await retention.attempt()
                    assert retention.problem == ""
                elif event == "lose archive":
                    (self.directory / "archive").rename(self.directory / "away")
                    await retention.attempt()
                    (self.directory / "away").rename(self.directory / "archive")
                elif event == "verify":
                    await run_in_thread(verified, self.directory)
                else:
                    retention.after_step = interrupt_after(event)
                    await retention.attempt()
                    if "KilledError" in retention.problem:
                        break
                    retention.after_step = lambda _step: None
            copy = self.directory / "copy"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(self.directory / "log", copy)
        # The log as it was when the collector was killed, not as it was when it stopped.
        shutil.rmtree(self.directory / "log")
        copy.rename(self.directory / "log")

    def check(self) -> None:
        found = verified(self.directory)
        assert (found.unchecked, found.findings) == (0, ())
        local = len(full_tiles(self.directory))
        full = found.checkpoint.tree.size // 256
        unread = verify_log(self.directory / "log", KEY.public)
        assert (unread.unchecked, unread.findings) == (256 * (full - local), ())


@fewer_examples(25)
@given(
    st.lists(
        st.lists(
            st.sampled_from(
                ("append", "append", "sign", "archive", "lose archive", "verify", *STEPS)
            ),
            max_size=8,
        ),
        max_size=4,
    )
)
def test_any_order_of_events_keeps_every_record(
    tmp_path_factory: pytest.TempPathFactory, runs: list[list[str]]
) -> None:
    directory = tmp_path_factory.mktemp("any")
    try:
        one = ArchivedLog(directory)
        for events in runs:
            asyncio.run(one.live(["append", "sign", *events, "sign"]))
            one.check()
        asyncio.run(one.live(["append", "sign", "archive", "archive", "archive", "sign"]))
        one.check()

        async def stop() -> None:
            async with running_log(open_log(directory, "last")):
                pass

        asyncio.run(stop())
        assert numbers_of(directory) == list(range(one.acknowledged))
    finally:
        shutil.rmtree(directory)
