"""Routing of requests about nodes in a group of collectors: answered by the active one, referred to it by the others.

A waiting collector has the nodes of its last term only, whose readings are stale.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from http import HTTPStatus

from aiohttp import web

from railscope_collector import active_collector
from railscope_collector.access.credentials import Credential
from railscope_collector.http import json_responses, route_table

# Health and metrics are about this process.
_OWN_ROUTES = frozenset({"healthy", "ready", "metrics"})


def route_to_active(
    role: active_collector.ActiveRole, handlers: route_table.RouteHandlers, names: Iterable[str]
) -> route_table.RouteHandlers:
    """Return handlers for all routes; `names` are those of the routes about nodes."""
    if not role.is_in_group:
        return handlers
    referred = set(names) - _OWN_ROUTES
    return {**handlers, **{name: partial(_answer, role, handlers[name]) for name in referred}}


async def _answer(
    role: active_collector.ActiveRole,
    handler: route_table.RouteHandler,
    request: web.Request,
    credential: Credential,
) -> web.StreamResponse:
    if not role.waits:
        return await handler(request, credential)
    if not role.active_url:
        status, retry = HTTPStatus.SERVICE_UNAVAILABLE, {"Retry-After": "5"}
        return json_responses.json_error(status, active_collector.NO_ACTIVE, retry)
    target = role.active_url + str(request.rel_url)
    content = {"error": f"this collector waits: {role.active_url} is active", "url": target}
    # Temporary: another collector may become the active one.
    status = HTTPStatus.TEMPORARY_REDIRECT
    return json_responses.json_response(content, status, {"Location": target})
