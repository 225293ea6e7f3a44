"""Sinks: writers of views and incidents to other programs."""

from __future__ import annotations

import aiohttp

from railscope.untrusted_text import printable

MAX_PROBLEM_LENGTH = 200


class SinkError(Exception):
    """A write that the receiver did not accept: a rejected one would be rejected again, another one is repeated."""

    def __init__(
        self, problem: str, *, is_rejected: bool = False, retry_seconds: float = 0.0
    ) -> None:
        super().__init__(problem[:MAX_PROBLEM_LENGTH])
        self.is_rejected = is_rejected
        self.retry_seconds = retry_seconds


def request_problem(error: Exception) -> str:
    """Return why a request failed, without its URL, whose query may contain a credential."""
    if isinstance(error, aiohttp.ClientResponseError):
        return f"{error.status} {printable(error.message)}".strip()
    return printable(str(error)) or type(error).__name__
