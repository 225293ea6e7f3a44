"""The fleet: current state of all nodes, and names of their devices.

Nodes with one shape share a sheet: one row per node, one column per reading. A frame updates a row
by index; views compute on whole blocks of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from railscope.device_names import Names, bare_gpu, choose_most_complete, device_key
from railscope.wire import Batch
from railscope_collector.fleet import sheets
from railscope_collector.fleet.names import KnownSchema

_PERIODS, _LONGEST_NS = 2, 300_000_000_000
"""Freshness limit of slow streams, in periods of the stream, and its maximum.

A stream with a period of one minute is stale after two minutes.
"""


SWITCH_PREFIX = "switch/"
"""Start of the names under which switches send frames: those of the collector that polls them, of no agent."""


@dataclass(slots=True)
class StreamRow:
    """Location of one stream of a node, and identity of its last frame."""

    sheet: sheets.LayoutSheet
    block: sheets.SheetBlock
    index: int
    schema: KnownSchema
    run: str = ""
    boot_id: str = ""
    boot_ns: int = 0
    timestamp_ns: int = 0
    """Time of the last frame, on the collector's clock."""


@dataclass(slots=True)
class FleetNode:
    """A node or a switch: its streams, and facts from its envelopes."""

    name: str
    rows: dict[str, StreamRow] = field(default_factory=dict)
    agent_version: str = ""
    clock_offset_ns: int = 0
    timestamp_ns: int = 0
    stream_timestamps_ns: dict[str, int] = field(default_factory=dict)
    """Time of the newest frame of each stream; kept across a restart, unlike the frames themselves."""


class NodeUpdate(NamedTuple):
    """A batch: its last frame updates a node, and its first one may be the base of a rate."""

    node: str
    run: str
    boot_id: str
    schema: KnownSchema
    batch: Batch
    timestamp_ns: int
    """Time of the last frame, on the collector's clock."""


