"""Messages and attributes of netlink, encoded and decoded with every length checked.

Format: linux UAPI include/uapi/linux/netlink.h; integers are in native byte order. Inconsistent data
raises OSError with EBADMSG.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn

NLMSG_NOOP, NLMSG_ERROR, NLMSG_DONE, NLMSG_OVERRUN = 1, 2, 3, 4
NLM_F_REQUEST, NLM_F_MULTI, NLM_F_DUMP_INTR, NLM_F_DUMP = 0x01, 0x02, 0x10, 0x300
NLM_F_CAPPED, NLM_F_ACK_TLVS = 0x100, 0x200
_NESTED = 1 << 15
# The two highest bits are flags: nested, and in network byte order.
_TYPE_MASK = 0x3FFF
_ERROR_TEXT = 1  # NLMSGERR_ATTR_MSG
_INTERFACE_BYTES = 15  # linux/if.h, IFNAMSIZ less the end of the string
_LARGEST_ERRNO = 4095  # include/linux/err.h, MAX_ERRNO

_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_ERRNO = struct.Struct("=i")
_INTEGERS = {1: "B", 2: "=H", 4: "=I", 8: "=Q"}


class Message(NamedTuple):
    """One message, without alignment padding."""

    kind: int
    flags: int
    sequence: int
    body: bytes


def raise_inconsistent(problem: str) -> NoReturn:
    """Raise OSError for inconsistent bytes."""
    raise OSError(errno.EBADMSG, f"malformed netlink response: {problem}")


def encode(message: Message) -> bytes:
    """Encode a message for the kernel."""
    kind, flags, sequence, body = message
    return _HEADER.pack(_HEADER.size + len(body), kind, flags, sequence, 0) + body


def decode(datagram: bytes) -> Iterator[Message]:
    """Messages of one received datagram."""
    offset = 0
    while offset < len(datagram):
        if len(datagram) - offset < _HEADER.size:
            raise_inconsistent("truncated message header")
        length, kind, flags, sequence, _ = _HEADER.unpack_from(datagram, offset)
        if not _HEADER.size <= length <= len(datagram) - offset:
            raise_inconsistent(
                f"message of {length} bytes: {len(datagram) - offset} bytes are left"
            )
        yield Message(kind, flags, sequence, datagram[offset + _HEADER.size : offset + length])
        offset += _align(length)


def attribute(kind: int, value: bytes) -> bytes:
    """An attribute, padded to the start of the next one."""
    length = _ATTRIBUTE.size + len(value)
    return _ATTRIBUTE.pack(length, kind) + value + bytes(_align(length) - length)


def nest(kind: int, *inner: bytes) -> bytes:
    """An attribute that contains attributes."""
    return attribute(kind | _NESTED, b"".join(inner))


def text_attribute(kind: int, value: str) -> bytes:
    """An attribute that contains a string."""
    return attribute(kind, value.encode(errors="replace") + b"\0")


def interface_attribute(kind: int, interface: str) -> bytes:
    """An attribute with an interface name. Raises OSError with ENODEV for an invalid name."""
    if not 0 < len(interface.encode(errors="replace")) <= _INTERFACE_BYTES or "\0" in interface:
        raise OSError(errno.ENODEV, f"invalid interface name {interface!r}")
    return text_attribute(kind, interface)


def attributes(raw: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and value of each attribute, in order."""
    return ((kind, raw[place]) for kind, place in attribute_places(raw, slice(0, len(raw))))


def attribute_places(raw: bytes, within: slice) -> Iterator[tuple[int, slice]]:
    """Type and place of the value of each attribute in a part of an answer, in order."""
    offset = within.start
    while within.stop - offset >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(raw, offset)
        # A length of 0 would repeat the same attribute without end.
        if not _ATTRIBUTE.size <= length <= within.stop - offset:
            raise_inconsistent(
                f"attribute of {length} bytes: {within.stop - offset} bytes are left"
            )
        yield kind & _TYPE_MASK, slice(offset + _ATTRIBUTE.size, offset + length)
        offset += _align(length)


def integer(raw: bytes) -> int:
    """An unsigned integer of 1, 2, 4 or 8 bytes."""
    if len(raw) not in _INTEGERS:
        raise_inconsistent(f"integer of {len(raw)} bytes")
    (value,) = struct.unpack(_INTEGERS[len(raw)], raw)
    return int(value)


def text(raw: bytes) -> str:
    """A string, up to its terminator."""
    return raw.split(b"\0")[0].decode(errors="replace")


def unpack(layout: struct.Struct, raw: bytes) -> tuple[Any, ...]:
    """Members of a C structure; a newer kernel may append more members."""
    if len(raw) < layout.size:
        raise_inconsistent(f"structure of {len(raw)} bytes: expected {layout.size}")
    return layout.unpack_from(raw)


def answer_error(message: Message) -> OSError | None:
    """Error that ends an answer (NLMSG_ERROR, NLMSG_DONE); None on success.

    The text includes the extended acknowledgement of the driver or the kernel.
    """
    if message.kind == NLMSG_DONE and not message.body:
        return None
    (code,) = unpack(_ERRNO, message.body)
    if code >= 0:
        return None
    if code < -_LARGEST_ERRNO:
        raise_inconsistent(f"error {code}")
    explanation = "".join(
        text(value) for kind, value in _explanation(message) if kind == _ERROR_TEXT
    )
    return OSError(-code, os.strerror(-code) + (f": {explanation}" if explanation else ""))


def _explanation(message: Message) -> Iterator[tuple[int, bytes]]:
    if not message.flags & NLM_F_ACK_TLVS:
        return
    offset = _ERRNO.size
    if message.kind == NLMSG_ERROR:  # struct nlmsgerr: the header of the request, or all of it
        length, *_ = unpack(_HEADER, message.body[offset:])
        offset += _HEADER.size if message.flags & NLM_F_CAPPED else _align(length)
    yield from attributes(message.body[offset:])


def _align(length: int) -> int:
    return length + 3 & ~3
