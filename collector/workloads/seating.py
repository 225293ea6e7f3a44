"""The GPU and the job of each column of the fleet.

One table per block of the fleet, with the seats of the roster. Only the rows of nodes with changed
jobs or schemas are computed again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from collector.fleet.fleet import Node
from collector.fleet.job_columns import JobColumns, Positions
from collector.fleet.schemas import GPU_STREAM, Gpu
from collector.fleet.sheet import BLOCK_ROWS, Block
from collector.state.core import Core
from collector.workloads.roster import NO_JOB, NO_SEAT, Numbers, Roster
from railscope.frame import NO_RAIL


@dataclass(slots=True)
class Table:
    """The columns of a block that are used for jobs, and their seats, row by row."""

    block: Block
    told: JobColumns
    seats: Numbers


@dataclass(slots=True)
class Seating:
    """The seats of all blocks."""

    core: Core
    roster: Roster
    _tables: dict[int, Table] = field(default_factory=dict)

    def of(self, block: Block) -> Table | None:
        """Return the seats of a block; None if its stream has no columns for jobs."""
        table = self._tables.get(id(block))
        return table if table and table.block is block else None

    def settled(self, block: Block, rows: Positions) -> Positions:
        """Return the rows with the nodes and schemas of the last refresh."""
        touched = self.core.fleet.touched
        if not touched:
            return rows
        return np.array([row for row in rows if block.nodes[row] not in touched], np.intp)

    async def refresh(self, offer: Callable[[], Awaitable[None]]) -> None:
        """Process changes, awaiting `offer` between nodes to yield to other tasks."""
        fleet, roster = self.core.fleet, self.roster
        touched = fleet.touched | roster.touched
        fleet.touched, roster.touched = set(), set()
        alive = {id(block) for block in fleet.blocks()}
        for gone in self._tables.keys() - alive:
            del self._tables[gone]
        for name in touched:
            node = fleet.nodes.get(name)
            if node:
                self._seat(node)
            await offer()

    def _seat(self, node: Node) -> None:
        by_gpu = self.roster.seats.get(node.name, {})
        by_rail = self._of_rails(node, by_gpu)
        for row in node.rows.values():
            known = self.core.schemas.get(row.schema)
            if known is None or known.jobs is None:
                continue
            table = self._tables.get(id(row.block))
            if table is None:
                nobody = np.full((BLOCK_ROWS, len(known.jobs.columns)), NO_SEAT, np.int32)
                table = self._tables[id(row.block)] = Table(row.block, known.jobs, nobody)
            table.seats[row.index] = known.jobs.seats(by_gpu, by_rail, NO_SEAT)

    def _of_rails(self, node: Node, by_gpu: Mapping[str, int]) -> dict[int, int]:
        """Return for each rail a seat of the only job with GPUs on it; rails with two jobs are omitted."""
        found: dict[int, int] = {}
        jobs = self.roster.job_of_seat
        for gpu in self.gpus(node):
            seat = by_gpu.get(gpu.uuid, NO_SEAT)
            if gpu.rail == NO_RAIL or seat == NO_SEAT:
                continue
            before = found.setdefault(gpu.rail, seat)
            if before != NO_SEAT and jobs[before] != jobs[seat]:
                found[gpu.rail] = NO_SEAT
        return {rail: s for rail, s in found.items() if s != NO_SEAT and jobs[s] != NO_JOB}

    def gpus(self, node: Node) -> tuple[Gpu, ...]:
        """Return the GPUs of a node by the schema of its latest frame."""
        row = node.rows.get(GPU_STREAM)
        known = self.core.schemas.get(row.schema) if row else None
        return known.gpus if known else ()
