"""Spool: envelopes on disk until a collector has received them and their evidence is stored.

One file per envelope, which is complete or absent: neither a crash of the agent nor a power failure loses an envelope that waits
to be received. One that is spooled after its receipt is not synchronized: a power failure loses it within about 30 s, and only
together with the disk of the collector. At the size bound, the oldest envelopes are dropped, first those that were received.
"""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import structlog

from railscope import durable_files, envelopes, wire
from railscope_agent.shipping.delivery_result import EvidenceReceipt

log = structlog.get_logger(__name__)

_SUFFIX, _UNSYNCED_SUFFIX = ".envelope", ".received"
_RESERVE = 64
"""Reciprocal of the share of the spool that is freed at once by dropping received envelopes."""
_HEAD_BYTES = 8
_NAME_DIGITS = 12
_MAX_ENVELOPE_BYTES = 64 << 20
"""Decompressed size of the largest envelope that is decoded here."""


@dataclass(frozen=True, slots=True)
class SpooledEnvelope:
    """A spooled envelope: number, size and count of frames."""

    number: int
    size: int
    frames: int
    is_synced: bool = True
    """False if a power failure may damage it: it was spooled after a collector had received it."""
    first_receipt: str = ""
    """Signed receipt of the first collector that received it; empty if there is none."""


class ReceivedEnvelope(NamedTuple):
    """Receipt of an envelope: the position in the collector's log, and the time."""

    position: int
    boot_ns: int


@dataclass(frozen=True, slots=True)
class FrameLoss:
    """Dropped envelopes, and the reason."""

    reason: str
    envelopes: int
    frames: int


def is_of_other_node(body: bytes, node: str) -> bool:
    """True if an envelope is of another node; False if its node cannot be read."""
    try:
        return envelopes.read_node(body, _MAX_ENVELOPE_BYTES) != node
    except wire.WireError:
        return False


