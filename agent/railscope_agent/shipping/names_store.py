"""Encoded shapes and lists of names of spooled frames, on disk beside the spool.

Envelopes refer to them by hash. A collector that lacks one requests it, possibly after a restart of the agent with
another configuration, so they are stored for as long as frames may be. The schemas of frames that an agent up to 0.3.0
spooled are in the same directory.
"""

from __future__ import annotations

from pathlib import Path

import structlog

from railscope import durable_files

log = structlog.get_logger(__name__)

# A node has one shape per source and few lists; each job that starts adds a list.
_MAX_FILES = 1024
_SUFFIX = ".schema"


class NamesStore:
    """Contents by hash. Raises OSError if the directory cannot be used."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        durable_files.delete_partial_files(self._directory)
        self._contents: dict[bytes, bytes] = {}
        self._unwritten: set[bytes] = set()

    def put(self, digest: bytes, content: bytes) -> None:
        """Store a content; a failure is logged once, and it is written with a later envelope."""
        if digest in self._contents and digest not in self._unwritten:
            return
        # In memory even if the disk is full: the collector can request it while the agent runs.
        self._contents[digest] = content
        try:
            durable_files.write_durably(self._path(digest), content)
            self._unwritten.discard(digest)
            self._forget_oldest()
        except OSError as error:
            if digest not in self._unwritten:
                log.warning(
                    "names_write_failed", directory=str(self._directory), problem=str(error)
                )
            self._unwritten.add(digest)

    def get(self, digest: bytes) -> bytes | None:
        """Return a content by its hash; None if it was never stored."""
        try:
            return self._contents.get(digest) or self._path(digest).read_bytes()
        except OSError:
            return None

    def _path(self, digest: bytes) -> Path:
        return self._directory / (digest.hex() + _SUFFIX)

    def _forget_oldest(self) -> None:
        files = sorted(
            self._directory.glob("*" + _SUFFIX), key=lambda file: file.stat().st_mtime_ns
        )
        for file in files[:-_MAX_FILES]:
            self._contents.pop(bytes.fromhex(file.stem), None)
            file.unlink(missing_ok=True)
