"""The fleet: the present state of all nodes as columns.

Nodes of one layout share tables: one row a node, one column a reading. A frame updates a row by
index; views work on whole tables. Tables are cut into blocks of a few dozen rows, so that a long
computation over the fleet can let others go first between two blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from collector.decode import Codes, Integers
from collector.layout import Layout
from railscope.reading import PRESENT

BLOCK_ROWS = 64
_NARROW_RANGE = 1 << 32
_PACES, _LONGEST_NS = 2, 300_000_000_000
"""A stream that comes each minute is not missing before two; and no frame lasts for ever."""
_NS = 1e9


class Block:
    """A few rows of one layout. `rates` holds the rate of each counter, NaN where there is none."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.values = np.zeros((BLOCK_ROWS, layout.columns), np.int64)
        self.reasons = np.zeros((BLOCK_ROWS, layout.columns), np.uint8)
        self.rates = np.full((BLOCK_ROWS, len(layout.counters)), np.nan, np.float32)
        self.instants_ns = np.zeros(BLOCK_ROWS, np.int64)
        self.lasts_ns = np.zeros(BLOCK_ROWS, np.int64)
        """How long a frame speaks of the present where its stream is slow, by the stream's pace."""
        self.nodes: list[str | None] = [None] * BLOCK_ROWS


@dataclass(slots=True)
class Row:
    """Where one stream of a node lives, and what its last frame was."""

    block: Block
    index: int
    schema: bytes
    run: str = ""
    boot_id: str = ""
    boot_ns: int = 0
    instant_ns: int = 0
    """Of the last frame, on the collector's clock."""


@dataclass(slots=True)
class Node:
    """A node: its streams, and what its envelopes said."""

    name: str
    rows: dict[str, Row] = field(default_factory=dict)
    agent_version: str = ""
    clock_offset_ns: int = 0
    instant_ns: int = 0


@dataclass(frozen=True, slots=True)
class Update:
    """The last frame of a batch, and its first one as the base of a rate."""

    node: str
    run: str
    boot_id: str
    schema: bytes
    layout: Layout
    first: Integers
    first_reasons: Codes
    first_boot_ns: int
    last: Integers
    last_boot_ns: int
    reasons: Codes
    instant_ns: int


