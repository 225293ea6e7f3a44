"""Clocks of recorded nodes: their offsets from that of the collector, by the arrivals of their frames or heartbeats.

Captures whose times contradict those of the others are left out.
"""

from __future__ import annotations

import csv
from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median_low
from typing import NamedTuple

import click

from railscope import capture, timestamps
from railscope_collector.diagnosis.cluster_diagnosis import SLOT_SECONDS, Receipt

MAX_ARRIVALS = 10_000_000
MAX_RANGE_NS = 7 * 86_400 * timestamps.SECOND_NS
"""Longest range of captures or of a frame log."""
MAX_SLOTS = MAX_RANGE_NS // timestamps.SECOND_NS // SLOT_SECONDS
MAX_DEVIATION_NS = 86_400 * timestamps.SECOND_NS
"""Deviation of a line from the others beyond which it is ignored: an offset from that of its node, a receipt from the captures."""
BACKLOG_NS, MIN_DELAY_NS = 10 * timestamps.SECOND_NS, 2 * timestamps.SECOND_NS
"""Time in which a backlog is received, and least delay that distinguishes it from other variation."""
_HEADER = ["node", "sent", "received"]


def warn(message: str) -> None:
    """Print a warning: the diagnosis continues without what it is about."""
    click.echo(f"Warning: {message}", err=True)


class DiagnoseError(click.ClickException):
    """Captures or a frame log cannot be read; the message states the file and the remedy."""

    exit_code = 2


@dataclass(slots=True)
class NodeClocks:
    """Offsets of the nodes' clocks over time: times at which nodes sent, and their offsets in nanoseconds."""

    sent_ns: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    offsets_ns: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    receipts: list[Receipt] = field(default_factory=list)

    def add(self, node: str, sent_ns: int, received_ns: int) -> None:
        """Add an arrival; arrivals of a node are in the order of their receipt."""
        self.sent_ns[node].append(sent_ns)
        self.offsets_ns[node].append(received_ns - sent_ns)
        self.receipts.append(Receipt(received_ns, node, sent_ns - received_ns))

    def clock(self, node: str) -> Callable[[int], int]:
        """Return the conversion of a node's wall clock to the collector's, by the last arrival before a time."""
        sent_ns, offsets_ns = self.sent_ns.get(node), self.offsets_ns.get(node)
        if not sent_ns or not offsets_ns:
            return lambda wall_ns: wall_ns

        def convert(wall_ns: int) -> int:
            return wall_ns + offsets_ns[max(bisect_right(sent_ns, wall_ns) - 1, 0)]

        return convert


class _Arrival(NamedTuple):
    line: int
    node: str
    sent_ns: int
    received_ns: int


