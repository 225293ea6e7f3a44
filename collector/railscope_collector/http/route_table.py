"""Routes, each with the roles that may use it: the type, and those of machines. Those of the API follow from `resources`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from aiohttp import web

from railscope_collector.access import credentials as access

INGEST_PATH = "/v1/frames"


class TenantScope(StrEnum):
    """Part of a route's content that a tenant may read."""

    NOTHING = "nothing"
    SAME = "same as other roles"
    """Content that belongs to no tenant."""
    OWN_DATA = "own data only"
    """The handler omits the content of other tenants."""
    NAMED = "own path only"
    """The path names a tenant; access to any other is denied, even if that tenant does not exist."""


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path."""

    name: str
    """Name of the handler."""
    path: str
    roles: frozenset[access.Role]
    """Permitted roles, in addition to tenants with access."""
    tenants: TenantScope = TenantScope.NOTHING
    method: str = "GET"
    open: bool = False
    """True if unauthenticated requests are served."""

    def admits(self, role: access.Role) -> bool:
        """True if a role may use the route."""
        return (
            self.tenants is not TenantScope.NOTHING
            if role is access.Role.TENANT
            else role in self.roles
        )

    @property
    def methods(self) -> tuple[str, ...]:
        """Served methods: a GET route also serves HEAD."""
        return ("GET", "HEAD") if self.method == "GET" else (self.method,)


NOT_A_TENANT = frozenset(set(access.Role) - {access.Role.TENANT})
READING_ROLES = frozenset(set(access.Role) - {access.Role.NODE})
"""Roles of people and of their programs."""
RUNNING = frozenset({access.Role.OPERATOR, access.Role.AUDITOR})
BILLING = frozenset({access.Role.FINANCE, access.Role.AUDITOR})
AUDIT = frozenset({access.Role.AUDITOR})
_NODE = frozenset({access.Role.NODE})


def open_route(name: str, path: str, method: str = "GET") -> Route:
    """Return a route that serves unauthenticated requests."""
    return Route(name, path, NOT_A_TENANT, TenantScope.SAME, method, open=True)


MACHINE_ROUTES: Collection[Route] = (
    open_route("healthy", "/-/healthy"),
    open_route("ready", "/-/ready"),
    Route("frames", INGEST_PATH, _NODE, method="POST"),
    Route("metrics", "/metrics", RUNNING, TenantScope.OWN_DATA),
    Route("witness_checkpoint", "/v1/checkpoint", _NODE),
    Route("witness_key", "/v1/checkpoint/key", _NODE),
    Route("witness_consistency", "/v1/checkpoint/consistency", _NODE),
    Route("witness_cosignature", "/v1/checkpoint/cosignature", _NODE, method="POST"),
)


RouteHandler: TypeAlias = Callable[[web.Request, access.Credential], Awaitable[web.StreamResponse]]
"""Handler of an authorized request; an open route is called with `ANYONE`."""
RouteHandlers: TypeAlias = Mapping[str, RouteHandler]
"""Handlers by route name."""
