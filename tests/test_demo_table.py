"""Output of the demo: the state of the cluster in a few lines, events above it, and a summary in words."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

from railscope_simulator.demo.faults import changes
from railscope_simulator.demo.report import MAX_STATUS_LINES, DemoScreen, status_lines

NOTES = ("console http://127.0.0.1:1/", "next fault in 41 s: hot gpu on gpu-node-4")


def rail(number: int, name: str, value: float) -> dict[str, Any]:
    return {"labels": {"rail": str(number)}, "metric": f"railscope_rail_{name}", "value": value}


def incident(number: int, **more: Any) -> dict[str, Any]:
    return {
        "id": str(number), "title": f"fault {number}", "severity": "critical", "action": "reset", "ended": None,
        "explained_by": None, "onset": "2026-01-01T00:00:00Z", "detected": "2026-01-01T00:00:14Z", "jobs": [],
        "victim_count": 0, "class": "", "cause": {},
    } | more  # fmt: skip


def views(*incidents: dict[str, Any]) -> dict[str, Any]:
    values = {"sum_gpu_power_watts": 20400, "mean_gpu_utilization_ratio": 0.99}
    opened = [each for each in incidents if not (each["ended"] or each["explained_by"])]
    severities = Counter(each["severity"] for each in opened)
    status = {
        "status": "degraded",
        "reasons": [],
        "nodes": {"healthy": 4, "unknown": 1},
        "gpus": {"claimed": 24, "unclaimed": 0, "idle": 0, "unknown": 8},
        "incidents": severities,
        "open_incidents": opened[:10],
    }
    metrics = {f"railscope_cluster_{name}": value for name, value in values.items()}
    pauses = (
        (0, "transmit", 0.001),
        (1, "receive", 0.0),
        (2, "transmit", 0.4),
        (3, "receive", 0.2),
    )
    return {
        "status": status,
        "cluster": {"rows": [{"metric": name, "value": value} for name, value in metrics.items()]},
        "nodes": {"rows": [{"node": "a", "railscope_node_reporting": 1, "gpus": 8, "streams": ["gpu"]}]},
        "rails": {"rows": [rail(number, f"max_nic_{way}_pfc_pause_ratio", share) for number, way, share in pauses]},
        "incidents": {"rows": list(incidents)},
    }  # fmt: skip


def test_the_state_has_incidents_then_rails_with_the_worst_first() -> None:
    _, *lines = status_lines(
        views(incident(1), incident(2, ended="x"), incident(3, explained_by="1")), (), NOTES
    )
    assert lines[:5] == [
        "DEGRADED: 5 nodes: 4 healthy, 1 unknown; 32 GPUs: 24 claimed, 8 unknown; 1 open",
        "  incident: 1 critical",
        "99 % busy 1min  20.4 kW  console http://127.0.0.1:1/",
        "next fault in 41 s: hot gpu on gpu-node-4; Ctrl-C ends",
        "critical  fault 1: reset",
    ]
    assert [line.split(" ")[0] for line in lines[5:]] == ["Rails:", "RAIL", "2", "3", "0", "1"]
    links = [["a", "b", "c", "d", "e", "f"]] * 9
    minor = incident(99, severity="info")
    many = status_lines(views(minor, *map(incident, range(20))), links, NOTES)
    assert "and 17 more in the console" in many, "the status lists ten of them"
    assert len(many) <= MAX_STATUS_LINES


def test_the_rails_fit_a_terminal_of_80_columns() -> None:
    """Of a cluster with 16 nodes at its limits."""
    limits = {
        "max_nic_receive_pfc_pause_ratio": 1, "max_nic_transmit_pfc_pause_ratio": 1, "mean_gpu_utilization_ratio": 1,
        "sum_gpu_power_watts": 16_000, "max_gpu_temperature_celsius": 99, "sum_nic_receive_bytes_per_second": 800e9,
        "sum_nic_transmit_bytes_per_second": 800e9, "sum_rdma_ecn_marked_packets_per_second": 9e7,
        "sum_rdma_congestion_notifications_handled_per_second": 9e5,
    }  # fmt: skip
    busy = {"rails": {"rows": [rail(0, name, value) for name, value in limits.items()]}}
    lines = status_lines(views() | busy, (), NOTES)
    assert [line.split()[:3] for line in lines[-2:]] == [
        ["RAIL", "paused", "pausing"],
        ["0", "100.0", "%"],
    ]
    assert "-" not in lines[-1].split()
    assert max(map(len, lines)) < 80


def test_the_summary_states_what_became_of_each_fault() -> None:
    screen, faults = DemoScreen(), list(islice((each for each in changes() if each.begins), 5))
    assert screen.summary(5, 10.0) == (
        "SUMMARY: 5 nodes ran. No fault began. Stopped before the checks at the end."
    )
    screen.faults = faults
    memory, receiver, hot, unclaimed, link = (each.fault for each in faults)
    assert (unclaimed.incident, memory.node) == ("", link.node)
    for ended in (None, "x"):  # an incident that ends is the same
        found = [
            incident(n, ended=ended) | {"class": fault.incident, "cause": {"node": fault.node}}
            for n, fault in enumerate((memory, receiver))
        ]
        screen.draw(views(*found), NoLinks(), NOTES)
    end = faults[-1].seconds + 1
    assert screen.summary(5, end, good=True) == (
        "SUMMARY: 5 nodes ran. 5 faults began: 2 found as incidents, 1 with an alert only, "
        "by design, 2 just before the end. All checks passed."
    )
    missed = f"2 NOT FOUND: {hot.name} on {hot.node}, {link.name} on {link.node}. "
    assert missed in screen.summary(5, end + 1000, good=True)


class NoLinks:
    """No comparison of links."""

    def news(self) -> list[str]:
        return []

    rows = news


def test_the_demo_ends_at_once_without_standard_output(tmp_path: Path) -> None:
    demo = f"exec {sys.executable} -m railscope_simulator.demo --directory {tmp_path} >&-"
    outcome = subprocess.run(["sh", "-c", demo], capture_output=True, text=True, check=False)
    assert outcome.returncode == 1
    assert outcome.stderr == (
        "Error: standard output is closed: expected a terminal or file; fix: redirect it to /dev/null\n"
    )
