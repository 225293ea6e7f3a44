"""Recorder of nodes: drafts of the records of joins, boots, upgrades of agents and clock steps."""

from __future__ import annotations

from dataclasses import dataclass, field

from railscope.audit import record as audit_record
from railscope.wire import Envelope
from railscope_collector.audit import event_records
from railscope_collector.audit.recorder_state import BOOT, RECEIVED, STEP, UPGRADE, RecordedNode
from railscope_collector.framelog.segment_files import FrameRecord
from railscope_collector.ledger.record_draft import RecordDraft, build_record

STEP_NS = 2_000_000_000
"""Minimum clock step of a node that is evidence."""
STEPS_EVERY_NS = 3_600_000_000_000
"""Minimum interval between two recorded steps of a clock."""


@dataclass(frozen=True, slots=True)
class _NodeClock:
    run: str
    boot_id: str
    wall_less_boot_ns: int


@dataclass(slots=True)
class NodeRecorder:
    """Tracks all nodes. Envelopes that the log already covers are skipped."""

    nodes: dict[str, RecordedNode]
    """State of the nodes, which follows."""
    _clocks: dict[str, _NodeClock] = field(default_factory=dict)

    def may_change(self, record: FrameRecord) -> bool:
        """True if a record may have something new, so that its envelope must be opened."""
        clock, state = self._clocks.get(record.node), self.nodes.get(record.node)
        # Boot and version are those of a run, which records of earlier releases do not state, and count from a receipt on
        # that is later than what is recorded.
        is_known = clock is not None and clock.run == record.run != ""
        is_later = state is None or record.received_wall_ns > state.received_ns
        return not (is_known and is_later) or clock != self._next_clock(record)

    def observe(self, record: FrameRecord, envelope: Envelope) -> list[RecordDraft]:
        """Return drafts of everything that is new in an envelope; the state then has them."""
        name = event_records.normalize_text(envelope.node)
        state = self.nodes.setdefault(name, RecordedNode())
        drafts = []
        if not state.boots:
            drafts.append(_draft(event_records.JOIN, name, record, envelope))
        # Envelopes that are read again are older than the recorded state.
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
        if step := self._follow_clock(record, state):
            drafts.append(_draft(STEP, name, record, envelope, step_ns=str(step)))
        for draft in drafts:
            source = audit_record.RecordSource("collector", "", "", 0)
            state.apply(build_record(draft, source, 0))
        return drafts

    def _next_clock(self, record: FrameRecord) -> _NodeClock:
        """Return the clock after a record: another one after a step, a boot, or in another run."""
        sent, clock = record.sent, self._clocks.get(record.node)
        offset_ns = sent.wall_ns - sent.boot_ns
        # A new boot has a new zero of its boot clock: the difference is no step. And only after a step: a slow drift of
        # many small differences is not followed, and is found once it exceeds the bound.
        if (
            clock is not None
            and clock.boot_id == sent.boot_id != ""
            and abs(offset_ns - clock.wall_less_boot_ns) <= STEP_NS
        ):
            offset_ns = clock.wall_less_boot_ns
        return _NodeClock(record.run, sent.boot_id, offset_ns)

    def _follow_clock(self, record: FrameRecord, state: RecordedNode) -> int:
        """Follow the clock of a node; return its step in ns, 0 if that is not evidence."""
        clock, following = self._clocks.get(record.node), self._next_clock(record)
        self._clocks[record.node] = following
        if clock is None or clock.boot_id != following.boot_id or not clock.boot_id:
            return 0
        is_recent = state.stepped_ns and record.received_wall_ns < state.stepped_ns + STEPS_EVERY_NS
        return 0 if is_recent else following.wall_less_boot_ns - clock.wall_less_boot_ns


def _draft(
    kind: str, name: str, record: FrameRecord, envelope: Envelope, **more: str
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
