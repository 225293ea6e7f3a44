"""The audit log after failures: killed, without space or descriptors, with foreign files in its directory."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.audit import KEY, append_drafts, audit_log, draft, running_log, write_log
from support.audit_keys import load_or_create_key
from support.disk import FailingPath, enlarge, small_file_system

from railscope.audit.merkle import CompactRange
from railscope.audit.record import decode_audit_record
from railscope.cli import root
from railscope.settings import SettingsError
from railscope_collector.audit import LogWriteError
from railscope_collector.audit.journal import Journal, JournalError, read_journal
from railscope_collector.audit.tiles import WIDTH, Tiles, encode_bundle
from railscope_collector.audit.verification import verify_log
from railscope_collector.audit.verify_outcome import LogVerificationError, VerifyOutcome

WRITER = """
import asyncio, os, sys
from pathlib import Path
from railscope_collector.ledger.record_draft import RecordDraft
from railscope_collector.audit.log_writer import AuditLog
from railscope.audit.signed_note import SecretKey
from railscope.audit.record import RecordActor, RecordSource

async def write(log, name):
    for number in range(1_000_000):
        data = {"what": f"{name}-{number}"}
        sequence = await log.append(RecordDraft("tenancy.assign", RecordActor("a", "b"), 1, "done", data=data))
        os.write(1, f"{sequence} {data['what']}\\n".encode())

async def main():
    directory, boot, key = sys.argv[1:]
    source = RecordSource("collector", "c1", boot, 0)
    log = AuditLog(Path(directory), SecretKey.parse(key), source, sign_every_seconds=0.003)
    log.open()
    async with asyncio.TaskGroup() as group:
        group.create_task(log.run())
        for name in range(40):
            group.create_task(write(log, f"{boot}-{name}"))

