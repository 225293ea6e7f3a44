"""An agent on a bench host: the real agent, on files of a generated tree and recorded answers.

Counter files are real files. The answers of NVML and of the ethtool interface come from a simulated
node and cost next to nothing, because the driver's time is not the agent's. Run as `python -m bench.node`.
"""

from __future__ import annotations

import asyncio
import errno
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, cycle
from pathlib import Path

import click
import msgspec

from railscope import capture, log_output
from railscope_agent import config
from railscope_agent.host import Json, live_host, recorded_host
from railscope_agent.sampling.meter import ProcessMeter
from railscope_agent.service import Agent

_LIBRARY_NOT_FOUND = 12
_DRIVERS = {"nvml", "ethtool"}
_STATISTICS = "ethtool.statistics("
_NOT_RECORDED = (3, 0)


class BenchHost(live_host.LiveHost):
    """A tree of files, with recorded answers of the drivers."""

    def __init__(self, root: Path, answers: Path) -> None:
        super().__init__(root)
        self.batch_bytes = 0
        """Memory of the assembled answers of batches: lists of values that the recorded answers contain."""
        self._moments = msgspec.msgpack.decode(answers.read_bytes())
        self.interfaces = _interfaces(self._moments[0])
        self._answers = {key: _turns(key, self._moments) for key in self._moments[0]}
        self._keys: dict[tuple[int | str, ...], Iterator[Json]] = {}

    def names(self, path: str) -> list[str]:
        """Return the entries of a directory; interfaces are those with recorded answers."""
        return self.interfaces if path == "/sys/class/net" else super().names(path)

    def call(self, host_interface: str, function: str, *arguments: int | str) -> Json:
        """Return the next recorded answer of a call."""
        turns = self._keys.get((function, *arguments))
        if turns is None:
            if host_interface not in _DRIVERS:
                return super().call(host_interface, function, *arguments)
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
        if function not in recorded_host.BATCH_FUNCTIONS:
            return self._answers.get(recorded_host.call_key(host_interface, function, arguments))
        device, *entries = arguments
        keys = [
            recorded_host.call_key(host_interface, function, (device, entry)) for entry in entries
        ]
        pairs = [[moment.get(key, _NOT_RECORDED) for key in keys] for moment in self._moments]
        answers = [[[v for _, v in batch], [code for code, _ in batch]] for batch in pairs]
        lists = chain.from_iterable((answer, *answer) for answer in answers)
        self.batch_bytes += sum(map(sys.getsizeof, lists))
        return cycle(answers)


def _interfaces(answers: dict[str, Json]) -> list[str]:
    keys = [key for key in answers if key.startswith(_STATISTICS)]
    return sorted(key.removeprefix(_STATISTICS).rstrip(")") for key in keys)


def _turns(key: str, moments: list[dict[str, Json]]) -> Iterator[Json]:
    """Repeat all answers to one call; statistics share one list of names."""
    answers = [moment[key] for moment in moments]
    if key.startswith(_STATISTICS):
        for answer in answers:
            if "names" in answer:
                answer["names"] = answers[0]["names"]
    return cycle(answers)


@click.command()
@click.option("--root", type=click.Path(path_type=Path), required=True)
@click.option("--answers", type=click.Path(path_type=Path), required=True)
@click.option("--listen", required=True)
@click.option("--collector", "collector_url", required=True)
@click.option("--state-directory", required=True)
@click.option(
    "--size",
    type=click.Path(path_type=Path),
    required=True,
    help="File for the bytes of the answers.",
)
def main(  # noqa: PLR0913 - flags
    *, root: Path, answers: Path, listen: str, collector_url: str, state_directory: str, size: Path
) -> None:
    """Run the agent on a bench host until stopped; then write the memory of the recorded answers."""
    log_output.configure_logs("warning")
    meter = ProcessMeter()
    before = meter.resident_bytes()
    host = BenchHost(root, answers)
    meter.release_memory()
    answers_bytes = max(meter.resident_bytes() - before, 0)  # a node has no recorded answers
    settings = config.AgentSettings(
        bursts=config.BurstSettings(enabled=False),
        node="bench-node",
        listen=listen,
        state_directory=state_directory,
        budget=config.BudgetSettings(cpu_ratio=0),  # the cost is measured at the default periods
        metrics=config.MetricsSettings(detail="full"),  # text of every value, for the bytes of each
        collector=config.CollectorLink(url=collector_url, token="bench"),  # noqa: S106 - no secret
    )
    asyncio.run(_run_until_stopped(Agent(settings, host)))
    size.write_text(str(answers_bytes + host.batch_bytes), encoding="ascii")


async def _run_until_stopped(agent: Agent) -> None:
    running = asyncio.ensure_future(agent.run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    with suppress(asyncio.CancelledError):
        await running


if __name__ == "__main__":
    main()
