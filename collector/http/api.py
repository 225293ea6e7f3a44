"""Routes for readers: /metrics, the JSON API of the views, health and a landing page."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
from aiohttp import web

from collector.access.credential import Credential, Role
from collector.access.scope import own_account, own_cells
from collector.account.cells import account_json
from collector.fleet.cell import View
from collector.fleet.fleet import Node, Row
from collector.http.gate import Answer, Handlers, json_answer
from collector.http.metrics import Own, render
from collector.inventory.view import inventory_json
from collector.state.core import Core
from collector.view_refresh import Views
from collector.views.rollup import node_rollups, reduce_rows
from railscope import __version__
from railscope.catalog import METRICS
from railscope.catalog.declare import Kind
from railscope.catalog.rollup import part_labels
from railscope.exposition import Format
from railscope.reading import PRESENT, REASONS, Absent, from_stored

NS = 1_000_000_000
MAX_EVENTS = 1000


async def _writable() -> str:
    return ""


@dataclass(slots=True)
class Api:
    """Handlers of the read routes. `views` is called for each request."""

    core: Core
    own: Own
    views: Callable[[], Views]
    stale_seconds: float = 30.0
    wall_ns: Callable[[], int] = time.time_ns
    unwritable: Callable[[], Awaitable[str]] = _writable
    """Reason why the ledger cannot be written; empty if there is none."""
    read_only: str = ""
    """Reason why no data is accepted; empty if data is accepted."""

    def handlers(self) -> Handlers:
        """Return the handlers by route name."""
        return {
            "landing": self._landing,
            "healthy": self._healthy,
            "ready": self._ready,
            "metrics": self._metrics,
            "cluster": self._view("cluster"),
            "rails": self._view("rail"),
            "tenants": self._tenants,
            "nodes": self._nodes,
            "node": self._node,
            "inventory": self._inventory,
            "account": self._account,
            "events": self._events,
        }

    async def _metrics(self, request: web.Request, who: Credential) -> web.Response:
        views = self.views()
        if who.role is Role.TENANT:
            cells = own_cells(chain(views.tenant.cells, views.jobs.cells(who.tenant)), who.tenant)
        else:
            tables = (views.cluster, views.rail, views.tenant, views.node, views.inventory)
            cells = chain(
                *(table.cells for table in tables), views.jobs.cells(), self.own.cells(views)
            )
        text_format = Format.accepted(request.headers.get("Accept", ""))
        text = await asyncio.to_thread(render, cells, text_format)
        response = web.Response(body=text.encode(), headers={"Content-Type": text_format.value})
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            response.enable_compression(web.ContentCoding.gzip)
        return response

    def _view(self, name: str) -> Answer:
        async def answer(_: web.Request, __: Credential) -> web.Response:
            return _table(getattr(self.views(), name))

        return answer

    async def _tenants(self, _: web.Request, who: Credential) -> web.Response:
        view = self.views().tenant
        if who.role is Role.TENANT:
            view = replace(view, cells=tuple(own_cells(view.cells, who.tenant)))
        return _table(view)

    async def _nodes(self, _: web.Request, __: Credential) -> web.Response:
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
                **facts[name],
            }
            for name, node in sorted(self.core.fleet.nodes.items())
            if name in facts  # the nodes of the metrics, without stale nodes that were removed
        ]
        return json_answer({"view": "nodes", "instant_ns": views.instant_ns, "rows": rows})

    async def _node(self, request: web.Request, __: Credential) -> web.Response:
        node = self.core.fleet.nodes.get(request.match_info["node"])
        if node is None:
            return json_answer(
                {"error": f"no node {request.match_info['node']!r} has ever reported"}, 404
            )
        now_ns = self.wall_ns()
        streams = {
            stream: self._readings(node.name, row, now_ns)
            for stream, row in sorted(node.rows.items())
        }
        content = {
            "node": node.name,
            "agent_version": node.agent_version,
            "instant_ns": now_ns,
            "rollups": _rollups(self._fresh(node, now_ns)),
            "streams": streams,
        }
        return json_answer(content)

    def _fresh(self, node: Node, now_ns: int) -> list[Row]:
        """Return the rows of the node's fresh sources; stale ones are excluded, as in the views."""
        from_ns = now_ns - round(self.stale_seconds * NS)
        fleet = self.core.fleet
        rows = node.rows.values()
        return [row for row in rows if row.index in fleet.fresh(row.block, from_ns, now_ns)]

    def _readings(self, node: str, row: Row, now_ns: int) -> dict[str, Any]:
        """Return the latest frame of a source, reading by reading, converted to units."""
        schema = self.core.schemas.read(row.schema)
        values = row.block.values[row.index].tolist()
        codes = np.asarray(row.block.reasons[row.index]).tolist()
        readings = []
        devices = [self.core.names_of(node, entity) for entity in schema.entities]
        column = 0
        for group in schema.groups:
            metric = METRICS.get(group.metric)
            for member in group.entities:
                entity = schema.entities[member]
                numerator, denominator = group.scale
                if metric and metric.kind is Kind.HISTOGRAM:
                    numerator, denominator = metric.scale_of(entity.key).as_integer_ratio()
                entry: dict[str, Any] = {"metric": group.metric, "entity": list(entity.key)}
                if devices[member]:
                    entry["device"] = devices[member]
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

    async def _inventory(self, _: web.Request, __: Credential) -> web.Response:
        found = self.views().found
        if not found.instant_ns:
            return json_answer({"error": "the views have not been computed yet"}, 503)
        return json_answer(await asyncio.to_thread(inventory_json, found, self.core.names_of))

    async def _account(self, _: web.Request, who: Credential) -> web.Response:
        views = self.views()
        if views.account is None:
            text, why = "the account has not been computed yet", self.own.why_unknown
            if views.instant_ns and why:
                text = f"no one knows who holds what: {why}"
            return json_answer({"error": text}, 503)
        account = account_json(views.account)
        own = who.role is Role.TENANT
        return json_answer(own_account(account, who.tenant) if own else account)

    async def _events(self, request: web.Request, __: Credential) -> web.Response:
        wanted = request.query.get("node")
        events = [seen for seen in self.core.events if wanted in (None, seen.node)]
        rows = [
            {**seen.to_json(), "device": self.core.names_of(seen.node, seen.event.entity)}
            for seen in events[-MAX_EVENTS:]
        ]
        return json_answer({"events": rows})

    async def _healthy(self, _: web.Request, __: Credential) -> web.Response:
        return web.Response(text="healthy\n")

    async def _ready(self, _: web.Request, __: Credential) -> web.Response:
        problem = "" if self.views().instant_ns else "the views have not been computed yet"
        problem = problem or self.own.why_unknown or await self.unwritable()
        problem = f"read-only: {self.read_only}" if self.read_only else problem
        if problem:
            return web.Response(status=503, text=f"not ready: {problem}\n")
        return web.Response(text="ready\n")

    async def _landing(self, _: web.Request, __: Credential) -> web.Response:
        return web.Response(text=_LANDING.format(version=__version__), content_type="text/html")


def _rollups(fresh: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the catalog's rollups of a node: sums, means, extremes; counters as rates."""
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


def _table(view: View) -> web.Response:
    return json_answer({"view": view.name, "instant_ns": view.instant_ns, "rows": view.rows()})


_LANDING = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Railscope collector</title>
<style>body{{font:15px system-ui;margin:2rem}}</style>
<h1>Railscope collector</h1>
<p>Version {version}. <a href="/metrics">Metrics</a>, <a href="/-/healthy">healthy</a>,
<a href="/-/ready">ready</a>.</p>
<ul><li><a href="/api/v1/cluster">cluster</a><li><a href="/api/v1/rails">rails</a>
<li><a href="/api/v1/jobs">jobs</a><li><a href="/api/v1/tenants">tenants</a>
<li><a href="/api/v1/nodes">nodes</a><li><a href="/api/v1/inventory">inventory</a>
<li><a href="/api/v1/account">GPU-time account</a><li><a href="/api/v1/events">events</a>
<li><a href="/api/v1/statements">statements</a><li><a href="/api/v1/audit">audit log</a></ul></html>
"""
