"""Facts about nodes from their envelopes: new node, boot, agent upgrade, clock step."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field

from collector.audit.events import JOIN, clean
from collector.audit.recorded import BOOT, RECEIVED, STEP, UPGRADE, NodeState
from collector.framelog.segments import Record
from collector.ledger.draft import Draft, record_of
from railscope.audit.record import Actor, Data, Source, Subject
from railscope.wire import Envelope

STEP_NS = 2_000_000_000
"""Minimum clock step of a node that is evidence."""
STEPS_EVERY_NS = 3_600_000_000_000
"""Minimum interval between two recorded steps of a clock."""


@dataclass(slots=True)
class _Clock:
    boot_id: str
    wall_less_boot_ns: int


@dataclass(slots=True)
class Nodes:
    """Tracks all nodes. Envelopes that the log already covers are skipped."""

    _nodes: dict[str, NodeState] = field(default_factory=dict)
    _clocks: dict[str, _Clock] = field(default_factory=dict)

    def start(self, nodes: dict[str, NodeState], drafts: Iterable[Draft]) -> None:
        """Start from the nodes in the log, and from the drafts that are still to be recorded."""
        self._nodes = {name: copy(state) for name, state in nodes.items()}
        for draft in drafts:
            self._take(draft)

    def look(self, record: Record, envelope: Envelope) -> list[Draft]:
        """Return drafts of everything that is new in an envelope."""
        name = clean(envelope.node)
        state = self._nodes.get(name)
        found = []
        if state is None or not state.boots:
            found.append(_draft(JOIN, name, record, envelope))
        elif record.received_wall_ns > state.received_ns:
            boot_id, version = clean(envelope.boot_id), clean(envelope.agent_version)
            # Two nodes of the same name alternate: a boot ID seen before is not a new boot.
            if boot_id not in state.boots:
                found.append(_draft(BOOT, name, record, envelope, before=state.boots[-1]))
            if version != state.version and boot_id not in state.boots[:-1]:
                found.append(_draft(UPGRADE, name, record, envelope, before=state.version))
        if step := self._step(name, state, record):
            found.append(_draft(STEP, name, record, envelope, step_ns=str(step)))
        for draft in found:
            self._take(draft)
        return found

    def _take(self, draft: Draft) -> None:
        record = record_of(draft, Source("collector", "", "", 0), 0)
        self._nodes.setdefault(draft.subject.node, NodeState()).take(record)

    def _step(self, name: str, state: NodeState | None, record: Record) -> int:
        """Return the clock step of a node in ns; 0 if it is not evidence."""
        sent = record.sent
        offset_ns, clock = sent.wall_ns - sent.boot_ns, self._clocks.get(name)
        if clock is None or clock.boot_id != sent.boot_id or not sent.boot_id:
            self._clocks[name] = _Clock(sent.boot_id, offset_ns)
            return 0
        step_ns = offset_ns - clock.wall_less_boot_ns
        if abs(step_ns) <= STEP_NS:
            return 0
        clock.wall_less_boot_ns = offset_ns
        stepped_ns = state.stepped_ns if state else 0
        recent = stepped_ns and record.received_wall_ns < stepped_ns + STEPS_EVERY_NS
        return 0 if recent else step_ns


def _draft(kind: str, name: str, record: Record, envelope: Envelope, **more: str) -> Draft:
    data: Data = {
        "boot_id": clean(envelope.boot_id),
        "version": clean(envelope.agent_version),
        "run": clean(envelope.run),
        RECEIVED: str(record.received_wall_ns),
        **{key: clean(text) for key, text in more.items()},
    }
    actor = Actor("agent", name)
    return Draft(kind, actor, record.received_wall_ns, "seen", Subject(name), data)
