"""The tokens file while the collector runs: read again after each change."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from collector.access.credentials import Credentials, load, parse

_WATCH_SECONDS = 1.0

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class TokensFile:
    """Credentials in force: the last that could be read. Raises SettingsError at the start."""

    path: Path
    on_change: Callable[[Credentials], None] = lambda _credentials: None
    credentials: Credentials = field(init=False)
    valid: bool = True
    """True if the current content of the file could be read."""
    _seen: bytes = b""
    _judged: bytes = b""

    def __post_init__(self) -> None:
        self.credentials = load(self.path)

    async def watch(self) -> None:
        """Read the file after each change, until cancelled."""
        while True:
            found = await asyncio.to_thread(self.read)
            if found is not None and found != self.credentials:
                self.credentials = found
                log.info("tokens_read", file=str(self.path), entries=len(found.entries))
                self.on_change(found)
            await asyncio.sleep(_WATCH_SECONDS)

    def read(self) -> Credentials | None:
        """Return the content of the file if it has changed and can be read. Blocking.

        A change takes effect when two consecutive reads agree: a file that is being written is empty at
        first, which must not revoke any credential.
        """
        try:
            content = self.path.read_bytes()
            digest = hashlib.sha256(content).digest()
            changing, self._seen = digest != self._seen, digest
            if changing or digest == self._judged:
                return None
            self._judged = digest
            found = parse(content.decode())
        except (OSError, ValueError) as error:
            if self.valid or not isinstance(error, OSError):
                log.error("tokens_refused", file=str(self.path), problem=str(error),
                          advice="the last good credentials stay in force")  # fmt: skip
            self.valid = False
            if isinstance(error, OSError):
                self._judged = b""
            return None
        self.valid = True
        return found
