"""Rapidly changing values of a GPU: activity, memory, clocks, power, temperature, traffic.

GPM metrics of a GPU or of a MIG device are averages over the last span, and cycles.
"""

from __future__ import annotations

from railscope.capture import Json
from railscope_simulator import device_models, gpu_tenants
from railscope_simulator.gpu import GpuState
from railscope_simulator.gpu_activity import ActivityShares, SmCycles, activity_shares
from railscope_simulator.nvml.results import (
    ALL_LINKS,
    FUNCTION_NOT_FOUND,
    NvmlResults,
    supported_if,
)

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


def add_load(gpu: GpuState, into: NvmlResults) -> None:
    """Add the load of this GPU."""
    _add_memory_and_clocks(gpu, into)
    model, silicon = gpu.model, gpu.silicon
    whole = not gpu.sharing.mig_devices
    older = model.driver_branch < _TEMPERATURE_V_SINCE
    into.calls(
        UtilizationRates=supported_if(
            whole, {"gpu": silicon.occupied_percent, "memory": silicon.memory_percent}
        ),
        PowerUsage=silicon.power_milliwatts,
        TotalEnergyConsumption=silicon.energy_millijoules,
        CurrentClocksEventReasons=silicon.reasons,
        SupportedClocksEventReasons=_REASONS,
    )
    used = [[sample.stamp_us, sample.occupied_percent] for sample in gpu.samples]
    drawn = [[sample.stamp_us, sample.power_milliwatts] for sample in gpu.samples]
    into.call("Samples", supported_if(whole, used), _UTILIZATION_SAMPLES)
    into.call("Samples", drawn, _POWER_SAMPLES)
    for engine, since in (
        ("Encoder", device_models.GpuGeneration.VOLTA),
        ("Decoder", device_models.GpuGeneration.VOLTA),
        ("Jpg", device_models.GpuGeneration.AMPERE),
        ("Ofa", device_models.GpuGeneration.AMPERE),
    ):
        has = whole and model.generation >= since
        into.call(f"{engine}Utilization", supported_if(has, [0, _ENCODER_PERIOD_US]))
    into.call("TemperatureV", FUNCTION_NOT_FOUND if older else silicon.core_celsius, 0)
    into.call("Temperature", silicon.core_celsius, 0)
    into.field(83, silicon.energy_millijoules)
    if model.averages_power:
        into.field(185, silicon.power_milliwatts)
    into.field(186, silicon.instant_milliwatts)
    if model.generation >= device_models.GpuGeneration.HOPPER:
        into.field(_MEMORY, silicon.memory_milliwatts)
    if model.grace:
        into.field(_MODULE, silicon.instant_milliwatts + round(1000 * _GRACE_WATTS))
    if model.thresholds.memory:
        into.field(82, silicon.memory_celsius)
    _add_throttling(gpu, into)
    _add_pcie_traffic(gpu, into)


def _add_memory_and_clocks(gpu: GpuState, into: NvmlResults) -> None:
    model, silicon, used = gpu.model, gpu.silicon, gpu.sharing.used_bytes
    into.call("MemoryInfo", memory_info(model.memory_bytes, model.reserved_bytes, used))
    graphics, memory = silicon.clock_megahertz, model.memory_megahertz
    for kind, now in enumerate((graphics, graphics, memory, silicon.video_megahertz)):
        into.call("ClockInfo", now, kind)
    max_megahertz = model.max_megahertz
    for kind, limit in enumerate((max_megahertz, max_megahertz, memory, model.max_video_megahertz)):
        into.call("MaxClockInfo", limit, kind)


def memory_info(total: int, reserved: int, used: int) -> Json:
    """Return `nvmlMemory_v2_t` from bytes."""
    free = total - reserved - used
    sizes = {"total": total, "reserved": reserved, "free": free, "used": used}
    return {"version": _MEMORY_V2, **sizes}


