"""Responses with JSON, and those that a client may have already."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus

import msgspec
from aiohttp import web

from railscope import service
from railscope_collector.http import list_query

_TAG_DIGITS = 20


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


async def tagged_response(
    request: web.Request,
    make: Callable[[], msgspec.Struct],
    *version: object,
) -> web.Response:
    """Return a JSON document that is made in a thread; status 304 without a body if the client has it.

    The version is that of everything that the document contains; without one, the content except its time is compared.
    """

    def encode() -> tuple[bytes, str]:
        content = make()
        text = b"" if version else msgspec.json.encode(_without_time(content))
        return msgspec.json.encode(content), hashlib.sha256(text).hexdigest()

    body, digest = b"", hashlib.sha256(repr(version).encode(errors="replace")).hexdigest()
    if not version:
        body, digest = await service.run_in_thread(encode)
    headers = {"ETag": f'W/"{digest[:_TAG_DIGITS]}"'}  # weak, as responses may be compressed
    if headers["ETag"] in request.headers.get("If-None-Match", ""):
        return web.Response(status=HTTPStatus.NOT_MODIFIED, headers=headers)
    if version:
        body, _ = await service.run_in_thread(encode)
    return web.Response(body=body, content_type="application/json", headers=headers)


async def selected_response(
    request: web.Request,
    kind: type[list_query.QueryT],
    select: Callable[[list_query.QueryT], msgspec.Struct],
    *version: object,
) -> web.Response:
    """Return the document that a query selects, as `tagged_response`; status 400 for an invalid query."""
    try:
        query = list_query.parse_query(kind, request.query)
    except list_query.QueryError as error:
        return json_error(HTTPStatus.BAD_REQUEST, str(error))
    return await tagged_response(request, partial(select, query), *version, query)


def _without_time(content: msgspec.Struct) -> msgspec.Struct:
    has_time = "timestamp_ns" in content.__struct_fields__
    return msgspec.structs.replace(content, timestamp_ns=0) if has_time else content


def json_error(
    status: HTTPStatus, text: str, headers: Mapping[str, str] | None = None
) -> web.Response:
    """Return a JSON response of an error."""
    return json_response({"error": text}, status, headers)
