"""Columns selected by key from a file with many values."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from agent.host import Host
from agent.sampling.source import Table
from railscope.reading import UNSIGNED_RANGE, Absent, Reading, reason_of

Parse: TypeAlias = Callable[[bytes], Mapping[Hashable, Reading]]


@dataclass(slots=True)
class Picked:
    """One file, and the column of each of its keys."""

    path: str
    parse: Parse
    columns: list[tuple[int, Hashable]] = field(default_factory=list)
    _seen: frozenset[Hashable] = frozenset()

    def present(self, host: Host) -> Mapping[Hashable, Reading]:
        """Values of the file at a probe; empty if it cannot be read."""
        try:
            values = self.parse(host.read(self.path))
        except OSError:
            return {}
        self._seen = frozenset(values)
        return values

    def read(self, host: Host, into: Table) -> None:
        """Fill the columns; a key missing from the file is gone, a new one requests a probe."""
        try:
            values = self.parse(host.read(self.path))
        except OSError as error:
            reason = reason_of(error)
            for column, _ in self.columns:
                into.put(column, reason)
            return
        if values.keys() - self._seen:
            into.grown = True
        for column, key in self.columns:
            into.put(column, values.get(key, Absent.GONE))


def natural(word: str) -> Reading:
    """Non-negative number of a table. Anything else is an error."""
    if word.isascii() and word.isdecimal() and int(word) < UNSIGNED_RANGE:
        return int(word)
    return Absent.ERROR


def whole_lines(content: bytes) -> list[str]:
    """Lines of a file, without an unterminated last line: a number in it may be truncated."""
    return content[: content.rfind(b"\n") + 1].decode(errors="replace").splitlines()
