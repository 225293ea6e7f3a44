"""The demo as its user runs it: it starts, checks itself, and leaves no process behind."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import time
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.command_line import run
from support.waiting import wait_until

from railscope import __version__
from railscope_collector.access.credentials import CredentialKey, digest_token
from railscope_collector.access.tokens_file import load_credentials
from railscope_simulator.demo.cluster import MISSING_SWITCHES, program_environment

PATIENCE_SECONDS = 120.0

DEMO = [sys.executable, "-m", "railscope_simulator.demo", "--any-ports"]
COMMAND = [sys.executable, "-m", "railscope", "demo", "--any-ports"]
WITHOUT_GRPCIO = [
    sys.executable,
    "-c",
    "import runpy, sys; sys.modules['grpc'] = None; runpy.run_module('railscope_simulator.demo', run_name='__main__')",
    "--any-ports",
]
STARTED = "STATUS "
BEFORE_NS = 3600 * 10**9


def test_the_settings_of_the_host_are_not_those_of_the_demo(tmp_path: Path):
    url = "postgresql://railscope@db.example/ledger"
    of_host = {
        "RAILSCOPE_COLLECTOR_LEDGER__URL": url,
        "RAILSCOPE_CONFIGURATION": "/etc/railscope",
        "PATH": "/bin",
    }
    assert program_environment(tmp_path, of_host) == {
        "PATH": "/bin",
        "RAILSCOPE_CONFIGURATION": str(tmp_path),
    }


def processes_in(directory: Path) -> set[int]:
    """Return the processes that run in the directory of a demo, which are its children."""
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cwd").readlink() == directory:
                found.add(int(entry.name))
        except OSError:
            continue  # it has ended, or belongs to another user
    return found


async def gone(directory: Path) -> None:
    await wait_until(lambda: not processes_in(directory), "all processes have ended", every=0.2)


async def read_until(process: Process, text: str) -> str:
    """Read the output of a demo until a line has some text."""
    assert process.stdout is not None
    seen = ""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while text not in seen:
            line = await process.stdout.readline()
            assert line, seen
            seen += line.decode()
    return seen


async def read_rest(process: Process) -> str:
    """Read the output of a demo until all its processes have ended."""
    assert process.stdout is not None
    rest = await process.stdout.read()
    await process.wait()
    return rest.decode()


@asynccontextmanager
async def demo(directory: Path, *command: str) -> AsyncIterator[Process]:
    """Run a demo, or a program that runs it; remaining processes are killed by their pid at the end."""
    process = await asyncio.create_subprocess_exec(
        *(command or DEMO),
        "--directory",
        str(directory),
        stdout=PIPE,
        stderr=STDOUT,
        env={**os.environ, "TMPDIR": str(directory.parent)},
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
        for pid in processes_in(directory):
            os.kill(pid, signal.SIGKILL)


async def stop_in_order(process: Process, number: signal.Signals, directory: Path) -> None:
    """Stop a demo by a signal."""
    process.send_signal(number)
    rest = await read_rest(process)
    assert process.returncode == 0, rest
    check_stopped(rest, number, directory)


def check_stopped(rest: str, number: signal.Signals, directory: Path) -> None:
    """Check the output of a demo after a signal: it leaves its state, and nothing else."""
    assert f"stopped by {number.name}; state stays in {directory}" in rest
    assert "Traceback" not in rest
    assert re.search(r"^SUMMARY: 5 nodes ran\. .*\.$", rest, re.MULTILINE)
    assert not processes_in(directory)
    assert [path.name for path in directory.parent.iterdir()] == ["demo"]
    assert (directory / "collector/audit.pub").is_file()


@pytest.mark.thorough
async def test_no_child_outlives_a_demo_that_is_killed(tmp_path: Path):
    directory = tmp_path / "demo"
    async with demo(directory) as process:
        await read_until(process, STARTED)
        process.kill()
        await process.wait()
        await gone(directory)


@pytest.mark.journey
async def test_a_demo_ends_well_and_a_second_one_in_its_directory_is_rejected(tmp_path: Path):
    directory = tmp_path / "demo"
    at_usual_ports = [part for part in DEMO if part != "--any-ports"]
    async with demo(directory, *at_usual_ports, "--seconds", "16") as process:
        text = await read_until(process, "Starting 4 simulated nodes")
        second = await asyncio.create_subprocess_exec(
            *COMMAND, "--directory", str(directory), stdout=PIPE, stderr=STDOUT
        )
        output = await read_rest(second)
        assert second.returncode == 1
        assert f"{directory} is in use by another demo; fix: stop it" in output
        text += await read_rest(process)
        assert process.returncode == 0, text
    assert re.search(r"^\w+  collector http://127\.0\.0\.1:\d+, data ", text, re.MULTILINE)
    assert re.search(r"^5 nodes: ", text, re.MULTILINE)
    assert re.search(
        r"^SUMMARY: 5 nodes ran\. (?:No fault began|1 fault began: 1 just before the end)\.$",
        text,
        re.MULTILINE,
    )
    for program in ("prometheus", "alertmanager", "grafana server"):
        assert re.search(rf"^  \S*{program} .*{directory}/", text, re.MULTILINE), text
    agents = json.loads((directory / "prometheus/targets/agents.yml").read_text())
    assert len(agents) == 5
    assert text.count("Open in a browser") == 1
    check_readers(directory, text)


def check_readers(directory: Path, text: str) -> None:
    """Check that each reader has a token, and that there are closed months to read."""
    entries = load_credentials(directory / "tokens.toml").entries
    for name, role in (("operator", "operator"), ("tenant", "tenant"), ("finance", "finance"), ("auditor", "auditor")):  # fmt: skip
        file = directory / "tokens" / name
        assert str(file) in text
        assert file.stat().st_mode & 0o777 == 0o600
        key = CredentialKey("token", digest_token(file.read_text().strip()))
        assert str(entries[key].credential.role) == role
    ledger = f"sqlite:///{directory}/collector/ledger.sqlite"
    listed = run("bill", "list", "--ledger", ledger).stdout
    assert "periods closed: 2" in listed
    assert re.search(r"vision +2026-\d\d +inv-", listed)
    records = run("audit", "show", str(directory / "collector/ledger.sqlite")).stdout
    assert f"{__version__}+simulated" in records


@pytest.mark.thorough  # its start: test_a_signal_stops_a_demo_that_is_still_starting
async def test_a_demo_without_grpcio_states_it_and_runs_without_switches(tmp_path: Path):
    directory = tmp_path / "demo"
    async with demo(directory, *WITHOUT_GRPCIO) as process:
        text = await read_until(process, STARTED)
        assert MISSING_SWITCHES in text
        assert len(processes_in(directory)) == 7
        await stop_in_order(process, signal.SIGINT, directory)


@pytest.mark.thorough
async def test_a_later_demo_starts_empty_and_ends_with_the_program_that_started_it(tmp_path: Path):
    """Same as `make` if it is killed: the demo receives SIGTERM."""
    directory = tmp_path / "demo"
    (directory / "nodes").mkdir(parents=True)
    booted = f"booted_wall_ns = {time.time_ns() - BEFORE_NS}"
    (directory / "nodes/gpu-node-1.toml").write_text(f"{booted}\n")
    (directory / "collector").mkdir()
    (directory / "collector/of-the-demo-before").write_text("")
    start = "import subprocess, sys; subprocess.run(sys.argv[1:])"
    command = [sys.executable, "-c", start, *DEMO, "--end-with-parent"]
    async with demo(directory, *command) as parent:
        await read_until(parent, STARTED)
        assert len(processes_in(directory)) == 8
        assert not (directory / "collector/of-the-demo-before").exists()
        # A Prometheus that watched the demo before would see a reboot.
        assert booted in (directory / "nodes/gpu-node-1.toml").read_text().splitlines()
        parent.kill()
        rest = await read_rest(parent)
        check_stopped(rest, signal.SIGTERM, directory)