class Fleet:
    """All nodes by name, all rows by shape."""

    def __init__(self) -> None:
        self.nodes: dict[str, FleetNode] = {}
        self.switches: dict[str, FleetNode] = {}
        """Switches by the names under which they send frames. No view contains them among its nodes."""
        self.touched: set[str] = set()
        """Nodes with schemas or rows that changed since a reader last emptied this set."""
        self._sheets: dict[bytes, sheets.LayoutSheet] = {}
        """By the hash of the shape."""

    def blocks(self) -> Iterator[sheets.SheetBlock]:
        """Yield every block that contains a node."""
        for sheet in list(self._sheets.values()):
            yield from sheet.blocks

    def clock_offsets_ns(self, from_ns: int) -> list[int]:
        """Return the lead of the wall clock of each node that has reported since a time."""
        nodes = self.nodes.values()
        return [node.clock_offset_ns for node in nodes if node.timestamp_ns >= from_ns]

    def schemas(self) -> set[bytes]:
        """Return the schemas of the current state."""
        nodes = (*self.nodes.values(), *self.switches.values())
        return {row.schema.digest for node in nodes for row in node.rows.values()}

    def shapes(self) -> set[bytes]:
        """Return the shapes with rows."""
        return set(self._sheets)

    def drop_empty_sheets(self) -> None:
        """Release the memory of layouts without nodes."""
        for key, sheet in list(self._sheets.items()):
            if not sheet.rows:
                del self._sheets[key]

    def fresh_rows(
        self, block: sheets.SheetBlock, fresh_from_ns: int, now_ns: int
    ) -> npt.NDArray[np.intp]:
        """Return the fresh rows, including slow streams of nodes that still report."""
        is_fresh = block.timestamps_ns >= max(fresh_from_ns, 1)
        is_slow = (
            ~is_fresh & (block.lasts_ns > 0) & (block.timestamps_ns + block.lasts_ns >= now_ns)
        )
        for index in np.flatnonzero(is_slow):
            node = self.find(block.nodes[index] or "")
            # Only while the node still reports: a slow stream of a node that ended is not fresh for five minutes more.
            is_fresh[index] = node is not None and node.timestamp_ns >= fresh_from_ns
        return np.flatnonzero(is_fresh)

    def find(self, name: str) -> FleetNode | None:
        """Return a node or a switch; None if it has never reported."""
        return self._senders(name).get(name)

    def get_or_add_node(self, name: str) -> FleetNode:
        """Return a node or a switch, created if absent."""
        senders = self._senders(name)
        node = senders.get(name)
        if node is None:
            node = senders[name] = FleetNode(name)
        return node

    def _senders(self, name: str) -> dict[str, FleetNode]:
        return self.switches if name.startswith(SWITCH_PREFIX) else self.nodes

    def apply(self, update: NodeUpdate) -> bool:
        """Apply a frame to the current state of its node; false if the state is as new or newer."""
        node = self.get_or_add_node(update.node)
        batch, present = update.batch, node.rows.get(update.schema.layout.stream)
        if present and _is_outdated(update, present):
            return False
        row = self._row(node, update)
        block, index, timestamp_ns = row.block, row.index, update.timestamp_ns
        # Counters of the kernel and of devices continue over a restart of the agent, but not over a boot.
        is_continued = row.boot_id == update.boot_id and 0 < row.boot_ns < batch.boot_ns[-1]
        same_run = row.run == update.run
        since_ns = row.boot_ns if is_continued else 0
        row.sheet.put(
            sheets.PendingBatch(block, index, batch, since_ns, is_continued and not same_run)
        )
        # A restart of the agent is a pause, and no period of the stream.
        if same_run:
            period_ns = max(timestamp_ns - row.timestamp_ns, 0)
            block.lasts_ns[index] = min(_PERIODS * period_ns, _LONGEST_NS)
        block.timestamps_ns[index] = timestamp_ns
        row.run, row.boot_id, row.boot_ns = update.run, update.boot_id, batch.boot_ns[-1]
        row.timestamp_ns = timestamp_ns
        stream = update.schema.layout.stream
        before_ns = node.stream_timestamps_ns.get(stream)
        node.stream_timestamps_ns[stream] = timestamp_ns
        # The maximum over all streams only where the newest one went back, as a clock was corrected.
        if timestamp_ns >= node.timestamp_ns:
            node.timestamp_ns = timestamp_ns
        elif before_ns == node.timestamp_ns:
            node.timestamp_ns = max(node.stream_timestamps_ns.values())
        return True

    def _row(self, node: FleetNode, update: NodeUpdate) -> StreamRow:
        schema, layout = update.schema, update.schema.layout
        row = node.rows.get(layout.stream)
        if row and row.sheet.layout.shape == layout.shape:
            before = row.schema
            row.schema = schema
            if before is not schema:
                self.touched.add(node.name)
            if before.names.keys != schema.names.keys or row.boot_id != update.boot_id:
                # Other devices, or another boot clock: the previous frame cannot be the base of a rate, and the slots of
                # its last minute are others. Other facts of the same devices change nothing.
                row.boot_ns, row.boot_id = 0, ""
                row.block.begin(row.index)
            return row
        if row:
            row.sheet.release(row.block, row.index)
        self.touched.add(node.name)
        sheet = self._sheets.get(layout.shape)
        if sheet is None:
            sheet = self._sheets[layout.shape] = sheets.LayoutSheet(layout)
        block, index = sheet.allocate_row()
        block.nodes[index] = node.name
        row = node.rows[layout.stream] = StreamRow(sheet, block, index, schema)
        return row


def _is_outdated(update: NodeUpdate, present: StreamRow) -> bool:
    """True unless a frame is newer than the current one, by the boot clock where possible."""
    # The boot clock is not affected by a step of a wall clock.
    if present.boot_ns and update.boot_id == present.boot_id:
        return update.batch.boot_ns[-1] <= present.boot_ns
    return update.timestamp_ns < present.timestamp_ns


NamesOfGpu: TypeAlias = Callable[[str, str], Names]
"""Names of a GPU by its node and its UUID."""


def names_of(node: FleetNode | None, kind: str, key: tuple[str, ...]) -> Names | None:
    """Return names of the device that contains an entity of a node; None if there are none."""
    if node is None:
        return None
    key_of_device = device_key(kind, key)
    names = (row.schema.device_names for row in list(node.rows.values()))
    return choose_most_complete(each[key_of_device] for each in names if key_of_device in each)


def gpu_names(node: FleetNode | None, uuid: str) -> Names:
    """Return names of a GPU by its UUID; the other names are empty if its node does not report them."""
    return names_of(node, "gpu", (uuid,)) or bare_gpu(uuid)
