"""Files of a state directory that must exist, by which lost ones are reported and not read as defaults.

`frames.extent` next to the segments contains the durable end of the newest one; it is overwritten in place after each group,
without being synchronized, so a power loss can only make it smaller. Readers in other processes read up to it. Tables of
`state.sqlite` list the full segments with their sizes, and that the file of the clock existed: that file holds an
administrator's decisions.

The collector cannot restore files that were lost before a start: it reports and records them, and makes no snapshot, so that
the files can still be restored. `railscope collector accept-loss` ends that. A lost `state.sqlite` is reported only: the
collector begins a new one, and reads all existing segments.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from sqlite3 import Connection

import structlog

from railscope.durable_files import write_durably
from railscope_collector import clock, state_store
from railscope_collector.framelog.segment_files import (
    EXTENT,
    FrameLogStats,
    encode_extent,
    read_extent,
    read_segment,
    segment_numbers,
    segment_path,
)

log = structlog.get_logger(__name__)

TABLES = (
    "CREATE TABLE IF NOT EXISTS full_segments (number INTEGER PRIMARY KEY, bytes INTEGER NOT NULL) STRICT",
    "CREATE TABLE IF NOT EXISTS expected_files (name TEXT PRIMARY KEY) STRICT",
)
_INSERT_SEGMENT = "INSERT OR REPLACE INTO full_segments (number, bytes) VALUES (?, ?)"
_INSERT_FILE = "INSERT OR IGNORE INTO expected_files (name) VALUES (?)"
FORMER_MANIFEST = "frames.manifest"
"""File of release 0.3.0 with the content of these tables."""
_ACCEPTED = "losses accepted"
"""Row of `expected_files` while an administrator accepts the losses, for the next start."""


def insert_expected(
    connection: Connection, segments: Mapping[int, int], *, has_clock: bool
) -> None:
    """Record full segments with their sizes, and whether the file of the clock existed. Raises sqlite3.Error."""
    connection.executemany(_INSERT_SEGMENT, segments.items())
    if has_clock:
        connection.execute(_INSERT_FILE, (clock.FILE,))


@dataclass(slots=True)
class StateFiles:
    """Records the files of a state directory, and compares the directory with them."""

    store: state_store.StateStore
    damage: dict[str, str] = field(default_factory=dict)
    """The problem of each lost file, found at the start or since."""
    is_incomplete: bool = False
    """True if losses at the start are missing from the state: no snapshot may be made."""
    next_segment: int = 1
    """No segment of a lower number may begin: one of them may have been lost."""
    _full: dict[int, int] = field(default_factory=dict)
    """Full segments by number, with their sizes."""
    _expected: set[str] = field(default_factory=set)
    _descriptor: int = -1

    @property
    def _frames(self) -> Path:
        return self.store.directory / "frames"

    def open(self) -> None:
        """Read what is recorded, and report losses. Blocking; raises OSError."""
        self.store.create(*TABLES)
        self._full = dict(self.store.read("SELECT number, bytes FROM full_segments"))
        self._expected = {name for (name,) in self.store.read("SELECT name FROM expected_files")}
        numbers = segment_numbers(self._frames) if self._frames.exists() else []
        extent: tuple[int, int] | None = None
        try:
            extent = read_extent(self.store.directory)
            if extent is None and (numbers or self._full):
                self.report_lost_file(EXTENT, "missing file")
        except ValueError as error:
            self.report_lost_file(EXTENT, str(error))
        newest = [*numbers, *self._full, extent[0] if extent else 0]
        # A lost segment may be restored from a copy: no other one may have its number then.
        self.next_segment = max([1, *newest])
        self._compare(numbers, extent)
        self._compare_clock()
        if self.store.problem:  # nothing is missing from a state that is read from all segments
            self.damage[state_store.FILE] = self.store.problem

    def _compare(self, numbers: list[int], extent: tuple[int, int] | None) -> None:
        """Report segments that are missing or too short."""
        expected = dict(self._full)
        if extent is not None:
            # A crash between the two writes leaves the extent of a segment that is already listed as full.
            expected[extent[0]] = max(extent[1], expected.get(extent[0], 0))
        for number, size in sorted(expected.items()):
            name = f"frames/{number:010d}"
            if number not in numbers:
                self.report_lost_file(name, f"segment {number} of {size} bytes is missing")
            elif (size_found := self._intact_bytes(number)) < size:
                problem = f"segment {number} has {size_found} bytes: expected {size}"
                self.report_lost_file(name, problem)

    def _compare_clock(self) -> None:
        """Report the file of the clock if it is missing or cannot be read."""
        try:
            state = clock.read_state(self.store.directory)
        except clock.ClockFileError as error:
            self.report_lost_file(clock.FILE, str(error))
        else:
            if state is None and clock.FILE in self._expected:
                self.report_lost_file(clock.FILE, "missing file")

    def _intact_bytes(self, number: int) -> int:
        """Return the size up to the end of the last whole record."""
        path = segment_path(self._frames, number)
        ends = [end for end, _ in read_segment(path, FrameLogStats())]
        return ends[-1] if ends else 0

    def compare_schemas(self, unknown: Iterable[bytes]) -> None:
        """Report missing shapes and names that frames refer to."""
        for digest in unknown:
            self.report_lost_file(
                f"state.sqlite: schema {digest.hex()}",
                "missing shape or names: frames that refer to them cannot be read",
            )

    def report_lost_file(self, name: str, problem: str) -> None:
        """Report a loss at the start."""
        self.damage[name] = problem
        self.is_incomplete = _ACCEPTED not in self._expected
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
        """Record the current content. Blocking; raises OSError."""
        if EXTENT in self.damage and self.is_incomplete:
            return  # The next start must find the same files.
        numbers = segment_numbers(self._frames)
        full = {n: self._remaining_bytes(n) for n in numbers if n != number}
        if self.is_incomplete:
            # The same, also of a lost segment that was the newest one.
            before = read_extent(self.store.directory)
            full |= self._full | ({before[0]: before[1]} if before and before[0] != number else {})
        with self.store.transaction() as connection:
            if not self.is_incomplete:
                connection.execute("DELETE FROM full_segments")
                connection.execute("DELETE FROM expected_files")
            has_clock = (self.store.directory / clock.FILE).exists()
            insert_expected(connection, full, has_clock=has_clock)
        self._full = full
        write_durably(self.store.directory / EXTENT, encode_extent(number, offset))
        self._descriptor = os.open(self.store.directory / EXTENT, os.O_WRONLY)

    def _remaining_bytes(self, number: int) -> int:
        """Return the size of a segment that the next start will find."""
        damaged = f"frames/{number:010d}" in self.damage
        return self._intact_bytes(number) if damaged else self._size(number)

    def _size(self, number: int) -> int:
        return segment_path(self._frames, number).stat().st_size

    def record_written(self, number: int, offset: int) -> None:
        """Update the durable end of the newest segment. Raises OSError."""
        if self._descriptor >= 0:
            os.pwrite(self._descriptor, encode_extent(number, offset), 0)

    def record_full(self, number: int, size: int) -> None:
        """Record a full segment. Raises OSError."""
        self._full[number] = size
        with self.store.transaction() as connection:
            connection.execute(_INSERT_SEGMENT, (number, size))

    def record_deletion(self, number: int) -> None:
        """Record that a segment is about to be deleted. Raises OSError."""
        if self._full.pop(number, None) is not None:
            with self.store.transaction() as connection:
                connection.execute("DELETE FROM full_segments WHERE number = ?", (number,))

    def find_new_losses(self) -> list[str]:
        """Compare the directory of a running collector; return new losses. Blocking."""
        losses: dict[str, str] = {}
        for number, size in list(self._full.items()):
            if problem := self._find_size_problem(number, size):
                losses[f"frames/{number:010d}"] = problem
        if not self.store.path.exists():
            losses[state_store.FILE] = "missing file"
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
            return "" if number not in self._full else f"segment {number} is missing"
        return (
            f"segment {number} has {current_size} bytes: expected {size}"
            if current_size < size
            else ""
        )

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def open_store(store: state_store.StateStore) -> None:
    """Open the database of a state directory; a missing one beside a frame log is a loss. Blocking; raises OSError."""
    directory = store.directory
    has_log = (directory / EXTENT).exists() and not (directory / FORMER_MANIFEST).exists()
    store.open(is_expected=has_log)


def accept_loss(store: state_store.StateStore) -> Iterator[str]:
    """Make the next start accept the losses; yield them. Blocking; raises OSError."""
    files = StateFiles(store)
    files.open()
    yield from (f"{name}: {problem}" for name, problem in files.damage.items())
    with store.transaction() as connection:
        connection.execute(_INSERT_FILE, (_ACCEPTED,))
