"""A real collector, as a process."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

from bench import harness, load
from railscope_collector.access.credentials import digest_token
from railscope_simulator.demo.process import free_port

COMMAND = [sys.executable, "-m", "railscope", "collector", "run"]
_POLL_SECONDS = 0.2
_REFRESH_LIMIT_SECONDS = 180.0
_VIEWS = re.compile(r"^railscope_collector_views_refresh_seconds (\S+)", re.MULTILINE)


def start_collector(nodes: int, directory: Path, **settings: str) -> harness.ServerProcess:
    """Return a collector with the tokens of the nodes of a load, and with settings by the names of their variables."""
    port, tokens = free_port(), directory / f"tokens-{nodes}.toml"
    names = map(load.node_name, range(nodes))
    lines = ["[nodes]", *(f'"{name}" = "{digest_token(load.token(name))}"' for name in names)]
    tokens.write_text("\n".join([*lines, ""]), encoding="ascii")
    settings = {
        "ALLOW_ANONYMOUS_READ": "true",
        "LISTEN": f"{harness.HOST}:{port}",
        "TOKENS_FILE": str(tokens),
        "STATE_DIRECTORY": str(directory / f"collector-{nodes}"),
        **settings,
    }
    environment = {f"RAILSCOPE_COLLECTOR_{name}": text for name, text in settings.items()}
    log = directory / f"collector-{nodes}.log"
    return harness.ServerProcess(COMMAND, port=port, log=log, environment=environment)


def wait_for_refreshes(server: harness.ServerProcess, count: int) -> list[float]:
    """Return the duration in seconds of each of the next refreshes of all views, as they end."""
    refreshes = [_newest_refresh(server)]
    until = time.monotonic() + _REFRESH_LIMIT_SECONDS
    while len(refreshes) <= count:
        time.sleep(_POLL_SECONDS)
        newest = _newest_refresh(server)
        if newest != refreshes[-1]:
            refreshes.append(newest)
        elif time.monotonic() > until:
            done = len(refreshes) - 1
            message = f"refreshes in {_REFRESH_LIMIT_SECONDS:g} s: {done}: expected {count}"
            raise harness.BenchError(message)
    return refreshes[1:]


def _newest_refresh(server: harness.ServerProcess) -> float:
    match = _VIEWS.search(harness.http_get(server.port, "/metrics"))
    return float(match[1]) if match else 0.0
