"""Evidence that waits on disk while the database is unavailable.

Intervals that nothing was added to recently are moved from memory to files in the state directory, once they are
more than half of what may wait in memory. A file is durable before its intervals leave the memory, and is deleted
after the database has them. It has the facts that follow from frames, whose size is less than a hundredth of that of
the frames: so they are not read from the frame log again, which need not be longer for an outage.

The manifest of the state directory names the files, so that a lost one is detected. All calls block.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import msgspec

from collector.config import IngestLimits
from collector.evidence import EvidenceError
from collector.framelog import segment_files
from railscope import durable_files, untrusted_text

DIRECTORY = "waiting"
_NAMES = "[0-9]" * 10 + ".evidence"


class WaitingEvidenceError(EvidenceError, RuntimeError):
    """No interval can be moved to disk, or a file cannot be read; the message names the reason."""


class WaitingHeader(msgspec.Struct):
    """First line of a file: the number of intervals of each node, and the hash of the rest."""

    nodes: dict[str, int]
    sha256: str


@dataclass(slots=True)
class WaitingEvidence:
    """The files of a state directory; call `open` first."""

    directory: Path
    limits: IngestLimits
    state_files: segment_files.StateFiles | None = None
    """Records the files, to detect later losses."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Bytes by file, in the order in which they were written."""
    nodes: dict[str, dict[str, int]] = field(default_factory=dict)
    """Number of intervals of each node, by file."""
    _number: int = 0

    @property
    def size_bytes(self) -> int:
        """Return the size of all files."""
        return sum(list(self.sizes.values()))  # another thread may change it

    def open(self) -> Counter[str]:
        """Read the headers of all files; return the number of intervals of each node. Raises OSError."""
        waiting: Counter[str] = Counter()
        for path in sorted(self.directory.glob(_NAMES)):
            self._number = int(path.stem)
            try:
                with path.open("rb") as file:
                    header = msgspec.json.decode(file.readline(), type=WaitingHeader)
            except untrusted_text.DECODING_ERRORS:
                continue  # of a write that did not end, or damaged: then it is not as large as recorded
            self.sizes[path.name] = path.stat().st_size
            self.nodes[path.name] = header.nodes
            waiting.update(header.nodes)
        if self.state_files:
            self.state_files.compare_evidence(self.sizes)
        return waiting

    def write(self, nodes: Sequence[str], contents: Sequence[bytes]) -> None:
        """Write encoded intervals of nodes to a new file. Raises OSError, WaitingEvidenceError."""
        body = zlib.compress(msgspec.msgpack.encode(contents))
        header = WaitingHeader(dict(Counter(nodes)), sha256(body).hexdigest())
        content = msgspec.json.encode(header) + b"\n" + body
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
        self.sizes[name], self.nodes[name] = len(content), header.nodes

    def read(self, name: str) -> list[bytes]:
        """Return the encoded intervals of a file. Raises OSError, WaitingEvidenceError."""
        line, _, body = (self.directory / name).read_bytes().partition(b"\n")
        try:
            header = msgspec.json.decode(line, type=WaitingHeader)
            if sha256(body).hexdigest() == header.sha256:
                return msgspec.msgpack.decode(zlib.decompress(body), type=list[bytes])
        except (zlib.error, *untrusted_text.DECODING_ERRORS) as error:
            message = f"{self.directory / name} is damaged: {error}"
            raise WaitingEvidenceError(message) from error
        message = f"{self.directory / name} is damaged: its content does not match its hash"
        raise WaitingEvidenceError(message)

    def delete(self, name: str) -> dict[str, int]:
        """Delete a file that the database has; return the number of intervals of each node. Raises OSError."""
        if self.state_files:
            self.state_files.record_evidence(name, 0)
        (self.directory / name).unlink()
        del self.sizes[name]
        return self.nodes.pop(name)
