"""Compression of large JSON responses with gzip."""

from __future__ import annotations

import asyncio
import gzip
import re
from dataclasses import dataclass, field

from aiohttp import web
from aiohttp.typedefs import Handler

from railscope import service

MIN_GZIP_BYTES = 2048
"""Shorter bodies are sent as they are."""
MAX_COMPRESSIONS = 2
"""Responses that are compressed at the same time; others wait."""
_GZIP_LEVEL = 5
_ACCEPTED = re.compile(r"gzip(?:;q=(?!0(?:\.0*)?\Z)[0-9.]+)?")
"""The coding with a weight above zero (RFC 9110, 12.4.2)."""


def gzip_body(body: bytes) -> bytes:
    """Return a body compressed for clients that accept it. Blocking: 10 ms for each megabyte."""
    # mtime 0: equal documents are equal bytes.
    return gzip.compress(body, _GZIP_LEVEL, mtime=0)


def accepts_gzip(request: web.Request) -> bool:
    """True if a client accepts compressed responses."""
    offered = request.headers.get("Accept-Encoding", "").lower().replace(" ", "").split(",")
    return any(_ACCEPTED.fullmatch(each) for each in offered)


@dataclass(slots=True)
class JsonCompression:
    """Compresses large JSON responses in threads."""

    _permits: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_COMPRESSIONS))

    @web.middleware
    async def compress(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Return the response of a handler, compressed if it is worth it."""
        response = await handler(request)
        if (
            # Responses to agents have a mark over their bytes.
            request.method != "POST"
            and isinstance(response, web.Response)
            and response.content_type == "application/json"
            and isinstance(response.body, bytes)
            and len(response.body) >= MIN_GZIP_BYTES
            and "Content-Encoding" not in response.headers
            and accepts_gzip(request)
        ):
            async with self._permits:
                response.body = await service.run_in_thread(gzip_body, response.body)
            response.headers["Content-Encoding"] = "gzip"
        return response
