"""The client of NCCL's RAS subsystem against real servers: its process, hostile answers, and time."""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from support import ras_servers as ras

from railscope_agent.host import nccl_ras
from railscope_agent.host.files import RootedFiles
from railscope_agent.host.nccl_ras import NcclProcess, RasCalls

OWN, USER = os.getpid(), os.geteuid()
REPORT = ras.report(ras.communicator([ras.rank(0, OWN, AllReduce=3), ras.rank(1, OWN + 1)]))
SHORT_MS = 300
REQUESTS = ["CLIENT PROTOCOL 2", "TIMEOUT 4", "SET FORMAT json", "VERBOSE STATUS"]


@contextmanager
def client() -> Iterator[RasCalls]:
    calls = RasCalls(RootedFiles(Path("/")))
    try:
        yield calls
    finally:
        calls.close()


def query(server: ras.RasServer, *pids: int, timeout_ms: int = 5000, user: int = USER) -> Any:
    with server.running(), client() as calls:
        return calls.call("query", server.port, timeout_ms, user, *(pids or (OWN,)))


def test_a_report_has_the_process_that_answered() -> None:
    server = ras.RasServer(REPORT)
    answer = query(server, 1, OWN)
    assert (answer["state"], answer["pid"]) == ("answered", OWN)
    ranks = answer["report"]["communicators"][0]["ranks"]
    assert [rank["counts"]["AllReduce"] for rank in ranks] == [3, 0]
    assert server.lines == REQUESTS


def test_a_server_without_json_is_not_queried() -> None:
    server = ras.RasServer(REPORT, has_json=False)
    assert query(server)["state"] == "protocol"
    assert server.lines == REQUESTS[:-1]


def test_a_port_of_another_user_is_not_connected_to() -> None:
    server = ras.RasServer(REPORT)
    assert query(server, user=USER + 1) == {"state": "user"}
    assert server.lines == []


def garbage(connection: socket.socket) -> None:
    connection.sendall(random.Random(1).randbytes(1 << 16))  # noqa: S311 - not a secret


def first_line_without_end(connection: socket.socket) -> None:
    connection.sendall(b"SERVER PROTOCOL 2" * 1000)


def http(connection: socket.socket) -> None:
    ras.received_line(connection)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def close_at_once(connection: socket.socket) -> None:
    connection.shutdown(socket.SHUT_RDWR)


def close_before_the_report(connection: socket.socket) -> None:
    for answer in (b"SERVER PROTOCOL 2\n", b"OK\n", b"OK\n"):
        ras.received_line(connection)
        connection.sendall(answer)
    ras.received_line(connection)


@pytest.mark.parametrize(
    ("talk", "states"),
    [
        (garbage, {"protocol", "malformed"}),
        (first_line_without_end, {"protocol"}),
        (http, {"protocol"}),
        (close_at_once, {"malformed"}),
        (close_before_the_report, {"malformed"}),
    ],
)
def test_other_answers_have_a_state(talk: ras.Talk, states: set[str]) -> None:
    server = ras.RasServer()
    server.talk = talk
    answer = query(server)
    assert answer["state"] in states
    assert "report" not in answer


def test_another_protocol_is_not_used() -> None:
    server = ras.RasServer(REPORT, protocol=3)
    assert query(server)["state"] == "protocol"
    assert server.lines == REQUESTS[:1]


def test_a_report_beyond_the_bound_is_not_read_to_its_end() -> None:
    server = ras.RasServer(b" " * (nccl_ras.MAX_ANSWER_BYTES + (8 << 20)) + REPORT)
    assert query(server, timeout_ms=60_000) == {"state": "too_large", "pid": OWN}


def test_a_server_that_never_answers_takes_the_timeout() -> None:
    server = ras.RasServer()
    server.talk = lambda _: server.wait_until_stopped()
    began = time.monotonic()
    assert query(server, timeout_ms=SHORT_MS)["state"] == "timeout"
    assert SHORT_MS / 1000 <= time.monotonic() - began < SHORT_MS / 1000 + 5


