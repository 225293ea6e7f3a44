"""Evidence that waits in `state.sqlite` while the database of the ledger is unavailable.

Intervals that nothing was added to recently are moved from memory to a table, once they are more than half of what may
wait in memory. Each node has an equal share of the disk, so that none delays another: what is beyond it stays in memory.
An interval is durable before it leaves the memory, and is deleted after the database has it. It has the facts that follow
from frames, whose size is less than a hundredth of that of the frames: so they are not read from the frame log again, which
need not be longer for an outage.

An interval that cannot be decoded is reported and kept, and delays no other: it does not count as stored. All calls block.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import NamedTuple

import structlog

from railscope import untrusted_text
from railscope_collector.config import IngestLimits
from railscope_collector.evidence import EvidenceError, node_intervals
from railscope_collector.state_store import Row, StateStore

log = structlog.get_logger(__name__)

TABLE = """CREATE TABLE IF NOT EXISTS waiting_evidence (
    number INTEGER PRIMARY KEY, node TEXT NOT NULL, checksum INTEGER NOT NULL, content BLOB NOT NULL
) STRICT"""
INSERT = "INSERT INTO waiting_evidence (node, checksum, content) VALUES (?, ?, ?)"
READ_ROWS = 256
"""Intervals that are read at once: as many as one transaction of the ledger has."""
_ROW_BYTES = 32
"""Size of a row beside its node and content."""


class WaitingEvidenceError(EvidenceError, RuntimeError):
    """No interval can be moved to disk; the message names the reason."""


class WaitingInterval(NamedTuple):
    """An interval on disk; None if it cannot be decoded."""

    number: int
    node: str
    interval: node_intervals.EvidenceInterval | None


@dataclass(slots=True)
class WaitingEvidence:
    """The intervals on disk; call `open` first. Methods raise OSError."""

    store: StateStore
    limits: IngestLimits
    full: set[str] = field(default_factory=set)
    """Nodes with an interval that did not fit in their share of the disk, until the database accepts evidence."""
    damaged: set[int] = field(default_factory=set)
    """Numbers of intervals that cannot be decoded."""
    used: Counter[str] = field(default_factory=Counter)
    """Bytes of each node."""
    _counting: Lock = field(default_factory=Lock)
    """Held while `used` is replaced: threads write and delete concurrently."""

    @property
    def size_bytes(self) -> int:
        """Return the size of all intervals."""
        return self.used.total()

    @property
    def problem(self) -> str:
        """Return how many intervals are damaged; empty if none is."""
        count = len(self.damaged)
        return f"{count} damaged intervals of evidence that waits for the database" if count else ""

    def open(self) -> Counter[str]:
        """Find damaged intervals; return the number of intervals of each node."""
        self.store.create(TABLE)
        last = 0
        while rows := self._read_rows(last):
            last = rows[-1][0]
            self.damaged.update(
                number for number, _, checksum, content in rows if zlib.crc32(content) != checksum
            )
        query = "SELECT node, count(*), sum(length(content) + length(node) + ?) FROM waiting_evidence GROUP BY node"
        rows = self.store.read(query, (_ROW_BYTES,))
        self.used = Counter({node: size for node, _, size in rows})
        return Counter({node: count for node, count, _ in rows})

    def write(self, nodes: Sequence[str], contents: Sequence[bytes], node_count: int) -> list[bool]:
        """Write encoded intervals; return for each of them if it fits in its node's share.

        Each of `node_count` nodes has an equal share of the disk. Those that do not fit are not written.
        Raises also WaitingEvidenceError: then none is written.
        """
        share = self.limits.waiting_evidence_bytes // max(1, node_count)
        fits, rows, added = [], [], Counter[str]()
        for node, content in zip(nodes, contents, strict=True):
            compressed = zlib.compress(content)
            size = _size(node, compressed)
            fits.append(self.used[node] + added[node] + size <= share)
            if fits[-1]:
                added[node] += size
                rows.append((node, zlib.crc32(compressed), compressed))
        max_bytes = self.limits.waiting_evidence_bytes
        if self.size_bytes + added.total() > max_bytes:
            message = (
                f"{self.size_bytes} bytes of evidence wait in {self.store.path}: expected at most"
                f" {max_bytes}, by limits.waiting_evidence_bytes"
            )
            raise WaitingEvidenceError(message)
        with self.store.transaction() as connection:
            connection.executemany(INSERT, rows)
        with self._counting:
            self.used += added
        self._report_full({node for node, fit in zip(nodes, fits, strict=True) if not fit}, share)
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

    def read(self, after: int) -> list[WaitingInterval]:
        """Return the next intervals after a number, oldest first."""
        return [
            WaitingInterval(number, node, self._decode(number, node, content))
            for number, node, _, content in self._read_rows(after)
        ]

    def _read_rows(self, after: int) -> list[Row]:
        query = "SELECT number, node, checksum, content FROM waiting_evidence WHERE number > ? ORDER BY number LIMIT ?"
        return self.store.read(query, (after, READ_ROWS))

    def _decode(
        self, number: int, node: str, content: bytes
    ) -> node_intervals.EvidenceInterval | None:
        if number in self.damaged:
            return None
        try:
            interval = node_intervals.decode_interval(zlib.decompress(content))
            problem = "" if interval.node == node else f"it is of node {interval.node!r}"
        except (zlib.error, *untrusted_text.DECODING_ERRORS) as error:
            problem = str(error)
        if not problem:
            return interval
        advice = (
            "its evidence does not count as stored; follow the runbook RailscopeCollectorFilesLost"
        )
        log.error("waiting_evidence_damaged", node=node, problem=problem, advice=advice)
        self.damaged.add(number)
        return None

    def delete(self, numbers: Collection[int]) -> None:
        """Delete intervals that the database has."""
        released = Counter[str]()
        with self.store.transaction() as connection:
            for number in numbers:
                query = "DELETE FROM waiting_evidence WHERE number = ? RETURNING node, content"
                for node, content in connection.execute(query, (number,)).fetchall():
                    released[node] += _size(node, content)
        with self._counting:
            self.used -= released


def delete_damaged(store: StateStore) -> Iterator[str]:
    """Delete the damaged intervals of a database that no collector uses; yield their number as a line. Raises OSError."""
    waiting = WaitingEvidence(store, IngestLimits())
    waiting.open()
    if waiting.damaged:
        yield waiting.problem
        waiting.delete(waiting.damaged)


def _size(node: str, content: bytes) -> int:
    return len(content) + len(node) + _ROW_BYTES
