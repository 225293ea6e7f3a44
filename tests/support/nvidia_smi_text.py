"""The text of `nvidia-smi -q` as rows under the names of --query-gpu."""

from __future__ import annotations

from collections.abc import Iterator

from support.nvidia_smi_shares import MigDevice, PrintedProcess

Lines = list[tuple[str, str]]
"""Contents of a section, each with its path: `Temperature/GPU Current Temp`, `36 C`."""

_ECC = {
    "SRAM Correctable": "corrected.{}.sram",
    "SRAM Uncorrectable": "uncorrected.{}.sram",
    "SRAM Uncorrectable Parity": "uncorrected.{}.sram.parity",
    "SRAM Uncorrectable SEC-DED": "uncorrected.{}.sram.secded",
    "SRAM Threshold Exceeded": "uncorrected.{}.sram.thresholdExceeded",
    "DRAM Correctable": "corrected.{}.dram",
    "DRAM Uncorrectable": "uncorrected.{}.dram",
}
_OLD_ECC = {
    "Device Memory": "dram", "Register File": "register_file", "L1 Cache": "l1_cache",
    "L2 Cache": "l2_cache", "Texture Memory": "texture_memory", "Texture Shared": "texture_shm",
    "CBU": "cbu", "Total": "total",
}  # fmt: skip
_SRAM_SOURCES = {
    "SRAM L2": "l2", "SRAM SM": "sm", "SRAM Microcontroller": "mcu", "SRAM PCIE": "pcie",
    "SRAM Other": "other",
}  # fmt: skip
_HISTOGRAM = "Remapped Rows/Bank Remap Availability Histogram"
_REASONS, _COUNTERS = "Clocks Event Reasons", "Clocks Event Reasons Counters"
_LINK, _FABRIC = "PCI/GPU Link Info", "Fabric/Health"

