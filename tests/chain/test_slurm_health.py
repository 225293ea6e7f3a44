"""Health checks with a real Slurm: its prolog, and its HealthCheckProgram, which drains the node if it is set to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from support.health_agents import answering, install_scripts, write_settings
from support.slurm_cluster import SlurmCluster, running_slurm
from support.waiting import block_until

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
        block_until(lambda: self.slurm.state()[0] in {"idle", "mixed"}, "the node is resumed")

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
        )
        with running_slurm(directory / "slurm", GPUS, more) as slurm:
            sockets = {"healthy": healthy.path, "failed": failed.path, "none": directory / "none"}
            yield CheckedCluster(slurm, directory, sockets)


@pytest.mark.journey
def test_a_job_with_a_failed_gpu_is_rejected_and_the_node_drained(cluster: CheckedCluster):
    for agent, gpus in (("healthy", 2), ("failed", 1), ("none", 4)):
        cluster.use(agent)
        job = cluster.slurm.submit(gpus)
        block_until(partial(cluster.has_ended, job), f"job {job} ends")
        assert cluster.slurm.state()[0] not in {"drained", "draining"}
    cluster.use("failed")
    job = cluster.slurm.submit(GPUS)
    block_until(lambda: cluster.slurm.state()[0] == "drained", "the node is drained")
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
    block_until(lambda: line in cluster.log(), "the health check runs")
    assert cluster.slurm.state()[0] == "idle"
    cluster.use("healthy")


@pytest.mark.journey
def test_the_health_check_drains_the_node_if_it_is_set_to(cluster: CheckedCluster):
    file = cluster.directory / "opt/share/railscope/slurm/health_check.sh"
    script = file.read_text()
    # slurmd does not pass SLURM_CONF on: outside this test the settings are where Slurm's programs look for them.
    conf = cluster.slurm.environment["SLURM_CONF"]
    file.write_text(script.replace("drain=no\n", f"drain=yes\nexport SLURM_CONF={conf}\n"))
    cluster.use("failed")
    block_until(lambda: cluster.slurm.state()[0] == "drained", "the node is drained")
    assert cluster.slurm.state()[1] == "railscope: GPU 3: GPU lost; reboot the node"
    by_hand = ("State=DRAIN", "Reason=by hand")
    cluster.slurm.run("scontrol", "update", f"NodeName={cluster.slurm.node}", *by_hand)
    lines = len(cluster.log())
    block_until(lambda: len(cluster.log()) > lines, "the health check runs again")
    cluster.use("healthy")
    assert cluster.slurm.state() == ("drained", "by hand")
    cluster.resume()
    file.write_text(script)
