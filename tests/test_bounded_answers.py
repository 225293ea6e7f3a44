"""Every HTTP client ends in time and within its bound of bytes, whatever the server sends."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from pathlib import Path

import click
import pytest
from structlog.testing import capture_logs
from support.waiting import wait_until

from railscope.catalog import collector as catalog
from railscope_agent.commands.agent_client import AgentClient
from railscope_agent.host.kubelet import call_kubelet
from railscope_agent.host.kubelet_pods import read_pod_list
from railscope_agent.shipping.http_client import HttpClient
from railscope_collector.config import InfluxSettings
from railscope_collector.fleet.view_cells import View, ViewCell
from railscope_collector.sinks.influx import InfluxSink
from railscope_collector.view_refresh import CollectorViews

MAX_BYTES = 100_000
SECONDS = 0.5
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
PIECE = b"x" * 10_000
PING = b"\x00\x00\x08\x06\x00\x00\x00\x00\x00" + bytes(8)
SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
ANSWERS: dict[str, Callable[[], Iterator[bytes]]] = {
    "a body without end": lambda: chain([HEAD + b"\r\n"], repeat(PIECE)),
    "chunks without end": lambda: chain(
        [HEAD + b"Transfer-Encoding: chunked\r\n\r\n"], repeat(b"2710\r\n" + PIECE + b"\r\n")
    ),
    "informational answers without end": lambda: repeat(b"HTTP/1.1 100 Continue\r\n\r\n" * 100),
    "headers without end": lambda: chain([HEAD], repeat(b"X-More: " + PIECE + b"\r\n")),
    "a length beyond all memory": lambda: chain(
        [HEAD + b"Content-Length: 999999999999999\r\n\r\n"], repeat(PIECE)
    ),
    "a chunk beyond all memory": lambda: chain(
        [HEAD + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffff\r\n"], repeat(PIECE)
    ),
    "nothing": lambda: iter(()),
    "one byte at a time": lambda: chain([HEAD + b"Content-Length: 90000\r\n\r\n"], repeat(b" ")),
    "half a head": lambda: iter((HEAD,)),
    "pings without end": lambda: chain([SETTINGS], repeat(PING * 500)),
}
SLOW = {"one byte at a time"}
COMMON = {"a body without end", "headers without end", "a chunk beyond all memory"}
"""Answers of `make test`; the others end by the same bounds."""


class FixedServer:
    """A server that answers every request with the same bytes, and never closes."""

    def __init__(
        self, family: socket.AddressFamily, address: tuple[str, int] | str, what: str
    ) -> None:
        self._listening = socket.socket(family)
        self._listening.bind(address)
        self._listening.listen(16)
        self._what = what
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()
        self.address = self._listening.getsockname()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                thread = threading.Thread(target=self._serve, args=(connection,))
                self._threads.append(thread)
                thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(0.1)
            connection.recv(65536)
            for piece in ANSWERS[self._what]():
                while True:
                    if self._ended.is_set():
                        return
                    try:
                        connection.sendall(piece)
                        break
                    except TimeoutError:
                        return  # the client reads no more
                if self._what in SLOW:
                    self._ended.wait(0.02)
            self._ended.wait()

    def close(self) -> None:
        """End all connections."""
        self._ended.set()
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for thread in self._threads:
            thread.join()


@pytest.fixture(
    params=[
        pytest.param(name, marks=[] if name in COMMON else pytest.mark.thorough) for name in ANSWERS
    ]
)
def what(request: pytest.FixtureRequest) -> str:
    """Response of the server."""
    return str(request.param)


@pytest.fixture
def url(what: str) -> Iterator[str]:
    """A server on loopback."""
    server = FixedServer(socket.AF_INET, ("127.0.0.1", 0), what)
    yield f"http://127.0.0.1:{server.address[1]}"
    server.close()


@pytest.fixture
def unix(what: str, tmp_path: Path) -> Iterator[Path]:
    """A server on a Unix socket."""
    server = FixedServer(socket.AF_UNIX, str(tmp_path / "s"), what)
    yield tmp_path / "s"
    server.close()


def test_the_agent_reads_pods_from_the_kubelet_within_bounds(url: str) -> None:
    with pytest.raises(OSError):  # noqa: PT011 - which one it is depends on the answer
        read_pod_list(f"{url}/pods", "", "", SECONDS, MAX_BYTES)


def test_the_agent_reads_devices_from_the_kubelet_within_bounds(unix: Path) -> None:
    with pytest.raises(OSError):  # noqa: PT011 - which one it is depends on the answer
        call_kubelet(str(unix), "List", b"", SECONDS, MAX_BYTES)


def test_the_claim_command_queries_the_agent_within_bounds(unix: Path) -> None:
    client = AgentClient(str(unix), 0.0, answer_seconds=SECONDS, max_bytes=MAX_BYTES)
    with pytest.raises(click.ClickException, match="no response from the agent"):
        client.request("GET", "/claims")


async def test_the_agent_queries_its_collector_within_bounds(url: str) -> None:
    client = HttpClient(url, None, SECONDS, MAX_BYTES)
    with pytest.raises(OSError):  # noqa: PT011 - which one it is depends on the answer
        await client.get({})
    await client.close()


async def test_the_collector_writes_to_influxdb_within_bounds(url: str) -> None:
    """Lines wait for the server's next response, or are dropped where it rejects them permanently."""
    cell = ViewCell(catalog.NODE_UP, ("n1",), 1.0)
    views = CollectorViews(node=View("node", 7, (cell,)))

    async def current_views() -> CollectorViews:
        return views

    sink = InfluxSink(
        InfluxSettings(url=url, period_seconds=0.1),
        current_views,
        timeout_seconds=SECONDS,
    )
    with capture_logs() as logs:
        task = asyncio.create_task(sink.run())
        await wait_until(
            lambda: task.done() or any(log["event"] == "sink_connection_failed" for log in logs),
            "the sink reports the failure",
        )
        assert not task.done()
        task.cancel()
        await asyncio.wait({task})
    assert sink.writer.written == 0
