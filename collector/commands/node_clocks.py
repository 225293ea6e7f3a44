"""Clocks of recorded nodes: their offsets from that of the collector, by the arrivals of their frames or heartbeats."""

from __future__ import annotations

import csv
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median_low
from typing import NamedTuple

import click

from collector.diagnosis.cluster_diagnosis import Receipt
from railscope import timestamps

MAX_ARRIVALS = 10_000_000
MAX_RANGE_NS = 7 * 86_400 * timestamps.SECOND_NS
"""Longest range of captures or of a frame log."""
MAX_DEVIATION_NS = 86_400 * timestamps.SECOND_NS
"""Deviation of a line from the others beyond which it is ignored: an offset from that of its node, a receipt from the captures."""
BACKLOG_NS, MIN_DELAY_NS = 10 * timestamps.SECOND_NS, 2 * timestamps.SECOND_NS
"""Time in which a backlog is received, and least delay that distinguishes it from other variation."""
_HEADER = ["node", "sent", "received"]


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
        with path.open(newline="", encoding="utf-8-sig") as file:
            arrivals = list(_parse(path, file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        message = f"cannot read {path}: {error}"
        raise DiagnoseError(message) from error
    ignored = set(_contradictions(arrivals, median_low(starts_ns)))
    if ignored:
        click.echo(
            f"warning: ignored {len(ignored)} of {len(arrivals)} lines of {path}, the first is line {min(ignored).line}: "
            "expected nanoseconds since 1970, within a day of the captures and of the other lines of the node",
            err=True,
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


def _contradictions(arrivals: Sequence[_Arrival], start_ns: int) -> Iterator[_Arrival]:
    """Yield the lines that cannot be right, whatever the clock of their node."""
    offsets = defaultdict(list)
    for each in arrivals:
        offsets[each.node].append(each.received_ns - each.sent_ns)
    usual = {node: median_low(found) for node, found in offsets.items()}
    for each in arrivals:
        offset_ns = each.received_ns - each.sent_ns
        if (
            not 0 <= each.sent_ns <= timestamps.FOREVER_NS
            or abs(each.received_ns - start_ns) > MAX_RANGE_NS + MAX_DEVIATION_NS
            or abs(offset_ns - usual[each.node]) > MAX_DEVIATION_NS
        ):
            yield each
