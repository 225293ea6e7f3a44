"""The HTTP side for readers: /metrics, the JSON API of the views, health and a landing page."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from aiohttp import web

from collector.account.cells import account_json
from collector.audit.trail import Denial
from collector.core import Core
from collector.fleet import Node, Row
from collector.metrics import Own, render
from collector.tokens import Tokens
from collector.views.refresh import Views
from collector.views.rollup import node_rollups, reduce_rows
from railscope import __version__
from railscope.catalog import METRICS
from railscope.catalog.declare import Kind
from railscope.catalog.rollup import part_labels
from railscope.exposition import Format
from railscope.reading import PRESENT, REASONS, Absent, from_stored

NS = 1_000_000_000
MOST_EVENTS = 1000
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_OPEN_PATHS = {"/-/healthy", "/-/ready", "/"}
INGEST_PATH = "/v1/frames"


@dataclass(slots=True)
class Api:
    """Routes for those who read. `views` and `tokens` are asked anew at each request."""

    core: Core
    own: Own
    views: Callable[[], Views]
    tokens: Callable[[], Tokens]
    open_reading: bool
    stale_seconds: float = 30.0
    denied: Callable[[Denial], None] = lambda _denial: None
    wall_ns: Callable[[], int] = time.time_ns

    def add_to(self, application: web.Application) -> None:
        """Add the routes."""
        get = application.router.add_get
        get("/", self._landing)
        get("/metrics", self._metrics)
        get("/-/healthy", self._healthy)
        get("/-/ready", self._ready)
        get("/api/v1/{view:cluster|rails|tenants}", self._view)
        get("/api/v1/nodes", self._nodes)
        get("/api/v1/nodes/{node}", self._node)
        get("/api/v1/account", self._account)
        get("/api/v1/events", self._events)

    @web.middleware
    async def authorise(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Let readers with a token in; ingest checks its own tokens."""
        needs_token = request.path not in _OPEN_PATHS and request.path != INGEST_PATH
        if needs_token and not self.open_reading:
            who = self.tokens().reader(request.headers.get("Authorization", ""))
            if who is None:
                path = request.rel_url.raw_path
                self.denied(Denial(request.remote or "", path, "reader's token"))
                text = "show a reader's token as bearer token, or set open_reading"
                return _json({"error": text}, 401, {"WWW-Authenticate": "Bearer"})
        return await handler(request)

    async def _metrics(self, request: web.Request) -> web.Response:
        views = self.views()
        cells = [*views.cluster.cells, *views.rail.cells, *views.tenant.cells, *views.node.cells]
        text_format = Format.accepted(request.headers.get("Accept", ""))
        own = self.own.cells(views)
        text = await asyncio.to_thread(render, [*cells, *own], text_format)
        response = web.Response(body=text.encode(), headers={"Content-Type": text_format.value})
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            response.enable_compression(web.ContentCoding.gzip)
        return response

    async def _view(self, request: web.Request) -> web.Response:
        name = request.match_info["view"].removesuffix("s")
        view = getattr(self.views(), name)
        return _json({"view": view.name, "instant_ns": view.instant_ns, "rows": view.rows()})

    async def _nodes(self, _: web.Request) -> web.Response:
        views = self.views()
        facts: dict[str, dict[str, Any]] = {}
        for cell in views.node.cells:
            facts.setdefault(cell.labels[0], {})[cell.metric.name] = cell.value
        rows = [
            {
                "node": name,
                "agent_version": node.agent_version,
                "streams": sorted(node.rows),
                "gpus": len(self.core.holders_of(name)),
                **facts.get(name, {}),
            }
            for name, node in sorted(self.core.fleet.nodes.items())
        ]
        return _json({"view": "nodes", "instant_ns": views.instant_ns, "rows": rows})

    async def _node(self, request: web.Request) -> web.Response:
        node = self.core.fleet.nodes.get(request.match_info["node"])
        if node is None:
            return _json(
                {"error": f"no node {request.match_info['node']!r} has ever reported"}, 404
            )
        now_ns = self.wall_ns()
        streams = {stream: self._readings(row, now_ns) for stream, row in sorted(node.rows.items())}
        content = {
            "node": node.name,
            "agent_version": node.agent_version,
            "instant_ns": now_ns,
            "rollups": _rollups(self._fresh(node, now_ns)),
            "streams": streams,
        }
        return _json(content)

    def _fresh(self, node: Node, now_ns: int) -> list[Row]:
        """The streams of a node that count: one that has fallen silent does not, as in the views."""
        from_ns = now_ns - round(self.stale_seconds * NS)
        fleet = self.core.fleet
        rows = node.rows.values()
        return [row for row in rows if row.index in fleet.fresh(row.block, from_ns, now_ns)]

    def _readings(self, row: Row, now_ns: int) -> dict[str, Any]:
        """The latest frame of a stream, reading by reading, with units already applied."""
        schema = self.core.schemas.read(row.schema)
        values = row.block.values[row.index].tolist()
        codes = np.asarray(row.block.reasons[row.index]).tolist()
        readings = []
        column = 0
        for group in schema.groups:
            metric = METRICS.get(group.metric)
            for member in group.entities:
                entity = schema.entities[member]
                numerator, denominator = group.scale
                if metric and metric.kind is Kind.HISTOGRAM:
                    numerator, denominator = metric.scale_of(entity.key).as_integer_ratio()
                entry: dict[str, Any] = {"metric": group.metric, "entity": list(entity.key)}
                if codes[column] != PRESENT:
                    entry["absent"] = REASONS.get(codes[column], Absent.ERROR).word
                elif not denominator:
                    entry["absent"] = Absent.ERROR.word
                else:
                    counter = metric is not None and metric.kind is Kind.COUNTER
                    value = from_stored(values[column], counter=counter) * numerator
                    entry["value"] = value if denominator == 1 else value / denominator
                readings.append(entry)
                column += 1
        age_seconds = (now_ns - row.instant_ns) / NS if row.instant_ns else None
        return {"instant_ns": row.instant_ns, "age_seconds": age_seconds, "readings": readings}

    async def _account(self, _: web.Request) -> web.Response:
        views = self.views()
        if views.account is None:
            text = "the account has not been computed yet"
            if views.instant_ns:
                text = "no one knows who holds what: " + self.own.why_unknown
            return _json({"error": text}, 503)
        return _json(account_json(views.account))

    async def _events(self, request: web.Request) -> web.Response:
        wanted = request.query.get("node")
        events = [seen for seen in self.core.events if wanted in (None, seen.node)]
        return _json({"events": [seen.to_json() for seen in events[-MOST_EVENTS:]]})

    async def _healthy(self, _: web.Request) -> web.Response:
        return web.Response(text="healthy\n")

    async def _ready(self, _: web.Request) -> web.Response:
        if not self.views().instant_ns:
            return web.Response(status=503, text="the views have not been computed yet\n")
        return web.Response(text="ready\n")

    async def _landing(self, _: web.Request) -> web.Response:
        return web.Response(text=_LANDING.format(version=__version__), content_type="text/html")


