"""Decoder of protobuf messages, without their schema."""

from __future__ import annotations

from collections.abc import Iterator

from railscope_agent.owners import OwnerFormatError

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_FIXED = {_FIXED64: 8, _FIXED32: 4}
# Ten groups of seven bits hold 64 bits.
_MAX_BYTES, _RANGE = 10, 1 << 64


class ProtobufMessage:
    """Fields of one message, by number. Raises OwnerFormatError for invalid bytes.

    Limited to the field types of a few simple messages. Encoding:
    protocolbuffers/protocolbuffers.github.io:content/programming-guides/encoding.md. Fields that are not
    requested, or have another type than requested, are skipped, as in every protobuf decoder.
    """

    def __init__(self, content: bytes) -> None:
        self._pieces: dict[int, list[bytes]] = {}
        for number, value in _fields(content):
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
            message = f"field {number}: invalid UTF-8: {error}"
            raise OwnerFormatError(message) from error

    def messages(self, number: int) -> Iterator[ProtobufMessage]:
        """Return a repeated message; the caller merges one that arrives in several pieces."""
        return map(ProtobufMessage, self._pieces.get(number, ()))


def _fields(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the bytes of each length-delimited field, in order; skip other fields."""
    offset = 0
    while offset < len(content):
        tag, offset = _varint(content, offset)
        number, kind = tag >> 3, tag & 7
        if not number or number >= 1 << 29:
            message = f"byte {offset}: invalid field number {number}"
            raise OwnerFormatError(message)
        if kind == _VARINT:
            _, offset = _varint(content, offset)
            continue
        if kind == _LENGTH:
            length, offset = _varint(content, offset)
        elif kind in _FIXED:
            length = _FIXED[kind]
        else:
            message = f"byte {offset}: field {number} has the unknown type {kind}"
            raise OwnerFormatError(message)
        # Checked before the slice, which would silently be shorter.
        if length > len(content) - offset:
            message = f"byte {offset}: truncated field {number}: {len(content) - offset} of {length} bytes"
            raise OwnerFormatError(message)
        if kind == _LENGTH:
            yield number, content[offset : offset + length]
        offset += length


def _varint(content: bytes, offset: int) -> tuple[int, int]:
    """Decode a varint of up to 64 bits, seven per byte, lowest first; return it and its end."""
    value = 0
    for place, byte in enumerate(content[offset : offset + _MAX_BYTES]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:  # noqa: PLR2004 - the top bit means that more bytes follow
            if value >= _RANGE:
                break
            return value, offset + place + 1
    message = f"byte {offset}: invalid number: truncated, or more than 64 bits"
    raise OwnerFormatError(message)
