"""Requests over persistent connections; the duration of each answer is measured."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench import harness

Request = tuple[bytes, bytes]
"""Head and body of a request."""

_END_OF_HEAD = b"\r\n\r\n"
_CHUNK = 65536


@dataclass(frozen=True, slots=True)
class RequestsCost:
    """Time of many requests."""

    elapsed_seconds: float
    latencies: list[float]
    reconnections: int
    """Connections that the server had closed while they were idle."""


class Connection:
    """One persistent connection; as agents do, it is opened again if the server has closed it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._socket = self._open()
        self._is_reused = False
        self.reconnections = 0

    def _open(self) -> socket.socket:
        opened = socket.create_connection((harness.HOST, self._port), timeout=120)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return opened

    def exchange(self, request: Request) -> tuple[int, bytes]:
        """Send a request and return its answer: status and content."""
        try:
            return self._send(request)
        except ConnectionError:
            if not self._is_reused:
                raise
        # The server may have closed the idle connection just before it was used.
        self._socket.close()
        self._socket, self._is_reused = self._open(), False
        self.reconnections += 1
        return self._send(request)

    def _send(self, request: Request) -> tuple[int, bytes]:
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


def send_all(
    port: int,
    requests: Sequence[Request],
    connections: int,
    *,
    over_seconds: float,
    answer: Callable[[Connection, int, int, bytes], None],
) -> RequestsCost:
    """Send requests over a number of connections: at once, or spread evenly over some seconds.

    `answer` is called for each answer: connection, number of the request, status, content.
    """
    latencies = [0.0] * len(requests)
    problems: list[Exception] = []
    reconnections: list[int] = []
    started = time.monotonic() + 0.05

    def work(first: int) -> None:
        connection = Connection(port)
        try:
            for number in range(first, len(requests), connections):
                _wait(started + over_seconds * number / len(requests))
                request = requests[number]
                sent = time.monotonic()
                status, content = connection.exchange(request)
                latencies[number] = time.monotonic() - sent
                answer(connection, number, status, content)
        except (OSError, harness.BenchError) as error:
            problems.append(error)
        finally:
            connection.close()
            reconnections.append(connection.reconnections)

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
    return RequestsCost(time.monotonic() - started, latencies, sum(reconnections))


def _wait(until: float) -> None:
    left = until - time.monotonic()
    if left > 0:
        time.sleep(left)
