"""What NVML answers about the simulated GPUs."""

from __future__ import annotations

from railscope.capture import Json, Moment, NvmlError, failure
from railscope.simulator.machine import DRIVER_VERSION, Gpu, GpuModel
from railscope.simulator.model import NodeModel
from railscope.simulator.silicon import Silicon

GPU_IS_LOST = 15
FIELDS = (82, 74, 75, 76, 269, 270, 271)
"""Memory temperature; then the nanoseconds under power cap, heat (older name), sync boost, heat by
software, heat by hardware, power brake."""

_MEMORY_V2 = 0x0200_0028
_MEMORY_TEMPERATURE, _POWER_CAP, _THERMAL, _SOFTWARE_THERMAL, _HARDWARE_THERMAL = (
    82,
    74,
    75,
    269,
    270,
)


def show(model: NodeModel, into: Moment) -> None:
    """Put NVML's answers into a moment. A lost GPU answers nothing but that it is lost."""
    into.calls["nvml.nvmlDeviceGetCount()"] = len(model.gpus)
    into.calls["nvml.nvmlSystemGetDriverVersion()"] = DRIVER_VERSION
    lost = failure(NvmlError(GPU_IS_LOST))
    for gpu, silicon in zip(model.machine.gpus, model.gpus, strict=True):
        answers = _identity(gpu, model.machine.model) | _state(gpu.index, silicon)
        for call, answer in answers.items():
            into.calls[f"nvml.nvmlDeviceGet{call}"] = lost if silicon.lost else answer


def _identity(gpu: Gpu, model: GpuModel) -> dict[str, Json]:
    i = gpu.index
    domain, bus, slot = gpu.pci_address.partition(".")[0].split(":")
    answers: dict[str, Json] = {
        f"UUID({i})": gpu.uuid,
        f"Name({i})": model.name,
        f"Serial({i})": gpu.serial,
        f"MinorNumber({i})": i,
        f"VbiosVersion({i})": model.vbios,
        f"Architecture({i})": model.architecture,
        f"PciInfo({i})": {
            "busIdLegacy": gpu.pci_address.upper(),
            "domain": int(domain, 16),
            "bus": int(bus, 16),
            "device": int(slot, 16),
            "pciDeviceId": model.pci_device,
            "pciSubSystemId": model.pci_subsystem,
            "busId": f"0000{gpu.pci_address}".upper(),
        },
        f"EnforcedPowerLimit({i})": model.power_limit_milliwatts,
        f"EccMode({i})": [1, 1],
        f"CurrPcieLinkGeneration({i})": 5,
        f"MaxPcieLinkGeneration({i})": 5,
        f"CurrPcieLinkWidth({i})": 16,
        f"MaxPcieLinkWidth({i})": 16,
    }
    most = model.most_megahertz
    limits = (most, most, model.memory_megahertz, model.most_video_megahertz)
    for kind, megahertz in enumerate(limits):
        answers[f"MaxClockInfo({i},{kind})"] = megahertz
    return answers


def _state(i: int, silicon: Silicon) -> dict[str, Json]:
    model = silicon.model
    used = silicon.memory_used_bytes
    answers: dict[str, Json] = {
        f"UtilizationRates({i})": {
            "gpu": silicon.occupied_percent,
            "memory": silicon.memory_percent,
        },
        f"MemoryInfo({i})": {
            "version": _MEMORY_V2,
            "total": model.memory_bytes,
            "reserved": model.reserved_bytes,
            "free": model.memory_bytes - model.reserved_bytes - used,
            "used": used,
        },
        f"PerformanceState({i})": 0,
        f"PowerUsage({i})": silicon.power_milliwatts,
        f"TotalEnergyConsumption({i})": silicon.energy_millijoules,
        f"TemperatureV({i},0)": silicon.core_celsius,
        f"CurrentClocksEventReasons({i})": silicon.reasons,
        f"RemappedRows({i})": [silicon.rows_to_remap, 0, min(silicon.rows_to_remap, 1), 0],
        f"PcieReplayCounter({i})": silicon.pcie_replays,
        f"FieldValues({','.join(map(str, (i, *FIELDS)))})": _fields(silicon),
    }
    clock, video = silicon.clock_megahertz, silicon.video_megahertz
    for kind, megahertz in enumerate((clock, clock, model.memory_megahertz, video)):
        answers[f"ClockInfo({i},{kind})"] = megahertz
    corrected = (silicon.corrected_errors, silicon.corrected_errors_for_life)
    for lifetime in (0, 1):
        answers[f"TotalEccErrors({i},0,{lifetime})"] = corrected[lifetime]
        answers[f"TotalEccErrors({i},1,{lifetime})"] = 0
    return answers


def _fields(silicon: Silicon) -> Json:
    throttled = silicon.throttled
    known = {
        _MEMORY_TEMPERATURE: silicon.memory_celsius,
        _POWER_CAP: throttled.power_cap_ns,
        _THERMAL: throttled.software_thermal_ns,
        _SOFTWARE_THERMAL: throttled.software_thermal_ns,
        _HARDWARE_THERMAL: throttled.hardware_thermal_ns,
    }
    return [[0, known.get(field, 0)] for field in FIELDS]
