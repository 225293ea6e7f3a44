"""A node that is simulated while it is observed: without end, with faults that end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from railscope.timestamps import SECOND_NS
from railscope_agent.commands import load_settings
from railscope_simulator.cli import SIMULATED_DEFAULTS
from railscope_simulator.demo.faults import SCHEDULERS, begin_node, plan_faults
from railscope_simulator.demo.process import Program
from railscope_simulator.live import (
    LiveNode,
    LiveNodeFileError,
    LiveTimeline,
    PlannedFault,
    planned_occurrence,
    read_live_node,
)
from railscope_simulator.node_hardware import build_node_hardware

DAY_NS = 86_400 * SECOND_NS
ROUND = 60
FAULTS = (
    PlannedFault("link_down", 10, 10),
    PlannedFault("ecc_uncorrected", 25, 10),
    PlannedFault("unclaimed", 40, 10),
)
NODE = LiveNode(
    "n1",
    3,
    "slurm",
    10**18,
    10**18 + 9 * DAY_NS,
    10**12,
    gpus=2,
    round_seconds=ROUND,
    faults=FAULTS,
)


def affected(fault: PlannedFault, number: int = 0) -> int:
    return planned_occurrence(NODE, fault, number).spec.affected_index


def at(timeline: LiveTimeline, second: float) -> dict[str, str | bool]:
    """Changes of a fault at a second."""
    ns = round(second * SECOND_NS)
    number = int(second // ROUND)
    port = build_node_hardware(NODE.spec).ports[affected(FAULTS[0], number)]
    path = f"/sys/class/infiniband/{port.rdma_device}/ports/1/state"
    gpu = affected(FAULTS[1], number)
    groups = [
        timeline.result_at("files", f"/proc/{process['pid']}/cgroup", ns)
        for process in processes(timeline, affected(FAULTS[2], number), ns)
    ]
    rows = timeline.result_at("calls", f"nvml.nvmlDeviceGetRemappedRows({gpu})", ns)
    return {
        "link": timeline.result_at("files", path, ns).split()[1],
        "pending": bool(rows[2]),
        "unclaimed": any("session" in group for group in groups),
    }


def processes(timeline: LiveTimeline, gpu: int, ns: int) -> list[dict[str, int]]:
    found: list[dict[str, int]] = timeline.result_at(
        "calls", f"nvml.nvmlDeviceGetComputeRunningProcesses({gpu})", ns
    )
    return found


WELL = {"link": "ACTIVE", "pending": False, "unclaimed": False}


@pytest.mark.parametrize("round_start", [0, ROUND])
def test_faults_begin_and_end_in_every_round(round_start: int):
    timeline = LiveTimeline(NODE, 0)
    seen = [at(timeline, round_start + second) for second in (5, 15, 22, 30, 37, 45, 55)]
    assert seen == [
        WELL, WELL | {"link": "DOWN"}, WELL, WELL | {"pending": True}, WELL,
        WELL | {"unclaimed": True}, WELL,
    ]  # fmt: skip


def test_a_node_that_is_observed_later_is_where_it_would_have_been():
    assert at(LiveTimeline(NODE, 12 * SECOND_NS), 15)["link"] == "DOWN"
    assert at(LiveTimeline(NODE, 80 * SECOND_NS), 90)["pending"] is True


@given(st.lists(st.integers(20, 3000), min_size=1, max_size=20))
def test_no_port_sends_faster_than_its_line_whenever_it_is_read(pauses_ms: list[int]):
    """A counter that jumped at each step would show two steps between reads that are 1.1 s apart."""
    timeline, at_ns = LiveTimeline(NODE, 0), 0
    port = build_node_hardware(NODE.spec).ports[0]
    path = f"/sys/class/infiniband/{port.rdma_device}/ports/1/counters/port_xmit_data"
    before = int(timeline.result_at("files", path, 0))
    for pause_ms in pauses_ms:
        at_ns += pause_ms * 1_000_000
        now = int(timeline.result_at("files", path, at_ns))
        rate = 4 * (now - before) * 1000 / pause_ms
        assert rate <= port.bytes_per_second * 1.0001
        before = now


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("node = 1", "Expected `str`"),
        ("node = ", "Invalid value"),
        ('[[faults]]\nscenario = "none"', "missing required field"),
    ],
)
def test_a_file_that_is_wrong_is_named(tmp_path: Path, text: str, problem: str):
    path = tmp_path / "n1.toml"
    path.write_text(text)
    with pytest.raises(LiveNodeFileError, match=f"{path}: invalid live node: .*{problem}"):
        read_live_node(path)


def test_a_node_that_begins_now_has_the_faults_of_its_number() -> None:
    """The first four are the nodes of the demo; no two nodes share a device, and each start is a boot."""
    names = [f"railscope-simulated-{number}" for number in ("0", "1", "2", "3", "002")]
    healthy = ["node-4", "node-10", "node10000", "node" + "9" * 5000, "gpu-a", "1-gpu", ""]
    nodes = [begin_node(name) for name in (*names, *healthy)]
    plans = [plan_faults(name) for name in SCHEDULERS]
    assert [node.faults for node in nodes] == [*plans, plans[2], *((),) * len(healthy)]
    assert all(plans)
    uuids = [gpu.uuid for node in nodes for gpu in build_node_hardware(node.spec).gpus]
    assert len({*uuids}) == 8 * len(nodes)
    again = begin_node(names[0])
    assert build_node_hardware(again.spec).gpus[0].uuid == uuids[0]
    assert again.spec.boot_id != nodes[0].spec.boot_id
    assert min(fault.begin_seconds for fault in plans[0]) < 60, "a short trial shows a fault"


def test_a_late_answer_of_a_simulation_is_no_gpu_that_does_not_respond(tmp_path: Path) -> None:
    """Settings take precedence over the defaults of a simulated node."""
    found = load_settings(None, {}, SIMULATED_DEFAULTS)
    assert found.read_timeout_seconds == 30
    assert (found.budget.cpu_ratio, found.budget.memory_bytes) == (0, 0)
    (tmp_path / "agent.toml").write_text("read_timeout_seconds = 2\n[budget]\ncpu_ratio = 0.5\n")
    found = load_settings(tmp_path / "agent.toml", {}, SIMULATED_DEFAULTS)
    assert found.read_timeout_seconds == 2
    assert (found.budget.cpu_ratio, found.budget.memory_bytes) == (0.5, 0)


@pytest.mark.thorough
async def test_an_agent_simulates_a_node_without_a_file(tmp_path: Path) -> None:
    options = ("--node", "railscope-simulated-0", "--listen", "127.0.0.1:0")
    environment = {**os.environ, "RAILSCOPE_AGENT_COLLECTOR__URL": ""}
    command = ["simulate-agent", *options, "--state-directory", str(tmp_path)]
    agent = Program("agent", command, environment)
    await agent.start(tmp_path)
    try:
        await agent.find_logged(r"agent_started .*railscope-simulated-0")
    finally:
        await agent.stop()
