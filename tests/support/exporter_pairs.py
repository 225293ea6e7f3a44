"""The names of nvidia_gpu_exporter for our metrics of a GPU.

Every name in its metrics is in one of these tables: a pair, a number made of our readings, or an
unpaired name with the reason.
"""

from __future__ import annotations

from collections.abc import Callable

from support.gpu_readings import GpuReadings

from railscope.catalog.gpu import THROTTLE_BITS

Part = tuple[str, ...]

PAIRS: dict[str, tuple[str, Part]] = {
    "utilization_gpu_ratio": ("utilization_ratio", ()),
    "utilization_memory_ratio": ("memory_activity_ratio", ()),
    "utilization_encoder_ratio": ("engine_utilization_ratio", ("encoder",)),
    "utilization_decoder_ratio": ("engine_utilization_ratio", ("decoder",)),
    "utilization_jpeg_ratio": ("engine_utilization_ratio", ("jpeg",)),
    "utilization_ofa_ratio": ("engine_utilization_ratio", ("optical_flow",)),
    "encoder_stats_session_count": ("encoder_sessions", ()),
    "encoder_stats_average_fps": ("encoder_frames_per_second", ()),
    "memory_total_bytes": ("memory_size_bytes", ()),
    "memory_used_bytes": ("memory_used_bytes", ()),
    "memory_free_bytes": ("memory_free_bytes", ()),
    "memory_reserved_bytes": ("memory_reserved_bytes", ()),
    "protected_memory_total_bytes": ("protected_memory_size_bytes", ()),
    "protected_memory_used_bytes": ("protected_memory_used_bytes", ()),
    "clocks_max_graphics_clock_hz": ("clock_limit_hertz", ("graphics",)),
    "clocks_max_sm_clock_hz": ("clock_limit_hertz", ("sm",)),
    "clocks_max_memory_clock_hz": ("clock_limit_hertz", ("memory",)),
    "power_draw_watts": ("power_watts", ()),
    "power_draw_average_watts": ("power_average_watts", ()),
    "power_draw_instant_watts": ("power_instant_watts", ()),
    "enforced_power_limit_watts": ("power_limit_watts", ()),
    "power_limit_watts": ("power_limit_bound_watts", ("requested",)),
    "power_default_limit_watts": ("power_limit_bound_watts", ("default",)),
    "power_min_limit_watts": ("power_limit_bound_watts", ("minimum",)),
    "power_max_limit_watts": ("power_limit_bound_watts", ("maximum",)),
    "edpp_multiplier_ratio": ("peak_power_multiplier_ratio", ()),
    "temperature_gpu": ("temperature_celsius", ()),
    "temperature_gpu_tlimit": ("temperature_margin_celsius", ()),
    "temperature_memory": ("memory_temperature_celsius", ()),
    "fan_speed_ratio": ("fan_speed_ratio", ("0",)),
    "pstate": ("performance_state", ()),
    "persistence_mode": ("persistence_enabled", ()),
    "compute_mode": ("compute_mode", ()),
    "accounting_mode": ("accounting_enabled", ()),
    "gsp_mode_current": ("gsp_firmware_enabled", ()),
    "c2c_mode": ("c2c_enabled", ()),
    "mig_mode_current": ("mig_enabled", ()),
    "mig_mode_pending": ("mig_pending", ()),
    "gpu_recovery_action": ("recovery_action", ()),
    "fabric_state": ("fabric_state", ()),
    "ecc_mode_current": ("ecc_enabled", ()),
    "ecc_mode_pending": ("ecc_pending", ()),
    "ecc_errors_uncorrected_aggregate_sram_threshold_exceeded": ("sram_threshold_exceeded", ()),
    "remapped_rows_correctable": ("remapped_rows", ("correctable",)),
    "remapped_rows_uncorrectable": ("remapped_rows", ("uncorrectable",)),
    "remapped_rows_correctable_inactive": ("remapped_rows_inactive", ("correctable",)),
    "remapped_rows_uncorrectable_inactive": ("remapped_rows_inactive", ("uncorrectable",)),
    "remapped_rows_pending": ("row_remap_pending", ()),
    "remapped_rows_failure": ("row_remap_failure", ()),
    "pcie_link_gen_current": ("pcie_link_generation", ()),
    "pcie_link_gen_gpucurrent": ("pcie_link_generation", ()),
    "pcie_link_gen_max": ("pcie_link_generation_limit", ()),
    "pcie_link_gen_gpumax": ("pcie_link_generation_gpu_limit", ()),
    "pcie_link_width_current": ("pcie_link_width_lanes", ()),
    "pcie_link_width_max": ("pcie_link_width_limit_lanes", ()),
}
for _clock in ("graphics", "sm", "memory", "video"):
    PAIRS[f"clocks_current_{_clock}_clock_hz"] = ("clock_hertz", (_clock,))
