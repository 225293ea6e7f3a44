"""The inventory: expected numbers of GPUs and RDMA ports of each node, over time.

CSV with the columns node, gpus, rdma_ports, from, to. `gpus` and `rdma_ports` are whole numbers, or empty if the
number is not specified; times are RFC 3339 with an offset; an empty `to` means no end. Of two rows
of a node that are in force, the later start takes precedence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter

from railscope import convert_errors
from railscope.untrusted_text import NumberError, parse_whole
from railscope_collector.files.watched_file import (
    SPAN_COLUMNS,
    FileError,
    group_rows,
    parse_span,
    read_rows,
)

INVENTORY_HEADER = ("node", "gpus", "rdma_ports", "from", "to")
MAX_DEVICES = 10_000


@dataclass(frozen=True, slots=True)
class ExpectedDevices:
    """Expected devices of a node in [start, end); None if not specified."""

    start_ns: int
    end_ns: int
    node: str
    gpus: int | None
    rdma_ports: int | None


@dataclass(frozen=True)
class DeviceInventory:
    """All rows of the file, by node and start."""

    by_node: dict[str, tuple[ExpectedDevices, ...]] = field(default_factory=dict)

    @classmethod
    def from_rows(cls, rows: Iterable[ExpectedDevices]) -> DeviceInventory:
        """Build an inventory from rows in any order."""
        return cls(
            dict(sorted(group_rows(rows, attrgetter("node"), attrgetter("start_ns")).items()))
        )

    def __iter__(self) -> Iterator[ExpectedDevices]:
        return (row for rows in self.by_node.values() for row in rows)

    def expected_devices(self, timestamp_ns: int) -> dict[str, ExpectedDevices]:
        """Expected devices of each node in the inventory at an instant."""
        devices: dict[str, ExpectedDevices] = {}
        for row in self:
            if row.start_ns <= timestamp_ns < row.end_ns:
                # In order of start: the later row replaces the earlier one.
                devices[row.node] = row
        return devices

    def is_removed(self, node: str, timestamp_ns: int) -> bool:
        """True if a node was in the inventory before an instant, and is not at that instant."""
        rows = self.by_node.get(node, ())
        ended = any(row.end_ns <= timestamp_ns for row in rows)
        return ended and not any(row.start_ns <= timestamp_ns < row.end_ns for row in rows)


def parse_inventory(text: str) -> DeviceInventory:
    """Parse the inventory from the text of a file. Raises FileError that names line and column."""
    rows_by_start: dict[tuple[str, int], ExpectedDevices] = {}
    for number, (node, gpus, rdma_ports, start, end) in read_rows(text, INVENTORY_HEADER):
        line = f"line {number}"
        if not node:
            message = f"{line}: empty node: expected a name"
            raise FileError(message)
        row = ExpectedDevices(
            *parse_span(start, end or None, line, SPAN_COLUMNS),
            node,
            _count(gpus, f"{line}, gpus"),
            _count(rdma_ports, f"{line}, rdma_ports"),
        )
        if (node, row.start_ns) in rows_by_start:
            message = f"{line}: duplicate row of {node}: expected one per start time"
            raise FileError(message)
        rows_by_start[node, row.start_ns] = row
    return DeviceInventory.from_rows(rows_by_start.values())


def _count(text: str, location: str) -> int | None:
    if not text:
        return None
    with convert_errors(NumberError, FileError, f"{location}: "):
        return parse_whole(text, MAX_DEVICES + 1)
