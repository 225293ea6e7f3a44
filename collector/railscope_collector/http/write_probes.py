"""Write probes of the ledger and of the state directory, and the wait for free space.

After a start on a full disk the collector serves its data read-only, and waits for space: nothing is
written and nothing is opened for writing. The content of the state directory is read into a separate
collector, which serves views, API and metrics; frames get 503 with Retry-After, so that agents keep
them in their spools, and `/-/ready` states the reason. A running collector is not ready while a write
to the ledger or to the file system of its frame log fails.
"""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from railscope import durable_files, service
from railscope_collector.framelog import framelog
from railscope_collector.ledger.database import Database, call_database
from railscope_collector.ledger.ledger_probe import find_ledger_problem

log = structlog.get_logger(__name__)

PROBE_BYTES = framelog.MAX_GROUP_BYTES
"""Free space without which a collector does not start to write and is not ready."""
RETRY_SECONDS = 5.0
_PROBE_NAME = "probe"
_DISK_FULL_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})


def find_write_problem(directory: Path) -> str:
    """Return the reason why a directory cannot be written; empty if it can. Blocking.

    Only a write with fsync and an allocation detect a quota, a full or a read-only file system. A
    probe that a process left behind when it was killed is deleted.
    """
    try:
        durable_files.delete_partial_files(directory, _PROBE_NAME)
        with (
            durable_files.partial_file(directory / _PROBE_NAME, b"probe") as path,
            path.open("rb+") as file,
        ):
            # A write of a few bytes succeeds on a disk without space for a group of records.
            os.posix_fallocate(file.fileno(), 0, PROBE_BYTES)
            return ""
    except OSError as error:
        if error.errno in _DISK_FULL_ERRORS:
            return f"cannot write the state directory: {error.strerror}"
        raise


REUSE_SECONDS = 5.0
"""Time for which the result of a write is reused."""


@dataclass(slots=True)
class WriteProbe:
    """Result of the newest write to a target, for any number of concurrent callers."""

    target: str
    write: Callable[[], Coroutine[Any, Any, str]]
    """Writes, and returns the reason why that is impossible; empty if it is possible."""
    monotonic: Callable[[], float] = time.monotonic
    wait_seconds: float = 5.0
    _task: asyncio.Task[str] | None = None
    _problem: str = ""
    _ended_at: float | None = None

    async def problem(self) -> str:
        """Return the reason why the target cannot be written; empty if there is none.

        A write that has not ended after `wait_seconds` counts as failed; it continues, and later
        callers wait for the same one. The message of the system, which may contain hosts and files,
        is logged and not returned: readiness is served without a credential.
        """
        if self._ended_at is None or self.monotonic() - self._ended_at >= REUSE_SECONDS:
            # One write for all callers: probes of a hung disk must not use up all threads.
            if self._task is None:
                self._task = asyncio.create_task(self.write())
                self._task.add_done_callback(self._end_write)
            # `wait` does not cancel the write when the time is over, as `wait_for` would.
            done, _ = await asyncio.wait({self._task}, timeout=self.wait_seconds)
            if not done:
                return f"no write to {self.target} has succeeded for {self.wait_seconds:g} s"
        if self._problem:
            return f"cannot write {self.target}; the collector's log has the reason"
        return ""

    async def close(self) -> None:
        """Wait for a write that has not ended."""
        if self._task:
            await asyncio.wait({self._task})

    def _end_write(self, task: asyncio.Task[str]) -> None:
        self._task = None
        if not task.cancelled():
            fault = task.exception()
            before = self._problem
            self._problem = f"{type(fault).__name__}: {fault}" if fault else task.result()
            self._ended_at = self.monotonic()
            if self._problem and not before:
                log.error("write_probe_failed", target=self.target, problem=self._problem)


def make_probes(
    open_database: Callable[[], Database], find_problem: Callable[[Path], str], directory: Path
) -> list[WriteProbe]:
    """Return the probes of the ledger and of the directory of the frame log."""
    return [
        WriteProbe("the ledger", lambda: call_database(find_ledger_problem, open_database)),
        WriteProbe("the frame log", lambda: service.run_in_thread(find_problem, directory)),
    ]


@dataclass(slots=True)
class SpaceWatch:
    """Waits until a directory can be written."""

    directory: Path
    retry_seconds: float = RETRY_SECONDS
    probe: Callable[[Path], str] = find_write_problem

    async def wait(self) -> None:
        """Return once there is space. Raises OSError for any other failure."""
        # No event signals that a file system has free space again.
        while await service.run_in_thread(self.probe, self.directory):  # noqa: ASYNC110 - as above
            await asyncio.sleep(self.retry_seconds)
        log.info("writes_resumed", directory=str(self.directory))
