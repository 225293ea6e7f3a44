"""The NVML interface through the real nvidia-ml-py, with and without a library."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

import pytest
from support.full_gpus import full_gpus
from support.reading import ORIGIN, read_once, readings
from support.standin import LIBRARY, NvmlStandin, StandinHost, code_of, scenario
from support.standin_table import DOUBLE, INT, LLONG, UINT, ULLONG, ULONG, USHORT, error

from railscope.reading import Absent
from railscope_agent.host import Json, NvmlError
from railscope_agent.host.live_host import LiveHost
from railscope_agent.host.nvml import Nvml
from railscope_agent.host.nvml_gpm import SHORTEST_NS
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.sources.nvidia.gpu_devices import GpuSource

_LOW = 0xFFFF_FFFF


def test_a_machine_without_the_driver() -> None:
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        with pytest.raises(NvmlError) as raised:
            LiveHost().call("nvml", "nvmlDeviceGetCount")
        assert raised.value.code == 12
    else:
        pytest.skip("this machine has the NVIDIA driver")


def test_a_copied_tree_has_no_gpus_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(NvmlError, match="copied tree") as raised:
        LiveHost(tmp_path).call("nvml", "nvmlDeviceGetCount")
    assert raised.value.code == 12


def asked(key: str) -> tuple[str, list[int | str]]:
    """Function and arguments of a capture's key."""
    match = re.fullmatch(r"nvml\.(\w+)\((.*)\)", key)
    assert match is not None
    parts = [part for part in match[2].split(",") if part]
    return match[1], [int(part) if part.isdigit() else part for part in parts]


@scenario()
def test_every_answer_comes_through_as_the_driver_gave_it(standin: NvmlStandin) -> None:
    calls = full_gpus(2, cut=[1], virtual=[0])
    standin.load(calls)
    now = [0]
    nvml = Nvml(lambda: now[0])
    nvml.call("nvmlDeviceGetMigDevices", 1)
    kinds = {type(answer) for answer in calls.values()}
    assert kinds == {int, str, list, dict}
    for key, expected in calls.items():
        function, arguments = asked(key)
        if function == "nvmlGpmMetricsGet":
            continue
        answer = nvml.call(function, *arguments)
        if function == "nvmlDeviceGetFieldValues":
            assert answer == [[expected[1]], [expected[0]]], key
        elif function == "nvmlDeviceGetVgpuUtilization":
            assert answer[0]["smUtil"] & _LOW == expected[0]["smUtil"], key
            assert answer[0]["smUtil"] >> 32, "the unused bytes are not cleared by the driver"
        elif isinstance(expected, dict):
            assert {name: answer[name] for name in expected} == expected, key
        else:
            assert answer == expected, key


@scenario()
def test_every_metric_of_two_samples_comes_through(standin: NvmlStandin) -> None:
    calls = full_gpus(2, cut=[1])
    standin.load(calls)
    now = [0]
    nvml = Nvml(lambda: now[0])
    nvml.call("nvmlDeviceGetMigDevices", 1)
    by_device: dict[int | str, dict[int, float]] = {}
    for key, (code, value) in ((k, v) for k, v in calls.items() if "GpmMetricsGet" in k):
        _, (device, metric) = asked(key)
        assert code == 0
        by_device.setdefault(device, {})[int(metric)] = value
    assert set(by_device) == {0, 1, "MIG-1-0", "MIG-1-2"}
    missing = 99
    for device, metrics in by_device.items():
        assert code_of(nvml, "nvmlGpmMetricsGet", device, *metrics) == 27
    now[0] += SHORTEST_NS
    for device, metrics in by_device.items():
        answer = nvml.call("nvmlGpmMetricsGet", device, *metrics, missing)
        assert answer == [[*metrics.values(), 0.0], [*[0] * len(metrics), 3]]


FIELDS: dict[str, tuple[Json, int | float]] = {
    "500": ([0, 43.25, DOUBLE], 43.25),
    "501": ([0, 7, UINT], 7),
    "502": ([0, 1 << 63, ULONG], 1 << 63),
    "503:4": ([0, (1 << 64) - 1, ULLONG], (1 << 64) - 1),
    "504": ([0, -(1 << 63), LLONG], -(1 << 63)),
    "505": ([0, -7, INT], -7),
    "506": ([0, 65_535, USHORT], 65_535),
    "138:4294967295": ([0, 5], 5),
    "82": ([0, 0xDEAD_BEEF_0000_0036, ULLONG], 54),
    "508": ([3, 0], 0),
    "509": ([999, 0], 0),
}


