"""The Ansible role that gives each node its token, run on directories of this machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.command_line import run

ROOT = Path(__file__).parent.parent
PLAYBOOK = ROOT / "deploy/ansible/tokens.yml"
NODES = ("gpu-001", "gpu-002")


class Nodes:
    """Nodes, each a directory of settings, and the command that restarts their agents."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.tokens = directory / "tokens"
        hosts = [
            f"{name} ansible_connection=local ansible_python_interpreter={sys.executable} "
            f"railscope_token_configuration={directory / name}\n"
            for name in NODES
        ]
        (directory / "inventory").write_text("".join(hosts))
        (directory / "bin").mkdir()
        systemctl = directory / "bin/systemctl"
        systemctl.write_text(f'#!/bin/sh\necho "$@" >>{directory}/restarts\nexit $STATUS\n')
        systemctl.chmod(0o755)
        self.restart_status = 0

    def create_tokens(self) -> None:
        (self.directory / "nodes.txt").write_text("\n".join(NODES))
        places = (
            "--output",
            str(self.tokens),
            "--tokens-file",
            str(self.directory / "tokens.toml"),
        )
        outcome = run("collector", "token", "--nodes", str(self.directory / "nodes.txt"), *places)
        assert outcome.exit_code == 0, outcome.stderr

    def play(self) -> dict[str, dict[str, int]]:
        """Run the playbook; return what it did by node."""
        program = Path(sys.executable).with_name("ansible-playbook")
        environment = {
            "PATH": f"{self.directory}/bin:{os.environ['PATH']}",
            "ANSIBLE_HOME": str(self.directory / "ansible"),
            "ANSIBLE_NOCOLOR": "1",
            "LC_ALL": "C.UTF-8",
            "STATUS": str(self.restart_status),
        }
        command = [program, "-i", self.directory / "inventory", PLAYBOOK, "--diff"]
        done = subprocess.run(
            [*map(str, command), "-e", f"railscope_token_directory={self.tokens}"],
            env=os.environ | environment,
            capture_output=True,
            text=True,
            check=False,
        )
        for path in self.tokens.glob("*"):
            assert path.read_text().strip() not in done.stdout + done.stderr, "no token is printed"
        recap = done.stdout.partition("PLAY RECAP")[2]
        stats = {
            name: {key: int(number) for key, number in re.findall(r"(\w+)=(\d+)", counts)}
            for name, counts in re.findall(r"^(\S+) +: (.*)$", recap, re.MULTILINE)
        }
        assert set(stats) == set(NODES), done.stdout + done.stderr
        assert (done.returncode == 0) is not any(of["failed"] for of in stats.values())
        return stats

    def restarts(self) -> int:
        path = self.directory / "restarts"
        lines = path.read_text().splitlines() if path.exists() else []
        assert set(lines) <= {"try-restart railscope-agent"}
        return len(lines)


@pytest.fixture(name="nodes")
def _nodes(tmp_path: Path) -> Nodes:
    return Nodes(tmp_path)


@pytest.mark.thorough
def test_every_node_gets_its_token_and_a_second_run_changes_nothing(nodes: Nodes):
    nodes.create_tokens()
    first = nodes.play()
    assert {name: of["failed"] for name, of in first.items()} == dict.fromkeys(NODES, 0)
    assert nodes.restarts() == len(NODES)
    for name in NODES:
        token = nodes.directory / name / "collector.token"
        assert token.read_bytes() == (nodes.tokens / f"{name}.token").read_bytes()
        assert token.stat().st_mode & 0o777 == 0o600

    second = nodes.play()
    assert {name: of["changed"] for name, of in second.items()} == dict.fromkeys(NODES, 0)
    assert nodes.restarts() == len(NODES)

    (nodes.tokens / "gpu-002.token").write_text("another\n")
    third = nodes.play()
    assert {name: of["changed"] > 0 for name, of in third.items()} == {
        "gpu-001": False,
        "gpu-002": True,
    }
    assert nodes.restarts() == len(NODES) + 1


@pytest.mark.thorough
@pytest.mark.parametrize(("status", "failed"), [(5, 0), (1, 1)])
def test_a_node_without_the_unit_of_the_agent_gets_its_token(
    nodes: Nodes, status: int, failed: int
):
    """As on a node of Kubernetes; 5 is the exit status of systemctl for a missing unit."""
    nodes.create_tokens()
    nodes.restart_status = status
    assert {of["failed"] for of in nodes.play().values()} == {failed}
    assert (nodes.directory / "gpu-002/collector.token").exists()


@pytest.mark.thorough
def test_a_node_without_a_token_fails_alone(nodes: Nodes):
    nodes.create_tokens()
    (nodes.tokens / "gpu-002.token").unlink()
    stats = nodes.play()
    assert {name: of["failed"] for name, of in stats.items()} == {"gpu-001": 0, "gpu-002": 1}
    assert not (nodes.directory / "gpu-002/collector.token").exists()
