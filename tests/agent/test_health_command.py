"""`railscope health` against agents that answer, hang or are broken, and the scripts that run it."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support.claim_requests import ask
from support.health_agents import ReadCapture, answering, install_scripts

from railscope.cli import root

ROOT = Path(__file__).parents[2]


def run(path: Path, *arguments: str, **environment: str) -> Result:
    command = ["health", "--socket", str(path), *arguments]
    return CliRunner().invoke(root, command, env={"SLURM_JOB_ID": None, **environment})


@pytest.fixture(name="failed", scope="module")
def _failed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReadCapture]:
    """An agent of four GPUs: the third has fallen off the bus; jobs 7 and 9 share the first, 8 holds the others."""
    with answering("lost-gpu", tmp_path_factory.mktemp("agent")) as served:
        served.claim("8", "2", "3")
        for job in ("7", "9"):
            body = {"id": f"slurm-{job}", "gpus": ["0"], "owner": "me", "workload": f"slurm:{job}"}
            assert ask(served.path, "POST", "/v1/claims", {**body, "exclusive": False})[0] == 200
        yield served


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        ((), 2, "failed: GPU 3: GPU lost; reboot the node\n"),
        (("--format", "npd"), 1, "railscope: GPU 3: GPU lost; reboot the node\n"),
        (("--format", "nagios"), 2, "RAILSCOPE CRITICAL - railscope: GPU 3: GPU lost"),
        (("--job", "7"), 0, "healthy: healthy GPUs: 1, healthy NICs: 0\n"),
        (("--job", "slurm:9"), 0, "healthy: healthy GPUs: 1, healthy NICs: 0\n"),
        (("--job", "slurm:8"), 2, "failed: GPU 3: GPU lost; reboot the node\n"),
        (("--job", "10"), 3, "unknown: no claim of job 10 on this node\n"),
        (("--job", "kubernetes:8"), 3, "unknown: no claim of job kubernetes:8 on this node\n"),
        (("--job", "$(reboot)"), 3, "unknown: invalid job '$(reboot)': expected an ID"),
        (("--job", "8" * 300), 3, "unknown: invalid job"),
    ],
)
def test_the_answer_of_an_agent_with_a_failed_gpu(
    failed: ReadCapture, arguments: tuple[str, ...], status: int, text: str
):
    outcome = run(failed.path, *arguments)
    assert outcome.stdout.startswith(text)
    assert outcome.exit_code == status


@pytest.mark.parametrize(
    ("gpus", "status", "text"),
    [
        ("0,1", 0, "healthy: healthy GPUs: 2"),
        ("3", 2, "failed: GPU 3: GPU lost"),
        ("", 0, "healthy: no GPU and no NIC to judge"),
        ("0,63", 3, "unknown: the GPUs of job slurm:7 are not known"),
        ("0;reboot", 3, "unknown: invalid SLURM_JOB_GPUS"),
    ],
)
def test_a_prolog_names_the_gpus_of_its_job(failed: ReadCapture, gpus: str, status: int, text: str):
    outcome = run(failed.path, "--from-slurm", SLURM_JOB_ID="7", SLURM_JOB_GPUS=gpus)
    assert outcome.stdout.startswith(text)
    assert outcome.exit_code == status


def test_numbers_of_a_prolog_may_be_those_of_mig_devices(tmp_path: Path):
    with answering("h200-mig", tmp_path) as served:
        job = {"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "0"}
        outcome = run(served.path, "--from-slurm", **job)
        assert outcome.stdout == "unknown: the GPUs of job slurm:7 are not known\n"
        served.claim("7", "0:0")
        assert run(served.path, "--job", "7").stdout.startswith("healthy: healthy GPUs: 1")


def test_a_prolog_without_a_job_is_unknown(failed: ReadCapture):
    assert "missing SLURM_JOB_ID" in run(failed.path, "--from-slurm").stdout
    outcome = run(failed.path, "--from-slurm", SLURM_JOB_ID="7\n", SLURM_JOB_GPUS="0")
    assert (outcome.exit_code, "missing SLURM_JOB_ID" in outcome.stdout) == (3, True)


@pytest.mark.parametrize("query", ["?job", "?jobs=1", "?job=1&" + "gpu=0&" * 300, "?&"])
def test_invalid_queries_are_rejected(failed: ReadCapture, query: str):
    status, answer = ask(failed.path, "GET", f"/v1/health{query}")
    assert status == 400
    assert "expected" in answer["error"]


@contextmanager
def listening(path: Path, serve: Callable[[socket.socket], None]) -> Iterator[Path]:
    """Listen on a socket, with a function that is called with each connection."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()

        def accept() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    serve(connection)

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield path
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def until_closed(connection: socket.socket) -> None:
    while connection.recv(1024):
        pass


