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
from dashboards.panels import MAX_POINTS, Column, rows
from dashboards.promql import expanded, labels_in, metric_named, metrics_in, problems, recorded_in
from dashboards.query import ask, at_end, highest, joins_for, lowest, with_device_names
from tests.support.grafana_schema import mistakes

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
LABEL_VALUES = re.compile(r"label_values\((?P<selector>.*), (?P<label>\w+)\)")
VARIABLE = {"type": "prometheus", "uid": "${datasource}"}


def used_in(text: str) -> set[str]:
    """The variables of a board that a text names; Grafana's own begin with two underscores."""
    return set(re.findall(r"\$((?!__)\w+)", text))


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
    """Alerts and bookmarks lead to boards by them."""
    assert {name.removesuffix(".json"): board["uid"] for name, board in BOARDS.items()} == {
        "cluster-overview": "railscope-cluster",
        "rails": "railscope-rails",
        "node": "railscope-node",
        "pair": "railscope-pair",
        "efficiency": "railscope-efficiency",
        "health": "railscope-health",
        "links": "railscope-links",
        "jobs": "railscope-jobs",
        "tenant": "railscope-tenant",
        "billing": "railscope-billing",
        "audit": "railscope-audit",
        "own": "railscope-own",
    }


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_a_board_has_what_grafana_needs(board: dict[str, Any]):
    assert 30 <= board["schemaVersion"] < 50
    assert board["title"]
    assert "railscope" in board["tags"]
    assert set(board["time"]) == {"from", "to"}
    source, *others = board["templating"]["list"]
    assert (source["name"], source["type"]) == ("datasource", "datasource")
    assert source["query"] == "prometheus"
    assert all(other["datasource"] == VARIABLE for other in others)
    assert "id" not in board, "Grafana gives the number"


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_a_board_is_what_grafanas_schema_allows(board: dict[str, Any]):
    assert mistakes(board) == []


@pytest.mark.parametrize(
    ("way", "value"),
    [
        (("refresh",), 30),
        (("panels", 1, "gridPos", "w"), "8"),
        (("panels", 1, "gridPos", "width"), 8),
        (("panels", 1, "type"), "numbers"),
        (("panels", 1, "options", "graphMode"), "lines"),
        (("panels", 1, "options", "colour"), "red"),
        (("panels", 1, "fieldConfig", "defaults", "unit"), "watts"),
        (("panels", 1, "fieldConfig", "defaults", "custom"), {"lineWidth": 1}),
        (("panels", 1, "fieldConfig", "defaults", "thresholds", "mode"), "relative"),
        (("panels", 1, "fieldConfig", "overrides"), [
            {"matcher": {"id": "byName"}, "properties": [{"id": "colour", "value": "red"}]}
        ]),
        (("panels", 1, "targets", 0, "format"), "rows"),
        (("panels", 1, "targets", 0, "query"), "up"),
        (("panels", 1, "transformations"), [{"id": "merge", "options": {}, "of": "all"}]),
        (("templating", "list", 1, "sort"), 99),
        (("links", 0, "type"), "board"),
    ],
)  # fmt: skip
def test_what_grafanas_schema_does_not_allow_is_noticed(way: tuple[str | int, ...], value: object):
    board = json.loads(json.dumps(BOARDS["node.json"]))
    *before, last = way
    place = board
    for step in before:
        place = place[step]
    place[last] = value
    assert len(mistakes(board)) == 1


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_a_variable_takes_its_values_from_what_is_declared(board: dict[str, Any]):
    before: set[str] = set()
    for variable in board["templating"]["list"][1:]:
        asked = LABEL_VALUES.fullmatch(variable["query"])
        assert asked, variable["query"]
        assert problems(asked["selector"]) == []
        assert asked["label"] in labels_in(asked["selector"])
        assert used_in(asked["selector"]) <= before, "variables follow from those before them"
        before.add(variable["name"])
    used = {name for panel in board["panels"] for t in panel.get("targets", ())
            for name in used_in(t["expr"])}  # fmt: skip
    assert used <= before
    unused = (
        before - used - {name for v in board["templating"]["list"] for name in used_in(v["query"])}
    )
    assert not unused


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_a_variable_of_several_values_is_matched_as_a_pattern(board: dict[str, Any]):
    several = {v["name"]: v.get("multi", False) for v in board["templating"]["list"]}
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            for operator, name in re.findall(r'(=~?)"\$(\w+)"', target["expr"]):
                assert (operator == "=~") == several[name], target["expr"]


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_marks_are_made_of_what_is_declared(board: dict[str, Any]):
    for marks in board["annotations"]["list"]:
        assert problems(marks["expr"]) == []
        shown = set(re.findall(r"\{\{(\w+)\}\}", marks["textFormat"]))
        assert shown | set(marks["tagKeys"].split(",")) <= labels_in(marks["expr"])


