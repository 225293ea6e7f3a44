"""The boards: generated, complete, and made of metrics that exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from dashboards.build import GENERATED, boards
from dashboards.promql import labels_in, problems

ROOT = Path(__file__).parent.parent
PROVISIONING = ROOT / "dashboards" / "provisioning"
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


def generate(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dashboards", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_generating_again_changes_nothing():
    outcome = generate("--check")
    assert outcome.returncode == 0, outcome.stderr
    assert {path.name for path in GENERATED.iterdir()} == set(BOARDS)


def test_a_changed_board_is_noticed_and_mended(tmp_path: Path):
    (tmp_path / "cluster-overview.json").write_text("{}\n")
    noticed = generate("--check", "--to", str(tmp_path))
    assert noticed.returncode == 1
    assert "cluster-overview.json" in noticed.stderr
    assert generate("--to", str(tmp_path)).returncode == 0
    assert generate("--check", "--to", str(tmp_path)).returncode == 0


def test_uids_are_unique_and_stable():
    uids = [board["uid"] for board in BOARDS.values()]
    assert len(set(uids)) == len(uids)
    assert "railscope-cluster" in uids


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_a_board_has_what_grafana_needs(board: dict[str, Any]):
    assert 30 <= board["schemaVersion"] < 50
    assert board["title"]
    assert "railscope" in board["tags"]
    assert set(board["time"]) == {"from", "to"}
    assert board["annotations"] == {"list": []}
    (variable,) = board["templating"]["list"]
    assert (variable["name"], variable["type"]) == ("datasource", "datasource")
    assert variable["query"] == "prometheus"
    assert "id" not in board, "Grafana gives the number"


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_the_first_row_asks_the_question_of_the_board(board: dict[str, Any]):
    first = board["panels"][0]
    assert first["type"] == "row"
    assert first["title"] == board["description"]
    assert all(p["title"].endswith("?") for p in board["panels"] if p["type"] == "row")


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_panels_have_their_own_number_and_place(board: dict[str, Any]):
    numbers = [panel["id"] for panel in board["panels"]]
    assert len(set(numbers)) == len(numbers)
    places = [panel["gridPos"] for panel in board["panels"]]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    for one, other in combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below, (one, other)


@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_is_explained(panel: dict[str, Any]):
    assert panel["title"]
    assert panel["description"]
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["datasource"] == VARIABLE
    assert panel["targets"]
    references = [target["refId"] for target in panel["targets"]]
    assert len(set(references)) == len(references)


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_is_made_of_what_the_catalog_declares(query: dict[str, Any]):
    assert problems(query["expr"]) == []
    assert query["datasource"] == VARIABLE
    shown = set(re.findall(r"\{\{(\w+)\}\}", query.get("legendFormat", "")))
    assert shown <= labels_in(query["expr"])


@pytest.mark.parametrize("query", QUERIES)
def test_a_rate_follows_the_scrape_interval(query: dict[str, Any]):
    for window in re.findall(r"\b(?:rate|deriv)\([^\[]*\[([^\]]*)\]", query["expr"]):
        assert window == "$__rate_interval"


def test_prometheus_understands_every_query(tmp_path: Path):
    if not shutil.which("promtool"):
        pytest.skip("promtool is missing: install the Debian package prometheus")
    rules = [
        {"record": f"board:query{index}", "expr": query.replace("$__rate_interval", "1m")}
        for index, query in enumerate(param.values[0]["expr"] for param in QUERIES)
    ]
    path = tmp_path / "queries.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "board", "rules": rules}]}))
    outcome = subprocess.run(
        ["promtool", "check", "rules", str(path)], capture_output=True, text=True, check=False
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("sum(railscope_gpu_powr_watts)", "no metric railscope_gpu_powr_watts"),
        ('railscope_rdma_port_up{interface="eth1"}', "no label interface"),
        ('railscope_source_state{state="broken"}', "no state broken"),
        ("sum by (rail) (railscope_gpu_power_watts)", "the label rail"),
        ("rate(railscope_gpu_power_watts[5m])", "needs a counter"),
        ("deriv(railscope_gpu_energy_joules_total[5m])", "needs a gauge"),
    ],
)
def test_a_mistake_in_a_query_is_found(expression: str, problem: str):
    (found,) = problems(expression)
    assert problem in found


@pytest.mark.parametrize(
    "expression",
    [
        'up{job="railscope-agent"} == 0',
        'railscope_rdma_port_info{rail="3", node=~"gpu-.*"}',
        'sum by (rail, reason) (railscope_rail_sum_gpu_throttle_active{reason!="{gpu_idle}"})',
        'count by (source) (railscope_source_state{state="failed"} == 1)',
        "rate(railscope_gpu_energy_joules_total[5m])",
    ],
)
def test_a_right_query_passes(expression: str):
    assert problems(expression) == []


def test_provisioning_reads_as_often_as_prometheus_scrapes():
    (source,) = yaml.safe_load((PROVISIONING / "datasources/railscope.yml").read_text())[
        "datasources"
    ]
    (provider,) = yaml.safe_load((PROVISIONING / "dashboards/railscope.yml").read_text())[
        "providers"
    ]
    scrapes = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    assert source["type"] == "prometheus"
    assert source["jsonData"]["timeInterval"] == scrapes["global"]["scrape_interval"]
    assert provider["options"]["path"]
