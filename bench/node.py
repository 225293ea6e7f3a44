"""An agent on a bench host: the real agent, on files of a generated tree and recorded answers.

Counter files are real files. The answers of NVML and of the ethtool interface come from a simulated
node and cost next to nothing, because the driver's time is not the agent's. Also the way to run the
agent at periods shorter than its settings allow. Run as `python -m bench.node`.
"""

from __future__ import annotations

import asyncio
import errno
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain, cycle
from pathlib import Path

import click
import msgspec

from railscope import capture, log_output, reading
from railscope.timestamps import SECOND_NS
from railscope_agent import config
from railscope_agent.host import (
    FileGroup,
    HostWrapper,
    Json,
    live_host,
    nvml_gpm,
    recorded_calls,
)
from railscope_agent.sampling.meter import ProcessMeter
from railscope_agent.service import Agent

_LIBRARY_NOT_FOUND = 12
_DRIVERS = {"nvml", "ethtool"}
_STATISTICS = "ethtool.statistics("
_NOT_RECORDED = (3, 0)
ANSWERS_BYTES = "answers_bytes"
"""Memory of the recorded answers, beside the call counts."""
SHORTEST_SECONDS = nvml_gpm.SHORTEST_NS / SECOND_NS


class BenchHost(HostWrapper):
    """A tree of files, with canned answers of the drivers, and a count of all host calls."""

    def __init__(self, root: Path, answers: Path | None) -> None:
        super().__init__(live_host.LiveHost(root))
        self.driver_calls = self.files = self.preads = 0
        self.batch_bytes = 0
        """Memory of the assembled answers of batches: lists of values that the recorded answers contain."""
        moments = msgspec.msgpack.decode(answers.read_bytes()) if answers else []
        self.interfaces = _interfaces(moments)
        self._moments = moments
        self._answers = {key: _turns(key, moments) for key in (moments[0] if moments else ())}
        self._keys: dict[tuple[int | str, ...], Iterator[Json]] = {}

    def read(self, path: str) -> bytes:
        """Return the content of a small file."""
        self.files += 1
        return self._host.read(path)

    def names(self, path: str) -> list[str]:
        """Return the entries of a directory; interfaces are those with recorded answers."""
        self.files += 1
        if path == "/sys/class/net" and self.interfaces:
            return self.interfaces
        return self._host.names(path)

    def resolve(self, path: str) -> str:
        """Return a path with all links followed."""
        self.files += 1
        return self._host.resolve(path)

    def open_file_group(self, paths: Sequence[str]) -> FileGroup:
        """Return a group of files; each file of a read counts as one call."""
        return _CountedFile(self, self._host.open_file_group(paths), len(paths))

    def call(self, host_interface: str, function: str, *arguments: int | str) -> Json:
        """Return the next recorded answer of a call."""
        self.driver_calls += 1
        turns = self._keys.get((function, *arguments))
        if turns is None:
            if host_interface not in _DRIVERS:
                return self._host.call(host_interface, function, *arguments)
            turns = self._turns(host_interface, function, arguments)
            if turns is None:
                if host_interface == "nvml":
                    raise capture.NvmlError(_LIBRARY_NOT_FOUND)
                raise OSError(errno.EOPNOTSUPP, function)
            self._keys[function, *arguments] = turns
        answer = next(turns)
        return capture.result(answer) if isinstance(answer, dict) else answer

    def _turns(
        self, host_interface: str, function: str, arguments: tuple[int | str, ...]
    ) -> Iterator[Json] | None:
        """Return the repeating answers to a call; those of a batch are assembled once."""
        if function not in recorded_calls.BATCH_FUNCTIONS:
            return self._answers.get(recorded_calls.call_key(host_interface, function, arguments))
        device, *entries = arguments
        keys = [
            recorded_calls.call_key(host_interface, function, (device, entry)) for entry in entries
        ]
        pairs = [[moment.get(key, _NOT_RECORDED) for key in keys] for moment in self._moments]
        answers = [[[v for _, v in batch], [code for code, _ in batch]] for batch in pairs]
        lists = chain.from_iterable((answer, *answer) for answer in answers)
        self.batch_bytes += sum(map(sys.getsizeof, lists))
        return cycle(answers)