@pytest.mark.parametrize(
    ("expression", "at_the_end"),
    [
        ("railscope_a", "railscope_a @ end()"),
        ('railscope_a{x="}"}', 'railscope_a{x="}"} @ end()'),
        ("rate(railscope_a_total[$__rate_interval])", "rate(railscope_a_total[$__rate_interval] @ end())"),
        (
            'sum by (node) (railscope_a{x=~"$x"}) / railscope:b:sum[5m]',
            'sum by (node) (railscope_a{x=~"$x"} @ end()) / railscope:b:sum[5m] @ end()',
        ),
    ],
)  # fmt: skip
def test_an_expression_as_it_is_at_the_end(expression: str, at_the_end: str):
    assert at_end(expression) == at_the_end
    assert lowest(expression) == f"({expression}) and bottomk(10, {at_the_end})"
    assert highest(expression) == f"({expression}) and topk(10, {at_the_end})"


def test_boards_lead_to_each_other_and_keep_time_and_variables():
    for board in BOARDS.values():
        if board["uid"] == "railscope-tenant":
            continue
        (link,) = board["links"]
        assert (link["type"], link["tags"]) == ("dashboards", ["railscope"])
        assert link["keepTime"]
        assert link["includeVars"]


def test_a_cell_leads_to_a_board_that_has_the_variable():
    variables = {board["uid"]: {v["name"] for v in board["templating"]["list"]}
                 for board in BOARDS.values()}  # fmt: skip
    urls = re.findall(r'"url": "(/d/[^"]+)"', json.dumps(list(BOARDS.values())))
    assert urls
    for url in urls:
        found = re.fullmatch(r"/d/([\w-]+)\?var-(\w+)=\$\{__value\.raw:percentencode\}&(.*)", url)
        assert found, url
        assert found[2] in variables[found[1]]
        assert found[3] == "${datasource:queryparam}&${__url_time_range}"


def test_the_board_of_a_tenant_shows_nothing_of_others():
    board = BOARDS["tenant.json"]
    assert "links" not in board or not board["links"]
    assert board["annotations"]["list"] == []
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            found = re.findall(r"(railscope_\w+)(\{tenant=\"\$tenant\"[^}]*\})?", target["expr"])
            assert found
            assert all(narrowed for _, narrowed in found), target["expr"]
            assert all(
                name.startswith(("railscope_tenant_", "railscope_job_")) for name, _ in found
            )
            assert not re.search(r'"url"', json.dumps(panel["fieldConfig"]["overrides"]))


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
    for window in re.findall(
        r"\b(?:rate|deriv|increase|changes)\([^\[]*\[([^\]]*)\]", query["expr"]
    ):
        assert window == "$__rate_interval"


def test_a_curve_has_no_more_points_than_it_needs():
    """What a query holds in memory grows with them: at a thousand servers Prometheus would refuse."""
    for board in BOARDS.values():
        for panel in board["panels"]:
            if any(not target.get("instant") for target in panel.get("targets", ())):
                assert panel["maxDataPoints"] <= MAX_POINTS, (board["uid"], panel["id"])


