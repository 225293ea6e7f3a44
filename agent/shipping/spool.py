"""Spool: envelopes on disk until the collector has acknowledged them as durable.

One file per envelope, written under a temporary name, synced and renamed, so that a file is complete or
absent: neither a crash of the agent nor a power failure loses a spooled envelope. At the size bound, the
oldest envelopes are dropped.
"""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass
from pathlib import Path

import structlog

log = structlog.get_logger(__name__)

_SUFFIX = ".envelope"
_PARTIAL = ".partial"
_HEAD_BYTES = 8
_NAME_DIGITS = 12


@dataclass(frozen=True, slots=True)
class Spooled:
    """A spooled envelope: number, size and count of frames."""

    number: int
    size: int
    frames: int


@dataclass(frozen=True, slots=True)
class Loss:
    """Dropped envelopes, and the reason."""

    reason: str
    envelopes: int
    frames: int


class Spool:
    """Bounded FIFO queue of envelopes in a directory. Blocking: do not call it on the event loop.

    Raises OSError if the directory cannot be created.
    """

    def __init__(self, directory: Path, max_bytes: int) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        for partial in self._directory.glob("*" + _PARTIAL):
            partial.unlink()
        self._waiting = sorted(self._found(), key=lambda spooled: spooled.number)
        self.size = sum(spooled.size for spooled in self._waiting)
        self._next = self._waiting[-1].number + 1 if self._waiting else 1
        self._untold: list[Loss] = []

    def __len__(self) -> int:
        """Number of spooled envelopes."""
        return len(self._waiting)

    def put(self, body: bytes, frames: int) -> Loss | None:
        """Store an envelope; return the loss if older ones were dropped. Raises OSError (a full disk)."""
        head = frames.to_bytes(4, "little") + zlib.crc32(body).to_bytes(4, "little")
        loss = self._make_room(len(head) + len(body))
        spooled = Spooled(self._next, len(head) + len(body), frames)
        partial = self._path(spooled).with_suffix(_PARTIAL)
        try:
            with partial.open("wb") as file:
                file.write(head + body)
                file.flush()
                os.fsync(file.fileno())
            partial.rename(self._path(spooled))
            self._synchronise()
        except OSError:
            self._untold += [loss] if loss else []
            partial.unlink(missing_ok=True)
            raise
        self._next += 1
        self._waiting.append(spooled)
        self.size += spooled.size
        return loss

    def oldest(self) -> tuple[Spooled, bytes] | Loss | None:
        """Return the envelope to send next; a damaged one is dropped and returned as a loss.

        Envelopes dropped for one that then could not be stored are returned here, too. Raises OSError if
        the disk cannot be read now; the envelope stays.
        """
        if self._untold:
            return self._untold.pop(0)
        if not self._waiting:
            return None
        spooled = self._waiting[0]
        try:
            content = self._path(spooled).read_bytes()
        except FileNotFoundError:
            content = b""
        body = content[_HEAD_BYTES:]
        if zlib.crc32(body).to_bytes(4, "little") != content[4:_HEAD_BYTES]:
            self.remove(spooled)
            return Loss("damaged", 1, spooled.frames)
        return spooled, body

    def remove(self, spooled: Spooled) -> bool:
        """Remove an envelope that was acknowledged or rejected.

        Return False if it has been dropped for lack of space: it is counted as lost already.
        """
        if spooled not in self._waiting:
            return False
        self._waiting.remove(spooled)
        self.size -= spooled.size
        try:
            self._path(spooled).unlink(missing_ok=True)
        except OSError as error:
            # It is removed from the queue all the same: after a restart it is sent again, and counts once.
            log.warning("envelope_not_removed", file=str(self._path(spooled)), problem=str(error))
        return True

    def _synchronise(self) -> None:
        descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _make_room(self, wanted: int) -> Loss | None:
        envelopes = frames = 0
        while self._waiting and self.size + wanted > self._max_bytes:
            oldest = self._waiting[0]
            envelopes, frames = envelopes + 1, frames + oldest.frames
            self.remove(oldest)
        return Loss("spool_full", envelopes, frames) if envelopes else None

    def _path(self, spooled: Spooled) -> Path:
        return self._directory / f"{spooled.number:0{_NAME_DIGITS}d}{_SUFFIX}"

    def _found(self) -> list[Spooled]:
        found = []
        for entry in os.scandir(self._directory):
            name = entry.name.removesuffix(_SUFFIX)
            if name != entry.name and name.isdecimal():
                with open(entry.path, "rb") as file:  # noqa: PTH123 - scandir returns plain paths
                    frames = int.from_bytes(file.read(4), "little")
                found.append(Spooled(int(name), entry.stat().st_size, frames))
        return found
