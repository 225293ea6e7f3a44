"""Queries of dashboards that join both ends of links, evaluated by the real engine of Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.dashboards import DASHBOARDS, panels_of
from support.promtool import QueryCase, evaluate

from railscope_dashboards.promql import fill_variables

LINK = 'node="n1", interface="eth0", rail="3", switch="leaf-07", port="Ethernet0"'
VARIABLES = {
    "rails": {"cluster": ".*", "node": ".*", "rail": ".*"},
    "switches": {"cluster": ".*", "switch": "leaf-07"},
}  # fmt: skip
MINUTES = 20
"""A quarter of an hour, for increments, and five minutes before it."""


def expression(dashboard: str, panel: str, number: int = 0) -> str:
    (found,) = (p for p in panels_of(DASHBOARDS[f"{dashboard}.json"]) if p["title"] == panel)
    values = {**VARIABLES[dashboard], "__rate_interval": "1m"}
    return fill_variables(found["targets"][number]["expr"], values)


def counter(name: str, labels: str, per_minute: int) -> tuple[str, str]:
    return f"railscope_{name}_total{{{labels}}}", f"0+{per_minute}x{MINUTES}"


def of_collectors(*names: str) -> Iterator[tuple[str, str]]:
    """Yield the series of both priorities of a switch's port and of its link, as each of these collectors has them."""
    for name in names:
        port = f'instance="{name}", switch="leaf-07", port="Ethernet0"'
        for priority, sent in (("3", 600), ("4", 60)):
            of_priority = f'{port}, priority="{priority}"'
            yield counter("switch_port_transmit_pfc_pause_frames", of_priority, sent)
            yield counter("switch_port_receive_pfc_pause_frames", of_priority, 120)
        yield counter("switch_port_transmit_bytes", port, 60_000)
        yield f'railscope_switch_link_info{{instance="{name}", {LINK}}}', f"1x{MINUTES}"
        yield f'railscope_switch_up{{instance="{name}", switch="leaf-07"}}', f"1x{MINUTES}"


NIC = (
    counter("nic_receive_pfc_pause_frames", 'node="n1", interface="eth0", priority="3"', 540),
    counter("nic_transmit_pfc_pause_frames", 'node="n1", interface="eth0", priority="3"', 240),
    # a NIC without a known link
    counter("nic_receive_pfc_pause_frames", 'node="n2", interface="eth0", priority="3"', 900),
)


# Labels of a rail's grid, and of a sum.
ON_RAIL, ONE = '{node="n1", rail="3"}', "{}"
OF_LINK = "{" + LINK.replace('rail="3", ', "") + "}"
CASES: tuple[tuple[str, str, int, dict[str, float]], ...] = (
    ("rails", "Pause frames to NICs, sent by switches", 0, {ON_RAIL: 11}),
    ("rails", "Pause frames to NICs, received by NICs", 0, {ON_RAIL: 9}),
    ("rails", "Pause frames to switches, received by switches", 0, {ON_RAIL: 4}),
    ("rails", "Pause frames to switches, sent by NICs", 0, {ON_RAIL: 4}),
    ("rails", "Both ends by rail", 0, {'{rail="3"}': 8000}),  # bits
    ("rails", "Pause frames that only one end counted", 0, {OF_LINK: 1800}),
    ("rails", "Pause frames that only one end counted", 1, {}),
    ("switches", "Ports", 0, {'{switch="leaf-07", port="Ethernet0"}': 11}),
    ("switches", "Switches read", 0, {ONE: 1}),
    ("switches", "Links to NICs", 0, {ONE: 1}),
)


@pytest.mark.parametrize("collectors", [("a:9470",), ("a:9470", "b:9470")])
def test_both_ends_of_a_link(tmp_path: Path, collectors: tuple[str, ...]) -> None:
    """Series that two collectors have, as while one takes over from the other, count once."""
    expected = []
    for dashboard, panel, number, values in CASES:
        query = expression(dashboard, panel, number)
        if "offset" in query:  # the names of the NIC's row are another test's
            query = query[query.rindex("(topk(") :].partition(" unless on")[0]
        expected.append((query, values))
    evaluate(tmp_path, QueryCase(dict([*of_collectors(*collectors), *NIC]), expected, MINUTES))


def test_without_switches_panels_of_both_ends_are_empty(tmp_path: Path) -> None:
    """The readings of NICs alone would suggest a difference."""
    expected = [(expression(*place), {}) for *place, _ in CASES]
    evaluate(tmp_path, QueryCase(dict(NIC), expected, MINUTES))


def test_every_panel_with_readings_of_switches_states_the_reason_for_its_absence() -> None:
    for dashboard in DASHBOARDS.values():
        for panel in panels_of(dashboard):
            if any("railscope_switch_" in target["expr"] for target in panel.get("targets", ())):
                stated = panel["fieldConfig"]["defaults"].get("noValue")
                assert stated == "no switch readings", panel["title"]
