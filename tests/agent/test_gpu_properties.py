"""Properties of every answer that NVML may return or a capture may contain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import cycle
from typing import Any

from hypothesis import given, strategies as st
from support.clock import NS
from support.gpus import add_gpus, host_with_gpus
from support.machine import FakeHost
from support.reading import ORIGIN, read_once, readings

from railscope.catalog import bursts as c
from railscope.catalog.declare import MARKS
from railscope.catalog.entities import GPU, MIG, NVLINK
from railscope.catalog.gpu import THROTTLE_BITS
from railscope.exposition import TextFormat
from railscope.frame import Entity, Schema
from railscope.reading import REASONS, Absent, Reading
from railscope_agent.config import AgentSettings
from railscope_agent.gpus.inventory import GpuDevice, list_mig_devices
from railscope_agent.host import Json, NvmlError
from railscope_agent.host.recorded_calls import BATCH_FUNCTIONS
from railscope_agent.sampling.probe_result import ColumnBuilder
from railscope_agent.sampling.row_builder import RowBuilder
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.service import Agent, is_shipped
from railscope_agent.sources.nvidia import activity, health, mig_devices, value_tables
from railscope_agent.sources.nvidia.call_plan import CallPlan
from railscope_agent.sources.nvidia.call_table import CallTable, NvmlCall
from railscope_agent.sources.nvidia.column_history import (
    LONGEST_SAMPLE_NS,
    Integral,
    IntegratedGauge,
)
from railscope_agent.sources.nvidia.gpu_bursts import GpuBurstSource
from railscope_agent.sources.nvidia.gpu_sharing import GpuSharingSource
from railscope_agent.sources.nvidia.nvlink import bit_error_decades, signal_fields, traffic_fields
from railscope_agent.sources.nvidia.processes import GpuProcessSource
from railscope_agent.sources.nvidia.value_tables import LOAD_INTEGRALS
from railscope_agent.streams.xid_matcher import SAME_NS, NvmlXid, XidMatcher
from railscope_agent.topology.pci import pci_address

JSON: st.SearchStrategy[Json] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["gpu", "total", "reserved", "state", "healthMask"]), inner
        )
    ),
    max_leaves=6,
)
NEITHER_NUMBER_NOR_LIST: st.SearchStrategy[Json] = (
    st.none() | st.text(st.characters(categories=["L"])) | st.just({})
)
COUNTS = st.integers(0, 2**63 - 17)
ENTITY = Entity(GPU, ("GPU-0",))
MIG_ENTITY = Entity(MIG, ("GPU-0", "MIG-1"))
LINK = Entity(NVLINK, ("GPU-0", "3"))


def tables() -> dict[str, tuple[Entity, CallTable]]:
    """Return every call table with its entity, for two fans and one link."""
    fans = FakeHost()
    fans.calls["nvml.nvmlDeviceGetNumFans(0)"] = 2
    links = CallTable(fields=(*traffic_fields(3, LINK), *signal_fields(3, LINK)))
    return {
        "load": (ENTITY, value_tables.load_table(FakeHost(), 0)),
        "health": (ENTITY, health.HEALTH_TABLE),
        "settings": (ENTITY, value_tables.settings_table(fans, 0)),
        "activity": (ENTITY, activity.GPU_TABLE),
        "activity of MIG": (MIG_ENTITY, activity.MIG_ACTIVITY_TABLE),
        "MIG": (MIG_ENTITY, mig_devices.MIG_TABLE),
        "NVLink": (ENTITY, links),
    }


TABLES = tables()


class ArbitraryDriver(FakeHost):
    """A driver that answers every call with the next of its answers or errors."""

    def __init__(self, answers: Sequence[Json | NvmlError], codes: Sequence[int] = ()) -> None:
        super().__init__()
        self._answers, self._codes = cycle(answers), cycle(codes)
        self._formed = bool(codes)

    def call(self, host_interface: str, function: str, *arguments: int | str) -> Json:
        assert host_interface == "nvml"
        answer = next(self._answers)
        if isinstance(answer, NvmlError):
            raise answer
        if not (self._formed and function in BATCH_FUNCTIONS):
            return answer
        entries = arguments[1:]
        return [[answer for _ in entries], [next(self._codes) for _ in entries]]


def read_all(host: FakeHost, table: str) -> list[int | Absent]:
    """Return the readings of all calls of a table after the device was probed."""
    about, questions = TABLES[table]
    plan, columns = CallPlan(0, about, questions), ColumnBuilder()
    plan.detect_support(host)
    plan.add_columns(columns)
    row = RowBuilder(len(columns.columns))
    plan.read(host, row)
    return [
        REASONS[reason] if reason else value
        for value, reason in zip(row.values, row.reasons, strict=True)
    ]


@given(
    st.lists(JSON | st.builds(NvmlError, st.integers(1, 999)), min_size=1, max_size=12),
    st.lists(st.sampled_from([0, 2, 3, 4, 15, 999]), max_size=5),
    st.sampled_from([*TABLES]),
)
def test_no_answer_harms_more_than_its_reading(
    answers: list[Json | NvmlError], codes: list[int], table: str
) -> None:
    for reading in read_all(ArbitraryDriver(answers, codes), table):
        assert isinstance(reading, int | Absent)


@given(NEITHER_NUMBER_NOR_LIST, st.sampled_from([*TABLES]))
def test_an_answer_without_a_number_is_not_a_number(answers: Json, table: str) -> None:
    found = set(read_all(ArbitraryDriver([answers], [0]), table))
    assert found <= {Absent.ERROR, Absent.UNSUPPORTED}  # unsupported: a structure without a member
    assert Absent.ERROR in found


def pick_parts(call: NvmlCall, result: Json) -> dict[tuple[str, ...], int | Absent]:
    """Return the readings of the parts of a call."""
    return {target.part: target.pick(result) for target in call.targets if target.part}


def call_of(questions: CallTable, function: str) -> NvmlCall:
    (found,) = [call for call in questions.calls if function in call.functions]
    return found


@given(st.integers(0, 2**64 - 1))
def test_a_reason_to_hold_clocks_down_is_its_bit(mask: int) -> None:
    call = call_of(value_tables.load_table(FakeHost(), 0), "nvmlDeviceGetCurrentClocksEventReasons")
    for (reason,), active in pick_parts(call, mask).items():
        assert active == (1 if mask & THROTTLE_BITS[reason] else 0)


@given(st.integers(0, 2**11 - 1))
def test_only_supported_reasons_are_requested(supported: int) -> None:
    host = FakeHost()
    host.calls["nvml.nvmlDeviceGetSupportedClocksEventReasons(0)"] = supported
    call = call_of(value_tables.load_table(host, 0), "nvmlDeviceGetCurrentClocksEventReasons")
    asked = sum(THROTTLE_BITS[reason] for (reason,) in pick_parts(call, 0))
    assert asked == (supported or 0x1FF)


@given(st.integers(0, 2**32 - 1).filter(lambda mask: mask not in MARKS))
def test_a_fabric_fault_is_read_from_its_bits(mask: int) -> None:
    answers = {"state": 3, "status": 0, "healthMask": mask, "healthSummary": 1}
    call = call_of(health.HEALTH_TABLE, "nvmlDeviceGetGpuFabricInfoV")
    found = {name: reading for (name,), reading in pick_parts(call, answers).items()}
    for name, (shift, at_fault) in health.CONDITIONS.items():
        bits = mask >> shift & 0b11
        expected = {0: Absent.UNSUPPORTED, 3: Absent.ERROR}.get(bits, int(bits == at_fault))
        assert found.pop(name) == expected
    configuration = mask >> 8 & 0b1111
    wrong = Absent.UNSUPPORTED if configuration == 0 else int(configuration != 1)
    assert found == {"misconfigured": wrong}


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


@given(st.integers(0, 255), st.integers(0, 2**20 - 1))
def test_a_bit_error_ratio_without_a_mantissa_is_none(exponent: int, rest: int) -> None:
    assert bit_error_decades(rest << 12 | exponent) is Absent.ERROR


@given(st.text(), st.integers(1, 8), st.integers(0, 8), st.integers(1, 300))
def test_a_mig_device_has_the_profile_at_the_end_of_its_name(
    model: str, slices: int, compute: int, gigabytes: int
) -> None:
    profile = (f"{compute}c." if compute else "") + f"{slices}g.{gigabytes}gb"
    for name, expected in ((f"{model} MIG {profile}", profile), (model.replace("MIG ", ""), "")):
        host = FakeHost()
        mig_device = {"uuid": "MIG-1", "index": 0, "gpu": 2, "compute": 1}
        host.calls["nvml.nvmlDeviceGetMigDevices(0)"] = [mig_device]
        host.calls["nvml.nvmlDeviceGetName(MIG-1)"] = name
        (device,) = list_mig_devices(host, GpuDevice(0, ENTITY, ""))
        assert device.entity.facts.get("profile", "") == expected


@given(
    st.integers(0, 2**32 - 1),
    st.integers(0, 255),
    st.integers(0, 31),
    st.integers(0, 7),
    st.sampled_from(["{:08X}", "{:04X}", "{:04x}", "{:x}"]),
)
def test_however_a_bus_address_is_written_it_is_the_same(
    domain: int, bus: int, device: int, function: int, width: str
) -> None:
    written = f"{width.format(domain)}:{bus:02X}:{device:02X}.{function}"
    normal = f"{domain:04x}:{bus:02x}:{device:02x}.{function}"
    assert pci_address(written) == pci_address(written.lower()) == pci_address(normal) == normal


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
            if is_shipped(frame):
                schemas.setdefault(frame.schema.stream, set()).add(frame.schema)
    assert "gpu_sharing" in schemas
    assert "gpu_process" not in schemas
    assert {len(found) for found in schemas.values()} == {1}
    assert "railscope_gpu_process_memory_used_bytes" in agent.endpoint.text(TextFormat.PROMETHEUS)
