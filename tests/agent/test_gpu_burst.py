"""Burst sampling of GPUs: samples buffered by the driver, weighted by the time they cover."""

from __future__ import annotations

from typing import Any

from hypothesis import given, strategies as st
from support.gpus import add_gpus
from support.machine import FakeHost
from support.reading import ORIGIN, readings

from railscope.catalog import Metric, bursts as c
from railscope.reading import Absent, Reading
from railscope_agent.host import NvmlError
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.sources.nvidia.gpu_bursts import GpuBurstSource

US = 1_000_000
START_US = 1_790_000_000 * US
UUID = "GPU-0"
UNSEEN = "railscope_gpu_burst_missed_windows_total"


class SampledGpu:
    """A GPU with samples buffered by the driver, and the source that reads them."""

    def __init__(self, **calls: Any) -> None:
        self.host = FakeHost()
        add_gpus(self.host, 1)
        self.host.calls["nvml.nvmlDeviceGetEnforcedPowerLimit(0)"] = 700_000
        self.set_samples(used=[], drawn=[])
        self.host.calls |= calls
        self.reader = SourceReader(GpuBurstSource(), self.host, ORIGIN)

    def set_samples(self, used: list[list[int]], drawn: list[list[int]] | None = None) -> None:
        """Set the driver's samples: milliseconds from the start, and a value."""
        for kind, samples in ((1, used), (0, drawn or [])):
            stamped = [[START_US + ms * 1000, value] for ms, value in samples]
            self.host.calls[f"nvml.nvmlDeviceGetSamples(0,{kind})"] = stamped

    def read(self) -> dict[tuple[str, tuple[str, ...]], Reading]:
        outcome = self.reader.run()
        assert not outcome.problem
        return readings(outcome.frame)

    def histogram(self, metric: Metric) -> list[Reading]:
        values = self.read()
        return [values[metric.name, (UUID, part)] for part in metric.buckets]


def test_a_sample_covers_the_time_since_the_previous_one() -> None:
    gpu = SampledGpu()
    gpu.set_samples([[0, 50], [167, 100], [333, 0], [500, 25]])
    # 1, 0.67, 0, 0.1675 and 0.25 of the five windows
    assert gpu.histogram(c.GPU_UTILIZATION_WINDOWS) == [1, 1, 1, 1, 3, 3, 4, 4, 5]


def test_samples_that_come_again_count_once() -> None:
    gpu = SampledGpu()
    gpu.set_samples([[0, 50], [1000, 10]])
    first = gpu.histogram(c.GPU_UTILIZATION_WINDOWS)
    assert first[-1] == 10
    assert gpu.histogram(c.GPU_UTILIZATION_WINDOWS) == first
    gpu.set_samples([[1000, 10], [1500, 10]])
    assert gpu.histogram(c.GPU_UTILIZATION_WINDOWS)[-1] == 15


def test_power_is_a_share_of_the_limit() -> None:
    gpu = SampledGpu()
    gpu.set_samples([], [[0, 0], [100, 350_000], [200, 700_000], [300, 710_000]])
    assert gpu.histogram(c.GPU_POWER_WINDOWS) == [0, 0, 0, 0, 0, 1, 1, 1, 2, 3]


def test_a_window_of_several_samples_has_their_mean() -> None:
    gpu = SampledGpu()
    drawn = [[20, 0], [40, 700_000], [80, 700_000], [100, 0], [140, 700_000], [230, 0]]
    gpu.set_samples([], [[0, 0], *drawn])
    # 60 of the first 100 ms at the limit, then 40
    assert gpu.histogram(c.GPU_POWER_WINDOWS) == [0, 0, 0, 0, 0, 1, 2, 2, 2, 2]
    assert gpu.read()[c.GPU_POWER_WINDOWS.name, (UUID, "sum")] == 1_000_000


