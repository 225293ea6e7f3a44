"""Debian's Slurm with one node on the loopback interface: munged, slurmctld and slurmd, stopped by their own pids."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.waiting import block_until

from bench.harness import free_port

START_SECONDS = 60
PROGRAMS = ("munged", "slurmctld", "slurmd", "scontrol", "sinfo", "sbatch")
PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random")
"""Character devices of every machine, which stand for GPUs."""
SETTINGS = """\
ClusterName=test
SlurmctldHost={node}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/munge
AuthInfo=socket={directory}/munge.sock
CredType=cred/munge
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
GresTypes=gpu
{more}
NodeName={node} NodeAddr=127.0.0.1 CPUs=1 Gres=gpu:{gpus} State=UNKNOWN
PartitionName=main Nodes={node} Default=YES State=UP
PartitionName=other Nodes={node} State=UP
"""


class SlurmCluster:
    """A running Slurm with one node."""

    def __init__(self, directory: Path, node: str) -> None:
        self.directory, self.node = directory, node
        self.environment = {**os.environ, "PATH": PATH, "SLURM_CONF": str(directory / "slurm.conf")}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, program: str, *options: str) -> None:
        """Start a program of Slurm that is stopped at the end."""
        with (self.directory / f"{program}.log").open("ab") as log:
            self.processes[program] = subprocess.Popen(
                (program, *options),
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def stop(self, program: str) -> None:
        """Stop a program and wait for its end."""
        process = self.processes.pop(program)
        process.terminate()
        process.wait(timeout=START_SECONDS)

    def run(self, *command: str) -> str:
        """Run a command of Slurm that must succeed; return its output."""
        done = subprocess.run(
            command,
            env=self.environment,
            cwd=self.directory,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (command, done.stderr)
        return done.stdout

    def state(self) -> tuple[str, str]:
        """Return state and reason of the node."""
        line = self.run("sinfo", "--noheader", "--partition=main", "--format=%T|%E").strip()
        state, _, reason = line.partition("|")
        return state, reason

    def submit(self, gpus: int, script: str = "echo done") -> str:
        """Submit a job; return its ID."""
        gres = f"--gres=gpu:{gpus}" if gpus else "--ntasks=1"
        return self.run(
            "sbatch", "--parsable", gres, "--output=job-%j.txt", "--wrap", script
        ).strip()

    def output(self, job: str) -> str:
        """Return the output of a job; empty if it has not begun."""
        file = self.directory / f"job-{job}.txt"
        return file.read_text() if file.exists() else ""


@contextmanager
def running_slurm(directory: Path, gpus: int, more: Sequence[str]) -> Iterator[SlurmCluster]:
    """Run Slurm with further settings; skips if it is not installed."""
    if missing := [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]:
        pytest.skip(f"{missing[0]} is not installed: make servers")
    directory.mkdir()
    node = socket.gethostname().partition(".")[0]
    ports = [free_port(), free_port()]
    user = getpass.getuser()
    settings = SETTINGS.format(
        node=node, user=user, ports=ports, directory=directory, gpus=gpus, more="\n".join(more)
    )
    (directory / "slurm.conf").write_text(settings)
    gres = "".join(f"Name=gpu File={device}\n" for device in DEVICES[:gpus])
    (directory / "gres.conf").write_text(gres)
    (directory / "munge.key").write_bytes(os.urandom(256))
    (directory / "munge.key").chmod(0o600)
    for name in ("state", "spool"):
        (directory / name).mkdir()
    cluster = SlurmCluster(directory, node)
    munge = [f"--{name}-file={directory}/munge.{name}" for name in ("key", "pid", "log", "seed")]
    try:
        cluster.start(
            "munged", "--foreground", "--force", f"--socket={directory}/munge.sock", *munge
        )
        block_until((directory / "munge.sock").exists, "munged has a socket")
        cluster.start("slurmctld", "-D")
        cluster.start("slurmd", "-D")
        block_until(lambda: _is_idle(cluster), "the node registers")
        yield cluster
    finally:
        for program in reversed(tuple(cluster.processes)):
            cluster.stop(program)


def _is_idle(cluster: SlurmCluster) -> bool:
    done = subprocess.run(
        ["sinfo", "--noheader", "--partition=main", "--format=%T"],
        env=cluster.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() == "idle"