NAMES: dict[str, str] = {
    "Product Name": "name",
    "Product Architecture": "architecture",
    "Persistence Mode": "persistence_mode",
    "MIG Mode/Current": "mig.mode.current",
    "MIG Mode/Pending": "mig.mode.pending",
    "Accounting Mode": "accounting.mode",
    "Serial Number": "serial",
    "GPU UUID": "uuid",
    "Minor Number": "minor_number",
    "VBIOS Version": "vbios_version",
    "Board Part Number": "board_part_number",
    "Module ID": "module_id",
    **{f"Platform Info/{printed}": f"platform.{name}" for printed, name in {
        "Chassis Serial Number": "chassis_serial_number", "Slot Number": "slot_number",
        "Tray Index": "tray_index", "Module Id": "module_id"}.items()},
    "Inforom Version/Image Version": "inforom.img",
    "GPU C2C Mode": "c2c.mode",
    "GPU Virtualization Mode/Virtualization Mode": "virtualization_mode",
    "GPU Recovery Action": "gpu_recovery_action",
    "GSP Firmware Version": "gsp_version",
    "PCI/Bus Id": "pci.bus_id",
    f"{_LINK}/PCIe Generation/Max": "pcie.link.gen.max",
    f"{_LINK}/PCIe Generation/Device Current": "pcie.link.gen.gpucurrent",
    f"{_LINK}/PCIe Generation/Device Max": "pcie.link.gen.gpumax",
    f"{_LINK}/Link Width/Max": "pcie.link.width.max",
    f"{_LINK}/Link Width/Current": "pcie.link.width.current",
    "PCI/Replays Since Reset": "pcie.replays",
    "PCI/Replay Number Rollovers": "pcie.rollovers",
    "Fan Speed": "fan.speed",
    "Performance State": "pstate",
    **{f"{_REASONS}/{printed}": f"clocks_event_reasons.{name}" for printed, name in {
        "Idle": "gpu_idle", "Applications Clocks Setting": "applications_clocks_setting",
        "SW Power Cap": "sw_power_cap", "HW Slowdown": "hw_slowdown", "Sync Boost": "sync_boost",
        "HW Slowdown/HW Thermal Slowdown": "hw_thermal_slowdown",
        "HW Slowdown/HW Power Brake Slowdown": "hw_power_brake_slowdown",
        "SW Thermal Slowdown": "sw_thermal_slowdown",
        "Display Clock Setting": "display_clock_setting"}.items()},
    **{f"{_COUNTERS}/{printed}": f"clocks_event_reasons_counters.{name}" for printed, name in {
        "SW Power Capping": "sw_power_cap", "Sync Boost": "sync_boost",
        "SW Thermal Slowdown": "sw_thermal_slowdown", "HW Thermal Slowdown": "hw_thermal_slowdown",
        "HW Power Braking": "hw_power_brake_slowdown"}.items()},
    **{f"{printed}/{what}": f"{name}.{what.lower()}" for printed, name in {
        "FB Memory Usage": "memory", "BAR1 Memory Usage": "bar1",
        "Conf Compute Protected Memory Usage": "protected_memory"}.items()
        for what in ("Total", "Reserved", "Used", "Free")},
    "Compute Mode": "compute_mode",
    **{f"Utilization/{printed}": f"utilization.{printed.lower()}"
        for printed in ("GPU", "Gpu", "Memory", "Encoder", "Decoder", "JPEG", "OFA")},
    "Encoder Stats/Active Sessions": "encoder.stats.sessionCount",
    "Encoder Stats/Average FPS": "encoder.stats.averageFps",
    "Encoder Stats/Average Latency": "encoder.stats.averageLatency",
    "ECC Mode/Current": "ecc.mode.current",
    "ECC Mode/Pending": "ecc.mode.pending",
    **{f"ECC Errors/{lifetime}/{printed}": "ecc.errors." + name.format(lifetime.lower())
        for lifetime in ("Volatile", "Aggregate") for printed, name in _ECC.items()},
    **{f"ECC Errors/{lifetime}/{bits}/{printed}": f"ecc.errors.{error}.{lifetime.lower()}.{name}"
        for lifetime in ("Volatile", "Aggregate")
        for bits, error in (("Single Bit", "corrected"), ("Double Bit", "uncorrected"))
        for printed, name in _OLD_ECC.items()},
    **{f"ECC Errors/Aggregate Uncorrectable SRAM Sources/{printed}":
        f"ecc.errors.uncorrected.aggregate.sram.{name}" for printed, name in _SRAM_SOURCES.items()},
    "ECC Errors/Channel Repair Pending": "repair.channel",
    "ECC Errors/TPC Repair Pending": "repair.tpc",
    "ECC Errors/Unrepairable Memory": "unrepairable_memory",
    "Retired Pages/Single Bit ECC": "retired_pages.single_bit_ecc.count",
    "Retired Pages/Double Bit ECC": "retired_pages.double_bit.count",
    "Retired Pages/Pending Page Blacklist": "retired_pages.pending",
    **{f"Remapped Rows/{printed}": f"remapped_rows.{name}" for printed, name in {
        "Correctable Error": "correctable", "Uncorrectable Error": "uncorrectable",
        "Inactive Correctable Error": "correctable_inactive",
        "Inactive Uncorrectable Error": "uncorrectable_inactive", "Pending": "pending",
        "Remapping Failure Occurred": "failure"}.items()},
    **{f"{_HISTOGRAM}/{name}": f"remapped_rows.histogram.{name.lower()}"
        for name in ("Max", "High", "Partial", "Low", "None")},
    **{f"Temperature/{printed}": f"temperature.{name}" for printed, name in {
        "GPU Current Temp": "gpu", "Memory Current Temp": "memory", "GPU T.Limit Temp": "gpu.tlimit",
        "GPU Shutdown Temp": "shutdown", "GPU Slowdown Temp": "slowdown",
        "GPU Max Operating Temp": "gpu_maximum", "Memory Max Operating Temp": "memory_maximum",
        "GPU Shutdown T.Limit Temp": "shutdown.tlimit",
        "GPU Slowdown T.Limit Temp": "slowdown.tlimit",
        "GPU Max Operating T.Limit Temp": "gpu_maximum.tlimit",
        "Memory Max Operating T.Limit Temp": "memory_maximum.tlimit"}.items()},
    **{f"GPU Power Readings/{printed}": name for printed, name in {
        "Power Draw": "power.draw", "Average Power Draw": "power.draw.average",
        "Instantaneous Power Draw": "power.draw.instant",
        "Current Power Limit": "enforced.power.limit", "Requested Power Limit": "power.limit",
        "Default Power Limit": "power.default_limit", "Min Power Limit": "power.min_limit",
        "Max Power Limit": "power.max_limit"}.items()},
    "GPU Memory Power Readings/Average Power Draw": "power.memory.average",
    "Module Power Readings/Instantaneous Power Draw": "module.power.draw.instant",
    "EDPp Multiplier": "edpp_multiplier",
    **{f"{printed}/{clock.title()}": f"clocks.{name}.{clock}"
        for printed, name in (("Clocks", "current"), ("Max Clocks", "max"))
        for clock in ("graphics", "memory", "video")},
    "Clocks/SM": "clocks.current.sm",
    "Max Clocks/SM": "clocks.max.sm",
    "Fabric/State": "fabric.state",
    "Fabric/Status": "fabric.status",
    "Fabric/CliqueId": "fabric.cliqueId",
    "Fabric/ClusterUUID": "fabric.clusterUuid",
    **{f"{_FABRIC}/{printed}": f"fabric.health.{name}" for printed, name in {
        "Summary": "summary", "Bandwidth": "bandwidth",
        "Route Recovery in progress": "route_recovery_in_progress",
        "Route Unhealthy": "route_unhealthy", "Access Timeout Recovery": "access_timeout_recovery",
        "Incorrect Configuration": "incorrect_configuration"}.items()},
}  # fmt: skip
_MIG_NAMES = {
    "ECC Errors/Volatile/SRAM Uncorrectable": "sram_uncorrected",
    **{f"Device Attributes/Shared/{printed} count": name for printed, name in {
        "Multiprocessor": "multiprocessors", "Copy Engine": "copy_engines", "Encoder": "encoders",
        "Decoder": "decoders", "OFA": "ofas", "JPG": "jpegs"}.items()},
    **{f"Shared {printed}/{what}": f"{name}.{what.lower()}"
        for printed, name in (("FB Memory Usage", "memory"), ("BAR1 Memory", "bar1"))
        for what in ("Total", "Reserved", "Used", "Free")},
}  # fmt: skip


