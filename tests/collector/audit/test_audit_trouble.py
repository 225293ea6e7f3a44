"""The audit log after failures: killed, without space or descriptors, with foreign files in its directory."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
from pathlib import Path

import pytest
from support.audit import KEY, append_drafts, audit_log, draft, running_log, write_log
from support.disk import enlarge, small_file_system

from railscope.audit.record import decode_audit_record
from railscope_collector.audit import LogWriteError
from railscope_collector.audit.journal import read_journal
from railscope_collector.audit.tiles import WIDTH, Tiles, encode_bundle
from railscope_collector.audit.verification import verify_log

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


@pytest.mark.thorough
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
