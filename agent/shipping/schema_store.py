"""Schemas of spooled frames, on disk beside them.

Envelopes do not contain their schemas. A collector without a schema requests it, possibly after a restart
of the agent with another configuration, so schemas are stored for as long as frames may be.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from railscope.wire import WireSchema

_MAX_KEPT = 256
_SUFFIX = ".schema"


class SchemaStore:
    """Wire schemas by hash. Raises OSError if the directory cannot be written."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._known: dict[bytes, WireSchema] = {}
        self._kept: set[bytes] = set()

    def put(self, digest: bytes, schema: WireSchema) -> None:
        """Store a schema unless it is stored already. Raises OSError (a full disk)."""
        if digest in self._kept:
            return
        self._known[digest] = schema
        path = self._path(digest)
        partial = path.with_suffix(".partial")
        partial.write_bytes(msgspec.msgpack.encode(schema))
        partial.rename(path)
        self._forget_oldest()
        self._kept.add(digest)

    def get(self, digest: bytes) -> WireSchema | None:
        """Return a schema by its hash; None if it was never stored or is damaged."""
        if digest not in self._known:
            try:
                content = self._path(digest).read_bytes()
                self._known[digest] = msgspec.msgpack.decode(content, type=WireSchema)
            except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
                return None
        return self._known[digest]

    def _path(self, digest: bytes) -> Path:
        return self._directory / (digest.hex() + _SUFFIX)

    def _forget_oldest(self) -> None:
        files = sorted(
            self._directory.glob("*" + _SUFFIX), key=lambda file: file.stat().st_mtime_ns
        )
        for file in files[:-_MAX_KEPT]:
            self._known.pop(bytes.fromhex(file.stem), None)
            self._kept.discard(bytes.fromhex(file.stem))
            file.unlink(missing_ok=True)
