"""What `nvidia-smi --query-gpu` printed, as the answers that NVML must have given it."""

from __future__ import annotations

import csv
import re
from typing import Any

from agent.host import NvmlError

NOT_SUPPORTED = NvmlError(3, "Not Supported")
MEBIBYTE = 1 << 20
_SECTION = re.compile(r"^#{80}\n# (?P<title>.*?)\n(?:# \$.*\n)?#{80}\n", re.MULTILINE)
_CLOCKS = ("graphics", "sm", "memory", "video")
# nvml.h: NVML_FI_DEV_MEMORY_TEMP, PERF_POLICY_*, CLOCKS_EVENT_REASON_*; microseconds in the text.
_MEMORY_TEMPERATURE, _NS_PER_US = 82, 1000
_FIELDS = {
    82: "temperature.memory",
    74: "clocks_event_reasons_counters.sw_power_cap",
    75: "",
    76: "clocks_event_reasons_counters.sync_boost",
    269: "clocks_event_reasons_counters.sw_thermal_slowdown",
    270: "clocks_event_reasons_counters.hw_thermal_slowdown",
    271: "clocks_event_reasons_counters.hw_power_brake_slowdown",
}


def query(capture: str, moment: str) -> dict[str, str]:
    """The one row of a --query-gpu section, "idle" or "load", without units in the names."""
    parts = _SECTION.split(capture)
    bodies = dict(zip(parts[1::2], parts[2::2], strict=True))
    body = next(bodies[title] for title in bodies if title.startswith(f"{moment} :: query-gpu"))
    head, row = csv.reader(body.strip().splitlines(), skipinitialspace=True)
    return {name.split(" [")[0]: value for name, value in zip(head, row, strict=True)}


def nvml(row: dict[str, str]) -> dict[str, Any]:
    """Answers by call, as a fake host wants them. What is not in the text is not supported."""
    answers: dict[str, Any] = {
        "Count()": int(row["count"]),
        "UUID(0)": row["uuid"],
        "Name(0)": row["name"],
        "Serial(0)": row["serial"],
        "VbiosVersion(0)": row["vbios_version"],
        "PciInfo(0)": {"busId": row["pci.bus_id"]},
        "UtilizationRates(0)": _group(row, gpu="utilization.gpu", memory="utilization.memory"),
        "MemoryInfo(0)": _group(
            row, MEBIBYTE, total="memory.total", reserved="memory.reserved", used="memory.used",
            free="memory.free",
        ),
        "PowerUsage(0)": _number(row, "power.draw", 1000),
        "EnforcedPowerLimit(0)": _number(row, "enforced.power.limit", 1000),
        "TemperatureV(0,0)": _number(row, "temperature.gpu"),
        "PerformanceState(0)": _number(row, "pstate"),
        "CurrentClocksEventReasons(0)": int(row["clocks_event_reasons.active"], 16),
        "EccMode(0)": _list(row, "ecc.mode.current", "ecc.mode.pending"),
        "RemappedRows(0)": _list(
            row, "remapped_rows.correctable", "remapped_rows.uncorrectable",
            "remapped_rows.pending", "remapped_rows.failure",
        ),
        "CurrPcieLinkGeneration(0)": _number(row, "pcie.link.gen.gpucurrent"),
        "MaxPcieLinkGeneration(0)": _number(row, "pcie.link.gen.max"),
        "CurrPcieLinkWidth(0)": _number(row, "pcie.link.width.current"),
        "MaxPcieLinkWidth(0)": _number(row, "pcie.link.width.max"),
        f"FieldValues(0,{','.join(map(str, _FIELDS))})": [
            _field(row, field, name) for field, name in _FIELDS.items()
        ],
    }  # fmt: skip
    for number, clock in enumerate(_CLOCKS):
        answers[f"ClockInfo(0,{number})"] = _number(row, f"clocks.current.{clock}")
        answers[f"MaxClockInfo(0,{number})"] = _number(row, f"clocks.max.{clock}")
    for type_, error in enumerate(("corrected", "uncorrected")):
        for counter, lifetime in enumerate(("volatile", "aggregate")):
            name = f"ecc.errors.{error}.{lifetime}.total"
            answers[f"TotalEccErrors(0,{type_},{counter})"] = _number(row, name)
    found = {f"nvml.nvmlDeviceGet{call}": answer for call, answer in answers.items()}
    return found | {"nvml.nvmlSystemGetDriverVersion()": row["driver_version"]}


_WORDS = {"Yes": 1, "No": 0, "Enabled": 1, "Disabled": 0}


def _number(row: dict[str, str], name: str, scale: int = 1) -> Any:
    text = row.get(name, "[N/A]")
    if text in _WORDS:
        return _WORDS[text]
    digits = re.match(r"P?([\d.]+)", text)
    return round(float(digits[1]) * scale) if digits else NOT_SUPPORTED


def _group(row: dict[str, str], scale: int = 1, **names: str) -> Any:
    found = {key: _number(row, name, scale) for key, name in names.items()}
    return NOT_SUPPORTED if NOT_SUPPORTED in found.values() else found


def _list(row: dict[str, str], *names: str) -> Any:
    found = [_number(row, name) for name in names]
    return NOT_SUPPORTED if NOT_SUPPORTED in found else found


def _field(row: dict[str, str], field: int, name: str) -> list[int]:
    value = _number(row, name, 1 if field == _MEMORY_TEMPERATURE else _NS_PER_US)
    return [NOT_SUPPORTED.code, 0] if value is NOT_SUPPORTED else [0, value]
