"""A collector with scripted answers, which records the frames it accepted."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from railscope.envelopes import unpack
from railscope.http_responses import RESPONSE_MARK_HEADER, response_mark
from railscope.wire import Envelope, content_hash

MAX_BYTES = 1 << 26
PATIENCE_SECONDS = 60

FrameId = tuple[str, str, str, int]
Step = Callable[["ScriptedCollector", web.Request, Envelope], Any]


@dataclass
class ScriptedCollector:
    """Accepts every envelope, unless the script has another answer to the next request."""

    script: deque[web.Response | Step] = field(default_factory=deque)
    taken: list[FrameId] = field(default_factory=list)
    """Frames acknowledged as new, in the order of arrival."""
    duplicates: list[FrameId] = field(default_factory=list)
    parts: set[bytes] = field(default_factory=set)
    """Hashes of the shapes and names that were sent."""
    requests: list[web.Request] = field(default_factory=list)
    port: int = 0
    marks: bool = True
    """True if answers carry the mark of a collector."""
    _progress: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        self.requests.append(request)
        envelope = unpack(await request.read(), MAX_BYTES)
        step = self.script.popleft() if self.script else take
        try:
            answer = step if isinstance(step, web.Response) else await step(self, request, envelope)
        finally:
            async with self._progress:
                self._progress.notify_all()
        if self.marks:
            token = request.headers.get("Authorization", "").partition(" ")[2]
            content = answer.body if isinstance(answer.body, bytes) else b""
            mark = response_mark(token, answer.status, await request.read(), content)
            answer.headers[RESPONSE_MARK_HEADER] = mark
        return answer

    def find_missing(self, envelope: Envelope) -> web.Response | None:
        """Return the request for unknown shapes and names; None if all are known."""
        self.parts |= {content_hash(each) for each in (*envelope.shapes, *envelope.names)}
        shapes = {batch.shape.hex() for batch in envelope.batches if batch.shape not in self.parts}
        names = {batch.names.hex() for batch in envelope.batches if batch.names not in self.parts}
        content = {"unknown_shapes": sorted(shapes), "unknown_names": sorted(names)}
        is_known = not (shapes or names)
        return None if is_known else web.json_response({"error": "unknown", **content}, status=409)

    @asynccontextmanager
    async def serving(
        self, port: int = 0, tls: ssl.SSLContext | None = None
    ) -> AsyncIterator[ScriptedCollector]:
        """Serve on loopback; the port stays the same when it is served again."""
        application = web.Application(client_max_size=MAX_BYTES)
        application.router.add_post("/v1/frames", self.handle)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port or self.port, ssl_context=tls).start()
        self.port = runner.addresses[0][1]
        try:
            yield self
        finally:
            await runner.cleanup()


def frames_in(envelope: Envelope) -> list[FrameId]:
    """The identities of all frames of an envelope."""
    return [
        (envelope.node, envelope.run, batch.stream, batch.first_sequence + row)
        for batch in envelope.batches
        for row in range(batch.rows)
    ]


async def take(self: ScriptedCollector, _: web.Request, envelope: Envelope) -> web.Response:
    """Same as the collector: request unknown schemas, then count every frame once."""
    if missing := self.find_missing(envelope):
        return missing
    known = set(self.taken)
    found = frames_in(envelope)
    fresh = [frame for frame in found if frame not in known]
    self.taken += fresh
    self.duplicates += [frame for frame in found if frame in known]
    return web.json_response(
        {"accepted_frames": len(fresh), "duplicate_frames": len(found) - len(fresh)}
    )


async def take_and_vanish(
    self: ScriptedCollector, request: web.Request, envelope: Envelope
) -> web.Response:
    """Accept the frames, and lose the connection before the acknowledgement is sent."""
    answer = await take(self, request, envelope)
    assert request.transport is not None
    request.transport.abort()
    return answer


async def hang(_: ScriptedCollector, __: web.Request, ___: Envelope) -> web.Response:
    """Never answer, until the server is stopped."""
    await asyncio.Event().wait()
    return web.Response()
