"""HTTP: the tables of routes and resources, access control, all handlers, and ingest."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus


class HttpApiError(Exception):
    """Base of the errors of request handlers."""


class ResourceError(HttpApiError):
    """A resource that cannot be returned: the status of the response, the reason, and further headers."""

    def __init__(
        self, status: HTTPStatus, text: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(text)
        self.status, self.text, self.headers = status, text, headers or {}
