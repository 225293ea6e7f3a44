"""The NVML interface through the real nvidia-ml-py, with and without a library."""

from __future__ import annotations

import ctypes

import pytest
from support.full_gpus import full_gpus
from support.reading import ORIGIN, read_once, readings
from support.standin import LIBRARY, NvmlStandin, StandinHost, code_of, scenario
from support.standin_table import DOUBLE, INT, LLONG, UINT, ULLONG, ULONG, USHORT

from railscope.reading import Absent
from railscope_agent.host import Json, NvmlError
from railscope_agent.host.live_host import LiveHost
from railscope_agent.host.nvml import Nvml
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.sources.nvidia.gpu_devices import GpuSource


def test_a_machine_without_the_driver() -> None:
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        with pytest.raises(NvmlError) as raised:
            LiveHost().call("nvml", "nvmlDeviceGetCount")
        assert raised.value.code == 12
    else:
        pytest.skip("this machine has the NVIDIA driver")


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


@scenario(
    hidden=[
        "nvmlDeviceGetTemperatureV", "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetMarginTemperature", "nvmlGpmQueryDeviceSupport",
    ]
)  # fmt: skip
def test_an_older_driver_is_called_by_the_older_names(standin: NvmlStandin) -> None:
    """Its memory has no reserved part, and its fabric no health; a function that is missing is unsupported."""
    calls = full_gpus(1)
    calls["nvml.nvmlDeviceGetTemperature(0,0)"] = 61
    calls["nvml.nvmlDeviceGetCurrentClocksThrottleReasons(0)"] = 0x4
    fabric = calls.pop("nvml.nvmlDeviceGetGpuFabricInfoV(0)")
    older = {name: fabric[name] for name in ("clusterUuid", "status", "cliqueId", "state")}
    calls["nvml.nvmlDeviceGetGpuFabricInfo(0)"] = older
    standin.load(calls)
    host = StandinHost()
    for function in ("nvmlDeviceGetMagic", "nvmlDeviceGetMarginTemperature"):
        assert code_of(host.nvml, function, 0) == 13
    assert code_of(host.nvml, "nvmlGpmMetricsGet", 0, 2) == 13
    reader = SourceReader(GpuSource.load(), host, ORIGIN)
    found = [readings(reader.run().frame) for _ in range(2)][-1]
    found |= readings(read_once(GpuSource.health(), host).frame)
    memory = calls["nvml.nvmlDeviceGetMemoryInfo(0)"]
    expected = {
        "temperature_celsius": 61, "memory_size_bytes": memory["total"], "memory_free_bytes": memory["free"],
        "memory_used_bytes": Absent.UNSUPPORTED, "memory_reserved_bytes": Absent.UNSUPPORTED,
        "fabric_state": older["state"], "fabric_health": Absent.UNSUPPORTED,
        "temperature_margin_celsius": Absent.UNSUPPORTED,
    }  # fmt: skip
    for name, reading in expected.items():
        assert found[f"railscope_gpu_{name}", ("GPU-0",)] == reading, name
    active = {
        key[1] for (name, key), reading in found.items() if "throttle_active" in name and reading
    }
    assert active == {"software_power_cap"}
