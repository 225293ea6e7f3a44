"""`python -m bench.agent_gpu`: the agent's own time for reading GPUs, without the driver's.

nvidia-ml-py runs over the tests' stand-in for libnvidia-ml.so.1, which reports the time that calls
spent in it. The remainder is Python: the binding, the host, the sources, the frames. It is compared
with the readings of a source by nvidia-ml-py as its examples show it: one call for every value.
"""

from __future__ import annotations

import ctypes
import gc
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import click

from bench.harness import Aim, BenchReport, benchmark
from railscope.frame import FrameOrigin
from railscope_agent.host import Json
from railscope_agent.host.live_host import LiveHost
from railscope_agent.sampling.source_reader import SourceReader

NvmlCall = tuple[str, tuple[int | str, ...]]
Call = Callable[[], Any]

# nvml.h, nvmlValueType_t: the member of the union that holds the value.
_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
_LOCAL_CALLS = {"nvmlEventSetWait", "nvmlDeviceGetMigDevices"}
"""Not calls of NVML, or calls for which nothing is due."""
_FILLED = {
    "nvmlDeviceGetSramEccErrorStatus": "c_nvmlEccSramErrorStatus_v1_t",
    "nvmlDeviceGetGpuFabricInfoV": "c_nvmlGpuFabricInfo_v3_t",
    "nvmlDeviceGetPlatformInfo": "c_nvmlPlatformInfo_v2_t",
}
_EXTRA: dict[str, Callable[[Any], list[Any]]] = {
    "nvmlDeviceGetMemoryInfo": lambda pynvml: [pynvml.nvmlMemory_v2],
    "nvmlDeviceGetProcessUtilization": lambda _: [0],
    "nvmlDeviceGetVgpuUtilization": lambda _: [0],
}
"""Arguments that the host adds by itself."""


_ALL_SAMPLES = 0
"""Timestamp of the last sample already read: none."""


def one_at_a_time(recorded: Sequence[NvmlCall]) -> Callable[[], int]:
    """Return a function that makes the calls of a source, batches split, and counts the answers."""
    import pynvml  # noqa: PLC0415 - the library is loaded by now

    handles: dict[int, Any] = {}
    calls: list[Call] = []
    for function, arguments in recorded:
        if function in _LOCAL_CALLS:
            continue
        if not function.startswith(("nvmlDevice", "nvmlGpm")) or not arguments:
            calls.append(partial(getattr(pynvml, function), *arguments))
            continue
        gpu, *rest = arguments
        if gpu not in handles:
            handles[int(gpu)] = pynvml.nvmlDeviceGetHandleByIndex(int(gpu))
        calls += _of_gpu(pynvml, function, handles[int(gpu)], rest)

    def read() -> int:
        got = 0
        for call in calls:
            try:
                call()
            except pynvml.NVMLError:
                continue
            got += 1
        return got

    return read


def _of_gpu(pynvml: Any, function: str, handle: Any, rest: list[int | str]) -> list[Call]:
    if function == "nvmlDeviceGetFieldValues":
        return [partial(_field, pynvml, handle, entry) for entry in rest]
    if function == "nvmlGpmMetricsGet":
        samples = _Samples(pynvml, handle)
        return [samples.take, *(partial(samples.metric, int(metric)) for metric in rest)]
    target = getattr(pynvml, function)
    if function in _FILLED:
        return [partial(_fill_structure, pynvml, target, handle, _FILLED[function])]
    extra = _EXTRA[function](pynvml) if function in _EXTRA else rest
    if function == "nvmlDeviceGetSamples":
        extra = [*rest, _ALL_SAMPLES]
    return [partial(target, handle, *extra)]


def _field(pynvml: Any, handle: Any, entry: int | str) -> Any:
    field, _, scope = str(entry).partition(":")
    (value,) = pynvml.nvmlDeviceGetFieldValues(handle, [(int(field), int(scope or 0))])
    return getattr(value.value, _MEMBERS[value.valueType])


def _fill_structure(pynvml: Any, target: Any, handle: Any, structure: str) -> Any:
    space = getattr(pynvml, structure)()
    target(handle, ctypes.byref(space))
    return space


