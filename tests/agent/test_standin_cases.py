"""Readings of each capture through the real nvidia-ml-py equal those of its replay.

The stand-in answers nvidia-ml-py with the capture's last state; all files are the capture's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from support.cases import capture_of, names, third_of
from support.clock import ManualClock
from support.full_gpus import full_gpus, nvml_sources
from support.reading import ORIGIN, Label, readings
from support.standin import NvmlStandin, run_scenario

from railscope.capture import Capture, CaptureMetadata, CaptureMoment
from railscope.catalog import METRICS
from railscope.frame import Event
from railscope.reading import Absent, Reading
from railscope_agent.host import Json
from railscope_agent.host.nvml import Nvml
from railscope_agent.host.recorded_host import RecordedHost
from railscope_agent.sampling.source_reader import SourceReader

ROUNDS = 5
"""GPM needs two; what a process or an event adds to the columns comes a round later."""
SECOND_US = 1_000_000


def _as_double(reading: Reading) -> Reading:
    """Return a counter rounded to the 53 bits of a double."""
    return reading if isinstance(reading, Absent) else int(float(reading))


# Metrics that C cannot represent as in the capture: the conversion and its reason.
EXPLAINED: dict[str, tuple[Callable[[Reading], Reading], str]] = {
    "railscope_gpu_sm_cycles_total": (
        _as_double,
        "nvmlGpmMetric_t has a double; a simulated counter has all its bits",
    )
}


class _BoundHost(RecordedHost):
    """A replay whose NVML is the real binding over the stand-in."""

    def __init__(self, capture: Capture, clock: ManualClock) -> None:
        super().__init__(capture, clock, lambda: capture.about.duration_ns)
        self._nvml = Nvml(lambda: clock.now().boot_ns)

    def call(self, host_interface: str, function: str, *arguments: int | str) -> Json:
        if host_interface == "nvml":
            return self._nvml.call(function, *arguments)
        return super().call(host_interface, function, *arguments)


class DriverReadings:
    """Results of all driver sources over some rounds: the last readings and every event."""

    def __init__(self) -> None:
        self.readings: dict[tuple[str, Label], Reading] = {}
        self.problems: dict[str, str] = {}
        self.events: Counter[tuple[str, tuple[str, ...], tuple[tuple[str, str], ...]]] = Counter()

    def read(self, readers: list[SourceReader]) -> None:
        self.readings, self.problems = {}, {}
        for reader in readers:
            name, outcome = reader.source.name, reader.run()
            self.problems[name] = outcome.problem
            self.readings |= {(name, k): v for k, v in readings(outcome.frame).items()}
            self.events.update(
                _fact(event) for event in (outcome.frame.events if outcome.frame else ())
            )


def _fact(event: Event) -> tuple[str, tuple[str, ...], tuple[tuple[str, str], ...]]:
    return event.event_class.name, event.entity.key, tuple(sorted(event.facts.items()))


def last_calls(capture: Capture) -> dict[str, Json]:
    """The answers of NVML at the end."""
    state: dict[str, Json] = {}
    for moment in capture.moments:
        state |= moment.calls
    return state


def compare(standin: NvmlStandin, case: str) -> None:
    """Read both hosts at the same instants, and compare."""
    capture = full_capture() if case == "everything" else capture_of(case)
    calls, clock = last_calls(capture), ManualClock()
    hosts = {
        "replay": RecordedHost(capture, clock, lambda: capture.about.duration_ns),
        "binding": _BoundHost(capture, clock),
    }
    results = {name: DriverReadings() for name in hosts}
    readers = {
        name: [SourceReader(source, host, ORIGIN) for source in nvml_sources()]
        for name, host in hosts.items()
    }
    for number in range(ROUNDS):
        clock.advance(1)
        standin.load(calls, number * SECOND_US)
        for name in hosts:
            results[name].read(readers[name])
    replay, binding = results["replay"], results["binding"]
    assert replay.readings or not isinstance(calls.get("nvml.nvmlDeviceGetCount()"), int)
    assert replay.problems == binding.problems
    assert replay.readings.keys() == binding.readings.keys()
    different = {
        label: (reading, binding.readings[label])
        for label, reading in replay.readings.items()
        if _as_in_c(label[1][0], reading) != binding.readings[label]
    }
    assert different == {}, different
    assert replay.events == binding.events


def _as_in_c(metric: str, reading: Reading) -> Reading:
    """Return a reading of the replay with the precision of the C binding."""
    left, _ = EXPLAINED.get(metric, (lambda same: same, ""))
    return left(reading)


def full_capture() -> Capture:
    """Return a capture of GPUs with every feature."""
    calls = full_gpus(4, cut=[1, 2], virtual=[3])
    about = CaptureMetadata("node", "boot-1", 0, 0, 1, "made up")
    return Capture(about, (CaptureMoment(0, calls=calls),))


@pytest.mark.parametrize("case", ["everything", *third_of(names())])
def test_the_binding_gives_the_readings_of_the_replay(
    tmp_path_factory: pytest.TempPathFactory, case: str
) -> None:
    run_scenario(tmp_path_factory, compare, case)


def test_every_explanation_is_of_a_metric() -> None:
    assert set(EXPLAINED) <= set(METRICS)
