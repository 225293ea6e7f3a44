"""Events of all nodes on the collector's clock, in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from railscope import api, figures
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
class _Row:
    """Events that are one row: the same thing, of several devices at once or of a device repeatedly."""

    newest: api.Event
    times: dict[str, list[int]] = field(default_factory=dict)
    """Times of the events of each device, newest first."""

    def is_same(self, older: api.Event) -> bool:
        """True if an event differs by device and time only."""
        return all(getattr(self.newest, each) == getattr(older, each) for each in _COMMON)

    def is_same_moment(self, older: api.Event) -> bool:
        """True if an event differs by the device only."""
        return self.is_same(older) and self.newest.wall_ns - older.wall_ns < SECOND_NS

    def folded(self) -> api.Event:
        """Return the events as the newest of them, with all devices and how often it happened."""
        moments = [set(times) for times in self.times.values()]
        most, text = max(moments, key=len), self.newest.text
        if len(most) > 1:
            bound = "" if {len(each) for each in moments} == {len(most)} else "up to "
            period = figures.duration((max(most) - min(most)) / SECOND_NS)
            text = f"{text}, {bound}{len(most)} times within {period}"
        devices = _joined([*self.times])[:MAX_TEXT]
        return msgspec.structs.replace(self.newest, devices=devices, text=text)


@dataclass(frozen=True, slots=True)
class EventWriter:
    """Makes events of the API; `nodes` and `names_of` are those of the collector's state."""

    nodes: Mapping[str, FleetNode]
    names_of: Callable[[str, WireEntity], Names | None]
    tenant_of: TenantOf = no_tenant

    def newest(self, events: Iterable[SeenEvent], limit: int) -> tuple[api.Event, ...]:
        """Return the newest events, newest first; one for what happens to several devices of a node, or to one repeatedly."""
        made = sorted(
            map(self.event, events), key=lambda each: each.timestamp_ns or 0, reverse=True
        )
        rows: list[_Row] = []
        last_of: dict[tuple[str, str], _Row] = {}
        for event in made:
            device = event.node, event.devices
            row = last_of.get(device)
            if row is None or not row.is_same(event):
                row = rows[-1] if rows and rows[-1].is_same_moment(event) else _Row(event)
            last_of[device] = row
            if not row.times:
                if len(rows) == limit:
                    continue  # older ones may still repeat a row
                rows.append(row)
            row.times.setdefault(event.devices, []).append(event.wall_ns)
        return tuple(row.folded() for row in rows)

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