class _Samples:
    """Two samples of a GPU; each metric is a separate request."""

    def __init__(self, pynvml: Any, handle: Any) -> None:
        self._pynvml, self._handle = pynvml, handle
        self._before, self._latest = (
            pynvml.nvmlGpmSampleGet(handle, pynvml.nvmlGpmSampleAlloc()) for _ in range(2)
        )

    def take(self) -> None:
        self._before, self._latest = self._latest, self._before
        self._pynvml.nvmlGpmSampleGet(self._handle, self._latest)

    def metric(self, number: int) -> float:
        request = self._pynvml.c_nvmlGpmMetricsGet_t(
            version=self._pynvml.NVML_GPM_METRICS_GET_VERSION,
            numMetrics=1,
            sample1=self._before,
            sample2=self._latest,
        )
        request.metrics[0].metricId = number
        self._pynvml.nvmlGpmMetricsGet(request)
        return float(request.metrics[0].value)


TESTS = Path(__file__).parents[1] / "tests"
GPUS = 8
MILLISECOND_NS = 1_000_000
MAX_TICKS = 120
QUICK_TICKS = 11
SETTLING_READS = 4
APART_SECONDS = 0.12
"""A tick represents one second; GPM samples must be 110 ms apart. Caches are cold by then."""

ORIGIN = FrameOrigin("bench", "run", "boot")
PER_TICK = Aim("<=", 2, " ms")


class CallRecordingHost(LiveHost):
    """The real host with its own clock, which records the NVML calls.

    Sources probe again once in 60 seconds of the clock.
    """

    def __init__(self, clock: Any) -> None:
        super().__init__(clock=clock)
        self.recorded: list[NvmlCall] = []

    def call(self, host_interface: str, function: str, *arguments: int | str) -> Json:
        """Make the call, and record it if it is an NVML call."""
        if host_interface == "nvml":
            self.recorded.append((function, arguments))
        return super().call(host_interface, function, *arguments)


@dataclass
class GpuReadCost:
    """Cost of some reads: thread time outside and inside the library, values, calls to the library."""

    python_ns: int = 0
    within_ns: int = 0
    values: int = 0
    calls: int = 0
    reads: int = 0

    def add(self, other: GpuReadCost) -> None:
        """Add the cost of another read."""
        self.python_ns += other.python_ns
        self.within_ns += other.within_ns
        self.values += other.values
        self.calls += other.calls
        self.reads += other.reads

    @property
    def _per_value(self) -> str:
        """Time per value of reads that returned values; some reads only probe for devices."""
        return f"{self.python_ns / self.values / 1000:.2f} us per value, " if self.values else ""

    def __str__(self) -> str:
        return (
            f"{self.python_ns / self.reads / MILLISECOND_NS:.3f} ms per read,"
            f" {self.values / self.reads:,.0f} values, {self.calls / self.reads:,.0f} calls,"
            f" {self._per_value}{self.within_ns / self.reads / MILLISECOND_NS:.3f} ms in the library"
        )


@dataclass
class TickSeries:
    """Ticks of one way of reading: cost by source, and the most expensive tick."""

    of: dict[str, GpuReadCost] = field(default_factory=dict)
    max_ns: int = 0

    @property
    def total(self) -> GpuReadCost:
        """Total cost of all sources."""
        total = GpuReadCost()
        for spent in self.of.values():
            total.add(spent)
        return total


@dataclass(frozen=True, slots=True)
class ThreadMeter:
    """Measures this thread; the stand-in reports the part spent in the library."""

    standin: Any

    def measure(self, work: Callable[[], int]) -> GpuReadCost:
        """Return the cost of some work that returns its number of values."""
        within, calls = self.standin.count("nanoseconds"), self.standin.calls()
        started = time.thread_time_ns()
        values = work()
        spent = time.thread_time_ns() - started
        within = self.standin.count("nanoseconds") - within
        return GpuReadCost(spent - within, within, values, self.standin.calls() - calls, 1)