def answer(content: bytes) -> Callable[[socket.socket], None]:
    def send(connection: socket.socket) -> None:
        connection.recv(1024)
        try:
            connection.sendall(content)
        except OSError:
            return

    return send


@pytest.mark.parametrize(
    ("serve", "problem"),
    [
        (until_closed, "no answer from the agent within 0.2 s"),
        (answer(b""), "answer of the agent: none"),
        (answer(b"HTTP/1.1 500 Internal\r\n\r\n"), "answer of the agent: HTTP/1.1 500 Internal"),
        (answer(b"HTTP/1.1 200 OK\r\n\r\n{}"), "invalid answer of the agent: Object missing"),
        (answer(b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 100_000), "invalid answer of the agent"),
        (answer(b"x" * (2 << 20)), "answer of more than 1048576 bytes"),
    ],
)
def test_a_broken_agent_is_unknown(
    tmp_path: Path, serve: Callable[[socket.socket], None], problem: str
):
    with listening(tmp_path / "s", serve) as path:
        started = time.monotonic()
        outcome = run(path, "--timeout-seconds", "0.2")
    assert outcome.exit_code == 3
    assert outcome.stdout.startswith(f"unknown: {problem}")
    assert time.monotonic() - started < 5


NOT_RUNNING = "agent not running; fix: systemctl start railscope-agent"


def test_no_agent_or_invalid_settings_are_unknown(tmp_path: Path):
    outcome = run(Path("/dev/none"))
    expected = f"unknown: {NOT_RUNNING}; /dev/none: No such file or directory\n"
    assert (outcome.exit_code, outcome.stdout) == (3, expected)
    long = tmp_path / "no-agent.sock"
    assert f"{NOT_RUNNING}; {long}: " in run(long).stdout
    settings = tmp_path / "agent.toml"
    settings.write_text('[tenancy]\nsocket = 1\nsockets = "x"\n')
    arguments = ["health", "--config", str(settings), "--format", "npd"]
    outcome = CliRunner().invoke(root, arguments)
    assert outcome.exit_code == 2
    assert outcome.stdout.startswith("railscope: unknown: ")
    settings.write_text(f'state_directory = "{tmp_path}"\n')
    with answering("hgx-h100-idle", tmp_path):
        assert CliRunner().invoke(root, arguments).exit_code == 0


@pytest.mark.parametrize(
    "arguments", [["--form", "npd"], ["--format", "xml"], ["--timeout-seconds", "0"], ["x"]]
)
def test_a_usage_error_has_the_status_of_unknown(arguments: list[str]):
    assert CliRunner().invoke(root, ["health", *arguments]).exit_code == 3


def test_scripts_of_the_schedulers(failed: ReadCapture, tmp_path: Path):
    share = install_scripts(tmp_path, failed.path)

    def script(name: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [share / name],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    prolog, npd = "slurm/prolog_health.sh", "node-problem-detector/railscope-health.sh"
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "0"}
    assert script(prolog, **job).returncode == 0
    assert script(prolog, **{**job, "SLURM_JOB_GPUS": "3"}).returncode == 1
    found = script(npd)
    assert (found.returncode, found.stdout) == (
        1,
        "railscope: GPU 3: GPU lost; reboot the node\n",
    )
    for program in ("exit 2", "echo failed: >&2; exit 2", "kill -9 $$"):
        (tmp_path / "opt/bin/railscope").write_text(f"#!/bin/sh\n{program}\n")
        assert script(prolog, **{**job, "SLURM_JOB_GPUS": "3"}).returncode == 0, program
        found = script(npd)
        assert (found.returncode, found.stdout) == (2, "railscope: unknown: the command failed\n")
    shutil.rmtree(tmp_path / "opt/bin")
    assert script(prolog, **{**job, "SLURM_JOB_GPUS": "3"}).returncode == 0
    assert script(npd).returncode == 2


def test_the_configuration_of_node_problem_detector_fits_the_command():
    file = ROOT / "deploy/node-problem-detector/railscope-health.json"
    configuration = json.loads(file.read_text())
    assert configuration["pluginConfig"]["max_output_length"] == 80
    (rule,) = configuration["rules"]
    assert rule["condition"] in {each["type"] for each in configuration["conditions"]}
    assert Path(rule["path"]).name == "railscope-health.sh"
    assert (file.parent / Path(rule["path"]).name).stat().st_mode & 0o111