class _CountedFile:
    def __init__(self, host: BenchHost, files: FileGroup, count: int) -> None:
        self._host, self._files, self._count = host, files, count

    def read_into(self, values: list[int], reasons: bytearray, start: int) -> None:
        self._host.preads += self._count
        self._files.read_into(values, reasons, start)

    def text(self, index: int) -> bytes:
        self._host.preads += 1
        return self._files.text(index)

    def texts(self) -> list[bytes | reading.Absent]:
        self._host.preads += self._count
        return self._files.texts()

    def close(self) -> None:
        self._files.close()


def _interfaces(moments: list[dict[str, Json]]) -> list[str]:
    keys = [key for key in (moments[0] if moments else ()) if key.startswith(_STATISTICS)]
    return sorted(key.removeprefix(_STATISTICS).rstrip(")") for key in keys)


def _turns(key: str, moments: list[dict[str, Json]]) -> Iterator[Json]:
    """Repeat all answers to one call; statistics share one list of names."""
    answers = [moment[key] for moment in moments]
    if key.startswith(_STATISTICS):
        for answer in answers:
            if "names" in answer:
                answer["names"] = answers[0]["names"]
    return cycle(answers)


def as_often(period_seconds: float) -> config.SourcePeriods:
    """Return the default periods, scaled so that a source with a period of one second gets this period."""
    defaults = msgspec.structs.asdict(config.SourcePeriods())
    periods = config.SourcePeriods(
        **{name: period * period_seconds for name, period in defaults.items()}
    )
    return msgspec.structs.replace(
        periods, gpu_activity=max(periods.gpu_activity, SHORTEST_SECONDS)
    )


@click.command()
@click.option("--root", type=click.Path(path_type=Path), required=True)
@click.option("--answers", type=click.Path(path_type=Path))
@click.option("--listen", required=True)
@click.option("--collector", "collector_url", default="")
@click.option("--state-directory", required=True)
@click.option(
    "--period",
    type=float,
    default=1.0,
    help="Period in seconds of sources with a default of 1 s; other periods in proportion.",
)
@click.option(
    "--rdma-period", type=float, help="Period of the RDMA source in seconds, if different."
)
@click.option("--push-seconds", type=float, default=config.CollectorLink().push_seconds)
@click.option(
    "--calls", type=click.Path(path_type=Path), help="File that the call counts are written to."
)
def main(  # noqa: PLR0913 - flags
    *,
    root: Path,
    answers: Path | None,
    listen: str,
    collector_url: str,
    state_directory: str,
    period: float,
    rdma_period: float | None,
    push_seconds: float,
    calls: Path | None,
) -> None:
    """Run the agent on a bench host until stopped."""
    log_output.configure_logs("warning")
    meter = ProcessMeter()
    before = meter.resident_bytes()
    host = BenchHost(root, answers)
    meter.release_memory()
    answers_bytes = max(meter.resident_bytes() - before, 0)  # a node has no recorded answers
    periods = as_often(period)
    if rdma_period:
        periods = msgspec.structs.replace(periods, rdma=rdma_period)
    settings = config.AgentSettings(
        bursts=config.BurstSettings(enabled=False),
        node="bench-node",
        listen=listen,
        state_directory=state_directory,
        period_seconds=periods,
        budget=config.BudgetSettings(
            cpu_ratio=0
        ),  # the measurement is of the cost at given periods
        metrics=config.MetricsSettings(
            detail="full"
        ),  # the comparison exposes every value, reads included
        collector=config.CollectorLink(url=collector_url, token="bench", push_seconds=push_seconds),  # noqa: S106 - no secret
    )
    asyncio.run(_run_until_stopped(Agent(settings, host)))
    if calls:
        counts = {"driver": host.driver_calls, "files": host.files, "pread": host.preads}
        counts[ANSWERS_BYTES] = answers_bytes + host.batch_bytes
        calls.write_bytes(msgspec.json.encode(counts))


async def _run_until_stopped(agent: Agent) -> None:
    running = asyncio.ensure_future(agent.run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    with suppress(asyncio.CancelledError):
        await running


if __name__ == "__main__":
    main()
