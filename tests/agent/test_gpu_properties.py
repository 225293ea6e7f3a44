"""Properties of every answer that NVML may return or a capture may contain."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from hypothesis import given, strategies as st
from support.clock import NS
from support.gpus import add_gpus, host_with_gpus
from support.machine import FakeHost
from support.reading import ORIGIN, read_once, readings

from railscope.catalog import bursts as c
from railscope.catalog.declare import MARKS
from railscope.catalog.gpu import THROTTLE_BITS
from railscope.exposition import TextFormat
from railscope.frame import Schema
from railscope.reading import Absent, Reading
from railscope_agent.config import AgentSettings
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.service import Agent
from railscope_agent.sources.nvidia.column_history import (
    LONGEST_SAMPLE_NS,
    Integral,
    IntegratedGauge,
)
from railscope_agent.sources.nvidia.gpu_bursts import GpuBurstSource
from railscope_agent.sources.nvidia.gpu_devices import GpuSource
from railscope_agent.sources.nvidia.gpu_sharing import GpuSharingSource
from railscope_agent.sources.nvidia.health import CONDITIONS
from railscope_agent.sources.nvidia.nvlink import bit_error_decades
from railscope_agent.sources.nvidia.processes import GpuProcessSource
from railscope_agent.sources.nvidia.value_tables import LOAD_INTEGRALS
from railscope_agent.streams.xid_matcher import SAME_NS, NvmlXid, XidMatcher


@given(st.integers(0, 2**32 - 1).filter(lambda mask: mask not in MARKS))
def test_flags_are_the_bits_of_a_mask(mask: int) -> None:
    """Reasons to hold clocks down, and conditions of the fabric, which have two bits each."""
    host = host_with_gpus()
    fabric = {"state": 3, "status": 0, "healthMask": mask, "healthSummary": 1}
    host.calls |= {
        "nvml.nvmlDeviceGetSupportedClocksEventReasons(0)": 0x1FF,
        "nvml.nvmlDeviceGetCurrentClocksEventReasons(0)": mask,
        "nvml.nvmlDeviceGetGpuFabricInfoV(0)": fabric,
    }
    found = readings(read_once(GpuSource.load(), host).frame)
    found |= readings(read_once(GpuSource.health(), host).frame)
    for (name, key), reading in found.items():
        if name == "railscope_gpu_throttle_active":
            assert reading == (1 if mask & THROTTLE_BITS[key[1]] else 0)
        elif name == "railscope_gpu_fabric_condition_active":
            if key[1] == "misconfigured":
                bits = mask >> 8 & 0b1111
                expected = int(bits != 1) if bits else Absent.UNSUPPORTED
            else:
                shift, at_fault = CONDITIONS[key[1]]
                bits = mask >> shift & 0b11
                reasons = {0: Absent.UNSUPPORTED, 3: Absent.ERROR}
                expected = reasons.get(bits, int(bits == at_fault))
            assert reading == expected, key


@given(st.integers(1, 15), st.integers(0, 255), st.integers(0, 2**20 - 1))
def test_a_bit_error_ratio_is_exact_to_thousandths_of_a_decade(
    mantissa: int, exponent: int, rest: int
) -> None:
    encoded = rest << 12 | mantissa << 8 | exponent
    decades = bit_error_decades(encoded)
    assert isinstance(decades, int)
    assert abs(decades - 1000 * -math.log10(mantissa * 10.0**-exponent)) <= 0.501
    worse = bit_error_decades((mantissa % 15 + 1) << 8 | exponent)
    assert isinstance(worse, int)
    assert (worse < decades) == (mantissa < 15)


_PROCESS = st.fixed_dictionaries(
    {"pid": st.integers(1, 12), "usedGpuMemory": st.none() | st.integers(0, 2**40)}
)
_LISTS = st.lists(_PROCESS, max_size=20)


@given(compute=_LISTS, graphics=_LISTS, most=st.integers(0, 15))
def test_processes_add_up(
    compute: list[dict[str, Any]], graphics: list[dict[str, Any]], most: int
) -> None:
    host = FakeHost()
    add_gpus(host, 1)
    host.calls["nvml.nvmlDeviceGetComputeRunningProcesses(0)"] = compute
    host.calls["nvml.nvmlDeviceGetGraphicsRunningProcesses(0)"] = graphics
    frames = [
        read_once(source, host).frame
        for source in (GpuProcessSource(max_reported=most), GpuSharingSource())
    ]
    found = readings(frames[0]) | readings(frames[1])
    answers = {
        key[1]: reading
        for (name, key), reading in found.items()
        if name == "railscope_gpu_process_memory_used_bytes"
    }
    size = host.calls["nvml.nvmlDeviceGetMemoryInfo(0)"]["total"]
    there = {process["pid"] for process in (*compute, *graphics)}
    total = found["railscope_gpu_processes", ("GPU-0",)]
    untold = found["railscope_gpu_suppressed_processes", ("GPU-0",)]
    assert total == len(there)
    assert len(answers) == min(most, len(there))
    assert untold == len(there) - len(answers)
    for pid, reading in answers.items():
        lists = [
            [p["usedGpuMemory"] for p in one if p["pid"] == int(pid)] for one in (compute, graphics)
        ]
        used = next(parts for parts in lists if parts)  # every list contains the complete process
        if None in used:
            assert reading is Absent.UNSUPPORTED
        else:  # no process uses more memory than its GPU has
            assert reading == (sum(used) if sum(used) <= size else Absent.ERROR)


US = 1_000_000
START_US = 1_790_000_000 * US
UUID = "GPU-0"
UNSEEN = "railscope_gpu_burst_missed_windows_total"
ADDRESS = "0000:01:00.0"
PERCENT = st.integers(0, 100)


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


SAMPLES = st.lists(
    st.tuples(st.integers(1, 2 * LONGEST_SAMPLE_NS), PERCENT, st.integers(0, 9).map(bool)),
    max_size=20,
)


@given(SAMPLES, st.sampled_from(LOAD_INTEGRALS))
def test_an_integral_is_samples_times_time(
    samples: list[tuple[int, int, bool]], integrated: IntegratedGauge
) -> None:
    """The sum of samples times their durations, rounded down once: without long gaps and other boots."""
    integral = Integral(integrated)
    weight = integrated.gauge.scale / integrated.counter.scale
    now, boot, exact = 7, 0, Fraction()
    integral.take(0, "0", now)
    for step, sample, same_boot in samples:
        now, boot = now + step, boot + (not same_boot)
        if same_boot and step <= LONGEST_SAMPLE_NS:
            exact += weight * sample * step / NS
        assert integral.take(sample, str(boot), now) == exact // 1


@given(
    logged=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 20))),
    seen=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 20))),
)
def test_no_xid_is_reported_twice_and_none_is_lost(
    logged: list[tuple[int, int]], seen: list[tuple[int, int]]
) -> None:
    """The Xids reported by NVML alone are at least the surplus of NVML over the log, per number."""
    book = XidMatcher()
    for number, second in logged:
        book.record_logged(ADDRESS, number, second * NS)
    for number, second in seen:
        book.record_nvml(NvmlXid(ADDRESS, number, 0, second * NS, second * NS))
    alone = book.take_unlogged(21 * NS + SAME_NS)
    assert book.take_unlogged(10**18) == []
    for number in (1, 2, 3):
        reported = sum(s.xid == number for s in alone)
        by_nvml = sum(n == number for n, _ in seen)
        by_log = sum(n == number for n, _ in logged)
        assert max(by_nvml - by_log, 0) <= reported <= by_nvml


async def test_jobs_that_come_and_go_make_no_schema_that_travels() -> None:
    """A collector stores every schema of a node: columns that change with each job are exported locally only."""
    host, compute = host_with_gpus(), "nvml.nvmlDeviceGetComputeRunningProcesses(0)"
    agent = Agent(AgentSettings(node="node-1"), host)
    schemas: dict[str, set[Schema]] = {}
    for pid in range(1, 6):
        host.calls[compute] = [{"pid": each, "usedGpuMemory": 1000} for each in (pid, pid + 1)]
        await agent.once()
        for frame in agent.endpoint.fresh_frames():
            if agent.is_shipped(frame):
                schemas.setdefault(frame.schema.stream, set()).add(frame.schema)
    assert "gpu_sharing" in schemas
    assert "gpu_process" not in schemas
    assert {len(found) for found in schemas.values()} == {1}
    assert "railscope_gpu_process_memory_used_bytes" in agent.endpoint.text(TextFormat.PROMETHEUS)