def gpus(text: str) -> list[Lines]:
    """Return the sections of the GPUs."""
    return [lines[1:] for lines in _split(list(_paths(text)), "GPU 0")]


def row(text: str, lines: Lines) -> dict[str, str]:
    """Return the row of one GPU, with the driver fields from the head of the text."""
    head = dict(_paths(text.partition("\nGPU ")[0]))
    reported = {"driver_version": head["Driver Version"], "cuda_version": head["CUDA Version"]}
    whole = [(path, value) for path, value in lines if path.partition("/")[0] != "MIG Device"]
    reported |= {NAMES[path]: value for path, value in whole if path in NAMES}
    if "power.draw" not in reported and "power.draw.average" in reported:
        reported["power.draw"] = reported["power.draw.average"]
    return reported


def processes(lines: Lines) -> list[PrintedProcess]:
    """Return the processes of one GPU; each begins with the instance it is on."""
    there = [(p.removeprefix("Processes/"), v) for p, v in lines if p.startswith("Processes/")]
    reported = [dict(process) for process in _split(there, "GPU instance ID")]
    return [
        PrintedProcess(
            int(process["Process ID"]),
            process["Process ID/Type"],
            process["Process ID/Used GPU Memory"],
            process["GPU instance ID"],
            process["Compute instance ID"],
            process["Process ID/Name"],
        )
        for process in reported
    ]


def mig_devices(lines: Lines) -> list[MigDevice]:
    """Return the MIG devices of one GPU, without UUID and name, which -q does not print."""
    there = [(p.removeprefix("MIG Device/"), v) for p, v in lines if p.startswith("MIG Device/")]
    return [
        MigDevice(
            "",
            int(reported["Index"]),
            reported["GPU Instance ID"],
            reported["Compute Instance ID"],
            {_MIG_NAMES[path]: value for path, value in reported.items() if path in _MIG_NAMES},
        )
        for reported in map(dict, _split(there, "Index"))
    ]


def _split(lines: Lines, first: str) -> list[Lines]:
    """Group lines by a first path with this prefix; lines before the first are omitted."""
    groups: list[Lines] = []
    for path, value in lines:
        if path.startswith(first):
            groups.append([])
        if groups:
            groups[-1].append((path, value))
    return groups


def _paths(text: str) -> Iterator[tuple[str, str]]:
    """Yield every line with a value, and those that begin a GPU, with their paths by indentation."""
    above: list[tuple[int, str]] = []
    for line in text.splitlines():
        name, colon, value = (part.strip() for part in line.partition(" : "))
        depth = len(line) - len(line.lstrip())
        while above and above[-1][0] >= depth:
            above.pop()
        if name.startswith("GPU 0"):
            yield name, ""
            continue
        above.append((depth, name))
        if colon:
            yield "/".join(part for _, part in above), value
