"""Standard output of a command. Its errors differ from errors of the files that the command reads and writes."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING

from railscope import RailscopeError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class OutputError(RailscopeError):
    """Standard output cannot be written."""


class ClosedOutputError(OutputError):
    """The program that read standard output has ended, such as `head`."""


class _Descriptor(io.FileIO):
    """File descriptor 1."""

    def write(self, data: ReadableBuffer, /) -> int:
        """Write bytes. Raises OutputError once; what is written after it is discarded."""
        try:
            return super().write(data)
        except OSError as error:
            # The interpreter writes what is still buffered when it exits, and would report the error again.
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())
            os.close(null)
            kind = ClosedOutputError if isinstance(error, BrokenPipeError) else OutputError
            message = f"writing to standard output failed: {error.strerror}"
            raise kind(message) from error


class _FlushedWriter(io.BufferedWriter):
    """Writer for PYTHONUNBUFFERED. Unlike a writer without a buffer, it completes short writes."""

    def write(self, data: ReadableBuffer, /) -> int:
        """Write and flush bytes. Raises OutputError."""
        size = super().write(data)
        self.flush()
        return size


def check_output() -> None:
    """Make standard output of this process raise OutputError in place of OSError."""
    # A caller in this process, such as a test, may have replaced it; it is None if it was closed.
    original = sys.__stdout__
    if original is None or sys.stdout is not original:
        return
    buffer = _FlushedWriter if original.write_through else io.BufferedWriter
    sys.stdout = io.TextIOWrapper(
        buffer(_Descriptor(original.fileno(), "w", closefd=False)),
        encoding=original.encoding,
        errors=original.errors,
        line_buffering=original.line_buffering,
        write_through=original.write_through,
    )


def flush_output() -> None:
    """Write what is buffered. Raises OutputError."""
    if sys.stdout is not None:
        sys.stdout.flush()
