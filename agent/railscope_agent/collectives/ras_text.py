"""Report of NCCL's RAS subsystem as text, which has problems only.

The ranks of the smaller groups are listed by name, the largest group as a number of ranks; there are no counts
of healthy communicators, and the statuses of ranks are not read. Sources: NVIDIA/nccl
src/ras/client_support.cc and its user guide (troubleshooting/ras).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from railscope.untrusted_text import printable
from railscope_agent.collectives import CollectiveFormatError
from railscope_agent.collectives.ras_report import (
    ANY_KIND,
    MAX_COMMUNICATORS,
    MAX_EVENTS,
    MAX_RANKS,
    RasReport,
    ReportedCommunicator,
    ReportedPeer,
    ReportedRank,
)

_VERSION = re.compile(r"NCCL version (\d{1,3}(?:\.\d{1,3}){1,3})\b")
_GROUP = re.compile(
    r" +(\d{1,7}) +\d{1,7} +\d{1,7} +\d{1,7}(?:-\d{1,7})? +(?:\d{1,7}-)?(\d{1,7}) +\d{1,7} +[A-Z]+ +[A-Z,]+ *"
)
_COMMUNICATOR = re.compile(r"#(\d{1,7})-\d{1,7} \(([0-9a-f]{1,32})\) [A-Z]+")
_DIFFERENT = re.compile(r"  Communicator ranks have different (\w{1,32}) operation counts")
_LAUNCHED = re.compile(r"  (\d{1,7}) ranks? have launched up to operation (\d{1,18})")
_PLACE = r" -- GPUs? (\d{1,4})\S{0,64} managed by process (\d{1,10}) on node (\S{1,64})"
_LISTED = re.compile(rf"  Rank (\d{{1,7}})(?: has launched up to operation (\d{{1,18}}))?{_PLACE}")
_MISSING_DATA, _NO_DATA = "  Missing communicator data from", "no data"
_MISSING_RANKS = re.compile(r"  The missing ranks?: ([\d, ]{1,8192})")
_PROCESS = re.compile(r"  Process (\d{1,10}) on node (\S{1,64}) managing GPUs? \S{1,64}")
_SECTIONS = frozenset({"DEAD", "INCOMPLETE", "TIMEOUT", "Errors", "Warnings"})


def parse_text(content: bytes) -> RasReport:
    """Parse a report as text. Raises CollectiveFormatError."""
    return _TextReport(content.decode(errors="replace")).parse()


class _TextReport:
    """Text of a report while its lines are read."""

    def __init__(self, text: str) -> None:
        self._lines = text.replace("\r\n", "\n").split("\n")
        self._sizes: dict[str, int] = {}
        self._ranks: dict[tuple[str, str], dict[int, ReportedRank]] = {}
        self._unlisted: dict[tuple[str, str], dict[str, tuple[int, int]]] = {}
        self._dead: list[ReportedPeer] = []
        self._version, self._listed_ranks = "", 0
        self._section, self._kind, self._group = "", ANY_KIND, ""
        self._place: tuple[str, str] | None = None

    def parse(self) -> RasReport:
        """Return the report. Raises CollectiveFormatError if its last section is missing."""
        # The last section of a report; without it the answer was cut.
        if "Warnings" not in self._lines:
            message = "invalid report: expected text with the section Warnings"
            raise CollectiveFormatError(message)
        for line in self._lines:
            if not self._read_heading(line):
                if self._place:
                    self._group = self._read_rank(line, self._ranks[self._place], self._place)
                elif self._section:
                    self._read_item(line)
        communicators = list(self._communicators())
        damaged = len(self._ranks) - len(communicators)
        return RasReport(self._version, communicators, self._dead[:MAX_EVENTS], damaged)

    def _read_heading(self, line: str) -> bool:
        """Read a line that is not about a rank or a process; return False for any other."""
        if found := _VERSION.match(line):
            self._version = found[1]
        elif found := _GROUP.fullmatch(line):
            # The size of the communicators of a group is only in the table before them.
            self._sizes[found[1]] = int(found[2])
        elif found := _COMMUNICATOR.match(line):
            self._place, self._section = (found[1], found[2]), ""
            if len(self._ranks) >= MAX_COMMUNICATORS:
                message = f"more than {MAX_COMMUNICATORS} communicators"
                raise CollectiveFormatError(message)
            self._ranks.setdefault(self._place, {})
        elif line in _SECTIONS:
            self._section, self._place = line, None
        elif found := _DIFFERENT.fullmatch(line):
            self._kind = found[1]
        else:
            return False
        return True

    def _read_item(self, line: str) -> None:
        """Read a line of a section that is not about a communicator."""
        if self._section == "DEAD" and (found := _PROCESS.fullmatch(line)):
            self._dead.append(ReportedPeer(printable(found[2]), int(found[1])))

    def _read_rank(self, line: str, ranks: dict[int, ReportedRank], place: tuple[str, str]) -> str:
        """Read a line of a communicator; return what the ranks in the next lines have: a count, or _NO_DATA."""
        if line.startswith(_MISSING_DATA):
            return _NO_DATA
        if found := _LAUNCHED.fullmatch(line):
            group = int(found[1]), int(found[2])
            # The largest group is the one whose ranks are not listed.
            largest = self._unlisted.setdefault(place, {}).get(self._kind, (0, 0))
            self._unlisted[place][self._kind] = max(largest, group)
            return found[2]
        if found := _MISSING_RANKS.fullmatch(line):
            for text in re.findall(r"\d{1,7}", found[1]):
                self._add(ranks, ReportedRank(int(text), problem="missing"))
        elif found := _LISTED.fullmatch(line):
            number, count = int(found[1]), str(found[2] or self._group)
            # A rank is listed again for each kind of collective in which it differs.
            counts = dict(ranks[number].counts) if number in ranks else {}
            if count.isdecimal():
                counts[self._kind] = int(count)
            problem = "missing" if count == _NO_DATA else ""
            if counts or problem:
                rank_place = printable(found[5]), int(found[4]), int(found[3])
                self._add(ranks, ReportedRank(number, *rank_place, problem, counts=counts))
        return self._group if found else ""

    def _add(self, ranks: dict[int, ReportedRank], rank: ReportedRank) -> None:
        self._listed_ranks += 1
        if self._listed_ranks > MAX_RANKS:
            message = f"more than {MAX_RANKS} ranks"
            raise CollectiveFormatError(message)
        ranks[rank.rank] = rank

    def _communicators(self) -> Iterator[ReportedCommunicator]:
        """Yield the communicators whose ranks are within their size and the limit of the report."""
        remaining = MAX_RANKS
        for (group, name), listed in self._ranks.items():
            unlisted = {
                kind: count for kind, (_, count) in self._unlisted.get((group, name), {}).items()
            }
            least = max(listed, default=-1) + 1
            size = self._sizes.get(group, least)
            # All ranks count, listed or not: those that are not listed are added with the counts of the
            # largest group.
            if least <= size <= remaining:
                remaining -= size
                ranks = [listed[number] for number in sorted(listed)]
                yield ReportedCommunicator(f"0x{name}", size, ranks, unlisted)
