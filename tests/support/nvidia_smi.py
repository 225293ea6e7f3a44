"""Output of nvidia-smi about GPUs, converted to the underlying answers of NVML.

The forms of its output (CSV, text, XML) are first converted to one: a row for each GPU, with a text
for each name of `nvidia-smi --help-query-gpu`. Values without such a name get one of the same
style.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import Any

from railscope_agent.host import NvmlError

Row = Mapping[str, str]
Answers = dict[str, Any]

MEBIBYTE = 1 << 20
MILLI = 1000
NS_PER_US = 1000
SAMPLE_PERIOD_US = 167_000
# Output for the return codes of NVML; with or without brackets.
REFUSALS = {
    "N/A": 3,
    "Not Supported": 3,
    "Insufficient Permissions": 4,
    "Function Not Found": 13,
    "GPU is lost": 15,
    "Requested functionality has been deprecated": 26,
    "Unknown Error": 999,
}
TEXTS = {
    "Yes": 1, "No": 0, "Enabled": 1, "Disabled": 0, "Active": 1, "Not Active": 0,
    "Default": 0, "Exclusive_Thread": 1, "Prohibited": 2, "Exclusive_Process": 3,
    "Pascal": 4, "Volta": 5, "Turing": 6, "Ampere": 7, "Ada Lovelace": 8, "Hopper": 9,
    "None": 0, "Pass-Through": 1, "Success": 0, "Not Started": 1, "In Progress": 2, "Completed": 3,
}  # fmt: skip
_NUMBER = re.compile(r"P?(-?\d+(?:\.\d+)?) ?(?:%|[A-Za-z/]+|bank\(s\))?")

_TEXTS = {
    "UUID": "uuid", "Name": "name", "Serial": "serial", "VbiosVersion": "vbios_version",
    "InforomImageVersion": "inforom.img", "GspFirmwareVersion": "gsp_version",
    "BoardPartNumber": "board_part_number",
}  # fmt: skip
_NUMBERS = {
    "Architecture": "architecture", "MinorNumber": "minor_number", "ModuleId": "module_id",
    "VirtualizationMode": "virtualization_mode", "PersistenceMode": "persistence_mode",
    "ComputeMode": "compute_mode", "AccountingMode": "accounting.mode",
    "PerformanceState": "pstate", "MarginTemperature": "temperature.gpu.tlimit",
    "SupportedClocksEventReasons": "clocks_event_reasons.supported",
    "CurrPcieLinkGeneration": "pcie.link.gen.gpucurrent",
    "MaxPcieLinkGeneration": "pcie.link.gen.max",
    "GpuMaxPcieLinkGeneration": "pcie.link.gen.gpumax",
    "CurrPcieLinkWidth": "pcie.link.width.current", "MaxPcieLinkWidth": "pcie.link.width.max",
    "PcieReplayCounter": "pcie.replays",
    "RetiredPagesPendingStatus": "retired_pages.pending",
    "UnrepairableMemoryFlag_v1": "unrepairable_memory",
}  # fmt: skip
_MILLIWATTS = {
    "PowerUsage": "power.draw", "EnforcedPowerLimit": "enforced.power.limit",
    "PowerManagementLimit": "power.limit", "PowerManagementDefaultLimit": "power.default_limit",
}  # fmt: skip
_LISTS: dict[str, tuple[tuple[str, ...], int]] = {
    "EccMode": (("ecc.mode.current", "ecc.mode.pending"), 1),
    "MigMode": (("mig.mode.current", "mig.mode.pending"), 1),
    "GspFirmwareMode": (("gsp.mode.current", "gsp.mode.default"), 1),
    "RepairStatus": (("repair.channel", "repair.tpc"), 1),
    "RemappedRows": (
        tuple(f"remapped_rows.{n}" for n in ("correctable", "uncorrectable", "pending", "failure")),
        1,
    ),
    "EncoderStats": (
        tuple(f"encoder.stats.{n}" for n in ("sessionCount", "averageFps", "averageLatency")),
        1,
    ),
    "PowerManagementLimitConstraints": (("power.min_limit", "power.max_limit"), MILLI),
}
_STRUCTURES: dict[str, tuple[dict[str, str], int]] = {
    "UtilizationRates": ({"gpu": "utilization.gpu", "memory": "utilization.memory"}, 1),
    "MemoryInfo": ({n: f"memory.{n}" for n in ("total", "reserved", "used", "free")}, MEBIBYTE),
    "BAR1MemoryInfo": ({f"bar1{n}": f"bar1.{n.lower()}" for n in ("Total", "Used", "Free")}, MEBIBYTE),
    "ConfComputeProtectedMemoryUsage": (
        {n: f"protected_memory.{n}" for n in ("total", "used", "free")}, MEBIBYTE,
    ),
    "RowRemapperHistogram": (
        {n: f"remapped_rows.histogram.{n}" for n in ("max", "high", "partial", "low", "none")}, 1,
    ),
    "C2cModeInfoV": ({"isC2cEnabled": "c2c.mode"}, 1),
    "SramEccErrorStatus": (
        {
            **{
                f"{lifetime}Unc{member}": f"ecc.errors.uncorrected.{lifetime}.sram.{member.lower()}"
                for lifetime in ("volatile", "aggregate") for member in ("Parity", "SecDed")
            },
            **{
                f"aggregateUncBucket{unit}": f"ecc.errors.uncorrected.aggregate.sram.{unit.lower()}"
                for unit in ("L2", "Sm", "Mcu", "Pcie", "Other")
            },
            "bThresholdExceeded": "ecc.errors.uncorrected.aggregate.sram.thresholdExceeded",
        },
        1,
    ),
}  # fmt: skip
_FIELDS: dict[int | str, tuple[str, int]] = {
    82: ("temperature.memory", 1),
    185: ("power.draw.average", MILLI), 186: ("power.draw.instant", MILLI),
    "186:1": ("module.power.draw.instant", MILLI), "185:2": ("power.memory.average", MILLI),
    187: ("power.min_limit", MILLI), 188: ("power.max_limit", MILLI),
    189: ("power.default_limit", MILLI), 192: ("power.limit", MILLI),
    193: ("temperature.shutdown.tlimit", 1), 194: ("temperature.slowdown.tlimit", 1),
    195: ("temperature.memory_maximum.tlimit", 1), 196: ("temperature.gpu_maximum.tlimit", 1),
    74: ("clocks_event_reasons_counters.sw_power_cap", NS_PER_US),
    76: ("clocks_event_reasons_counters.sync_boost", NS_PER_US),
    269: ("clocks_event_reasons_counters.sw_thermal_slowdown", NS_PER_US),
    270: ("clocks_event_reasons_counters.hw_thermal_slowdown", NS_PER_US),
    271: ("clocks_event_reasons_counters.hw_power_brake_slowdown", NS_PER_US),
    94: ("pcie.replays", 1), 95: ("pcie.rollovers", 1),
    230: ("gpu_recovery_action", 1), 274: ("edpp_multiplier", 1),
    301: ("remapped_rows.correctable_inactive", 1),
    302: ("remapped_rows.uncorrectable_inactive", 1),
}  # fmt: skip
CLOCKS = ("graphics", "sm", "memory", "video")
THRESHOLDS = ("shutdown", "slowdown", "memory_maximum", "gpu_maximum")
LOCATIONS = (
    "l1_cache",
    "l2_cache",
    "dram",
    "register_file",
    "texture_memory",
    "texture_shm",
    "cbu",
    "sram",
)
REASONS = (
    "gpu_idle", "applications_clocks_setting", "sw_power_cap", "hw_slowdown", "sync_boost",
    "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "display_clock_setting",
)  # fmt: skip
"""The reasons for reduced clocks, in the order of their bits."""


def machine(rows: Sequence[Row]) -> Answers:
    """Return the answers of a driver that has these GPUs."""
    reported: Answers = {"nvml.nvmlDeviceGetCount()": len(rows)}
    if version := rows[0].get("driver_version"):
        reported["nvml.nvmlSystemGetDriverVersion()"] = version
    if cuda := rows[0].get("cuda_version"):
        major, minor = map(int, cuda.split("."))
        reported["nvml.nvmlSystemGetCudaDriverVersion()"] = 1000 * major + 10 * minor
    for index, row in enumerate(rows):
        reported |= gpu(index, row)
    return reported


def gpu(index: int, row: Row) -> Answers:
    """Return the answers about one GPU. Fields missing in its row were not queried."""
    found: dict[str, Any] = {"PciInfo": {"busId": row["pci.bus_id"]}}
    found |= {call: text(row[name]) for call, name in _TEXTS.items() if name in row}
    found |= {call: number(row[name]) for call, name in _NUMBERS.items() if name in row}
    found |= {call: number(row[n], MILLI) for call, n in _MILLIWATTS.items() if n in row}
    found |= {call: items(row, *how) for call, how in _LISTS.items()}
    found |= {call: members(row, *how) for call, how in _STRUCTURES.items()}
    found |= {"PlatformInfo": _platform(row), "GpuFabricInfoV": _fabric(row)}
    for call, engine in (
        ("Encoder", "encoder"),
        ("Decoder", "decoder"),
        ("Jpg", "jpeg"),
        ("Ofa", "ofa"),
    ):
        busy = items(row, (f"utilization.{engine}",), 1)
        found[f"{call}Utilization"] = [*busy, SAMPLE_PERIOD_US] if isinstance(busy, list) else busy
    if "compute_cap" in row:
        found["CudaComputeCapability"] = [int(part) for part in row["compute_cap"].split(".")]
    if "fan.speed" in row:
        found["NumFans"] = 0 if isinstance(number(row["fan.speed"]), NvmlError) else 1
    found["CurrentClocksEventReasons"] = _active_reasons(row)
    reported = {f"nvml.nvmlDeviceGet{call}({index})": answer for call, answer in found.items()}
    for call, *arguments, answer in (*_with_arguments(row), *_errors(row)):
        reported[f"nvml.nvmlDeviceGet{call}({','.join(map(str, (index, *arguments)))})"] = answer
    return {key: answer for key, answer in reported.items() if answer is not None}


# Texts -------------------------------------------------------------------------------------------


def text(printed: str) -> Any:
    """Return a text, or the error that it represents."""
    code = REFUSALS.get(printed.strip("[]"))
    return printed if code is None else NvmlError(code, printed)


def number(printed: str, scale: int = 1) -> Any:
    """Return the number in a text, or the error that it represents. Raises ValueError for other texts."""
    reported = text(printed)
    if isinstance(reported, NvmlError):
        return reported
    if printed in TEXTS:
        return TEXTS[printed]
    if printed.startswith("0x"):
        return int(printed, 16)
    matched = _NUMBER.fullmatch(printed)
    if matched is None:
        message = f"{printed!r} is no number"
        raise ValueError(message)
    return round(Decimal(matched[1]) * scale)


def items(row: Row, names: Iterable[str], scale: int) -> Any:
    """Return a list of numbers, the error of one of them, or None if they were not printed."""
    reported = [number(row[name], scale) for name in names if name in row]
    refusals = [item for item in reported if isinstance(item, NvmlError)]
    return refusals[0] if refusals else reported or None


def members(row: Row, names: Mapping[str, str], scale: int) -> Any:
    """Return a structure of the printed members without errors; an error if there are none."""
    reported = {member: number(row[name], scale) for member, name in names.items() if name in row}
    kept = {m: value for m, value in reported.items() if not isinstance(value, NvmlError)}
    refusal = next(iter(reported.values()), None)
    return kept or refusal


# Answers with more than a number -----------------------------------------------------------------


def _with_arguments(row: Row) -> Iterable[tuple[Any, ...]]:
    def answers_of(
        name: str, answer: Callable[[str], Any], *call: Any
    ) -> Iterable[tuple[Any, ...]]:
        return [(*call, answer(row[name]))] if name in row else []

    yield from answers_of("temperature.gpu", number, "TemperatureV", 0)
    yield from answers_of("fan.speed", number, "FanSpeed_v2", 0)
    for place, clock in enumerate(CLOCKS):
        yield from answers_of(f"clocks.current.{clock}", number, "ClockInfo", place)
        yield from answers_of(f"clocks.max.{clock}", number, "MaxClockInfo", place)
    for place, threshold in enumerate(THRESHOLDS):
        yield from answers_of(f"temperature.{threshold}", number, "TemperatureThreshold", place)
    for place, cause in enumerate(("single_bit_ecc", "double_bit")):
        yield from answers_of(f"retired_pages.{cause}.count", _pages, "RetiredPages", place)
    for entry, (name, scale) in _FIELDS.items():
        yield from answers_of(name, partial(_entry_of, scale), "FieldValues", entry)


def _entry_of(scale: int, printed: str) -> list[int]:
    return _entry(number(printed, scale))


def _entry(value: Any) -> list[int]:
    return [value.code, 0] if isinstance(value, NvmlError) else [0, value]


def _pages(printed: str) -> Any:
    pages = number(printed)
    return pages if isinstance(pages, NvmlError) else [4096 * page for page in range(pages)]


def _errors(row: Row) -> Iterable[tuple[Any, ...]]:
    """Memory errors by location, and in total: if not printed, those of DRAM and SRAM."""
    for kind, error in enumerate(("corrected", "uncorrected")):
        for counter, lifetime in enumerate(("volatile", "aggregate")):
            stem = f"ecc.errors.{error}.{lifetime}"
            counts = {p: number(row[f"{stem}.{p}"]) for p in LOCATIONS if f"{stem}.{p}" in row}
            parity = items(row, (f"{stem}.sram.parity", f"{stem}.sram.secded"), 1)
            if "sram" not in counts and parity is not None:
                counts["sram"] = sum(parity) if isinstance(parity, list) else parity
            for place, count in counts.items():
                yield "MemoryErrorCounter", kind, counter, LOCATIONS.index(place), count
            known = [count for count in counts.values() if not isinstance(count, NvmlError)]
            total = number(row.get(f"{stem}.total", str(sum(known)) if known else "N/A"))
            yield "TotalEccErrors", kind, counter, total
            yield "FieldValues", 3 + 2 * counter + kind, _entry(total)


def _active_reasons(row: Row) -> Any:
    stem = "clocks_event_reasons"
    if f"{stem}.active" in row:
        return number(row[f"{stem}.active"])
    reported = [number(row[f"{stem}.{reason}"]) for reason in REASONS if f"{stem}.{reason}" in row]
    return sum(active << place for place, active in enumerate(reported)) if reported else None


def _fabric(row: Row) -> Any:
    """The fabric. None of the captured GPUs reports its health; old drivers have no summary of it."""
    state = number(row.get("fabric.state", "N/A"))
    if isinstance(state, NvmlError):
        return state
    cluster = uuid.UUID(row.get("fabric.clusterUuid", str(uuid.UUID(int=0))))
    reported = {
        "clusterUuid": list(cluster.bytes), "state": state, "status": number(row["fabric.status"]),
        "cliqueId": number(row.get("fabric.cliqueId", "0")), "healthMask": 0,
    }  # fmt: skip
    health = {name: reported for name, reported in row.items() if name.startswith("fabric.health.")}
    if set(health.values()) > {"N/A"}:
        message = f"health of the fabric: {health}"
        raise ValueError(message)
    return reported | ({"healthSummary": 0} if "fabric.health.summary" in health else {})


def _platform(row: Row) -> Any:
    """Location of the GPU; NVML has one byte for each number."""
    if "platform.module_id" not in row:
        return None
    names = {"slotNumber": "slot_number", "trayIndex": "tray_index", "moduleId": "module_id"}
    place = {member: number(row.get(f"platform.{name}", "N/A")) for member, name in names.items()}
    reported = {m: chr(0 if isinstance(value, NvmlError) else value) for m, value in place.items()}
    return reported | {
        "chassisSerialNumber": row.get("platform.chassis_serial_number", "").strip("N/A")
    }
