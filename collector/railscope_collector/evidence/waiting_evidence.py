"""Facts in `state.sqlite` on their way from memory to the database of the ledger.

Every fact is durable here before it leaves the memory, and is deleted after the database has it: while the database is
unavailable, facts wait here. Their size is less than a hundredth of that of the frames that they follow from: so these are not
read from the frame log again, which need not be longer for an outage. Each node has an equal share of the disk, so that none
delays another: what is beyond it stays in memory.

A damaged fact is deleted at the start, which reports it. One that cannot be decoded is reported and kept, and delays no other: it
does not count as stored. All calls block.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import NamedTuple, TypeAlias

import msgspec
import structlog

from railscope import untrusted_text
from railscope_collector.config import IngestLimits
from railscope_collector.evidence import EvidenceError, claim_events, node_intervals
from railscope_collector.state_store import Row, StateStore

log = structlog.get_logger(__name__)

TABLES = (
    """CREATE TABLE IF NOT EXISTS waiting_evidence (
        number INTEGER PRIMARY KEY, node TEXT NOT NULL, position INTEGER NOT NULL, kind TEXT NOT NULL,
        checksum INTEGER NOT NULL, content BLOB NOT NULL
    ) STRICT""",
    "CREATE INDEX IF NOT EXISTS waiting_evidence_of_node ON waiting_evidence (node, position)",
)
INSERT = (
    "INSERT INTO waiting_evidence (node, position, kind, checksum, content) VALUES (?, ?, ?, ?, ?)"
)
READ_ROWS = 256
"""Facts that are read at once: as many as one transaction of the ledger has."""
_LEVEL = 1
"""Of zlib: a higher one takes many times as long and saves a few percent."""
_ROW_BYTES = 48
"""Size of a row beside its node and content."""
QUARTER, CLAIM, END = "quarter", "claim", "end"
Fact: TypeAlias = node_intervals.EvidenceInterval | claim_events.ClaimFact
_decoders: dict[str, msgspec.msgpack.Decoder[claim_events.ClaimFact]] = {
    CLAIM: msgspec.msgpack.Decoder(claim_events.ReportedClaim),
    END: msgspec.msgpack.Decoder(claim_events.ReportedEnd),
}


class WaitingEvidenceError(EvidenceError, RuntimeError):
    """No fact can be moved to disk; the message names the reason."""


class EncodedFact(NamedTuple):
    """A fact that is to be written, with the position of the frame log from which on it was added to."""

    node: str
    position: int
    kind: str
    content: bytes

    @classmethod
    def of_quarter(cls, interval: node_intervals.EvidenceInterval, position: int) -> EncodedFact:
        """Encode the facts of a quarter."""
        content = node_intervals.encode_interval(interval)
        return cls(interval.node, position, QUARTER, content)

    @classmethod
    def of_claim(cls, fact: claim_events.ClaimFact, position: int) -> EncodedFact:
        """Encode a claim or its end."""
        kind = END if isinstance(fact, claim_events.ReportedEnd) else CLAIM
        return cls(fact.node, position, kind, msgspec.msgpack.encode(fact))


class WaitingFact(NamedTuple):
    """A fact on disk; None if it cannot be decoded."""

    number: int
    node: str
    fact: Fact | None


@dataclass(slots=True)
class WaitingEvidence:
    """The facts on disk; call `open` first. Methods raise OSError."""

    store: StateStore
    limits: IngestLimits
    full: set[str] = field(default_factory=set)
    """Nodes with a fact that did not fit in their share of the disk, until the database accepts facts."""
    damaged: list[int] = field(default_factory=list)
    """Numbers of damaged facts, until `begin`."""
    lost: str = ""
    """Number of facts that were damaged before the start, in words; empty for none."""
    undecoded: set[int] = field(default_factory=set)
    """Numbers of facts that cannot be decoded."""
    used: Counter[str] = field(default_factory=Counter)
    """Bytes of each node."""
    first: dict[str, int] = field(default_factory=dict)
    """Lowest position of the facts of each node."""
    quarters: int = 0
    """Number of quarters."""
    _counting: Lock = field(default_factory=Lock)
    """Held while facts are written or deleted, until they are counted: threads do both concurrently."""

    @property
    def size_bytes(self) -> int:
        """Return the size of all facts."""
        return self.used.total()

    def open(self) -> None:
        """Count the facts, and find damaged ones."""
        self.store.create(*TABLES)
        last = 0
        while rows := self._read_rows(last):
            last = rows[-1][0]
            for number, _, _, checksum, content in rows:
                if zlib.crc32(content) != checksum:
                    self.damaged.append(number)
        if self.damaged:
            count = len(self.damaged)
            self.lost = f"{count} damaged rows of evidence that waited for the database"
        query = """SELECT node, sum(length(content) + length(node) + ?), min(position), sum(kind = ?)
            FROM waiting_evidence GROUP BY node"""
        rows = self.store.read(query, (_ROW_BYTES, QUARTER))
        self.used = Counter({node: size for node, size, _, _ in rows})
        self.first = {node: position for node, _, position, _ in rows}
        self.quarters = sum(quarters for _, _, _, quarters in rows)

    def begin(self) -> None:
        """Delete damaged facts: nothing shows their loss any more."""
        self.delete(self.damaged)
        self.damaged.clear()

    def write(self, facts: Sequence[EncodedFact], node_count: int) -> list[bool]:
        """Write facts; return for each of them if it fits in its node's share.

        Each of `node_count` nodes has an equal share of the disk, and at least space for one fact. Those that do not fit are
        not written.
        Raises also WaitingEvidenceError: then none is written.
        """
        max_bytes = self.limits.waiting_evidence_bytes
        share = max_bytes // max(1, node_count)
        contents = [zlib.compress(each.content, _LEVEL) for each in facts]
        with self._counting:
            fits, rows, added = [], [], Counter[str]()
            for (node, position, kind, _), compressed in zip(facts, contents, strict=True):
                size = _size(node, compressed)
                used = self.used[node] + added[node]
                fits.append(not used or used + size <= share)
                if fits[-1]:
                    added[node] += size
                    rows.append((node, position, kind, zlib.crc32(compressed), compressed))
            if self.size_bytes + added.total() > max_bytes:
                message = (
                    f"{self.size_bytes} bytes of evidence wait in {self.store.path}: expected at most"
                    f" {max_bytes}, by limits.waiting_evidence_bytes"
                )
                raise WaitingEvidenceError(message)
            with self.store.transaction() as connection:
                connection.executemany(INSERT, rows)
            self.used += added
            for node, position, kind, _, _ in rows:
                self.first[node] = min(position, self.first.get(node, position))
                self.quarters += kind == QUARTER
        not_fitting = {each.node for each, fit in zip(facts, fits, strict=True) if not fit}
        self._report_full(not_fitting, share)
        return fits

    def _report_full(self, nodes: set[str], share: int) -> None:
        if new := sorted(nodes - self.full):
            log.warning(
                "waiting_evidence_share_used",
                node=new[0],
                nodes=len(new),
                problem=f"expected at most {share} bytes of a node, by limits.waiting_evidence_bytes",
                advice="further evidence of these nodes stays in memory; beyond their share of it, agents keep frames",
            )
        self.full |= nodes

    def read(self, after: int) -> list[WaitingFact]:
        """Return the next facts after a number, oldest first."""
        return [
            WaitingFact(number, node, self._decode(number, node, kind, content))
            for number, node, kind, _, content in self._read_rows(after)
        ]

    def _read_rows(self, after: int) -> list[Row]:
        query = """SELECT number, node, kind, checksum, content FROM waiting_evidence
            WHERE number > ? ORDER BY number LIMIT ?"""
        return self.store.read(query, (after, READ_ROWS))

    def _decode(self, number: int, node: str, kind: str, content: bytes) -> Fact | None:
        if number in self.undecoded:
            return None
        try:
            encoded = zlib.decompress(content)
            decode = node_intervals.decode_interval if kind == QUARTER else _decoders[kind].decode
            fact: Fact = decode(encoded)
            problem = "" if fact.node == node else f"it is of node {fact.node!r}"
        except (zlib.error, LookupError, *untrusted_text.DECODING_ERRORS) as error:
            problem = str(error)
        if not problem:
            return fact
        advice = "it is kept, and does not count as stored; install the release that wrote it"
        log.error("waiting_evidence_rejected", node=node, problem=problem, advice=advice)
        self.undecoded.add(number)
        return None

    def delete(self, numbers: Collection[int]) -> None:
        """Delete facts that the database has."""
        released = Counter[str]()
        query = "DELETE FROM waiting_evidence WHERE number = ? RETURNING node, kind, content"
        first = "SELECT min(position) FROM waiting_evidence WHERE node = ?"
        with self._counting:
            with self.store.transaction() as connection:
                rows = [
                    row
                    for number in numbers
                    for row in connection.execute(query, (number,)).fetchall()
                ]
            for node, kind, content in rows:
                released[node] += _size(node, content)
                self.quarters -= kind == QUARTER
            self.used -= released
            for node in released:
                ((position,),) = self.store.read(first, (node,))
                if position is None:
                    del self.first[node]
                else:
                    self.first[node] = position


def _size(node: str, content: bytes) -> int:
    return len(content) + len(node) + _ROW_BYTES
