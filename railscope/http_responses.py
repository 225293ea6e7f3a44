"""HTTP responses: bounds on size and time for any server behavior, and the mark that proves their origin.

A server may send without end, one byte at a time, or nothing: a socket timeout counts from byte to byte,
and the reader of a response accepts all bytes. `bound_responses` bounds the standard library's client,
`read_body` that of aiohttp.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import io
import time
from http import HTTPStatus
from socket import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # http.client takes 1 MiB, and agents make requests without it
    from http.client import HTTPConnection, HTTPResponse

    from aiohttp import ClientResponse


MAX_HEAD_BYTES = 256 << 10
"""Status line, headers and framing of a response, in addition to its body."""


def bound_responses(connection: HTTPConnection, max_bytes: int, timeout_seconds: float) -> None:
    """Limit responses on a connection to a body of `max_bytes` and to a deadline.

    The deadline counts from this call. Reads raise TimeoutError, or OSError (EMSGSIZE) for a longer
    response.
    """
    deadline = time.monotonic() + timeout_seconds
    limits = {"left_bytes": max_bytes + MAX_HEAD_BYTES, "deadline": deadline}
    unbounded = type(
        connection
    ).response_class  # the instance may have the bound of an earlier request

    def bounded(sock: socket, *rest: Any, **more: Any) -> HTTPResponse:
        return unbounded(_SocketFiles(sock, limits), *rest, **more)  # type: ignore[arg-type]  # HTTPResponse only calls makefile() on it

    connection.response_class = bounded  # type: ignore[assignment]  # typeshed has only the class here, http.client calls it


def retry_after_seconds(text: str, now_seconds: float) -> float:
    """Return the wait that a `Retry-After` requests, in seconds or until a date; 0 without one."""
    from email.utils import parsedate_to_datetime  # noqa: PLC0415 - 1 MiB, which most agents never need

    try:
        if text.isdecimal():
            return float(text)
        return parsedate_to_datetime(text).timestamp() - now_seconds
    except (ValueError, OverflowError):
        return 0.0


async def read_body(response: ClientResponse, max_bytes: int) -> bytes:
    """Read the body of a response. Raises OSError (EMSGSIZE) for a longer one, and aiohttp's own errors."""
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > max_bytes:
            raise _too_long(max_bytes)
    return bytes(body)


class _SocketFiles:
    """Socket stand-in with the one method that HTTPResponse calls."""

    def __init__(self, sock: socket, limits: dict[str, Any]) -> None:
        self._sock, self._limits = sock, limits

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Return the response as a file."""
        return _BoundedReader(_BoundedRawSocket(self._sock, **self._limits))


class _BoundedReader(io.BufferedReader):
    """Reader that allocates no length beyond the limit: the server states it, and it may exceed all memory."""

    raw: _BoundedRawSocket

    def read(self, size: int | None = -1, /) -> bytes:
        """Read up to a number of bytes. Raises OSError at once for more than the limit."""
        if (size or 0) > self.raw.max_bytes:
            raise _too_long(self.raw.max_bytes)
        return super().read(size)


class _BoundedRawSocket(io.RawIOBase):
    """Raw bytes of a socket until a deadline, and up to a byte limit."""

    def __init__(self, sock: socket, left_bytes: int, deadline: float) -> None:
        self._sock, self._left_bytes, self._deadline = sock, left_bytes, deadline
        self.max_bytes = left_bytes
        # A file keeps the socket open when the connection closes it within a response.
        self._file = sock.makefile("rb", buffering=0)

    def readable(self) -> bool:
        """Return True: the stream is readable."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the available bytes that fit. Raises TimeoutError, OSError."""
        left_seconds = self._deadline - time.monotonic()
        if left_seconds <= 0:
            raise TimeoutError(errno.ETIMEDOUT, "HTTP response timed out")
        # Before each read: the deadline is for all of the response, a timeout for one read.
        self._sock.settimeout(left_seconds)
        count = self._file.readinto(buffer) or 0
        self._left_bytes -= count
        if self._left_bytes < 0:
            raise _too_long(self.max_bytes)
        return count

    def close(self) -> None:
        """Close the file and release the socket."""
        self._file.close()
        super().close()


def _too_long(max_bytes: int) -> OSError:
    return OSError(errno.EMSGSIZE, f"HTTP response too large: expected at most {max_bytes} bytes")


RESPONSE_MARK_HEADER = "Railscope-Answer"
DECISIONS = frozenset({200, 400, 409, 413, 422})
"""Response statuses that decide about frames; these responses are marked."""
MARKED_STATUSES = DECISIONS | {403}
"""Response statuses that are marked. 403 decides only with the node of the credential, which the ingest adds; the
access control also responds with it, without a mark.
"""
_PURPOSE = b"railscope answer 1\n"


def response_mark(token: str, status: int, request: bytes, answer: bytes) -> str:
    """Return the mark of a response; `token` is empty where the client uses a certificate.

    The mark proves to an agent that a response is from its collector: a wrong address, a proxy or a captive
    portal may return any response with any status, which must not empty a spool. It is an HMAC with the
    node's token as key over status, request and response, so that no response can be reused for another
    request. It does not protect from an attacker who can read the token in transit: use TLS.
    A body that is too large is not read: of such a request only the length is covered.
    """
    if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        return unread_mark(token, status, len(request), answer)
    return _mark(token, status, hashlib.sha256(request).digest(), answer)


def unread_mark(token: str, status: int, length: int, answer: bytes) -> str:
    """Return the mark of a response to a body of which only the length was read."""
    return _mark(token, status, b"%d" % length, answer)


def is_marked(mark: str, token: str, status: int, request: bytes, answer: bytes) -> bool:
    """True if the mark is valid for this response."""
    expected = response_mark(token, status, request, answer)
    # In constant time: the duration must not show how much of a forged mark is right.
    return hmac.compare_digest(mark.encode(errors="replace"), expected.encode())


def _mark(token: str, status: int, request: bytes, answer: bytes) -> str:
    content = _PURPOSE + b"%d\n%d\n" % (status, len(request)) + request
    key = token.encode(errors="surrogateescape")
    return hmac.new(key, content + hashlib.sha256(answer).digest(), hashlib.sha256).hexdigest()