def test_a_panel_of_recorded_series_says_what_it_needs():
    shown = set()
    for panel in (param.values[0] for param in PANELS):
        for name in recorded_in(" ".join(target["expr"] for target in panel["targets"])):
            assert f"`{name}`: a rule" in panel["description"]
            shown.add(name)
    made = yaml.safe_load((ROOT / "alerts/rules/recorded.yml").read_text())["groups"]
    assert shown == {rule["record"] for group in made for rule in group["rules"]}


def test_an_expression_is_told_without_its_recorded_series():
    told = expanded('sum(railscope:node_nvlink_errors:rate5m{node=~"$node"})')
    rate = 'rate(railscope_nvlink_errors_total{node=~"$node"}[5m])'
    assert told == f"sum((sum by (node, error) ({rate})))"
    assert expanded("railscope:node_source_state:sum") == (
        "(sum by (node, state) (railscope_source_state))"
    )


def test_a_panel_with_a_curve_for_each_server_draws_few():
    """A thousand curves are dear, and nobody can read them."""
    for board in BOARDS.values():
        several = any(v.get("multi") for v in board["templating"]["list"])
        for panel in board["panels"]:
            for target in panel.get("targets", ()) if several else ():
                if "{{node}}" in target.get("legendFormat", ""):
                    few = re.search(r"^(top|bottom)k\(|> 0|\) and (top|bottom)k\(", target["expr"])
                    assert few, (board["uid"], panel["id"], target["expr"])


def test_a_curve_is_never_called_by_its_expression():
    """Grafana calls it so where the legend is left to it and the query leaves no label."""
    for board in BOARDS.values():
        for panel in board["panels"]:
            for target in panel.get("targets", ()):
                if target.get("legendFormat") == "__auto":
                    assert labels_in(target["expr"]), (board["uid"], panel["id"])


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_panels_side_by_side_end_at_the_same_height(board: dict[str, Any]):
    for place, other in combinations([panel["gridPos"] for panel in board["panels"]], 2):
        if place["y"] == other["y"]:
            assert place["h"] == other["h"]


def test_rows_and_columns_of_a_grid_are_in_order():
    """Prometheus answers of an instant in any order."""
    for board in BOARDS.values():
        for panel in board["panels"]:
            steps = panel.get("transformations", ())
            for matrix in (step["options"] for step in steps if step["id"] == "groupingToMatrix"):
                order = [step["options"]["sort"] for step in steps if step["id"] == "sortBy"]
                assert order == [
                    [{"field": matrix["rowField"]}],
                    [{"field": matrix["columnField"]}],
                ]


TABLES = [param for param in PANELS if param.values[0]["type"] == "table"]


@pytest.mark.parametrize("panel", TABLES)
def test_a_table_shows_its_worst_rows_first(panel: dict[str, Any]):
    """By columns of values, from the end at which their colours say that something is wrong."""
    by = panel["options"]["sortBy"]
    assert by
    steps = {step["id"]: step["options"] for step in panel["transformations"]}
    if "groupingToMatrix" in steps:
        titles = {steps["calculateField"]["alias"]}
        reducer = steps["calculateField"]["reduce"]["reducer"]
        assert reducer == ("max" if by[0]["desc"] else "min")
    else:
        names = steps["organize"]["renameByName"]
        titles = {title for name, title in names.items() if name.startswith("Value")}
    assert {one["displayName"] for one in by} <= titles
    for one in by:
        for override in panel["fieldConfig"]["overrides"]:
            if override["matcher"] in (
                {"id": "byName", "options": one["displayName"]},
                {"id": "byType", "options": "number"},
            ):
                check_direction(override["properties"], descending=one["desc"])


