"""The XML of `nvidia-smi -q -x` as rows under the names of --query-gpu."""

from __future__ import annotations

from pathlib import Path
from xml.etree.ElementTree import Element, parse

from support.nvidia_smi_shares import MigDevice, PrintedProcess

_REASONS = (
    "gpu_idle", "applications_clocks_setting", "sw_power_cap", "hw_slowdown", "sync_boost",
    "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown",
)  # fmt: skip
_COUNTERS = {
    "sw_power_cap": "sw_power_cap", "sync_boost": "sync_boost",
    "sw_therm_slowdown": "sw_thermal_slowdown", "hw_therm_slowdown": "hw_thermal_slowdown",
    "hw_power_brake": "hw_power_brake_slowdown",
}  # fmt: skip
_ECC = {
    "sram_correctable": "corrected.{}.sram", "sram_uncorrectable": "uncorrected.{}.sram",
    "sram_uncorrectable_parity": "uncorrected.{}.sram.parity",
    "sram_uncorrectable_secded": "uncorrected.{}.sram.secded",
    "sram_threshold_exceeded": "uncorrected.{}.sram.thresholdExceeded",
    "dram_correctable": "corrected.{}.dram", "dram_uncorrectable": "uncorrected.{}.dram",
    **{f"{bits}/{printed}": f"{error}.{{}}.{name}"
        for bits, error in (("single_bit", "corrected"), ("double_bit", "uncorrected"))
        for printed, name in {
            "device_memory": "dram", "register_file": "register_file", "l1_cache": "l1_cache",
            "l2_cache": "l2_cache", "texture_memory": "texture_memory",
            "texture_shm": "texture_shm", "cbu": "cbu", "total": "total"}.items()},
}  # fmt: skip
_POWER = {
    "power_draw": "power.draw", "average_power_draw": "power.draw.average",
    "instant_power_draw": "power.draw.instant", "current_power_limit": "enforced.power.limit",
    "enforced_power_limit": "enforced.power.limit", "requested_power_limit": "power.limit",
    "power_limit": "power.limit", "default_power_limit": "power.default_limit",
    "min_power_limit": "power.min_limit", "max_power_limit": "power.max_limit",
}  # fmt: skip
_LINK = "pci/pci_gpu_link_info"

