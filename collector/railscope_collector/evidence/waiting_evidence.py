"""Evidence that waits on disk while the database is unavailable.

Intervals that nothing was added to recently are moved from memory to files in the state directory, once they are
more than half of what may wait in memory. Each node has an equal share of the disk, so that none delays another: what
is beyond it stays in memory. A file is durable before its intervals leave the memory, and is deleted after the
database has them. It has the facts that follow from frames, whose size is less than a hundredth of that of
the frames: so they are not read from the frame log again, which need not be longer for an outage.

The manifest of the state directory names the files, so that a lost one is detected. A damaged file is reported and kept,
and delays no other: its intervals do not count as stored. All calls block.
"""

from __future__ import annotations

import threading
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import msgspec
import structlog

from railscope import durable_files, untrusted_text
from railscope_collector.config import IngestLimits
from railscope_collector.evidence import EvidenceError, node_intervals
from railscope_collector.framelog import state_manifest

log = structlog.get_logger(__name__)

DIRECTORY = "waiting"
_NAMES = "[0-9]" * 10 + ".evidence"


class WaitingEvidenceError(EvidenceError, RuntimeError):
    """No interval can be moved to disk, or a file cannot be read; the message names the reason."""


class WaitingInterval(NamedTuple):
    """An interval in a file: its node, and its encoding compressed with zlib.

    A file is the SHA-256 of all but its first line, a line feed, and its intervals.
    """

    node: str
    content: bytes

    @property
    def size_bytes(self) -> int:
        """Return its size on disk, with its part of what a file has besides."""
        return len(self.content) + len(self.node.encode()) + _OVERHEAD_BYTES


_OVERHEAD_BYTES = 96
"""Maximum size of a file without nodes and contents, and of their lengths, for each interval."""


