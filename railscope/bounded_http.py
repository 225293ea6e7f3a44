"""Answers of HTTP servers within bounds of size and time, whatever the server sends.

A server may send without end, one byte at a time, or nothing: the timeout of a socket counts from byte
to byte, and the reader of an answer takes all that comes. `bound_answers` bounds the client of the
standard library, `read_body` that of aiohttp.
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
"""Status, headers and framing of an answer, beside its body."""


def bound_answers(connection: HTTPConnection, max_bytes: int, timeout_seconds: float) -> None:
    """Let the answers of a connection have a body of `max_bytes` at most and end in time.

    The time counts from now. Reading raises TimeoutError, or OSError (EMSGSIZE) for a longer answer.
    """
    deadline = time.monotonic() + timeout_seconds
    limits = {"left_bytes": max_bytes + MAX_HEAD_BYTES, "deadline": deadline}
    connection.response_class = partial(_BoundedResponse, limits=limits)  # type: ignore[assignment]  # typeshed has only the class here, http.client calls it


async def read_body(response: ClientResponse, max_bytes: int) -> bytes:
    """Body of an answer. Raises OSError (EMSGSIZE) for a longer one, and as aiohttp does."""
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > max_bytes:
            raise _too_long(max_bytes)
    return bytes(body)


class _BoundedResponse(HTTPResponse):
    """A response that is read from a socket within limits."""

    def __init__(self, sock: socket, *rest: Any, limits: dict[str, Any], **more: Any) -> None:
        super().__init__(_Files(sock, limits), *rest, **more)  # type: ignore[arg-type]  # it only makes a file of it


class _Files:
    """What a response needs of a socket: a file to read from."""

    def __init__(self, sock: socket, limits: dict[str, Any]) -> None:
        self._sock, self._limits = sock, limits

    def makefile(self, _mode: str) -> io.BufferedReader:
        """The answer as a file."""
        return io.BufferedReader(_Raw(self._sock, **self._limits))


class _Raw(io.RawIOBase):
    """Bytes of a socket until a deadline, and not more than some."""

    def __init__(self, sock: socket, left_bytes: int, deadline: float) -> None:
        self._sock, self._left_bytes, self._deadline = sock, left_bytes, deadline
        self._max_bytes = left_bytes
        # A file keeps the socket open when the connection closes it within an answer.
        self._file = sock.makefile("rb", buffering=0)

    def readable(self) -> bool:
        """True: it is read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read what there is, as much as fits. Raises TimeoutError, OSError."""
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
        """Let the socket go."""
        self._file.close()
        super().close()


def _too_long(max_bytes: int) -> OSError:
    return OSError(errno.EMSGSIZE, f"the answer is longer than {max_bytes} bytes")
