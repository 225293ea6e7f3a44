"""Rows of the evidence that cannot be read: skipped individually, logged once, and counted.

The name of a row is the SHA-256 of its content, so every change to it is detected. Facts of a
damaged row count as not seen; all other rows count as before.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import msgspec
import structlog

from collector.evidence.chunk import Chunk, decode
from collector.evidence.claim_events import Told

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MAX_NAMED = 10_000

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Quarantine:
    """The damaged rows found since the start."""

    rows: set[tuple[str, str]] = field(default_factory=set)
    """Table and name of each."""

    def chunk(self, name: Any, packed: Any) -> Chunk | None:
        """Decode the chunk of a part; None if the row is damaged."""
        try:
            content = zstd.decompress(packed)
            self._check(name, content)
            return decode(content)
        except (zstd.ZstdError, msgspec.MsgspecError, ValueError, TypeError) as error:
            self._set_aside("evidence_part", name, error)
            return None

    def told(self, name: Any, content: Any) -> Told | None:
        """Decode the claim of a row; None if the row is damaged."""
        try:
            self._check(name, content)
            return msgspec.msgpack.decode(content, type=Told)
        except (msgspec.MsgspecError, ValueError, TypeError) as error:
            self._set_aside("evidence_claim", name, error)
            return None

    @staticmethod
    def _check(name: Any, content: bytes) -> None:
        if sha256(content).hexdigest() != name:
            message = "it was altered"
            raise ValueError(message)

    def _set_aside(self, table: str, name: Any, error: Exception) -> None:
        row = (table, str(name))
        if row not in self.rows and len(self.rows) < MAX_NAMED:
            self.rows.add(row)
            log.error("evidence_damaged", table=table, row=row[1], problem=str(error),
                      advice="what it stated counts as not seen; restore it from a backup")  # fmt: skip
