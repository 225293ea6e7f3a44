"""Decoder for protobuf messages in wire format, limited to a few simple messages.

Encoding: protocolbuffers/protocolbuffers.github.io:content/programming-guides/encoding.md. Fields that are
not requested, or have another type than requested, are skipped, as in every protobuf decoder.
"""

from __future__ import annotations

from collections.abc import Iterator

from agent.owners import FormatError

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_FIXED = {_FIXED64: 8, _FIXED32: 4}
_MAX_BYTES, _SIGN, _RANGE = 10, 1 << 63, 1 << 64


class Message:
    """Fields of one message, by number. Raises FormatError for invalid bytes."""

    def __init__(self, content: bytes) -> None:
        self._pieces: dict[int, list[bytes]] = {}
        self._integers: dict[int, list[int]] = {}
        for number, value in _fields(content):
            if isinstance(value, int):
                self._integers.setdefault(number, []).append(value)
            else:
                self._pieces.setdefault(number, []).append(value)

    def text(self, number: int) -> str:
        """Return a string field; the last value counts, and the default is empty."""
        texts = self.texts(number)
        return texts[-1] if texts else ""

    def texts(self, number: int) -> tuple[str, ...]:
        """Return a repeated string field."""
        try:
            return tuple(piece.decode() for piece in self._pieces.get(number, ()))
        except UnicodeDecodeError as error:
            message = f"field {number} is no UTF-8: {error}"
            raise FormatError(message) from error

    def integer(self, number: int) -> int:
        """Return a signed integer (int64); the last value counts, and the default is zero."""
        value = self._integers.get(number, [0])[-1]
        return value - _RANGE if value >= _SIGN else value

    def messages(self, number: int) -> Iterator[Message]:
        """Return a repeated message; the caller merges one that arrives in several pieces."""
        return map(Message, self._pieces.get(number, ()))


def _fields(content: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Yield the fields in order: integers, and the bytes of length-delimited fields."""
    at = 0
    while at < len(content):
        tag, at = _varint(content, at)
        number, kind = tag >> 3, tag & 7
        if not number or number >= 1 << 29:
            message = f"byte {at}: there is no field {number}"
            raise FormatError(message)
        if kind == _VARINT:
            value, at = _varint(content, at)
            yield number, value
            continue
        if kind == _LENGTH:
            length, at = _varint(content, at)
        elif kind in _FIXED:
            length = _FIXED[kind]
        else:
            message = f"byte {at}: field {number} is of type {kind}, which is not in use"
            raise FormatError(message)
        if length > len(content) - at:
            message = (
                f"byte {at}: field {number} has {length} bytes, of which {len(content) - at} came"
            )
            raise FormatError(message)
        if kind == _LENGTH:
            yield number, content[at : at + length]
        at += length


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """Decode a varint of up to 64 bits, seven per byte, lowest first; return it and its end."""
    value = 0
    for place, byte in enumerate(content[at : at + _MAX_BYTES]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:  # noqa: PLR2004 - the top bit means that more bytes follow
            if value >= _RANGE:
                break
            return value, at + place + 1
    message = f"byte {at}: a number that does not end, or has more than 64 bits"
    raise FormatError(message)
