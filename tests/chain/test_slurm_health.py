"""Health checks and draining with a real Slurm: its prolog, its HealthCheckProgram, sinfo and scontrol."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.audit import audit_log, running_log, verified_records
from support.command_line import run
from support.health_agents import answering, install_scripts, write_settings
from support.slurm_cluster import SlurmCluster, running_slurm, wait_until

from railscope.api import Node
from railscope_collector.audit.audit_trail import AuditTrail
from railscope_collector.config import SlurmSettings
from railscope_collector.sinks.slurm_drain import (
    NODES,
    SlurmDrainer,
    SlurmNode,
    parse_nodes,
    run_program,
)
from railscope_collector.view_refresh import GpuVerdicts

GPUS = 4


@dataclass
class CheckedCluster:
    """A Slurm whose scripts query an agent, and the directory of the scripts' settings."""

    slurm: SlurmCluster
    directory: Path
    sockets: dict[str, Path] = field(default_factory=dict)

    def use(self, capture: str) -> None:
        """Have the scripts query the agent of a capture."""
        write_settings(self.directory, self.sockets[capture])

    def resume(self) -> None:
        self.slurm.run("scontrol", "update", f"NodeName={self.slurm.node}", "State=RESUME")
        wait_until(lambda: self.slurm.state()[0] in {"idle", "mixed"}, "the node is not resumed")

    def has_ended(self, job: str) -> bool:
        """True if a job ran to its end."""
        return self.slurm.output(job) == "done\n"

    def log(self) -> str:
        """Return what the scripts have written to the system log."""
        file = self.directory / "log"
        return file.read_text() if file.exists() else ""


@pytest.fixture(name="cluster", scope="module")
def _cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CheckedCluster]:
    directory = tmp_path_factory.mktemp("cluster")
    with (
        answering("hgx-h100-load", directory / "healthy") as healthy,
        answering("lost-gpu", directory / "failed") as failed,
    ):
        share = install_scripts(directory, healthy.path)
        recorder = directory / "programs/logger"
        recorder.parent.mkdir()
        recorder.write_text(f'#!/bin/sh\necho "$@" >> {directory}/log\n')
        recorder.chmod(0o755)
        for script in ("prolog_health.sh", "health_check.sh"):
            file = share / "slurm" / script
            file.write_text(file.read_text().replace("PATH=", f"PATH={recorder.parent}:", 1))
        more = (
            f"Prolog={share}/slurm/prolog_health.sh",
            "PrologFlags=Alloc",
            f"HealthCheckProgram={share}/slurm/health_check.sh",
            "HealthCheckInterval=1",
            "HealthCheckNodeState=ANY",
            "RebootProgram=/bin/true",
        )
        with running_slurm(directory / "slurm", GPUS, more) as slurm:
            sockets = {"healthy": healthy.path, "failed": failed.path, "none": directory / "none"}
            yield CheckedCluster(slurm, directory, sockets)


@pytest.mark.journey
def test_a_job_with_a_failed_gpu_is_rejected_and_the_node_drained(cluster: CheckedCluster):
    for agent, gpus in (("healthy", 2), ("failed", 1), ("none", 4)):
        cluster.use(agent)
        job = cluster.slurm.submit(gpus)
        wait_until(partial(cluster.has_ended, job), f"job {job} does not end")
        assert cluster.slurm.state()[0] not in {"drained", "draining"}
    cluster.use("failed")
    job = cluster.slurm.submit(GPUS)
    wait_until(lambda: cluster.slurm.state()[0] == "drained", "the node is not drained")
    assert cluster.slurm.state() == ("drained", "Prolog error")
    assert cluster.slurm.output(job) == ""
    line = (
        f"-t railscope-prolog -p daemon.err -- job {job}: failed: GPU 3: GPU lost; reboot the node"
    )
    assert line in cluster.log()
    cluster.slurm.run("scancel", job)
    cluster.use("healthy")
    cluster.resume()


def test_the_health_check_logs_failed_devices_and_drains_nothing(cluster: CheckedCluster):
    cluster.use("failed")
    line = "-t railscope-health -p daemon.err -- failed: GPU 3: GPU lost; reboot the node"
    wait_until(lambda: line in cluster.log(), "the health check does not run")
    assert cluster.slurm.state()[0] == "idle"
    cluster.use("healthy")


AS_OTHER_USER = (
    "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
    "--inh-caps=+dac_override", "--ambient-caps=+dac_override",
)  # fmt: skip
"""A user other than SlurmUser: `sinfo` lists all partitions for SlurmUser. It may read the files of this test."""


@pytest.mark.thorough
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user than that of Slurm")
def test_nodes_of_hidden_partitions_are_listed(cluster: CheckedCluster):
    slurm = cluster.slurm

    def hide(setting: str) -> None:
        for partition in ("main", "other"):
            slurm.run("scontrol", "update", f"PartitionName={partition}", f"Hidden={setting}")

    hide("YES")
    nodes, _ = parse_nodes(slurm.run(*AS_OTHER_USER, *NODES))
    hide("NO")
    assert nodes.keys() == {slurm.node}


