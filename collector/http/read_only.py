"""Read-only mode after a start on a full disk: the collector serves its data, and waits for space.

Nothing is written and nothing is opened for writing. The content of the state directory is read into a
separate collector, which serves views, API and metrics; frames get 503 with Retry-After, so that agents
keep them in their spools, and `/-/ready` states the reason.
"""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from railscope.durable_files import PARTIAL

PROBE_BYTES = 256 << 10
"""Free space without which a collector does not start to write."""
RETRY_SECONDS = 5.0
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})

log = structlog.get_logger(__name__)


def unwritable(directory: Path) -> str:
    """Return the reason why a directory cannot be written; empty if it can. Blocking.

    Only a write with fsync detects a quota, a full or a read-only file system.
    """
    path = directory / f"probe.{secrets.token_hex(4)}{PARTIAL}"
    try:
        try:
            with path.open("wb") as file:
                file.write(bytes(PROBE_BYTES))
                file.flush()
                os.fsync(file.fileno())
        finally:
            path.unlink(missing_ok=True)
    except OSError as error:
        if error.errno in _FULL:
            return f"the state directory cannot be written: {error.strerror}"
        raise
    return ""


@dataclass(slots=True)
class SpaceWatch:
    """Waits until a directory can be written."""

    directory: Path
    retry_seconds: float = RETRY_SECONDS
    probe: Callable[[Path], str] = unwritable

    async def wait(self) -> None:
        """Return once there is space. Raises OSError for any other failure."""
        # No event signals that a file system has free space again.
        while await asyncio.to_thread(self.probe, self.directory):  # noqa: ASYNC110 - as above
            await asyncio.sleep(self.retry_seconds)
        log.info("space_returned", directory=str(self.directory))
