"""Rapidly changing values of a GPU: activity, memory, clocks, power, temperature, traffic."""

from __future__ import annotations

from simulator.gpu import GpuState
from simulator.gpu_model import Generation
from simulator.nvml.answers import ALL_LINKS, FUNCTION_NOT_FOUND, Answers, where

_MEMORY_V2 = 0x0200_0028
_ENCODER_PERIOD_US = 167_000
_MODULE, _MEMORY = "186:1", "185:2"
_POWER_SAMPLES, _UTILIZATION_SAMPLES = 0, 1
_GRACE_WATTS = 75.0
"""Power of a Grace processor, for each of its two GPUs, while it only feeds them."""

_REASONS = 0x1FF
_BYTE_COUNTERS_SINCE, _TEMPERATURE_V_SINCE = 560, 575
_HEAT_COUNTERS = {575: 251, 590: 269}
"""First field of the three slowdown counters, by the driver version that introduced it."""


def tell(gpu: GpuState, told: Answers) -> None:
    """Add the load of this GPU."""
    _tell_memory_and_clocks(gpu, told)
    model, silicon = gpu.model, gpu.silicon
    whole = not gpu.sharing.mig_devices
    older = model.driver_branch < _TEMPERATURE_V_SINCE
    told.calls(
        UtilizationRates=where(
            whole, {"gpu": silicon.occupied_percent, "memory": silicon.memory_percent}
        ),
        PowerUsage=silicon.power_milliwatts,
        TotalEnergyConsumption=silicon.energy_millijoules,
        CurrentClocksEventReasons=silicon.reasons,
        SupportedClocksEventReasons=_REASONS,
    )
    used = [[sample.stamp_us, sample.occupied_percent] for sample in gpu.samples]
    drawn = [[sample.stamp_us, sample.power_milliwatts] for sample in gpu.samples]
    told.call("Samples", where(whole, used), _UTILIZATION_SAMPLES)
    told.call("Samples", drawn, _POWER_SAMPLES)
    for engine, since in (
        ("Encoder", Generation.VOLTA), ("Decoder", Generation.VOLTA),
        ("Jpg", Generation.AMPERE), ("Ofa", Generation.AMPERE),
    ):  # fmt: skip
        has = whole and model.generation >= since
        told.call(f"{engine}Utilization", where(has, [0, _ENCODER_PERIOD_US]))
    told.call("TemperatureV", FUNCTION_NOT_FOUND if older else silicon.core_celsius, 0)
    told.call("Temperature", silicon.core_celsius, 0)
    told.field(83, silicon.energy_millijoules)
    if model.averages_power:
        told.field(185, silicon.power_milliwatts)
    told.field(186, silicon.instant_milliwatts)
    if model.generation >= Generation.HOPPER:
        told.field(_MEMORY, silicon.memory_milliwatts)
    if model.grace:
        told.field(_MODULE, silicon.instant_milliwatts + round(1000 * _GRACE_WATTS))
    if model.thresholds.memory:
        told.field(82, silicon.memory_celsius)
    _tell_throttling(gpu, told)
    _tell_traffic(gpu, told)


def _tell_memory_and_clocks(gpu: GpuState, told: Answers) -> None:
    model, silicon, used = gpu.model, gpu.silicon, gpu.sharing.used_bytes
    told.call(
        "MemoryInfo",
        {
            "version": _MEMORY_V2,
            "total": model.memory_bytes,
            "reserved": model.reserved_bytes,
            "free": model.memory_bytes - model.reserved_bytes - used,
            "used": used,
        },
    )
    graphics, memory = silicon.clock_megahertz, model.memory_megahertz
    for kind, now in enumerate((graphics, graphics, memory, silicon.video_megahertz)):
        told.call("ClockInfo", now, kind)
    most = model.max_megahertz
    for kind, limit in enumerate((most, most, memory, model.max_video_megahertz)):
        told.call("MaxClockInfo", limit, kind)


def _tell_throttling(gpu: GpuState, told: Answers) -> None:
    throttled = gpu.silicon.throttled
    told.field(74, throttled.power_cap_ns)
    told.field(75, throttled.software_thermal_ns)
    for quiet in range(76, 82):
        told.field(quiet, 0)
    places = [field for since, field in _HEAT_COUNTERS.items() if gpu.model.driver_branch >= since]
    slowdowns = (throttled.software_thermal_ns, throttled.hardware_thermal_ns, 0)
    if places:
        for number, slowdown_ns in enumerate(slowdowns, places[-1]):
            told.field(number, slowdown_ns)


def _tell_traffic(gpu: GpuState, told: Answers) -> None:
    if gpu.model.driver_branch >= _BYTE_COUNTERS_SINCE:
        told.field(197, gpu.bus.pcie_out.moved_bytes)
        told.field(198, gpu.bus.pcie_in.moved_bytes)
    if gpu.links is None:
        return
    links = gpu.links
    sent = sum(link.transmitted_kibibytes for link in links.links)
    received = sum(link.received_kibibytes for link in links.links)
    for number, kibibytes in enumerate((sent, received, links.raw(sent), links.raw(received)), 138):
        told.field(f"{number}:{ALL_LINKS}", kibibytes)
