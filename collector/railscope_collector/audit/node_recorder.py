"""Recorder of nodes: drafts of the records of joins, boots, upgrades of agents and clock steps."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field

from railscope.audit import record as audit_record
from railscope.wire import Envelope
from railscope_collector.audit import event_records
from railscope_collector.audit.recorder_state import BOOT, RECEIVED, STEP, UPGRADE, RecordedNode
from railscope_collector.framelog import segment_files
from railscope_collector.ledger.record_draft import RecordDraft, build_record

STEP_NS = 2_000_000_000
"""Minimum clock step of a node that is evidence."""
STEPS_EVERY_NS = 3_600_000_000_000
"""Minimum interval between two recorded steps of a clock."""


@dataclass(slots=True)
class _NodeClock:
    boot_id: str
    wall_less_boot_ns: int


@dataclass(slots=True)
class NodeRecorder:
    """Tracks all nodes. Envelopes that the log already covers are skipped."""

    _nodes: dict[str, RecordedNode] = field(default_factory=dict)
    _clocks: dict[str, _NodeClock] = field(default_factory=dict)

    def start(self, nodes: dict[str, RecordedNode], drafts: Iterable[RecordDraft]) -> None:
        """Start from the nodes in the log, and from the drafts that are still to be recorded."""
        self._nodes = {name: copy(state) for name, state in nodes.items()}
        for draft in drafts:
            self._apply(draft)

    def observe(self, record: segment_files.FrameRecord, envelope: Envelope) -> list[RecordDraft]:
        """Return drafts of everything that is new in an envelope."""
        name = event_records.normalize_text(envelope.node)
        state = self._nodes.get(name)
        drafts = []
        if state is None or not state.boots:
            drafts.append(_draft(event_records.JOIN, name, record, envelope))
        # Envelopes that a restart reads again are older than the recorded state.
        elif record.received_wall_ns > state.received_ns:
            boot_id, version = (
                event_records.normalize_text(envelope.boot_id),
                event_records.normalize_text(envelope.agent_version),
            )
            # Two nodes of the same name alternate: a boot ID seen before is not a new boot.
            if boot_id not in state.boots:
                drafts.append(_draft(BOOT, name, record, envelope, before=state.boots[-1]))
            # A node of the same name in an earlier boot may have another version: that is no upgrade.
            if version != state.version and boot_id not in state.boots[:-1]:
                drafts.append(_draft(UPGRADE, name, record, envelope, before=state.version))
        if step := self._step(name, state, record):
            drafts.append(_draft(STEP, name, record, envelope, step_ns=str(step)))
        for draft in drafts:
            self._apply(draft)
        return drafts

    def _apply(self, draft: RecordDraft) -> None:
        record = build_record(draft, audit_record.RecordSource("collector", "", "", 0), 0)
        self._nodes.setdefault(draft.subject.node, RecordedNode()).apply(record)

    def _step(
        self, name: str, state: RecordedNode | None, record: segment_files.FrameRecord
    ) -> int:
        """Return the clock step of a node in ns; 0 if it is not evidence."""
        sent = record.sent
        offset_ns, clock = sent.wall_ns - sent.boot_ns, self._clocks.get(name)
        # A new boot has a new zero of its boot clock: the difference is no step.
        if clock is None or clock.boot_id != sent.boot_id or not sent.boot_id:
            self._clocks[name] = _NodeClock(sent.boot_id, offset_ns)
            return 0
        step_ns = offset_ns - clock.wall_less_boot_ns
        if abs(step_ns) <= STEP_NS:
            return 0
        # Only after a step: a slow drift of many small differences is not followed, and is found once it exceeds the
        # bound.
        clock.wall_less_boot_ns = offset_ns
        stepped_ns = state.stepped_ns if state else 0
        recent = stepped_ns and record.received_wall_ns < stepped_ns + STEPS_EVERY_NS
        return 0 if recent else step_ns


def _draft(
    kind: str, name: str, record: segment_files.FrameRecord, envelope: Envelope, **more: str
) -> RecordDraft:
    data: audit_record.RecordData = {
        "boot_id": event_records.normalize_text(envelope.boot_id),
        "version": event_records.normalize_text(envelope.agent_version),
        "run": event_records.normalize_text(envelope.run),
        RECEIVED: str(record.received_wall_ns),
        **{key: event_records.normalize_text(text) for key, text in more.items()},
    }
    actor = audit_record.RecordActor("agent", name)
    return RecordDraft(
        kind, actor, record.received_wall_ns, "seen", audit_record.RecordSubject(name), data
    )