def test_the_check_of_the_collector_runs_sinfo(cluster: CheckedCluster, tmp_path: Path):
    file = tmp_path / "collector.toml"
    file.write_text(f'state_directory = "{tmp_path}/state"\n[slurm]\ndrain = true\n')
    environment = {name: cluster.slurm.environment[name] for name in ("PATH", "SLURM_CONF")}
    outcome = run("collector", "check", "--config", str(file), **environment)
    assert "ok      slurm: sinfo lists 1 nodes\n" in outcome.stdout


class NodeDrainer:
    """The collector's drainer with the node of a cluster, whose state is given."""

    def __init__(self, slurm: SlurmCluster, directory: Path) -> None:
        self.slurm = slurm
        self.trail = AuditTrail(audit_log(directory), "1.0", lambda: 0)
        self.row = Node(slurm.node, gpus=GPUS, state="healthy", age_seconds=1.0)
        self.drainer = SlurmDrainer(
            SlurmSettings(resume=True, failed_seconds=0, healthy_seconds=0),
            self.trail,
            lambda: 0,
            rows=lambda: [self.row],
            verdicts=lambda: {slurm.node: GpuVerdicts(GPUS, GPUS)},
            run_program=self.run,
        )

    def run(self, command: Sequence[str]) -> str:
        conf = self.slurm.environment["SLURM_CONF"]
        return run_program(["env", f"SLURM_CONF={conf}", *command])

    async def attempt(self, state: str, reason: str = "") -> None:
        """Decide with this state of the node."""
        incidents = ("4f",) if reason else ()
        self.row = replace(self.row, state=state, reason=reason, incidents=incidents)
        assert await self.drainer.attempt()

    def node(self) -> SlurmNode:
        """Return the node as Slurm has it."""
        return parse_nodes(self.run(NODES))[0][self.slurm.node]


@pytest.mark.journey
async def test_the_collector_drains_and_resumes_the_node(cluster: CheckedCluster, tmp_path: Path):
    slurm, collector = cluster.slurm, NodeDrainer(cluster.slurm, tmp_path)
    async with running_log(collector.trail.log):
        await collector.attempt("healthy")
        assert slurm.state() == ("idle", "none")
        await collector.attempt("failed", "GPU 3 failed; its NIC | and 'quotes' \"$(reboot)\"")
        drained = collector.node()
        assert drained.is_own_drain
        reason = "railscope: incident 4f: GPU 3 failed; its NIC  and quotes $(reboot) [4 GPUs]"
        assert drained.reason == reason
        assert drained.gpus == GPUS
        assert drained.reason_ns > 1_700_000_000 * 10**9
        await collector.attempt("unknown")
        assert slurm.state()[0] == "drained"
        await collector.attempt("healthy")
        wait_until(lambda: slurm.state()[0] == "idle", "the node is not resumed")
        by_hand = "by hand\nfor maintenance"
        change = ("State=DRAIN", f"Reason={by_hand}")
        slurm.run("scontrol", "update", f"NodeName={slurm.node}", *change)
        await collector.attempt("healthy")
        assert slurm.state() == ("drained", by_hand)
        cluster.resume()
    types = [record.type for record in verified_records(tmp_path)]
    assert types == ["node.drain", "node.resume"]


@pytest.mark.thorough
async def test_the_collector_does_not_cancel_a_pending_reboot(
    cluster: CheckedCluster, tmp_path: Path
):
    slurm, collector = cluster.slurm, NodeDrainer(cluster.slurm, tmp_path)
    cluster.use("healthy")
    job = slurm.submit(1, "sleep 600")
    wait_until(lambda: slurm.state()[0] in {"mixed", "allocated"}, f"job {job} does not start")
    async with running_log(collector.trail.log):
        await collector.attempt("failed", "GPU 3 failed")
        assert slurm.state()[0] == "draining"
        slurm.run("scontrol", "reboot", "ASAP", slurm.node)
        for _ in range(2):
            await collector.attempt("healthy")
            assert slurm.state() == ("draining@", "railscope: incident 4f: GPU 3 failed [4 GPUs]")
    slurm.run("scontrol", "cancel_reboot", slurm.node)
    slurm.run("scancel", job)
    wait_until(lambda: slurm.state()[0] in {"drained", "idle"}, f"job {job} does not end")
    if slurm.state()[0] == "drained":
        cluster.resume()


@pytest.mark.thorough
async def test_a_drained_node_is_resumed_after_a_reboot_by_slurm(
    cluster: CheckedCluster, tmp_path: Path
):
    slurm, collector = cluster.slurm, NodeDrainer(cluster.slurm, tmp_path)
    async with running_log(collector.trail.log):
        await collector.attempt("failed", "GPU 3 failed")
        slurm.run("scontrol", "reboot", slurm.node)
        reason = "railscope: incident 4f: GPU 3 failed [4 GPUs] : reboot issued"
        wait_until(lambda: slurm.state()[1] == reason, "the node does not reboot")
        await collector.attempt("healthy")
        assert not collector.node().is_available
        slurm.finish_reboot()
        wait_until(lambda: slurm.state()[0] == "drained", "the node does not register")
        assert collector.node().gpus == GPUS
        await collector.attempt("healthy")
        wait_until(lambda: slurm.state()[0] == "idle", "the node is not resumed")
    types = [record.type for record in verified_records(tmp_path)]
    assert types == ["node.drain", "node.resume"]