@settings(max_examples=20, deadline=None)
@given(st.binary(max_size=200), st.binary(max_size=200))
def test_any_bytes_end_with_a_state(first: bytes, rest: bytes) -> None:
    server = ras.RasServer()

    def send(connection: socket.socket) -> None:
        connection.sendall(first)
        ras.received_line(connection)
        connection.sendall(rest)

    server.talk = send
    answer = query(server, timeout_ms=2000)
    assert answer["state"] in {"protocol", "malformed", "timeout"}


def test_monitor_returns_each_dead_process_once() -> None:
    server = ras.RasServer()
    first, second = ras.event("PEER_DEAD", 11), ras.event("PEER_DEAD", 12)
    server.events = [ras.event("PEER_NEW", 9), first, second[:40]]
    with server.running(), client() as calls:
        arguments = server.port, 5000, USER, OWN
        answers = [calls.call("events", *arguments)]
        server.monitors[0].sendall(second[40:])
        while not (answer := calls.call("events", *arguments)).get("dead"):
            answers.append(answer)
        answers.append(answer)
        assert [peer["pid"] for a in answers for peer in a.get("dead", [])] == [11, 12]
        assert "dead" not in calls.call("events", *arguments)
        assert server.lines == ["CLIENT PROTOCOL 2", "SET FORMAT json", "MONITOR lifecycle"]


class CopiedProcess:
    """Files of one process below a root, with those of this process for its network."""

    def __init__(self, root: Path, maps: str, mounts: str = "/ / ext4") -> None:
        self.directory = root / "proc" / "77"
        (self.directory / "ns").mkdir(parents=True)
        (root / "proc" / "self" / "ns").mkdir(parents=True)
        mounted = [mount.split() for mount in mounts.splitlines()]
        lines = [f"1 0 8:1 {top} {at} rw - {kind} dev rw" for top, at, kind in mounted]
        for name, text in {
            "maps": maps,
            "status": "Name:\tpython3\nUid:\t1000\t1000\nNSpid:\t77\t5\n",
            "stat": "77 (a) b) S " + " ".join(["0"] * 18) + " 12300 0 0\n",
            "mountinfo": "\n".join(lines) + "\n",
        }.items():
            (self.directory / name).write_text(text)
        for process, target in (("77", "net:[4026531840]"), ("self", "net:[4026531840]")):
            (root / "proc" / process / "ns" / "net").symlink_to(target)
        self.root = root

    def read(self) -> NcclProcess | None:
        answer = RasCalls(RootedFiles(self.root)).call("process", 77)
        return None if answer is None else NcclProcess(**answer)


def mapped(path: str) -> str:
    return f"7f00-7f01 r-xp 00000000 08:01 7 {' ' * 20}/usr/lib/libc.so.6\n7f02-7f03 r-xp 0 08:01 8 {path}\n"


def test_the_version_is_that_in_the_name_of_the_library(tmp_path: Path) -> None:
    maps = mapped("/usr/lib/x86_64-linux-gnu/libnccl.so.2.29.3")
    found = CopiedProcess(tmp_path, maps).read()
    ticks = os.sysconf("SC_CLK_TCK")
    assert found == NcclProcess("2.29.3", 12300 * 10**9 // ticks, has_same_network=True)


@pytest.mark.parametrize(
    ("mounts", "version"),
    [
        ("/ / overlay", "2.28.9"),
        ("/ / overlay\n/ /venv fuse.sshfs", ""),
        ("/ / overlay\n/ /venv/lib\\040x fuse", "2.28.9"),
    ],
)
def test_the_version_of_a_wheel_is_that_of_its_package(
    tmp_path: Path, mounts: str, version: str
) -> None:
    packages = "/venv/lib/python3.12/site-packages"
    process = CopiedProcess(tmp_path, mapped(f"{packages}/nvidia/nccl/lib/libnccl.so.2"), mounts)
    for name in ("nvidia_nccl_cu12-2.28.9.dist-info", "nvidia_nccl_cu12", "torch-2.10.dist-info"):
        (process.directory / "root" / packages[1:] / name).mkdir(parents=True)
    found = process.read()
    assert found is not None
    assert found.version == version


def test_another_network_namespace_is_detected(tmp_path: Path) -> None:
    process = CopiedProcess(tmp_path, mapped("/usr/lib/libnccl.so.2.29.3"))
    network = process.directory / "ns" / "net"
    network.unlink()
    network.symlink_to("net:[4026532999]")
    found = process.read()
    assert found is not None
    assert not found.has_same_network
