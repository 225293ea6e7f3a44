"""Responses with JSON."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

import msgspec
from aiohttp import web


def json_response(
    content: object, status: int = HTTPStatus.OK, headers: Mapping[str, str] | None = None
) -> web.Response:
    """Return a JSON response. JSON has no NaN and no infinity: msgspec writes null for them."""
    return web.Response(
        status=status,
        body=msgspec.json.encode(content),
        content_type="application/json",
        headers=headers,
    )


def json_error(
    status: HTTPStatus, text: str, headers: Mapping[str, str] | None = None
) -> web.Response:
    """Return a JSON response of an error."""
    return json_response({"error": text}, status, headers)
