"""Server of SNMP for simulated switches: version 2c by UDP, with GetRequest, GetNextRequest and GetBulkRequest.

The community of a request selects the objects, as in snmpsim. A datagram that is no request has no answer, as of a device.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, cast

from railscope.settings import SettingsError
from railscope_simulator.snmp_answers import FindObjects, Oid, SnmpObject, SnmpType

_SEQUENCE, _NULL, _NO_OBJECT, _END_OF_VIEW = 0x30, 0x05, 0x80, 0x82
_GET, _GET_NEXT, _RESPONSE, _GET_BULK = 0xA0, 0xA1, 0xA2, 0xA5
_VERSION_2C = 1
_MAX_DATAGRAM = 1400
"""Bytes of the rows of an answer, as of devices: more would be fragmented."""
_MAX_ROWS = 256
_LONG, _MAX_LENGTH_BYTES = 0x80, 3
_FIRST_ARC = 40
_MORE, _ARC_BITS = 0x80, 7
Communities: TypeAlias = Mapping[str, FindObjects]
"""Objects of a switch by community."""


class _Field(NamedTuple):
    """A value in BER: its tag and content, and the position behind it."""

    tag: int
    content: bytes
    end: int


class _Request(NamedTuple):
    """A request: its kind and number, the two numbers whose meaning depends on the kind, and OIDs."""

    kind: int
    number: int
    first: int
    second: int
    oids: list[Oid]


# BER ---------------------------------------------------------------------------------------------


def _read(data: bytes, position: int, expected: int | None = None) -> _Field:
    """Return the value at a position. Raises ValueError."""
    if position + 2 > len(data):
        raise ValueError(position)
    tag, length, start = data[position], data[position + 1], position + 2
    if length & _LONG:
        count = length & ~_LONG
        if not 1 <= count <= _MAX_LENGTH_BYTES or start + count > len(data):
            raise ValueError(position)
        length = int.from_bytes(data[start : start + count])
        start += count
    end = start + length
    if end > len(data) or tag != (tag if expected is None else expected):
        raise ValueError(position)
    return _Field(tag, data[start:end], end)


def _integer(found: _Field) -> int:
    return int.from_bytes(found.content, signed=True)


def _decode_oid(content: bytes) -> Oid:
    """Return the numbers of an OID. Raises ValueError."""
    numbers, value = list[int](), 0
    for byte in content:
        value = value << _ARC_BITS | byte & ~_MORE
        if value >= 1 << 32:
            raise ValueError(value)
        if not byte & _MORE:
            numbers.append(value)
            value = 0
    if not numbers or content[-1] & _MORE:
        raise ValueError(content)
    first = min(numbers[0] // _FIRST_ARC, 2)
    return first, numbers[0] - first * _FIRST_ARC, *numbers[1:]


def _encode(tag: int, content: bytes) -> bytes:
    length = len(content)
    if length < _LONG:
        return bytes((tag, length)) + content
    size = length.to_bytes((length.bit_length() + 7) // 8)
    return bytes((tag, _LONG | len(size))) + size + content


def _encode_number(tag: int, value: int) -> bytes:
    # One bit more than the value needs: the first one is its sign.
    return _encode(tag, value.to_bytes(value.bit_length() // 8 + 1, signed=True))


def _encode_oid(oid: Oid) -> bytes:
    content = bytearray()
    for number in (oid[0] * _FIRST_ARC + oid[1], *oid[2:]):
        rest = number >> _ARC_BITS
        groups = [number & ~_MORE & 0xFF]
        while rest:
            groups.append(rest & 0x7F | _MORE)
            rest >>= _ARC_BITS
        content += bytes(reversed(groups))
    return _encode(SnmpType.OBJECT_ID, bytes(content))


def _encode_row(oid: Oid, value: bytes) -> bytes:
    return _encode(_SEQUENCE, _encode_oid(oid) + value)


def _encode_value(found: SnmpObject) -> bytes:
    if isinstance(found.value, int):
        return _encode_number(found.kind, found.value)
    if isinstance(found.value, bytes):
        return _encode(found.kind, found.value)
    return _encode_oid(found.value)


# Requests ----------------------------------------------------------------------------------------


def _decode_request(datagram: bytes) -> tuple[str, _Request]:
    """Return the community of a request, and the request. Raises ValueError."""
    message = _read(datagram, 0, _SEQUENCE).content
    version = _read(message, 0, SnmpType.INTEGER)
    community = _read(message, version.end, SnmpType.OCTETS)
    request = _read(message, community.end)
    if _integer(version) != _VERSION_2C or request.tag not in {_GET, _GET_NEXT, _GET_BULK}:
        raise ValueError(request.tag)
    numbers, position = list[int](), 0
    for _ in range(3):
        found = _read(request.content, position, SnmpType.INTEGER)
        numbers.append(_integer(found))
        position = found.end
    rows, oids = _read(request.content, position, _SEQUENCE).content, list[Oid]()
    position = 0
    while position < len(rows):
        row = _read(rows, position, _SEQUENCE)
        oids.append(_decode_oid(_read(row.content, 0, SnmpType.OBJECT_ID).content))
        position = row.end
    number, first, second = numbers
    return community.content.decode(), _Request(request.tag, number, first, second, oids)


def answer_datagram(datagram: bytes, communities: Communities) -> bytes:
    """Return the answer to a datagram; empty for one that is no request, or has another community. Blocking."""
    try:
        community, request = _decode_request(datagram)
    except ValueError:
        return b""
    find = communities.get(community)
    if find is None:
        return b""
    rows = b"".join(_within_datagram(_rows(request, find())))
    body = b"".join((
        _encode_number(SnmpType.INTEGER, request.number), _encode_number(SnmpType.INTEGER, 0),
        _encode_number(SnmpType.INTEGER, 0), _encode(_SEQUENCE, rows),
    ))  # fmt: skip
    head = _encode_number(SnmpType.INTEGER, _VERSION_2C)
    named = _encode(SnmpType.OCTETS, community.encode())
    return _encode(_SEQUENCE, head + named + _encode(_RESPONSE, body))


def _within_datagram(rows: Iterator[bytes]) -> Iterator[bytes]:
    """Yield rows up to the size of a datagram, at least one."""
    size = 0
    for number, row in enumerate(rows):
        size += len(row)
        if number == _MAX_ROWS or (number and size > _MAX_DATAGRAM):
            return
        yield row


def _rows(request: _Request, objects: list[SnmpObject]) -> Iterator[bytes]:
    if request.kind == _GET:
        known = {each.oid: each for each in objects}
        for oid in request.oids:
            found = known.get(oid)
            yield _encode_row(oid, _encode_value(found) if found else _encode(_NO_OBJECT, b""))
        return
    is_bulk = request.kind == _GET_BULK
    once = max(request.first, 0) if is_bulk else len(request.oids)
    places = [bisect.bisect_right(objects, oid, key=lambda each: each.oid) for oid in request.oids]
    for oid, place in zip(request.oids[:once], places, strict=False):
        yield _row_at(objects, place, oid)
    repeated = list(zip(request.oids[once:], places[once:], strict=True))
    for step in range(max(request.second, 0) if repeated else 0):
        for oid, place in repeated:
            yield _row_at(objects, place + step, oid)
        if all(place + step >= len(objects) for _, place in repeated):
            return


def _row_at(objects: list[SnmpObject], place: int, asked: Oid) -> bytes:
    if place >= len(objects):
        last = objects[-1].oid if objects else asked
        return _encode_row(max(last, asked), _encode(_END_OF_VIEW, b""))
    return _encode_row(objects[place].oid, _encode_value(objects[place]))


# Server ------------------------------------------------------------------------------------------


@dataclass
class _Agent(asyncio.DatagramProtocol):
    """Answers the datagrams of one address."""

    communities: Communities
    transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport for answers."""
        self.transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str | int, ...]) -> None:
        """Answer a request."""
        answer = answer_datagram(data, self.communities)
        if answer and self.transport:
            self.transport.sendto(answer, addr)


@contextlib.asynccontextmanager
async def serve(communities: Communities, host: str, port: int) -> AsyncIterator[int]:
    """Answer at an address by UDP; yield its port. Raises SettingsError."""
    loop = asyncio.get_running_loop()
    try:
        transport, _ = await loop.create_datagram_endpoint(
            lambda: _Agent(communities), local_addr=(host, port)
        )
    except OSError as error:
        message = f"cannot listen on {host}:{port}/udp: {error}"
        raise SettingsError(message) from error
    try:
        yield int(transport.get_extra_info("sockname")[1])
    finally:
        transport.close()
