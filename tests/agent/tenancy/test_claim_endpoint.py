"""Claims that are reported to an agent: `railscope claim`, and its HTTP over a Unix socket.

    claim ARGUMENTS             the command; prints its output, and its exit status if that is not 0
    ask METHOD PATH [JSON]      a request: its status, and the error or the claims in force
    job N GPUS                  the SLURM_ variables of a prolog; `job` alone removes them
    poll, wait S, wall S        every claim event; time passes; the wall clock is stepped
    restart, boot ID            another agent, in the same boot or in another one
    block NAME, unblock NAME    a directory in place of a file of the state directory
    damage NAME                 a file of the state directory is cut

GPU 1 is g1, MIG device 1 of GPU 2 is m2.1; times are printed as T.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.cases import CASES
from support.claim_requests import ServedEndpoint, ask, serving
from support.clock import NS, ManualClock
from support.stories import Story
from support.tenancy import device, event_line, short
from support.waiting import block_until

from railscope.cli import root
from railscope.frame import NodeTimestamp
from railscope.settings import SettingsError


class Agent:
    """An agent with three GPUs, the third one in two MIG devices, and its endpoint."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.running = directory, ExitStack()
        self.environment: dict[str, str | None] = {"SLURM_JOB_ID": None}
        self.served = ServedEndpoint(directory)
        self.restart()

    def run(self, line: str) -> list[str]:
        word, *words = device(line).split(" ")
        return getattr(self, word)(*words) or []

    def restart(self) -> None:
        self.running.close()
        self.served = ServedEndpoint(self.directory, host=self.served.host)
        self.running.enter_context(serving(self.served))

    def boot(self, boot_id: str) -> None:
        host = self.served.host
        host.boot_id = boot_id
        host.clock = ManualClock(NodeTimestamp(host.clock.now().wall_ns, 60 * NS))
        self.restart()

    def claim(self, *words: str) -> list[str]:
        command = ["claim", *words, "--socket", str(self.served.path), "--timeout-seconds", "0"]
        outcome = CliRunner().invoke(root, command, env=self.environment)
        lines = outcome.output.splitlines()
        if outcome.exit_code:
            lines = [f"exit {outcome.exit_code}", *(each for each in lines if "Error" in each)]
        return [self.shortened(line) for line in lines]

    def ask(self, method: str, path: str, *body: str) -> list[str]:
        content = " ".join(body).encode() or None
        status, answer = ask(self.served.path, method, path, content)
        found = (
            [answer] if isinstance(answer, str) else [answer["error"]] if "error" in answer else []
        )
        if isinstance(answer, dict):
            found += [f"{each['id']} {each['device']}" for each in answer.get("claims", [])]
        return [self.shortened(f"{status} {text}") for text in found or [""]]

    def shortened(self, text: str) -> str:
        text = " ".join(text.replace(str(self.directory), "DIRECTORY").split())
        return re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "T", short(text))

    def job(self, number: str = "", gpus: str = "") -> None:
        named = {"SLURM_JOB_ID": number, "SLURM_JOB_GPUS": gpus, "SLURM_JOB_ACCOUNT": "astro"}
        self.environment = {key: value or None for key, value in named.items()}

    def poll(self) -> list[str]:
        shown = ("source", "level", "start_ns", "end_ns", "why", "system", "compute")
        polled = self.served.looked
        lines = [event_line(event, shown) for event in polled.poll()] + polled.finding_lines
        return [self.shortened(line) for line in lines]

    def wait(self, seconds: str) -> None:
        self.served.host.clock.advance(float(seconds))

    def wall(self, seconds: str) -> None:
        self.served.host.clock.step_wall(float(seconds))

    def damage(self, name: str) -> None:
        (self.directory / name).write_text('[{"')

    def block(self, name: str) -> None:
        (self.directory / name).mkdir()

    def unblock(self, name: str) -> None:
        (self.directory / name).rmdir()


@pytest.fixture
def directory() -> Iterator[Path]:
    """Temporary directory with a short path: that of a socket has at most 107 bytes."""
    made = Path(tempfile.mkdtemp(prefix="claims-"))
    yield made
    shutil.rmtree(made)


def test_story(story: Story, directory: Path) -> None:
    agent = Agent(directory)
    with agent.running:
        story.play(agent.run)


def test_the_socket_is_roots_and_one_agents(directory: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(directory / "claims.sock"))  # without a listener: it is taken over
    with serving(ServedEndpoint(directory)) as served:
        assert served.path.stat().st_mode & 0o777 == 0o600
        with pytest.raises(SettingsError, match="in use by another agent"):
            asyncio.run(ServedEndpoint(directory).endpoint.start())
        assert ask(served.path, "GET", "/v1/claims")[0] == 200
    assert not served.path.exists()


@pytest.mark.thorough
def test_nothing_that_was_answered_is_lost_when_the_agent_is_killed(directory: Path) -> None:
    """Also at the first start, when there is no state directory yet."""
    state = directory / "var" / "agent"
    command = [
        sys.executable, "-m", "railscope", "agent", "run", "--listen", "127.0.0.1:0",
        "--replay", str(CASES / "hgx-h100-load"), "--state-directory", str(state),
    ]  # fmt: skip

    def until_ok(method: str, path: str, body: object = None) -> dict[str, Any]:
        def answer() -> dict[str, Any] | None:
            with suppress(OSError):
                status, found = ask(state / "claims.sock", method, path, body)
                return dict(found) if status == 200 else None
            return None

        found: dict[str, Any] = block_until(answer, f"the agent answers {method} {path}")
        return found

    for _ in range(2):
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as agent:
            for name in ("c-0", "c-1"):
                body = {"id": name, "gpus": ["0"], "tenant": "red", "allow_restart": True}
                until_ok("POST", "/v1/claims", body)
            until_ok("POST", "/v1/claims/c-1/end")
            listed = [each["id"] for each in until_ok("GET", "/v1/claims")["claims"]]
            agent.kill()
    assert listed == ["c-0"]
    assert state.stat().st_mode & 0o777 == 0o700
