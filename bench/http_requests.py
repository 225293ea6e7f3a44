"""Requests over many persistent connections, and Prometheus' remote write.

The duration of each answer is measured. Remote write is encoded by hand: samples as numpy blocks,
labels as bytes made once. The snappy block around each request contains one literal, which is the
cheapest to decompress.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bench.harness import HOST, BenchError

Request = tuple[bytes, bytes]
"""Head and body of a request."""

_END_OF_HEAD = b"\r\n\r\n"
_CHUNK = 65536


@dataclass(frozen=True, slots=True)
class PostResult:
    """Result of many requests."""

    elapsed_seconds: float
    latencies: list[float]
    reconnections: int
    """Connections that the server had closed while they were idle."""


class PostConnection:
    """One persistent connection; as agents do, it is opened again if the server has closed it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._socket = self._open()
        self._is_reused = False
        self.reconnections = 0
        self.tag = ""
        """Entity tag of the last answer; empty if it has none."""

    def _open(self) -> socket.socket:
        opened = socket.create_connection((HOST, self._port), timeout=120)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return opened

    def post(self, request: Request) -> tuple[int, bytes]:
        """Send a request and return its answer: status and content."""
        try:
            return self._exchange(request)
        except ConnectionError:
            if not self._is_reused:
                raise
        # The server may have closed the idle connection just before it was used.
        self._socket.close()
        self._socket, self._is_reused = self._open(), False
        self.reconnections += 1
        return self._exchange(request)

    def _exchange(self, request: Request) -> tuple[int, bytes]:
        self._socket.sendall(request[0] + request[1])
        data = b""
        while _END_OF_HEAD not in data:
            data += self._more()
        top, _, content = data.partition(_END_OF_HEAD)
        size, self.tag = 0, ""
        for line in top.split(b"\r\n")[1:]:
            key, _, value = line.partition(b":")
            if key.lower() == b"content-length":
                size = int(value)
            elif key.lower() == b"etag":
                self.tag = value.strip().decode()
        while len(content) < size:
            content += self._more()
        self._is_reused = True
        return int(top.split(b" ", 2)[1]), content

    def _more(self) -> bytes:
        data = self._socket.recv(_CHUNK)
        if not data:
            message = "reading a response failed: the server closed the connection"
            raise ConnectionAbortedError(message)
        return data

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


def post_all(
    port: int,
    requests: Sequence[Request],
    connections: int,
    *,
    over_seconds: float = 0.0,
    answer: Callable[[PostConnection, int, int, bytes], None] | None = None,
) -> PostResult:
    """Send requests over a number of connections: at once, or spread evenly over some seconds.

    `answer` is called for each answer: connection, number of the request, status, content. Without it, an
    answer that is not 2xx is an error.
    """
    latencies = [0.0] * len(requests)
    problems: list[Exception] = []
    reconnections: list[int] = []
    started = time.monotonic() + 0.05

    def work(first: int) -> None:
        wire = PostConnection(port)
        try:
            for number in range(first, len(requests), connections):
                _wait(started + over_seconds * number / len(requests))
                request = requests[number]
                sent = time.monotonic()
                status, content = wire.post(request)
                latencies[number] = time.monotonic() - sent
                if answer is not None:
                    answer(wire, number, status, content)
                elif status // 100 != 2:  # noqa: PLR2004 - HTTP's success
                    message = f"a request failed: status {status}: {content[:200]!r}"
                    raise BenchError(message)  # noqa: TRY301 - raised to the waiting thread
        except (OSError, BenchError) as error:
            problems.append(error)
        finally:
            wire.close()
            reconnections.append(wire.reconnections)

    threads = [
        threading.Thread(target=work, args=(number,), daemon=True)
        for number in range(min(connections, len(requests)))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]
    return PostResult(time.monotonic() - started, latencies, sum(reconnections))


def _wait(until: float) -> None:
    left = until - time.monotonic()
    if left > 0:
        time.sleep(left)


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


def encode_request(path: str, parts: Iterable[bytes]) -> Request:
    """Return a request that writes series, each as its head and its samples."""
    data = b"".join(parts)
    body = _varint(len(data)) + _LITERAL + (len(data) - 1).to_bytes(4, "little") + data
    head = (
        f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Encoding: snappy\r\n"
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
