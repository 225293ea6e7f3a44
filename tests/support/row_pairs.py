"""Our names of the fields of a row of nvidia-smi, and the scale of their units."""

from __future__ import annotations

import math

from support.nvidia_smi import MEBIBYTE, TEXTS, THRESHOLDS, number

from railscope_agent.host import NvmlError

Part = tuple[str, ...]

_ENGINES = {"encoder": "encoder", "decoder": "decoder", "jpeg": "jpeg", "ofa": "optical_flow"}
_PLACES = {
    "l1_cache": "l1", "l2_cache": "l2", "dram": "dram", "register_file": "register_file",
    "texture_memory": "texture", "texture_shm": "texture_shared", "cbu": "cbu", "sram": "sram",
}  # fmt: skip
_UNITS = {"l2": "l2", "sm": "sm", "mcu": "microcontroller", "pcie": "pcie", "other": "other"}
_COUNTERS = {
    "sw_power_cap": "software_power_cap", "sync_boost": "sync_boost",
    "sw_thermal_slowdown": "software_thermal", "hw_thermal_slowdown": "hardware_thermal",
    "hw_power_brake_slowdown": "hardware_power_brake",
}  # fmt: skip
_KINDS = [(e, t) for e in ("corrected", "uncorrected") for t in ("volatile", "aggregate")]

