"""Answers of NCCL's RAS subsystem: reports of communicators as JSON or text, and events of `MONITOR`.

Sources: NVIDIA/nccl src/ras/client_support.cc and its user guide (troubleshooting/ras). JSON has every rank (2.28.7 and
later). Text has problems only: the ranks of the smaller groups by name, the largest group as a number of ranks; it has no
counts of healthy communicators, and the statuses of ranks in it are not read.

NCCL before 2.29.2 writes no comma between `nvml_dev` and `status` of a missing rank. Exactly that comma is added, in answers
of these versions only: a general repair would hide other damage.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Annotated

import msgspec

from railscope.untrusted_text import DECODING_ERRORS, printable
from railscope_agent.collectives import CollectiveFormatError

MAX_RANKS = 1 << 16
"""Maximum number of ranks in one report, over all communicators: an answer of 16 MiB has half as many."""
MAX_COMMUNICATORS, MAX_KINDS, MAX_TEXT = 4096, 16, 64
MAX_EVENTS = 256
_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
_Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 20)]
_Number = Annotated[int, msgspec.Meta(ge=-(1 << 31), lt=1 << 31)]
_Text = Annotated[str, msgspec.Meta(max_length=MAX_TEXT)]
_SUCCESS, _IN_PROGRESS = 0, 7  # ncclSuccess, ncclInProgress of ncclResult_t
ANY_KIND = "collective"
"""Kind of a count in the text of NCCL before 2.26, which has one count for all kinds."""


class _RankStatus(msgspec.Struct, frozen=True):
    init_state: _Number = 0
    async_error: _Number = 0
    abort_flag: bool = False
    considered_dead: bool = False


class _JsonRank(msgspec.Struct, frozen=True):
    rank: _Size
    host: _Text = ""
    pid: _Number = -1
    cuda_dev: _Number = -1
    status: _RankStatus = _RankStatus()
    collective_counts: Annotated[dict[_Text, _Count], msgspec.Meta(max_length=MAX_KINDS)] = {}


class _JsonCommunicator(msgspec.Struct, frozen=True):
    hash: _Text
    size: _Size
    ranks: list[_JsonRank]
    secondary_hash: _Text = ""
    missing_ranks: list[_JsonRank] = []


class _JsonCollection(msgspec.Struct, frozen=True):
    timeouts_count: _Count = 0


class _JsonReport(msgspec.Struct, frozen=True):
    nccl_version: _Text
    communicators: Annotated[list[_JsonCommunicator], msgspec.Meta(max_length=MAX_COMMUNICATORS)]
    ras: _JsonCollection = _JsonCollection()


class ReportedRank(msgspec.Struct, frozen=True, omit_defaults=True):
    """Rank of a communicator as a report has it; `pid` is the number in the namespace of the process, -1 if unknown.

    `problem` is empty, `starting`, `failed`, `missing` or `dead`; `counts` are collectives launched, by kind.
    """

    rank: int
    host: str = ""
    pid: int = -1
    device: int = -1
    problem: str = ""
    detail: str = ""
    counts: dict[str, int] = {}


class ReportedCommunicator(msgspec.Struct, frozen=True, omit_defaults=True):
    """Communicator; `unlisted` are the counts of the ranks that a text does not name."""

    name: str
    size: int
    ranks: list[ReportedRank] = []
    unlisted: dict[str, int] = {}


class ReportedPeer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A process of the job that is considered dead."""

    host: str
    pid: int
    detail: str = ""


class RasReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """Answer to one query: version of NCCL, communicators, dead processes (text only), and timeouts while collecting."""

    version: str = ""
    communicators: list[ReportedCommunicator] = []
    dead: list[ReportedPeer] = []
    timeouts: int = 0


_decoder = msgspec.json.Decoder(_JsonReport)
_MISSING_COMMA = re.compile(
    rb'("nvml_dev": -?\d{1,10})(\s{1,64}"status": \{\s{0,64}"unresponsive":)'
)
_OF_MALFORMED = re.compile(rb'\{\s{0,64}"nccl_version": "2\.(?:28\.\d{1,3}|29\.[01])"')


def parse_report(content: bytes, *, is_json: bool) -> RasReport:
    """Parse the answer to VERBOSE STATUS. Raises CollectiveFormatError."""
    return _parse_json(content) if is_json else _parse_text(content)


def _parse_json(content: bytes) -> RasReport:
    if _OF_MALFORMED.match(content):
        content = _MISSING_COMMA.sub(rb"\1,\2", content)
    try:
        answer = _decoder.decode(content)
    except DECODING_ERRORS as error:
        message = f"invalid report: {error}"
        raise CollectiveFormatError(message) from error
    communicators = []
    remaining = MAX_RANKS
    for found in answer.communicators:
        listed = [*found.ranks, *found.missing_ranks]
        remaining -= len(listed)
        if remaining < 0:
            raise _too_many()
        numbers = {rank.rank for rank in listed}
        if len(numbers) < len(listed) or max(numbers, default=-1) >= found.size:
            message = f"communicator {found.hash!r}: ranks are repeated, or beyond its size"
            raise CollectiveFormatError(message)
        ranks = [
            *(_present(rank) for rank in found.ranks),
            *(_missing(rank) for rank in found.missing_ranks),
        ]
        name = printable(":".join(filter(None, (found.hash, found.secondary_hash))))
        ranks.sort(key=lambda rank: rank.rank)
        communicators.append(ReportedCommunicator(name, found.size, ranks))
    return RasReport(
        printable(answer.nccl_version), communicators, timeouts=answer.ras.timeouts_count
    )


