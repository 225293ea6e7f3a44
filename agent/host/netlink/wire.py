"""Encoding and decoding of netlink messages and attributes, with every length checked.

Format: linux UAPI include/uapi/linux/netlink.h; integers are in native byte order. Inconsistent
data raises OSError with EBADMSG.
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


def contradiction(what: str) -> NoReturn:
    """Raise OSError for inconsistent bytes."""
    raise OSError(errno.EBADMSG, f"a netlink answer makes no sense: {what}")


def encode(message: Message) -> bytes:
    """Encode a message for the kernel."""
    kind, flags, sequence, body = message
    return _HEADER.pack(_HEADER.size + len(body), kind, flags, sequence, 0) + body


def messages(datagram: bytes) -> Iterator[Message]:
    """Messages of one received datagram."""
    at = 0
    while at < len(datagram):
        if len(datagram) - at < _HEADER.size:
            contradiction("a message is cut off in its header")
        length, kind, flags, sequence, _ = _HEADER.unpack_from(datagram, at)
        if not _HEADER.size <= length <= len(datagram) - at:
            contradiction(f"a message of {length} bytes where {len(datagram) - at} are left")
        yield Message(kind, flags, sequence, datagram[at + _HEADER.size : at + length])
        at += _aligned(length)


def attribute(kind: int, value: bytes) -> bytes:
    """An attribute, padded to the start of the next one."""
    length = _ATTRIBUTE.size + len(value)
    return _ATTRIBUTE.pack(length, kind) + value + bytes(_aligned(length) - length)


def nest(kind: int, *inner: bytes) -> bytes:
    """An attribute that contains attributes."""
    return attribute(kind | _NESTED, b"".join(inner))


def text_attribute(kind: int, value: str) -> bytes:
    """An attribute that contains a string."""
    return attribute(kind, value.encode(errors="replace") + b"\0")


def interface_attribute(kind: int, interface: str) -> bytes:
    """An attribute with an interface name. Raises OSError with ENODEV for an invalid name."""
    if not 0 < len(interface.encode(errors="replace")) <= _INTERFACE_BYTES or "\0" in interface:
        raise OSError(errno.ENODEV, f"{interface!r} cannot be the name of an interface")
    return text_attribute(kind, interface)


def attributes(raw: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and value of each attribute, in order."""
    at = 0
    while len(raw) - at >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(raw, at)
        if not _ATTRIBUTE.size <= length <= len(raw) - at:
            contradiction(f"an attribute of {length} bytes where {len(raw) - at} are left")
        yield kind & _TYPE_MASK, raw[at + _ATTRIBUTE.size : at + length]
        at += _aligned(length)


def integer(raw: bytes) -> int:
    """An unsigned integer of 1, 2, 4 or 8 bytes."""
    if len(raw) not in _INTEGERS:
        contradiction(f"an integer of {len(raw)} bytes")
    (value,) = struct.unpack(_INTEGERS[len(raw)], raw)
    return int(value)


def text(raw: bytes) -> str:
    """A string, up to its terminator."""
    return raw.split(b"\0")[0].decode(errors="replace")


def unpack(layout: struct.Struct, raw: bytes) -> tuple[Any, ...]:
    """Members of a C structure; a newer kernel may append more members."""
    if len(raw) < layout.size:
        contradiction(f"a structure of {len(raw)} bytes where {layout.size} belong")
    return layout.unpack_from(raw)


def refusal(message: Message) -> OSError | None:
    """Error that ends an answer (NLMSG_ERROR, NLMSG_DONE); None on success.

    The text includes the extended acknowledgement of the driver or the kernel.
    """
    if message.kind == NLMSG_DONE and not message.body:
        return None
    (code,) = unpack(_ERRNO, message.body)
    if code >= 0:
        return None
    if code < -_LARGEST_ERRNO:
        contradiction(f"an error {code}")
    said = "".join(text(value) for kind, value in _explanation(message) if kind == _ERROR_TEXT)
    return OSError(-code, os.strerror(-code) + (f": {said}" if said else ""))


def _explanation(message: Message) -> Iterator[tuple[int, bytes]]:
    if not message.flags & NLM_F_ACK_TLVS:
        return
    at = _ERRNO.size
    if message.kind == NLMSG_ERROR:  # struct nlmsgerr: the header of the request, or all of it
        length, *_ = unpack(_HEADER, message.body[at:])
        at += _HEADER.size if message.flags & NLM_F_CAPPED else _aligned(length)
    yield from attributes(message.body[at:])


def _aligned(length: int) -> int:
    return length + 3 & ~3