class Spool:
    """Bounded FIFO queue of envelopes in a directory. Blocking: do not call it on the event loop.

    An envelope waits until a collector has received it. Where evidence is stored later than that, it stays in
    the directory until it is stored, and waits again if another collector, or one that lost its disk, responds.
    Raises OSError if the directory cannot be created.
    """

    def __init__(self, directory: Path, max_bytes: int) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        durable_files.delete_partial_files(self._directory)
        # The order of a directory is arbitrary; frames have to be sent in the order of their envelopes.
        found = sorted(self._scan_directory(), key=lambda spooled: spooled.number)
        self._envelopes = {spooled.number: spooled for spooled in found}
        # Receipts are not stored: after a restart everything is sent again, and collectors recognize it.
        self._waiting = dict(self._envelopes)
        self.size = self.waiting_bytes = sum(spooled.size for spooled in found)
        self._next = found[-1].number + 1 if found else 1
        self._losses: dict[str, FrameLoss] = {}
        """Dropped envelopes that were not reported yet, by reason."""
        self._log = ""
        """Log of the last acknowledgement, whose receipts count; empty for a collector that names none."""
        self._received: dict[int, ReceivedEnvelope] = {}
        """Receipts of the envelopes that do not wait, in the order of their positions."""
        self._counted: set[int] = set()
        """Envelopes that were received at least once."""
        self._accepted_node = ""
        """The only node whose envelopes can be delivered; empty before a collector has rejected another one."""

    def __len__(self) -> int:
        """Number of envelopes that wait to be received."""
        return len(self._waiting)

    @property
    def newest(self) -> SpooledEnvelope:
        """Envelope that was spooled last. Raises StopIteration if there is none."""
        return next(reversed(self._envelopes.values()))

    @property
    def unstored_count(self) -> int:
        """Number of envelopes that a collector has received and not stored."""
        return len(self._received)

    @property
    def unstored_since_ns(self) -> int | None:
        """Receipt of the oldest of these envelopes on the boot clock; None if there is none."""
        oldest = next(iter(self._received.values()), None)
        return oldest and oldest.boot_ns

    def put(self, body: bytes, frames: int, *, is_synced: bool = True) -> None:
        """Spool an envelope; older ones may be dropped for it. Raises OSError (a full disk)."""
        # The count is in the file, so that a loss can be counted without decoding; the checksum finds damage
        # of the disk.
        head = frames.to_bytes(4, "little") + zlib.crc32(body).to_bytes(4, "little")
        # Before the write, so that the directory never exceeds the bound.
        self._free_space(len(head) + len(body))
        spooled = SpooledEnvelope(self._next, len(head) + len(body), frames, is_synced)
        write = durable_files.write_durably if is_synced else durable_files.write_atomically
        write(self._path(spooled), head + body)
        self._next += 1
        self._envelopes[spooled.number] = self._waiting[spooled.number] = spooled
        self.size += spooled.size
        self.waiting_bytes += spooled.size

    def oldest(self) -> tuple[SpooledEnvelope, bytes] | None:
        """Return the envelope to send next, after those that are damaged or of another node were dropped.

        Raises OSError if the disk cannot be read now; the envelope stays.
        """
        while spooled := next(iter(self._waiting.values()), None):
            body = self._read_body(spooled)
            if body is None:
                self._drop(spooled, "damaged" if spooled.is_synced else "unstored")
            elif self._accepted_node and is_of_other_node(body, self._accepted_node):
                self._drop(spooled, "rejected")
            else:
                return spooled, body
        return None

    def take_losses(self) -> list[FrameLoss]:
        """Return what was dropped since the last call, once for each reason, however many envelopes there were."""
        losses, self._losses = self._losses, {}
        return list(losses.values())

    def _drop(self, spooled: SpooledEnvelope, reason: str) -> None:
        self.remove(spooled)
        before = self._losses.get(reason, FrameLoss(reason, 0, 0))
        self._losses[reason] = FrameLoss(
            reason, before.envelopes + 1, before.frames + spooled.frames
        )

    def accept_only(self, node: str) -> None:
        """Drop the envelopes of other nodes, each when it is the next one to send."""
        self._accepted_node = node

    def _read_body(self, spooled: SpooledEnvelope) -> bytes | None:
        """Return the body of a spooled envelope; None if it is damaged. Raises OSError."""
        try:
            content = self._path(spooled).read_bytes()
        except FileNotFoundError:
            # An administrator may delete files. An empty content has no checksum, so it counts as damaged.
            content = b""
        body = content[_HEAD_BYTES:]
        is_valid = zlib.crc32(body).to_bytes(4, "little") == content[4:_HEAD_BYTES]
        return body if is_valid else None

    def remove(self, spooled: SpooledEnvelope) -> bool:
        """Remove an envelope that was stored or rejected.

        Return False if it has been dropped for lack of space: it is counted as lost already.
        """
        if self._envelopes.pop(spooled.number, None) is None:
            return False
        if self._waiting.pop(spooled.number, None):
            self.waiting_bytes -= spooled.size
        self._received.pop(spooled.number, None)
        self._counted.discard(spooled.number)
        self.size -= spooled.size
        try:
            self._path(spooled).unlink(missing_ok=True)
        except OSError as error:
            # It is removed from the queue all the same: after a restart it is sent again, and counts once.
            log.warning(
                "envelope_removal_failed", file=str(self._path(spooled)), problem=str(error)
            )
        return True

    def receive(
        self, spooled: SpooledEnvelope | None, receipt: EvidenceReceipt, boot_ns: int
    ) -> int:
        """Record that a collector received an envelope, and remove those whose evidence is stored.

        Return the envelope's frames; 0 if they were received before, or the envelope was dropped.
        """
        self.select_log(receipt.log)
        newest = next(reversed(self._received.values()), None)
        # The collector was restored from a backup: what it received since then is missing there, so it is
        # sent again.
        if newest and receipt.position < newest.position:
            log.error("collector_state_replaced", problem="its positions have decreased")
            self._wait_again()
        frames = 0
        if spooled and spooled.number in self._envelopes:
            if not spooled.first_receipt:
                self._envelopes[spooled.number] = replace(spooled, first_receipt=receipt.receipt)
            if self._waiting.pop(spooled.number, None):
                self.waiting_bytes -= spooled.size
            self._received[spooled.number] = ReceivedEnvelope(receipt.position, boot_ns)
            # Sent again to another collector, it is no further delivery.
            frames = 0 if spooled.number in self._counted else spooled.frames
            self._counted.add(spooled.number)
        # Positions increase, so none behind the first one that is not stored is stored either.
        stored = takewhile(lambda item: item[1].position <= receipt.stored, self._received.items())
        for number in [number for number, _ in stored]:
            self.remove(self._envelopes[number])
        return frames

    def select_log(self, name: str) -> None:
        """Continue with a log; if it is another one, the envelopes that the former one received wait again."""
        if name != self._log:
            self._log = name
            self._wait_again()

    def _wait_again(self) -> None:
        """Let all envelopes wait, oldest first; a collector that received one recognizes it."""
        self._received.clear()
        self._waiting = dict(self._envelopes)
        self.waiting_bytes = self.size

    def _free_space(self, needed_bytes: int) -> None:
        """Drop envelopes, first those that a collector has received: only the loss of its disk loses them.

        Of those, some more are dropped at once, so that losses are not reported with each envelope.
        """
        max_bytes = self._max_bytes - needed_bytes
        if self.size <= max_bytes:
            return
        reserve = self._max_bytes // _RESERVE
        # Waiting envelopes are dropped only as needed: each is a certain loss.
        for numbers, bound in ((self._received, max_bytes - reserve), (self._waiting, max_bytes)):
            while numbers and self.size > bound:
                number = next(iter(numbers))
                self._drop(
                    self._envelopes[number],
                    "unstored" if number in self._counted else "spool_full",
                )

    def _path(self, spooled: SpooledEnvelope) -> Path:
        suffix = _SUFFIX if spooled.is_synced else _UNSYNCED_SUFFIX
        return self._directory / f"{spooled.number:0{_NAME_DIGITS}d}{suffix}"

    def _scan_directory(self) -> list[SpooledEnvelope]:
        envelopes = []
        for entry in os.scandir(self._directory):
            name, _, suffix = entry.name.partition(".")
            if f".{suffix}" in {_SUFFIX, _UNSYNCED_SUFFIX} and name.isdecimal():
                with open(entry.path, "rb") as file:  # noqa: PTH123 - scandir returns plain paths
                    # Only the count is read: a full spool of hundreds of MiB must not delay the start.
                    frames = int.from_bytes(file.read(4), "little")
                is_synced = f".{suffix}" == _SUFFIX
                size = entry.stat().st_size
                envelopes.append(SpooledEnvelope(int(name), size, frames, is_synced))
        return envelopes
