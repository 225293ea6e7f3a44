"""Prometheus' remote write, by hand: samples as blocks of numpy, labels as bytes made once.

The snappy block around each request holds one literal, which is the cheapest there is to unpack.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from bench.wires import Request

_LENGTH_DELIMITED = 2
_LITERAL = b"\xfc"
"""Snappy's tag of a literal whose length follows in four bytes."""

SAMPLE = np.dtype(
    [("tag", "u1"), ("size", "u1"), ("value_tag", "u1"), ("value", "<f8"), ("time_tag", "u1"),
     ("time", "V6")]
)  # fmt: skip
"""TimeSeries.samples: value and a timestamp in milliseconds, which takes six bytes in our time."""

Samples = npt.NDArray[np.void]


def instants(milliseconds: Iterable[int]) -> npt.NDArray[np.void]:
    """Timestamps as samples have them."""
    return np.frombuffer(b"".join(map(_varint, milliseconds)), "V6")


def samples(values: npt.NDArray[np.float64], times: npt.NDArray[np.void]) -> Samples:
    """A sample of each value: rows of series, columns of instants."""
    block = np.zeros(values.shape, SAMPLE)
    block["tag"], block["size"] = 0x12, SAMPLE.itemsize - 2
    block["value_tag"], block["time_tag"] = 0x09, 0x10
    block["value"], block["time"] = values, times
    return block


def label(name: str, value: str) -> bytes:
    """One label of a series."""
    text = value.encode()
    inner = b"".join((_field(1, len(name)), name.encode(), _field(2, len(text)), text))
    return _field(1, len(inner)) + inner


def series(labels: bytes, size: int) -> bytes:
    """The head of a series: its samples, of `size` bytes, come after it."""
    return _field(1, len(labels) + size) + labels


def request(path: str, parts: Iterable[bytes]) -> Request:
    """A request to write series, each of which is its head and its samples."""
    body = _snappy(b"".join(parts))
    head = (
        f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Encoding: snappy\r\n"
        "Content-Type: application/x-protobuf\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode(), body


def _snappy(data: bytes) -> bytes:
    return _varint(len(data)) + _LITERAL + (len(data) - 1).to_bytes(4, "little") + data


def _field(number: int, size: int) -> bytes:
    return bytes([number << 3 | _LENGTH_DELIMITED]) + _varint(size)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:  # noqa: PLR2004 - seven bits a byte
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
