"""Groups of files that are read together: with open descriptors, by one call per RDMA port, or one by one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import repeat
from operator import itemgetter
from typing import TypeVar

from railscope.reading import PRESENT, Absent, Reading, parse_integer, reason_of
from railscope_agent.host import FileGroup

# Far more than the digits of a 64-bit number.
_COUNTER_BYTES = 64
_TEXT_BYTES = os.sysconf("SC_PAGE_SIZE")  # the kernel prints at most one page for a sysfs file
_CLOSED = -1
File = TypeVar("File", int, str)


class OpenFiles:
    """Files with descriptors that stay open: a pread costs a tenth as much as an open.

    A descriptor is reopened after its device vanished and returned (ENODEV).
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = tuple(paths)
        self._descriptors = [_CLOSED] * len(self._paths)
        self._has_failures = True
        """True if a file of the last read had no number, or was opened: files are then read one by one."""

    def read_into(self, values: list[int], reasons: bytearray, start: int) -> None:
        """Read every file once, in order and back to back."""
        end = start + len(self._descriptors)
        if not self._has_failures:
            try:
                # Without a step of the interpreter per file; all system calls before all conversions.
                contents = [*map(os.pread, self._descriptors, repeat(_COUNTER_BYTES), repeat(0))]
                values[start:end] = map(int, contents)
            except (ValueError, OSError):
                # One failure ends the fast path: which file failed is found by reading them one by one.
                self._has_failures = True
            else:
                reasons[start:end] = bytes(end - start)
                return
        # Until a file fails below; then the next read has the fast path again only if all had numbers.
        self._has_failures = False
        for position, descriptor in enumerate(self._descriptors, start):
            try:
                values[position] = int(os.pread(descriptor, _COUNTER_BYTES, 0))
                reasons[position] = PRESENT
            except (ValueError, OSError):
                self._has_failures = True
                self._read_again(position - start, values, reasons, position)

    def _read_again(self, index: int, values: list[int], reasons: bytearray, position: int) -> None:
        # The descriptor may be of a device that vanished: the same path can be another device now.
        self._close(index)
        try:
            descriptor = os.open(self._paths[index], os.O_RDONLY)
            self._descriptors[index] = descriptor
            reading = parse_integer(os.pread(descriptor, _COUNTER_BYTES, 0))
        except OSError as error:
            reading = reason_of(error)
        _store_open_file(values, reasons, position, reading)

    def _text(self, index: int) -> bytes:
        if self._descriptors[index] != _CLOSED:
            try:
                return os.pread(self._descriptors[index], _TEXT_BYTES, 0)
            except OSError:
                self._close(index)
        descriptor = os.open(self._paths[index], os.O_RDONLY)
        self._descriptors[index] = descriptor
        return os.pread(descriptor, _TEXT_BYTES, 0)

    def texts(self) -> list[bytes | Absent]:
        """Content of each file, up to a page, or the reason why it cannot be read."""
        if _CLOSED not in self._descriptors:
            with suppress(OSError):
                return list(map(os.pread, self._descriptors, repeat(_TEXT_BYTES), repeat(0)))
        return _read_texts(self._text, range(len(self._paths)))

    def _close(self, index: int) -> None:
        if self._descriptors[index] != _CLOSED:
            os.close(self._descriptors[index])
            self._descriptors[index] = _CLOSED

    def close(self) -> None:
        """Close all descriptors."""
        for index in range(len(self._descriptors)):
            self._close(index)


class PortCounterFiles:
    """Counter files of one RDMA port, whose values one call returns.

    If the call fails, or does not return one of them, they are read, and so they are until the group is
    opened again.
    """

    def __init__(
        self,
        paths: Sequence[str],
        files: FileGroup,
        counters: Callable[[], tuple[Sequence[str], Sequence[int]]],
    ) -> None:
        self._counter_names = [path.rpartition("/")[2] for path in paths]
        self._files = files
        self._counters = counters
        self._names: Sequence[str] | None = None
        self._pick: Callable[[Sequence[int]], Sequence[int]] = tuple
        self._is_called = True

    def read_into(self, values: list[int], reasons: bytearray, start: int) -> None:
        """Read every counter once."""
        if self._is_called:
            try:
                names, counts = self._counters()
                # The same object as long as the names do not change, so the positions are looked up once.
                if names is not self._names:
                    self._pick = itemgetter(*map(names.index, self._counter_names))
                    self._names = names
            except (OSError, ValueError):
                # The driver may name its counters differently in the answer, or the kernel may be too old for
                # the call.
                self._is_called = False
            else:
                end = start + len(self._counter_names)
                values[start:end] = self._pick(counts)
                reasons[start:end] = bytes(end - start)
                return
        self._files.read_into(values, reasons, start)

    def texts(self) -> list[bytes | Absent]:
        """Content of each file, or the reason why it cannot be read."""
        return self._files.texts()

    def close(self) -> None:
        """Close all descriptors."""
        self._files.close()


class JoinedFiles:
    """Consecutive groups of files as one group."""

    def __init__(self, groups: Sequence[tuple[int, FileGroup]]) -> None:
        self._groups = groups

    def read_into(self, values: list[int], reasons: bytearray, start: int) -> None:
        """Read every group."""
        for count, files in self._groups:
            files.read_into(values, reasons, start)
            start += count

    def texts(self) -> list[bytes | Absent]:
        """Content of each file, or the reason why it cannot be read."""
        return [content for _, files in self._groups for content in files.texts()]

    def close(self) -> None:
        """Close every group."""
        for _, files in self._groups:
            files.close()


class PlainFiles:
    """Files read whole, one by one, through any function that reads a file."""

    def __init__(self, read: Callable[[str], bytes], paths: Sequence[str]) -> None:
        self._read = read
        self._paths = tuple(paths)

    def read_into(self, values: list[int], reasons: bytearray, start: int) -> None:
        """Read every file once, in order."""
        for index in range(len(self._paths)):
            self.read_one(index, values, reasons, start + index)

    def read_one(self, index: int, values: list[int], reasons: bytearray, position: int) -> None:
        """Read one file into a column."""
        reading: Reading
        try:
            reading = parse_integer(self._read(self._paths[index]))
        except OSError as error:
            reading = reason_of(error)
        _store_open_file(values, reasons, position, reading)

    def texts(self) -> list[bytes | Absent]:
        """Content of each file, or the reason why it cannot be read."""
        return _read_texts(self._read, self._paths)

    def close(self) -> None:
        """Do nothing: no file is held open."""


def _read_texts(read: Callable[[File], bytes], files: Iterable[File]) -> list[bytes | Absent]:
    contents: list[bytes | Absent] = []
    for file in files:
        try:
            contents.append(read(file))
        except OSError as error:
            contents.append(reason_of(error))
    return contents


def _store_open_file(
    values: list[int], reasons: bytearray, position: int, reading: Reading
) -> None:
    values[position] = 0 if isinstance(reading, Absent) else reading
    reasons[position] = reading.value if isinstance(reading, Absent) else PRESENT
