"""Scope of a tenant in views and account: its own data, and nothing that reveals others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from collector.fleet.cell import Cell

_TENANT_METRICS = ("railscope_tenant_", "railscope_job_")


def own_cells(cells: Iterable[Cell], tenant: str) -> Iterator[Cell]:
    """Yield the cells of the tenant and its jobs: none of rails, the cluster, the collector or others."""
    for cell in cells:
        if cell.metric.name.startswith(_TENANT_METRICS):
            labels = zip(cell.metric.about.labels, cell.labels, strict=False)
            if dict(labels).get("tenant") == tenant:
                yield cell


def own_account(account: dict[str, Any], tenant: str) -> dict[str, Any]:
    """Return the tenant's part of an account, without the size of the cluster and its free capacity."""
    tenants = account["tenants"]
    own = {tenant: tenants[tenant]} if tenant in tenants else {}
    return {"until_ns": account["until_ns"], "tenants": own}
