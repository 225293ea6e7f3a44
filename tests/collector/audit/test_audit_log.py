"""The writer of the audit log: its guarantees while it runs, after a crash and after manipulation."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from support.audit import KEY, NOON_NS, append_drafts, audit_log, draft, running_log, write_log

from railscope.audit.log_checkpoint import read_checkpoint
from railscope.audit.merkle import CompactRange, TreeHead, leaf_hash
from railscope.audit.record import RecordError, decode_audit_record
from railscope_collector.audit import LogWriteError
from railscope_collector.audit.audit_trail import AuditTrail
from railscope_collector.audit.tiles import (
    Tiles,
    tile_name,
)
from railscope_collector.audit.verification import verify_log
from railscope_collector.audit.verify_outcome import LogVerificationError, VerifyOutcome


def stored(directory: Path, size: int) -> list[bytes]:
    tiles = Tiles(directory, size)
    return [tiles.record(sequence) for sequence in range(size)]


def root_over(records: list[bytes]) -> bytes:
    tree = CompactRange()
    for raw in records:
        tree.append(leaf_hash(raw))
    return tree.root


async def test_records_get_their_numbers_in_order_and_are_signed(tmp_path: Path) -> None:
    async with running_log(audit_log(tmp_path)) as log:
        assert await append_drafts(log, range(300)) == list(range(300))
        assert log.signed.size == 0
        await log.sign()
        assert (log.signed.size, log.size) == (300, 300)
    records = stored(tmp_path, 300)
    assert [decode_audit_record(raw).seq for raw in records] == list(range(300))
    assert [decode_audit_record(raw).src.n for raw in records] == list(range(300))
    signed = read_checkpoint((tmp_path / "checkpoint").read_text(), KEY.public).tree
    assert signed == TreeHead(300, root_over(records))


@given(groups=st.lists(st.integers(1, 9) | st.integers(1, 300), min_size=1, max_size=3))
def test_the_root_does_not_depend_on_how_records_came_together(
    tmp_path_factory: pytest.TempPathFactory, groups: list[int]
) -> None:
    total = sum(groups)
    in_groups = write_log(tmp_path_factory.mktemp("groups"), groups)
    at_once = write_log(tmp_path_factory.mktemp("once"), [total])
    assert in_groups == at_once


async def test_a_record_that_cannot_be_one_fails_alone(tmp_path: Path) -> None:
    async with running_log(audit_log(tmp_path)) as log:
        wrong = draft(1, kind="tenancy.unheard_of")
        answers = await asyncio.gather(
            log.append(draft(0)), log.append(wrong), log.append(draft(2)), return_exceptions=True
        )
        assert answers[0::2] == [0, 1]
        assert isinstance(answers[1], RecordError)
    assert not verify_log(tmp_path, KEY.public).findings


async def test_a_second_writer_is_rejected(tmp_path: Path) -> None:
    async with running_log(audit_log(tmp_path)):
        with pytest.raises(LogWriteError, match="another collector writes"):
            audit_log(tmp_path).open()


@pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.thorough)])
async def test_what_is_not_signed_survives_a_crash_at_any_byte(tmp_path: Path, every: int) -> None:
    """T5: a crash at any point of a write loses no acknowledged record."""
    log = audit_log(tmp_path / "log")
    ends: list[tuple[int, int]] = [(0, 0)]
    stated: dict[int, bytes] = {}
    async with running_log(log):
        (journal,) = (tmp_path / "log" / "journal").iterdir()
        stated[0] = (tmp_path / "log" / "acknowledged").read_bytes()
        for count in (1, 3, 2):
            await append_drafts(log, range(log.size, log.size + count))
            ends.append((journal.stat().st_size, log.size))
            stated[log.size] = (tmp_path / "log" / "acknowledged").read_bytes()
        shutil.copytree(tmp_path / "log", tmp_path / "copy")
        shutil.copytree(tmp_path / "log", tmp_path / "first")
    content = journal_of(tmp_path / "copy").read_bytes()
    for length in range(0, len(content) + 1, every):
        journal_of(tmp_path / "copy").write_bytes(content[:length])
        durable = max(records for end, records in ends if end <= length)
        # The count is written behind the group, and may be late.
        late = durable if length % 2 else max(size for size in stated if size <= durable // 2)
        (tmp_path / "copy" / "acknowledged").write_bytes(stated[late])
        for name in ("epoch", "witnesses"):
            shutil.copy(tmp_path / "first" / name, tmp_path / "copy" / name)
        again = audit_log(tmp_path / "copy", boot="b1")
        again.open()
        assert again.lost_records == 0
        assert again.size == max(records for end, records in ends if end <= length)
        again.close()


async def test_an_acknowledged_group_that_is_damaged_is_not_a_torn_one(tmp_path: Path) -> None:
    log = audit_log(tmp_path / "log")
    async with running_log(log):
        await log.append(draft(0, kind="log.genesis"))
        await log.sign()
        for count in (3, 2):
            await append_drafts(log, range(log.size, log.size + count))
        shutil.copytree(tmp_path / "log", tmp_path / "copy")
    path = journal_of(tmp_path / "copy")
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(
        LogVerificationError, match="missing in the journal: 2 acknowledged records"
    ) as caught:
        verify_log(tmp_path / "copy", KEY.public)
    assert caught.value.outcome == VerifyOutcome.ALTERED
    again = AuditTrail(audit_log(tmp_path / "copy", boot="b1"), "1.0", lambda: NOON_NS)
    again.open()
    found = [decode_audit_record(raw) for raw in again.log.records(4)]
    assert (found[0].type, found[0].data) == ("log.recovered", {"missing": 2, "from": 4})
    again.log.close()
    later = audit_log(tmp_path / "copy", boot="b2")
    later.open()
    assert (later.lost_records, later.size) == (0, 6)
    later.close()
    findings = verify_log(tmp_path / "copy", KEY.public).findings
    assert "record 4: 2 earlier records were lost unsigned" in findings


def journal_of(directory: Path) -> Path:
    (path,) = (directory / "journal").iterdir()
    return path


async def test_a_crash_between_tiles_and_checkpoint_loses_and_doubles_nothing(
    tmp_path: Path,
) -> None:
    power_is_gone = LogWriteError("the power is gone")

    def crash(_: TreeHead) -> None:
        shutil.copytree(tmp_path / "log", tmp_path / "crashed")
        raise power_is_gone

    async with running_log(audit_log(tmp_path / "log")) as log:
        await append_drafts(log, range(250))
        await log.sign()
        await append_drafts(log, range(250, 600))
        log.publisher.before_signing = crash
        with pytest.raises(LogWriteError):
            await log.sign()
        assert (log.signed.size, log.size) == (250, 600)
        log.publisher.before_signing = None
    assert verify_log(tmp_path / "log", KEY.public).checkpoint.tree.size == 600
    async with running_log(audit_log(tmp_path / "crashed", boot="b1")) as log:
        assert (log.signed.size, log.size) == (250, 600)
        assert await append_drafts(log, [600]) == [600]
    found = verify_log(tmp_path / "crashed", KEY.public)
    assert (found.checkpoint.tree.size, found.unsigned, found.findings) == (601, 0, ())
    assert stored(tmp_path / "crashed", 600) == stored(tmp_path / "log", 600)


async def test_a_crash_between_checkpoint_and_tidying_up_doubles_nothing(tmp_path: Path) -> None:
    def keep_the_journal(_: TreeHead) -> None:
        shutil.copytree(tmp_path / "log" / "journal", tmp_path / "journal")

    async with running_log(audit_log(tmp_path / "log")) as log:
        log.publisher.before_signing = keep_the_journal
        await append_drafts(log, range(100))
        await log.sign()
    forgotten = {path.name for path in (tmp_path / "journal").iterdir()}
    forgotten -= {path.name for path in (tmp_path / "log" / "journal").iterdir()}
    assert forgotten
    for name in forgotten:
        shutil.copy(tmp_path / "journal" / name, tmp_path / "log" / "journal")
    async with running_log(audit_log(tmp_path / "log", boot="b1")) as log:
        assert (log.signed.size, log.size) == (100, 100)
        await append_drafts(log, [100])
    found = verify_log(tmp_path / "log", KEY.public)
    assert (found.checkpoint.tree.size, found.findings) == (101, ())


async def test_what_lies_on_disk_is_checked_before_more_is_signed(tmp_path: Path) -> None:
    async with running_log(audit_log(tmp_path)) as log:
        await append_drafts(log, range(10))
        await log.sign()
        tile = tmp_path / tile_name(0, 0, 10)
        good = tile.read_bytes()
        tile.write_bytes(bytes(32) + good[32:])
        await log.append(draft(10))
        with pytest.raises(LogWriteError, match="railscope audit verify"):
            await log.sign()
        assert log.signed.size == 10
        tile.write_bytes(good)
        await log.sign()
        assert log.signed.size == 11


def test_tiles_have_the_documented_names() -> None:
    assert tile_name(0, 1234067) == "tile/0/x001/x234/067"
    assert tile_name("entries", 273, 112) == "tile/entries/273.p/112"


async def swapped(directory: Path, change: Callable[[], object]) -> str:
    """Return the reason why a running writer does not sign after a change."""
    async with running_log(audit_log(directory)) as log:
        await append_drafts(log, range(3))
        kept = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
        change()
        with pytest.raises((LogWriteError, ValueError)) as caught:
            await log.sign()
        for path, content in kept.items():
            if path.read_bytes() != content:
                path.write_bytes(content)
    return str(caught.value)


async def test_a_running_writer_finds_that_its_files_were_replaced(tmp_path: Path) -> None:
    def shorten() -> None:
        path = journal_of(tmp_path / "log")
        os.truncate(path, path.stat().st_size - 1)

    def older() -> None:
        path = tmp_path / "log" / "acknowledged"
        path.write_bytes(path.read_bytes()[:-9] + b"AAAAAAAA\n")

    assert "replaced or changed" in await swapped(tmp_path / "log", shorten)
    assert "file replaced or changed during a write" in await swapped(tmp_path / "log", older)
