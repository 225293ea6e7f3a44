"""Files under a root, groups of files with open descriptors, and the state file of a boot.

The state file belongs to the agent: state of the current boot that must survive a restart of the
agent.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import repeat
from operator import itemgetter
from pathlib import Path
from typing import TypeVar

import msgspec
import structlog

from railscope import durable_files, untrusted_text
from railscope.reading import PRESENT, Absent, Reading, parse_integer, reason_of
from railscope_agent.host import FileGroup

_COUNTER_BYTES = 64
_TEXT_BYTES = 4096  # the kernel prints at most one page for a sysfs file
_CLOSED = -1
_OUTSIDE = "/.outside"


class RootedFiles:
    """Files of a live node (root "/") or of a copied tree."""

    def __init__(self, root: Path) -> None:
        resolved = os.path.realpath(root)
        self._root = "" if resolved == "/" else resolved

    def real(self, path: str) -> str:
        """Path of a host file on this node.

        A link of a copied tree that leads out of the tree resolves to a missing file: its target
        belongs to the node that holds the copy.
        """
        path_below_root = self._root + path
        if self._root and not self._is_inside(path_below_root):
            return self._root + _OUTSIDE
        return path_below_root

    def _is_inside(self, path: str) -> bool:
        """True unless the file exists outside the root; its open has no effect on a device or pipe."""
        try:
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:  # the read of the file reports the reason
            return True
        try:
            target = os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115 - on the hot path
            return f"{target}/".startswith(f"{self._root}/")
        finally:
            os.close(descriptor)

    def read(self, path: str) -> bytes:
        """Content of a small file."""
        with open(self.real(path), "rb") as file:  # noqa: PTH123 - on the hot path
            return file.read()

    def names(self, path: str) -> list[str]:
        """Entries of a directory, sorted. Ports and devices have the same names: each is stored once."""
        return sorted(map(sys.intern, os.listdir(self.real(path))))  # noqa: PTH208 - plain text paths

    def resolve(self, path: str) -> str:
        """Path with all links followed; raises FileNotFoundError for a link out of the root."""
        target = os.path.realpath(self._root + path, strict=True)
        if not f"{target}/".startswith(f"{self._root}/"):
            message = f"{path} leads outside the root directory"
            raise FileNotFoundError(message)
        return target[len(self._root) :]

    def open_file_group(self, paths: Sequence[str]) -> FileGroup:
        """Open a group of files with persistent descriptors."""
        return OpenFiles([self.real(path) for path in paths])


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
                self._has_failures = True
            else:
                reasons[start:end] = bytes(end - start)
                return
        self._has_failures = False
        for position, descriptor in enumerate(self._descriptors, start):
            try:
                values[position] = int(os.pread(descriptor, _COUNTER_BYTES, 0))
                reasons[position] = PRESENT
            except (ValueError, OSError):
                self._has_failures = True
                self._read_again(position - start, values, reasons, position)

    def _read_again(self, index: int, values: list[int], reasons: bytearray, position: int) -> None:
        self._close(index)
        try:
            descriptor = os.open(self._paths[index], os.O_RDONLY | os.O_CLOEXEC)
            self._descriptors[index] = descriptor
            reading = parse_integer(os.pread(descriptor, _COUNTER_BYTES, 0))
        except OSError as error:
            reading = reason_of(error)
        _store_open_file(values, reasons, position, reading)

    def text(self, index: int) -> bytes:
        """Content of one file, up to a page."""
        if self._descriptors[index] != _CLOSED:
            try:
                return os.pread(self._descriptors[index], _TEXT_BYTES, 0)
            except OSError:
                self._close(index)
        descriptor = os.open(self._paths[index], os.O_RDONLY | os.O_CLOEXEC)
        self._descriptors[index] = descriptor
        return os.pread(descriptor, _TEXT_BYTES, 0)

    def texts(self) -> list[bytes | Absent]:
        """Content of each file, up to a page, or the reason why it cannot be read."""
        if _CLOSED not in self._descriptors:
            with suppress(OSError):
                return list(map(os.pread, self._descriptors, repeat(_TEXT_BYTES), repeat(0)))
        return _read_texts(self.text, len(self._paths))

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
                if names is not self._names:
                    self._pick = itemgetter(*map(names.index, self._counter_names))
                    self._names = names
            except (OSError, ValueError):
                self._is_called = False
            else:
                end = start + len(self._counter_names)
                values[start:end] = self._pick(counts)
                reasons[start:end] = bytes(end - start)
                return
        self._files.read_into(values, reasons, start)

    def text(self, index: int) -> bytes:
        """Content of one file."""
        return self._files.text(index)

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

    def text(self, index: int) -> bytes:
        """Content of one file."""
        for count, files in self._groups:
            if index < count:
                return files.text(index)
            index -= count
        raise IndexError(index)

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

    def text(self, index: int) -> bytes:
        """Content of one file."""
        return self._read(self._paths[index])

    def texts(self) -> list[bytes | Absent]:
        """Content of each file, or the reason why it cannot be read."""
        return _read_texts(self.text, len(self._paths))

    def close(self) -> None:
        """Do nothing: no file is held open."""


def _read_texts(text: Callable[[int], bytes], count: int) -> list[bytes | Absent]:
    contents: list[bytes | Absent] = []
    for index in range(count):
        try:
            contents.append(text(index))
        except OSError as error:
            contents.append(reason_of(error))
    return contents


def _store_open_file(
    values: list[int], reasons: bytearray, position: int, reading: Reading
) -> None:
    values[position] = 0 if isinstance(reading, Absent) else reading
    reasons[position] = reading.value if isinstance(reading, Absent) else PRESENT


log = structlog.get_logger(__name__)


class BootState(msgspec.Struct, frozen=True):
    """Content of the file; boot clock and counters of another boot do not apply to this one."""

    boot_id: str


StateOfBoot = TypeVar("StateOfBoot", bound=BootState)


class BootStateFile:
    """A state file beside the spool. Blocking. Failures are logged as `SUBJECT_read_failed` and `SUBJECT_write_failed`."""

    def __init__(self, path: Path, boot_id: str, subject: str) -> None:
        self._path = path
        self.boot_id = boot_id
        self._subject = subject
        self._problem = ""

    def read(self, shape: type[StateOfBoot]) -> StateOfBoot | None:
        """Return the stored state; None if there is no file, or if it is of another boot."""
        try:
            state = msgspec.json.decode(self._path.read_bytes(), type=shape)
        except FileNotFoundError:
            return None
        except (OSError, *untrusted_text.DECODING_ERRORS) as error:
            self._log_failure("read", error)
            return None
        return state if state.boot_id == self.boot_id else None

    def write(self, state: BootState) -> None:
        """Store the state if the state directory exists: the service has one, a manual run may have none.

        A write failure is logged once, and the agent continues.
        """
        if not self._path.parent.is_dir():
            return
        try:
            durable_files.write_atomically(self._path, msgspec.json.encode(state))
        except OSError as error:
            self._log_failure("write", error)

    def _log_failure(self, operation: str, error: Exception) -> None:
        if str(error) != self._problem:
            self._problem = str(error)
            event = f"{self._subject}_{operation}_failed"
            log.warning(event, file=str(self._path), problem=self._problem)
