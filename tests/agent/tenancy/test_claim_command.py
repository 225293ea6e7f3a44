"""`railscope claim`, and claims of an agent that ends at any time."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.cases import CASES
from support.claim_requests import BATCH, ServedEndpoint, ask
from support.clock import NS, ManualClock
from support.tenancy import NODE, PolledTenancy, event_summaries, uuid

from railscope.cli import root
from railscope.frame import NodeTimestamp
from railscope_agent.tenancy.clock_history import BootTime
from railscope_agent.tenancy.command_claims import CommandClaim


def run(served: ServedEndpoint, *arguments: str, **environment: str) -> Result:
    command = ["claim", *arguments, "--socket", str(served.path), "--timeout-seconds", "0"]
    return CliRunner().invoke(root, command, env={"SLURM_JOB_ID": None, **environment})


def test_the_command(served):
    outcome = run(served, "start", "--id", "m-1", "--gpu", "0,1", "--tenant", "red")
    assert (outcome.exit_code, outcome.stdout.startswith(f"m-1: {uuid(0)}, {uuid(1)} since ")) == (
        0,
        True,
    )
    listed = run(served, "list")
    head, *rows = [line.split()[:3] for line in listed.stdout.splitlines()]
    assert head == ["index", "device", "pci_address"]
    assert [row[:2] for row in rows] == [["0", uuid(0)], ["1", uuid(1)]]
    assert all(re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.0", row[2]) for row in rows)
    served.looked.poll()
    assert run(served, "list").stdout == listed.stdout, "reported by this poll"
    assert run(served, "end", "m-1").exit_code == 0
    served.looked.poll()
    assert run(served, "list", "--format", "json").stdout == "[]\n"
    refused = run(served, "end", "m-2")
    assert (refused.exit_code, "unknown claim 'm-2'" in refused.output) == (1, True)
    for arguments in (
        ["start", "--gpu", "0", "--tenant", "red"],
        ["start", "--id", "a", "--gpu", "0"],
        ["end"],
    ):
        assert run(served, *arguments).exit_code == 2


def test_prolog_and_epilog_of_slurm(served):
    job = {"SLURM_JOB_ID": "123", "SLURM_JOB_GPUS": "0,1", "SLURM_JOB_ACCOUNT": "astro"}
    for restart in range(2):
        assert run(served, "start", "--from-slurm", **job).exit_code == 0
        (first, _) = began = served.looked.poll()
        assert (first.facts["source"], first.facts["workload"]) == ("slurm", "123")
        assert (first.facts["owner"], first.facts["level"]) == ("astro", "scheduler")
        assert run(served, "end", "--from-slurm", **job).exit_code == 0, restart
        assert [event.entity for event in served.looked.poll()] == [event.entity for event in began]
    assert run(served, "start", "--from-slurm", SLURM_JOB_ID="124").exit_code == 0
    assert served.looked.poll() == [], "a job without GPUs claims none"
    assert run(served, "start", "--from-slurm").exit_code == 1


def test_a_job_ends_with_the_boot_of_its_node(served):
    """Slurm runs no epilog on a node that crashed. A claim for a tenant is no job, and stays."""
    job = {"SLURM_JOB_ID": "123", "SLURM_JOB_GPUS": "0", "SLURM_JOB_ACCOUNT": "astro"}
    commands, clock = served.looked.tenancy.commands, served.host.clock
    assert run(served, "start", "--from-slurm", **job).exit_code == 0
    assert run(served, "start", "--id", "m-1", "--gpu", "1", "--tenant", "red").exit_code == 0
    served.looked.poll()
    served.host.boot_id = "boot-2"
    served.looked.tenancy.clock.boot_id = "boot-2"
    boot_ns = clock.now().wall_ns - clock.now().boot_ns
    # Requeued on this node at once: the prolog starts the same claim before the next poll.
    assert run(served, "start", "--from-slurm", **job).exit_code == 0
    first, again = (claim for claim in commands.all if claim.is_job)
    assert first.end_boot == BootTime("boot-2", 0)
    assert first.end_ns == max(boot_ns, first.start_ns)
    assert (again.end_ns, again.start_boot.boot_id) == (None, "boot-2")
    served.host.boot_id = "boot-3"
    served.looked.poll()
    assert {claim.id: claim.end_ns is None for claim in commands.all} == {
        again.id: False,
        "m-1": True,
    }


@pytest.mark.parametrize("days_since_boot", [0, 0.9, 1.1, 3, 40])
def test_jobs_of_an_earlier_boot_end_with_it_however_long_ago_it_was(served, days_since_boot):
    """The agent may start long after the boot: the jobs ended then, not at its first poll."""
    for number in range(2):
        job = {
            "SLURM_JOB_ID": str(number + 7),
            "SLURM_JOB_GPUS": str(number),
            "SLURM_JOB_ACCOUNT": "astro",
        }
        assert run(served, "start", "--from-slurm", **job).exit_code == 0
    served.looked.poll()
    host, crash_ns = served.host, served.host.clock.now().wall_ns
    boot_ns = round((days_since_boot * 86_400 + 60) * NS)
    boot_wall_ns = crash_ns + 3 * 3600 * NS
    now_ns = boot_wall_ns + boot_ns
    host.boot_id, host.clock = "boot-2", ManualClock(NodeTimestamp(now_ns, boot_ns))
    looked = PolledTenancy(host)
    looked.tenancy.remember(served.path.parent, NODE)
    commands = looked.tenancy.commands
    # The prolog of the next job precedes the first poll.
    start_boot = BootTime("boot-2", boot_ns)
    commands.start(CommandClaim("m-1", (), "red", "", "", now_ns, start_boot=start_boot))
    ends = [event for event in looked.poll() if event.event_class.name == "claim_end"]
    assert {(e.facts["workload"], e.facts["why"]) for e in ends} == {("7", "ended"), ("8", "ended")}
    assert {int(event.facts["end_ns"]) for event in ends} == {boot_wall_ns}
    assert looked.poll() == []
    commands.end("m-1", host.clock.now().wall_ns)
    is_kept = days_since_boot < 1
    assert any(claim.is_job for claim in commands.all) == is_kept


def test_a_job_reported_by_its_prolog_is_reported_once(served):
    directory = "/sys/fs/cgroup/system.slice/slurmstepd.scope/job_123"
    served.host.files[f"{directory}/step_0/user/task_0/cgroup.procs"] = "50\n"
    served.host.calls["owner.environ(50)"] = {"SLURM_JOB_ID": "123", "SLURM_JOB_GPUS": "0"}
    job = {"SLURM_JOB_ID": "123", "SLURM_JOB_GPUS": "0", "SLURM_JOB_ACCOUNT": "astro"}
    run(served, "start", "--from-slurm", **job)
    assert event_summaries(served.looked.poll()) == [("claim_start", "slurm", "123", uuid(0))]
    run(served, "end", "--from-slurm", **job)
    assert event_summaries(served.looked.poll()) == [("claim_end", "slurm", "123", uuid(0))]
    assert served.looked.poll() == [], "its control group takes a while to go"


def test_no_agent(directory):
    arguments = [
        "claim",
        "list",
        "--socket",
        str(directory / "none.sock"),
        "--timeout-seconds",
        "0",
    ]
    outcome = CliRunner().invoke(root, arguments)
    assert (outcome.exit_code, "no response from the agent at" in outcome.output) == (1, True)


@contextmanager
def agent(directory: Path, **more: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run an agent in its own process on a recorded node with two GPUs; `settings` are added by name."""
    command = [
        sys.executable, "-m", "railscope", "agent", "run", "--listen", "127.0.0.1:0",
        "--replay", str(CASES / "hgx-h100-load"), "--state-directory", str(directory),
    ]  # fmt: skip
    environment = {**os.environ, "RAILSCOPE_AGENT_PERIOD_SECONDS__TENANCY": "0.5"}
    environment |= {f"RAILSCOPE_AGENT_{name}": text for name, text in more.items()}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def request_until_ok(directory: Path, method: str, path: str, body: Any = None) -> Any:
    """Repeat a request until the answer is 200."""
    until, last = time.monotonic() + 60, None
    while time.monotonic() < until:
        try:
            status, last = ask(directory / "claims.sock", method, path, body)
            if status == 200:
                return last
        except OSError as error:
            last = error
        time.sleep(0.05)
    raise AssertionError(last)


