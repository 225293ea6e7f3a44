"""Requests to the agent of this node over its Unix socket.

The prolog of a scheduler waits for the answer: no HTTP client is imported.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import click

from railscope import RailscopeError, settings
from railscope_agent.config import CLAIMS_SOCKET, PREFIX, AgentSettings

_READ_BYTES = 64 << 10
_RETRY_SECONDS = 0.5
_ANSWER_SECONDS = 10.0
"""Timeout of an answer about claims, which waits for the disk."""
_MAX_ANSWER_BYTES = 64 << 20
"""Maximum size of the list of all claims of a node."""
_NO_ANSWER, _UNAVAILABLE = 0, 503
_OK = 200


class AnswerTooLongError(RailscopeError):
    """An answer that exceeds its bound."""


class AgentAnswer(NamedTuple):
    """Answer of an agent: its status, 0 if it is none of HTTP, the first line, and the body."""

    status: int
    line: str
    body: bytes


def agent_socket(config: Path | None, path: str | None) -> str:
    """Return the path of the socket that an option names, or else that of the settings. Raises SettingsError."""
    if path:
        return path
    file = config or settings.default_file("agent")
    loaded = settings.load(AgentSettings, file=file, prefix=PREFIX)
    return loaded.tenancy.socket or str(settings.state_directory(loaded) / CLAIMS_SOCKET)


def ask_agent(
    path: str, request: tuple[str, str], body: bytes, until: float, max_bytes: int
) -> AgentAnswer:
    """Send a request, a method and a target, and return the answer by a time of the monotonic clock.

    Raises TimeoutError, OSError, AnswerTooLongError.
    """
    head = f"{' '.join(request)} HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n"
    if body:
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_remaining(until))
        connection.connect(path)
        connection.settimeout(_remaining(until))
        connection.sendall(f"{head}\r\n".encode("ascii") + body)
        answer = _receive(connection, until, max_bytes)
    received, _, content = answer.partition(b"\r\n\r\n")
    words = received.split(maxsplit=2)
    is_status = len(words) > 1 and words[1].isdigit()
    line = received.partition(b"\r\n")[0][:40].decode("ascii", "replace")
    return AgentAnswer(int(words[1]) if is_status else _NO_ANSWER, line, content)


def _remaining(until: float) -> float:
    """Return the seconds until a time of the monotonic clock. Raises TimeoutError after it."""
    if (remaining := until - time.monotonic()) <= 0:
        message = "timed out"
        raise TimeoutError(message)
    return remaining


def _receive(connection: socket.socket, until: float, max_bytes: int) -> bytes:
    """Return everything up to the end of the connection. Raises TimeoutError, OSError, AnswerTooLongError."""
    answer = bytearray()
    connection.settimeout(_remaining(until))
    # The timeout of a socket is for one call: it is set again for each, or an answer in small parts would
    # take any time.
    while received := connection.recv(_READ_BYTES):
        answer += received
        connection.settimeout(_remaining(until))
        if len(answer) > max_bytes:
            message = f"answer of more than {max_bytes} bytes"
            raise AnswerTooLongError(message)
    return bytes(answer)


class AgentClient:
    """Client of the claims of this node's agent. It retries while the agent is unreachable or not ready."""

    def __init__(
        self,
        path: str,
        timeout: float,
        *,
        answer_seconds: float = _ANSWER_SECONDS,
        max_bytes: int = _MAX_ANSWER_BYTES,
    ) -> None:
        self._path, self._timeout = path, timeout
        self._answer_seconds, self._max_bytes = answer_seconds, max_bytes

    def request(self, method: str, target: str, body: Mapping[str, Any] | None = None) -> Any:
        """Send a request and return the answer. Raises ClickException with the agent's error message."""
        until = time.monotonic() + self._timeout
        content = b"" if body is None else json.dumps(body).encode()
        while True:
            status, answer = self._request_once(method, target, content)
            if status == _OK:
                return answer
            # An agent that starts does not listen yet, or has not read its claims. Other statuses are answers
            # that would be the same again.
            if status not in {_NO_ANSWER, _UNAVAILABLE} or time.monotonic() >= until:
                message = answer.get("error", f"the agent returned status {status}")
                raise click.ClickException(message)
            time.sleep(_RETRY_SECONDS)

    def _request_once(self, method: str, target: str, body: bytes) -> tuple[int, Any]:
        until = time.monotonic() + self._answer_seconds
        try:
            answer = ask_agent(self._path, (method, target), body, until, self._max_bytes)
            content = json.loads(answer.body)
        # Before OSError, of which it is one: another attempt does not change it.
        except PermissionError as error:
            message = (
                f"cannot connect to {self._path}: {error.strerror}; fix: run the command as root"
            )
            raise click.ClickException(message) from error
        except (OSError, AnswerTooLongError, ValueError) as error:
            return _NO_ANSWER, {"error": f"no response from the agent at {self._path}: {error}"}
        return answer.status, content if isinstance(content, dict) else {"error": str(content)}
