"""The inventory: expected numbers of GPUs and RDMA ports of each node, over time.

CSV with the columns node, gpus, rdma_ports, from, to. `gpus` and `rdma_ports` are whole numbers, or
empty if the number is not specified; times are RFC 3339 with an offset; an empty `to` means no end.
Of two rows of a node that are in force, the later start takes precedence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from collector.files.watched import FileError, Watched, columns_span, rows
from railscope.numeric_text import NumberError, parse_whole

HEADER = ("node", "gpus", "rdma_ports", "from", "to")
MAX_DEVICES = 10_000


@dataclass(frozen=True, slots=True)
class Expected:
    """Expected devices of a node in [start, end); None if not specified."""

    start_ns: int
    end_ns: int
    node: str
    gpus: int | None
    rdma_ports: int | None


@dataclass(frozen=True)
class Inventory:
    """All rows of the file, by node and start."""

    by_node: dict[str, tuple[Expected, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, found: Iterable[Expected]) -> Inventory:
        """Build an inventory from rows in any order."""
        grouped: dict[str, list[Expected]] = {}
        for row in found:
            grouped.setdefault(row.node, []).append(row)
        return cls({
            node: tuple(sorted(some, key=lambda row: row.start_ns))
            for node, some in sorted(grouped.items())
        })  # fmt: skip

    def __iter__(self) -> Iterator[Expected]:
        return (row for some in self.by_node.values() for row in some)

    def at(self, instant_ns: int) -> dict[str, Expected]:
        """Expected devices of each node in the inventory at an instant."""
        found: dict[str, Expected] = {}
        for row in self:
            if row.start_ns <= instant_ns < row.end_ns:
                found[row.node] = row
        return found

    def removed(self, node: str, instant_ns: int) -> bool:
        """True if a node was in the inventory before an instant, and is not at that instant."""
        rows = self.by_node.get(node, ())
        ended = any(row.end_ns <= instant_ns for row in rows)
        return ended and not any(row.start_ns <= instant_ns < row.end_ns for row in rows)


def parse(text: str) -> Inventory:
    """Parse the inventory from the text of a file. Raises FileError that names line and column."""
    found: dict[tuple[str, int], Expected] = {}
    for number, (node, gpus, rdma_ports, start, end) in rows(text, HEADER):
        line = f"line {number}"
        if not node:
            message = f"{line}, node: it is empty"
            raise FileError(message)
        row = Expected(
            *columns_span(start, end, line),
            node,
            _count(gpus, f"{line}, gpus"),
            _count(rdma_ports, f"{line}, rdma_ports"),
        )
        if (node, row.start_ns) in found:
            message = f"{line}: another row of {node} begins at the same instant"
            raise FileError(message)
        found[node, row.start_ns] = row
    return Inventory.of(found.values())


def _count(text: str, where: str) -> int | None:
    if not text:
        return None
    try:
        return parse_whole(text, MAX_DEVICES + 1)
    except NumberError as error:
        message = f"{where}: {error}"
        raise FileError(message) from error


def inventory_file(path: Path | None) -> Watched[Inventory]:
    """The watched inventory file of a path."""
    return Watched("inventory", path, parse, Inventory())