def test_nothing_that_was_answered_is_lost_when_the_agent_is_killed(directory):
    for number in range(3):
        with agent(directory) as process:
            for part in range(3):
                name = f"c-{number}-{part}"
                request_until_ok(
                    directory, "POST", "/v1/claims", {**BATCH, "id": name, "gpus": ["0"]}
                )
                if part:
                    request_until_ok(directory, "POST", f"/v1/claims/{name}/end")
            process.send_signal(signal.SIGKILL)
            process.wait()
    with agent(directory):
        listed = {one["id"] for one in request_until_ok(directory, "GET", "/v1/claims")["claims"]}
        assert listed == {"c-0-0", "c-1-0", "c-2-0"}
        for number in range(3):
            status, _ = ask(directory / "claims.sock", "POST", f"/v1/claims/c-{number}-1/end")
            assert status == 200, "that it has ended is known"


def test_a_first_start_without_a_state_directory_accepts_claims(directory):
    state = directory / "var" / "lib" / "agent"
    with agent(state):
        request_until_ok(state, "POST", "/v1/claims", {**BATCH, "gpus": ["0"]})
        assert state.stat().st_mode & 0o777 == 0o700
    with agent(state):
        listed = request_until_ok(state, "GET", "/v1/claims")["claims"]
        assert [one["id"] for one in listed] == ["b-1"], "it was kept"


def test_claims_are_accepted_as_soon_as_the_state_directory_can_be_written(directory):
    state = directory / "later" / "agent"
    state.parent.write_text("a file, where a directory is to be")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    listen = {"TENANCY__LISTEN": f"127.0.0.1:{port}", "TENANCY__TOKEN": "secret"}
    headers = {"Authorization": "Bearer secret"}

    def start() -> tuple[int, dict[str, Any]]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        with closing(connection):
            body = json.dumps({**BATCH, "gpus": ["0"]})
            connection.request("POST", "/v1/claims", body, headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

    def until(reached: Callable[[int, str], bool]) -> str:
        limit, status, message = time.monotonic() + 60, 0, ""
        while time.monotonic() < limit:
            with suppress(OSError):
                status, answer = start()
                message = str(answer.get("error", ""))
                if reached(status, message):
                    return message
            time.sleep(0.1)
        raise AssertionError((status, message))

    with agent(state, **listen):
        message = until(lambda status, message: status == 503 and "state_directory" in message)
        assert f"cannot use state_directory {state}: Not a directory" in message
        assert "accepted as soon as it is writable" in message
        state.parent.unlink()
        until(lambda status, _: status == 200)
        request_until_ok(state, "POST", "/v1/claims/b-1/end")
