"""Prometheus' remote write, encoded by hand: samples as numpy blocks, labels as bytes made once.

The snappy block around each request contains one literal, which is the cheapest to decompress.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from bench.http_requests import Request

PATH = "/api/v1/write"
_LENGTH_DELIMITED = 2
_LITERAL = b"\xfc"
"""Snappy's tag of a literal with a length in the following four bytes."""

SAMPLE = np.dtype(
    [("tag", "u1"), ("size", "u1"), ("value_tag", "u1"), ("value", "<f8"), ("time_tag", "u1"),
     ("time", "V6")]
)  # fmt: skip
"""TimeSeries.samples: value and timestamp in milliseconds, which takes six bytes for current dates."""

Samples = npt.NDArray[np.void]


def encode_timestamps(milliseconds: Iterable[int]) -> npt.NDArray[np.void]:
    """Return timestamps in the encoding of samples."""
    return np.frombuffer(b"".join(map(_varint, milliseconds)), "V6")


def encode_samples(values: npt.NDArray[np.float64], times: npt.NDArray[np.void]) -> Samples:
    """Encode a sample of each value: rows are series, columns are timestamps."""
    block = np.zeros(values.shape, SAMPLE)
    block["tag"], block["size"] = 0x12, SAMPLE.itemsize - 2
    block["value_tag"], block["time_tag"] = 0x09, 0x10
    block["value"], block["time"] = values, times
    return block


def encode_label(name: str, value: str) -> bytes:
    """Encode one label of a series."""
    text = value.encode()
    inner = b"".join((_field(1, len(name)), name.encode(), _field(2, len(text)), text))
    return _field(1, len(inner)) + inner


def encode_series_head(labels: bytes, size: int) -> bytes:
    """Encode the head of a series; its samples, of `size` bytes, follow."""
    return _field(1, len(labels) + size) + labels


def encode_request(parts: Iterable[bytes]) -> Request:
    """Return a request that writes series, each as its head and its samples."""
    data = b"".join(parts)
    body = _varint(len(data)) + _LITERAL + (len(data) - 1).to_bytes(4, "little") + data
    head = (
        f"POST {PATH} HTTP/1.1\r\nHost: bench\r\nContent-Encoding: snappy\r\n"
        "Content-Type: application/x-protobuf\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode(), body


def _field(number: int, size: int) -> bytes:
    return bytes([number << 3 | _LENGTH_DELIMITED]) + _varint(size)


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:  # noqa: PLR2004 - seven bits per byte
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
