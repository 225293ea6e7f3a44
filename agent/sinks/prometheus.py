"""The agent's page: /metrics in both text formats, health, readiness and a landing page."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Iterable
from html import escape

from aiohttp import web

from agent.sampler import STARTING, Status
from railscope import __version__
from railscope.exposition import Exposition, Format
from railscope.frame import Frame

PERIODS_UNTIL_STALE = 3
SHORTEST_STALE_NS = 5_000_000_000
_NS = 1_000_000_000
_OPEN_PATHS = {"/-/healthy", "/-/ready"}


class Page:
    """Serves the latest readings, and none that are older than their source allows."""

    def __init__(
        self,
        node: str,
        statuses: Callable[[], Iterable[Status]],
        now_ns: Callable[[], int],
        token: str,
    ) -> None:
        self._node = node
        self._statuses = statuses
        self._now_ns = now_ns
        self._token = token
        self._exposition = Exposition()

    def application(self) -> web.Application:
        """The routes."""
        application = web.Application(middlewares=[self._authorise])
        application.router.add_get("/", self._landing)
        application.router.add_get("/metrics", self._metrics)
        application.router.add_get("/-/healthy", self._healthy)
        application.router.add_get("/-/ready", self._ready)
        return application

    def fresh_frames(self) -> list[Frame]:
        """Frames that are young enough to be shown, in the order of the sources."""
        return [status.frame for status in self._statuses() if status.frame and self._fresh(status)]

    def text(self, text_format: Format) -> str:
        """The exposition."""
        return self._exposition.render(self.fresh_frames(), text_format)

    def _fresh(self, status: Status) -> bool:
        if status.frame is None or status.overdue:
            return False
        period_ns = round(status.source.period_seconds * _NS)
        limit_ns = max(PERIODS_UNTIL_STALE * period_ns, SHORTEST_STALE_NS)
        return self._now_ns() - status.frame.instant.boot_ns <= limit_ns

    @web.middleware
    async def _authorise(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if self._token and request.path not in _OPEN_PATHS:
            shown = request.headers.get("Authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(shown.encode(), self._token.encode()):
                return web.Response(
                    status=401, headers={"WWW-Authenticate": "Bearer"},
                    text="401: show the page token of the agent as bearer token\n",
                )  # fmt: skip
        return await handler(request)

    async def _metrics(self, request: web.Request) -> web.Response:
        text_format = Format.accepted(request.headers.get("Accept", ""))
        response = web.Response(
            body=self.text(text_format).encode(), headers={"Content-Type": text_format.value}
        )
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            response.enable_compression(web.ContentCoding.gzip)
        return response

    async def _healthy(self, _: web.Request) -> web.Response:
        return web.Response(text="healthy\n")

    async def _ready(self, _: web.Request) -> web.Response:
        waiting = [s.source.name for s in self._statuses() if s.state == STARTING]
        if waiting:
            return web.Response(status=503, text=f"waiting for {', '.join(waiting)}\n")
        return web.Response(text="ready\n")

    async def _landing(self, _: web.Request) -> web.Response:
        rows = "".join(
            f"<tr><td>{escape(status.source.name)}<td class={status.state_name}>{status.state_name}"
            f"<td>{len(status.frame.values) if status.frame else 0}"
            f"<td>{status.source.period_seconds:g} s<td>{status.duration_ns / 1e6:.2f} ms"
            f"<td>{status.missed_ticks}<td>{escape(status.problem)}"
            for status in self._statuses()
        )
        body = _LANDING.format(node=escape(self._node), version=__version__, rows=rows)
        return web.Response(text=body, content_type="text/html")


_LANDING = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Railscope agent: {node}</title>
<style>body{{font:15px system-ui;margin:2rem}}td,th{{padding:.2rem .8rem;text-align:left}}
.failed{{color:#b00}}.partial{{color:#a60}}.ok{{color:#070}}</style>
<h1>Railscope agent on {node}</h1>
<p>Version {version}. <a href="/metrics">Metrics</a>, <a href="/-/healthy">healthy</a>,
<a href="/-/ready">ready</a>.</p>
<table><tr><th>source<th>state<th>readings<th>period<th>last read<th>missed ticks<th>problem
{rows}</table></html>
"""
