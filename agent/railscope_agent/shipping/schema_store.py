"""Wire schemas of spooled frames, on disk beside the spool.

Envelopes do not contain their schemas. A collector without a schema requests it, possibly after a
restart of the agent with another configuration, so schemas are stored for as long as frames may be.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import structlog

from railscope import durable_files
from railscope.untrusted_text import DECODING_ERRORS
from railscope.wire import WireSchema

log = structlog.get_logger(__name__)

# A node has one schema per source; each change of its devices adds one.
_MAX_SCHEMAS = 256
_SCHEMA_SUFFIX = ".schema"


class SchemaStore:
    """Wire schemas by hash. Raises OSError if the directory cannot be written."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        durable_files.delete_partial_files(self._directory)
        self._contents: dict[bytes, bytes] = {}
        """Content of the files: a third of the memory of the schemas."""
        self._stored: set[bytes] = set()
        self._failed: set[bytes] = set()

    def try_put(self, digest: bytes, make: Callable[[], WireSchema]) -> None:
        """Store a schema; a failure is logged once for each, and it is stored with a later envelope."""
        try:
            self.put(digest, make)
            self._failed.discard(digest)
        except OSError as error:
            if digest not in self._failed:
                log.warning(
                    "schema_write_failed", directory=str(self._directory.parent), problem=str(error)
                )
            self._failed.add(digest)

    def put(self, digest: bytes, make: Callable[[], WireSchema]) -> None:
        """Store a schema unless it is stored already. Raises OSError (a full disk)."""
        if digest in self._stored:
            return
        # Encoded in memory even if the disk is full: the collector can request it while the agent runs.
        content = self._contents.get(digest) or msgspec.msgpack.encode(make())
        self._contents[digest] = content
        durable_files.write_durably(self._path(digest), content)
        self._forget_oldest()
        # Last: after a failure, the next envelope with this schema tries again.
        self._stored.add(digest)

    def get(self, digest: bytes) -> WireSchema | None:
        """Return a schema by its hash; None if it was never stored or is damaged."""
        try:
            content = self._contents.get(digest) or self._path(digest).read_bytes()
            return msgspec.msgpack.decode(content, type=WireSchema)
        except (OSError, *DECODING_ERRORS):
            return None

    def _path(self, digest: bytes) -> Path:
        return self._directory / (digest.hex() + _SCHEMA_SUFFIX)

    def _forget_oldest(self) -> None:
        files = sorted(
            self._directory.glob("*" + _SCHEMA_SUFFIX), key=lambda file: file.stat().st_mtime_ns
        )
        for file in files[:-_MAX_SCHEMAS]:
            self._contents.pop(bytes.fromhex(file.stem), None)
            self._stored.discard(bytes.fromhex(file.stem))
            file.unlink(missing_ok=True)
