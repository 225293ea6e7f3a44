"""The generated dashboards, their panels and their queries, as parameters of tests."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from railscope_dashboards.build import dashboards

DASHBOARDS: dict[str, dict[str, Any]] = {name: json.loads(text) for name, text in dashboards()}


def panels_of(dashboard: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the rows and the panels of a dashboard, also those in folded rows."""
    for panel in dashboard["panels"]:
        yield panel
        yield from panel.get("panels", ())


PANELS = [
    pytest.param(panel, id=f"{dashboard['uid']}-{panel['id']}")
    for dashboard in DASHBOARDS.values()
    for panel in panels_of(dashboard)
    if panel["type"] != "row"
]
QUERIES = [
    pytest.param(target, id=f"{dashboard['uid']}-{panel['id']}{target['refId']}")
    for dashboard in DASHBOARDS.values()
    for panel in panels_of(dashboard)
    for target in panel.get("targets", [])
]
VARIABLE = {"type": "prometheus", "uid": "${datasource}"}
TABLES = [param for param in PANELS if param.values[0]["type"] == "table"]
