"""Events of all nodes as one list on the collector's clock, in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from railscope.catalog import EVENTS
from railscope.device_names import Names
from railscope.timestamps import SECOND_NS
from railscope.wire import WireEntity
from railscope_collector.fleet.fleet import FleetNode
from railscope_collector.fleet.recent_events import SeenEvent

MAX_TEXT = 200
_INCIDENT = "incident_"
_SEVERITIES = {"critical": "error", "warning": "warning", "info": "info"}
_AREAS = {
    "xid": "GPU", "sxid": "GPU", "gpu": "GPU", "link": "link", "nic": "NIC", "port": "link", "pcie": "PCIe",
    "slot": "PCIe", "claim": "claim", "unclaimed": "claim", "source": "agent", "governor": "agent",
    "gap": "agent", "device": "agent", "audit": "audit", "incident": "incident", "out": "node", "peer": "GPU",
    "collective": "job", "nccl": "job",
}  # fmt: skip
"""Area of an event by the first word of its name."""
OF_COLLECTIVES = ("collective_", "nccl_")
"""Prefixes of events about ranks and collectives of jobs."""
_OF_RANKS = frozenset({"collective_rank", "communicator_rank", "nccl_rank"})
_COLLECTIVE_FACTS = (
    "collective", "sequence", "waiting_ranks", "waited_seconds", "waits_in", "gpu_index", "interface", "rails", "host",
    "late_percent", "percent", "detail", "stack",
)  # fmt: skip
"""Facts of events about collectives in the order of their importance: long texts are cut."""


class EventRow(msgspec.Struct, frozen=True):
    """One event; the time is on the collector's clock."""

    timestamp_ns: int
    node: str
    area: str
    name: str
    severity: str
    device: str
    text: str
    incident: str
    """Identity of the incident that the event is about; empty for others."""


def event_rows(
    events: Iterable[SeenEvent],
    nodes: Mapping[str, FleetNode],
    names_of: Callable[[str, WireEntity], Names | None],
    limit: int,
) -> list[EventRow]:
    """Return the newest events, newest first; one row for what happens to several devices of a node at once."""
    placed = []
    for seen_event in events:
        node = nodes.get(seen_event.node)
        # Agents date events by the clock of their node; those of the collector itself have no position.
        offset_ns = node.clock_offset_ns if node and seen_event.position else 0
        placed.append((seen_event.event.wall_ns - offset_ns, seen_event))
    placed.sort(key=lambda each: each[0], reverse=True)
    rows: list[EventRow] = []
    for timestamp_ns, seen_event in placed:
        row = _row(timestamp_ns, seen_event, names_of)
        if rows and _is_same(rows[-1], row):
            devices = rows[-1].device.removeprefix("GPU ").split(", ")
            if (device := row.device.removeprefix("GPU ")) not in devices:
                devices_text = f"{rows[-1].device}, {device}"
                rows[-1] = msgspec.structs.replace(rows[-1], device=devices_text[:MAX_TEXT])
        elif len(rows) < limit:
            rows.append(row)
        else:
            break
    return rows


def _is_same(newer: EventRow, older: EventRow) -> bool:
    """True if two events differ by the device only: one thing that happened to several."""
    same = msgspec.structs.replace(older, device=newer.device, timestamp_ns=newer.timestamp_ns)
    return same == newer and newer.timestamp_ns - older.timestamp_ns < SECOND_NS


def _row(
    timestamp_ns: int, seen_event: SeenEvent, names_of: Callable[[str, WireEntity], Names | None]
) -> EventRow:
    event, facts = seen_event.event, seen_event.event.facts
    declared = EVENTS.get(event.name)
    is_incident = event.name.startswith(_INCIDENT)
    severity = declared.severity if declared else "info"
    names = names_of(seen_event.node, event.entity) or {}
    device = names.get("interface") or names.get("index", "")
    if device and names.get("kind") == "gpu":
        device = f"GPU {device}"
    if event.entity.kind in _OF_RANKS and event.entity.key:
        device = f"rank {event.entity.key[-1]}"
    return EventRow(
        timestamp_ns,
        seen_event.node,
        _AREAS.get(event.name.partition("_")[0], "node"),
        event.name,
        _SEVERITIES.get(facts.get("severity", ""), severity) if is_incident else severity,
        device or (", ".join(event.entity.key) if not is_incident else facts.get("device", "")),
        _text(event.name, facts)[:MAX_TEXT],
        event.entity.key[0] if is_incident and event.entity.key else "",
    )


def _text(name: str, facts: Mapping[str, str]) -> str:
    """Return the facts of an event in words."""
    if name.startswith(_INCIDENT):
        return f"{facts.get('class', '')} {facts.get('change', '')}"
    if "before" in facts or "after" in facts:
        subject = facts.get("setting") or facts.get("change", "")
        change = f"{facts.get('before') or 'none'} → {facts.get('after') or 'none'}"
        reason = facts.get("problem") or facts.get("why") or facts.get("reasons", "")
        return " ".join(filter(None, (subject, change, f"({reason})" if reason else "")))
    if name.startswith(OF_COLLECTIVES):
        stated = [(fact.replace("_", " "), facts.get(fact)) for fact in _COLLECTIVE_FACTS]
        return ", ".join(f"{words} {text}" for words, text in stated if text)
    if workload := facts.get("workload"):
        return f"{facts.get('source', '')} {workload} of {facts.get('tenant') or facts.get('owner') or 'no tenant'}"
    for fact in ("meaning", "message"):
        if facts.get(fact):
            prefix = f"{facts['name']}: " if facts.get("name") else ""
            return prefix + facts[fact]
    return ", ".join(f"{key} {value}" for key, value in facts.items() if value)
