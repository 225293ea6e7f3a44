"""State of the event recorder, derived from the log: nodes, runs and claims.

By it every event is recorded once even if it is received again. A copy is stored in the state directory to
avoid reading the whole log at a start; records after the copy are read from the log, and all of
them if the copy is of a later state of the log.
"""

from __future__ import annotations

import hashlib

import msgspec
import structlog

from railscope.audit import record as audit_record
from railscope.untrusted_text import DECODING_ERRORS
from railscope.wire import WireEvent
from railscope_collector.audit import claims_in_force, event_records, log_writer
from railscope_collector.fleet.recent_events import EventPosition, SeenEvent
from railscope_collector.framelog import received_frames
from railscope_collector.ledger.record_draft import RecordDraft, build_record
from railscope_collector.state_store import StateStore

BOOT, UPGRADE, STEP = "node.boot", "admin.upgrade", "evidence.clock_step"
OF_NODES = frozenset({event_records.JOIN, BOOT, UPGRADE, STEP})
CONFIG = "admin.config"
RECEIVED = "received_ns"
DOCUMENT = "observed"
"""Document of `state.sqlite` with the copy."""
MAX_BOOTS = 8
"""More than one, as nodes that have the same name alternate: a boot ID that was seen before is no new boot."""

log = structlog.get_logger(__name__)


class RecordedNode(msgspec.Struct, array_like=True):
    """State of a node as of its last record in the log."""

    boots: list[str] = []
    """Latest boot IDs, oldest first."""
    version: str = ""
    received_ns: int = 0
    stepped_ns: int = 0

    def apply(self, record: audit_record.AuditRecord) -> None:
        """Apply a record about the node."""
        received_ns = _received_ns(record)
        if record.type == STEP:
            self.stepped_ns = max(self.stepped_ns, received_ns)
        else:
            boot_id = str(record.data.get("boot_id", ""))
            self.boots = [*(boot for boot in self.boots if boot != boot_id), boot_id][-MAX_BOOTS:]
            self.version = str(record.data.get("version", ""))
            self.received_ns = max(self.received_ns, received_ns)


class RecordedRun(msgspec.Struct, array_like=True):
    """Record numbers of one run of an agent that are in the log, and the receipt time of the last one."""

    numbers: received_frames.SequenceRanges = msgspec.field(
        default_factory=received_frames.SequenceRanges
    )
    last_ns: int = 0


class RecordedState(msgspec.Struct):
    """State of the log that is needed to recognize what is received again."""

    size: int = 0
    """Number of records of the log that are applied; records that wait for the log are applied in addition."""
    runs: dict[str, dict[str, RecordedRun]] = {}
    nodes: dict[str, RecordedNode] = {}
    holdings: claims_in_force.ClaimsInForce = msgspec.field(
        default_factory=claims_in_force.ClaimsInForce
    )
    version: str = ""
    """Collector version of the last recorded upgrade, or of the first start."""
    started: str = ""
    """Collector version of the last recorded start."""

    def has(self, source: audit_record.RecordSource) -> bool:
        """True if the record of this number is in the log."""
        recorded = self.runs.get(source.id, {}).get(source.boot)
        return recorded is not None and not recorded.numbers.missing_in(source.n, source.n)

    def add(self, record: audit_record.AuditRecord) -> None:
        """Apply the next record; applying it again changes nothing."""
        source = record.src
        if source.kind == "agent":
            recorded = self.runs.setdefault(source.id, {}).setdefault(source.boot, RecordedRun())
            recorded.numbers.add(source.n, source.n)
            recorded.last_ns = max(recorded.last_ns, _received_ns(record))
            self.holdings.add(record)
        elif record.type == claims_in_force.CONFLICT:
            self.holdings.add(record)
        elif record.obj.node and record.type in OF_NODES:
            self.nodes.setdefault(record.obj.node, RecordedNode()).apply(record)
        elif record.type == UPGRADE:
            self.version = str(record.data.get("version", ""))
        elif record.type == CONFIG:
            self.started = str(record.data.get("collector", self.started))
            self.version = self.version or self.started

    def forget_before(self, ns: int) -> None:
        """Drop runs with their last record received before a timestamp; no older frames exist."""
        for node, runs in list(self.runs.items()):
            for run in [run for run, recorded in runs.items() if recorded.last_ns < ns]:
                del runs[run]
            if not runs:
                del self.runs[node]


def _received_ns(record: audit_record.AuditRecord) -> int:
    received = record.data.get(RECEIVED)
    return int(received) if isinstance(received, str) and received.isdecimal() else 0


class RecordedSnapshot(msgspec.Struct):
    """Copy of `RecordedState`, with the events and drafts that were not in the log yet."""

    recorded: RecordedState
    events: list[tuple[str, str, WireEvent, EventPosition]] = []
    drafts: list[RecordDraft] = []

    def seen_events(self) -> list[SeenEvent]:
        """Return the events that are still to be recorded."""
        return [SeenEvent(*parts) for parts in self.events]

    def apply_record(self, record: audit_record.AuditRecord) -> None:
        """Apply the next record of the log; a draft that it contains is no longer pending."""
        self.recorded.add(record)
        # By the record that each draft would have at this position: drafts have no number of their own.
        self.drafts = [
            draft for draft in self.drafts if build_record(draft, record.src, record.seq) != record
        ]


def load_recorded_state(store: StateStore, audit: log_writer.AuditLog) -> RecordedSnapshot:
    """Load the copy and update it from the log. Blocking.

    Raises LogDamagedError, RecordError, UnusableLedgerError, OSError.
    """
    snapshot = _read(store)
    # The copy is of a later state of the log, or of another one: the log is what counts.
    if snapshot.recorded.size > audit.size:
        snapshot = RecordedSnapshot(RecordedState(), snapshot.events, snapshot.drafts)
    for raw in audit.records(snapshot.recorded.size):
        snapshot.apply_record(audit_record.decode_audit_record(raw))
    snapshot.recorded.size = audit.size
    for raw in audit.waiting_records():
        snapshot.apply_record(audit_record.decode_audit_record(raw))
    return snapshot


def encode_snapshot(snapshot: RecordedSnapshot) -> bytes:
    """Encode a copy for the file: SHA-256 of the content, then the content."""
    content = msgspec.msgpack.encode(snapshot)
    return hashlib.sha256(content).digest() + content


def _decode_snapshot(content: bytes) -> RecordedSnapshot:
    """Decode a copy. Raises MsgspecError, also if the hash does not match."""
    size = hashlib.sha256().digest_size
    if hashlib.sha256(content[size:]).digest() != content[:size]:
        message = "its hash does not match its content"
        raise msgspec.DecodeError(message)
    return msgspec.msgpack.decode(content[size:], type=RecordedSnapshot)


def _read(store: StateStore) -> RecordedSnapshot:
    try:
        if content := store.document(DOCUMENT):
            return _decode_snapshot(content)
    except DECODING_ERRORS as error:
        log.error(
            "audit_copy_damaged",
            file=str(store.path),
            problem=str(error),
            advice="the whole audit log is read instead",
        )
    return RecordedSnapshot(RecordedState())
