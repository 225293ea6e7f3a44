"""Base of sources that are read every few seconds or less often: a generator of readings.

What it yields are its columns. A reading that it does not yield any more is gone, a new one becomes a column with the next
read (agent/railscope_agent/sampling/known_columns.py has the rule for what failed calls hide).
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import TypeAlias

from railscope.catalog.declare import Metric
from railscope.frame import Column, Entity
from railscope.reading import UNSIGNED_RANGE, Absent, Reading, reason_of
from railscope.timestamps import SECOND_NS
from railscope_agent.host import Host
from railscope_agent.sampling import fact_readers
from railscope_agent.sampling.answer_readings import parsed_reading
from railscope_agent.sampling.probe_result import ProbeFinding, ProbeResult
from railscope_agent.sampling.row_builder import RowBuilder
from railscope_agent.sampling.source import Source

Found = tuple[Metric, Entity, Reading]
ParseFile: TypeAlias = Callable[[bytes], Mapping[Hashable, Reading]]
FRESH_NS = SECOND_NS // 2
"""Maximum age of the readings of a probe for the read that follows it."""


class ScanSource(Source, ABC):
    """A source that is a generator of readings."""

    _columns: tuple[Column, ...] = ()
    _fresh: tuple[int, dict[Column, Reading]] | None = None

    def __init__(self) -> None:
        self._of_file: dict[str, tuple[Column, ...]] = {}

    @abstractmethod
    def readings(self, host: Host) -> Iterator[Found | ProbeFinding]:
        """Yield every reading, and lines for `railscope agent check`."""

    def probe(self, host: Host) -> ProbeResult:
        """Make a column of each reading."""
        found, findings = self._scan(host)
        self._fresh, self._columns = (host.clock.now().boot_ns, found), tuple(found)
        return ProbeResult(self._columns, (), tuple(findings))

    def read(self, host: Host, into: RowBuilder) -> None:
        """Fill the columns, from the probe if it was just now."""
        fresh, self._fresh = self._fresh, None
        is_fresh = fresh and 0 <= host.clock.now().boot_ns - fresh[0] < FRESH_NS
        found = fresh[1] if fresh and is_fresh else self._scan(host)[0]
        into.put_readings(0, [found.get(column, Absent.GONE) for column in self._columns])
        into.needs_probe = not found.keys() <= set(self._columns)

    def keyed(
        self,
        host: Host,
        path: str,
        parse: ParseFile,
        column_of: Callable[[Hashable], Column | None],
    ) -> Iterator[Found]:
        """Yield the values of a file with many of them that have a column; for a failure, the earlier ones as absent."""
        try:
            values = parse(host.read(path))
        except OSError as error:
            for column in self._of_file.get(path, ()):
                yield *column, reason_of(error)
            return
        columns = {key: found for key in values if (found := column_of(key))}
        self._of_file[path] = tuple(columns.values())
        for key, column in columns.items():
            yield *column, values[key]

    def _scan(self, host: Host) -> tuple[dict[Column, Reading], list[ProbeFinding]]:
        found, findings = dict[Column, Reading](), list[ProbeFinding]()
        for each in self.readings(host):
            if isinstance(each, ProbeFinding):
                findings.append(each)
            else:
                found.setdefault((each[0], each[1]), each[2])
        return found, findings


def matching(host: Host, directory: str, pattern: re.Pattern[str]) -> Iterator[re.Match[str]]:
    """Yield the entries of a directory that match as a whole."""
    return filter(None, map(pattern.fullmatch, fact_readers.list_names(host, directory)))


def facts(host: Host, directory: str, **files: str) -> dict[str, str]:
    """Return the contents of files as facts, without empty ones."""
    texts = {
        name: fact_readers.read_text(host, f"{directory}/{file}") for name, file in files.items()
    }
    return fact_readers.nonempty_facts(**texts)


def counters(
    host: Host, directory: str, files: Iterable[tuple[str, Metric]], about: Entity
) -> Iterator[Found]:
    """Yield the numbers in those of some files that a directory has."""
    present = set(fact_readers.list_names(host, directory))
    for file, metric in files:
        if file in present:
            yield metric, about, parsed_reading(host.read, f"{directory}/{file}")


def called(host: Host, *call: str) -> tuple[object, Absent | None]:
    """Return the answer of a call, or the reason why there is none."""
    try:
        return host.call(*call), None
    except OSError as error:
        return None, reason_of(error)


def parse_natural(text: str) -> Reading:
    """Non-negative number of a table. Anything else is an error."""
    if text.isascii() and text.isdecimal() and int(text) < UNSIGNED_RANGE:
        return int(text)
    return Absent.ERROR


def whole_lines(content: bytes) -> list[str]:
    """Lines of a file, without an unterminated last line: a number in it may be truncated."""
    return content[: content.rfind(b"\n") + 1].decode(errors="replace").splitlines()