PAIRS: dict[str, tuple[str, Part]] = {
    "utilization.gpu": ("utilization_ratio", ()),
    "utilization.memory": ("memory_activity_ratio", ()),
    **{f"utilization.{t}": ("engine_utilization_ratio", (o,)) for t, o in _ENGINES.items()},
    "encoder.stats.sessionCount": ("encoder_sessions", ()),
    "encoder.stats.averageFps": ("encoder_frames_per_second", ()),
    "encoder.stats.averageLatency": ("encoder_latency_seconds", ()),
    "memory.total": ("memory_size_bytes", ()),
    "memory.reserved": ("memory_reserved_bytes", ()),
    "memory.used": ("memory_used_bytes", ()),
    "memory.free": ("memory_free_bytes", ()),
    "bar1.total": ("bar1_size_bytes", ()),
    "bar1.used": ("bar1_used_bytes", ()),
    "protected_memory.total": ("protected_memory_size_bytes", ()),
    "protected_memory.used": ("protected_memory_used_bytes", ()),
    **{
        f"clocks.{when}.{clock}": (ours, (clock,))
        for when, ours in (("current", "clock_hertz"), ("max", "clock_limit_hertz"))
        for clock in ("graphics", "sm", "memory", "video")
    },
    "power.draw": ("power_watts", ()),
    "power.draw.average": ("power_average_watts", ()),
    "power.draw.instant": ("power_instant_watts", ()),
    "power.memory.average": ("memory_power_watts", ()),
    "module.power.draw.instant": ("module_power_watts", ()),
    "enforced.power.limit": ("power_limit_watts", ()),
    "power.limit": ("power_limit_bound_watts", ("requested",)),
    "power.default_limit": ("power_limit_bound_watts", ("default",)),
    "power.min_limit": ("power_limit_bound_watts", ("minimum",)),
    "power.max_limit": ("power_limit_bound_watts", ("maximum",)),
    "edpp_multiplier": ("peak_power_multiplier_ratio", ()),
    "temperature.gpu": ("temperature_celsius", ()),
    "temperature.memory": ("memory_temperature_celsius", ()),
    "temperature.gpu.tlimit": ("temperature_margin_celsius", ()),
    **{
        f"temperature.{threshold}{kind}": (f"temperature_threshold{ours}_celsius", (threshold,))
        for threshold in THRESHOLDS
        for kind, ours in (("", ""), (".tlimit", "_margin"))
    },
    "fan.speed": ("fan_speed_ratio", ("0",)),
    "pstate": ("performance_state", ()),
    "persistence_mode": ("persistence_enabled", ()),
    "compute_mode": ("compute_mode", ()),
    "accounting.mode": ("accounting_enabled", ()),
    "gsp.mode.current": ("gsp_firmware_enabled", ()),
    "c2c.mode": ("c2c_enabled", ()),
    "mig.mode.current": ("mig_enabled", ()),
    "mig.mode.pending": ("mig_pending", ()),
    "fabric.state": ("fabric_state", ()),
    "fabric.status": ("fabric_status_code", ()),
    "gpu_recovery_action": ("recovery_action", ()),
    "pcie.link.gen.gpucurrent": ("pcie_link_generation", ()),
    "pcie.link.gen.max": ("pcie_link_generation_limit", ()),
    "pcie.link.gen.gpumax": ("pcie_link_generation_gpu_limit", ()),
    "pcie.link.width.current": ("pcie_link_width_lanes", ()),
    "pcie.link.width.max": ("pcie_link_width_limit_lanes", ()),
    "pcie.replays": ("pcie_replays_total", ()),
    "pcie.rollovers": ("pcie_replay_rollovers_total", ()),
    **{
        f"clocks_event_reasons_counters.{theirs}": ("throttle_seconds_total", (ours,))
        for theirs, ours in _COUNTERS.items()
    },
    "ecc.mode.current": ("ecc_enabled", ()),
    "ecc.mode.pending": ("ecc_pending", ()),
    **{f"ecc.errors.{e}.{t}.total": ("ecc_errors_total", (e, t)) for e, t in _KINDS},
    **{
        f"ecc.errors.{error}.{lifetime}.{theirs}": (
            "ecc_location_errors_total",
            (error, lifetime, ours),
        )
        for error, lifetime in _KINDS
        for theirs, ours in _PLACES.items()
    },
    **{
        f"ecc.errors.uncorrected.{lifetime}.sram.{theirs}": (
            "sram_uncorrected_errors_total",
            (lifetime, ours),
        )
        for lifetime in ("volatile", "aggregate")
        for theirs, ours in (("parity", "parity"), ("secded", "sec_ded"))
    },
    **{
        f"ecc.errors.uncorrected.aggregate.sram.{theirs}": (
            "sram_location_errors_total",
            ("uncorrected", "aggregate", ours),
        )
        for theirs, ours in _UNITS.items()
    },
    "ecc.errors.uncorrected.aggregate.sram.thresholdExceeded": ("sram_threshold_exceeded", ()),
    "repair.channel": ("repair_pending", ("memory_channel",)),
    "repair.tpc": ("repair_pending", ("tpc",)),
    "unrepairable_memory": ("unrepairable_memory", ()),
    "retired_pages.single_bit_ecc.count": ("retired_pages", ("correctable",)),
    "retired_pages.double_bit.count": ("retired_pages", ("uncorrectable",)),
    "retired_pages.pending": ("retired_pages_pending", ()),
    "remapped_rows.correctable": ("remapped_rows", ("correctable",)),
    "remapped_rows.uncorrectable": ("remapped_rows", ("uncorrectable",)),
    "remapped_rows.correctable_inactive": ("remapped_rows_inactive", ("correctable",)),
    "remapped_rows.uncorrectable_inactive": ("remapped_rows_inactive", ("uncorrectable",)),
    "remapped_rows.pending": ("row_remap_pending", ()),
    "remapped_rows.failure": ("row_remap_failure", ()),
    **{
        f"remapped_rows.histogram.{bank}": ("row_remap_banks", (bank,))
        for bank in ("max", "high", "partial", "low", "none")
    },
}
"""A field of a row, our metric without `railscope_gpu_`, and the part of the GPU that it concerns."""

_SCALES = {
    "memory": MEBIBYTE, "bar1": MEBIBYTE, "protected_memory": MEBIBYTE, "clocks": 1e6,
    "utilization": 1e-2, "fan": 1e-2, "edpp_multiplier": 1e-2,
    "clocks_event_reasons_counters": 1e-6,
}  # fmt: skip


def base_units(name: str, printed: str) -> float | None:
    """Return the printed value in base units; None for an error."""
    hundredths = number(printed, 100)
    if isinstance(hundredths, NvmlError):
        return None
    value = TEXTS[printed] if printed in TEXTS else hundredths / 100
    latency = name == "encoder.stats.averageLatency"
    return float(value * (1e-6 if latency else _SCALES.get(name.partition(".")[0], 1)))


def agrees(ours: float | None, name: str, printed: str) -> bool:
    """True if our number equals the printed one, or both are absent."""
    theirs = base_units(name, printed)
    if ours is None or theirs is None:
        return ours is theirs
    return math.isclose(ours, theirs, rel_tol=1e-9)