@dataclass(slots=True)
class WaitingEvidence:
    """The files of a state directory; call `open` first."""

    directory: Path
    limits: IngestLimits
    state_files: state_manifest.StateFiles | None = None
    """Records the files, to detect later losses."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Bytes by file, in the order in which they were written."""
    nodes: dict[str, Counter[str]] = field(default_factory=dict)
    """Number of intervals of each node, by file."""
    full: set[str] = field(default_factory=set)
    """Nodes with an interval that did not fit in their share of the disk, until the database accepts evidence."""
    damaged: dict[str, str] = field(default_factory=dict)
    """The problem of each file that is missing or cannot be read, at the start or since."""
    _number: int = 0
    _shares: dict[str, Counter[str]] = field(default_factory=dict)
    """Bytes of each node, by file."""
    _used: Counter[str] = field(default_factory=Counter)
    """Bytes of each node in all files."""
    _recording: threading.Lock = field(default_factory=threading.Lock)

    @property
    def size_bytes(self) -> int:
        """Return the size of all files."""
        return sum(list(self.sizes.values()))  # another thread may change it

    def open(self) -> Counter[str]:
        """Check all files, and delete unfinished ones; return the number of intervals of each node. Raises OSError."""
        waiting: Counter[str] = Counter()
        durable_files.delete_partial_files(self.directory)  # of a writer that was killed
        for path in sorted(self.directory.glob(_NAMES)):
            self._number = int(path.stem)
            try:
                size, intervals = self._read(path.name)
            except WaitingEvidenceError as error:
                self._report_damage(path.name, str(error))
                continue
            self._record(path.name, size, intervals)
            waiting.update(self.nodes[path.name])
        if self.state_files:
            self.damaged |= self.state_files.compare_evidence(self.sizes, self.damaged)
        return waiting

    def write(self, nodes: Sequence[str], contents: Sequence[bytes], node_count: int) -> list[bool]:
        """Write encoded intervals to a new file; return for each of them if it fits in its node's share.

        Each of `node_count` nodes has an equal share of the disk. Those that do not fit are not written.
        Raises OSError, WaitingEvidenceError: then none is written.
        """
        pairs = zip(nodes, contents, strict=True)
        intervals = [WaitingInterval(node, zlib.compress(each)) for node, each in pairs]
        share = self.limits.waiting_evidence_bytes // max(1, node_count)
        used = {node: self._used[node] for node in nodes}
        fits = []
        for interval in intervals:
            size = used[interval.node] + interval.size_bytes
            fits.append(size <= share)
            if size <= share:
                used[interval.node] = size
        written = [
            interval for interval, is_fitting in zip(intervals, fits, strict=True) if is_fitting
        ]
        if written:
            self._write(written)
        full = {node for node, is_fitting in zip(nodes, fits, strict=True) if not is_fitting}
        if new := sorted(full - self.full):
            log.warning(
                "waiting_evidence_share_used",
                node=new[0],
                nodes=len(new),
                problem=f"expected at most {share} bytes of a node, by limits.waiting_evidence_bytes",
                advice="further evidence of these nodes stays in memory; beyond their share of it, agents keep frames",
            )
        self.full |= full
        return fits

    def _write(self, intervals: Sequence[WaitingInterval]) -> None:
        content = _encode_file(intervals)
        max_bytes = self.limits.waiting_evidence_bytes
        if self.size_bytes + len(content) > max_bytes:
            message = (
                f"{self.size_bytes} bytes of evidence wait in {self.directory}: expected at most"
                f" {max_bytes}, by limits.waiting_evidence_bytes"
            )
            raise WaitingEvidenceError(message)
        durable_files.make_directory(self.directory)
        name = f"{self._number + 1:010d}.evidence"
        # Before the manifest names it: a crash between the two leaves a file that is found, and not one that is lost.
        durable_files.write_durably(self.directory / name, content)
        if self.state_files:
            self.state_files.record_evidence(name, len(content))
        self._number += 1  # now: another attempt after an error replaces the file
        self._record(name, len(content), intervals)

    def _record(self, name: str, size: int, intervals: Sequence[WaitingInterval]) -> None:
        """Record the intervals of a file, in place of the former ones; a file without intervals is forgotten."""
        share: Counter[str] = Counter()
        for interval in intervals:
            share[interval.node] += interval.size_bytes
        with self._recording:  # other threads may write or delete another file
            self._used.subtract(self._shares.pop(name, Counter()))
            self._used.update(share)
            self._used += Counter()  # removes nodes without intervals
            if not intervals:
                del self.sizes[name], self.nodes[name]
                return
            self._shares[name] = share
            self.sizes[name], self.nodes[name] = size, Counter(each.node for each in intervals)

    def read(self, name: str) -> list[node_intervals.EvidenceInterval] | None:
        """Return the intervals of a file; None if it cannot be read, which is reported once."""
        try:
            _, intervals = self._read(name)
            found = [
                node_intervals.decode_interval(zlib.decompress(interval.content))
                for interval in intervals
            ]
        except (WaitingEvidenceError, zlib.error, *untrusted_text.DECODING_ERRORS) as error:
            self._report_damage(name, str(error))
            if self.state_files:
                self.state_files.damage[f"{DIRECTORY}/{name}"] = str(error)
            return None
        if self.damaged.pop(name, None) and self.state_files:
            self.state_files.damage.pop(f"{DIRECTORY}/{name}", None)
        return found

    def _read(self, name: str) -> tuple[int, list[WaitingInterval]]:
        """Return the size and the intervals of a file. Raises WaitingEvidenceError."""
        path = self.directory / name
        try:
            content = path.read_bytes()
        except OSError as error:
            message = f"cannot read {path}: {error.strerror}"
            raise WaitingEvidenceError(message) from error
        digest, _, body = content.partition(b"\n")
        if sha256(body).hexdigest().encode() != digest:
            message = f"{path} is damaged: its content does not match its hash"
            raise WaitingEvidenceError(message)
        try:
            return len(content), msgspec.msgpack.decode(body, type=list[WaitingInterval])
        except untrusted_text.DECODING_ERRORS as error:
            message = f"{path} is of another version: {error}"
            raise WaitingEvidenceError(message) from error

    def _report_damage(self, name: str, problem: str) -> None:
        """Report once that a file cannot be read."""
        if name not in self.damaged:
            advice = "its evidence does not count as stored; follow the runbook RailscopeCollectorFilesLost"
            log.error("waiting_evidence_damaged", file=name, problem=problem, advice=advice)
        self.damaged[name] = problem

    def keep(self, name: str, numbers: Sequence[int]) -> None:
        """Remove all intervals of a file but some, by their numbers in it. Raises OSError, WaitingEvidenceError."""
        _, intervals = self._read(name)
        intervals = [intervals[number] for number in numbers]
        content = _encode_file(intervals)
        if self.state_files:  # first: a file that is larger than recorded is not lost
            self.state_files.record_evidence(name, len(content))
        durable_files.write_durably(self.directory / name, content)
        self._record(name, len(content), intervals)

    def delete(self, name: str) -> None:
        """Delete a file that the database has. Raises OSError."""
        if self.state_files:
            # First: a crash between the two must not make the deleted file a lost one.
            self.state_files.record_evidence(name, 0)
        (self.directory / name).unlink(missing_ok=True)
        self._record(name, 0, ())


def _encode_file(intervals: Sequence[WaitingInterval]) -> bytes:
    body = msgspec.msgpack.encode(intervals)
    return sha256(body).hexdigest().encode() + b"\n" + body


def compare_files(state_files: state_manifest.StateFiles) -> None:
    """Record lost files of a state directory that no collector uses. Raises OSError."""
    directory = state_files.directory / DIRECTORY
    WaitingEvidence(directory, IngestLimits(), state_files).open()
