"""Retired GPUs, which have no capacity in the account for a time, with the reason.

CSV with the columns gpu, from, to, reason. `gpu` is a UUID; times are RFC 3339 with an offset; an empty `to` means
permanently, otherwise the GPU is back from then on. Observations of such a GPU in the meantime stay in the
evidence, and count again if the row is removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter

from railscope_collector.files.watched_file import (
    SPAN_COLUMNS,
    FileError,
    group_rows,
    parse_span,
    read_rows,
)

RETIREMENTS_HEADER = ("gpu", "from", "to", "reason")
MAX_CHARACTERS = 400


@dataclass(frozen=True, slots=True, order=True)
class Retirement:
    """A GPU is retired in [start, end)."""

    start_ns: int
    end_ns: int
    gpu: str
    reason: str = ""


@dataclass(frozen=True)
class RetiredGpus:
    """All rows of the file, by GPU."""

    by_gpu: dict[str, tuple[Retirement, ...]] = field(default_factory=dict)

    @classmethod
    def from_rows(cls, found: Iterable[Retirement]) -> RetiredGpus:
        """Build from rows in any order."""
        return cls(dict(sorted(group_rows(found, attrgetter("gpu"), lambda row: row).items())))

    def __iter__(self) -> Iterator[Retirement]:
        return (row for rows in self.by_gpu.values() for row in rows)

    def find_retirement(self, gpu: str, timestamp_ns: int) -> Retirement | None:
        """The row by which a GPU is retired at an instant; None if it is not."""
        for retirement in self.by_gpu.get(gpu, ()):
            if retirement.start_ns <= timestamp_ns < retirement.end_ns:
                return retirement
        return None


def parse_retirements(text: str) -> RetiredGpus:
    """Parse retirements from the text of a file. Raises FileError that names line and column."""
    retirements: set[Retirement] = set()
    for number, (gpu, start, end, reason) in read_rows(text, RETIREMENTS_HEADER):
        line = f"line {number}"
        for column, value in (("gpu", gpu), ("reason", reason)):
            if len(value) > MAX_CHARACTERS:
                message = f"{line}: invalid {column}: expected at most {MAX_CHARACTERS} characters"
                raise FileError(message)
        if not gpu:
            message = f"{line}: empty gpu: expected a UUID"
            raise FileError(message)
        retirements.add(
            Retirement(*parse_span(start, end or None, line, SPAN_COLUMNS), gpu, reason)
        )
    return RetiredGpus.from_rows(retirements)
