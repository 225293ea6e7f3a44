"""Real collectors: one alone, and three with one database."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bench import harness, load
from railscope.catalog import collector as catalog
from railscope_collector.access.credentials import digest_token
from railscope_simulator.demo.process import free_port

COMMAND = [sys.executable, "-m", "railscope", "collector", "run"]
_POLL_SECONDS = 0.2
_REFRESH_LIMIT_SECONDS, _CLUSTER_LIMIT_SECONDS = 180.0, 600.0
_VIEWS = re.compile(r"^railscope_collector_views_refresh_seconds (\S+)", re.MULTILINE)


def write_tokens(path: Path, nodes: Iterable[str], collectors: str = "") -> None:
    """Write the digests of the tokens of nodes, and of the one that collectors share."""
    lines = ["[nodes]", *(f'"{node}" = "{digest_token(load.token(node))}"' for node in nodes)]
    if collectors:
        lines += ["[collectors]", f'others = "{digest_token(collectors)}"']
    path.write_text("\n".join([*lines, ""]), encoding="ascii")


def start_collector(nodes: int, directory: Path, **settings: str) -> harness.ServerProcess:
    """Return a collector with the tokens of the nodes of a load, and with settings by the names of their variables."""
    port, tokens = free_port(), directory / f"tokens-{nodes}.toml"
    write_tokens(tokens, map(load.node_name, range(nodes)))
    settings = {
        "ALLOW_ANONYMOUS_READ": "true",
        "LISTEN": f"{harness.HOST}:{port}",
        "TOKENS_FILE": str(tokens),
        "STATE_DIRECTORY": str(directory / f"collector-{nodes}"),
        **settings,
    }
    return _start(port, directory / f"collector-{nodes}.log", settings)


def _start(port: int, log: Path, settings: dict[str, str]) -> harness.ServerProcess:
    environment = {f"RAILSCOPE_COLLECTOR_{name}": text for name, text in settings.items()}
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


# Three collectors ----------------------------------------------------------------------------------

COLLECTORS = ("a", "b", "c")
HEAD = COLLECTORS[0]
_TOKEN = "token-of-the-collectors"  # noqa: S105 - of the processes of this bench
_QUIET_SECONDS = 120.0
_LAG = re.compile(rf'^{catalog.CLUSTER_LAG.name}{{collector="(\w+)"}} (\S+)', re.MULTILINE)


class HeadPart(NamedTuple):
    """Part of a collector in the views of the head."""

    nodes: int
    is_included: bool
    complete_ns: float
    """Time up to which the head has all of its records."""


@dataclass
class CollectorCluster:
    """Three collectors with one database; the first one is the head."""

    url: str
    directory: Path
    stack: ExitStack
    view_seconds: float
    """Time between two refreshes of the views; evidence is written after so many seconds, but with no shorter pause than usual."""
    servers: dict[str, harness.ServerProcess] = field(default_factory=dict)
    shown: dict[str, HeadPart] = field(default_factory=dict)
    """Parts of the views when they were last read."""

    def start(self, nodes: Iterable[str]) -> None:
        """Start all, the head first, with the tokens of some nodes."""
        tokens, token = self.directory / "tokens.toml", self.directory / "token"
        write_tokens(tokens, nodes, _TOKEN)
        token.write_text(_TOKEN, encoding="ascii")
        for name in COLLECTORS:
            port = free_port()
            settings = {
                "ALLOW_ANONYMOUS_READ": "true",
                "LISTEN": f"{harness.HOST}:{port}",
                "TOKENS_FILE": str(tokens),
                "STATE_DIRECTORY": str(self.directory / f"collector-{name}"),
                "LEDGER__URL": self.url,
                "AUDIT__REQUIRED_WITNESSES": "0",
                "STALE_SECONDS": "86400",
                "VIEW_REFRESH_SECONDS": str(self.view_seconds),
                "METERING__QUIET_SECONDS": str(max(_QUIET_SECONDS, self.view_seconds)),
                "CLUSTER__ADVERTISED_URL": f"http://{harness.HOST}:{port}",
                "CLUSTER__NAME": name,
                "CLUSTER__TOKEN_FILE": str(token),
            }
            server = _start(port, self.directory / f"{name}.log", settings)
            self.servers[name] = self.stack.enter_context(server)
            self.wait(partial(self._is_included, name))

    def _is_included(self, name: str) -> bool:
        """True if the head has applied the snapshot of a collector."""
        log = (self.directory / f"{HEAD}.log").read_text(encoding="utf-8")
        return f"collector_included collector={name} " in log

    def wait(self, condition: Callable[[], bool]) -> float:
        """Wait until a condition is true; return the seconds."""
        started = time.monotonic()
        while not condition():
            if time.monotonic() > started + _CLUSTER_LIMIT_SECONDS:
                logs = "\n".join(server.log_end() for server in self.servers.values())
                message = f"no result within {_CLUSTER_LIMIT_SECONDS:g} s; the head shows {self.shown}; ends of the logs:\n{logs}"
                raise harness.BenchError(message)
            time.sleep(_POLL_SECONDS)
        return time.monotonic() - started

    def wait_for_nodes(self, head: str, **counts: int) -> float:
        """Wait until the head shows these numbers of nodes of collectors; return the seconds."""

        def is_shown() -> bool:
            self.shown = self._parts(head)
            included = {name: each.nodes for name, each in self.shown.items() if each.is_included}
            return all(included.get(name) == count for name, count in counts.items())

        return self.wait(is_shown)

    def wait_for_views(self) -> None:
        """Wait until the views of the head contain everything that was received until now."""
        sent_ns = time.time_ns()

        def is_applied() -> bool:
            self.shown = self._parts(HEAD)
            present = [
                each.complete_ns for name, each in self.shown.items() if name in self.servers
            ]
            return len(present) == len(self.servers) and min(present) > sent_ns

        self.wait(is_applied)

    def _parts(self, name: str) -> dict[str, HeadPart]:
        """Return the part of each collector in the views of the head; none of another collector."""
        with suppress(OSError, ValueError):
            document = json.loads(harness.http_get(self.servers[name].port, "/api/v1/cluster"))
            timestamp_ns = document.get("timestamp_ns", 0)
            return {
                each["name"]: HeadPart(
                    each["nodes"],
                    each["is_included"],
                    timestamp_ns - 1e9 * (each["lag_seconds"] or 0),
                )
                for each in document.get("collectors", {}).get("parts", [])
            }
        return {}

    def wait_until_applied(self, names: Sequence[str]) -> None:
        """Wait until the head has applied everything that collectors have acknowledged until now.

        Read from its metrics, which cost it little: it is measured meanwhile.
        """
        acknowledged_ns = time.time_ns()

        def is_applied() -> bool:
            asked_ns = time.time_ns()
            lags = dict(_LAG.findall(harness.http_get(self.servers[HEAD].port, "/metrics")))
            applied_ns = [asked_ns - 1e9 * float(lags.get(name, "inf")) for name in names]
            return min(applied_ns) > acknowledged_ns

        self.wait(is_applied)