for _bank in ("max", "high", "partial", "low", "none"):
    PAIRS[f"remapped_rows_histogram_{_bank}"] = ("row_remap_banks", (_bank,))

REASONS = {
    "gpu_idle": "gpu_idle",
    "applications_clocks_setting": "application_clocks",
    "sw_power_cap": "software_power_cap",
    "hw_slowdown": "hardware_slowdown",
    "sync_boost": "sync_boost",
    "sw_thermal_slowdown": "software_thermal",
    "hw_thermal_slowdown": "hardware_thermal",
    "hw_power_brake_slowdown": "hardware_power_brake",
}
"""Their name of a reason for reduced clocks, and ours."""
_TIMED = set(REASONS) - {"gpu_idle", "applications_clocks_setting", "hw_slowdown"}
for _theirs, _ours in REASONS.items():
    PAIRS[f"clocks_event_reasons_{_theirs}"] = ("throttle_active", (_ours,))
for _theirs in _TIMED:
    _seconds = f"clocks_event_reasons_counters_{_theirs}_seconds"
    PAIRS[_seconds] = ("throttle_seconds_total", (REASONS[_theirs],))

_PLACES = {"device_memory": "dram", "dram": "dram", "sram": "sram"}
for _error in ("corrected", "uncorrected"):
    for _lifetime in ("volatile", "aggregate"):
        _stem = f"ecc_errors_{_error}_{_lifetime}"
        PAIRS[f"{_stem}_total"] = ("ecc_errors_total", (_error, _lifetime))
        for _theirs, _ours in _PLACES.items():
            where = (_error, _lifetime, _ours)
            PAIRS[f"{_stem}_{_theirs}"] = ("ecc_location_errors_total", where)
for _lifetime in ("volatile", "aggregate"):
    for _theirs, _ours in {"parity": "parity", "secded": "sec_ded"}.items():
        PAIRS[f"ecc_errors_uncorrected_{_lifetime}_sram_{_theirs}"] = (
            "sram_uncorrected_errors_total",
            (_lifetime, _ours),
        )
_UNITS = {"l2": "l2", "sm": "sm", "mcu": "microcontroller", "pcie": "pcie", "other": "other"}
for _theirs, _ours in _UNITS.items():
    PAIRS[f"ecc_errors_uncorrected_aggregate_sram_{_theirs}"] = (
        "sram_location_errors_total",
        ("uncorrected", "aggregate", _ours),
    )


def _facts(reported: GpuReadings) -> dict[str, str]:
    (facts,) = [dict(facts) for (kind, _), facts in reported.facts.items() if kind == "gpu"]
    return facts


def _address(reported: GpuReadings) -> list[int]:
    """Domain, bus, device and function."""
    return [int(part, 16) for part in _facts(reported)["pci_address"].replace(".", ":").split(":")]


def _mask(reported: GpuReadings, *, only_active: bool) -> int:
    active = reported.named("gpu_throttle_active")
    return sum(THROTTLE_BITS[key[-1]] for key, on in active.items() if on or not only_active)


def _of(reported: GpuReadings, metric: str) -> float:
    (value,) = reported.named(metric).values()
    return value


MADE: dict[str, Callable[[GpuReadings], float]] = {
    "clocks_event_reasons_active": lambda reported: _mask(reported, only_active=True),
    "clocks_event_reasons_supported": lambda reported: _mask(reported, only_active=False),
    "encoder_stats_average_latency": lambda t: 1e6 * _of(t, "gpu_encoder_latency_seconds"),
    "protected_memory_free_bytes": lambda reported: (
        _of(reported, "gpu_protected_memory_size_bytes")
        - _of(reported, "gpu_protected_memory_used_bytes")
    ),
    "count": lambda reported: sum(kind == "gpu" for kind, _ in reported.facts),
    "compute_apps": lambda reported: sum(
        kind == "gpu_process" and facts["context"] == "compute"
        for (kind, _), facts in reported.facts.items()
    ),
    "index": lambda reported: float(_facts(reported)["index"]),
    "serial": lambda reported: float(_facts(reported)["serial"]),
    "compute_cap": lambda reported: float(_facts(reported)["compute_capability"]),
    "driver_version": lambda reported: float(_facts(reported)["driver"]),
    "kmd_version": lambda reported: float(_facts(reported)["driver"]),
    "pci_domain": lambda reported: _address(reported)[0],
    "pci_bus": lambda reported: _address(reported)[1],
    "pci_device": lambda reported: _address(reported)[2],
    "platform_module_id": lambda reported: float(_facts(reported)["module"]),
}
"""Their metrics derived from ours: from facts, from bits, from parts of a whole."""

LABELS = {
    "compute_cap": "compute_capability", "cuda_version": "cuda", "driver_version": "driver",
    "index": "index", "name": "model", "serial": "serial", "vbios_version": "vbios",
}  # fmt: skip
"""The labels of their gpu_info, and our facts; the PCI address is separate."""
