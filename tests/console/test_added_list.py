"""A list is a row of resources and a row of columns: route, roles, query, entity tag, OpenAPI and text follow."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal, cast

import msgspec
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from console_site import TOKENS, console
from running_collector import RunningCollector

from railscope.client import columns
from railscope.client.commands import table_text
from railscope_collector.access.credentials import Role
from railscope_collector.http import resources
from railscope_collector.http.access_control import RequestAuthorizer, make_application
from railscope_collector.http.list_query import sort_rows
from railscope_collector.http.openapi import openapi_document
from railscope_collector.http.resource_server import (
    Change,
    Resource,
    ResourceRequest,
    ResourceServer,
)
from railscope_collector.http.route_table import RUNNING, TenantScope


class Agent(msgspec.Struct, frozen=True):
    """Number of nodes with a version of the agent."""

    version: str
    nodes: int


class AgentList(msgspec.Struct, frozen=True):
    """Versions of agents."""

    timestamp_ns: int
    rows: tuple[Agent, ...]


class AgentsQuery(msgspec.Struct, frozen=True):
    """Query of the versions."""

    sort: Literal["", "version"] = ""


def agent_list(apis: resources.CollectorApis, asked: ResourceRequest) -> AgentList:
    nodes = apis.views.nodes.rows()
    rows = [Agent(version, len(nodes)) for version in sorted({row.agent_version for row in nodes})]
    return AgentList(apis.views.views().timestamp_ns, tuple(sort_rows(rows, asked.query.sort)))


RESOURCE = Resource(
    "agents",
    "agents",
    AgentList,
    RUNNING,
    TenantScope.NOTHING,
    AgentsQuery,
    agent_list,
    (Change.VIEWS,),
)
LISTING = columns.Listing(
    "List the versions of agents.",
    columns.columns("""
        VERSION  version  name
        NODES    nodes    number
    """),
    ("version",),
)


async def test_a_list_is_two_rows(tmp_path: Path) -> None:
    async with console(tmp_path, view_refresh_seconds=3600) as running, added(running) as client:

        async def get(path: str, role: Role, tag: str = "") -> tuple[int, Any, str]:
            headers = {"Authorization": f"Bearer {TOKENS[role]}", "If-None-Match": tag}
            async with client.get(f"/api/v1/{path}", headers=headers) as answer:
                content = await answer.json() if answer.status != HTTPStatus.NOT_MODIFIED else None
                return answer.status, content, answer.headers.get("ETag", "")

        status, found, tag = await get("agents?sort=version", Role.AUDITOR)
        assert (status, [row["nodes"] for row in found["rows"]]) == (200, [1])
        assert await get("agents?sort=version", Role.AUDITOR, tag) == (304, None, tag)
        for query, role, expected, text in (
            ("?sort=x", Role.OPERATOR, 400, "invalid sort 'x': expected one of version"),
            ("?x=1", Role.OPERATOR, 400, "unknown parameter 'x': expected one of sort"),
            ("", Role.TENANT, 403, "access denied: not for credentials of role tenant"),
        ):
            assert (await get(f"agents{query}", role))[:2] == (expected, {"error": text})
    lines = table_text(LISTING.columns, found["rows"]).splitlines()
    assert lines[0].split() == ["VERSION", "NODES"]
    assert lines[1].endswith(" 1")
    described = msgspec.json.decode(openapi_document((RESOURCE,)))["paths"]["/api/v1/agents"]["get"]
    assert described["description"].startswith("Roles: auditor, operator.")
    assert described["parameters"][0]["schema"]["enum"] == ["", "version"]


@contextlib.asynccontextmanager
async def added(
    running: RunningCollector,
) -> AsyncIterator[TestClient[web.Request, web.Application]]:
    """A client of a server with the list, of the data and credentials of a collector."""
    views, rest = running.collector.api, cast("Any", None)
    apis = resources.CollectorApis(views, rest, rest, rest)
    handlers = ResourceServer((RESOURCE,), apis, views.changes).handlers()
    authorizer = RequestAuthorizer(
        lambda: running.collector.tokens.credentials, running.collector.access
    )
    application = make_application(authorizer, handlers, 1000, (RESOURCE.route,))
    async with TestClient(TestServer(application)) as client:
        yield client