NAMES: dict[str, str] = {
    "product_name": "name",
    "product_architecture": "architecture",
    "persistence_mode": "persistence_mode",
    "mig_mode/current_mig": "mig.mode.current",
    "mig_mode/pending_mig": "mig.mode.pending",
    "accounting_mode": "accounting.mode",
    "serial": "serial",
    "uuid": "uuid",
    "minor_number": "minor_number",
    "vbios_version": "vbios_version",
    "board_part_number": "board_part_number",
    "gpu_module_id": "module_id",
    **{f"platformInfo/{name}": f"platform.{name}"
        for name in ("chassis_serial_number", "slot_number", "tray_index", "module_id")},
    "inforom_version/img_version": "inforom.img",
    "c2c_mode": "c2c.mode",
    "gpu_virtualization_mode/virtualization_mode": "virtualization_mode",
    "gpu_recovery_action": "gpu_recovery_action",
    "gsp_firmware_version": "gsp_version",
    "pci/pci_bus_id": "pci.bus_id",
    f"{_LINK}/pcie_gen/max_link_gen": "pcie.link.gen.max",
    f"{_LINK}/pcie_gen/current_link_gen": "pcie.link.gen.gpucurrent",
    f"{_LINK}/pcie_gen/max_device_link_gen": "pcie.link.gen.gpumax",
    f"{_LINK}/link_widths/max_link_width": "pcie.link.width.max",
    f"{_LINK}/link_widths/current_link_width": "pcie.link.width.current",
    "pci/replay_counter": "pcie.replays",
    "pci/replay_rollover_counter": "pcie.rollovers",
    "fan_speed": "fan.speed",
    "performance_state": "pstate",
    **{f"clocks_{age}_reasons/clocks_{age}_reason_{reason}": f"clocks_event_reasons.{reason}"
        for age in ("event", "throttle") for reason in _REASONS},
    **{f"clocks_{age}_reasons/clocks_{age}_reason_display_clocks_setting":
        "clocks_event_reasons.display_clock_setting" for age in ("event", "throttle")},
    **{f"clocks_event_reasons_counters/clocks_event_reasons_counters_{printed}":
        f"clocks_event_reasons_counters.{name}" for printed, name in _COUNTERS.items()},
    **{f"{printed}/{what}": f"{name}.{what}"
        for printed, name in {"fb_memory_usage": "memory", "bar1_memory_usage": "bar1",
            "cc_protected_memory_usage": "protected_memory"}.items()
        for what in ("total", "reserved", "used", "free")},
    "compute_mode": "compute_mode",
    **{f"utilization/{name}_util": f"utilization.{name}"
        for name in ("gpu", "memory", "encoder", "decoder", "jpeg", "ofa")},
    "encoder_stats/session_count": "encoder.stats.sessionCount",
    "encoder_stats/average_fps": "encoder.stats.averageFps",
    "encoder_stats/average_latency": "encoder.stats.averageLatency",
    "ecc_mode/current_ecc": "ecc.mode.current",
    "ecc_mode/pending_ecc": "ecc.mode.pending",
    **{f"ecc_errors/{lifetime}/{printed}": "ecc.errors." + name.format(lifetime)
        for lifetime in ("volatile", "aggregate") for printed, name in _ECC.items()},
    **{f"ecc_errors/aggregate_uncorrectable_sram_sources/sram_{printed}":
        f"ecc.errors.uncorrected.aggregate.sram.{name}" for printed, name in {
            "l2": "l2", "sm": "sm", "microcontroller": "mcu", "pcie": "pcie",
            "other": "other"}.items()},
    "ecc_errors/channel_repair_pending": "repair.channel",
    "ecc_errors/tpc_repair_pending": "repair.tpc",
    "ecc_errors/unrepairable_memory": "unrepairable_memory",
    "retired_pages/multiple_single_bit_retirement/retired_count": "retired_pages.single_bit_ecc.count",
    "retired_pages/double_bit_retirement/retired_count": "retired_pages.double_bit.count",
    "retired_pages/pending_retirement": "retired_pages.pending",
    **{f"remapped_rows/remapped_row_{printed}": f"remapped_rows.{name}" for printed, name in {
        "corr": "correctable", "unc": "uncorrectable", "pending": "pending",
        "failure": "failure"}.items()},
    **{f"remapped_rows/row_remapper_histogram/row_remapper_histogram_{name}":
        f"remapped_rows.histogram.{name}" for name in ("max", "high", "partial", "low", "none")},
    **{f"temperature/{printed}": f"temperature.{name}" for printed, name in {
        "gpu_temp": "gpu", "memory_temp": "memory", "gpu_temp_tlimit": "gpu.tlimit",
        "gpu_temp_max_threshold": "shutdown", "gpu_temp_slow_threshold": "slowdown",
        "gpu_temp_max_gpu_threshold": "gpu_maximum",
        "gpu_temp_max_mem_threshold": "memory_maximum"}.items()},
    **{f"{section}power_readings/{printed}": name
        for section in ("", "gpu_") for printed, name in _POWER.items()},
    "gpu_memory_power_readings/average_power_draw": "power.memory.average",
    "module_power_readings/instant_power_draw": "module.power.draw.instant",
    "edpp_multiplier": "edpp_multiplier",
    **{f"{printed}/{short}_clock": f"clocks.{name}.{clock}"
        for printed, name in (("clocks", "current"), ("max_clocks", "max"))
        for short, clock in {
            "graphics": "graphics", "sm": "sm", "mem": "memory", "video": "video"}.items()},
    **{f"fabric/{name}": f"fabric.{name}" for name in ("state", "status", "cliqueId", "clusterUuid")},
    **{f"fabric/health/{name}": f"fabric.health.{name}" for name in (
        "summary", "bandwidth", "route_recovery_in_progress", "route_unhealthy",
        "access_timeout_recovery", "incorrect_configuration", "partition_assigned")},
}  # fmt: skip
_MIG_NAMES = {
    "ecc_error_count/volatile_count/sram_uncorrectable": "sram_uncorrected",
    **{f"device_attributes/shared/{printed}_count": name for printed, name in {
        "multiprocessor": "multiprocessors", "copy_engine": "copy_engines", "encoder": "encoders",
        "decoder": "decoders", "ofa": "ofas", "jpg": "jpegs"}.items()},
    **{f"{printed}_memory_usage/{what}": f"{name}.{what}"
        for printed, name in (("fb", "memory"), ("bar1", "bar1"))
        for what in ("total", "reserved", "used", "free")},
}  # fmt: skip


def root(path: Path) -> Element:
    """Return the whole output of nvidia-smi."""
    return parse(path).getroot()  # noqa: S314 - a recorded file


def row(log: Element, gpu: Element) -> dict[str, str]:
    """Return the row of one GPU, with the driver fields from the head."""
    heads = {name: log.findtext(name) for name in ("driver_version", "cuda_version")}
    reported = {name: value for name, value in heads.items() if value}
    reported |= _named(gpu, NAMES)
    reported.setdefault("pci.bus_id", gpu.get("id", ""))
    if "power.draw" not in reported and "power.draw.average" in reported:
        reported["power.draw"] = reported["power.draw.average"]
    return reported


def processes(gpu: Element) -> list[PrintedProcess]:
    """Return the processes of one GPU."""
    return [
        PrintedProcess(
            int(_text(reported, "pid")),
            _text(reported, "type"),
            _text(reported, "used_memory"),
            reported.findtext("gpu_instance_id") or "N/A",
            reported.findtext("compute_instance_id") or "N/A",
            _text(reported, "process_name"),
        )
        for reported in gpu.iterfind("processes/process_info")
    ]


def mig_devices(gpu: Element) -> list[MigDevice]:
    """Return the MIG devices of one GPU; the XML has no UUID and no name of them."""
    return [
        MigDevice(
            f"MIG-{_text(reported, 'gpu_instance_id')}-{_text(reported, 'compute_instance_id')}",
            int(_text(reported, "index")),
            _text(reported, "gpu_instance_id"),
            _text(reported, "compute_instance_id"),
            _named(reported, _MIG_NAMES),
        )
        for reported in gpu.iterfind("mig_devices/mig_device")
    ]


def _text(element: Element, path: str) -> str:
    found = element.findtext(path)
    if found is None:
        message = f"no {path} in <{element.tag}>"
        raise ValueError(message)
    return found


def _named(element: Element, names: dict[str, str]) -> dict[str, str]:
    found = [(name, (element.findtext(path) or "").strip()) for path, name in names.items()]
    return {name: value for name, value in found if value}
