"""Draining in Slurm: nodes that are drained and resumed, the limits, and the records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.audit import audit_log, running_log, verified_records

from railscope.api import Node
from railscope.timestamps import HOUR_NS, SECOND_NS
from railscope_collector.audit.audit_trail import AuditTrail
from railscope_collector.config import SlurmSettings
from railscope_collector.sinks.slurm_drain import (
    NODES,
    SlurmDrainer,
)
from railscope_collector.view_refresh import GpuVerdicts

OWN = "railscope: incident 4f: GPU 3 failed [8 GPUs]"
ON = SlurmSettings(resume=True)


def row(name: str, state: str, *incidents: str) -> Node:
    reason = "GPU 3 failed" if state == "failed" else ""
    return Node(name, gpus=8, state=state, reason=reason, incidents=incidents, age_seconds=1.0)


@dataclass
class SimulatedSlurm:
    """Nodes that `scontrol` changes, with a clock, the rows of the collector, and its drainer."""

    directory: Path
    settings: SlurmSettings = ON
    nodes: dict[str, tuple[str, str]] = field(default_factory=dict)
    """State and reason by node."""
    rows: list[Node] = field(default_factory=list)
    now_ns: int = 100 * HOUR_NS
    reason_ns: dict[str, int] = field(default_factory=dict)
    commands: list[tuple[str, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.trail = AuditTrail(audit_log(self.directory), "1.0", lambda: self.now_ns)
        self.drainer = SlurmDrainer(
            self.settings,
            self.trail,
            lambda: self.now_ns,
            rows=lambda: self.rows,
            verdicts=lambda: {row.node: GpuVerdicts(8, 8) for row in self.rows},
            leads=lambda: True,
            run_program=self.run,
        )

    def run(self, command: Sequence[str]) -> str:
        if tuple(command) == NODES:
            lines = (
                f"{name}|{state}|{self.reason_ns.get(name, 0) // SECOND_NS or 'Unknown'}|{reason}\n"
                for name, (state, reason) in self.nodes.items()
            )
            return "".join(lines) * 2
        name = command[2].removeprefix("NodeName=")
        self.commands.append(tuple(command))
        is_drain = command[3] == "State=DRAIN"
        reason = command[4].removeprefix("Reason=") if is_drain else "none"
        self.nodes[name] = ("drained" if is_drain else "idle", reason)
        self.reason_ns[name] = self.now_ns
        return ""

    async def pass_time(self, seconds: float, step: float = 15.0) -> None:
        for _ in range(round(seconds / step)):
            self.now_ns += round(step * SECOND_NS)
            await self.drainer.attempt()

    def fail(self, *names: str) -> None:
        self.rows = [
            row(each.node, "failed", "4f") if each.node in names else each for each in self.rows
        ]

    def heal(self) -> None:
        self.rows = [row(each.node, "healthy") for each in self.rows]

    @property
    def drained(self) -> list[str]:
        return [name for name, (state, _) in self.nodes.items() if state == "drained"]


def cluster(directory: Path, number: int = 4, settings: SlurmSettings = ON) -> SimulatedSlurm:
    names = [f"n{i}" for i in range(number)]
    nodes = dict.fromkeys(names, ("idle", "none"))
    return SimulatedSlurm(directory, settings, nodes, [row(name, "healthy") for name in names])


async def test_a_failed_node_is_drained_and_resumed_with_records(tmp_path: Path):
    slurm = cluster(tmp_path)
    async with running_log(slurm.trail.log):
        slurm.fail("n2")
        await slurm.pass_time(60)
        assert slurm.drained == [], "not before it has failed for a minute"
        await slurm.pass_time(15)
        assert slurm.nodes["n2"] == ("drained", OWN)
        assert slurm.commands == [
            ("scontrol", "update", "NodeName=n2", "State=DRAIN", f"Reason={OWN}")
        ]
        slurm.heal()
        await slurm.pass_time(600)
        assert slurm.drained == ["n2"], "not before it has been healthy for ten minutes"
        await slurm.pass_time(15)
        assert slurm.drained == []
        assert slurm.commands[1:] == [("scontrol", "update", "NodeName=n2", "State=RESUME")]
    found = [(r.type, r.obj.node, r.out, r.data["reason"]) for r in verified_records(tmp_path)]
    assert found == [("node.drain", "n2", "done", OWN), ("node.resume", "n2", "done", OWN)]


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ("drained", "maintenance"),
        ("drained", "Prolog error"),
        ("drained", " by railscope: x"),
        ("down", OWN),
        ("idle", OWN),
        ("maint", OWN),
        ("drained", "railscope: GPU 3 failed"),
        ("drained", f"{OWN}, wait for its replacement"),
        ("drained", f"{OWN} : reboot again"),
        ("drained", OWN.replace("8", "0")),
    ],
)
async def test_only_own_drains_are_resumed(tmp_path: Path, state: str, reason: str):
    slurm = cluster(tmp_path)
    async with running_log(slurm.trail.log):
        slurm.nodes["n1"] = (state, reason)
        await slurm.pass_time(1200)
    assert slurm.commands == []


@pytest.mark.parametrize(
    "state",
    ["drained", "draining", "down", "maint", "drained*", "future", "draining@", "reboot^", "fail"]
    + [f"mixed{mark}" for mark in "*~#!%$^"],
)
async def test_a_node_that_is_not_available_stays_as_it_is(tmp_path: Path, state: str):
    slurm = cluster(tmp_path)
    async with running_log(slurm.trail.log):
        slurm.nodes["n1"] = (state, "by hand")
        slurm.fail("n1")
        await slurm.pass_time(300)
    assert slurm.commands == []


async def test_a_defect_of_the_check_drains_few_nodes_per_hour_and_never_most(tmp_path: Path):
    settings = SlurmSettings(max_drained_ratio_per_hour=0.02, max_drained_ratio=0.05)
    slurm = cluster(tmp_path, 200, settings)
    async with running_log(slurm.trail.log):
        slurm.fail(*slurm.nodes)
        for hour, expected in enumerate((4, 8, 10, 10)):
            await slurm.pass_time(3600, 60)
            assert len(slurm.drained) == expected, hour
