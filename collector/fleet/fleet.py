"""The fleet: the current state of all nodes as columns.

Nodes of one layout share a sheet: one row per node, one column per reading. A frame updates a row
by index; views compute on whole blocks of rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from collector.fleet.layout import Layout
from collector.fleet.sheet import Block, Sheet, Waiting
from railscope.wire import Batch

_PACES, _LONGEST_NS = 2, 300_000_000_000
"""Freshness limit of slow streams, in periods of the stream, and its maximum.

A stream with a period of one minute is stale after two minutes.
"""


@dataclass(slots=True)
class Row:
    """Location of one stream of a node, and identity of its last frame."""

    sheet: Sheet
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
    """A node: its streams, and facts from its envelopes."""

    name: str
    rows: dict[str, Row] = field(default_factory=dict)
    agent_version: str = ""
    clock_offset_ns: int = 0
    instant_ns: int = 0
    stream_instants_ns: dict[str, int] = field(default_factory=dict)
    """Of the newest frame of each stream; kept across a restart, unlike the frames themselves."""


class Update(NamedTuple):
    """A batch: its last frame updates a node, and its first one may be the base of a rate."""

    node: str
    run: str
    boot_id: str
    layout: Layout
    batch: Batch
    instant_ns: int
    """Of the last frame, on the collector's clock."""


class Fleet:
    """All nodes by name, all rows by layout."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.touched: set[str] = set()
        """Nodes with schemas or rows that changed since a reader last emptied this set."""
        self._sheets: dict[int, Sheet] = {}

    def blocks(self) -> Iterator[Block]:
        """Yield every block that contains a node."""
        for sheet in list(self._sheets.values()):
            yield from sheet.blocks

    def schemas(self) -> set[bytes]:
        """Return the schemas of the current state."""
        return {row.schema for node in self.nodes.values() for row in node.rows.values()}

    def drop_empty_sheets(self) -> None:
        """Release the memory of layouts without nodes."""
        for key, sheet in list(self._sheets.items()):
            if not sheet.rows:
                del self._sheets[key]

    def fresh(self, block: Block, fresh_from_ns: int, now_ns: int) -> npt.NDArray[np.intp]:
        """Return the fresh rows, including slow streams of nodes that still report."""
        young = block.instants_ns >= max(fresh_from_ns, 1)
        slow = ~young & (block.lasts_ns > 0) & (block.instants_ns + block.lasts_ns >= now_ns)
        for index in np.flatnonzero(slow):
            node = self.nodes.get(block.nodes[index] or "")
            young[index] = node is not None and node.instant_ns >= fresh_from_ns
        return np.flatnonzero(young)

    def node(self, name: str) -> Node:
        """Return a node, created if absent."""
        node = self.nodes.get(name)
        if node is None:
            node = self.nodes[name] = Node(name)
        return node

    def apply(self, update: Update) -> bool:
        """Apply a frame to the current state of its node; false if the state is as new or newer."""
        node, batch = self.node(update.node), update.batch
        present = node.rows.get(update.layout.stream)
        if present and _is_no_news(update, present):
            return False
        row = self._row(node, update)
        block, index = row.block, row.index
        known = row.boot_id == update.boot_id and 0 < row.boot_ns < batch.boot_ns[-1]
        same_run = row.run == update.run
        since_ns = row.boot_ns if known else 0
        row.sheet.put(Waiting(block, index, batch, since_ns, known and not same_run))
        if same_run:
            pace_ns = max(update.instant_ns - row.instant_ns, 0)
            block.lasts_ns[index] = min(_PACES * pace_ns, _LONGEST_NS)
        block.instants_ns[index] = update.instant_ns
        row.run, row.boot_id, row.boot_ns = update.run, update.boot_id, batch.boot_ns[-1]
        row.instant_ns = update.instant_ns
        node.stream_instants_ns[update.layout.stream] = update.instant_ns
        node.instant_ns = max(node.stream_instants_ns.values())
        return True

    def _row(self, node: Node, update: Update) -> Row:
        stream, schema = update.layout.stream, update.batch.schema
        row = node.rows.get(stream)
        if row and row.sheet.layout is update.layout:
            if row.schema != schema:
                self.touched.add(node.name)
                # Other entities in the same shape: the previous frame cannot be the base of a rate.
                row.schema, row.boot_ns, row.boot_id = schema, 0, ""
            return row
        if row:
            row.sheet.release(row.block, row.index)
        self.touched.add(node.name)
        sheet = self._sheets.get(id(update.layout))
        if sheet is None:
            sheet = self._sheets[id(update.layout)] = Sheet(update.layout)
        block, index = sheet.take()
        block.nodes[index] = node.name
        row = node.rows[stream] = Row(sheet, block, index, schema)
        return row


def _is_no_news(update: Update, present: Row) -> bool:
    """True if a frame is no newer than the current one, by the boot clock where possible."""
    if present.boot_ns and update.boot_id == present.boot_id:
        return update.batch.boot_ns[-1] <= present.boot_ns
    return update.instant_ns < present.instant_ns
