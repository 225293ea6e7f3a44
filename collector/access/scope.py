"""What of the views and the account a tenant sees: its own, and nothing from which others follow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from collector.views.table import Cell

_TENANT_METRICS = "railscope_tenant_"


def own_cells(cells: Iterable[Cell], tenant: str) -> list[Cell]:
    """Cells of the tenant: nothing of nodes, rails, the cluster, the collector or other tenants."""
    return [
        cell
        for cell in cells
        if cell.metric.name.startswith(_TENANT_METRICS)
        and dict(zip(cell.metric.about.labels, cell.labels, strict=True)).get("tenant") == tenant
    ]


def own_account(account: dict[str, Any], tenant: str) -> dict[str, Any]:
    """The tenant's part of an account: not the cluster's size, nor how much of it is free."""
    tenants = account["tenants"]
    own = {tenant: tenants[tenant]} if tenant in tenants else {}
    return {"until_ns": account["until_ns"], "tenants": own}
