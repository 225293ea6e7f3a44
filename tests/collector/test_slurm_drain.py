"""Draining in Slurm: nodes that are drained and resumed, the limits, and the records."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings, strategies as st
from makers import FrameSender, gpu_schema
from msgspec.structs import replace as replace_row
from running_collector import run_collector, settings_in
from support.audit import audit_log, running_log, verified_records

from railscope.api import Node
from railscope.catalog.entities import GPU
from railscope.catalog.gpu_health import GPU_HEALTH
from railscope.frame import Entity, Schema
from railscope.health_verdict import MAX_REASON
from railscope.reading import PRESENT, Absent
from railscope.settings import SettingsError
from railscope.timestamps import HOUR_NS, SECOND_NS
from railscope_collector.audit.audit_trail import AuditTrail
from railscope_collector.config import CollectorSettings, DiagnosisSettings, SlurmSettings
from railscope_collector.diagnosis.incident_table import IncidentTable
from railscope_collector.sinks.slurm_drain import (
    MAX_REJECTED,
    NODES,
    SlurmCommandError,
    SlurmDrainer,
    SlurmNode,
    check_settings,
    parse_nodes,
    run_program,
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
    attempts: list[tuple[int, str]] = field(default_factory=list)
    """Times and nodes of all changes, also those that are rejected."""
    problem: str = ""
    rejects: Callable[[str], bool] = bool
    """Rejects changes of these nodes while there is a problem."""
    leads: bool = True
    verdicts: dict[str, GpuVerdicts] = field(default_factory=dict)
    """Numbers of GPUs of nodes that do not have 8 with a verdict."""

    def __post_init__(self) -> None:
        self.trail = AuditTrail(audit_log(self.directory), "1.0", lambda: self.now_ns)
        self.drainer = SlurmDrainer(
            self.settings,
            self.trail,
            lambda: self.now_ns,
            rows=lambda: self.rows,
            verdicts=lambda: {row.node: GpuVerdicts(8, 8) for row in self.rows} | self.verdicts,
            leads=lambda: self.leads,
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
        self.attempts.append((self.now_ns, name))
        if self.problem and self.rejects(name):
            raise SlurmCommandError(self.problem)
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


@pytest.mark.parametrize("progress", ["requested", "issued", "complete", "timed out"])
async def test_a_node_that_slurm_rebooted_is_resumed(tmp_path: Path, progress: str):
    slurm = cluster(tmp_path)
    async with running_log(slurm.trail.log):
        slurm.nodes["n1"] = ("drained", f"{OWN} : reboot {progress}")
        slurm.verdicts = {"n1": GpuVerdicts(7, 7)}
        await slurm.pass_time(1200)
        assert slurm.commands == [], "a GPU has not returned"
        slurm.verdicts = {}
        await slurm.pass_time(615)
    assert slurm.commands == [("scontrol", "update", "NodeName=n1", "State=RESUME")]


async def test_by_default_nodes_are_not_resumed(tmp_path: Path):
    slurm = cluster(tmp_path, settings=SlurmSettings())
    async with running_log(slurm.trail.log):
        slurm.nodes["n1"] = ("drained", OWN)
        await slurm.pass_time(3600)
    assert slurm.commands == []


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


@pytest.mark.parametrize("base", ["drained", "draining"])
@pytest.mark.parametrize("mark", "@^$*~#!%")
async def test_a_drained_node_with_a_mark_is_not_resumed_before_the_mark_has_gone(
    tmp_path: Path, base: str, mark: str
):
    slurm = cluster(tmp_path)
    async with running_log(slurm.trail.log):
        slurm.nodes["n1"] = (base + mark, OWN)
        await slurm.pass_time(1200)
        assert slurm.commands == []
        slurm.nodes["n1"] = (base, OWN)
        await slurm.pass_time(15)
    assert slurm.commands == [("scontrol", "update", "NodeName=n1", "State=RESUME")]


@pytest.mark.parametrize("state", ["unknown", "degraded"])
async def test_other_states_neither_drain_nor_resume(tmp_path: Path, state: str):
    slurm = cluster(tmp_path)
    async with running_log(slurm.trail.log):
        slurm.nodes["n1"] = ("drained", OWN)
        slurm.rows = [row(name, state) for name in slurm.nodes]
        await slurm.pass_time(1200)
    assert slurm.commands == []


@pytest.mark.parametrize(
    "verdicts",
    [GpuVerdicts(7, 8), GpuVerdicts(7, 7), GpuVerdicts(0, 8), GpuVerdicts(8, 9), GpuVerdicts()],
)
async def test_a_node_without_a_verdict_on_each_gpu_that_it_had_is_not_resumed(
    tmp_path: Path, verdicts: GpuVerdicts
):
    slurm = cluster(tmp_path)
    async with running_log(slurm.trail.log):
        slurm.nodes["n1"], slurm.verdicts = ("drained", OWN), {"n1": verdicts}
        await slurm.pass_time(1200)
        assert slurm.commands == []
        slurm.verdicts = {}
        await slurm.pass_time(600)
        assert slurm.drained == ["n1"], "not before they have been healthy for ten minutes"
        await slurm.pass_time(15)
        assert slurm.drained == []


async def test_the_reason_has_the_number_of_gpus_before_the_failure(tmp_path: Path):
    slurm = cluster(tmp_path)
    async with running_log(slurm.trail.log):
        await slurm.pass_time(30)
        slurm.verdicts = {"n1": GpuVerdicts(6, 7)}
        slurm.rows[1] = replace_row(slurm.rows[1], gpus=7)
        await slurm.pass_time(30)
        slurm.fail("n1")
        slurm.rows[1] = replace_row(slurm.rows[1], gpus=6, reason="x" * 100)
        await slurm.pass_time(75)
        state, reason = slurm.nodes["n1"]
    assert state == "drained"
    assert reason == f"railscope: incident 4f: {'x' * 44}... [8 GPUs]"
    assert len(reason) == MAX_REASON


@pytest.mark.parametrize(
    "base", ["idle", "mixed", "allocated", "completing", "planned", "reserved"]
)
@pytest.mark.parametrize("mark", ["", "-", "+", "@"])
async def test_a_node_that_accepts_jobs_or_will_is_drained(tmp_path: Path, base: str, mark: str):
    slurm = cluster(tmp_path)
    async with running_log(slurm.trail.log):
        slurm.nodes["n1"] = (base + mark, "none")
        slurm.fail("n1")
        await slurm.pass_time(75)
    assert slurm.drained == ["n1"]


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


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_node_that_an_operator_resumes_is_not_drained_before_it_has_recovered(
    tmp_path: Path, *, restarts: bool
):
    slurm = cluster(tmp_path)
    async with running_log(slurm.trail.log):
        slurm.fail("n1")
        await slurm.pass_time(75)
        assert slurm.drained == ["n1"]
        slurm.nodes["n1"] = ("idle", "none")
        for state, seconds in (("unknown", 1200), ("degraded", 600), ("healthy", 600)):
            slurm.rows[1] = row("n1", state)
            await slurm.pass_time(seconds)
            if restarts:
                slurm.drainer = replace(slurm.drainer)
            slurm.fail("n1")
            await slurm.pass_time(1200)
            assert slurm.drained == [], state
        slurm.heal()
        await slurm.pass_time(615)
        slurm.fail("n1")
        await slurm.pass_time(75)
        assert slurm.drained == ["n1"]


@pytest.mark.parametrize("course", [["degraded"], ["degraded", "healthy"]])
@pytest.mark.parametrize("is_judged", [True, False])
async def test_a_node_that_an_operator_resumed_and_that_stays_degraded_is_drained_after_a_new_failure(
    tmp_path: Path, course: list[str], *, is_judged: bool
):
    slurm = cluster(tmp_path)
    async with running_log(slurm.trail.log):
        slurm.fail("n1")
        await slurm.pass_time(75)
        slurm.nodes["n1"] = ("idle", "none")
        slurm.verdicts = {} if is_judged else {"n1": GpuVerdicts(7, 8)}
        for state in course * 14:
            slurm.rows[1] = row("n1", state)
            await slurm.pass_time(300)
        slurm.fail("n1")
        await slurm.pass_time(75)
        assert slurm.drained == (["n1"] if is_judged else [])


async def test_a_drain_before_a_restart_without_saved_state_is_respected_too(tmp_path: Path):
    slurm = cluster(tmp_path)
    async with running_log(slurm.trail.log):
        slurm.nodes["n1"] = ("down*", OWN)
        slurm.rows[1] = row("n1", "unknown")
        await slurm.pass_time(15)
        slurm.nodes["n1"] = ("idle", "none")
        slurm.fail("n1")
        await slurm.pass_time(1200)
        assert slurm.drained == []
        del slurm.nodes["n1"], slurm.rows[1]
        await slurm.pass_time(15)
    assert slurm.drainer.drains == {}


async def test_a_defect_of_the_check_drains_few_nodes_per_hour_and_never_most(tmp_path: Path):
    settings = SlurmSettings(max_drained_ratio_per_hour=0.02, max_drained_ratio=0.05)
    slurm = cluster(tmp_path, 200, settings)
    async with running_log(slurm.trail.log):
        slurm.fail(*slurm.nodes)
        for hour, expected in enumerate((4, 8, 10, 10)):
            await slurm.pass_time(3600, 60)
            assert len(slurm.drained) == expected, hour


async def test_nodes_without_an_agent_do_not_raise_the_limits(tmp_path: Path):
    slurm = cluster(tmp_path, 20)
    slurm.nodes |= {f"cpu{i}": ("idle", "none") for i in range(2000)}
    async with running_log(slurm.trail.log):
        slurm.fail(*slurm.nodes)
        for hour, expected in enumerate((1, 2, 2)):
            await slurm.pass_time(3600, 60)
            assert len(slurm.drained) == expected, hour


async def test_drains_before_a_restart_count_even_if_they_are_resumed(tmp_path: Path):
    slurm = cluster(tmp_path, 100)
    async with running_log(slurm.trail.log):
        for name in ("n1", "n2"):
            slurm.nodes[name], slurm.reason_ns[name] = ("drained", OWN), slurm.now_ns
        slurm.fail("n3")
        await slurm.pass_time(3500)
        resumes = [command[2:] for command in slurm.commands]
        assert resumes == [("NodeName=n1", "State=RESUME"), ("NodeName=n2", "State=RESUME")]
        await slurm.pass_time(300)
        assert slurm.drained == ["n3"]


async def test_a_drain_of_an_earlier_collector_counts_for_an_hour_after_an_operator_resumed(
    tmp_path: Path,
):
    slurm = cluster(tmp_path)
    async with running_log(slurm.trail.log):
        slurm.drainer.drains["n0"] = slurm.now_ns
        slurm.fail("n0", "n1")
        await slurm.pass_time(3585)
        assert slurm.commands == []
        await slurm.pass_time(15)
        assert slurm.drained == ["n1"]


async def test_a_small_cluster_may_drain_one_node(tmp_path: Path):
    slurm = cluster(tmp_path, 3)
    async with running_log(slurm.trail.log):
        slurm.fail("n0", "n1", "n2")
        await slurm.pass_time(7200)
    assert slurm.drained == ["n0"]


@pytest.mark.parametrize("state", ["down", "down*", "powering_down", "reboot^", "idle*"])
async def test_a_drained_node_in_another_state_counts_as_drained(tmp_path: Path, state: str):
    slurm = cluster(tmp_path)
    async with running_log(slurm.trail.log):
        slurm.nodes["n0"] = (state, OWN)
        slurm.fail("n1")
        await slurm.pass_time(7200, 60)
        assert slurm.commands == []
        slurm.nodes["n0"] = ("idle", OWN)
        await slurm.pass_time(60)
        assert slurm.drained == ["n1"]


async def test_what_slurm_rejects_is_recorded_once_and_tried_again_at_growing_intervals(
    tmp_path: Path,
):
    slurm = cluster(tmp_path)
    async with running_log(slurm.trail.log):
        slurm.problem = "scontrol: exit status 1: Invalid user id"
        slurm.fail("n1")
        await slurm.pass_time(5 * 3600)
        assert slurm.drained == []
        times_ns = [at_ns for at_ns, _ in slurm.attempts]
        waits = [(after - before) // SECOND_NS for before, after in pairwise(times_ns)]
        assert waits == [15, 30, 60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]
        slurm.problem = ""
        await slurm.pass_time(3600)
        assert slurm.drained == ["n1"]
    outcomes = [(record.type, record.out) for record in verified_records(tmp_path)]
    assert outcomes == [("node.drain", "done"), ("node.drain", "failed"), ("node.drain", "done")]


async def test_a_rejected_node_delays_no_other_and_uses_no_limit(tmp_path: Path):
    slurm = cluster(tmp_path)
    async with running_log(slurm.trail.log):
        slurm.problem, slurm.rejects = "Invalid node name", lambda name: name in {"n0", "n2"}
        slurm.fail("n0")
        await slurm.pass_time(15)
        slurm.fail("n0", "n1")
        slurm.nodes["n2"] = slurm.nodes["n3"] = ("drained", OWN)
        slurm.settings = slurm.drainer.settings = SlurmSettings(resume=True, max_drained_ratio=0.8)
        await slurm.pass_time(60)
        assert [name for _, name in slurm.attempts] == ["n0"]
        await slurm.pass_time(15)
        assert slurm.nodes["n1"][0] == "drained"
        await slurm.pass_time(600)
        assert slurm.nodes["n3"][0] == "idle", "resumed after n2 was rejected"
        assert [name for _, name in slurm.attempts][:4] == ["n0", "n1", "n2", "n3"]
        slurm.problem = ""
        await slurm.pass_time(7200)
        assert slurm.nodes["n0"][0] == "drained"
        assert slurm.nodes["n2"][0] == "idle"


async def test_a_slurm_that_rejects_everything_is_not_queried_for_every_node_at_once(
    tmp_path: Path,
):
    slurm = cluster(tmp_path, 200, SlurmSettings(max_drained_ratio_per_hour=1, max_drained_ratio=1))
    async with running_log(slurm.trail.log):
        slurm.problem = "Invalid user id"
        slurm.fail(*slurm.nodes)
        await slurm.pass_time(4 * 3600)
        per_attempt = Counter(at_ns for at_ns, _ in slurm.attempts)
        assert max(per_attempt.values()) == MAX_REJECTED
        assert {name for _, name in slurm.attempts} == slurm.nodes.keys()
    assert len(list(verified_records(tmp_path))) == 400, "two for each node"


async def test_a_repeated_change_is_recorded_once_the_audit_log_accepts_it(tmp_path: Path):
    slurm = cluster(tmp_path / "first")
    slurm.problem = "Invalid user id"
    async with running_log(slurm.trail.log):
        slurm.fail("n1")
        await slurm.pass_time(75)
    slurm.problem = ""
    await slurm.pass_time(60)
    assert slurm.drained == ["n1"]
    slurm.fail("n1", "n2")
    await slurm.pass_time(7200)
    assert slurm.drained == ["n1"], "nothing else is changed before it is recorded"
    slurm.drainer.trail = AuditTrail(audit_log(tmp_path / "other"), "1.0", lambda: slurm.now_ns)
    async with running_log(slurm.drainer.trail.log):
        await slurm.pass_time(15)
    outcomes = [record.out for record in verified_records(tmp_path / "first")]
    assert outcomes == ["done", "failed"]
    assert [record.out for record in verified_records(tmp_path / "other")] == ["done"]


PER_HOUR, AT_ONCE = 1, 2
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ("failed", "failed", "healthy", "degraded", "unknown", "resume", "reject", "accept")
        ),
        st.integers(0, 7),
        st.sampled_from((1, 3, 12, 50)),
    ),
    min_size=5,
    max_size=30,
)


@settings(deadline=None, max_examples=50)
@given(STEPS)
def test_limits_and_recovery_hold_for_any_course(steps: list[tuple[str, int, int]]):
    with TemporaryDirectory() as directory:
        asyncio.run(check_course(Path(directory), steps))


async def check_course(directory: Path, steps: Sequence[tuple[str, int, int]]) -> None:
    """Change states of nodes, and check each change that the drainer makes."""
    slurm = cluster(
        directory,
        8,
        SlurmSettings(
            resume=True, max_drained_ratio_per_hour=PER_HOUR / 8, max_drained_ratio=AT_ONCE / 8
        ),
    )
    rejected, drained_ns = set[str](), dict[str, list[int]]()
    slurm.problem, slurm.rejects = "rejected", rejected.__contains__
    healthy_seconds, usable_seconds = (dict.fromkeys(slurm.nodes, 0) for _ in range(2))
    recovered = set(slurm.nodes)
    async with running_log(slurm.trail.log):
        for kind, number, polls in steps:
            name = f"n{number}"
            if kind in {"reject", "accept"}:
                (rejected.add if kind == "reject" else rejected.discard)(name)
            elif kind == "resume":
                slurm.nodes[name] = ("idle", "none")
            else:
                slurm.rows[number] = row(name, kind)
            for _ in range(polls):
                made = len(slurm.commands)
                await slurm.pass_time(60, 60)
                for each in slurm.rows:
                    for seconds, states in (
                        (healthy_seconds, {"healthy"}),
                        (usable_seconds, {"healthy", "degraded"}),
                    ):
                        seconds[each.node] = seconds[each.node] + 60 if each.state in states else 0
                    if usable_seconds[each.node] > 600:
                        recovered.add(each.node)
                for command in slurm.commands[made:]:
                    changed = command[2].removeprefix("NodeName=")
                    if command[3] == "State=RESUME":
                        assert healthy_seconds[changed] > 600
                        continue
                    assert changed in recovered, "drained again before it has recovered"
                    recovered.discard(changed)
                    drained_ns.setdefault(changed, []).append(slurm.now_ns)
                    recent = [n for n, at in drained_ns.items() if max(at) > slurm.now_ns - HOUR_NS]
                    assert len(recent) <= PER_HOUR
                    assert len(slurm.drained) <= AT_ONCE


def cells_of(slurm: SimulatedSlurm) -> dict[str, float]:
    """Return the metrics of a drainer: nodes that wait by reason, and failures."""
    return {"".join(cell.labels) or "failures": cell.value for cell in slurm.drainer.cells()}


async def test_metrics_count_nodes_that_wait_and_failures(tmp_path: Path):
    slurm = cluster(tmp_path)
    assert cells_of(slurm) == {}, "draining is not enabled"
    slurm.drainer.settings = SlurmSettings(drain=True)
    async with running_log(slurm.trail.log):
        slurm.fail("n0", "n1", "n2")
        slurm.problem, slurm.rejects = "Invalid node name", lambda name: name == "n2"
        await slurm.pass_time(90)
        assert slurm.drained == ["n0"]
        found = {"failures": 0, "limit": 2, "resumed": 0, "unverified": 0, "rejected": 0}
        assert cells_of(slurm) == found
        slurm.nodes["n0"] = ("idle", "none")
        await slurm.pass_time(7200)
        found |= {"limit": 0, "resumed": 2, "rejected": 1}
        slurm.nodes["n1"] = ("idle", "none")
        await slurm.pass_time(15)
        assert cells_of(slurm) == found
        slurm.nodes = {"": ("idle", "none")}
        await slurm.pass_time(45)
        assert cells_of(slurm) == found | {"failures": 3}
        slurm.leads = False
        assert cells_of(slurm) == {}


@pytest.mark.parametrize("resume", [True, False])
@pytest.mark.parametrize(
    ("node", "verdicts", "number"),
    [
        (("drained", OWN), GpuVerdicts(7, 7), 1),
        (("drained", OWN), GpuVerdicts(8, 9), 1),
        (("draining", f"{OWN}, wait"), GpuVerdicts(8, 8), 1),
        (("drained", "railscope: GPU 3 failed"), GpuVerdicts(8, 8), 1),
        (("drained", OWN), GpuVerdicts(8, 8), 0),
        (("draining@", OWN), GpuVerdicts(7, 7), 0),
        (("drained", "by hand"), GpuVerdicts(7, 7), 0),
    ],
)
async def test_metrics_count_healthy_nodes_that_stay_drained(
    tmp_path: Path, *, resume: bool, node: tuple[str, str], verdicts: GpuVerdicts, number: int
):
    slurm = cluster(tmp_path)
    slurm.drainer.settings = SlurmSettings(drain=True, resume=resume)
    async with running_log(slurm.trail.log):
        slurm.nodes["n1"], slurm.verdicts = node, {"n1": verdicts}
        await slurm.pass_time(15)
        assert cells_of(slurm)["unverified"] == number * resume
        slurm.fail("n1")
        await slurm.pass_time(15)
        assert cells_of(slurm)["unverified"] == 0, "it is not healthy"


async def test_without_the_audit_log_nothing_is_drained(tmp_path: Path):
    slurm = cluster(tmp_path)
    async with running_log(slurm.trail.log):
        await slurm.pass_time(15)
    slurm.fail("n1")
    await slurm.pass_time(300)
    assert slurm.commands == []


async def test_a_collector_that_does_not_lead_drains_nothing(tmp_path: Path):
    slurm = cluster(tmp_path)
    async with running_log(slurm.trail.log):
        slurm.leads = False
        slurm.fail("n1")
        await slurm.pass_time(300)
        assert slurm.commands == []
        slurm.leads = True
        await slurm.pass_time(60)
        assert slurm.commands == [], "the time is counted from the beginning of its term"
        await slurm.pass_time(15)
        assert slurm.drained == ["n1"]


def test_nodes_are_parsed_and_other_lines_are_skipped():
    found, others = parse_nodes(
        "n1|idle|Unknown|none\nn2|drained*|1764000000|railscope: a|b\nn1|idle|Unknown|none\n"
        "n3|drained|1764000000|line one\nsecond line\n\nn4|mixed-|Unknown|none\n"
    )
    assert found == {
        "n1": SlurmNode("n1", "idle", "none"),
        "n2": SlurmNode("n2", "drained*", "railscope: a|b", 1764000000 * SECOND_NS),
        "n3": SlurmNode("n3", "drained", "line one", 1764000000 * SECOND_NS),
        "n4": SlurmNode("n4", "mixed-", "none"),
    }
    assert others == ["second line"]
    for name in ("", "n[1-9]", "a b", "--all", "x" * 300):
        with pytest.raises(SlurmCommandError, match="invalid node"):
            parse_nodes(f"{name}|idle|Unknown|none\n")


async def test_a_reason_with_line_breaks_delays_no_other_node(tmp_path: Path):
    slurm = cluster(tmp_path)
    async with running_log(slurm.trail.log):
        slurm.nodes["cpu7"] = ("drained", "first line\nsecond line\nn1|drained|1|third")
        slurm.fail("n1")
        await slurm.pass_time(75)
    assert slurm.nodes["n1"][0] == "drained"


@given(st.text())
def test_any_output_is_parsed_or_rejected(text: str):
    try:
        found, others = parse_nodes(text)
    except SlurmCommandError:
        return
    assert all(node.name == name for name, node in found.items())
    assert all(line in text for line in others)


PROGRAMS: list[tuple[Callable[[Path], Sequence[str]], str]] = [
    (lambda directory: [str(directory / "none")], "cannot run"),
    (
        lambda _: ["sh", "-c", "echo Invalid user id >&2; exit 1"],
        "sh: exit status 1: Invalid user id",
    ),
]


@pytest.mark.parametrize(("command", "problem"), PROGRAMS)
def test_a_program_that_fails_is_reported(
    tmp_path: Path, command: Callable[[Path], Sequence[str]], problem: str
):
    with pytest.raises(SlurmCommandError, match=problem):
        run_program(command(tmp_path))
    assert run_program(["sh", "-c", "echo $SLURM_TIME_FORMAT"]) == "%s\n"


VERDICTS = Schema(
    "gpu_verdict",
    tuple(
        (GPU_HEALTH, Entity(GPU, (f"GPU-{i}",), {"rail": f"{i}", "index": f"{i}"})) for i in "01"
    ),
)
HEALTHY, FAILED, UNKNOWN, GONE = 1, 3, 0, Absent.GONE.value


async def commands_of(
    directory: Path, schema: Schema, verdicts: Sequence[int], reasons: bytes, node: str
) -> list[Sequence[str]]:
    """Return the commands of a collector with one node, which Slurm has as given."""
    sender, commands = FrameSender(), list[Sequence[str]]()

    def run_recorded(command: Sequence[str]) -> str:
        commands.append(command)
        return node

    async with run_collector(settings_in(directory)) as running:
        one = running.collector
        frames = sender.frames(schema, [verdicts], at=100, reasons=reasons)
        status, _ = await running.post(sender.body(frames, schemas=True))
        assert status == 200
        one.diagnosis.table = IncidentTable(one.clock.now_ns())
        await one.refresher.refresh()
        settings = SlurmSettings(resume=True, failed_seconds=0, healthy_seconds=0)
        drainer = replace(one.drainer, settings=settings, run_program=run_recorded)
        assert await drainer.attempt()
    assert commands[0] == NODES
    return commands[1:]


async def test_the_states_are_those_of_the_running_collector(tmp_path: Path):
    (command,) = await commands_of(
        tmp_path, VERDICTS, [FAILED, UNKNOWN], b"", "n1|idle|Unknown|none\n"
    )
    change = ("State=DRAIN", "Reason=railscope: GPU 0 failed [2 GPUs]")
    assert command == ("scontrol", "update", "NodeName=n1", *change)
    records = verified_records(tmp_path / "state/audit")
    assert [r.obj.node for r in records if r.type == "node.drain"] == ["n1"]


@pytest.mark.parametrize(
    ("schema", "verdicts", "reasons", "changes"),
    [
        (VERDICTS, [HEALTHY, HEALTHY], b"", ["State=RESUME"]),
        (VERDICTS, [HEALTHY, UNKNOWN], b"", []),
        (VERDICTS, [HEALTHY, HEALTHY], bytes((PRESENT, GONE)), []),
        (Schema("gpu_verdict", VERDICTS.columns[:1]), [HEALTHY], b"", []),
        (gpu_schema("n1"), [50, 60, 1000, 2000, 10, 20], b"", []),
    ],
    ids=["healthy", "unknown", "gone", "one GPU fewer", "no verdicts"],
)
async def test_a_node_is_resumed_with_a_verdict_on_each_gpu_that_it_had(
    tmp_path: Path, schema: Schema, verdicts: Sequence[int], reasons: bytes, changes: Sequence[str]
):
    node = "n1|drained|1764000000|railscope: GPU 0 failed [2 GPUs]\n"
    commands = await commands_of(tmp_path, schema, verdicts, reasons, node)
    assert [command[-1] for command in commands] == changes


async def test_drains_survive_a_restart_of_the_collector(tmp_path: Path):
    for drains in ({}, {"n1": 5}):
        settings = settings_in(tmp_path, diagnosis=DiagnosisSettings())
        async with run_collector(settings) as running:
            drainer = running.collector.drainer
            assert drainer.drains == drains
            drainer.drains["n1"] = 5


@pytest.mark.parametrize("missing", ["sinfo", "scontrol"])
def test_draining_without_the_programs_of_slurm_is_rejected(missing: str):
    def find_program(name: str) -> str | None:
        return None if name == missing else f"/usr/bin/{name}"

    configured = CollectorSettings(slurm=SlurmSettings(drain=True, resume=True))
    check_settings(configured, str)
    check_settings(CollectorSettings(), find_program)
    with pytest.raises(SettingsError, match="sinfo and scontrol"):
        check_settings(configured, find_program)
