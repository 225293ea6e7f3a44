"""The queries in documents: names and labels are in the catalog, and the results are as described."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.promtool import QueryCase, evaluate
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


def series(name: str, step: int, **labels: str) -> tuple[str, str]:
    """A counter of a port of rail 3 that grows by a step every 15 seconds."""
    about = {"node": "n1", "interface": "ens4f0np0", "direction": "receive"} | labels
    inner = ", ".join(f'{label}="{value}"' for label, value in about.items())
    return f"{name}{{{inner}}}", f"0+{step}x40"


PAUSE, USE = "railscope_nic_burst_pause_ratio", "railscope_nic_burst_utilization_ratio"
SETTINGS = 'railscope_nic_settings_info{node="%s", interface="ens4f0np0", pfc="%s", trust="dscp", mtu="4200", fec="RS"}'


def test_the_queries_of_rails_return_what_the_page_states(tmp_path: Path) -> None:
    """150 windows every 15 s, of which 50 were paused for more than half: 5 s of 15; half of them were full."""
    inputs = dict([
        series(f"{PAUSE}_count", 150), series(f"{PAUSE}_bucket", 100, le="0.5"),
        ('railscope_nic_burst_window_seconds{node="n1", interface="ens4f0np0"}', "0.1x40"),
        series(f"{USE}_count", 150), series(f"{USE}_bucket", 75, le="0.9"),
        *((SETTINGS % each, "1x40") for each in (("n1", "3"), ("n2", ""))),
        *((NODE_INFO.replace("n1", node), "1x40") for node in ("n1", "n2")),
    ])  # fmt: skip
    paused = '{node="n1", interface="ens4f0np0", direction="receive", rail="3"}'
    results = ({paused: 100.0}, {'{rail="3"}': 0.5}, {'{rail="3"}': 2.0})
    evaluate(tmp_path, QueryCase(inputs, zip(NETWORK[:3], results, strict=True), 10, "15s"))
