"""State of the event recorder, derived from the log: nodes, runs and claims.

By it every event is recorded once even if it is received again. A copy is stored in `state.sqlite` to avoid reading the whole log
at a start; records after the copy are read from the log, and all of them if the copy is of a later state of the log.
"""

from __future__ import annotations

import hashlib

import msgspec
import structlog

from railscope.audit import record as audit_record
from railscope.untrusted_text import DECODING_ERRORS
from railscope_collector.audit import claims_in_force, event_records, log_writer
from railscope_collector.framelog import received_frames
from railscope_collector.state_store import StateStore

BOOT, UPGRADE, STEP = "node.boot", "admin.upgrade", "evidence.clock_step"
OF_NODES = frozenset({event_records.JOIN, BOOT, UPGRADE, STEP})
CONFIG = "admin.config"
RECEIVED = "received_ns"
DOCUMENT = "observed"
"""Document of `state.sqlite` with the copy."""
_DIGEST_BYTES = hashlib.sha256().digest_size
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
    """Number of records of the log as of the copy. Later ones are applied in addition, and once more after a start, which changes nothing."""
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


class _FormerCopy(msgspec.Struct):
    recorded: RecordedState


def load_recorded_state(audit: log_writer.AuditLog) -> RecordedState:
    """Read the copy, and update it from the log. Blocking; raises LogDamagedError, RecordError, UnusableLedgerError, OSError."""
    # First: what is moved to the log meanwhile is in both.
    waiting, size = audit.waiting_records(), audit.size
    state = _read_copy(audit.store)
    # The copy is of a later state of the log, or of another one: the log is what counts.
    if state.size > size:
        state = RecordedState()
    for raw in audit.records(state.size):
        state.add(audit_record.decode_audit_record(raw))
    for raw in waiting:
        state.add(audit_record.decode_audit_record(raw))
    return state


def store_recorded_state(store: StateStore, state: RecordedState) -> None:
    """Store a copy. Blocking; raises OSError."""
    with store.transaction() as connection:
        store.put_document(connection, DOCUMENT, msgspec.msgpack.encode(state))


def _read_copy(store: StateStore) -> RecordedState:
    content = store.document(DOCUMENT) or b""
    digest, former = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    try:
        # That of release 0.3.0 begins with its hash, and has what was still to be recorded: the frame log has that, too.
        if content and hashlib.sha256(former).digest() == digest:
            return msgspec.msgpack.decode(former, type=_FormerCopy).recorded
        if content:
            return msgspec.msgpack.decode(content, type=RecordedState)
    except DECODING_ERRORS as error:
        log.error(
            "audit_copy_damaged",
            file=str(store.path),
            problem=str(error),
            advice="the whole audit log is read instead",
        )
    return RecordedState()