def _add_throttling(gpu: GpuState, into: NvmlResults) -> None:
    throttled = gpu.silicon.throttled
    into.fields({74: throttled.power_cap_ns, 75: throttled.software_thermal_ns})
    into.fields(dict.fromkeys(range(76, 82), 0))
    starts = [field for since, field in _HEAT_COUNTERS.items() if gpu.model.driver_branch >= since]
    slowdowns = (
        throttled.software_thermal_ns,
        throttled.hardware_thermal_ns,
        throttled.power_brake_ns,
    )
    if starts:
        into.fields(dict(enumerate(slowdowns, starts[-1])))


def _add_pcie_traffic(gpu: GpuState, into: NvmlResults) -> None:
    if gpu.model.driver_branch >= _BYTE_COUNTERS_SINCE:
        into.fields({197: gpu.bus.pcie_out.moved_bytes, 198: gpu.bus.pcie_in.moved_bytes})
    if gpu.links is None:
        return
    links = gpu.links
    sent = sum(link.transmitted_kibibytes for link in links.links)
    received = sum(link.received_kibibytes for link in links.links)
    traffic = (sent, received, links.raw(sent), links.raw(received))
    into.fields(dict(enumerate(traffic, 138)), ALL_LINKS)


_MEBIBYTE, _KIBIBYTE = 1 << 20, 1024
_DECODERS, _JPEG_DECODERS, _OPTICAL_FLOW = range(30, 37), range(40, 47), 50
_IDLE_PIPES = (6, 8, 9, 11)
"""Idle pipes: tensor pipes for double precision (two variants) and integers; double precision."""

_IDLE_CYCLES = (251, 253, 254, 258)
_CYCLES_SINCE = 590


def add_gpm_metrics(gpu: GpuState, into: NvmlResults) -> None:
    """Add the activity of the GPU's SMs and links; none before Hopper."""
    if not gpu.model.has_gpm:
        return
    _add_pipes(gpu.activity, into)
    into.metrics(dict.fromkeys((*_DECODERS, *_JPEG_DECODERS, _OPTICAL_FLOW), 0.0))
    bus = gpu.bus
    rates = {20: bus.pcie_out.bytes_per_second, 21: bus.pcie_in.bytes_per_second}
    if bus.grace:
        rates |= {100: bus.c2c_out.bytes_per_second, 101: bus.c2c_in.bytes_per_second}
    if gpu.links:
        received, sent = (
            gpu.links.receive_kibibytes_per_second,
            gpu.links.transmit_kibibytes_per_second,
        )
        rates |= {60: received * _KIBIBYTE, 61: sent * _KIBIBYTE}
    into.metrics({number: round(rate / _MEBIBYTE, 3) for number, rate in rates.items()})
    if gpu.model.driver_branch >= _CYCLES_SINCE:
        _add_cycles(gpu.cycles, into)


def add_instance_gpm_metrics(
    gpu: GpuState, device: gpu_tenants.SimulatedMigDevice, into: NvmlResults
) -> None:
    """Add the SM activity of a MIG device, which has only share metrics."""
    if not gpu.model.has_gpm:
        return
    _add_pipes(activity_shares(gpu.sharing.demand_on(device), gpu.silicon.ripple), into)


def _add_pipes(activity: ActivityShares, into: NvmlResults) -> None:
    shares = {
        1: activity.graphics,
        2: activity.sm,
        3: activity.occupancy,
        4: activity.integer,
        5: activity.tensor,
        7: activity.tensor,
        10: activity.dram,
        12: activity.fp32,
        13: activity.fp16,
    } | dict.fromkeys(_IDLE_PIPES, 0.0)
    into.metrics({number: round(100 * share, 4) for number, share in sorted(shares.items())})


def _add_cycles(cycles: SmCycles, into: NvmlResults) -> None:
    counts = {
        248: cycles.elapsed,
        249: cycles.sm,
        250: cycles.tensor,
        252: cycles.tensor,
        257: cycles.integer,
        259: cycles.fp32,
        260: cycles.fp16,
    } | dict.fromkeys(_IDLE_CYCLES, 0)
    into.metrics({number: float(count) for number, count in sorted(counts.items())})
