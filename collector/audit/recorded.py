"""State of agent records in the log, by which every event is recorded once even if it is received again.

All of it is derived from the log, record by record. A copy is stored beside the log to avoid reading the
whole log at a start; records after the copy are read from the log, and all of them if the copy is of
another log.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import structlog

from collector.audit.events import JOIN
from collector.audit.holding import CONFLICT, Holdings
from collector.audit.log import AuditLog
from collector.fleet.seen_event import Position, SeenEvent
from collector.framelog.sequences import Ranges
from collector.ledger.draft import Draft, record_of
from collector.ledger.ledger_records import HEAD
from railscope.audit.merkle import leaf_hash
from railscope.audit.record import Record, Source, decode
from railscope.wire import WireEvent

BOOT, UPGRADE, STEP = "node.boot", "admin.upgrade", "evidence.clock_step"
OF_NODES = frozenset({JOIN, BOOT, UPGRADE, STEP})
CONFIG = "admin.config"
RECEIVED = "received_ns"
MAX_BOOTS = 8

log = structlog.get_logger(__name__)


class NodeState(msgspec.Struct, array_like=True):
    """State of a node as of its last record in the log."""

    boots: list[str] = []
    """Latest boot IDs, oldest first."""
    version: str = ""
    received_ns: int = 0
    stepped_ns: int = 0

    def take(self, record: Record) -> None:
        """Apply a record about the node."""
        received_ns = _received_ns(record)
        if record.type == STEP:
            self.stepped_ns = max(self.stepped_ns, received_ns)
        else:
            boot_id = str(record.data.get("boot_id", ""))
            self.boots = [*(one for one in self.boots if one != boot_id), boot_id][-MAX_BOOTS:]
            self.version = str(record.data.get("version", ""))
            self.received_ns = max(self.received_ns, received_ns)


class Told(msgspec.Struct, array_like=True):
    """Record numbers of one run of an agent that are in the log, and the receipt time of the last one."""

    numbers: Ranges = msgspec.field(default_factory=Ranges)
    last_ns: int = 0


class Recorded(msgspec.Struct):
    """State of the log that is needed to recognize what is received again."""

    genesis: str = ""
    """Hash of the log's first record, which identifies the log."""
    size: int = 0
    runs: dict[str, dict[str, Told]] = {}
    nodes: dict[str, NodeState] = {}
    holdings: Holdings = msgspec.field(default_factory=Holdings)
    head: tuple[str, int, str] = ("", 0, "")
    """Database, number and hash of the newest recorded head of the ledger."""
    version: str = ""
    """Collector version of the last recorded upgrade, or of the first start."""
    started: str = ""
    """Collector version of the last recorded start."""

    def has(self, source: Source) -> bool:
        """True if the record of this number is in the log."""
        told = self.runs.get(source.id, {}).get(source.boot)
        return told is not None and not told.numbers.missing_in(source.n, source.n)

    def add(self, record: Record) -> None:
        """Apply the next record of the log."""
        self.size = record.seq + 1
        source = record.src
        if source.kind == "agent":
            told = self.runs.setdefault(source.id, {}).setdefault(source.boot, Told())
            told.numbers.add(source.n, source.n)
            told.last_ns = max(told.last_ns, _received_ns(record))
            self.holdings.add(record)
        elif record.type == HEAD:
            database, n, head = (record.data.get(key) for key in ("database", "n", "head"))
            self.head = str(database), n if isinstance(n, int) else 0, str(head)
        elif record.type == CONFLICT:
            self.holdings.add(record)
        elif record.obj.node and record.type in OF_NODES:
            self.nodes.setdefault(record.obj.node, NodeState()).take(record)
        elif record.type == UPGRADE:
            self.version = str(record.data.get("version", ""))
        elif record.type == CONFIG:
            self.started = str(record.data.get("collector", self.started))
            self.version = self.version or self.started

    def forget_before(self, ns: int) -> None:
        """Drop runs with their last record received before a timestamp; no older frames exist."""
        for node, runs in list(self.runs.items()):
            for run in [run for run, told in runs.items() if told.last_ns < ns]:
                del runs[run]
            if not runs:
                del self.runs[node]


def _received_ns(record: Record) -> int:
    received = record.data.get(RECEIVED)
    return int(received) if isinstance(received, str) and received.isdecimal() else 0


class Snapshot(msgspec.Struct):
    """Copy of `Recorded`, with the events and drafts that were not in the log yet."""

    recorded: Recorded
    events: list[tuple[str, str, WireEvent, Position]] = []
    drafts: list[Draft] = []

    def seen(self) -> list[SeenEvent]:
        """Return the events that are still to be recorded."""
        return [SeenEvent(*parts) for parts in self.events]

    def follow(self, record: Record) -> None:
        """Apply the next record of the log; a draft that it contains is no longer pending."""
        self.recorded.add(record)
        self.drafts = [
            draft for draft in self.drafts if record_of(draft, record.src, record.seq) != record
        ]


def load(path: Path, audit: AuditLog) -> Snapshot:
    """Load the copy and update it from the log. Blocking; raises TileError, RecordError, OSError."""
    raw = next(audit.records(0), None)
    genesis = leaf_hash(raw).hex() if raw is not None else ""
    found = _read(path)
    if found.recorded.genesis != genesis or found.recorded.size > audit.size:
        found = Snapshot(Recorded(genesis), found.events, found.drafts)
    for raw in audit.records(found.recorded.size):
        found.follow(decode(raw))
    return found


def packed(snapshot: Snapshot) -> bytes:
    """Encode a copy for the file: SHA-256 of the content, then the content."""
    content = msgspec.msgpack.encode(snapshot)
    return hashlib.sha256(content).digest() + content


def _unpacked(content: bytes) -> Snapshot:
    """Decode a copy. Raises MsgspecError, also if the hash does not match."""
    size = hashlib.sha256().digest_size
    if hashlib.sha256(content[size:]).digest() != content[:size]:
        message = "its hash is that of something else"
        raise msgspec.DecodeError(message)
    return msgspec.msgpack.decode(content[size:], type=Snapshot)


def _read(path: Path) -> Snapshot:
    try:
        return _unpacked(path.read_bytes())
    except FileNotFoundError:
        pass
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        log.error("audit_copy_damaged", file=str(path), problem=str(error),
                  advice="the whole audit log is read instead")  # fmt: skip
    return Snapshot(Recorded())
