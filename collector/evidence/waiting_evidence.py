"""Evidence that waits on disk while the database is unavailable.

Intervals that nothing was added to recently are moved from memory to files in the state directory, once they are
more than half of what may wait in memory. A file is durable before its intervals leave the memory, and is deleted
after the database has them. It has the facts that follow from frames, whose size is less than a hundredth of that of
the frames: so they are not read from the frame log again, which need not be longer for an outage.

The manifest of the state directory names the files, so that a lost one is detected. A damaged file is reported and kept,
and delays no other: its intervals do not count as stored. All calls block.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import msgspec
import structlog

from collector.config import IngestLimits
from collector.evidence import EvidenceError, node_intervals
from collector.framelog import segment_files
from railscope import durable_files, untrusted_text

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


@dataclass(slots=True)
class WaitingEvidence:
    """The files of a state directory; call `open` first."""

    directory: Path
    limits: IngestLimits
    state_files: segment_files.StateFiles | None = None
    """Records the files, to detect later losses."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Bytes by file, in the order in which they were written."""
    nodes: dict[str, Counter[str]] = field(default_factory=dict)
    """Number of intervals of each node, by file."""
    damaged: dict[str, str] = field(default_factory=dict)
    """The problem of each file that is missing or cannot be read, at the start or since."""
    _number: int = 0

    @property
    def size_bytes(self) -> int:
        """Return the size of all files."""
        return sum(list(self.sizes.values()))  # another thread may change it

    def open(self) -> Counter[str]:
        """Check all files; return the number of intervals of each node. Raises OSError."""
        waiting: Counter[str] = Counter()
        for path in sorted(self.directory.glob(_NAMES)):
            self._number = int(path.stem)
            try:
                size, intervals = self._read(path.name)
            except WaitingEvidenceError as error:
                self._report_damage(path.name, str(error))
                continue
            self.sizes[path.name] = size
            self.nodes[path.name] = Counter(interval.node for interval in intervals)
            waiting.update(self.nodes[path.name])
        if self.state_files:
            self.damaged |= self.state_files.compare_evidence(self.sizes, self.damaged)
        return waiting

    def write(self, nodes: Sequence[str], contents: Sequence[bytes]) -> None:
        """Write encoded intervals of nodes to a new file. Raises OSError, WaitingEvidenceError."""
        pairs = zip(nodes, contents, strict=True)
        content = _encode_file([WaitingInterval(node, zlib.compress(each)) for node, each in pairs])
        max_bytes = self.limits.waiting_evidence_bytes
        if self.size_bytes + len(content) > max_bytes:
            message = (
                f"{self.size_bytes} bytes of evidence wait in {self.directory}: expected at most"
                f" {max_bytes}, by limits.waiting_evidence_bytes"
            )
            raise WaitingEvidenceError(message)
        durable_files.make_directory(self.directory)
        self._number += 1
        name = f"{self._number:010d}.evidence"
        durable_files.write_durably(self.directory / name, content)
        if self.state_files:
            self.state_files.record_evidence(name, len(content))
        self.sizes[name], self.nodes[name] = len(content), Counter(nodes)

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
        self.sizes[name], self.nodes[name] = len(content), Counter(each.node for each in intervals)

    def delete(self, name: str) -> None:
        """Delete a file that the database has. Raises OSError."""
        if self.state_files:
            self.state_files.record_evidence(name, 0)
        (self.directory / name).unlink(missing_ok=True)
        del self.sizes[name], self.nodes[name]


def _encode_file(intervals: Sequence[WaitingInterval]) -> bytes:
    body = msgspec.msgpack.encode(intervals)
    return sha256(body).hexdigest().encode() + b"\n" + body


def compare_files(state_files: segment_files.StateFiles) -> None:
    """Record lost files of a state directory that no collector uses. Raises OSError."""
    directory = state_files.directory / DIRECTORY
    WaitingEvidence(directory, IngestLimits(), state_files).open()
