"""Manifest of a state directory, by which lost files are reported and not read as defaults.

The frame log has two small files next to its segments. `frames.extent` contains the size of the
newest segment; it is overwritten in place after each group, without being synchronized, so a power
loss can only make it smaller. `frames.manifest` lists the full segments with their sizes, and the
checkpoint; it is replaced as a whole whenever one of them is added or removed. It also records that
the file of the clock existed: that file holds an administrator's decisions.

The collector cannot restore files that were lost before a start: it reports and records them, and
writes no checkpoint, so that the files can still be restored. `railscope collector accept-loss`
ends that.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import structlog

from railscope import untrusted_text
from railscope.durable_files import write_durably
from railscope_collector import clock
from railscope_collector.framelog.segment_files import (
    FrameLogStats,
    read_segment,
    segment_numbers,
    segment_path,
)

log = structlog.get_logger(__name__)

EXTENT, MANIFEST = "frames.extent", "frames.manifest"
_EXTENT = re.compile(rb"([0-9]{10}) ([0-9]{20})\n")


class SegmentManifest(msgspec.Struct):
    """Files that must exist."""

    sealed: dict[int, int] = {}
    """Full segments by number, with their sizes."""
    checkpoint: int = 0
    """First segment after the newest checkpoint; 0 if none was made."""
    clock: bool = False
    """True if the file of the clock existed."""
    evidence: dict[str, int] = {}
    """Files of evidence that waits for the database, with their sizes."""
    accepted: bool = False
    """True if an administrator accepts the losses, for the next start."""


@dataclass(slots=True)
class StateFiles:
    """Maintains the two files of a state directory, and compares the directory with them."""

    directory: Path
    manifest: SegmentManifest = field(default_factory=SegmentManifest)
    damage: dict[str, str] = field(default_factory=dict)
    """The problem of each lost file, found at the start or since."""
    is_incomplete: bool = False
    """True if losses at the start are missing from the state: no checkpoint may be written."""
    next_segment: int = 1
    """No segment of a lower number may begin: one of them may have been lost."""
    _descriptor: int = -1
    _writing: threading.Lock = field(default_factory=threading.Lock)

    @property
    def _frames(self) -> Path:
        return self.directory / "frames"

    def open(self) -> None:
        """Read both files and record losses. Blocking; raises OSError."""
        numbers = segment_numbers(self._frames) if self._frames.exists() else []
        manifest, extent = self._read_manifest(), self._read_extent()
        if manifest is None and extent is None and numbers:  # of an earlier version
            log.info("manifest_created", file=str(self.directory / MANIFEST))
        elif numbers or manifest or extent:
            for name, content in ((MANIFEST, manifest), (EXTENT, extent)):
                if content is None and name not in self.damage:
                    self.damage[name] = "missing file"
        self.manifest = manifest or SegmentManifest()
        newest = [*numbers, *self.manifest.sealed, extent[0] if extent else 0]
        # A lost segment may be restored from a copy: no other one may have its number then.
        self.next_segment = max([1, self.manifest.checkpoint, *newest])
        self._compare(numbers, extent)
        self._compare_clock()
        for name, problem in list(self.damage.items()):
            self._report_lost_file(name, problem)

    def _compare(self, numbers: list[int], extent: tuple[int, int] | None) -> None:
        """Record segments that are missing or too short."""
        expected = dict(self.manifest.sealed)
        if extent is not None:
            # A crash between the two writes leaves the extent of a segment that is already listed as full.
            expected[extent[0]] = max(extent[1], expected.get(extent[0], 0))
        for number, size in sorted(expected.items()):
            name = f"frames/{number:010d}"
            if number not in numbers:
                self.damage[name] = f"segment {number} of {size} bytes is missing"
            elif (size_found := self._intact_bytes(number)) < size:
                self.damage[name] = f"segment {number} has {size_found} bytes: expected {size}"

    def _compare_clock(self) -> None:
        """Record the file of the clock if it is missing or cannot be read."""
        try:
            state = clock.read_state(self.directory)
        except clock.ClockFileError as error:
            self.damage[clock.FILE] = str(error)
        else:
            if state is None and self.manifest.clock:
                self.damage[clock.FILE] = "missing file"

    def _intact_bytes(self, number: int) -> int:
        """Return the size up to the end of the last whole record."""
        path = segment_path(self._frames, number)
        ends = [end for end, _ in read_segment(path, FrameLogStats())]
        return ends[-1] if ends else 0

    def compare_checkpoint(self, first_segment: int) -> None:
        """Record the checkpoint as lost if it is older than the manifest; called after it was read."""
        recorded_segment = self.manifest.checkpoint
        if first_segment >= recorded_segment:
            return
        problem = "missing or damaged" if not first_segment else "older copy"
        self._report_lost_file(
            "checkpoint", f"{problem}: the state before segment {recorded_segment} is unknown"
        )

    def compare_schemas(self, unknown: Iterable[bytes]) -> None:
        """Record missing shapes and names that frames refer to."""
        for digest in unknown:
            self._report_lost_file(
                f"state.sqlite: schema {digest.hex()}",
                "missing shape or names: frames that refer to them cannot be read",
            )

    def compare_evidence(
        self, sizes: Mapping[str, int], problems: Mapping[str, str]
    ) -> dict[str, str]:
        """Record files of waiting evidence that are missing, damaged or too short; return their problems."""
        lost = {}
        for name, size in sorted(self.manifest.evidence.items()):
            found = sizes.get(name, 0)
            if problem := problems.get(
                name, "" if found >= size else f"{found} bytes: expected {size}"
            ):
                lost[name] = problem
                self._report_lost_file(f"waiting/{name}", problem)
        self.manifest.evidence = dict(sizes)
        return lost

    def _report_lost_file(self, name: str, problem: str) -> None:
        self.damage[name] = problem
        self.is_incomplete = not self.manifest.accepted
        log.error(
            "file_lost",
            file=name,
            problem=problem,
            advice="restore it and start again, or run `railscope collector accept-loss`",
        )

    @property
    def fresh_segment(self) -> int:
        """The segment to begin after a loss, so that the remaining ones are preserved; else 0."""
        return (
            self.next_segment + 1 if any(name.startswith("frames/") for name in self.damage) else 0
        )

    def begin(self, number: int, offset: int) -> None:
        """Write both files for the current content. Blocking; raises OSError."""
        if self.is_incomplete:
            return  # The next start must find the same files.
        numbers = segment_numbers(self._frames)
        self.manifest.sealed = {n: self._remaining_bytes(n) for n in numbers if n != number}
        if "checkpoint" in self.damage:
            self.manifest.checkpoint = 0
        self.manifest.clock = (self.directory / clock.FILE).exists()
        self.manifest.accepted = False
        self._write_manifest()
        write_durably(self.directory / EXTENT, _extent(number, offset))
        self._descriptor = os.open(self.directory / EXTENT, os.O_WRONLY)

    def _remaining_bytes(self, number: int) -> int:
        """Return the size of a segment that the next start will find."""
        damaged = f"frames/{number:010d}" in self.damage
        return self._intact_bytes(number) if damaged else self._size(number)

    def _size(self, number: int) -> int:
        return segment_path(self._frames, number).stat().st_size

    def record_written(self, number: int, offset: int) -> None:
        """Update the size of the newest segment. Raises OSError."""
        if self._descriptor >= 0:
            os.pwrite(self._descriptor, _extent(number, offset), 0)

    def sealed(self, number: int, size: int) -> None:
        """Record a full segment. Raises OSError."""
        self.manifest.sealed[number] = size
        self._write_manifest()

    def record_deletion(self, number: int) -> None:
        """Record that a segment is about to be deleted. Raises OSError."""
        if self.manifest.sealed.pop(number, None) is not None:
            self._write_manifest()

    def record_evidence(self, name: str, size: int) -> None:
        """Record a file of waiting evidence, or with size 0 that it is about to be deleted. Raises OSError."""
        if size:
            self.manifest.evidence[name] = size
        else:
            self.manifest.evidence.pop(name, None)
        self._write_manifest()

    def record_checkpoint(self, first_segment: int) -> None:
        """Record a new checkpoint. Raises OSError."""
        self.manifest.checkpoint = first_segment
        self._write_manifest()

    def _write_manifest(self) -> None:
        with self._writing:  # the last content stays: several threads change it
            if not self.is_incomplete:
                write_durably(self.directory / MANIFEST, msgspec.json.encode(self.manifest))

    def find_new_losses(self) -> list[str]:
        """Compare the directory of a running collector; return new losses. Blocking."""
        losses: dict[str, str] = {}
        for number, size in list(self.manifest.sealed.items()):
            if problem := self._find_size_problem(number, size):
                losses[f"frames/{number:010d}"] = problem
        if self.manifest.checkpoint and not (self.directory / "checkpoint").exists():
            losses["checkpoint"] = "missing file"
        new_names = [name for name in losses if name not in self.damage]
        for name in new_names:
            self.damage[name] = losses[name]
            log.error(
                "file_lost",
                file=name,
                problem=losses[name],
                advice="the running collector still has its content; check which process deleted it",
            )
        return new_names

    def _find_size_problem(self, number: int, size: int) -> str:
        try:
            current_size = self._size(number)
        except FileNotFoundError:
            return "" if number not in self.manifest.sealed else f"segment {number} is missing"
        return (
            f"segment {number} has {current_size} bytes: expected {size}"
            if current_size < size
            else ""
        )

    def _read_manifest(self) -> SegmentManifest | None:
        try:
            content = (self.directory / MANIFEST).read_bytes()
            return msgspec.json.decode(content, type=SegmentManifest)
        except FileNotFoundError:
            return None
        except untrusted_text.DECODING_ERRORS as error:
            self.damage[MANIFEST] = f"cannot decode the file: {error}"
            return None

    def _read_extent(self) -> tuple[int, int] | None:
        try:
            content = (self.directory / EXTENT).read_bytes()
        except FileNotFoundError:
            return None
        match = _EXTENT.fullmatch(content)
        if match is None:
            self.damage[EXTENT] = "invalid content: expected a segment and an offset"
            return None
        return int(match[1]), int(match[2])

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def accept_loss(
    directory: Path, compare: Callable[[StateFiles], object] = lambda _: None
) -> Iterator[str]:
    """Make the next start accept the losses; yield them. Blocking; raises OSError.

    `compare` records lost files that other modules read.
    """
    files = StateFiles(directory)
    files.open()
    expected = dict(files.manifest.evidence)
    compare(files)
    yield from (f"{name}: {problem}" for name, problem in files.damage.items())
    files.manifest.evidence = expected  # the next start finds the same losses
    files.manifest.accepted = True
    write_durably(directory / MANIFEST, msgspec.json.encode(files.manifest))


def _extent(number: int, offset: int) -> bytes:
    return b"%010d %020d\n" % (number, offset)
