"""GPUs and drivers that do not answer as they should."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from support.clock import NS
from support.gpus import host_with_gpus, of_gpu
from support.machine import FakeHost
from support.reading import ORIGIN, read_once, readings
from support.sampling import run_sampler

from railscope.reading import Absent, Reading
from railscope_agent.host import NvmlError
from railscope_agent.sampling.probe_result import ProbeVerdict
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.sampling.status import FAILED, OK, PARTIAL, UNSUPPORTED
from railscope_agent.sources.nvidia.gpu_devices import GpuSource
from railscope_agent.sources.nvidia.value_tables import load_table

COUNT = "nvml.nvmlDeviceGetCount()"
POWER, AVERAGE = "railscope_gpu_power_watts", "railscope_gpu_power_average_watts"
FIELD = "nvml.nvmlDeviceGetFieldValues({},{})"
LOST, NOT_SUPPORTED = NvmlError(15, "GPU is lost"), NvmlError(3, "Not Supported")


# The driver ---------------------------------------------------------------------------------------


def test_no_driver_and_no_gpu_is_nothing_missing() -> None:
    outcome = read_once(GpuSource.load(), FakeHost())
    assert (outcome.frame, outcome.problem) == (None, "")
    assert [finding.verdict for finding in outcome.findings] == [ProbeVerdict.ABSENT]


def test_a_gpu_on_the_bus_without_a_driver_is_broken() -> None:
    host = FakeHost()
    host.files["/sys/bus/pci/devices/0000:3b:00.0/vendor"] = "0x10de"
    host.files["/sys/bus/pci/devices/0000:3b:00.0/class"] = "0x030200"
    (finding,) = read_once(GpuSource.load(), host).findings
    assert finding.verdict is ProbeVerdict.BROKEN
    assert "1 NVIDIA GPUs on the PCI bus" in finding.detail
    assert finding.remedy == "install the NVIDIA driver on this node"


@pytest.mark.parametrize(
    ("code", "verdict", "remedy"),
    [
        (4, ProbeVerdict.DENIED, "/dev/nvidia*"),
        (9, ProbeVerdict.BROKEN, "modprobe nvidia"),
        (18, ProbeVerdict.BROKEN, "reload it, or reboot"),
        (999, ProbeVerdict.BROKEN, "nvidia-smi"),
    ],
)
def test_a_driver_that_rejects_is_a_problem_with_a_remedy(
    code: int, verdict: ProbeVerdict, remedy: str
) -> None:
    host = host_with_gpus(2)
    host.calls[COUNT] = NvmlError(code, "refused")
    outcome = read_once(GpuSource.load(), host)
    (finding,) = outcome.findings
    assert outcome.frame is None
    assert finding.verdict is verdict
    assert remedy in finding.remedy
    assert outcome.problem == f"NVML error {code}: refused"


@pytest.mark.parametrize("count", [65, -1, 2**32 - 1])
def test_a_number_of_gpus_that_no_node_has_is_a_failure_of_nvml(count: int) -> None:
    host = host_with_gpus(2)
    host.calls[COUNT] = count
    outcome = read_once(GpuSource.load(), host)
    assert (outcome.frame, [finding.verdict for finding in outcome.findings]) == (
        None,
        [ProbeVerdict.BROKEN],
    )
    assert f"nvmlDeviceGetCount returned {count}: expected 0 to 64" in outcome.problem


async def test_a_driver_that_is_loaded_later_is_found_at_the_next_tick() -> None:
    host = host_with_gpus(2)
    host.calls[COUNT] = NvmlError(9)
    async with run_sampler(host, [GpuSource.load()]) as run:
        assert run.sampler.statuses["gpu"].state == FAILED
        host.calls[COUNT] = 2
        await run.step()
        assert run.sampler.statuses["gpu"].state == OK
        assert len(run.frames) == 1


# One GPU ------------------------------------------------------------------------------------------


def power(outcome_frame: Any) -> list[Reading]:
    return [r for (name, _), r in readings(outcome_frame).items() if name == POWER]


async def test_a_lost_gpu_keeps_its_columns_and_harms_no_other() -> None:
    host = host_with_gpus(2)
    async with run_sampler(host, [GpuSource.load()]) as run:
        healthy = {key: host.calls[key] for key in of_gpu(host, 1)}
        host.calls |= dict.fromkeys(healthy, LOST)
        await run.step()
        await run.step(6)  # probed again meanwhile
        await run.step(61)
        for frame in run.frames[1:]:
            assert frame.schema is run.frames[0].schema
            assert power(frame) == [500_000, Absent.GONE]
            lost = {r for (_, key), r in readings(frame).items() if key[0] == "GPU-1"}
            assert Absent.GONE in lost
            assert lost <= {Absent.GONE, Absent.UNSUPPORTED}
        assert run.sampler.statuses["gpu"].state == PARTIAL
        host.calls |= healthy
        await run.step()
        assert power(run.frames[-1]) == [500_000, 500_001]
        assert run.sampler.statuses["gpu"].state == OK


def test_a_gpu_that_was_lost_before_the_agent_came_is_reported() -> None:
    host = host_with_gpus(2)
    host.calls |= dict.fromkeys(of_gpu(host, 1), LOST)
    outcome = read_once(GpuSource.load(), host)
    assert power(outcome.frame) == [500_000]
    (finding,) = outcome.findings
    assert (finding.verdict, finding.detail) == (
        ProbeVerdict.BROKEN,
        "1 of 2 GPUs, driver 590.48.01",
    )


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (NvmlError(3), Absent.UNSUPPORTED),
        (NvmlError(4), Absent.DENIED),
        (NvmlError(10), Absent.TIMEOUT),
        (NvmlError(999), Absent.ERROR),
        ("nonsense", Absent.ERROR),
        (None, Absent.ERROR),
        (FileNotFoundError(2, "not in the capture"), Absent.UNSUPPORTED),
    ],
    ids=str,
)
def test_an_answer_costs_its_own_column_only(answer: object, reason: Absent) -> None:
    host = host_with_gpus(1)
    host.calls["nvml.nvmlDeviceGetPowerUsage(0)"] = answer
    found = readings(read_once(GpuSource.load(), host).frame)
    assert found[POWER, ("GPU-0",)] is reason
    healthy = readings(read_once(GpuSource.load(), host_with_gpus(1)).frame)
    assert {key for key in found if found[key] != healthy[key]} == {(POWER, ("GPU-0",))}


def test_a_lost_gpu_is_called_at_most_once_per_tick() -> None:
    host = host_with_gpus(2)
    reader = SourceReader(GpuSource.load(), host, ORIGIN)
    reader.run()
    host.calls |= dict.fromkeys(of_gpu(host, 1), LOST)
    host.asked = Counter()
    frame = reader.run().frame
    assert power(frame) == [500_000, Absent.GONE]
    assert sum(n for key, n in host.asked.items() if "(1" in key) == 1


# Changes of support
# ----------------------------------------------------------------------------------


def asked(host: FakeHost, function: str) -> int:
    return sum(n for key, n in host.asked.items() if key.startswith(f"nvml.{function}("))


def test_unsupported_calls_are_made_once() -> None:
    host = host_with_gpus(2)
    host.calls["nvml.nvmlDeviceGetPowerUsage(1)"] = NOT_SUPPORTED
    host.calls[FIELD.format(1, 185)] = [3, 0]
    reader = SourceReader(GpuSource.load(), host, ORIGIN)
    for _ in range(10):
        frame = reader.run().frame
    found = readings(frame)
    for metric, key in ((POWER, "nvml.nvmlDeviceGetPowerUsage({})"), (AVERAGE, FIELD)):
        assert found[metric, ("GPU-1",)] is Absent.UNSUPPORTED
        assert host.asked[key.format(1, 185)] == 1
        assert host.asked[key.format(0, 185)] >= 10


def test_a_field_that_the_gpu_lacks_is_read_by_its_call() -> None:
    host = host_with_gpus(1)
    host.calls[FIELD.format(0, 83)] = [3, 0]
    host.calls["nvml.nvmlDeviceGetTotalEnergyConsumption(0)"] = 77
    reader = SourceReader(GpuSource.load(), host, ORIGIN)
    for _ in range(3):
        found = readings(reader.run().frame)
        assert found["railscope_gpu_energy_joules_total", ("GPU-0",)] == 77
    assert host.asked[FIELD.format(0, 83)] == 1


def test_a_batch_that_fails_costs_its_own_columns_only() -> None:
    host = host_with_gpus(1)
    fields = [key for key in host.calls if "FieldValues(0" in key]
    host.calls |= dict.fromkeys(fields, NvmlError(999))
    found = readings(read_once(GpuSource.load(), host).frame)
    assert found[AVERAGE, ("GPU-0",)] is Absent.ERROR
    assert found[POWER, ("GPU-0",)] == 500_000


def test_failed_calls_are_repeated() -> None:
    host = host_with_gpus(1)
    key = "nvml.nvmlDeviceGetPowerUsage(0)"
    healthy, host.calls[key] = host.calls[key], NvmlError(999)
    reader = SourceReader(GpuSource.load(), host, ORIGIN)
    assert power(reader.run().frame) == [Absent.ERROR]
    host.calls[key] = healthy
    assert power(reader.run().frame) == [500_000]


def test_an_older_driver_is_called_by_the_older_name() -> None:
    host = host_with_gpus(1)
    new, old = "nvml.nvmlDeviceGetTemperatureV(0,0)", "nvml.nvmlDeviceGetTemperature(0,0)"
    host.calls[new], host.calls[old] = NvmlError(13, "Function Not Found"), 58
    reader = SourceReader(GpuSource.load(), host, ORIGIN)
    for _ in range(3):
        found = readings(reader.run().frame)
    assert found["railscope_gpu_temperature_celsius", ("GPU-0",)] == 58
    assert (host.asked[new], host.asked[old]) == (1, 1 + 3), "once when planned, once a read"


async def test_changed_gpus_are_probed_again() -> None:
    host = host_with_gpus(1)
    key = "nvml.nvmlDeviceGetPowerUsage(0)"
    host.calls[key] = NOT_SUPPORTED
    async with run_sampler(host, [GpuSource.load()]) as run:
        await run.step()
        assert host.asked[key] == 1
        host.calls["nvml.nvmlSystemGetDriverVersion()"] = "595.80"
        host.calls[key] = 77
        await run.step(60)
        found = readings(run.frames[-1])
        assert found[POWER, ("GPU-0",)] == 77


def test_a_tick_calls_each_function_of_each_gpu_once() -> None:
    host = host_with_gpus(8)
    reader = SourceReader(GpuSource.load(), host, ORIGIN)
    reader.run()
    requested = [key for key in host.calls if key in host.asked]
    host.asked = Counter()
    reader.run()
    assert set(host.asked.values()) == {1}
    assert 8 * len(load_table(FakeHost(), 0).calls) <= host.asked.total() <= len(requested)


# Invalid values -----------------------------------------------------------------------------


def test_memory_of_the_older_call_has_no_used() -> None:
    """Version 1 counts memory reserved by the driver as used: another quantity."""
    host = host_with_gpus(1)
    host.calls["nvml.nvmlDeviceGetMemoryInfo(0)"] = {"total": 80, "used": 21, "free": 59}
    found = readings(read_once(GpuSource.load(), host).frame)
    values = {name.split("_")[3]: r for (name, _), r in found.items() if "gpu_memory_" in name}
    assert values["size"] == 80
    assert values["free"] == 59
    assert values["used"] is values["reserved"] is Absent.UNSUPPORTED


@pytest.mark.parametrize(
    ("field", "reading"),
    [
        ([0, 70], 70),
        ([0, 0], Absent.UNSUPPORTED),
        ([0, 255], Absent.ERROR),
        ([3, 0], Absent.UNSUPPORTED),
    ],
)
def test_a_memory_temperature_must_be_plausible(field: list[int], reading: Reading) -> None:
    host = host_with_gpus(1)
    host.calls[FIELD.format(0, 82)] = field
    found = readings(read_once(GpuSource.load(), host).frame)
    assert found["railscope_gpu_memory_temperature_celsius", ("GPU-0",)] == reading


ONES = 0xFFFF_FFFF


@pytest.mark.parametrize(
    ("call", "answer", "metric"),
    [
        ("UtilizationRates(0)", {"gpu": 255, "memory": 3}, "utilization_ratio"),
        ("PowerUsage(0)", ONES, "power_watts"),
        ("PowerUsage(0)", -1, "power_watts"),
        ("TemperatureV(0,0)", ONES, "temperature_celsius"),
        ("TemperatureV(0,0)", 0x7FFF_FFF0, "temperature_celsius"),
        ("FieldValues(0,83)", [0, 2**64 - 1], "energy_joules_total"),
        ("FieldValues(0,83)", [0, ONES], "energy_joules_total"),
        ("MemoryInfo(0)", {"total": 80, "reserved": 1, "used": 81, "free": 0}, "memory_used_bytes"),
        ("MemoryInfo(0)", {"total": 80, "reserved": 1, "used": 1, "free": 81}, "memory_free_bytes"),
        ("MemoryInfo(0)", {"total": 2**64 - 1, "reserved": 1, "used": 2**64 - 1, "free": 0}, "memory_used_bytes"),
    ],
)  # fmt: skip
def test_an_impossible_value_is_an_error_and_no_sample(
    call: str, answer: object, metric: str
) -> None:
    host = host_with_gpus(2)
    host.calls[f"nvml.nvmlDeviceGet{call}"] = answer
    found = readings(read_once(GpuSource.load(), host).frame)
    assert found[f"railscope_gpu_{metric}", ("GPU-0",)] is Absent.ERROR
    assert isinstance(found[f"railscope_gpu_{metric}", ("GPU-1",)], int)


ALL_ONES = 2**64 - 1
FABRIC = {"state": 3, "status": 0, "healthSummary": 1, "healthMask": ONES}


@pytest.mark.parametrize(
    ("source", "call", "answer", "metric", "part"),
    [
        (GpuSource.load, "CurrentClocksEventReasons(0)", ALL_ONES, "throttle_active", ("hardware_power_brake",)),
        (GpuSource.load, "CurrentClocksEventReasons(0)", ONES, "throttle_active", ("hardware_thermal",)),
        (GpuSource.health, "GpuFabricInfoV(0)", FABRIC, "fabric_condition_active", ("misconfigured",)),
        (GpuSource.health, "EccMode(0)", [255, 1], "ecc_enabled", ()),
        (GpuSource.health, "RemappedRows(0)", [0, 0, 0, 255], "row_remap_failure", ()),
        (GpuSource.health, "EncoderStats(0)", [1, 30, -5], "encoder_latency_seconds", ()),
        (GpuSource.health, "CurrPcieLinkGeneration(0)", 255, "pcie_link_generation", ()),
        (GpuSource.health, "CurrPcieLinkGeneration(0)", 0, "pcie_link_generation", ()),
        (GpuSource.health, "CurrPcieLinkWidth(0)", 0, "pcie_link_width_lanes", ()),
        (GpuSource.health, "FieldValues(0,230)", [0, 0x7FFF_FFF0], "recovery_action", ()),
    ],
)  # fmt: skip
def test_an_impossible_number_is_an_error_also_in_flags_masks_and_states(
    source: Callable[[], GpuSource], call: str, answer: object, metric: str, part: tuple[str, ...]
) -> None:
    host = host_with_gpus(1)
    host.calls[f"nvml.nvmlDeviceGet{call}"] = answer
    found = readings(read_once(source(), host).frame)
    assert found[f"railscope_gpu_{metric}", ("GPU-0", *part)] is Absent.ERROR


def test_an_unknown_architecture_or_setting_is_no_label() -> None:
    host = host_with_gpus(1)
    for function in ("Architecture", "ModuleId", "PersistenceMode"):
        host.calls[f"nvml.nvmlDeviceGet{function}(0)"] = ONES
    outcome = read_once(GpuSource.settings(), host)
    assert outcome.frame
    facts = [value for entity in outcome.frame.schema.entities for value in entity.facts.values()]
    assert str(ONES) not in facts


def test_links_to_a_grace_processor_are_reported_one_by_one() -> None:
    host = host_with_gpus(1)
    host.calls[FIELD.format(0, 170)] = [0, 2]
    for link in range(2):
        values = {171: 1 - link, 172: 45_000, 231: link, 232: 7 * link, 233: 0}
        for field, value in values.items():
            host.calls[FIELD.format(0, f"{field}:{link}")] = [0, value]
    found = readings(read_once(GpuSource.settings(), host).frame)
    assert found["railscope_gpu_c2c_links", ("GPU-0",)] == 2
    assert found["railscope_gpu_c2c_link_active", ("GPU-0", "0")] == 1
    assert found["railscope_gpu_c2c_link_active", ("GPU-0", "1")] == 0
    assert found["railscope_gpu_c2c_errors_total", ("GPU-0", "1", "replay")] == 7


@pytest.mark.parametrize("count", [65, -1, 2**32 - 1, "two"])
def test_parts_whose_number_no_gpu_has_are_errors(count: object) -> None:
    host = host_with_gpus(1)
    host.calls["nvml.nvmlDeviceGetNumFans(0)"] = count
    host.calls[FIELD.format(0, 170)] = [0, count]
    found = readings(read_once(GpuSource.settings(), host).frame)
    assert found["railscope_gpu_fan_speed_ratio", ("GPU-0", "0")] is Absent.ERROR
    assert found["railscope_gpu_c2c_links", ("GPU-0",)] is Absent.ERROR


def test_throttle_reasons_are_reported_one_by_one() -> None:
    host = host_with_gpus(1)
    host.calls["nvml.nvmlDeviceGetCurrentClocksEventReasons(0)"] = 0x48
    found = readings(read_once(GpuSource.load(), host).frame)
    active = {key[1] for (name, key), r in found.items() if name.endswith("_active") and r == 1}
    assert active == {"hardware_slowdown", "hardware_thermal"}


async def test_a_machine_without_gpus_stays_unsupported() -> None:
    host = FakeHost()
    async with run_sampler(host, [GpuSource.load(), GpuSource.health()]) as run:
        await run.step(10)
        assert {status.state for status in run.sampler.statuses.values()} == {UNSUPPORTED}
        assert run.frames == []


@pytest.mark.parametrize("code", [1, 9, 15])
def test_unsupported_calls_are_repeated_after_the_gpu_was_away(code: int) -> None:
    """ECC or another mode may have been switched meanwhile, or the driver exchanged."""
    host = host_with_gpus(1)
    asked, other = "nvml.nvmlDeviceGetPowerUsage(0)", "nvml.nvmlDeviceGetMemoryInfo(0)"
    healthy, host.calls[asked] = host.calls[asked], NOT_SUPPORTED
    reader = SourceReader(GpuSource.load(), host, ORIGIN)
    power = (POWER, ("GPU-0",))
    assert readings(reader.run().frame)[power] is Absent.UNSUPPORTED
    host.calls[asked] = healthy
    host.clock.advance(60)
    assert readings(reader.run().frame)[power] is Absent.UNSUPPORTED, "nothing was away"
    memory, host.calls[other] = host.calls[other], NvmlError(code)
    reader.run()
    host.calls[other] = memory
    host.clock.advance(5)
    assert readings(reader.run().frame)[power] == healthy


def test_a_frame_is_of_the_moment_after_a_slow_probe() -> None:
    host = host_with_gpus(1)
    count = host.calls[COUNT]

    def slowly() -> int:
        host.clock.advance(4)
        return int(count)

    host.calls[COUNT] = slowly
    before = host.clock.now().boot_ns
    outcome = read_once(GpuSource.load(), host)
    assert outcome.frame is not None
    assert outcome.frame.timestamp.boot_ns == before + 4 * NS
    assert outcome.cost.total.wall_ns == 4 * NS