@scenario()
def test_a_field_has_the_width_of_its_type(standin: NvmlStandin) -> None:
    """The memory's temperature is not: some drivers mislabel it (NVIDIA/DCGM)."""
    calls = {
        f"nvml.nvmlDeviceGetFieldValues(0,{entry})": pair for entry, (pair, _) in FIELDS.items()
    }
    standin.load({"nvml.nvmlDeviceGetCount()": 1} | calls)
    for _ in range(2):
        values, codes = Nvml().call("nvmlDeviceGetFieldValues", 0, *FIELDS, 700, "700:3")
        assert values == [*(value for _, value in FIELDS.values()), 0, 0]
        assert codes == [*(pair[0] for pair, _ in FIELDS.values()), 3, 3]


@scenario()
def test_a_batch_can_fail_as_a_whole(standin: NvmlStandin) -> None:
    calls = full_gpus(1)
    calls["nvml.nvmlDeviceGetFieldValues(0,82)"] = error(999)
    standin.load(calls)
    assert code_of(Nvml(), "nvmlDeviceGetFieldValues", 0, 83, 82) == 999


@scenario(hidden=["nvmlDeviceGetTemperatureV", "nvmlDeviceGetCurrentClocksEventReasons"])
def test_the_older_function_is_called_if_the_newer_is_missing(standin: NvmlStandin) -> None:
    calls = full_gpus(1)
    calls["nvml.nvmlDeviceGetTemperature(0,0)"] = 61
    calls["nvml.nvmlDeviceGetCurrentClocksThrottleReasons(0)"] = 0x4
    standin.load(calls)
    host = StandinHost()
    assert code_of(host.nvml, "nvmlDeviceGetTemperatureV", 0, 0) == 13
    found = readings(read_once(GpuSource.load(), host).frame)
    assert found["railscope_gpu_temperature_celsius", ("GPU-0",)] == 61
    active = {
        key[1] for (name, key), reading in found.items() if "throttle_active" in name and reading
    }
    assert active == {"software_power_cap"}


@scenario(hidden=["nvmlDeviceGetMemoryInfo_v2"])
def test_a_driver_without_reserved_memory_reports_memory(
    standin: NvmlStandin,
) -> None:
    standin.load(full_gpus(1))
    host = StandinHost()
    reader = SourceReader(GpuSource.load(), host, ORIGIN)
    for _ in range(2):
        found = readings(reader.run().frame)
    values = {
        name: found[f"railscope_gpu_memory_{name}_bytes", ("GPU-0",)]
        for name in ("size", "free", "used", "reserved")
    }
    memory = full_gpus(1)["nvml.nvmlDeviceGetMemoryInfo(0)"]
    assert (values["size"], values["free"]) == (memory["total"], memory["free"])
    assert values["used"] is values["reserved"] is Absent.UNSUPPORTED


@scenario(hidden=["nvmlDeviceGetGpuFabricInfoV"])
def test_the_fabric_of_driver_535_has_a_state_and_no_health(standin: NvmlStandin) -> None:
    calls = full_gpus(1)
    fabric = calls.pop("nvml.nvmlDeviceGetGpuFabricInfoV(0)")
    older = {name: fabric[name] for name in ("clusterUuid", "status", "cliqueId", "state")}
    calls["nvml.nvmlDeviceGetGpuFabricInfo(0)"] = older
    standin.load(calls)
    host = StandinHost()
    assert host.nvml.call("nvmlDeviceGetGpuFabricInfo", 0) == older
    frame = read_once(GpuSource.health(), host).frame
    found = readings(frame)
    assert found["railscope_gpu_fabric_state", ("GPU-0",)] == older["state"]
    assert found["railscope_gpu_fabric_health", ("GPU-0",)] is Absent.UNSUPPORTED
    conditions = [
        r for (name, _), r in found.items() if name == "railscope_gpu_fabric_condition_active"
    ]
    assert set(conditions) == {Absent.UNSUPPORTED}
    assert frame is not None
    facts = next(e.facts for e in frame.schema.entities if e.kind.name == "gpu")
    assert facts["fabric_clique"] == str(older["cliqueId"])


@scenario(hidden=["nvmlDeviceGetMarginTemperature", "nvmlGpmQueryDeviceSupport"])
def test_a_function_missing_from_driver_and_binding_is_unknown(standin: NvmlStandin) -> None:
    standin.load(full_gpus(1))
    host = StandinHost()
    assert code_of(host.nvml, "nvmlDeviceGetMagic", 0) == 13
    assert code_of(host.nvml, "nvmlDeviceGetMarginTemperature", 0) == 13
    assert code_of(host.nvml, "nvmlGpmMetricsGet", 0, 2) == 13
    found = readings(read_once(GpuSource.health(), host).frame)
    assert found["railscope_gpu_temperature_margin_celsius", ("GPU-0",)] is Absent.UNSUPPORTED


