"""Events of all nodes on the collector's clock, in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from railscope import api
from railscope.catalog import EVENTS, entities, gpu_health
from railscope.device_names import Names
from railscope.timestamps import SECOND_NS
from railscope.wire import WireEntity
from railscope_collector.diagnosis.incident_classes import CLASSES
from railscope_collector.fleet.fleet import FleetNode
from railscope_collector.fleet.recent_events import SeenEvent

MAX_TEXT = 200
_WELL = frozenset({"healthy", "ok", "active", "up"})
"""States after a recovery: it is no error, whatever the severity of its event."""
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
_GPU = "GPU "
_COMMON = ("node", "name", "severity", "text", "incident")
_KEYED = frozenset({entities.LINK_CHANGE.name, entities.GPU_EVENT.name})
"""Entities whose second key is what happened."""
_OF_RANKS = frozenset({"collective_rank", "communicator_rank", "nccl_rank"})
_COLLECTIVE_FACTS = (
    "collective", "sequence", "waiting_ranks", "waited_seconds", "waits_in", "gpu_index", "interface", "rails", "host",
    "late_percent", "percent", "detail", "stack",
)  # fmt: skip
"""Facts of events about collectives in the order of their importance: long texts are cut."""


TenantOf: TypeAlias = Callable[[str, str, int], str]
"""Returns the tenant of an owner of a source at a time; empty if it is not known."""


def no_tenant(_source: str, _owner: str, _timestamp_ns: int) -> str:
    """Return the tenant of an owner where none is mapped."""
    return ""


@dataclass(frozen=True, slots=True)
class EventWriter:
    """Makes events of the API; `nodes` and `names_of` are those of the collector's state."""

    nodes: Mapping[str, FleetNode]
    names_of: Callable[[str, WireEntity], Names | None]
    tenant_of: TenantOf = no_tenant

    def newest(self, events: Iterable[SeenEvent], limit: int) -> tuple[api.Event, ...]:
        """Return the newest events, newest first; one for what happens to several devices of a node at once."""
        made = sorted(
            map(self.event, events), key=lambda each: each.timestamp_ns or 0, reverse=True
        )
        rows: list[tuple[api.Event, list[str]]] = []
        for row in made:
            if rows and _is_same(rows[-1][0], row):
                if row.devices not in rows[-1][1]:
                    rows[-1][1].append(row.devices)
            elif len(rows) < limit:
                rows.append((row, [row.devices]))
            else:
                break
        return tuple(
            msgspec.structs.replace(row, devices=_joined(devices)[:MAX_TEXT])
            for row, devices in rows
        )

    def event(self, seen_event: SeenEvent) -> api.Event:
        """Return one event."""
        event, facts, node = seen_event.event, seen_event.event.facts, seen_event.node
        entity, sender = event.entity, self.nodes.get(node)
        # Agents date events by the clock of their node; those of the collector itself have no position.
        offset_ns = sender.clock_offset_ns if sender and seen_event.position else 0
        declared, is_incident = EVENTS.get(event.name), event.name.startswith(_INCIDENT)
        keyed = entity.key[1] if entity.kind in _KEYED and len(entity.key) > 1 else ""
        is_well = (keyed or facts.get("after")) in _WELL
        severity = declared.severity if declared and not is_well else "info"
        names = self.names_of(node, entity)
        device = (names or {}).get("interface") or (names or {}).get("index", "")
        if names and device and names.get("kind") == "gpu":
            device = f"{_GPU}{device}"
        cause = facts.get("device", "")
        if is_incident and facts.get("cause") == "gpu" and cause.isdecimal():
            cause = f"{_GPU}{cause}"
        if entity.kind in _OF_RANKS and entity.key:
            device = f"rank {entity.key[-1]}"
        named = entity.key[:1] if keyed else entity.key
        if entity.kind == entities.SOURCE.name:
            named = tuple(f"source {each.replace('_', ' ')}" for each in named)
        owner = facts.get("source", ""), facts.get("owner", ""), event.wall_ns
        tenant = facts.get("tenant") or self.tenant_of(*owner)
        text = _text(event.name, {**facts, "tenant": tenant} if tenant else facts)
        if keyed:
            text = keyed.replace("_", " ") + (f" ({text})" if text else "")
        return api.Event(
            node,
            event.name,
            event.wall_ns,
            event.boot_ns,
            (entity.kind, entity.key, entity.facts),
            facts,
            names,
            event.wall_ns - offset_ns,
            _AREAS.get(event.name.partition("_")[0], "node"),
            _SEVERITIES.get(facts.get("severity", ""), severity) if is_incident else severity,
            device or (", ".join(named) if not is_incident else cause),
            text[:MAX_TEXT],
            entity.key[0] if is_incident and entity.key else "",
        )


def _joined(devices: Sequence[str]) -> str:
    """Return names of devices as one text; GPUs by their indexes: `GPU 0 to 7`."""
    indexes = [each.removeprefix(_GPU) for each in devices]
    if not all(each.startswith(_GPU) for each in devices):
        return ", ".join(devices)
    numbers = sorted(map(int, filter(str.isdecimal, indexes))) or [0]
    if devices[2:] and numbers == [*range(numbers[0], numbers[0] + len(devices))]:
        return f"{_GPU}{numbers[0]} to {numbers[-1]}"
    return _GPU + ", ".join(indexes)


def _is_same(newer: api.Event, older: api.Event) -> bool:
    """True if two events differ by the device only: one thing that happened to several."""
    is_alike = all(getattr(newer, each) == getattr(older, each) for each in _COMMON)
    return is_alike and newer.wall_ns - older.wall_ns < SECOND_NS


def _text(name: str, facts: Mapping[str, str]) -> str:
    """Return the facts of an event in words."""
    if name.startswith(_INCIDENT):
        kind = CLASSES.get(facts.get("class", ""))
        return f"{kind.title if kind else facts.get('class', '')} {facts.get('change', '')}"
    if "before" in facts or "after" in facts:
        subject = facts.get("setting") or facts.get("change", "")
        states = facts.get("before"), facts.get("after") or "none"
        change = " → ".join(dict.fromkeys(filter(None, states)))
        reasons = gpu_health.event_reasons_text(facts.get("reasons", ""))
        reason = facts.get("problem") or facts.get("why") or reasons
        return " ".join(filter(None, (subject, change, f"({reason})" if reason else "")))
    if name.startswith(OF_COLLECTIVES):
        stated = [(fact.replace("_", " "), facts.get(fact)) for fact in _COLLECTIVE_FACTS]
        return ", ".join(f"{words} {text}" for words, text in stated if text)
    if name.startswith("claim_") or facts.get("workload"):
        workload = facts.get("workload") or "unnamed"
        owner = facts.get("tenant") or facts.get("owner") or "no tenant"
        source = f" ({facts['source']})" if facts.get("source") else ""
        return f"{workload} of {owner}{source}"
    for fact in ("meaning", "message"):
        if facts.get(fact):
            prefix = f"{facts['name']}: " if facts.get("name") else ""
            return prefix + facts[fact]
    return ", ".join(f"{key} {value}" for key, value in facts.items() if value)
