"""Routing of requests about all nodes: answered at the head, referred to it by other collectors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus

from aiohttp import web

from railscope_collector import cluster_head
from railscope_collector.access.credentials import Credential, Role
from railscope_collector.http import json_responses, route_table
from railscope_collector.ledger import membership

_HISTORY_ROUTES = frozenset({"page_node_history", "page_gpu"})


@dataclass(slots=True)
class ClusterRouting:
    """Answers requests about all nodes at the head, and refers to it at other collectors."""

    cluster: cluster_head.ClusterHead

    def route(
        self, own_handlers: route_table.RouteHandlers, of_all_nodes: Iterable[str]
    ) -> route_table.RouteHandlers:
        """Return handlers for all routes; `of_all_nodes` are the names of those about all nodes."""
        if not self.cluster.role.is_enabled:
            return own_handlers
        routed = {name: partial(self._answer, name, own_handlers[name]) for name in of_all_nodes}
        return {**own_handlers, **routed}

    async def _answer(
        self,
        name: str,
        own_handler: route_table.RouteHandler,
        request: web.Request,
        credential: Credential,
    ) -> web.StreamResponse:
        cluster, state = self.cluster, self.cluster.role.state
        if name in _HISTORY_ROUTES:
            # The collector that received the frames of a node has them.
            node = request.match_info["node"]
            owner = state.followed.get(state.find_collector(node)) if state else None
            if owner and owner.member.name != cluster.role.name:
                return _refer(request, owner.member)
            # A collector that is not the head still has the frames of its own nodes.
            if state is None and node in cluster.core.fleet.nodes:
                return await own_handler(request, credential)
        if state is None:
            return _refer(request, cluster.other_head)
        response = await state.handlers[name](request, credential)
        extent = state.refresher.views.extent
        # Pages state the collectors themselves.
        if extent is None or name.startswith("page_") or not isinstance(response, web.Response):
            return response
        if credential.role is Role.TENANT:
            extent = extent.for_tenant()
        if response.content_type == "application/json" and isinstance(response.body, bytes):
            response.body = extent.add_to(response.body)
        return response


def _refer(request: web.Request, member: membership.ClusterMember | None) -> web.Response:
    """Return a redirect to another collector; 503 while there is none."""
    if member is None:
        text = "no collector shows all nodes at present: another one begins within seconds"
        return json_responses.json_error(HTTPStatus.SERVICE_UNAVAILABLE, text, {"Retry-After": "5"})
    target = member.url + str(request.rel_url)
    content = {"error": f"collector {member.name} shows all nodes", "url": target}
    return json_responses.json_response(
        # Temporary: another collector may become the head.
        content,
        HTTPStatus.TEMPORARY_REDIRECT,
        {"Location": target},
    )
