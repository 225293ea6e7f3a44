"""The generated dashboards, their panels and their queries, as parameters of tests."""

from __future__ import annotations

import json
from typing import Any

import pytest

from railscope_dashboards.build import dashboards

DASHBOARDS: dict[str, dict[str, Any]] = {name: json.loads(text) for name, text in dashboards()}
PANELS = [
    pytest.param(panel, id=f"{dashboard['uid']}-{panel['id']}")
    for dashboard in DASHBOARDS.values()
    for panel in dashboard["panels"]
    if panel["type"] != "row"
]
QUERIES = [
    pytest.param(target, id=f"{dashboard['uid']}-{panel['id']}{target['refId']}")
    for dashboard in DASHBOARDS.values()
    for panel in dashboard["panels"]
    for target in panel.get("targets", [])
]
VARIABLE = {"type": "prometheus", "uid": "${datasource}"}
TABLES = [param for param in PANELS if param.values[0]["type"] == "table"]
