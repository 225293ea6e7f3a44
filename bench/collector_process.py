"""A collector under test, as a process that counts the processor time of its event loop.

`start_collector` starts `python -m bench.collector_process FILE collector run`: a real collector, which at its end writes the loop time of
each acknowledged request of frames to the file.

The loop time of a request is the processor time of the event loop from the begin of the request to its answer: what this request took,
and what else the loop did before it answered. While the collector keeps up, it depends less on the disk and on other programs than wall time does.
"""

from __future__ import annotations

import atexit
import re
import sys
import time
from http import HTTPStatus
from pathlib import Path

import msgspec
from aiohttp import web

from bench import harness, load
from railscope import cli
from railscope_collector.access.credentials import Credential, digest_token
from railscope_collector.http.ingest import Ingest

_CONNECTIONS = 16_384
"""A connection of each node, all from one address; a collector accepts fewer by default."""
_POLL_SECONDS = 0.2
_REFRESH_LIMIT_SECONDS = 180.0
_VIEWS = re.compile(r"^railscope_collector_views_refresh_seconds (\S+)", re.MULTILINE)


class LoopTime(msgspec.Struct, frozen=True):
    """Loop time of one request of frames."""

    answered: float
    """Seconds of the monotonic clock."""
    seconds: float


def loop_times_file(nodes: int, directory: Path) -> Path:
    """Return the file that a collector writes at its end."""
    return directory / f"loop-times-{nodes}"


def start_collector(nodes: int, directory: Path) -> harness.ServerProcess:
    """Return a collector with the tokens of the nodes of a load."""
    port, tokens = harness.free_port(), directory / f"tokens-{nodes}.toml"
    names = map(load.node_name, range(nodes))
    lines = ["[nodes]", *(f'"{name}" = "{digest_token(load.token(name))}"' for name in names)]
    tokens.write_text("\n".join([*lines, ""]), encoding="ascii")
    settings = {
        "ALLOW_ANONYMOUS_READ": "true",
        "LIMITS__CONNECTIONS": str(_CONNECTIONS),
        "LIMITS__CONNECTIONS_PER_ADDRESS": str(_CONNECTIONS),
        "LISTEN": f"{harness.HOST}:{port}",
        "TOKENS_FILE": str(tokens),
        "STATE_DIRECTORY": str(directory / f"collector-{nodes}"),
    }
    environment = {f"RAILSCOPE_COLLECTOR_{name}": text for name, text in settings.items()}
    counted = str(loop_times_file(nodes, directory))
    command = [sys.executable, "-m", "bench.collector_process", counted, "collector", "run"]
    log = directory / f"collector-{nodes}.log"
    return harness.ServerProcess(command, port=port, log=log, environment=environment)


def read_loop_times(nodes: int, directory: Path, begin: float, end: float) -> list[float]:
    """Return the loop times of the requests that an ended collector answered in a time, in ascending order."""
    content = loop_times_file(nodes, directory).read_bytes()
    times = msgspec.msgpack.decode(content, type=list[LoopTime])
    return sorted(each.seconds for each in times if begin <= each.answered <= end)


def newest_refresh(server: harness.ServerProcess) -> float:
    """Return the duration in seconds of the newest refresh of all views."""
    match = _VIEWS.search(harness.http_get(server.port, "/metrics"))
    return float(match[1]) if match else 0.0


def wait_for_refreshes(server: harness.ServerProcess, count: int) -> list[float]:
    """Return the duration in seconds of each of the next refreshes of all views, as they end."""
    refreshes = [newest_refresh(server)]
    until = time.monotonic() + _REFRESH_LIMIT_SECONDS
    while len(refreshes) <= count:
        time.sleep(_POLL_SECONDS)
        newest = newest_refresh(server)
        if newest != refreshes[-1]:
            refreshes.append(newest)
        elif time.monotonic() > until:
            done = len(refreshes) - 1
            message = f"refreshes in {_REFRESH_LIMIT_SECONDS:g} s: {done}: expected {count}"
            raise harness.BenchError(message)
    return refreshes[1:]


def _count_loop_times(file: Path) -> None:
    """Count the loop time of each acknowledged request; write them at the end of the process."""
    times: list[LoopTime] = []
    handle = Ingest.handle

    async def counted(self: Ingest, request: web.Request, credential: Credential) -> web.Response:
        begin = time.thread_time()
        response = await handle(self, request, credential)
        if response.status == HTTPStatus.OK:
            times.append(LoopTime(time.monotonic(), time.thread_time() - begin))
        return response

    Ingest.handle = counted  # type: ignore[method-assign]  # the bench counts in it
    atexit.register(lambda: file.write_bytes(msgspec.msgpack.encode(times)))


def main() -> None:
    """Run a collector that counts."""
    _count_loop_times(Path(sys.argv.pop(1)))
    cli.root()


if __name__ == "__main__":
    main()
