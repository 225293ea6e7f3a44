"""Invalid lines of a job list: raised at once, or collected while the rest is read."""

from __future__ import annotations

from typing import NoReturn

from railscope.timestamps import FOREVER_NS, format_timestamp
from railscope.untrusted_text import ShapeError, format_json_value
from railscope_collector.jobs import JobsError


class JobListError(JobsError, ValueError):
    """A line is not a valid job. The message names the line, counted from 1, and the field.

    In a list that does not consist of lines, `noun` names the unit that is counted, and `name` the one that is
    invalid.
    """

    def __init__(
        self, place: int, field: str, reason: str, noun: str = "line", name: str = ""
    ) -> None:
        """`field` is empty if the line as a whole is invalid."""
        self.place, self.field, self.reason, self.noun = place, field, reason, noun
        location = f"{noun} {place}{name and f' {format_json_value(name)}'}"
        super().__init__(f"{location}: {field}: {reason}" if field else f"{location}: {reason}")


def reject(field: str, reason: str) -> NoReturn:
    """Raise ShapeError: the line is not a valid job; `field` is empty for the line as a whole."""
    raise ShapeError(field, reason)


class BadLines:
    """Invalid lines of a list: raised at once, or collected while the rest is read.

    `now_ns` is the time of the import: a job that starts or ends after it is invalid.
    """

    def __init__(self, *, collect: bool = False, now_ns: int = FOREVER_NS) -> None:
        self.errors: list[JobListError] = []
        self.now_ns = now_ns
        self._collect = collect

    def add(self, error: JobListError) -> None:
        """Collect an error, or raise it if errors are not collected."""
        if not self._collect:
            raise error
        self.errors.append(error)

    def check_past(self, field: str, timestamp_ns: int, prefix: str = "") -> None:
        """Check that an instant of a job is not later than now. Raises ShapeError."""
        if timestamp_ns > self.now_ns:
            reason = (
                f"{prefix}{format_timestamp(timestamp_ns)}: expected a time not after now, "
                f"{format_timestamp(self.now_ns)}"
            )
            reject(field, reason)


RAISE_BAD_LINES = BadLines()
"""Raises on every bad line."""