def check_direction(properties: list[dict[str, Any]], *, descending: bool) -> None:
    """A table begins at the end whose colour is red or orange."""
    for one in properties:
        if one["id"] == "thresholds" and len(one["value"]["steps"]) > 1:
            first, *_, last = (step["color"] for step in one["value"]["steps"])
            assert (last if descending else first) in {"red", "orange"}
            assert first != "green" or descending


GPU_NAMES = {"index", "gpu", "pci_address"}
NIC_NAMES = {"interface", "device", "rail"}


def missing_names(keys: set[str], about: frozenset[str]) -> set[str]:
    """Names that a table lacks whose keys are these, and whose values are of such entities."""
    keys = {"device" if key == "rdma_device" else key for key in keys}
    missing = set()
    if keys & GPU_NAMES:
        missing |= GPU_NAMES - keys
    if keys & {"interface", "device"} or ({"node", "rail"} <= keys and "gpu" not in keys):
        missing |= NIC_NAMES - keys
    if "pci_address" in keys and about & {"pcie", "pcie_error", "pcie_aer"}:
        missing |= NIC_NAMES - keys
    return missing


@pytest.mark.parametrize("panel", TABLES)
def test_a_table_has_all_names_of_gpus_and_nics(panel: dict[str, Any]):
    """A tenant sees only the names that its own metrics have; the rows of a grid are nodes."""
    steps = {step["id"]: step["options"] for step in panel["transformations"]}
    if all('tenant="$tenant"' in target["expr"] for target in panel["targets"]):
        return
    if "groupingToMatrix" in steps:
        assert steps["groupingToMatrix"]["rowField"] == "node"
        return
    keys = {name for name in steps["organize"]["renameByName"] if not name.startswith("Value")}
    shown = (metric_named(n) for t in panel["targets"] for n in metrics_in(t["expr"]))
    about = frozenset(metric.about.name for metric in shown if metric)
    assert missing_names(keys, about) == set()
    assert keys <= frozenset().union(*(labels_in(target["expr"]) for target in panel["targets"]))


def test_a_table_without_all_names_is_noticed():
    nothing: frozenset[str] = frozenset()
    assert missing_names({"node", "gpu", "reason"}, nothing) == {"index", "pci_address"}
    assert missing_names({"node", "pci_address", "xid"}, frozenset({"xid"})) == {"index", "gpu"}
    assert missing_names({"node", "interface"}, nothing) == {"device", "rail"}
    assert missing_names({"node", "rail"}, nothing) == {"interface", "device"}
    assert missing_names({"node", "device", "port"}, nothing) == {"interface", "rail"}
    assert missing_names(GPU_NAMES | {"node"}, frozenset({"pcie"})) == NIC_NAMES
    assert missing_names(GPU_NAMES | NIC_NAMES | {"node"}, frozenset({"pcie"})) == set()


def named(keys: str, *, series: str) -> str:
    """Query for the values of a metric, as a table with these key labels asks for it."""
    ways = joins_for(dict.fromkeys(keys.split(), ""))
    values = ask(f"max by ({', '.join(keys.split())}) ({series})")
    return with_device_names(values, *ways).expression


GPU_OF_N1 = 'railscope_gpu_info{node="n1", gpu="GPU-1", index="4", pci_address="0:3b"}'
NIC_OF_N1 = 'railscope_nic_info{node="n1", interface="eth3", rdma_device="mlx5_3", rail="3", pci_address="0:5e"}'
PORT_OF_N1 = 'railscope_rdma_port_info{node="n1", device="mlx5_3", port="1", interface="eth3", rail="3", pci_address="0:5e"}'
PATH = "railscope_pcie_path_limit_bytes_per_second"


