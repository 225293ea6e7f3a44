"""Files of administrators, which the collector reads again when they change."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import structlog

from railscope import convert_errors, service, timestamps, untrusted_text

log = structlog.get_logger(__name__)

MAX_QUOTED = 200
SPAN_COLUMNS = (", from", ", to")
"""`keys` of `parse_span` for a CSV file, so that a message names line and column."""
_WATCH_SECONDS = 1.0
T = TypeVar("T")


class FileError(ValueError):
    """An invalid file; the message names the line or the entry."""


@dataclass(slots=True)
class WatchedFile(Generic[T]):
    """A file of one kind: `content` is that of the last valid version, `empty` without one."""

    kind: str
    path: Path | None
    parse: Callable[[str], T]
    empty: T
    on_change: list[Callable[[str], None]] = field(default_factory=list)
    """Each is called with the text of every new valid version."""
    content: T = field(init=False)
    text: str = ""
    is_valid: bool = True
    problem: str = ""
    """Reason why the current file is invalid."""
    _digest: bytes = b""
    _was_ever_valid: bool = False

    def __post_init__(self) -> None:
        """Start with the empty content."""
        self.content = self.empty

    @property
    def is_known(self) -> bool:
        """True if `content` is authoritative: a version was valid, or no file is configured.

        If a configured file was never valid, `empty` is only a placeholder.
        """
        return self.path is None or self._was_ever_valid

    async def watch(self) -> None:
        """Read the file whenever it changes, until cancelled."""
        while self.path:
            await service.run_in_thread(self.refresh)
            await asyncio.sleep(_WATCH_SECONDS)

    def refresh(self) -> None:
        """Read the file if it has changed since the last read."""
        if self.path is None:
            return
        try:
            content = self.path.read_bytes()
            digest = hashlib.sha256(content).digest()
            if digest == self._digest:
                return
            # Before it is parsed: an invalid version is reported once, not at each read.
            self._digest = digest
            text = content.decode()
            parsed = self.parse(text)
        except (OSError, FileError, UnicodeDecodeError) as error:
            # A file that cannot be read is reported once, each invalid version of it as well.
            if self.is_valid or not isinstance(error, OSError):
                event = f"{self.kind}_file_rejected"
                log.error(
                    event,
                    file=str(self.path),
                    problem=str(error),
                    advice="the last valid version remains in use",
                )
            self.is_valid, self.problem = False, str(error)
            if isinstance(error, OSError):
                # The file may have the same content when it can be read again.
                self._digest = b""
            return
        self.is_valid, self.problem = True, ""
        self._accept(text, parsed)
        event = f"{self.kind}_file_loaded"
        log.info(event, file=str(self.path))

    def restore(self, text: str) -> None:
        """Use an earlier valid version while the file itself is invalid. Raises FileError."""
        self._accept(text, self.parse(text))

    def _accept(self, text: str, content: T) -> None:
        self._was_ever_valid = True
        self.content, self.text = content, text
        for listener in self.on_change:
            listener(text)


def read_rows(
    text: str, header: Sequence[str], optional: str = ""
) -> Iterator[tuple[int, list[str]]]:
    """The rows of a CSV file below its header, with the number of the line each begins on.

    The file may have the `optional` column after the others; without it, its value is empty in each row.
    Comments count as empty lines. Raises FileError that names the line.
    """
    with convert_errors(untrusted_text.CsvError, FileError):
        yield from _rows_below(untrusted_text.parse_csv(text), list(header), optional)


def _rows_below(
    rows: Iterator[tuple[int, list[str]]], header: list[str], optional: str
) -> Iterator[tuple[int, list[str]]]:
    number, first = next(rows, (1, []))
    has_optional = bool(optional) and first == [*header, optional]
    if first != header and not has_optional:
        choice = f", and optionally {optional} at the end" if optional else ""
        message = f"line {number}: invalid header: expected {','.join(header)}{choice}"
        raise FileError(message)
    for number, row in rows:
        if len(row) != len(first):
            message = f"line {number}: {','.join(row)[:MAX_QUOTED]}: expected {','.join(first)}"
            raise FileError(message)
        yield number, row if has_optional or not optional else [*row, ""]


def parse_span(
    start: object, end: object, location: str, keys: tuple[str, str] = ("", "")
) -> tuple[int, int]:
    """Parse start and end; None means no end. Raises FileError.

    The message names the place, and the one of `keys` that is wrong.
    """
    with convert_errors(timestamps.TimestampError, FileError, f"{location}{keys[0]}: "):
        start_ns = timestamps.parse_start(start)
    with convert_errors(timestamps.TimestampError, FileError, f"{location}{keys[1]}: "):
        end_ns = timestamps.FOREVER_NS if end is None else timestamps.parse_end(end)
    if end_ns <= start_ns:
        message = f"{location}{keys[1]}: invalid span: expected an end after the start"
        raise FileError(message)
    return start_ns, end_ns


def group_rows(
    rows: Iterable[T], key: Callable[[T], str], order: Callable[[T], Any]
) -> dict[str, tuple[T, ...]]:
    """Return rows by key, each group in order."""
    groups: dict[str, list[T]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return {name: tuple(sorted(group, key=order)) for name, group in groups.items()}