def _present(rank: _JsonRank) -> ReportedRank:
    status = rank.status
    problem = detail = ""
    if _IN_PROGRESS in {status.init_state, status.async_error}:
        problem = "starting"
    for name in ("init_state", "async_error"):
        if (number := getattr(status, name)) not in {_SUCCESS, _IN_PROGRESS}:
            problem, detail = "failed", f"{name} {number}"
    if status.abort_flag:
        problem, detail = "failed", "aborted"
    counts = {printable(kind): count for kind, count in rank.collective_counts.items()}
    return ReportedRank(
        rank.rank, printable(rank.host), rank.pid, rank.cuda_dev, problem, detail, counts
    )


def _missing(rank: _JsonRank) -> ReportedRank:
    problem = "dead" if rank.status.considered_dead else "missing"
    return ReportedRank(rank.rank, printable(rank.host), rank.pid, rank.cuda_dev, problem)


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
_TIMEOUTS = re.compile(r"  Encountered (\d{1,9}) communication timeouts?")
_SECTIONS = frozenset({"DEAD", "INCOMPLETE", "TIMEOUT", "Errors", "Warnings"})


def _parse_text(content: bytes) -> RasReport:
    return _TextReport(content.decode(errors="replace")).parse()


class _TextReport:
    """Text of a report while its lines are read."""

    def __init__(self, text: str) -> None:
        self._lines = text.replace("\r\n", "\n").split("\n")
        self._sizes: dict[str, int] = {}
        self._ranks: dict[tuple[str, str], dict[int, ReportedRank]] = {}
        self._unlisted: dict[tuple[str, str], dict[str, tuple[int, int]]] = {}
        self._dead: list[ReportedPeer] = []
        self._version, self._timeouts = "", 0
        self._listed_ranks = self._all_ranks = 0
        self._section, self._kind, self._group = "", ANY_KIND, ""
        self._place: tuple[str, str] | None = None

    def parse(self) -> RasReport:
        """Return the report. Raises CollectiveFormatError if its last section is missing."""
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
        return RasReport(self._version, communicators, self._dead[:MAX_EVENTS], self._timeouts)

    def _read_heading(self, line: str) -> bool:
        """Read a line that is not about a rank or a process; return False for any other."""
        if found := _VERSION.match(line):
            self._version = found[1]
        elif found := _GROUP.fullmatch(line):
            self._sizes[found[1]] = int(found[2])
        elif found := _COMMUNICATOR.match(line):
            self._place, self._section = (found[1], found[2]), ""
            if len(self._ranks) >= MAX_COMMUNICATORS:
                raise _too_many()
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
        if found := _TIMEOUTS.match(line):
            self._timeouts = int(found[1])
        elif self._section == "DEAD" and (found := _PROCESS.fullmatch(line)):
            self._dead.append(ReportedPeer(printable(found[2]), int(found[1])))

    def _read_rank(self, line: str, ranks: dict[int, ReportedRank], place: tuple[str, str]) -> str:
        """Read a line of a communicator; return what the ranks in the next lines have: a count, or _NO_DATA."""
        if line.startswith(_MISSING_DATA):
            return _NO_DATA
        if found := _LAUNCHED.fullmatch(line):
            group = int(found[1]), int(found[2])
            largest = self._unlisted.setdefault(place, {}).get(self._kind, (0, 0))
            self._unlisted[place][self._kind] = max(largest, group)
            return found[2]
        if found := _MISSING_RANKS.fullmatch(line):
            for text in re.findall(r"\d{1,7}", found[1]):
                self._add(ranks, ReportedRank(int(text), problem="missing"))
        elif found := _LISTED.fullmatch(line):
            number, count = int(found[1]), str(found[2] or self._group)
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
            raise _too_many()
        ranks[rank.rank] = rank

    def _communicators(self) -> Iterator[ReportedCommunicator]:
        for (group, name), listed in self._ranks.items():
            unlisted = {
                kind: count for kind, (_, count) in self._unlisted.get((group, name), {}).items()
            }
            size = max(self._sizes.get(group, 0), max(listed, default=-1) + 1)
            self._all_ranks += size
            if self._all_ranks > MAX_RANKS:
                raise _too_many()
            ranks = [listed[number] for number in sorted(listed)]
            yield ReportedCommunicator(f"0x{name}", size, ranks, unlisted)


def _too_many() -> CollectiveFormatError:
    return CollectiveFormatError(f"more than {MAX_RANKS} ranks")


class _EventPeer(msgspec.Struct, frozen=True):
    host: _Text = ""
    pid: _Number = -1
    addr: _Text = ""


class _MonitorEvent(msgspec.Struct, frozen=True):
    event: _Text
    peer: _EventPeer = _EventPeer()
    details: Annotated[str, msgspec.Meta(max_length=1024)] = ""


def parse_events(content: bytes) -> tuple[list[ReportedPeer], bytes]:
    """Return the processes that MONITOR reports as dead, and the content behind the last whole event.

    Events are JSON objects without a separator. Raises CollectiveFormatError for an object of another form.
    """
    text = content.decode(errors="surrogateescape")
    dead: list[ReportedPeer] = []
    decoder, position = json.JSONDecoder(), 0
    while position < len(text):
        if text[position].isspace():
            position += 1
            continue
        try:
            value, position = decoder.raw_decode(text, position)
            event = msgspec.convert(value, _MonitorEvent)
        except json.JSONDecodeError:
            break  # incomplete: the rest is received later
        except (*DECODING_ERRORS, ValueError) as error:
            message = f"invalid event: {error}"
            raise CollectiveFormatError(message) from error
        if event.event == "PEER_DEAD" and len(dead) < MAX_EVENTS:
            peer = event.peer
            host = peer.host or peer.addr
            dead.append(
                ReportedPeer(printable(host), peer.pid, printable(event.details[:MAX_TEXT]))
            )
    return dead, text[position:].encode(errors="surrogateescape")
