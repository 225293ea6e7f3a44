"""Messages from the collector to the process of its diagnosis: what the frame log does not contain.

    message = length (4 bytes) ‖ MessagePack of `DiagnosisInput`

A message states only what has changed; the newest value counts.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import msgspec

from railscope_collector.detector_thresholds import DetectorThresholds
from railscope_collector.diagnosis.switch_fabric import LinkedPort
from railscope_collector.live_diagnosis import DiagnosisExchangeError
from railscope_collector.workloads.job_roster import JobKey

MAX_MESSAGE_BYTES = 256 << 20
_LENGTH = struct.Struct("<I")


class DiagnosisInput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Statements of the collector; None is unchanged."""

    wall_ns: int
    """Time of the collector's clock."""
    acknowledged: int = 0
    """Sequence of the last change that is in the audit log."""
    thresholds: DetectorThresholds | None = None
    jobs: list[tuple[JobKey, list[str]]] | None = None
    """Running jobs with their GPUs."""
    links: list[LinkedPort] | None = None


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(DiagnosisInput)


def encode_input(message: DiagnosisInput) -> bytes:
    """Encode a message with its length."""
    content = _encoder.encode(message)
    return _LENGTH.pack(len(content)) + content


class InputBuffer:
    """Bytes of messages as they are received."""

    def __init__(self) -> None:
        self._content = bytearray()

    def add(self, content: bytes) -> None:
        """Add what was received."""
        self._content += content

    def take(self) -> Iterator[DiagnosisInput]:
        """Yield the complete messages. Raises DiagnosisExchangeError."""
        while len(self._content) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._content)
            if length > MAX_MESSAGE_BYTES:
                text = f"message of {length} bytes: expected at most {MAX_MESSAGE_BYTES}"
                raise DiagnosisExchangeError(text)
            end = _LENGTH.size + length
            if len(self._content) < end:
                return
            try:
                message = _decoder.decode(bytes(self._content[_LENGTH.size : end]))
            except (msgspec.MsgspecError, ValueError, RecursionError) as error:
                text = f"invalid message: {error}"
                raise DiagnosisExchangeError(text) from error
            del self._content[:end]
            yield message
