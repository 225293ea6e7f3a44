"""Health verdict on a node, or on the devices of one job, in the forms that schedulers and monitoring systems expect.

The agent derives the verdict; `railscope health` formats it. Both ends of the agent's socket use these types. This module
imports little: a prolog waits for the command.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import msgspec

HEALTH_PATH = "/v1/health"
HealthState = Literal["healthy", "degraded", "failed", "unknown"]
HEALTHY: HealthState = "healthy"
DEGRADED: HealthState = "degraded"
FAILED: HealthState = "failed"
UNKNOWN: HealthState = "unknown"
ORDER: Sequence[HealthState] = (FAILED, UNKNOWN, DEGRADED, HEALTHY)
"""All states; the verdict on several devices is the first that one of them has."""
PREFIX = "railscope: "
"""Prefix of reasons in the records of a scheduler."""
MAX_REASON = 80
"""Maximum length of a reason; node-problem-detector cuts longer ones."""
FORMATS = ("text", "json", "nagios", "npd")
_STATUSES = {HEALTHY: 0, DEGRADED: 1, FAILED: 2, UNKNOWN: 3}
"""Exit statuses of text and json, and of Nagios plugins: OK, WARNING, CRITICAL, UNKNOWN."""
_NAGIOS = ("OK", "WARNING", "CRITICAL", "UNKNOWN")
_NPD_STATUSES = {HEALTHY: 0, DEGRADED: 0, FAILED: 1, UNKNOWN: 2}
"""Exit statuses of custom plugins of node-problem-detector: no problem, problem, unknown."""


class DeviceVerdict(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Health of one GPU or NIC."""

    kind: Literal["GPU", "NIC"]
    name: str
    """UUID of a GPU, interface of a NIC; empty for all GPUs, if the agent has no verdict on them."""
    state: HealthState
    index: str = ""
    pci_address: str = ""
    rail: str = ""
    reasons: tuple[str, ...] = ()
    """Reasons of the rules whose fault is present, causes before their consequences; for an unknown device the absent facts."""
    action: str = ""
    """Most severe recommended action."""
    fault: str = ""
    """First reason in words."""
    advice: str = ""
    """Action in words."""

    def describe(self) -> str:
        """Name the device and its fault: `GPU 3: GPU lost`."""
        name = f"{self.kind} {self.index or self.name or self.pci_address}".rstrip()
        return f"{name}: {self.fault or next(iter(self.reasons), 'no reading')}"


class NodeVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Verdict on all devices of a node, or on those of one job."""

    state: HealthState
    reason: str
    """At most 80 characters, with the prefix."""
    action: str = ""
    """Most severe recommended action of all devices."""
    job: str = ""
    gpus: int = 0
    nics: int = 0
    devices: tuple[DeviceVerdict, ...] = ()
    """Devices that are not healthy, the worst first."""
    problem: str = ""
    """Full reason for an unknown verdict."""

    def count(self, state: HealthState) -> int:
        """Return the number of devices in a state other than healthy."""
        return sum(device.state == state for device in self.devices)


def unknown_verdict(problem: str, job: str = "") -> NodeVerdict:
    """Return the verdict if nothing is known about the devices, with the reason."""
    reason = limit_reason(f"unknown: {problem}")
    return NodeVerdict(state=UNKNOWN, reason=reason, job=job, problem=printable_ascii(problem))


def node_verdict(
    devices: Sequence[DeviceVerdict], actions_by_severity: Sequence[str], job: str = ""
) -> NodeVerdict:
    """Return the verdict on these devices."""
    worst = sorted(
        (device for device in devices if device.state != HEALTHY),
        key=lambda device: ORDER.index(device.state),
    )
    named = [device.kind for device in devices if device.name]
    numbers = {kind: named.count(kind) for kind in ("GPU", "NIC")}
    actions = [device.action for device in worst if device.action in actions_by_severity]
    action = max(actions, key=actions_by_severity.index, default="")
    if worst:
        more = f" +{len(worst) - 1} more" if len(worst) > 1 else ""
        words = next((each.advice for each in worst if each.action == action), "")
        advice = f"; {words or action}" if action else ""
        reason = limit_reason(f"{worst[0].describe()}{more}{advice}")
    elif named:
        reason = limit_reason(f"healthy GPUs: {numbers['GPU']}, healthy NICs: {numbers['NIC']}")
    else:
        reason = limit_reason("no GPU and no NIC to judge")
    return NodeVerdict(
        state=worst[0].state if worst else HEALTHY,
        reason=reason,
        action=action,
        job=job,
        gpus=numbers["GPU"],
        nics=numbers["NIC"],
        devices=tuple(worst),
    )


def printable_ascii(text: str) -> str:
    """Return a text with other characters than printable ASCII replaced."""
    return re.sub(r"[^ -~]", "?", text)


def limit_reason(text: str) -> str:
    """Return a reason with the prefix, printable ASCII only, cut to the maximum length."""
    printable = printable_ascii(f"{PREFIX}{text}")
    return printable if len(printable) <= MAX_REASON else f"{printable[: MAX_REASON - 3]}..."


def format_verdict(verdict: NodeVerdict, form: str) -> tuple[str, int]:
    """Return the text of a verdict in one of the formats, and the exit status that its receiver expects."""
    status = _STATUSES[verdict.state]
    match form:
        case "json":
            return msgspec.json.format(msgspec.json.encode(verdict)).decode(), status
        case "nagios":
            counts = " ".join(f"{state}={verdict.count(state)}" for state in ORDER[:-1])
            # The first bar begins the performance data of a plugin.
            text = verdict.reason.replace("|", "/")
            label = f"RAILSCOPE {_NAGIOS[status]} - {text}"
            return f"{label} | gpus={verdict.gpus} nics={verdict.nics} {counts}", status
        case "npd":
            return verdict.reason, _NPD_STATUSES[verdict.state]
    cut_reason = verdict.reason.removeprefix(PREFIX).removeprefix(f"{UNKNOWN}: ")
    summary = verdict.problem or cut_reason
    lines = [f"{verdict.state}: {summary}"]
    alike: dict[tuple[str, ...], list[DeviceVerdict]] = {}
    for device in verdict.devices:
        fault = device.fault or next(iter(device.reasons), "no reading")
        advice = f"; {device.advice or device.action}" if device.action else ""
        key = device.kind, f"{device.state}: {fault}{advice}"
        alike.setdefault(key, []).append(device)
    for (kind, found), devices in alike.items():
        first = devices[0]
        names = [first.index, first.name, first.pci_address]
        rail = f" on rail {first.rail}" if first.rail else ""
        if devices[1:]:
            names, rail = [", ".join(each.index or each.name for each in devices)], ""
        lines.append(f"  {kind} {' '.join(filter(None, names))}{rail}: {found}")
    return "\n".join(lines), status
