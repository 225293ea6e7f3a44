"""Grid of nodes by rails: a table with names and links of few nodes, else SVG with one path for each state.

Nodes are columns, worst first, in bands of equal width; rails are the rows of a band. Neighbours of the same
state are one segment of a path; lines in the colour of the background separate them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import msgspec

from railscope import figures
from railscope.api import Node
from railscope_collector.diagnosis.entity_states import LETTERS

MAX_NODES = 4096
MAX_NAMED = 40
"""Nodes of a grid with a name, a title and a link for each cell: more have no room for their names."""
MAX_RAILS = 16
_WIDTHS = ((256, 64), (1024, 128), (MAX_NODES, 256))
"""Columns of a band, by the largest number of nodes."""
_CELL_PIXELS = 14
_GAP = 1
_NAMES = {letter: state for state, letter in LETTERS.items() if state}


class RailGrid(msgspec.Struct, frozen=True):
    """Nodes in the order of the columns, and the states of their rails."""

    nodes: tuple[str, ...]
    cells: tuple[str, ...]
    """Letters of each node, from rail 0 on."""
    rails: int
    columns: int
    """Columns of a band."""
    omitted: int
    """Nodes beyond the largest number, which are the least urgent ones."""
    caption: str

    @property
    def is_named(self) -> bool:
        """True if each cell has its own element."""
        return len(self.nodes) <= MAX_NAMED

    def states_on(self, rail: int) -> list[tuple[str, str]]:
        """Return the nodes with the state of their cells on a rail; empty for a rail that a node does not have."""
        letters = (cell[rail : rail + 1] or LETTERS[""] for cell in self.cells)
        return [
            (node, _NAMES.get(letter, "")) for node, letter in zip(self.nodes, letters, strict=True)
        ]

    @property
    def bands(self) -> int:
        """Number of bands."""
        return -(-len(self.nodes) // self.columns) if self.nodes else 0

    @property
    def band_rows(self) -> int:
        """Rows from one band to the next."""
        return self.rails + _GAP

    @property
    def height(self) -> int:
        """Height in cells."""
        return self.bands * self.band_rows - _GAP

    @property
    def pixels(self) -> int:
        """Largest useful width in pixels."""
        return self.columns * _CELL_PIXELS

    def paths(self) -> list[tuple[str, str]]:
        """Return states with their paths."""
        segments: dict[str, list[str]] = {name: [] for name in _NAMES.values()}
        for band in range(self.bands):
            part = self.cells[band * self.columns : (band + 1) * self.columns]
            for rail in range(self.rails):
                row = [cell[rail : rail + 1] or "-" for cell in part]
                column = 0
                for letter, run in groupby(row):
                    length = len(list(run))
                    if letter in _NAMES:
                        y = band * self.band_rows + rail
                        segments[_NAMES[letter]].append(f"M{column} {y}.5h{length}")
                    column += length
        return [(state, "".join(parts)) for state, parts in segments.items() if parts]

    def separators(self) -> str:
        """Return the path of the lines between cells."""
        if not self.nodes:
            return ""
        columns = "".join(f"M{column} 0v{self.height}" for column in range(1, self.columns))
        rows = "".join(
            f"M0 {band * self.band_rows + rail}h{self.columns}"
            for band in range(self.bands)
            for rail in range(1, self.rails)
        )
        return columns + rows


def make_grid(rows: Sequence[Node]) -> RailGrid:
    """Return the grid of nodes in their order."""
    shown = rows[:MAX_NODES]
    rails = min(max((len(row.rails) for row in shown), default=0), MAX_RAILS)
    columns = next(width for largest, width in _WIDTHS if len(shown) <= largest)
    cells = tuple(row.rails[:rails] for row in shown)
    counts = {name: sum(cell.count(letter) for cell in cells) for letter, name in _NAMES.items()}
    states = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
    return RailGrid(
        tuple(row.node for row in shown),
        cells,
        rails,
        min(columns, max(len(shown), 1)),
        len(rows) - len(shown),
        f"{figures.count(len(shown), 'node')} by {figures.count(rails, 'rail')}, worst first: {states or 'no rails'}",
    )
