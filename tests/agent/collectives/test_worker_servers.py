"""The client of PyTorch's worker servers against real HTTP servers: requests, peers, and hostile answers."""

from __future__ import annotations

import errno
import os
import pickle
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings, strategies as st
from support.flight_recorders import dump, pickled
from support.worker_servers import NCCL, NOT_FOUND, SUMMARY, PytorchServer, http_answer

from railscope_agent.collectives.flight_recorder import parse_dump
from railscope_agent.host.live_host import LiveHost
from railscope_agent.host.tcp_sockets import TcpSockets
from railscope_agent.host.worker_servers import MAX_ANSWER_BYTES

DUMP = msgspec.json.encode(dump(range(4), 5000, 4999, 10**18))
STATUS = msgspec.json.encode(dump(range(4), 5000, 4999, 10**18, entries=[]))
ANSWERS = {NCCL: http_answer(DUMP), SUMMARY: http_answer(STATUS)}
OWN = os.getpid()
LIMIT_MS = 5000
SHORT_MS = 500


def ask(directory: Path, function: str = "dump", timeout_ms: int = LIMIT_MS) -> Any:
    return LiveHost().call("worker_server", function, timeout_ms, str(directory), "", "rank_0.sock")


def identity(pid: int) -> tuple[int, int, int]:
    """Return number, user and start of a process as the agent records them."""
    process = LiveHost().call("job_files", "process", pid)
    return pid, process["user"], process["started_ns"]


def ask_once(directory: Path, answer: bytes | None, timeout_ms: int = LIMIT_MS) -> OSError:
    """Return the error of a request that a server answers in this way."""
    with (
        PytorchServer({NCCL: answer, SUMMARY: answer}).running(directory / "rank_0.sock"),
        pytest.raises(OSError) as failure,  # noqa: PT011 - the caller checks the number
    ):
        ask(directory, timeout_ms=timeout_ms)
    assert str(directory / "rank_0.sock") in str(failure.value), "the endpoint is named"
    return failure.value


def test_a_worker_is_asked_for_numbers_only_and_for_its_records_in_a_dump(tmp_path: Path) -> None:
    with PytorchServer(ANSWERS).running(tmp_path / "rank_0.sock") as server:
        assert ask(tmp_path, "progress") == {"progress": {"0": (5000, 4999)}}
        answer = ask(tmp_path)
    lines = [request.splitlines()[0] for request in server.requests]
    assert lines == [f"POST {SUMMARY} HTTP/1.1", f"POST {NCCL} HTTP/1.1"]
    assert all("Content-Length: 0" in request for request in server.requests)
    assert answer["dump"] == msgspec.to_builtins(parse_dump(DUMP))


def test_a_server_without_the_handlers_is_an_error_with_their_names(tmp_path: Path) -> None:
    error = ask_once(tmp_path, NOT_FOUND)
    assert error.errno == errno.EPROTO
    assert "status 404: expected a handler dump_nccl_trace_json or fr_trace_json" in str(error)


def test_redirects_are_not_followed(tmp_path: Path) -> None:
    with PytorchServer({}).running() as other:
        target = f"Location: http://127.0.0.1:{other.port}{NCCL}"
        error = ask_once(tmp_path, http_answer(b"", "307 Temporary Redirect", target))
        assert error.errno == errno.EPROTO
        assert "status 307: expected 200" in str(error)
        assert not other.requests


