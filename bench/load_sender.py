"""The process that sends a load to a collector.

`sending` starts `python -m bench.load_sender PORT`, which reads the load and then commands from standard input, one JSON document per line
each, with a JSON answer: `prepare` builds the requests of some turns, `send` sends the next ones. Like an agent, it sends the schemas
that the collector requests, and then the frames again.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from bench import harness, http_requests
from bench.load import Envelopes, Load

CONNECTIONS = 32
_CONFLICT, _NOT_NOW = 409, 503
_MAX_TRIES, _PAUSE_SECONDS = 50, 0.2


class PreparedTurns(msgspec.Struct, frozen=True):
    """Size of the requests of some turns."""

    requests: int
    bytes_per_value: float


class SentTurns(msgspec.Struct, frozen=True):
    """Result of sending some turns."""

    seconds: float
    values: int
    reconnections: int
    latencies: list[float]
    """Seconds until each envelope was acknowledged, in ascending order."""

    def quantile(self, share: float) -> float:
        """Return a quantile of the latencies."""
        return self.latencies[min(len(self.latencies) - 1, int(len(self.latencies) * share))]


Answer = TypeVar("Answer", PreparedTurns, SentTurns)


class Sender:
    """The process that sends a load."""

    def __init__(
        self, load: Load, process: subprocess.Popen[bytes], server: harness.ServerProcess
    ) -> None:
        self._process, self._server = process, server
        self._write(msgspec.json.encode(load))
        self.reconnections = 0

    def prepare(self, turn: int, turns: int = 1) -> PreparedTurns:
        """Build the requests of some turns."""
        return self._execute(PreparedTurns, "prepare", turn, turns)

    def send(self, turns: int = 0, over_seconds: float = 0.0) -> SentTurns:
        """Send the next prepared turns, or all of them: at once, or spread over some seconds."""
        sent = self._execute(SentTurns, "send", turns, over_seconds)
        self.reconnections += sent.reconnections
        return sent

    def send_turn(self, turn: int) -> SentTurns:
        """Build the requests of a turn, and send them."""
        self.prepare(turn)
        return self.send()

    def _execute(self, answer: type[Answer], *command: str | float) -> Answer:
        self._write(msgspec.json.encode(command))
        line = self._process.stdout.readline() if self._process.stdout else b""
        if not line:
            message = (
                "a command to the load generator failed: it has ended; its error is above. The last"
                f" output of the collector:\n{self._server.log_end()}"
            )
            raise harness.BenchError(message)
        return msgspec.json.decode(line, type=answer)

    def _write(self, line: bytes) -> None:
        if self._process.stdin:
            self._process.stdin.write(line + b"\n")
            self._process.stdin.flush()


@contextmanager
def sending(load: Load, server: harness.ServerProcess) -> Iterator[Sender]:
    """Yield a process that sends a load to a collector."""
    with subprocess.Popen(  # noqa: S603 - the bench starts its own parts
        [sys.executable, "-m", "bench.load_sender", str(server.port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        try:
            yield Sender(load, process, server)
        finally:
            process.terminate()


class _Requests(Sequence[http_requests.Request]):
    """The requests of some turns; each is completed when it is sent."""

    def __init__(self, envelopes: Envelopes, first: int, bodies: list[bytes]) -> None:
        self._envelopes, self._first, self._bodies = envelopes, first, bodies

    def __len__(self) -> int:
        return len(self._bodies)

    def __getitem__(self, position: Any) -> Any:
        turn, number = divmod(position, self._envelopes.load.nodes)
        return self._envelopes.request(number, self._first + turn, self._bodies[position])


class _Generator:
    """Executes the commands of a `Sender`."""

    def __init__(self, port: int, load: Load) -> None:
        self._port, self._load = port, load
        self._envelopes = Envelopes(load)
        self._turn, self._bodies = 0, list[bytes]()
        self._requests = _Requests(self._envelopes, 0, [])

    def prepare(self, turn: int, turns: int) -> PreparedTurns:
        numbers = range(turn, turn + turns)
        self._turn = turn
        self._bodies = [body for number in numbers for body in self._envelopes.bodies(number)]
        values = len(self._bodies) * self._load.values_per_turn
        return PreparedTurns(len(self._bodies), sum(map(len, self._bodies)) / max(values, 1))

    def send(self, turns: int, over_seconds: float) -> SentTurns:
        end = turns * self._load.nodes or len(self._bodies)
        self._requests = _Requests(self._envelopes, self._turn, self._bodies[:end])
        self._turn, self._bodies = self._turn + turns, self._bodies[end:]
        cost = http_requests.send_all(
            self._port, self._requests, CONNECTIONS, over_seconds=over_seconds, answer=self._again
        )
        values = len(self._requests) * self._load.values_per_turn
        return SentTurns(cost.elapsed_seconds, values, cost.reconnections, sorted(cost.latencies))

    def _again(
        self, connection: http_requests.Connection, position: int, status: int, content: bytes
    ) -> None:
        """Send the requested schemas, then the frames again; retry later if the collector requests it."""
        number = position % self._load.nodes
        for _ in range(_MAX_TRIES):
            if status // 100 == 2:  # noqa: PLR2004 - HTTP's success
                return
            if status == _CONFLICT:
                body = self._envelopes.schemas(number, json.loads(content)["unknown_schemas"])
                status, content = connection.exchange(self._envelopes.request(number, 0, body))
                if status == _NOT_NOW:
                    time.sleep(_PAUSE_SECONDS)
            elif status == _NOT_NOW:
                time.sleep(_PAUSE_SECONDS)
            else:
                break
            status, content = connection.exchange(self._requests[position])
        message = f"sending an envelope failed: status {status}: {content[:200]!r}"
        raise harness.BenchError(message)


def main() -> None:
    """Execute commands until standard input ends."""
    load = msgspec.json.decode(sys.stdin.buffer.readline(), type=Load)
    generator = _Generator(int(sys.argv[1]), load)
    commands = {"prepare": generator.prepare, "send": generator.send}
    for line in sys.stdin.buffer:
        command, *arguments = json.loads(line)
        sys.stdout.buffer.write(msgspec.json.encode(commands[command](*arguments)) + b"\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
