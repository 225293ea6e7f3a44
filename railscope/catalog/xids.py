"""Meaning of GPU driver errors (Xid) and NVSwitch driver errors (SXid), and recommended actions.

The tables are data, in `xids.toml` in this directory, and are read on first use. Drivers add numbers, so
a number that is not in the tables has an entry too: "unknown". Actions are for a person or a scheduler;
Railscope resets nothing.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

ACTION_ORDER = ("ignore", "restart_app", "drain", "reset_gpu", "reboot", "rma")
"""All actions, from mildest to most severe; `ignore` means to record the error and do no more."""
ERROR_CLASSES = ("application", "record", "hardware")
UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Xid:
    """GPU error, by the number in `NVRM: Xid (...): number`.

    `name` is the driver's constant without ROBUST_CHANNEL_. `immediate` and `investigate` are NVIDIA's
    terms, empty if it lists none; `actions` are ours, from mildest to most severe.
    """

    number: int
    name: str
    meaning: str
    severity: str
    immediate: str
    investigate: str
    actions: tuple[str, ...]
    source: str
    note: str = ""

    @property
    def error_class(self) -> str:
        """Class of the error, one of ERROR_CLASSES, derived from the table's actions.

        "application": caused by the application, or affects only the application; "record": a driver
        message that needs no action; "hardware": GPU, links, firmware or driver need attention.
        """
        if self.number in (CONTAINED, _UNCONTAINED) or self.name == UNKNOWN:
            return "hardware"
        if self.actions == ("restart_app",) or self.number in _CLEAN_UP:
            return "application"
        return "record" if self.actions == ("ignore",) and self.severity != "fatal" else "hardware"


@dataclass(frozen=True, slots=True)
class Sxid:
    """NVSwitch error, by the number in `nvidia-nvswitchN: SXid (...): number`.

    `error_class` is that of the Fabric Manager User Guide: "nonfatal", "port_fatal" (for the GPUs of one
    port), "fatal" (for the whole fabric), "notable".
    """

    number: int
    name: str
    error_class: str
    meaning: str
    severity: str
    actions: tuple[str, ...]
    source: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class RecoveryAction:
    """Recovery action that the driver reports for a GPU: our name, the driver's name, our actions, severity.

    An action is fatal unless running jobs may finish first.
    """

    name: str
    nvidia: str
    actions: tuple[str, ...]
    severity: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """Judgement of one Xid message; `nvidia` is NVIDIA's term for the action, empty if none."""

    severity: str
    actions: tuple[str, ...]
    nvidia: str


RECOVERY_ACTIONS: Mapping[int, RecoveryAction] = MappingProxyType(
    {
        0: RecoveryAction("none", "None", ("ignore",), "nonfatal"),
        1: RecoveryAction("gpu_reset", "GPU Reset Required", ("reset_gpu",), "fatal"),
        2: RecoveryAction("node_reboot", "Node Reboot Required", ("reboot",), "fatal"),
        3: RecoveryAction("drain_p2p", "Drain P2P", ("drain", "reset_gpu"), "nonfatal"),
        4: RecoveryAction("drain_and_reset", "Drain and Reset", ("drain", "reset_gpu"), "nonfatal"),
        5: RecoveryAction("recover_imex_domain", "Recover IMEX Domain", ("ignore",), "nonfatal"),
        6: RecoveryAction("bus_reset", "Bus Reset", ("reset_gpu",), "fatal"),
        7: RecoveryAction("system_reboot", "System Reboot", ("reboot",), "fatal"),
    }
)
"""Actions by value of NVML's field 230 (NVML_FI_DEV_GET_GPU_RECOVERY_ACTION), which Xid 154 prints too."""

CONTAINED, _UNCONTAINED, _RECOVERY_CHANGED = 94, 95, 154
_CLEAN_UP = (45, 174)
"""The driver removes a process or its channels after another error, or because the process was ended."""
_NVLINK5 = range(144, 151)