class Touching:
    """An object whose pickle creates a file when it is loaded with the standard library."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self._path,)


def test_a_pickle_is_not_loaded(tmp_path: Path) -> None:
    mark = tmp_path / "loaded"
    for content in (pickle.dumps(Touching(mark)), pickled(dump(range(2), 5, 4, 10**18))):
        error = ask_once(tmp_path, http_answer(content))
        (tmp_path / "rank_0.sock").unlink()
        assert error.errno == errno.EBADMSG
        assert "expected a JSON object" in str(error)
    assert not mark.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b'{"version": "3.0"}',
        b'{"version": "2.10", "entries": 7}',
        b'{"version": "2.10", "a": ' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}",
        b'{"version": "2.10", "a": ' + b'{"a":' * 500_000 + b"1" + b"}" * 500_001,
        b'{"version": "\xff"}',
        b'{"version": "2.10", "a": [' + b"[]," * 2_700_000 + b"1]}",
    ],
    ids=[
        "empty",
        "cut",
        "version",
        "shape",
        "nested lists",
        "nested objects",
        "not UTF-8",
        "lists",
    ],
)
def test_other_content_is_malformed(tmp_path: Path, content: bytes) -> None:
    assert ask_once(tmp_path, http_answer(content)).errno == errno.EBADMSG


def test_an_answer_that_is_too_large_is_not_read_further(tmp_path: Path) -> None:
    answer = http_answer(b"{" + b" " * (MAX_ANSWER_BYTES + 1))
    assert ask_once(tmp_path, answer).errno == errno.EMSGSIZE
    (tmp_path / "rank_0.sock").unlink()
    endless = b"HTTP/1.1 200 OK\r\n\r\n{" + b" " * (MAX_ANSWER_BYTES + (1 << 20))
    assert ask_once(tmp_path, endless).errno == errno.EMSGSIZE


def test_a_worker_that_does_not_answer_ends_with_a_timeout(tmp_path: Path) -> None:
    error = ask_once(tmp_path, None, timeout_ms=SHORT_MS)
    assert isinstance(error, TimeoutError)
    assert "no complete answer within 0.5 s" in str(error)


@settings(max_examples=20, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_end_with_an_error(content: bytes) -> None:
    with PytorchServer({NCCL: content}).running() as server:
        with pytest.raises(OSError) as failure:  # noqa: PT011 - which one it is depends on the bytes
            LiveHost().call("worker_server", "dump", 200, server.port, *identity(OWN))
        assert failure.value.errno in {errno.EBADMSG, errno.ETIMEDOUT, errno.EPROTO}


def test_links_and_files_are_not_connected_to(tmp_path: Path) -> None:
    outside, top = tmp_path / "outside.sock", tmp_path / "top"
    top.mkdir()
    with PytorchServer(ANSWERS).running(outside) as server:
        for place in ("symlink_to", "hardlink_to"):
            getattr(top / "rank_0.sock", place)(outside)
            with pytest.raises(OSError, match="not a socket"):
                ask(top)
            (top / "rank_0.sock").unlink()
        (top / "rank_0.sock").write_bytes(b"")
        with pytest.raises(OSError, match="not a socket"):
            ask(top)
        with pytest.raises(OSError, match="without a slash"):
            LiveHost().call("worker_server", "dump", LIMIT_MS, str(top), "..", "outside.sock")
    assert not server.requests


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a socket to another user")
def test_a_socket_of_a_user_at_which_another_user_listens_is_rejected(tmp_path: Path) -> None:
    with PytorchServer(ANSWERS).running(tmp_path / "rank_0.sock") as server:
        os.chown(tmp_path / "rank_0.sock", 1000, 1000)
        with pytest.raises(PermissionError, match="another user than its owner listens") as failure:
            ask(tmp_path)
    assert failure.value.errno == errno.EPERM
    assert not server.requests


def test_a_port_is_that_of_the_process_which_listens_and_answers() -> None:
    host = LiveHost()
    program = [sys.executable, "-c", "input()"]
    with (
        PytorchServer(ANSWERS).running() as server,
        subprocess.Popen(program, stdin=subprocess.PIPE) as other,
    ):
        ports = f"{server.port} 1"
        assert host.call("worker_server", "listeners", ports, other.pid) == []
        found = host.call("worker_server", "listeners", ports, other.pid, OWN)
        assert found == [[server.port, OWN]]
        place = server.port, *identity(OWN)
        answer = host.call("worker_server", "progress", LIMIT_MS, *place)
        assert answer["progress"] == {"0": (5000, 4999)}
        place = server.port, *identity(other.pid)
        with pytest.raises(PermissionError, match=f"another process than {other.pid}"):
            host.call("worker_server", "progress", LIMIT_MS, *place)
        assert other.stdin is not None
        other.stdin.close()


@pytest.mark.parametrize(
    ("user", "later_ns", "problem"),
    [
        (1, 0, "another process than .* of user .* answered"),
        (0, -(10**9), "was started after it was on a GPU"),
    ],
    ids=["another user", "a former process of this number"],
)
def test_a_process_that_has_the_number_of_a_former_one_does_not_answer_for_it(
    user: int, later_ns: int, problem: str
) -> None:
    pid, owner, started_ns = identity(OWN)
    place = pid, owner + user, started_ns + later_ns
    with (
        PytorchServer(ANSWERS).running() as server,
        pytest.raises(PermissionError, match=problem) as failure,
    ):
        LiveHost().call("worker_server", "progress", LIMIT_MS, server.port, *place)
    assert failure.value.errno == errno.EPERM


@pytest.mark.parametrize("address", ["127.0.0.1", "::ffff:127.0.0.1"])
def test_a_connection_by_ipv4_is_found_whichever_family_its_socket_has(address: str):
    sockets = TcpSockets(LiveHost())
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(family) as client:
        client.connect((address, server.getsockname()[1]))
        accepted, peer = server.accept()
        with accepted:
            user, inode = sockets.find_socket(peer[:2], accepted.getsockname()[:2])
            assert user == os.geteuid()
            assert sockets.has_socket(OWN, inode)