asyncio.run(main())
"""


def killed_after(directory: Path, boot: str, lines: int) -> dict[int, str]:
    """Records that a writer had acknowledged, by sequence, when it was killed after a number of records."""
    command = [sys.executable, "-c", WRITER, str(directory), boot, KEY.secret_text()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout
        acknowledged = list(itertools.islice(writer.stdout, lines))
        writer.kill()
        acknowledged += [line for line in writer.stdout if line.endswith("\n")]
    assert len(acknowledged) >= lines
    return {int(sequence): what for sequence, what in map(str.split, acknowledged)}


def stored(directory: Path) -> dict[int, object]:
    """All records, signed and not, of a log that is consistent."""
    found = verify_log(directory, KEY.public)
    assert found.findings == ()
    size = found.checkpoint.tree.size
    tiles, files = Tiles(directory, size), read_journal(directory / "journal")
    raws = [raw for index in range(-(-size // WIDTH)) for raw in tiles.records(index)]
    raws += [raw for file in files for raw in file.records][size - files[0].first :]
    assert len(raws) == size + found.unsigned
    return {record.seq: record.data.get("what") for record in map(decode_audit_record, raws)}


def test_a_killed_writer_loses_and_doubles_nothing(tmp_path: Path) -> None:
    acknowledged: dict[int, str] = {}
    write_log(tmp_path / "log", [1], boot="genesis")
    for number, lines in enumerate((50, 333, 1000, 2000)):
        newly_acknowledged = killed_after(tmp_path / "log", f"b{number}", lines)
        assert not acknowledged.keys() & newly_acknowledged.keys()
        acknowledged |= newly_acknowledged
        there = stored(tmp_path / "log")
        assert {sequence: there.get(sequence) for sequence in acknowledged} == acknowledged
        assert len(set(there.values())) == len(there)


def test_records_are_shown_without_a_gap_while_more_are_written(tmp_path: Path) -> None:
    write_log(tmp_path / "log", [1], boot="genesis")
    command = [sys.executable, "-c", WRITER, str(tmp_path / "log"), "b1", KEY.secret_text()]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as writer:
        try:
            longest = 1
            while longest < 2000:
                shown = CliRunner().invoke(root, ["audit", "show", str(tmp_path / "log"), "--json"])
                records = [decode_audit_record(line.encode()) for line in shown.stdout.splitlines()]
                assert [record.seq for record in records] == list(range(len(records)))
                assert len(records) >= longest
                longest = len(records)
        finally:
            writer.kill()


async def test_a_full_disk_loses_rejected_records_only_and_signs_with_free_space(
    tmp_path: Path,
) -> None:
    with small_file_system(tmp_path / "disk", 512) as disk:
        async with running_log(audit_log(disk / "log")) as log:
            await append_drafts(log, range(20))
            await log.sign()
            refused = 0
            while not refused:
                answers = await asyncio.gather(
                    *(log.append(draft(n)) for n in range(50)), return_exceptions=True
                )
                refused = sum(isinstance(answer, LogWriteError) for answer in answers)
            size = log.size
            for _ in range(20):
                with pytest.raises(OSError, match="space"):
                    await log.sign()
            assert not list(disk.rglob("*.partial"))
            enlarge(disk, 8 << 10)
            assert await append_drafts(log, [0, 1]) == [size, size + 1]
        found = verify_log(disk / "log", KEY.public)
        assert (found.checkpoint.tree.size, found.findings) == (size + 2, ())


def test_a_key_that_does_not_fit_on_the_disk_is_created_with_free_space(tmp_path: Path) -> None:
    with small_file_system(tmp_path / "disk", 16) as disk:
        with pytest.raises(OSError, match="space"):
            (disk / "much").write_bytes(bytes(1 << 20))
        with pytest.raises(SettingsError, match="space"):
            load_or_create_key(disk / "audit.key", "log.example")
        (disk / "much").unlink()
        made = load_or_create_key(disk / "audit.key", "log.example")
        assert load_or_create_key(disk / "audit.key", "other").secret_text() == made.secret_text()
        assert [path.name for path in disk.iterdir()] == ["audit.key"]


@contextlib.contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """As many files can be opened, and no more."""
    taken = []
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(0))
        for _ in range(count):
            os.close(taken.pop())
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)


def test_a_journal_that_cannot_go_on_in_a_new_file_can_be_opened_again(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal", KEY)
    journal.open(CompactRange(), 0)
    journal.append([b"0"])
    with descriptors_left(1), pytest.raises(OSError, match="Too many open files"):
        journal.rotate()
    journal.append([b"1"])
    journal.close()
    again = Journal(tmp_path / "journal", KEY)
    assert again.open(CompactRange(), 1) == [b"0", b"1"]
    again.close()


def test_a_listed_journal_file_stays_if_its_list_is_not_durable(tmp_path: Path) -> None:
    directory = FailingPath(tmp_path / "log")
    journal = Journal(directory / "journal", KEY)
    journal.open(CompactRange(), 0)
    journal.append([b"0"])
    with directory.failing():
        for write in (journal.rotate, partial(journal.append, [b"1"])):
            with pytest.raises(OSError, match="Input/output error"):
                write()
    with FailingPath(directory / "journal").failing():
        journal.rotate()  # reuses the empty file
    journal.check_in_place()
    journal.append([b"2"])
    journal.check_in_place()
    with FailingPath(directory / "journal").failing(), pytest.raises(OSError, match="output error"):
        journal.rotate()
    journal.append([b"3"])
    journal.rotate()
    journal.append([b"4"])
    journal.check_in_place()
    journal.release()
    again = Journal(tmp_path / "log" / "journal", KEY)
    assert again.open(CompactRange(), 1) == [b"0", b"2", b"3", b"4"]
    again.release()


async def test_a_checkpoint_that_is_written_but_not_known_to_be_does_not_end_signing(
    tmp_path: Path,
) -> None:
    async with running_log(audit_log(tmp_path)) as log:
        await append_drafts(log, range(300))
        # State after a failure behind the rename: in the log's state nothing was signed.
        log.publisher.publish(list(log._unsigned))  # noqa: SLF001
        await append_drafts(log, range(300, 310))
        await log.sign()
        assert (log.signed.size, log.size) == (310, 310)
    assert verify_log(tmp_path, KEY.public).checkpoint.tree.size == 310


@pytest.mark.parametrize("data", [{"n": 2**70}, {"n": -(2**70)}, {"n": float("nan")}])
async def test_a_number_that_no_record_holds_fails_alone(
    tmp_path: Path, data: dict[str, int]
) -> None:
    async with running_log(audit_log(tmp_path)) as log:
        wrong = draft(0)
        wrong.data.clear()
        wrong.data.update(data)
        with pytest.raises(ValueError, match=r"tenancy.assign|invalid audit record"):
            await asyncio.wait_for(log.append(wrong), 60)
        assert await asyncio.wait_for(log.append(draft(1)), 60) == 0


ODD = {
    "epoch": b"",
    "checkpoint": b"\xff\xfe",
    "journal/journal-x-y.wal": b"",
}


@pytest.mark.parametrize("name", ODD)
def test_a_log_with_an_odd_file_is_not_continued(tmp_path: Path, name: str) -> None:
    write_log(tmp_path, [20])
    (tmp_path / name).write_bytes(ODD[name])
    with pytest.raises(LogWriteError, match="was altered"):
        audit_log(tmp_path).open()


@pytest.mark.parametrize("name", ODD)
async def test_an_odd_file_does_not_end_the_writer(tmp_path: Path, name: str) -> None:
    async with running_log(audit_log(tmp_path, every_seconds=0.01)) as log:
        await append_drafts(log, [0])
        while log.signed.size == 0:  # noqa: ASYNC110 - the log has no event for tests
            await asyncio.sleep(0)
        good = (tmp_path / name).read_bytes() if (tmp_path / name).exists() else None
        (tmp_path / name).write_bytes(ODD[name])
        await append_drafts(log, [1])
        while not log.signing_problem:  # noqa: ASYNC110 - the log has no event for tests
            await asyncio.sleep(0)
        assert await asyncio.wait_for(log.append(draft(2)), 60) == 2
        if good is None:
            (tmp_path / name).unlink()
        else:
            (tmp_path / name).write_bytes(good)
    assert verify_log(tmp_path, KEY.public).checkpoint.tree.size == 3


def test_a_journal_that_leads_nowhere_is_an_error_and_no_loop(tmp_path: Path) -> None:
    write_log(tmp_path, [20])
    (journal,) = (tmp_path / "journal").iterdir()
    journal.unlink()
    journal.symlink_to("nowhere")
    with pytest.raises(LogVerificationError) as caught:
        verify_log(tmp_path, KEY.public)
    assert caught.value.outcome == VerifyOutcome.ALTERED


def test_a_journal_that_ends_before_what_is_signed_takes_no_records(tmp_path: Path) -> None:
    write_log(tmp_path, [20])
    (journal,) = (tmp_path / "journal").iterdir()
    journal.rename(journal.with_name(journal.name.replace("20-", "10-", 1)))
    with pytest.raises(LogWriteError, match="ends at record 10: expected the 20 signed"):
        audit_log(tmp_path).open()
    with pytest.raises(JournalError, match="ends at record"):
        Journal(tmp_path / "journal", KEY).open(CompactRange(20, []), 1)


async def test_records_changed_behind_the_writer_are_not_signed_again(tmp_path: Path) -> None:
    async with running_log(audit_log(tmp_path)) as log:
        await append_drafts(log, range(10))
        await log.sign()
        tile = tmp_path / "tile/entries/000.p/10"
        good = tile.read_bytes()
        tile.write_bytes(good + encode_bundle([b"hidden"]))
        await append_drafts(log, [10])
        with pytest.raises(LogWriteError, match="its records do not match the signed ones"):
            await log.sign()
        tile.write_bytes(good)
    assert verify_log(tmp_path, KEY.public).checkpoint.tree.size == 11
