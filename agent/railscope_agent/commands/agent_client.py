"""Client of the claims API of this node's agent, over its Unix socket."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Mapping
from typing import Any

import click

from railscope import http_responses

_RETRY_SECONDS = 0.5
_ANSWER_SECONDS = 10.0
"""Timeout of an answer, which waits for the disk."""
_MAX_ANSWER_BYTES = 64 << 20
"""Maximum size of the list of all claims of a node."""
_NO_ANSWER, _UNAVAILABLE = 0, 503
_OK = 200


class _UnixHttpConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class AgentClient:
    """Client of this node's agent. It retries while the agent is unreachable or not ready."""

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

    def request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Send a request and return the answer. Raises ClickException with the agent's error message."""
        until = time.monotonic() + self._timeout
        while True:
            status, answer = self._request_once(method, path, body)
            if status == _OK:
                return answer
            # An agent that starts does not listen yet, or has not read its claims. Other statuses are answers
            # that would be the same again.
            if status not in {_NO_ANSWER, _UNAVAILABLE} or time.monotonic() >= until:
                message = answer.get("error", f"the agent returned status {status}")
                raise click.ClickException(message)
            time.sleep(_RETRY_SECONDS)

    def _request_once(
        self, method: str, path: str, body: Mapping[str, Any] | None
    ) -> tuple[int, Any]:
        connection = _UnixHttpConnection(self._path, self._answer_seconds)
        http_responses.bound_responses(connection, self._max_bytes, self._answer_seconds)
        headers = {"Content-Type": "application/json"}
        try:
            sent = None if body is None else json.dumps(body)
            connection.request(method, path, sent, headers)
            answer = connection.getresponse()
            content = json.loads(answer.read())
            return answer.status, content if isinstance(content, dict) else {"error": str(content)}
        # Before OSError, of which it is one: another attempt does not change it.
        except PermissionError as error:
            message = (
                f"cannot connect to {self._path}: {error.strerror}; fix: run the command as root"
            )
            raise click.ClickException(message) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            return _NO_ANSWER, {"error": f"no response from the agent at {self._path}: {error}"}
        finally:
            connection.close()
