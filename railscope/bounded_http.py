"""Bounds on size and time of HTTP responses, for any server behavior.

A server may send without end, one byte at a time, or nothing: a socket timeout counts from byte to byte,
and the reader of a response accepts all bytes. `bound_answers` bounds the standard library's client,
`read_body` that of aiohttp.
"""

from __future__ import annotations

import errno
import io
import time
from functools import partial
from http.client import HTTPConnection, HTTPResponse
from socket import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aiohttp import ClientResponse

MAX_HEAD_BYTES = 256 << 10
"""Status line, headers and framing of a response, in addition to its body."""


def bound_answers(connection: HTTPConnection, max_bytes: int, timeout_seconds: float) -> None:
    """Limit responses on a connection to a body of `max_bytes` and to a deadline.

    The deadline counts from this call. Reads raise TimeoutError, or OSError (EMSGSIZE) for a longer
    response.
    """
    deadline = time.monotonic() + timeout_seconds
    limits = {"left_bytes": max_bytes + MAX_HEAD_BYTES, "deadline": deadline}
    connection.response_class = partial(_BoundedResponse, limits=limits)  # type: ignore[assignment]  # typeshed has only the class here, http.client calls it


async def read_body(response: ClientResponse, max_bytes: int) -> bytes:
    """Read the body of a response. Raises OSError (EMSGSIZE) for a longer one, and aiohttp's own errors."""
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > max_bytes:
            raise _too_long(max_bytes)
    return bytes(body)


class _BoundedResponse(HTTPResponse):
    """HTTP response, read from a socket within limits."""

    def __init__(self, sock: socket, *rest: Any, limits: dict[str, Any], **more: Any) -> None:
        super().__init__(_Files(sock, limits), *rest, **more)  # type: ignore[arg-type]  # HTTPResponse only calls makefile() on it


class _Files:
    """Socket stand-in with the one method that HTTPResponse calls."""

    def __init__(self, sock: socket, limits: dict[str, Any]) -> None:
        self._sock, self._limits = sock, limits

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Return the response as a file."""
        return io.BufferedReader(_Raw(self._sock, **self._limits))


class _Raw(io.RawIOBase):
    """Raw bytes of a socket until a deadline, and up to a byte limit."""

    def __init__(self, sock: socket, left_bytes: int, deadline: float) -> None:
        self._sock, self._left_bytes, self._deadline = sock, left_bytes, deadline
        self._max_bytes = left_bytes
        # A file keeps the socket open when the connection closes it within a response.
        self._file = sock.makefile("rb", buffering=0)

    def readable(self) -> bool:
        """Return True: the stream is readable."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the available bytes that fit. Raises TimeoutError, OSError."""
        left_seconds = self._deadline - time.monotonic()
        if left_seconds <= 0:
            raise TimeoutError(errno.ETIMEDOUT, "the answer took too long")
        self._sock.settimeout(left_seconds)
        count = self._file.readinto(buffer) or 0
        self._left_bytes -= count
        if self._left_bytes < 0:
            raise _too_long(self._max_bytes)
        return count

    def close(self) -> None:
        """Close the file and release the socket."""
        self._file.close()
        super().close()


def _too_long(max_bytes: int) -> OSError:
    return OSError(errno.EMSGSIZE, f"the answer is longer than {max_bytes} bytes")