@scenario()
def test_missing_features_of_a_device_are_not_supported(standin: NvmlStandin) -> None:
    calls = full_gpus(1)
    del calls["nvml.nvmlDeviceGetEccMode(0)"]
    del calls["nvml.nvmlDeviceGetSramEccErrorStatus(0)"]
    calls["nvml.nvmlDeviceGetRemappedRows(0)"] = error(3)
    calls["nvml.nvmlDeviceGetSerial(0)"] = error(4)
    standin.load(calls)
    nvml = Nvml()
    for function in ("EccMode", "SramEccErrorStatus", "RemappedRows"):
        assert code_of(nvml, f"nvmlDeviceGet{function}", 0) == 3
    assert code_of(nvml, "nvmlDeviceGetSerial", 0) == 4
    assert code_of(nvml, "nvmlDeviceGetName", 7) == 2


@scenario()
def test_structures_of_an_older_driver_are_requested_in_their_version(standin: NvmlStandin) -> None:
    calls = full_gpus(1)
    fabric = calls["nvml.nvmlDeviceGetGpuFabricInfoV(0)"]
    del fabric["healthSummary"]
    calls["nvml.nvmlDeviceGetPlatformInfo(0)"] = place = {
        "rackGuid": "RACK", "chassisPhysicalSlotNumber": "\x09", "computeSlotIndex": "\x02",
        "nodeIndex": "\x01", "peerType": "\x00", "moduleId": "\x03",
    }  # fmt: skip
    standin.load(calls)
    nvml = Nvml()
    for function, expected in (("GpuFabricInfoV", fabric), ("PlatformInfo", place)):
        answer = nvml.call(f"nvmlDeviceGet{function}", 0)
        assert {name: answer[name] for name in expected} == expected
        assert standin.calls(f"nvmlDeviceGet{function}") == 2, "the newest version came first"
    assert "healthSummary" not in nvml.call("nvmlDeviceGetGpuFabricInfoV", 0)


@scenario()
def test_a_wrong_version_of_a_structure_is_rejected(standin: NvmlStandin) -> None:
    standin.load(full_gpus(1))
    Nvml().call("nvmlDeviceGetCount")
    import pynvml  # noqa: PLC0415 - it must not be loaded before the library is there

    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)

    def refused(call: Any, *arguments: Any) -> bool:
        with pytest.raises(pynvml.NVMLError) as raised:
            call(*arguments)
        return bool(raised.value.value == 25)

    assert refused(pynvml.nvmlDeviceGetMemoryInfo, gpu, pynvml.nvmlMemory_v2 + 8)
    assert refused(pynvml.nvmlGpmMetricsGet, pynvml.c_nvmlGpmMetricsGet_t(version=2))
    sram = pynvml.c_nvmlEccSramErrorStatus_v1_t()
    sram.version += 1 << 24
    assert refused(pynvml.nvmlDeviceGetSramEccErrorStatus, gpu, ctypes.byref(sram))


@scenario()
def test_a_list_is_requested_until_the_buffer_is_large_enough(standin: NvmlStandin) -> None:
    calls = full_gpus(1, virtual=[0])
    calls["nvml.nvmlDeviceGetMPSComputeRunningProcesses(0)"] = []
    calls["nvml.nvmlDeviceGetRetiredPages(0,0)"] = []
    standin.load(calls)
    nvml = Nvml()
    for function, symbol, arguments, asked_for in (
        ("ComputeRunningProcesses", "ComputeRunningProcesses_v3", [], 2),
        ("MPSComputeRunningProcesses", "MPSComputeRunningProcesses_v3", [], 1),
        ("ActiveVgpus", "ActiveVgpus", [], 2),
        ("ProcessUtilization", "ProcessUtilization", [], 2),
        ("RetiredPages", "RetiredPages", [1], 2),
    ):
        key = f"nvml.nvmlDeviceGet{function}({','.join(map(str, [0, *arguments]))})"
        assert nvml.call(f"nvmlDeviceGet{function}", 0, *arguments) == calls[key]
        assert standin.calls(f"nvmlDeviceGet{symbol}") == asked_for
    assert nvml.call("nvmlDeviceGetRetiredPages", 0, 0) == []


@scenario()
def test_text_that_is_none_costs_its_own_fact_only(standin: NvmlStandin) -> None:
    calls = full_gpus(1)
    calls["nvml.nvmlDeviceGetSerial(0)"] = "\udcff\udcfe"
    standin.load(calls)
    host = StandinHost()
    assert code_of(host.nvml, "nvmlDeviceGetSerial", 0) == 999
    outcome = read_once(GpuSource.load(), host)
    assert not outcome.problem
    (facts,) = {e.key: e.facts for e in outcome.frame.schema.entities if e.facts}.values()  # type: ignore[union-attr] - it has a frame
    assert facts["tray"] == "8"
    assert "serial" not in facts