@pytest.mark.parametrize(
    ("keys", "series", "infos", "shown"),
    [
        (
            "node gpu", 'railscope_gpu_power_watts{node="n1", gpu="GPU-1"}', [GPU_OF_N1],
            '{node="n1", gpu="GPU-1", index="4", pci_address="0:3b"}',
        ),
        (
            "node pci_address xid", 'railscope_gpu_xid_errors_total{node="n1", pci_address="0:3b", xid="48"}',
            [GPU_OF_N1], '{node="n1", pci_address="0:3b", xid="48", gpu="GPU-1", index="4"}',
        ),
        (  # two scrapes of the same names, and another name of the same device
            "node gpu", 'railscope_gpu_power_watts{node="n1", gpu="GPU-1"}',
            [GPU_OF_N1, GPU_OF_N1.replace("{", '{instance="b", ')],
            '{node="n1", gpu="GPU-1", index="4", pci_address="0:3b"}',
        ),
        (
            "node interface", 'railscope_network_link_up{node="n1", interface="eth3"}', [NIC_OF_N1],
            '{node="n1", interface="eth3", rdma_device="mlx5_3", rail="3"}',
        ),
        (
            "node device port", 'railscope_rdma_port_up{node="n1", device="mlx5_3", port="1"}',
            [PORT_OF_N1],
            '{node="n1", device="mlx5_3", port="1", interface="eth3", rail="3"}',
        ),
        (
            "node pci_address", f'{PATH}{{node="n1", pci_address="0:3b"}}', [GPU_OF_N1],
            '{node="n1", pci_address="0:3b", gpu="GPU-1", index="4"}',
        ),
        (  # a virtual function at the same address
            "node pci_address", f'{PATH}{{node="n1", pci_address="0:5e"}}',
            ['railscope_nic_info{node="n1", interface="eth0v1", pci_address="0:5e"}', NIC_OF_N1, PORT_OF_N1],
            '{node="n1", pci_address="0:5e", interface="eth3", rdma_device="mlx5_3", rail="3"}',
        ),
        (  # InfiniBand without an interface
            "node pci_address", f'{PATH}{{node="n1", pci_address="0:5e"}}',
            [PORT_OF_N1.replace('interface="eth3", ', "")],
            '{node="n1", pci_address="0:5e", rdma_device="mlx5_3", rail="3"}',
        ),
    ],
)  # fmt: skip
def test_a_row_has_the_names_of_its_device(
    tmp_path: Path, keys: str, series: str, infos: list[str], shown: str
):
    """The row of a node without these names has its own keys alone."""
    name, labels = series.split("{")
    elsewhere = "{" + labels.replace('"n1"', '"n2"')
    expected = [{"labels": shown, "value": 7}, {"labels": elsewhere, "value": 8}]
    values = [(series, 7), (name + elsewhere, 8), *((info, 1) for info in infos)]
    case = {
        "interval": "1m",
        "input_series": [{"series": one, "values": f"{value}x9"} for one, value in values],
        "promql_expr_test": [
            {"expr": named(keys, series=name), "eval_time": "5m", "exp_samples": expected}
        ],
    }
    if not shutil.which("promtool"):
        pytest.skip("promtool is missing: install the Debian package prometheus")
    path = tmp_path / "names.yml"
    path.write_text(yaml.safe_dump({"evaluation_interval": "1m", "tests": [case]}))
    outcome = subprocess.run(
        ["promtool", "test", "rules", str(path)], capture_output=True, text=True, check=False
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


def test_a_table_without_a_worst_column_is_not_built():
    column = Column("Seen", ask("sum by (node) (railscope_gpu_power_watts)"))
    with pytest.raises(ValueError, match="no column to sort by"):
        rows(0, "All", "Nothing.", {"node": "Node"}, column)


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
        ("sum(railscope:node_gpu_pwr:sum)", "no rule records railscope:node_gpu_pwr:sum"),
        ('railscope:node_gpus:count{tenant="0"}', "railscope_gpu_info has no label tenant"),
        ("sum by (tenant) (railscope:node_gpus:count)", "the label tenant"),
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
        "railscope:node_port_transmit_bytes:rate5m < on (node) group_left () vector(1)",
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