def _rollups(fresh: Sequence[Row]) -> list[dict[str, Any]]:
    """What the catalog says of a node as a whole: sums, means, extremes; counters as rates."""
    reduced = (reduce_rows(row.block, np.array([row.index])) for row in fresh)
    return [
        {
            "metric": metric.name,
            "rollup": str(rollup),
            "rate_per_second": metric.kind is Kind.COUNTER,
            "labels": dict(zip(part_labels(metric.about), part, strict=True)),
            "value": value,
        }
        for metric, part, rollup, value in node_rollups(filter(None, reduced))
        if math.isfinite(value)
    ]


def _json(
    content: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None
) -> web.Response:
    """An answer. JSON knows no NaN and no infinity: msgspec writes null for them."""
    return web.Response(
        status=status, body=msgspec.json.encode(content), content_type="application/json",
        headers=headers,
    )  # fmt: skip


_LANDING = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Railscope collector</title>
<style>body{{font:15px system-ui;margin:2rem}}</style>
<h1>Railscope collector</h1>
<p>Version {version}. <a href="/metrics">Metrics</a>, <a href="/-/healthy">healthy</a>,
<a href="/-/ready">ready</a>.</p>
<ul><li><a href="/api/v1/cluster">cluster</a><li><a href="/api/v1/rails">rails</a>
<li><a href="/api/v1/tenants">tenants</a><li><a href="/api/v1/nodes">nodes</a>
<li><a href="/api/v1/account">GPU-time account</a><li><a href="/api/v1/events">events</a></ul></html>
"""
