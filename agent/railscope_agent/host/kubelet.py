"""Kubelet client for the devices assigned to pods: gRPC over the kubelet's Unix socket.

One call is one HTTP/2 stream with one message in each direction; each call opens its own
connection, as calls are seconds apart. h2 implements HTTP/2 without any I/O of its own. Sources:
grpc/grpc:doc/PROTOCOL-HTTP2.md, doc/statuscodes.md;
kubernetes/kubelet:pkg/apis/podresources/v1/api.proto.
"""

from __future__ import annotations

import errno
import math
import os
import socket
import struct
import time
from dataclasses import dataclass, field
from urllib.parse import unquote

from h2 import events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.exceptions import H2Error

from railscope.http_responses import MAX_HEAD_BYTES

MAX_BYTES = 64 << 20
"""Maximum size of one answer. gRPC's usual limit of 4 MiB is too small for a large node."""

_SERVICE = "v1.PodResourcesLister"
_PREFIX = struct.Struct("!BI")
_PIECE = 1 << 16
_OK = 0
_ERRNO_OF_STATUS = {
    4: errno.ETIMEDOUT,  # DEADLINE_EXCEEDED
    5: errno.ENOENT,  # NOT_FOUND
    7: errno.EACCES,  # PERMISSION_DENIED
    12: errno.EOPNOTSUPP,  # UNIMPLEMENTED: an older kubelet, or a disabled feature
    16: errno.EACCES,  # UNAUTHENTICATED
}


def call_kubelet(
    path: str,
    method: str,
    request: bytes = b"",
    timeout_seconds: float = 10.0,
    max_bytes: int = MAX_BYTES,
) -> bytes:
    """Call a method of the kubelet at a socket and return the answer's message.

    Raises OSError, including TimeoutError.
    """
    deadline = time.monotonic() + timeout_seconds
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_seconds)
        connection.connect(path)
        answer = _KubeletAnswer(max_bytes)
        try:
            _exchange(connection, _KubeletRequest(method, request, deadline), answer)
        except H2Error as error:
            raise OSError(
                errno.EPROTO,
                f"invalid HTTP/2 response from {path}: {type(error).__name__}: {error}",
            ) from error
        return _message(answer)


@dataclass(frozen=True, slots=True)
class _KubeletRequest:
    """Method and content of a call, with its deadline."""

    method: str
    content: bytes
    deadline: float

    @property
    def left_seconds(self) -> float:
        """Time left until the deadline. Raises TimeoutError."""
        remaining_seconds = self.deadline - time.monotonic()
        if remaining_seconds <= 0:
            raise TimeoutError(errno.ETIMEDOUT, "timeout: no response from the kubelet")
        return remaining_seconds

    @property
    def headers(self) -> list[tuple[str, str]]:
        return [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", f"/{_SERVICE}/{self.method}"),
            (":authority", "localhost"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("grpc-timeout", f"{math.ceil(self.left_seconds * 1000)}m"),
        ]


@dataclass(slots=True)
class _KubeletAnswer:
    """The part of an answer received so far."""

    max_bytes: int
    headers: dict[bytes, str] = field(default_factory=dict)
    content: bytearray = field(default_factory=bytearray)
    has_ended: bool = False


def _exchange(connection: socket.socket, request: _KubeletRequest, answer: _KubeletAnswer) -> None:
    """Send one request and receive until its answer has ended."""
    http = H2Connection(H2Configuration(client_side=True))
    http.initiate_connection()
    stream = http.get_next_available_stream_id()
    http.send_headers(stream, request.headers)
    content = _PREFIX.pack(0, len(request.content)) + request.content
    http.send_data(stream, content, end_stream=True)
    left_bytes = answer.max_bytes + MAX_HEAD_BYTES
    while not answer.has_ended:
        # Each wait gets what is left: a server that sends a byte per second would otherwise never time out.
        connection.settimeout(request.left_seconds)
        connection.sendall(http.data_to_send())
        received = connection.recv(_PIECE)
        if not received:
            raise OSError(errno.ECONNRESET, "the kubelet closed the connection within its response")
        left_bytes -= len(received)
        if left_bytes < 0:  # endless pings and other frames
            raise _too_long_error(answer.max_bytes)
        for event in http.receive_data(received):
            if not answer.has_ended:  # frames after the end of an answer do not change it
                _add_event(http, event, answer)


def _too_long_error(max_bytes: int) -> OSError:
    return OSError(
        errno.EMSGSIZE, f"response of the kubelet too long: expected at most {max_bytes} bytes"
    )


def _add_event(http: H2Connection, event: events.Event, answer: _KubeletAnswer) -> None:
    """Add a received event to the answer, and open the flow-control window by its length."""
    if isinstance(event, events.ResponseReceived | events.TrailersReceived):
        for name, value in event.headers or ():
            answer.headers[bytes(name)] = bytes(value).decode(errors="backslashreplace")
    elif isinstance(event, events.DataReceived):
        answer.content += event.data or b""
        if len(answer.content) > answer.max_bytes:
            raise _too_long_error(answer.max_bytes)
        if event.flow_controlled_length:
            # Without this, an answer larger than the initial window of 64 KiB would stop in the middle.
            http.acknowledge_received_data(event.flow_controlled_length, event.stream_id or 0)
    elif isinstance(event, events.StreamReset | events.ConnectionTerminated):
        raise OSError(errno.ECONNRESET, f"the kubelet reset the call: {event.error_code}")
    elif isinstance(event, events.StreamEnded):
        answer.has_ended = True


def _message(answer: _KubeletAnswer) -> bytes:
    """Message of a complete answer. Raises OSError if the answer is invalid."""
    http_status, status = (answer.headers.get(name, "") for name in (b":status", b"grpc-status"))
    if http_status != "200" or not status.isdecimal():
        raise OSError(errno.EPROTO, f"invalid gRPC response: HTTP {http_status}, status {status!r}")
    if int(status) != _OK:
        number = _ERRNO_OF_STATUS.get(int(status), errno.EIO)
        text = unquote(answer.headers.get(b"grpc-message", ""))
        raise OSError(
            number, f"kubelet call failed: {os.strerror(number)}: gRPC status {status}, {text}"
        )
    content = bytes(answer.content)
    if len(content) < _PREFIX.size:
        raise OSError(errno.EPROTO, "invalid gRPC response: expected a message")
    compressed, length = _PREFIX.unpack_from(content)
    # No grpc-accept-encoding was sent, so a compressed message is a violation of the protocol.
    if compressed or length != len(content) - _PREFIX.size:
        raise OSError(errno.EPROTO, "invalid gRPC response: expected one uncompressed message")
    return content[_PREFIX.size :]
