"""The agent's page: /metrics in both text formats, health, readiness and a landing page."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable
from dataclasses import replace
from html import escape
from http import HTTPStatus

from agent.http_server import Request, Response
from agent.status import STARTING, Status
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

    def respond(self, request: Request) -> Response:
        """Answer a request."""
        if self._token and request.path not in _OPEN_PATHS and not self._may_read(request):
            text = "401: show the page token of the agent as bearer token"
            refused = Response.text(text, HTTPStatus.UNAUTHORIZED)
            return replace(refused, headers={"WWW-Authenticate": "Bearer"})
        answers = {
            "/": self._landing,
            "/metrics": self._metrics,
            "/-/healthy": lambda _: Response.text("healthy"),
            "/-/ready": self._ready,
        }
        answer = answers.get(request.path)
        if answer is None:
            return Response.text(
                "404: there is /metrics, /-/healthy and /-/ready", HTTPStatus.NOT_FOUND
            )
        return answer(request)

    def _may_read(self, request: Request) -> bool:
        shown = request.headers.get("authorization", "").removeprefix("Bearer ")
        return hmac.compare_digest(shown.encode(), self._token.encode())

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

    def _metrics(self, request: Request) -> Response:
        text_format = Format.accepted(request.headers.get("accept", ""))
        return Response(self.text(text_format).encode(), text_format.value)

    def _ready(self, _: Request) -> Response:
        waiting = [s.source.name for s in self._statuses() if s.state == STARTING]
        if waiting:
            text = f"waiting for {', '.join(waiting)}"
            return Response.text(text, HTTPStatus.SERVICE_UNAVAILABLE)
        return Response.text("ready")

    def _landing(self, _: Request) -> Response:
        rows = "".join(
            f"<tr><td>{escape(status.source.name)}<td class={status.state_name}>{status.state_name}"
            f"<td>{len(status.frame.values) if status.frame else 0}"
            f"<td>{status.source.period_seconds:g} s<td>{status.duration_ns / 1e6:.2f} ms"
            f"<td>{status.missed_ticks}<td>{escape(status.problem)}"
            for status in self._statuses()
        )
        body = _LANDING.format(node=escape(self._node), version=__version__, rows=rows)
        return Response(body.encode(), "text/html; charset=utf-8")


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