def test_a_window_is_not_averaged_over_a_gap() -> None:
    gpu = SampledGpu()
    gpu.set_samples([], [[0, 0], [50, 700_000], [10_050, 700_000], [10_100, 0]])
    assert gpu.read()[c.GPU_POWER_WINDOWS.name, (UUID, "0.0")] == 1


@given(st.lists(st.tuples(st.integers(1, 400), st.integers(0, 100)), min_size=1, max_size=60))
def test_the_sum_covers_all_samples(steps: list[tuple[int, int]]) -> None:
    gpu = SampledGpu()
    at_ms, used_ms, samples = 0, 0, [[0, 0]]
    for later_ms, percent in [*steps, (100 - sum(ms for ms, _ in steps) % 100, 0)]:
        at_ms += later_ms
        used_ms += later_ms * percent
        samples.append([at_ms, percent])
    gpu.set_samples(samples)
    windows = at_ms // 100
    total = gpu.read()[c.GPU_UTILIZATION_WINDOWS.name, (UUID, "sum")]
    assert used_ms * 100 - windows <= total <= used_ms * 100


def test_a_gap_between_samples_is_unseen() -> None:
    gpu = SampledGpu()
    gpu.set_samples([[0, 10], [100, 10], [30_100, 10], [30_200, 10]])
    values = gpu.read()
    assert values[c.GPU_UTILIZATION_WINDOWS.name, (UUID, "+Inf")] == 2
    assert values[UNSEEN, (UUID,)] == 300


def test_a_restarted_clock_is_followed() -> None:
    gpu = SampledGpu()
    gpu.set_samples([[5000, 10], [6000, 10]])
    gpu.read()
    gpu.set_samples([[0, 10], [1000, 10]])
    assert gpu.read()[c.GPU_UTILIZATION_WINDOWS.name, (UUID, "+Inf")] == 20


def test_a_gpu_without_samples_has_no_histogram() -> None:
    refused = {
        f"nvml.nvmlDeviceGetSamples(0,{kind})": NvmlError(3, "Not Supported") for kind in (0, 1)
    }
    assert SampledGpu(**refused).read() == {}


def test_a_gpu_without_a_limit_has_no_share_of_it() -> None:
    missing = {"nvml.nvmlDeviceGetEnforcedPowerLimit(0)": NvmlError(3, "Not Supported")}
    names = {name for name, _ in SampledGpu(**missing).read()}
    assert c.GPU_UTILIZATION_WINDOWS.name in names
    assert c.GPU_POWER_WINDOWS.name not in names


def test_a_failing_driver_has_an_absence_reason_and_loses_no_sample() -> None:
    gpu = SampledGpu()
    gpu.set_samples([[0, 10], [1000, 10]])
    gpu.read()
    kept = gpu.host.calls["nvml.nvmlDeviceGetSamples(0,1)"]
    gpu.host.calls["nvml.nvmlDeviceGetSamples(0,1)"] = NvmlError(15, "GPU is lost")
    assert gpu.read()[c.GPU_UTILIZATION_WINDOWS.name, (UUID, "+Inf")] is Absent.GONE
    gpu.host.calls["nvml.nvmlDeviceGetSamples(0,1)"] = kept
    assert gpu.read()[c.GPU_UTILIZATION_WINDOWS.name, (UUID, "+Inf")] == 10


@given(st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 100)), min_size=1, max_size=60))
def test_windows_of_samples_add_up_to_time(steps: list[tuple[int, int]]) -> None:
    gpu = SampledGpu()
    at_ms, samples = 0, [[0, 0]]
    for later_ms, percent in steps:
        at_ms += later_ms
        samples.append([at_ms, percent])
    gpu.set_samples(samples)
    values = gpu.read()
    seen = values[c.GPU_UTILIZATION_WINDOWS.name, (UUID, "+Inf")]
    assert (0 if seen is Absent.NOT_DUE else seen) + values[UNSEEN, (UUID,)] == at_ms // 100
