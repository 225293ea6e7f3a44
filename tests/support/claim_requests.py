"""A claims endpoint in its own thread, and requests to it."""

from __future__ import annotations

import asyncio
import http.client
import json
import queue
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

from support.machine import FakeHost
from support.tenancy import PolledTenancy, cut, node

from railscope_agent.config import TenancySettings
from railscope_agent.endpoint.claims_endpoint import ClaimsEndpoint
from railscope_agent.health.node_health import NodeHealth


class UnixSocketConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=60)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(self.path))


def ask(where: Path, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """Send a request over a new connection; return the status and the JSON or text of the answer."""
    content = body if isinstance(body, bytes) or body is None else json.dumps(body)
    with closing(UnixSocketConnection(where)) as connection:
        connection.request(method, path, content)
        answer = connection.getresponse()
        received = answer.read()
        is_json = received.startswith(b"{")
        return answer.status, json.loads(received) if is_json else received.decode()


class ServedEndpoint:
    """A claims endpoint in its own thread, with its tenancy."""

    def __init__(self, directory: Path, host: FakeHost | None = None) -> None:
        self.host = host or node(3)
        cut(self.host, 2, [("3g.40gb", 0, 4), ("3g.40gb", 4, 4)])
        self.looked = PolledTenancy(self.host)
        self.looked.tenancy.remember(directory, self.host.boot_id)
        self.endpoint = ClaimsEndpoint(
            TenancySettings(),
            directory,
            self.looked.tenancy,
            self.host.clock,
            NodeHealth(dict),
        )
        self.path = directory / "claims.sock"


class Served(Protocol):
    """Something with a claims endpoint."""

    endpoint: ClaimsEndpoint


ServedT = TypeVar("ServedT", bound=Served)


@contextmanager
def serving(served: ServedT) -> Iterator[ServedT]:
    started: queue.Queue[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = queue.Queue()

    async def serve() -> None:
        stop = asyncio.Event()
        await served.endpoint.start()
        started.put((asyncio.get_running_loop(), stop))
        await stop.wait()
        await served.endpoint.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    loop, stop = started.get(timeout=60)
    try:
        yield served
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
