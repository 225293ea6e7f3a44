"""Claims reported over the agent's socket, and their storage."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import queue
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.cases import CASES
from support.tenancy import NODE, PolledTenancy, cut, event_summaries, mig_uuid, node, uuid

from agent.config import TenancySettings
from agent.endpoint.claims_endpoint import MAX_BODY_BYTES, ClaimsEndpoint
from agent.tenancy.command_claims import CLAIMS_FILE
from railscope.cli import root
from railscope.settings import SettingsError


@pytest.fixture
def directory() -> Iterator[Path]:
    """Temporary directory with a short path: a socket path has at most 107 bytes."""
    made = Path(tempfile.mkdtemp(prefix="claims-"))
    yield made
    shutil.rmtree(made)


class UnixSocketConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=20)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(self.path))


def ask(
    where: Path | http.client.HTTPConnection, method: str, path: str, body: Any = None
) -> tuple[int, Any]:
    """Send a request over a new connection; return the status and the JSON or text of the answer."""
    content = body if isinstance(body, bytes) or body is None else json.dumps(body)
    with closing(UnixSocketConnection(where) if isinstance(where, Path) else where) as connection:
        connection.request(method, path, content)
        answer = connection.getresponse()
        received = answer.read()
        is_json = received.startswith(b"{")
        return answer.status, json.loads(received) if is_json else received.decode()


class ServedEndpoint:
    """A claims endpoint in its own thread, with its tenancy."""

    def __init__(self, directory: Path, settings: TenancySettings | None = None) -> None:
        self.host = node(3)
        cut(self.host, 2, [("3g.40gb", 0, 4), ("3g.40gb", 4, 4)])
        self.looked = PolledTenancy(self.host)
        self.looked.tenancy.remember(directory, NODE)
        self.endpoint = ClaimsEndpoint(
            settings or TenancySettings(), directory, self.looked.tenancy, self.host.clock
        )
        self.path = directory / "claims.sock"


@contextmanager
def serving(served: ServedEndpoint) -> Iterator[ServedEndpoint]:
    started: queue.Queue[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = queue.Queue()

    async def serve() -> None:
        stop = asyncio.Event()
        await served.endpoint.start()
        started.put((asyncio.get_running_loop(), stop))
        await stop.wait()
        await served.endpoint.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    loop, stop = started.get(timeout=20)
    try:
        yield served
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()


@pytest.fixture
def served(directory: Path) -> Iterator[ServedEndpoint]:
    made = ServedEndpoint(directory)
    made.looked.poll()
    with serving(made):
        yield made


BATCH = {"id": "b-1", "gpus": ["0", "1"], "tenant": "red", "workload": "batch"}


def test_a_reported_claim_begins_and_ends(served):
    path = served.path
    status, answer = ask(path, "POST", "/v1/claims", BATCH)
    start_ns = served.host.clock.now().wall_ns
    assert (status, answer["claim"]["devices"]) == (200, [uuid(0), uuid(1)])
    served.host.clock.advance(2)
    assert ask(path, "POST", "/v1/claims", BATCH)[0] == 200, "a repeated report changes nothing"
    began = served.looked.poll()
    assert event_summaries(began) == [
        ("claim_start", "command", "batch", uuid(0)),
        ("claim_start", "command", "batch", uuid(1)),
    ]
    facts = began[0].facts
    assert (facts["start_ns"], facts["uncertainty_ns"]) == (str(start_ns), "0")
    assert (facts["tenant"], facts["level"]) == ("red", "scheduler")
    end_ns = served.host.clock.now().wall_ns
    assert ask(path, "POST", "/v1/claims/b-1/end")[0] == 200
    served.host.clock.advance(1)
    assert ask(path, "POST", "/v1/claims/b-1/end", {})[0] == 200
    ended = served.looked.poll()
    assert {event.facts["end_ns"] for event in ended} == {str(end_ns)}
    assert {event.entity for event in ended} == {event.entity for event in began}
    assert served.looked.poll() == []


def test_a_claim_that_begins_and_ends_between_two_polls(served):
    path = served.path
    ask(path, "POST", "/v1/claims", {**BATCH, "gpus": [mig_uuid(2, 1)], "system": True})
    served.host.clock.advance(1)
    ask(path, "POST", "/v1/claims/b-1/end")
    began, ended = served.looked.poll()
    assert began.facts["compute"] == "480-840"
    assert began.facts["system"] == "true"
    assert int(ended.facts["end_ns"]) - int(began.facts["start_ns"]) == 10**9


def test_an_id_begins_again_only_where_that_is_asked_for(served):
    path = served.path
    ask(path, "POST", "/v1/claims", BATCH)
    served.looked.poll()
    served.host.clock.advance(1)
    ask(path, "POST", "/v1/claims/b-1/end")
    assert ask(path, "POST", "/v1/claims", BATCH)[0] == 409
    served.host.clock.advance(1)
    again = {**BATCH, "again": True}
    assert ask(path, "POST", "/v1/claims", again)[0] == 200
    assert ask(path, "POST", "/v1/claims", again)[0] == 200
    events = served.looked.poll()
    assert (
        sorted(event.event_class.name for event in events)
        == ["claim_end"] * 2 + ["claim_start"] * 2
    )
    ends = {e.facts["end_ns"] for e in events if e.event_class.name == "claim_end"}
    starts = {e.facts["start_ns"] for e in events if e.event_class.name == "claim_start"}
    assert int(*starts) - int(*ends) == 10**9


@pytest.mark.parametrize(
    ("request_", "status", "message"),
    [
        (("POST", "/v1/claims", b"{"), 400, "truncated"),
        (("POST", "/v1/claims", []), 422, "Expected `object`"),
        (("POST", "/v1/claims", {**BATCH, "gpu": "0"}), 422, "unknown field `gpu`"),
        (("POST", "/v1/claims", {**BATCH, "id": "../a"}), 422, "$.id"),
        (("POST", "/v1/claims", {**BATCH, "gpus": []}), 422, "$.gpus"),
        (("POST", "/v1/claims", {**BATCH, "tenant": "a\nb"}), 422, "$.tenant"),
        (("POST", "/v1/claims", {**BATCH, "tenant": ""}), 422, "missing owner of the claim"),
        (("POST", "/v1/claims", {**BATCH, "gpus": ["7"]}), 422, "unknown GPU '7': expected"),
        (("POST", "/v1/claims", {**BATCH, "gpus": ["0000:ff:00.0"]}), 422, "unknown GPU"),
        (("POST", "/v1/claims", {**BATCH, "start": "2026-01-01T00:00:00"}), 422, "with an offset"),
        (
            ("POST", "/v1/claims", {**BATCH, "start": "2999-01-01T00:00:00Z"}),
            422,
            "not in the future",
        ),
        (("POST", "/v1/claims", b"x" * (MAX_BODY_BYTES + 1)), 413, "at most"),
        (("POST", "/v1/claims/none/end", {}), 404, "unknown claim 'none'"),
        (("PUT", "/v1/claims", {}), 405, "unknown request PUT"),
        (("GET", "/", None), 404, "unknown request GET /"),
    ],
)
def test_rejected_requests(served, request_, status, message):
    actual, content = ask(served.path, *request_)
    assert (actual, message in str(content)) == (status, True), content
    assert ask(served.path, "GET", "/v1/claims") == (200, {"claims": []})


def test_another_claim_with_the_same_id_is_refused(served):
    path = served.path
    ask(path, "POST", "/v1/claims", BATCH)
    status, answer = ask(path, "POST", "/v1/claims", {**BATCH, "tenant": "blue"})
    assert (status, answer["error"]) == (
        409,
        "claim 'b-1' exists and differs: expected an unused id",
    )


def test_the_socket_is_roots(served):
    assert served.path.stat().st_mode & 0o777 == 0o600


def test_a_socket_that_an_agent_serves_is_left_to_it(served, directory):
    with pytest.raises(SettingsError, match="in use by another agent"):
        asyncio.run(ServedEndpoint(directory).endpoint.start())
    assert ask(served.path, "GET", "/v1/claims")[0] == 200, "it goes on serving"


def test_a_socket_without_a_listener_is_taken_over(directory):
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(directory / "claims.sock"))
    with serving(ServedEndpoint(directory)) as made:
        assert ask(made.path, "GET", "/v1/claims")[0] == 200
    assert not made.path.exists()


def test_before_gpus_are_known_it_may_be_tried_again(directory):
    with serving(ServedEndpoint(directory)) as made:
        status, answer = ask(made.path, "POST", "/v1/claims", BATCH)
        assert (status, "retry in" in answer["error"]) == (503, True)


def test_a_claim_that_cannot_be_stored_is_not_reported(served, directory):
    (directory / CLAIMS_FILE).mkdir()
    path = served.path
    status, answer = ask(path, "POST", "/v1/claims", BATCH)
    assert (status, "Is a directory" in answer["error"]) == (503, True)
    assert served.looked.poll() == []
    (directory / CLAIMS_FILE).rmdir()
    assert ask(path, "POST", "/v1/claims", BATCH)[0] == 200


def test_a_damaged_file_is_put_aside(directory):
    (directory / CLAIMS_FILE).write_text("[{")
    made = ServedEndpoint(directory)
    made.looked.poll()
    assert "renamed to" in made.looked.findings_about("command")[0][1]
    assert (directory / f"{CLAIMS_FILE}.damaged").exists()


def test_over_loopback_with_a_token(directory):
    (directory / "token").write_text("secret\n")
    settings = TenancySettings(listen="127.0.0.1:0", token_file=str(directory / "token"))
    made = ServedEndpoint(directory, settings)
    made.looked.poll()
    with serving(made):
        (_, tcp) = made.endpoint._servers  # noqa: SLF001 - where it listens
        port = tcp.port
        plain = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        assert ask(plain, "GET", "/v1/claims")[0] == 401
        url = ["--url", f"http://127.0.0.1:{port}", "--token-file", str(directory / "token")]
        outcome = CliRunner().invoke(root, ["claim", "list", "--format", "json", *url])
        assert (outcome.exit_code, outcome.stdout) == (0, "[]\n")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"listen": "0.0.0.0:9470", "token": "t"}, "loopback"),
        ({"listen": "127.0.0.1:9470"}, "expected tenancy.token"),
        ({"listen": "127.0.0.1:9470", "token_file": "/nowhere"}, "cannot read tenancy.token_file"),
    ],
)
def test_an_address_that_is_not_safe(directory, settings, message):
    with pytest.raises(SettingsError, match=message):
        ServedEndpoint(directory, TenancySettings(**settings))


# The command -------------------------------------------------------------------------------------


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


# A whole agent -----------------------------------------------------------------------------------


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
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
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


@pytest.mark.parametrize("key", ["id", "tenant", "owner", "workload"])
@pytest.mark.parametrize("text", ["red\n", "red\r\n", "\x1b[2J", "red\x7f"])
def test_a_name_has_no_control_characters(served, key, text):
    status, _ = ask(served.path, "POST", "/v1/claims", {**BATCH, key: text})
    assert status == 422
    assert ask(served.path, "GET", "/v1/claims")[1] == {"claims": []}
