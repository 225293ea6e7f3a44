"""Quarantine of records that a restart skipped."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import structlog

from railscope import durable_files
from railscope_collector.framelog import segment_files

log = structlog.get_logger(__name__)

MAX_QUARANTINE_BYTES = 256 << 20
"""Maximum size of the quarantine directory.

Above it, further records are counted and stay in their segments.
"""
_SUFFIX = ".record"


@dataclass(slots=True)
class RecordQuarantine:
    """Records that were skipped; call `open` first.

    A record that cannot be decoded, that would exceed the bounds of a restart, or that the state did
    not accept must not end the collector at each start. It is skipped, counted, and copied to a separate
    directory, as its segment will be deleted eventually; the log has the reason.
    """

    directory: Path
    records: int = 0
    """Records in the directory, and those since the start that did not fit."""
    _size_bytes: int = 0

    def open(self) -> None:
        """Count the existing records. Blocking; raises OSError."""
        found = [path.stat().st_size for path in self.directory.glob("*" + _SUFFIX)]
        self.records, self._size_bytes = len(found), sum(found)

    def put(self, segment: int, record: segment_files.FrameRecord, problem: str) -> None:
        """Quarantine a record, each once. Blocking."""
        content = segment_files.encode_record(record)
        # By content, so that each restart finds the same record under the same name and stores it once.
        name = f"{segment:010d}-{blake2b(content, digest_size=8).hexdigest()}{_SUFFIX}"
        path = self.directory / name
        log.error(
            "record_quarantined",
            node=record.node,
            segment=segment,
            problem=problem,
            size_bytes=len(record.body),
            file=str(path),
        )
        if path.exists():
            return
        self.records += 1
        if self._size_bytes + len(content) > MAX_QUARANTINE_BYTES:
            return
        try:
            self.directory.mkdir(mode=0o700, exist_ok=True)
            durable_files.write_durably(path, content)
            self._size_bytes += len(content)
        # The restart must not depend on it: the record is still in its segment.
        except OSError as error:
            log.error("quarantine_write_failed", file=str(path), problem=str(error))
