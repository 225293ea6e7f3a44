"""The audit log on a full disk."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.audit import (
    append_drafts,
    audit_log,
    database_in,
    draft,
    running_log,
    verify_directory,
)
from support.disk import enlarge, small_file_system

from railscope_collector.audit import LogWriteError, SigningPostponedError
from railscope_collector.ledger.database import UnusableLedgerError


async def test_a_full_disk_loses_rejected_records_only_and_signs_with_free_space(
    tmp_path: Path,
) -> None:
    is_postponed = False

    def guard() -> None:
        if is_postponed:
            raise SigningPostponedError

    with small_file_system(tmp_path / "disk", 2048) as disk:
        with database_in(disk / "log") as database:
            async with running_log(
                audit_log(disk / "log", database=database, before_signing=guard)
            ) as log:
                await append_drafts(log, range(20))
                await log.sign()
                accepted, refused, is_postponed = 0, 0, True
                while not refused:
                    answers = await asyncio.gather(
                        *(log.append(draft(n)) for n in range(50)), return_exceptions=True
                    )
                    refused = sum(isinstance(answer, LogWriteError) for answer in answers)
                    accepted += len(answers) - refused
                is_postponed = False
                with pytest.raises((OSError, UnusableLedgerError), match="full"):
                    await log.sign()
                enlarge(disk, 16 << 10)
                await append_drafts(log, [0, 1])
                await log.sign()
                size = log.size
                assert (size, log.waiting) == (21 + accepted + 2, 0)
        found = verify_directory(disk / "log")
        assert (found.checkpoint.tree.size, found.findings) == (size, ())
