"""The generated dashboards, their panels and their queries, as parameters of tests."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dashboards.build import boards

BOARDS: dict[str, dict[str, Any]] = {name: json.loads(text) for name, text in boards()}
PANELS = [
    pytest.param(panel, id=f"{board['uid']}-{panel['id']}")
    for board in BOARDS.values()
    for panel in board["panels"]
    if panel["type"] != "row"
]
QUERIES = [
    pytest.param(target, id=f"{board['uid']}-{panel['id']}{target['refId']}")
    for board in BOARDS.values()
    for panel in board["panels"]
    for target in panel.get("targets", [])
]
VARIABLE = {"type": "prometheus", "uid": "${datasource}"}
TABLES = [param for param in PANELS if param.values[0]["type"] == "table"]
