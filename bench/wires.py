"""Many persistent connections that post prepared requests, and the duration of each answer."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bench.processes import HOST, BenchError

Request = tuple[bytes, bytes]
"""Head and body."""

_END_OF_HEAD = b"\r\n\r\n"
_CHUNK = 65536


@dataclass(frozen=True, slots=True)
class Posted:
    """Result of many requests."""

    elapsed_seconds: float
    latencies: list[float]


class Wire:
    """One persistent connection."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection((HOST, port), timeout=120)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def post(self, request: Request) -> tuple[int, bytes]:
        """Send a request and return its answer: status and content."""
        self._socket.sendall(request[0] + request[1])
        data = b""
        while _END_OF_HEAD not in data:
            data += self._more()
        top, _, content = data.partition(_END_OF_HEAD)
        size = 0
        for line in top.split(b"\r\n")[1:]:
            key, _, value = line.partition(b":")
            if key.lower() == b"content-length":
                size = int(value)
        while len(content) < size:
            content += self._more()
        return int(top.split(b" ", 2)[1]), content

    def _more(self) -> bytes:
        data = self._socket.recv(_CHUNK)
        if not data:
            message = "the server hung up"
            raise BenchError(message)
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
    answer: Callable[[Wire, int, int, bytes], None] | None = None,
) -> Posted:
    """Post requests over a number of connections: at once, or spread evenly over some seconds.

    `answer` is called for answers that are not 2xx: connection, number of the request, status,
    content.
    """
    latencies = [0.0] * len(requests)
    problems: list[Exception] = []
    started = time.monotonic() + 0.05

    def work(first: int) -> None:
        wire = Wire(port)
        try:
            for number in range(first, len(requests), connections):
                _wait(started + over_seconds * number / len(requests))
                request = requests[number]
                sent = time.monotonic()
                status, content = wire.post(request)
                latencies[number] = time.monotonic() - sent
                if status // 100 != 2:  # noqa: PLR2004 - HTTP's success
                    if answer is None:
                        message = f"answered {status}: {content[:200]!r}"
                        raise BenchError(message)  # noqa: TRY301 - raised to the waiting thread
                    answer(wire, number, status, content)
        except (OSError, BenchError) as error:
            problems.append(error)
        finally:
            wire.close()

    threads = list(_started(work, min(connections, len(requests))))
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]
    return Posted(time.monotonic() - started, latencies)


def _started(work: Callable[[int], None], count: int) -> Iterator[threading.Thread]:
    for number in range(count):
        thread = threading.Thread(target=work, args=(number,), daemon=True)
        thread.start()
        yield thread


def _wait(until: float) -> None:
    left = until - time.monotonic()
    if left > 0:
        time.sleep(left)
