"""The load generator: its own process, controlled by one command per line.

Run as `python -m bench.loader PORT NODES STREAMS FIRST`. Commands on standard input, one JSON answer
each: `prepare FIRST COUNT` builds the requests of some turns, `post CONNECTIONS TURNS` sends the
next ones, or all, as fast as they are acknowledged, `periodic CONNECTIONS SECONDS` spreads all over
time. Like an agent, it sends the schemas that the collector requests, and then the frames again.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from bench import harness, http_requests, load
from railscope.wire import CONTENT_TYPE

PATH = "/v1/frames"
_CONFLICT, _NOT_NOW = 409, 503
_MAX_TRIES = 50
_PAUSE_SECONDS = 0.2


class PreparedTurns(Sequence[http_requests.Request]):
    """The requests of some turns; each carries the node's clock at the time of the lookup."""

    def __init__(self, nodes: load.LoadNodes, first: int, bodies: list[bytes]) -> None:
        self._nodes, self._first, self.bodies = nodes, first, bodies

    def split(self, turns: int) -> tuple[PreparedTurns, PreparedTurns]:
        """Return the first turns, and the others."""
        end = turns * self._nodes.count
        return (
            PreparedTurns(self._nodes, self._first, self.bodies[:end]),
            PreparedTurns(self._nodes, self._first + turns, self.bodies[end:]),
        )

    def __len__(self) -> int:
        return len(self.bodies)

    def __getitem__(self, position: Any) -> Any:
        turn, number = divmod(position, self._nodes.count)
        body, number = self.bodies[position], self._nodes.first + number
        return load.head(number, self._first + turn, PATH, CONTENT_TYPE, len(body)), body


class LoadGenerator:
    """Prepares and sends requests."""

    def __init__(self, port: int, nodes: load.LoadNodes) -> None:
        self._port = port
        self._nodes = nodes
        self._requests = PreparedTurns(nodes, 0, [])
        self._later = self._requests

    def do(self, command: str, *arguments: str) -> dict[str, Any]:
        """Execute one command."""
        if command == "prepare":
            return self._prepare(int(arguments[0]), int(arguments[1]))
        periodic, turns = command == "periodic", len(self._later)
        if not periodic and len(arguments) > 1:
            turns = int(arguments[1])
        self._requests, self._later = self._later.split(turns)
        over = float(arguments[1]) if periodic else 0.0
        posted = http_requests.post_all(
            self._port, self._requests, int(arguments[0]), over_seconds=over, answer=self._again
        )
        ordered = sorted(posted.latencies)
        return {
            "seconds": posted.elapsed_seconds,
            "values": len(self._requests) * self._nodes.values_per_turn,
            "reconnections": posted.reconnections,
            "p50": ordered[len(ordered) // 2],
            "p99": ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)],
            "worst": ordered[-1],
            "latencies": ordered,
        }

    def _prepare(self, first: int, count: int) -> dict[str, Any]:
        turns = range(first, first + count)
        bodies = [body for turn in turns for body in self._nodes.bodies(turn)]
        self._later = PreparedTurns(self._nodes, first, bodies)
        values = len(bodies) * self._nodes.values_per_turn
        return {"requests": len(bodies), "bytes_per_value": sum(map(len, bodies)) / max(values, 1)}

    def _again(
        self, wire: http_requests.PostConnection, position: int, status: int, content: bytes
    ) -> None:
        """Send the requested schemas, then the frames again; retry later if the collector requests it."""
        number = position % self._nodes.count
        for _ in range(_MAX_TRIES):
            if status // 100 == 2:  # noqa: PLR2004 - HTTP's success
                return
            if status == _CONFLICT:
                body = self._nodes.schemas(number, json.loads(content)["unknown_schemas"])
                head = load.head(self._nodes.first + number, 0, PATH, CONTENT_TYPE, len(body))
                status, content = wire.post((head, body))
                if status == _NOT_NOW:
                    time.sleep(_PAUSE_SECONDS)
            elif status == _NOT_NOW:
                time.sleep(_PAUSE_SECONDS)
            else:
                break
            status, content = wire.post(self._requests[position])
        message = f"sending an envelope failed: status {status}: {content[:200]!r}"
        raise harness.BenchError(message)


def main() -> None:
    """Execute commands until standard input ends."""
    port, count, first = (int(sys.argv[position]) for position in (1, 2, 4))
    loader = LoadGenerator(port, load.LoadNodes(load.load(Path(sys.argv[3])), count, first))
    for line in sys.stdin:
        click.echo(json.dumps(loader.do(*line.split())))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
