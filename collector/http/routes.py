"""The table of routes: path, method, permitted roles, and the part that a tenant may read.

The application is built from this table only, so there is no route without roles.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from collector.access.credential import Role

INGEST_PATH = "/v1/frames"


class Sees(StrEnum):
    """Part of a route's content that a tenant may read."""

    NOTHING = "nothing"
    SAME = "as all"
    """Content that belongs to no tenant."""
    OWN = "own part"
    """The handler omits the content of other tenants."""
    NAMED = "own path"
    """The path names a tenant; any other is denied, even if it does not exist."""


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path."""

    name: str
    """Name of the handler."""
    path: str
    roles: frozenset[Role]
    """Permitted roles, in addition to tenants with access."""
    tenants: Sees = Sees.NOTHING
    method: str = "GET"
    open: bool = False
    """True if unauthenticated requests are served."""

    def admits(self, role: Role) -> bool:
        """True if a role may use the route."""
        return self.tenants is not Sees.NOTHING if role is Role.TENANT else role in self.roles

    @property
    def methods(self) -> tuple[str, ...]:
        """Served methods: a GET route also serves HEAD."""
        return ("GET", "HEAD") if self.method == "GET" else (self.method,)


_NOT_A_TENANT = frozenset(set(Role) - {Role.TENANT})
_RUNNING = frozenset({Role.OPERATOR, Role.AUDITOR})
_BILLING = frozenset({Role.FINANCE, Role.AUDITOR})
_AUDIT = frozenset({Role.AUDITOR})
_NODE = frozenset({Role.NODE})


def _open(name: str, path: str) -> Route:
    return Route(name, path, _NOT_A_TENANT, Sees.SAME, open=True)


ROUTES: Collection[Route] = (
    _open("landing", "/"),
    _open("healthy", "/-/healthy"),
    _open("ready", "/-/ready"),
    Route("frames", INGEST_PATH, _NODE, method="POST"),
    Route("metrics", "/metrics", _RUNNING, Sees.OWN),
    Route("cluster", "/api/v1/cluster", _RUNNING),
    Route("rails", "/api/v1/rails", _RUNNING),
    Route("nodes", "/api/v1/nodes", _RUNNING),
    Route("node", "/api/v1/nodes/{node}", _RUNNING),
    Route("inventory", "/api/v1/inventory", _RUNNING),
    Route("events", "/api/v1/events", _RUNNING),
    Route("jobs", "/api/v1/jobs", _RUNNING, Sees.OWN),
    Route("job", "/api/v1/jobs/{tenant}/{source}/{workload}", _RUNNING, Sees.NAMED),
    Route("tenants", "/api/v1/tenants", _RUNNING | _BILLING, Sees.OWN),
    Route("account", "/api/v1/account", _RUNNING | _BILLING, Sees.OWN),
    Route("statements", "/api/v1/statements", _BILLING, Sees.OWN),
    Route("statement", "/api/v1/statements/{tenant}/{period}", _BILLING, Sees.NAMED),
    Route("export", "/api/v1/exports/{period}", _BILLING, Sees.OWN),
    Route("audit", "/api/v1/audit", _AUDIT, Sees.OWN),
    Route("audit_entry", "/api/v1/audit/entries/{index}", _AUDIT, Sees.OWN),
    Route("audit_checkpoint", "/api/v1/audit/checkpoint", _NOT_A_TENANT, Sees.SAME),
    Route("audit_consistency", "/api/v1/audit/consistency", _NOT_A_TENANT, Sees.SAME),
    Route("custody_checkpoint", "/v1/checkpoint", _NODE),
    Route("custody_key", "/v1/checkpoint/key", _NODE),
    Route("custody_consistency", "/v1/checkpoint/consistency", _NODE),
    Route("custody_cosignature", "/v1/checkpoint/cosignature", _NODE, method="POST"),
)
