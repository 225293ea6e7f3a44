"""Profiles of NVIDIA's mock NVML (NVIDIA/k8s-test-infra), as the answers of its devices.

Fields missing in a profile are not answered; values that its engine invents are not, either.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from support.nvidia_smi import CLOCKS, Answers

Profile = Mapping[str, Any]

ARCHITECTURES = {"turing": 6, "ampere": 7, "hopper": 9}
_FIRST_WITH_MARGINS = 8  # Ada
_NVLINK_VERSIONS = {3: 4, 4: 6}  # nvml.h: 4 is 3.0, 6 is 4.0
_SWITCH, _ACTIVE = 2, 1
_COMPLETED, _HEALTHY = 3, 1
# Bandwidth, route recovery, route and access are in order (2 is false), and so is the configuration.
_HEALTH_MASK = 2 | 2 << 2 | 2 << 4 | 2 << 6 | 1 << 8
SAMPLE_PERIOD_US = 167_000
_MODES = {"enabled": 1, "disabled": 0, "default": 0, "none": 0}
_REASONS = (
    "gpu_idle", "applications_clocks_setting", "sw_power_cap", "hw_slowdown", "sync_boost",
    "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown",
    "display_clocks_setting",
)  # fmt: skip
_LOCATIONS = {
    "l1_cache": 0,
    "l2_cache": 1,
    "device_memory": 2,
    "register_file": 3,
    "texture_memory": 4,
}


def profile(path: Path) -> Profile:
    """Return a profile as written."""
    loaded: Profile = yaml.load(path.read_text(), yaml.CSafeLoader)
    return loaded


def devices(written: Profile) -> list[Profile]:
    """Return every device, with the defaults for missing fields."""
    return [_merged(written["device_defaults"], device) for device in written["devices"]]


def answers(written: Profile) -> Answers:
    """Return the answers of a driver that has the devices of a profile."""
    system = written["system"]
    reported: Answers = {
        "nvml.nvmlDeviceGetCount()": len(written["devices"]),
        "nvml.nvmlSystemGetDriverVersion()": system["driver_version"],
        "nvml.nvmlSystemGetCudaDriverVersion()": (
            1000 * system["cuda_version_major"] + 10 * system["cuda_version_minor"]
        ),
    }
    for device in devices(written):
        index = device["index"]
        calls = (*_whole(device), *_with_arguments(device), *_nvlinks(written.get("nvlink", {})))
        for call, *arguments, answer in calls:
            reported[f"nvml.nvmlDeviceGet{call}({','.join(map(str, (index, *arguments)))})"] = (
                answer
            )
    return reported


def _merged(base: Profile, over: Profile) -> dict[str, Any]:
    both = {
        name: _merged(base[name], value) if isinstance(base.get(name), dict) else value
        for name, value in over.items()
    }
    return {**base, **both}


def _whole(device: Profile) -> Iterator[tuple[Any, ...]]:
    """Yield calls with the device as their only argument."""
    memory, bar1, pcie, power = (device[n] for n in ("memory", "bar1_memory", "pcie", "power"))
    domain, rest = device["pci"]["bus_id"].split(":", 1)
    yield "PciInfo", {"busId": f"{int(domain, 16):08X}:{rest}"}
    yield "UUID", device["uuid"]
    yield "Name", device["name"]
    yield "Serial", device["serial"]
    yield "MinorNumber", device["minor_number"]
    yield "VbiosVersion", device["vbios_version"]
    yield "BoardPartNumber", device["board_part_number"]
    yield "InforomImageVersion", device["inforom"]["image_version"]
    yield "GspFirmwareVersion", device["gsp_firmware"]["version"]
    yield "GspFirmwareMode", [_MODES[device["gsp_firmware"]["mode"]], 1]
    yield "Architecture", ARCHITECTURES[device["architecture"]]
    yield "CudaComputeCapability", list(device["compute_capability"].values())
    yield "VirtualizationMode", _MODES[device["virtualization"]["mode"]]
    yield "MemoryInfo", {n: memory[f"{n}_bytes"] for n in ("total", "reserved", "free", "used")}
    yield (
        "BAR1MemoryInfo",
        {f"bar1{n.title()}": bar1[f"{n}_bytes"] for n in ("total", "free", "used")},
    )
    yield "CurrPcieLinkGeneration", pcie["current_link_gen"]
    yield "MaxPcieLinkGeneration", pcie["max_link_gen"]
    yield "CurrPcieLinkWidth", pcie["current_link_width"]
    yield "MaxPcieLinkWidth", pcie["max_link_width"]
    yield "PowerUsage", power["current_draw_mw"]
    yield "EnforcedPowerLimit", power["enforced_limit_mw"]
    yield "PowerManagementDefaultLimit", power["default_limit_mw"]
    yield "PowerManagementLimitConstraints", [power["min_limit_mw"], power["max_limit_mw"]]
    yield "NumFans", device["fan"]["count"]
    yield "PerformanceState", int(device["performance_state"].removeprefix("P"))
    busy = device["utilization"]
    yield "UtilizationRates", {"gpu": busy["gpu"], "memory": busy["memory"]}
    for call, engine in (
        ("Encoder", "encoder"),
        ("Decoder", "decoder"),
        ("Jpg", "jpeg"),
        ("Ofa", "ofa"),
    ):
        yield f"{call}Utilization", [busy[engine], SAMPLE_PERIOD_US]
    yield "EncoderStats", list(device["encoder_stats"].values())
    active = device["clocks_throttle_reasons"]
    yield "CurrentClocksEventReasons", sum(active[r] << n for n, r in enumerate(_REASONS))
    yield "EccMode", [_MODES[device["ecc"][f"mode_{when}"]] for when in ("current", "pending")]
    yield "MigMode", [_MODES[device["mig"][f"mode_{when}"]] for when in ("current", "pending")]
    rows = device["remapped_rows"]
    yield (
        "RemappedRows",
        [int(rows[n]) for n in ("correctable", "uncorrectable", "pending", "failure_occurred")],
    )
    if "availability_histogram" in rows:
        yield "RowRemapperHistogram", rows["availability_histogram"]
    yield "RetiredPagesPendingStatus", int(device["retired_pages"]["pending_retirement"])
    yield "PersistenceMode", _MODES[device["persistence_mode"]]
    yield "ComputeMode", _MODES[device["compute_mode"]]
    yield "AccountingMode", _MODES[device["accounting"]["mode"]]
    if "fabric" in device:
        yield "GpuFabricInfoV", _fabric(device["fabric"])
    for what in ("Compute", "Graphics", "MPSCompute"):
        yield f"{what}RunningProcesses", device["processes"]


def _fabric(fabric: Profile) -> dict[str, Any]:
    """Return a healthy fabric, which the mock makes of `state: auto`."""
    return {
        "clusterUuid": list(uuid.UUID(fabric["cluster_uuid"]).bytes),
        "cliqueId": fabric["clique_id"],
        "state": {"auto": _COMPLETED}[fabric["state"]],
        "status": 0,
        "healthMask": _HEALTH_MASK,
        "healthSummary": _HEALTHY,
    }


def _with_arguments(device: Profile) -> Iterator[tuple[Any, ...]]:
    power, heat, clocks = device["power"], device["thermal"], device["clocks"]
    yield "TemperatureV", 0, heat["temperature_gpu_c"]
    for place, clock in enumerate(CLOCKS):
        yield "ClockInfo", place, clocks[f"{clock}_current"]
        yield "MaxClockInfo", place, clocks[f"{clock}_max"]
    thresholds = {0: "shutdown_threshold_c", 1: "slowdown_threshold_c", 3: "max_operating_c"}
    margins = ARCHITECTURES[device["architecture"]] >= _FIRST_WITH_MARGINS
    for place, name in thresholds.items():
        if margins:  # counted from the slowdown temperature of the GPU
            yield "FieldValues", 193 + place, [0, heat["slowdown_threshold_c"] - heat[name]]
        else:
            yield "TemperatureThreshold", place, heat[name]
    fields = {
        82: heat["temperature_memory_c"], 83: power["total_energy_consumption_mj"],
        94: device["pcie"]["replay_counter"],
        185: power["current_draw_mw"], 186: power["current_draw_mw"],
        187: power["min_limit_mw"], 188: power["max_limit_mw"], 189: power["default_limit_mw"],
    }  # fmt: skip
    for field, value in fields.items():
        yield "FieldValues", field, [0, value]
    pages = device["retired_pages"]
    yield "RetiredPages", 0, pages["single_bit_retirement"]["addresses"]
    yield "RetiredPages", 1, pages["double_bit_retirement"]["addresses"]
    for counter, lifetime in enumerate(("volatile", "aggregate")):
        for kind, bits in enumerate(("single_bit", "double_bit")):
            errors = device["ecc"]["errors"][lifetime][bits]
            yield "TotalEccErrors", kind, counter, errors["total"]
            yield "FieldValues", 3 + 2 * counter + kind, [0, errors["total"]]
            for name, place in _LOCATIONS.items():
                yield "MemoryErrorCounter", kind, counter, place, errors[name]


def _nvlinks(fabric: Profile) -> Iterator[tuple[Any, ...]]:
    """Yield links to the switches in turn, all of them up."""
    if not fabric:
        return
    yield "C2cModeInfoV", {"isC2cEnabled": int(fabric.get("c2c_enabled", False))}
    yield "FieldValues", 91, [0, fabric["links_per_gpu"]]
    switches = [switch["bdf"] for switch in fabric["switches"]]
    for link in range(fabric["links_per_gpu"]):
        yield "FieldValues", f"165:{link}", [0, _ACTIVE]
        yield "FieldValues", f"164:{link}", [0, fabric["bandwidth_per_link_mbps"]]
        yield "NvLinkVersion", link, _NVLINK_VERSIONS[fabric["version"]]
        yield "NvLinkRemoteDeviceType", link, _SWITCH
        yield "NvLinkRemotePciInfo", link, {"busId": switches[link % len(switches)]}
