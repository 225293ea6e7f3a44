"""The audit log after failures: killed, without space or descriptors, with foreign files in its directory."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.audit import KEY, append_drafts, audit_log, draft, running_log
from support.disk import enlarge, small_file_system

from railscope_collector.audit import LogWriteError
from railscope_collector.audit.tiles import encode_bundle
from railscope_collector.audit.verification import verify_log


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