@benchmark("Agent, GPUs", full=MAX_TICKS, quick=QUICK_TICKS)
def main(report: BenchReport, ticks: int, directory: Path) -> None:
    """Measure the reading of GPUs and print ratios."""
    if shutil.which("cc") is None:
        message = "compiling the stand-in failed: cc: not found; fix: install the package gcc"
        raise click.ClickException(message)
    sys.path.append(str(TESTS))
    from support.clock import ManualClock  # type: ignore[import-not-found] # noqa: PLC0415 - tests are not a package
    from support.full_gpus import full_gpus, nvml_sources  # type: ignore[import-not-found] # noqa: PLC0415 - as above
    from support.standin import NvmlStandin, build  # type: ignore[import-not-found] # noqa: PLC0415 - as above

    standin, clock = NvmlStandin(directory, str(build(directory))), ManualClock()
    standin.load(full_gpus(GPUS))
    hosts = LiveHost(clock=clock), CallRecordingHost(clock)
    readers, listening = (
        [SourceReader(source, host, ORIGIN) for source in nvml_sources()] for host in hosts
    )
    for _ in range(SETTLING_READS):
        _pass_per_second(clock)
        for reader in (*readers, *listening):
            _settle(reader)
    naive = {reader.source.name: _one_by_one(hosts[1], reader) for reader in listening}
    gc.collect()
    gc.freeze()
    meter, agent_ticks, naive_ticks = ThreadMeter(standin), TickSeries(), TickSeries()
    for second in range(ticks):
        _pass_per_second(clock)
        due = [reader for reader in readers if second % round(reader.source.period_seconds) == 0]
        _tick(agent_ticks, meter, {reader.source.name: partial(_read, reader) for reader in due})
        _tick(naive_ticks, meter, {reader.source.name: naive[reader.source.name] for reader in due})
    for host in hosts:
        host.close()
    _report_costs(report, agent_ticks, naive_ticks, ticks)


def _pass_per_second(clock: Any) -> None:
    time.sleep(APART_SECONDS)
    clock.advance(1)


def _settle(reader: SourceReader) -> None:
    """Read once, so that no later read adds columns."""
    outcome = reader.run()
    if outcome.problem:
        message = f"reading source {reader.source.name} failed: {outcome.problem}"
        raise click.ClickException(message)


def _one_by_one(host: CallRecordingHost, reader: SourceReader) -> Callable[[], int]:
    """Return the NVML calls of one read of a source as one call per value."""
    host.recorded.clear()
    reader.run()
    return one_at_a_time(list(host.recorded))


def _read(reader: SourceReader) -> int:
    frame = reader.run().frame
    return len(frame.values) if frame else 0


def _tick(course: TickSeries, meter: ThreadMeter, works: dict[str, Callable[[], int]]) -> None:
    whole = GpuReadCost()
    for name, work in works.items():
        spent = meter.measure(work)
        whole.add(spent)
        course.of.setdefault(name, GpuReadCost())
        course.of[name].add(spent)
    course.max_ns = max(course.max_ns, whole.python_ns)


def _report_costs(
    report: BenchReport, agent_ticks: TickSeries, naive_ticks: TickSeries, ticks: int
) -> None:
    agent, naive = agent_ticks.total, naive_ticks.total
    report.ratio(
        f"Python per tick, {GPUS} GPUs, 1 Hz", agent.python_ns / ticks / MILLISECOND_NS, PER_TICK
    )
    report.ratio("Python per tick, agent / one call per value", agent.python_ns / naive.python_ns)
    report.figure(
        "values per tick", f"{agent.values / ticks:,.0f}, {agent.calls / ticks:,.0f} calls to NVML"
    )
    report.figure("Python per value", f"{agent.python_ns / agent.values / 1000:.2f} us")
    report.figure(
        "most expensive tick, all sources due", f"{agent_ticks.max_ns / MILLISECOND_NS:.2f} ms"
    )
    report.figure(
        "one call per value",
        f"{naive.python_ns / ticks / MILLISECOND_NS:.2f} ms per tick, {naive.calls / ticks:,.0f} calls",
    )
    for name, spent in agent_ticks.of.items():
        report.figure(name, str(spent))


if __name__ == "__main__":
    main()
