"""Routes of the collector, each with the roles that may use it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from aiohttp import web

from railscope import wire
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


_NOT_A_TENANT = frozenset(set(access.Role) - {access.Role.TENANT, access.Role.COLLECTOR})
READING_ROLES = frozenset(set(access.Role) - {access.Role.NODE, access.Role.COLLECTOR})
"""Roles of people and of their programs."""
_RUNNING = frozenset({access.Role.OPERATOR, access.Role.AUDITOR})
_BILLING = frozenset({access.Role.FINANCE, access.Role.AUDITOR})
_AUDIT = frozenset({access.Role.AUDITOR})
_NODE = frozenset({access.Role.NODE})


def _open(name: str, path: str) -> Route:
    return Route(name, path, _NOT_A_TENANT, TenantScope.SAME, open=True)


ROUTES: Collection[Route] = (
    _open("healthy", "/-/healthy"),
    _open("ready", "/-/ready"),
    Route("frames", INGEST_PATH, _NODE, method="POST"),
    Route("copies", wire.COPIES_PATH, _NODE, method="POST"),
    Route("records", "/v1/records", frozenset({access.Role.COLLECTOR})),
    Route("metrics", "/metrics", _RUNNING, TenantScope.OWN_DATA),
    Route("openapi", "/api/v1/openapi.json", _RUNNING | _BILLING, TenantScope.SAME),
    Route("status", "/api/v1/status", _RUNNING, TenantScope.OWN_DATA),
    Route("cluster", "/api/v1/cluster", _RUNNING),
    Route("rails", "/api/v1/rails", _RUNNING),
    Route("nodes", "/api/v1/nodes", _RUNNING),
    Route("node", "/api/v1/nodes/{node}", _RUNNING),
    Route("gpus", "/api/v1/gpus", _RUNNING, TenantScope.OWN_DATA),
    Route("switches", "/api/v1/switches", _RUNNING),
    Route("switch", "/api/v1/switches/{switch}", _RUNNING),
    Route("switch_port", "/api/v1/switches/{switch}/ports/{port}", _RUNNING),
    Route("links", "/api/v1/links", _RUNNING),
    Route("inventory", "/api/v1/inventory", _RUNNING),
    Route("events", "/api/v1/events", _RUNNING),
    Route("incidents", "/api/v1/incidents", _RUNNING, TenantScope.OWN_DATA),
    Route("incident", "/api/v1/incidents/{incident}", _RUNNING, TenantScope.OWN_DATA),
    Route("jobs", "/api/v1/jobs", _RUNNING, TenantScope.OWN_DATA),
    Route("job", "/api/v1/jobs/{tenant}/{source}/{workload}", _RUNNING, TenantScope.NAMED),
    Route("tenants", "/api/v1/tenants", _RUNNING | _BILLING, TenantScope.OWN_DATA),
    Route("account", "/api/v1/account", _RUNNING | _BILLING, TenantScope.OWN_DATA),
    Route("statements", "/api/v1/statements", _BILLING, TenantScope.OWN_DATA),
    Route("statement", "/api/v1/statements/{tenant}/{period}", _BILLING, TenantScope.NAMED),
    Route("export", "/api/v1/exports/{period}", _BILLING, TenantScope.OWN_DATA),
    Route("audit", "/api/v1/audit", _AUDIT, TenantScope.OWN_DATA),
    Route("audit_entry", "/api/v1/audit/entries/{index}", _AUDIT, TenantScope.OWN_DATA),
    Route("audit_checkpoint", "/api/v1/audit/checkpoint", _NOT_A_TENANT, TenantScope.SAME),
    Route("audit_consistency", "/api/v1/audit/consistency", _NOT_A_TENANT, TenantScope.SAME),
    Route("witness_checkpoint", "/v1/checkpoint", _NODE),
    Route("witness_key", "/v1/checkpoint/key", _NODE),
    Route("witness_consistency", "/v1/checkpoint/consistency", _NODE),
    Route("witness_cosignature", "/v1/checkpoint/cosignature", _NODE, method="POST"),
)


RouteHandler: TypeAlias = Callable[[web.Request, access.Credential], Awaitable[web.StreamResponse]]
"""Handler of an authorized request; an open route is called with `ANYONE`."""
RouteHandlers: TypeAlias = Mapping[str, RouteHandler]
"""Handlers by route name."""
