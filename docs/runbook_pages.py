"""Runbooks of alerts: a page for each file of rules, with a section for each alert.

A section begins with a generated paragraph: the summary of the alert and its severities. Sections of alerts that page end
with generated commands, if they are those of its text: of a class of incidents with the same remedy, or its own. All between them is written by hand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from railscope.api import JobDocument, NicDocument
from railscope_collector.diagnosis.incident_classes import INCIDENT_RUNBOOK
from railscope_collector.diagnosis.incident_commands import commands_of

_ROOT = Path(__file__).resolve().parent.parent
_RULES = _ROOT / "alerts/rules"
DIRECTORY = "alerts/runbooks"
_COMMANDS = "The commands in steps; where they differ, type those of your scheduler:"
_HEADING = re.compile(r"^## (\w+)$", re.MULTILINE)
_ONLY_CRITICAL = "Only if the alert is critical. "
"""Alerts with warnings too: a warning ends no job."""
_COMMANDS_PART = re.compile(rf"\n+(?:{_ONLY_CRITICAL})?{re.escape(_COMMANDS)}\n.*", re.DOTALL)
_EITHER = re.compile(
    r"\{\{ with \$labels\.(?P<label>\w+) \}\}(?P<text>.*?)\{\{ else \}\}.*?\{\{ end \}\}"
)
_LABEL = re.compile(r"\{\{ (?:or )?\$labels\.(?P<label>\w+)(?: \$labels\.\w+)* \}\}")

_REMEDIES: Mapping[str, str] = {
    "RailscopeFecErrors": "transceiver_degraded",
    "RailscopeGpuDriverStuck": "gpu_unresponsive",
    "RailscopeGpuEccUncorrected": "ecc_uncorrectable",
    "RailscopeGpuHealth": "xid_event",
    "RailscopeGpuLost": "gpu_lost",
    "RailscopeGpuMemoryFailed": "gpu_memory_failed",
    "RailscopeGpuMissing": "gpu_lost",
    "RailscopeGpuXid": "xid_event",
    "RailscopeLinkDown": "link_down",
    "RailscopeNodeStale": "node_down",
    "RailscopeNvswitchSxid": "gpu_lost",
    "RailscopePcieAer": "nic_lost",
    "RailscopePcieDeviceGone": "nic_lost",
    "RailscopePfcStorm": "pfc_storm",
    "RailscopeBondDegraded": "repair",
    "RailscopeDriveFailing": "repair",
    "RailscopeGpuPowerBrake": "repair",
    "RailscopeGpuThermalThrottle": "repair",
    "RailscopeHostMemoryErrors": "repair",
    "RailscopeNvlinkDown": "reset_all_gpus",
    "RailscopeNvlinkErrors": "reset_all_gpus",
    "RailscopeNvlinkFabric": "restart_fabric",
    "RailscopeRdmaPortMissing": "load_rdma_module",
}
"""Class of incidents with the same commands, or a remedy that none has, by the alert that pages."""


@cache
def rules() -> list[tuple[str, dict[str, Any]]]:
    """Return each rule of an alert with the page of its runbook: RailscopeIncident has a page of its own."""
    return [
        (path.stem if rule["alert"] != INCIDENT_RUNBOOK else INCIDENT_RUNBOOK, rule)
        for path in sorted(_RULES.glob("*.yml"))
        for group in yaml.load(path.read_text(), yaml.CSafeLoader)["groups"]
        for rule in group["rules"]
        if "alert" in rule
    ]


def link(alert: str) -> str:
    """Return the file of a runbook with its section."""
    page = next(page for page, rule in rules() if rule["alert"] == alert)
    return f"{page}.md" if page == alert else f"{page}.md#{alert.lower()}"


def names() -> list[str]:
    """Return the files of all pages with sections."""
    return sorted(
        {f"{DIRECTORY}/{page}.md" for page, _ in rules()} - {f"{DIRECTORY}/{INCIDENT_RUNBOOK}.md"}
    )


def page(name: str) -> str:
    """Return a page as it is, with its generated paragraphs and commands again; raises ValueError without a section."""
    text = (_ROOT / name).read_text()
    head, *parts = _HEADING.split(text)
    written = dict(zip(parts[::2], parts[1::2], strict=True))
    by_name: dict[str, list[dict[str, Any]]] = {}
    for file, rule in rules():
        if f"{DIRECTORY}/{file}.md" == name:
            by_name.setdefault(rule["alert"], []).append(rule)
    if missing := by_name.keys() - written.keys():
        message = f"writing {name} failed: no section for {', '.join(sorted(missing))}; fix: add a heading ## ALERT"
        raise ValueError(message)
    sections = (_section(alert, same, written[alert]) for alert, same in by_name.items())
    return head.rstrip("\n") + "\n\n" + "\n\n".join(sections) + "\n"


def summary(rule: dict[str, Any]) -> str:
    """Return the summary of a rule for a page: labels in capitals, such as NODE, and the first of two forms."""
    text = rule["annotations"]["summary"]
    text = _EITHER.sub(lambda found: found["text"].replace("{{ . }}", found["label"].upper()), text)
    return _LABEL.sub(lambda found: found["label"].upper(), text)


def _section(alert: str, same: list[dict[str, Any]], written: str) -> str:
    by_hand = _COMMANDS_PART.sub("", written.strip("\n")).partition("\n\n")[2]
    parts = [f"## {alert}", f"{summary(same[0])} {_severities(same)}", by_hand]
    if commands := _commands(alert, same):
        is_mixed = {rule["labels"]["severity"] for rule in same} != {"critical"}
        intro = (_ONLY_CRITICAL if is_mixed else "") + _COMMANDS
        parts += [intro, "\n".join(("```sh", *commands, "```"))]
    return "\n\n".join(filter(None, parts))


def _severities(same: list[dict[str, Any]]) -> str:
    """Return the severities of an alert in words: with the delays, and the labels that distinguish its rules."""
    found: dict[str, list[str]] = {}
    for rule in same:
        other = {
            key: text for key, text in rule["labels"].items() if key not in {"severity", "detail"}
        }
        delay = "at once" if rule["for"].startswith("0") else f"after {rule['for']}"
        found.setdefault(f"{rule['labels']['severity']} {delay}", []).extend(
            f"{key} `{text}`" for key, text in other.items()
        )
    shown = (
        severity + (f" ({', '.join(labels)})" if labels else "")
        for severity, labels in found.items()
    )
    return f"Severity: {'; '.join(shown)}."


def _commands(alert: str, same: list[dict[str, Any]]) -> list[str]:
    if all(rule["labels"]["severity"] != "critical" for rule in same):
        return []
    return list(commands(_REMEDIES[alert])) if alert in _REMEDIES else []


_NODE = NicDocument("NODE", "INTERFACE", "", "PCI_ADDRESS", None, "", "")
_CAUSES = {
    "Slurm": (_NODE, JobDocument("", "slurm", "JOB")),
    "Kubernetes": (_NODE, JobDocument("", "kubernetes", "NAMESPACE/JOB")),
}


def commands(remedy: str) -> Iterator[str]:
    """Yield the lines of a block with the commands of a remedy, of both schedulers, with NODE and JOB in place of names."""
    found: dict[str, dict[tuple[str, ...], list[str]]] = {}
    for scheduler, (node, job) in _CAUSES.items():
        cause = job if remedy == "nccl_hang" else node
        for step in commands_of(remedy, "INCIDENT", cause, scheduler.lower()):
            comment = f": {step.comment}" if step.comment else ""
            reason = f"'railscope {remedy} INCIDENT'"
            lines = comment, *(line.replace(reason, "REASON") for line in step.commands)
            found.setdefault(step.step, {}).setdefault(lines, []).append(scheduler)
    for step, variants in found.items():
        for (comment, *lines), schedulers in variants.items():
            yield f"# {step}{f' ({schedulers[0]})' if len(variants) > 1 else ''}{comment}"
            yield from lines
