"""The queries in documents: names and labels are in the catalog, and the results are as described."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from support.query_notes import annotated_queries, detail_note

from railscope_dashboards.promql import problems

DOCS = Path(__file__).parents[1] / "docs"
GENERATED = "alerts.md"
"""Its queries are those of the rules, which state the detail by a label."""
QUERIES = [
    (page.name, note, query)
    for page in sorted(DOCS.glob("*.md"))
    if page.name != "developer.md"  # its example adds a metric
    for note, query in annotated_queries(page.read_text())
]
NETWORK = [query for page, _, query in QUERIES if page == "readings.md"]
NODE_INFO = 'railscope_nic_info{node="n1", interface="ens4f0np0", rail="3"}'


@pytest.mark.parametrize(("page", "note", "query"), QUERIES)
def test_a_query_names_what_is_declared(page: str, note: str, query: str) -> None:
    assert problems(query) == [], page
    assert note == (detail_note(query) if page != GENERATED else "")


@pytest.mark.parametrize(("query", "note"), [
    ("railscope_gpu_temperature_celsius", ""),
    ("railscope_swap_used_bytes > railscope_host_memory_bytes",
     ("# needs detail standard; if empty: curl -s 'http://NODE:9469/metrics?detail=standard'"
     " | grep railscope_swap_used_bytes")),
    ("rate(railscope_nic_burst_pause_ratio_count[5m]) > railscope_swap_used_bytes",
     ("# needs detail full; if empty: curl -s 'http://NODE:9469/metrics?detail=full'"
     " | grep -E 'railscope_nic_burst_pause_ratio|railscope_swap_used_bytes'")),
])  # fmt: skip
def test_the_note_of_a_query_has_the_command_that_answers_it(query: str, note: str) -> None:
    assert detail_note(query) == note


def series(name: str, step: int, **labels: str) -> dict[str, str]:
    """A counter of a port of rail 3 that grows by a step every 15 seconds."""
    about = {"node": "n1", "interface": "ens4f0np0", "direction": "receive"} | labels
    inner = ", ".join(f'{label}="{value}"' for label, value in about.items())
    return {"series": f"{name}{{{inner}}}", "values": f"0+{step}x40"}


def answer(
    tmp_path: Path, query: str, inputs: list[dict[str, str]], expected: float, labels: str
) -> None:
    """Have promtool evaluate a query after ten minutes."""
    wanted = [{"labels": labels, "value": expected}]
    test = {"expr": query, "eval_time": "10m", "exp_samples": wanted}
    content = {"tests": [{"interval": "15s", "input_series": inputs, "promql_expr_test": [test]}]}
    file = tmp_path / "queries.yml"
    file.write_text(json.dumps(content))
    if not shutil.which("promtool"):
        pytest.skip("promtool is missing: install the Debian package prometheus")
    outcome = subprocess.run(
        ["promtool", "test", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


INFO = {"series": NODE_INFO, "values": "1x40"}
PAUSE, USE = "railscope_nic_burst_pause_ratio", "railscope_nic_burst_utilization_ratio"


def test_the_time_a_rail_was_paused_comes_out_in_seconds(tmp_path: Path) -> None:
    """150 windows every 15 s, of which 50 were paused for more than half: 5 s of 15."""
    window = {
        "series": 'railscope_nic_burst_window_seconds{node="n1", interface="ens4f0np0"}',
        "values": "0.1x40",
    }
    counted = [series(f"{PAUSE}_count", 150), series(f"{PAUSE}_bucket", 100, le="0.5")]
    inputs = [*counted, window, INFO]
    labels = '{node="n1", interface="ens4f0np0", direction="receive", rail="3"}'
    answer(tmp_path, NETWORK[0], inputs, 100, labels)


def test_the_share_of_time_a_rail_was_full_comes_out(tmp_path: Path) -> None:
    inputs = [series(f"{USE}_count", 150), series(f"{USE}_bucket", 75, le="0.9"), INFO]
    answer(tmp_path, NETWORK[1], inputs, 0.5, '{rail="3"}')


def test_a_rail_whose_settings_differ_is_named(tmp_path: Path) -> None:
    facts = 'pfc="{pfc}", trust="dscp", mtu="4200", fec="RS"'
    settings = [
        {
            "series": f'railscope_nic_settings_info{{node="{node}", interface="ens4f0np0", '
            + facts.format(pfc=pfc)
            + "}",
            "values": "1x40",
        }
        for node, pfc in (("n1", "3"), ("n2", ""))
    ]
    other = {"series": NODE_INFO.replace("n1", "n2"), "values": "1x40"}
    answer(tmp_path, NETWORK[2], [*settings, INFO, other], 2, '{rail="3"}')