# The messages are those of NVIDIA/open-gpu-kernel-modules, src/nvidia/src/kernel/gpu: gpu.c (154),
# arch/ampere/kern_gpu_error_cont_ga100.c (94, 95); NVLink 5 as in the Xid catalogue.
_RECOVERY = re.compile(
    r"(?:.*\bto |.*\b)0x(?P<value>[0-9a-f]*)\b(?: ?\((?P<name>[^()]*)\))?", re.IGNORECASE
)
_RESET = re.compile(r"\bRST: (?P<reset>Yes|No), D-RST: (?P<drain>Yes|No)\b")
_NVLINK5_SEVERITY = re.compile(r"\b(?P<non>non-?)?fatal\b", re.IGNORECASE)


def xid(number: int) -> Xid:
    """Return the entry of an Xid; one named "unknown" if the table has none."""
    return xids().get(number) or Xid(
        number, UNKNOWN, "Unknown Xid.", UNKNOWN, "", "", ("ignore",), ""
    )


def sxid(number: int) -> Sxid:
    """Return the entry of an SXid; one named "unknown" if the table has none."""
    return sxids().get(number) or Sxid(
        number, UNKNOWN, UNKNOWN, "Unknown SXid.", UNKNOWN, ("ignore",), ""
    )


def recovery_action(value: int) -> RecoveryAction:
    """Return the action of a value of field 230; one that the table lacks is fatal, and has no actions."""
    return RECOVERY_ACTIONS.get(value) or RecoveryAction(UNKNOWN, f"0x{value:x}", (), "fatal")


def judge(number: int, message: str) -> Judgement:
    """Judge one Xid message: the table's entry, refined by the message text.

    `message` is the text after the number, process and name in the line; it may be empty, as for an event
    that NVML reports without text. Any number and any text have a judgement.
    """
    entry = xid(number)
    general = Judgement(entry.severity, entry.actions, entry.immediate)
    if number == _RECOVERY_CHANGED:
        return _recovery(general, message)
    if number in _NVLINK5:
        return _nvlink5(general, message)
    if number in (CONTAINED, _UNCONTAINED):
        return _contained(general, message)
    return general


def _recovery(general: Judgement, message: str) -> Judgement:
    """Xid 154: `GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)`.

    The value after `to` decides, or the last one: drivers write other names, such as 0x1 (PF FLR) and 0x2 (OS Reboot).
    """
    match = _RECOVERY.match(message)
    if not match or not match["value"]:
        return general
    action = recovery_action(value := int(match["value"], 16))
    name = (value and match["name"]) or action.nvidia
    return Judgement(action.severity, action.actions, name)


def _nvlink5(general: Judgement, message: str) -> Judgement:
    """Xids 144 to 150: `NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 ...)`."""
    match = _NVLINK5_SEVERITY.search(message)
    if not match:
        return general
    nvidia = f"{general.nvidia} ({match[0]})"
    if match["non"]:
        return Judgement("nonfatal", ("ignore",), nvidia)
    return Judgement("fatal", ("drain", "reset_gpu"), nvidia)


def _contained(general: Judgement, message: str) -> Judgement:
    """Xids 94 and 95: `Contained: SM (0x1). RST: No, D-RST: No`, reset or drain and reset required.

    Yes adds to the table's actions; No removes nothing.
    """
    match = _RESET.search(message)
    if not match:
        return general
    required = set(general.actions)
    if "Yes" in (match["reset"], match["drain"]):
        required.add("reset_gpu")
    if match["drain"] == "Yes":
        required.add("drain")
    actions = tuple(action for action in ACTION_ORDER if action in required)
    return replace(general, actions=actions, nvidia=f"{general.nvidia} ({match[0]})")


@cache
def xids() -> Mapping[int, Xid]:
    """Every Xid of the table by number, ascending."""
    rows = ({"number": int(number), **row} for number, row in _tables()["xid"].items())
    return MappingProxyType({row["number"]: msgspec.convert(row, Xid) for row in rows})


@cache
def sxids() -> Mapping[int, Sxid]:
    """Every SXid of the table by number, ascending; fields of a class apply to each of its entries."""
    classes = _tables()["sxid_class"]
    rows = (
        {"number": int(number), "error_class": row["class"], **classes[row["class"]], **row}
        for number, row in _tables()["sxid"].items()
    )
    return MappingProxyType({row["number"]: msgspec.convert(row, Sxid) for row in rows})


@cache
def _tables() -> dict[str, Any]:
    # Not by importlib.resources: that would cost every agent a megabyte to read one file.
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
