"""Events of all nodes on the collector's clock, in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeAlias

import msgspec

from railscope import api, figures
from railscope.catalog import EVENTS, entities, event_titles, gpu_health
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
_KEYED = frozenset({entities.LINK_CHANGE.name, entities.GPU_EVENT.name})
"""Entities whose second key is what happened."""
_NUMBERED = frozenset({entities.XID.name, entities.SXID.name})
"""Entities whose second key is the number by which the driver's documents know the event."""
_LINK_WORDS = frozenset({"nic", "link", "is", "up", "down"})
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
    events: dict[str, list[api.Event]] = field(default_factory=dict)
    """Events of each device, newest first."""

    def is_same(self, older: api.Event) -> bool:
        """True if an event differs by device and time only, or by the reasons for one state."""
        return _identity(self.newest) == _identity(older)

    def is_same_moment(self, older: api.Event) -> bool:
        """True if an event differs by the device only."""
        is_alike = self.is_same(older) and self.newest.text == older.text
        return is_alike and self.newest.wall_ns - older.wall_ns < SECOND_NS

    def folded(self) -> api.Event:
        """Return the events as the newest of them, with all devices and how often it happened."""
        moments = [{each.wall_ns for each in events} for events in self.events.values()]
        most, text = max(moments, key=len), self.newest.text
        if len(most) > 1:
            bound = "" if {len(each) for each in moments} == {len(most)} else "up to "
            period = figures.duration((max(most) - min(most)) / SECOND_NS)
            repeated = f"{bound}{len(most)} times within {period}"
            text = ", ".join(filter(None, (self._reasoned()[:MAX_TEXT].rstrip("."), repeated)))
        devices = _joined([*self.events])[:MAX_TEXT]
        return msgspec.structs.replace(self.newest, devices=devices, text=text)

    def _reasoned(self) -> str:
        """Return the text of the newest event, with the reasons of all."""
        newest, events = self.newest, chain.from_iterable(self.events.values())
        stated = [each.facts.get("reasons", "").split(", ") for each in events]
        reasons = ", ".join(filter(None, dict.fromkeys(chain.from_iterable(stated))))
        return _text(newest.name, {**newest.facts, "reasons": reasons}) if reasons else newest.text


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
        last_of: dict[tuple[str, str, tuple[str, ...]], _Row] = {}
        for event in made:
            device = event.node, event.devices, _ranks_of(event)
            row = last_of.get(device)
            if row is None or not row.is_same(event):
                row = rows[-1] if rows and rows[-1].is_same_moment(event) else _Row(event)
            last_of[device] = row
            if not row.events:
                if len(rows) == limit:
                    continue  # older ones may still repeat a row
                rows.append(row)
            row.events.setdefault(event.devices, []).append(event)
        return tuple(row.folded() for row in rows)

    def timestamp_ns(self, seen_event: SeenEvent) -> int:
        """Return the time of an event on the collector's clock."""
        sender = self.nodes.get(seen_event.node)
        # Agents date events by the clock of their node; those of the collector itself have no position.
        offset_ns = sender.clock_offset_ns if sender and seen_event.position else 0
        return seen_event.event.wall_ns - offset_ns

    def event(self, seen_event: SeenEvent) -> api.Event:
        """Return one event."""
        event, facts, node = seen_event.event, seen_event.event.facts, seen_event.node
        entity = event.entity
        declared, is_incident = EVENTS.get(event.name), event.name.startswith(_INCIDENT)
        is_open = is_incident and event.name != "incident_closed"
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
            named = tuple(f"source {event_titles.in_words(each)}" for each in named)
        owner = facts.get("source", ""), facts.get("owner", ""), event.wall_ns
        tenant = facts.get("tenant") or self.tenant_of(*owner)
        text = _text(event.name, {**facts, "tenant": tenant} if tenant else facts)
        if keyed and entity.kind == entities.LINK_CHANGE.name:
            text = _more_of(text, entity.key[0])
        if keyed:
            text = event_titles.in_words(keyed) + (f" ({text})" if text else "")
        if entity.kind in _NUMBERED and len(entity.key) > 1:
            text = f"{entity.key[1]} {text}"
        return api.Event(
            node,
            event.name,
            event.wall_ns,
            event.boot_ns,
            (entity.kind, entity.key, entity.facts),
            facts,
            names,
            self.timestamp_ns(seen_event),
            _AREAS.get(event.name.partition("_")[0], "node"),
            _SEVERITIES.get(facts.get("severity", ""), severity) if is_open else severity,
            device or (", ".join(named) if not is_incident else cause),
            text[:MAX_TEXT],
            entity.key[0] if is_incident and entity.key else "",
        )


def _ranks_of(event: api.Event) -> tuple[str, ...]:
    """Return the job and the communicator whose ranks an event is about; empty for other events."""
    kind, key, _ = event.entity
    return key[:-1] if kind in _OF_RANKS else ()


def _identity(event: api.Event) -> tuple[object, ...]:
    """Return what is equal for events that are one row; a state that stays is the same whatever its reasons."""
    stays = (
        event.facts.get("after") if event.facts.get("before") == event.facts.get("after") else ""
    )
    text = stays or event.text
    return event.node, event.name, event.severity, text, event.incident, _ranks_of(event)


def _joined(devices: Sequence[str]) -> str:
    """Return names of devices as one text; GPUs by their indexes: `GPU 0 to 7`."""
    indexes = [each.removeprefix(_GPU) for each in devices]
    if not all(each.startswith(_GPU) for each in devices):
        return ", ".join(devices)
    numbers = sorted(map(int, filter(str.isdecimal, indexes))) or [0]
    if devices[2:] and numbers == [*range(numbers[0], numbers[0] + len(devices))]:
        return f"{_GPU}{numbers[0]} to {numbers[-1]}"
    return _GPU + ", ".join(sorted(indexes, key=lambda index: (len(index), index)))


def _more_of(message: str, interface: str) -> str:
    """Return what a driver's message of a link states beside interface and state: `100 Gbps Full Duplex`."""
    words = message.rpartition(f"{interface}: ")[2].rstrip(".").split()
    return " ".join(word for word in words if word.rstrip(",").lower() not in _LINK_WORDS)


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
        stated = [(event_titles.in_words(fact), facts.get(fact)) for fact in _COLLECTIVE_FACTS]
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