def read_arrivals(path: Path, starts_ns: Sequence[int]) -> NodeClocks:
    """Read the arrivals beside captures, which start at some times; none if there is no file.

    Lines that contradict the captures, or the others of their node, are ignored with a warning. Raises DiagnoseError.
    """
    clocks = NodeClocks()
    if not path.exists():
        return clocks
    try:
        capture.check_regular_file(path)
        with path.open(newline="", encoding="utf-8-sig") as file:
            arrivals = list(_parse(path, file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        message = f"cannot read {path}: {getattr(error, 'strerror', None) or error}"
        raise DiagnoseError(message) from error
    ignored = set(_contradictions(arrivals, sorted(starts_ns)))
    if ignored:
        warn(
            f"ignored {len(ignored)} of {len(arrivals)} lines of {path}, the first is line {min(ignored).line}: "
            "expected nanoseconds since 1970, within a day of the captures and of the other lines of the node"
        )
    used = (each for each in arrivals if each not in ignored)
    arrivals = sorted(used, key=lambda each: each.received_ns)
    offsets_ns = _undelayed_offsets(arrivals)
    for arrival, offset_ns in zip(arrivals, offsets_ns, strict=True):
        clocks.add(arrival.node, arrival.received_ns - offset_ns, arrival.received_ns)
    return clocks


def _undelayed_offsets(arrivals: Sequence[_Arrival]) -> list[int]:
    """Return the offset of each arrival, in the order of receipt; of a backlog, that of its last one.

    What waited in a spool was received late: its delay does not belong to the clock.
    """
    found = list[int]()
    later: dict[str, deque[tuple[int, int]]] = defaultdict(deque)
    for each in reversed(arrivals):
        offset_ns, window = each.received_ns - each.sent_ns, later[each.node]
        # From the left, receipts become later and offsets smaller: the last one is the smallest of the window.
        while window and window[0][1] >= offset_ns:
            window.popleft()
        window.appendleft((each.received_ns, offset_ns))
        while window[-1][0] > each.received_ns + BACKLOG_NS:
            window.pop()
        is_delayed = offset_ns - window[-1][1] > MIN_DELAY_NS
        found.append(window[-1][1] if is_delayed else offset_ns)
    return found[::-1]


def _parse(path: Path, lines: Iterable[str]) -> Iterator[_Arrival]:
    for number, row in enumerate(csv.reader(lines), 1):
        if not row or (number == 1 and row == _HEADER):
            continue
        if number > MAX_ARRIVALS:
            message = f"too many lines: {path}: expected at most {MAX_ARRIVALS}"
            raise DiagnoseError(message)
        try:
            node, sent, received = row
            yield _Arrival(number, node, int(sent), int(received))
        except ValueError as error:
            shown = ",".join(row)[:80]
            message = f"invalid line: {path}:{number}: {shown!r}: expected node,sent,received in nanoseconds"
            raise DiagnoseError(message) from error


def _contradictions(arrivals: Sequence[_Arrival], starts_ns: Sequence[int]) -> Iterator[_Arrival]:
    """Yield the lines that cannot be right, whatever the clock of their node.

    The start of any capture suffices for a receipt: that of a node with a wrong clock is on another time.
    """
    offsets = defaultdict(list)
    for each in arrivals:
        offsets[each.node].append(each.received_ns - each.sent_ns)
    # The median: a few wrong lines do not change it.
    usual = {node: median_low(found) for node, found in offsets.items()}
    for each in arrivals:
        offset_ns = each.received_ns - each.sent_ns
        if (
            not 0 <= each.sent_ns <= timestamps.FOREVER_NS
            or _distance(each.received_ns, starts_ns) > MAX_RANGE_NS + MAX_DEVIATION_NS
            or abs(offset_ns - usual[each.node]) > MAX_DEVIATION_NS
        ):
            yield each


def _distance(timestamp_ns: int, sorted_ns: Sequence[int]) -> int:
    """Return the distance of a time from the nearest of some others."""
    place = bisect_left(sorted_ns, timestamp_ns)
    return min(abs(timestamp_ns - near) for near in sorted_ns[max(place - 1, 0) : place + 1])


# Ranges of captures -------------------------------------------------------------------------------


class CaptureRange(NamedTuple):
    """A capture, its node, and the range of its time: on the node's clock, or on that of the collector."""

    directory: Path
    node: str
    start_ns: int
    end_ns: int


def find_captures(directory: Path) -> list[CaptureRange]:
    """Return the captures below a directory; warn of invalid ones. Raises DiagnoseError."""
    found = []
    for path in sorted(directory.iterdir()):
        if not _has_metadata(path):
            continue
        try:
            about = capture.read_metadata(path)
        except capture.CaptureError as error:
            warn(f"{error}; the node is unknown")
            continue
        start_ns, end_ns = about.started_wall_ns, about.started_wall_ns + about.duration_ns
        if not 0 <= start_ns <= end_ns <= timestamps.FOREVER_NS:
            warn(
                f"invalid capture: {path}: from {start_ns} to {end_ns} ns: expected times since 1970; the node is unknown"
            )
            continue
        found.append(CaptureRange(path, about.node, start_ns, end_ns))
    if not found:
        message = (
            f"no captures in {directory}: expected a subdirectory with capture.toml for each node"
        )
        raise DiagnoseError(message)
    names = [each.node for each in found]
    if twice := next((name for name in names if names.count(name) > 1), ""):
        message = f"two captures of node {twice!r} in {directory}: expected one; fix: move one to another directory"
        raise DiagnoseError(message)
    return found


def _has_metadata(directory: Path) -> bool:
    """True if a directory contains `capture.toml`, whatever that is, or cannot be searched for it."""
    try:
        (directory / "capture.toml").lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True  # the read of the file reports the reason
    return True


def align_captures(captures: Sequence[CaptureRange], clocks: NodeClocks) -> list[CaptureRange]:
    """Return the captures with their ranges on the collector's clock.

    If these are too long together, those farthest from the median are left out with a warning. Raises DiagnoseError if
    the others are not the majority: it is unknown which clocks are wrong.
    """
    aligned = []
    for each in captures:
        clock = clocks.clock(each.node)
        aligned.append(each._replace(start_ns=clock(each.start_ns), end_ns=clock(each.end_ns)))
    usual_start_ns = median_low(each.start_ns for each in aligned)
    usual_end_ns = median_low(each.end_ns for each in aligned)

    def deviation_ns(each: CaptureRange) -> int:
        return max(abs(each.start_ns - usual_start_ns), abs(each.end_ns - usual_end_ns))

    start_ns, end_ns = usual_start_ns, usual_end_ns
    left_out = dict[str, CaptureRange]()
    for each in sorted(aligned, key=deviation_ns):
        bounds = min(start_ns, each.start_ns), max(end_ns, each.end_ns)
        if slots_of(*bounds)[1] > MAX_SLOTS:
            left_out[each.node] = each
        else:
            start_ns, end_ns = bounds
    if len(left_out) * 2 >= len(aligned):
        raise range_error(
            min(each.start_ns for each in aligned), max(each.end_ns for each in aligned)
        )
    for each in sorted(left_out.values()):
        owner, fix = "node's", "correct started_wall_ns in its capture.toml, or add arrivals.csv"
        if each.node in clocks.sent_ns:
            owner, fix = "collector's", "correct arrivals.csv, or move it to another directory"
        warn(
            f"capture left out: {each.directory}: {_format_range(each.start_ns, each.end_ns)} on the {owner} clock: "
            f"expected at most 7 days together with the others, {_format_range(start_ns, end_ns)}; fix: {fix}; "
            "the node is unknown"
        )
    return [each for each in aligned if each.node not in left_out]


def slots_of(start_ns: int, end_ns: int) -> tuple[int, int]:
    """Return the start of the first slot of a range, and the number of its slots."""
    slot_ns = SLOT_SECONDS * timestamps.SECOND_NS
    first_ns = start_ns // slot_ns * slot_ns
    return first_ns, max(-(-(end_ns - first_ns) // slot_ns), 1)  # the last one may be a part


def range_error(start_ns: int, end_ns: int) -> DiagnoseError:
    """Return the error of a range that is too long."""
    message = f"range too long: {_format_range(start_ns, end_ns)}: expected at most 7 days; fix: select a part, or check the nodes' clocks"
    return DiagnoseError(message)


def _format_range(start_ns: int, end_ns: int) -> str:
    """Format a range; arrivals can shift it beyond the times that have a text."""
    start, end = (
        timestamps.format_timestamp(min(max(timestamp_ns, 0), timestamps.FOREVER_NS - 1))
        for timestamp_ns in (start_ns, end_ns)
    )
    return f"{start} to {end}"