class Fleet:
    """All nodes by name, all blocks by layout."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.touched: set[str] = set()
        """Nodes that have another schema or row than they had when someone emptied this."""
        self._blocks: dict[int, list[Block]] = {}
        self._layouts: dict[int, Layout] = {}
        self._free: dict[int, list[tuple[Block, int]]] = {}

    def blocks(self) -> Iterator[Block]:
        """Every block that has a node in it."""
        for blocks in list(self._blocks.values()):
            yield from blocks

    def fresh(self, block: Block, fresh_from_ns: int, now_ns: int) -> npt.NDArray[np.intp]:
        """The rows that speak of the present, slow streams of nodes that still report among them."""
        young = block.instants_ns >= max(fresh_from_ns, 1)
        slow = ~young & (block.lasts_ns > 0) & (block.instants_ns + block.lasts_ns >= now_ns)
        for index in np.flatnonzero(slow):
            node = self.nodes.get(block.nodes[index] or "")
            young[index] = node is not None and node.instant_ns >= fresh_from_ns
        return np.flatnonzero(young)

    def node(self, name: str) -> Node:
        """A node; made known if it was not."""
        return self.nodes.setdefault(name, Node(name))

    def apply(self, update: Update) -> bool:
        """Make a frame the present state of its node; false if a newer one already is."""
        node = self.node(update.node)
        present = node.rows.get(update.layout.stream)
        if present and _is_older(update, present):
            return False
        row = self._row(node, update)
        block, index = row.block, row.index
        self._rate(row, update)
        block.values[index] = update.last
        block.reasons[index] = update.reasons
        block.instants_ns[index] = update.instant_ns
        if row.run == update.run:
            pace_ns = max(update.instant_ns - row.instant_ns, 0)
            block.lasts_ns[index] = min(_PACES * pace_ns, _LONGEST_NS)
        row.run, row.boot_id, row.boot_ns = update.run, update.boot_id, update.last_boot_ns
        row.instant_ns = update.instant_ns
        node.instant_ns = max(row.instant_ns for row in node.rows.values())
        return True

    def _row(self, node: Node, update: Update) -> Row:
        stream = update.layout.stream
        row = node.rows.get(stream)
        if row and row.block.layout is update.layout:
            if row.schema != update.schema:
                self.touched.add(node.name)
                # Other entities behind the same shape: nothing before can be a base of a rate.
                row.schema, row.boot_ns, row.boot_id = update.schema, 0, ""
            return row
        if row:
            self._release(row)
        self.touched.add(node.name)
        block, index = self._take(update.layout)
        block.nodes[index] = node.name
        node.rows[stream] = Row(block, index, update.schema)
        return node.rows[stream]

    def _take(self, layout: Layout) -> tuple[Block, int]:
        key = id(layout)
        self._layouts[key] = layout
        free = self._free.setdefault(key, [])
        if not free:
            block = Block(layout)
            self._blocks.setdefault(key, []).append(block)
            free.extend((block, index) for index in reversed(range(BLOCK_ROWS)))
        return free.pop()

    def _release(self, row: Row) -> None:
        row.block.nodes[row.index] = None
        row.block.instants_ns[row.index] = row.block.lasts_ns[row.index] = 0
        self._free[id(row.block.layout)].append((row.block, row.index))

    def _rate(self, row: Row, update: Update) -> None:
        """Rates of the counters from the frame before; from the batch itself where there is none."""
        block, index = row.block, row.index
        counters = update.layout.counters
        known = row.boot_id == update.boot_id and 0 < row.boot_ns < update.last_boot_ns
        before = block.values[index] if known else update.first
        before_ns = row.boot_ns if known else update.first_boot_ns
        elapsed_ns = update.last_boot_ns - before_ns
        if elapsed_ns <= 0:
            block.rates[index] = np.nan
            return
        steps = (update.last - before).take(counters)
        if (steps < 0).any():
            after = update.last.take(counters)
            resumed = update.layout.narrow & (known and row.run != update.run)
            block.rates[index] = increase(before.take(counters), after, resumed)
            block.rates[index] *= _NS / elapsed_ns
        else:
            block.rates[index] = steps * (_NS / elapsed_ns)
        if update.reasons.any():
            block.rates[index, update.reasons.take(counters) != PRESENT] = np.nan
        base_reasons = block.reasons[index] if known else update.first_reasons
        if base_reasons.any():
            block.rates[index, base_reasons.take(counters) != PRESENT] = np.nan


def _is_older(update: Update, present: Row) -> bool:
    """Whether a frame is older than the present one: by the boot clock, which knows best."""
    if present.boot_ns and update.boot_id == present.boot_id:
        return update.last_boot_ns < present.boot_ns
    return update.instant_ns < present.instant_ns


def increase(
    before: Integers, after: Integers, resumed: npt.NDArray[np.bool_]
) -> npt.NDArray[np.float64]:
    """How far counters went on, where some of them fell.

    A counter that falls has been reset and has counted its present value since. Agents carry
    counters of 32 bits on to 64, and tell a wrap from a reset themselves. `resumed` says of which
    counters an agent that was started again, and forgot how often they had wrapped, tells the low
    32 bits: those went on if by that count they are less than a quarter of the range ahead.
    """
    steps = after - before
    fallen = steps < 0
    if not fallen.any():
        return steps.astype(np.float64)
    ahead = steps % _NARROW_RANGE
    low_bits = (after >= 0) & (after < _NARROW_RANGE) & (ahead < _NARROW_RANGE >> 2)
    unsigned_after = after.view(np.uint64).astype(np.float64)
    result = np.where(resumed & low_bits, ahead.astype(np.float64), unsigned_after)
    return np.where(fallen, result, steps.astype(np.float64))
