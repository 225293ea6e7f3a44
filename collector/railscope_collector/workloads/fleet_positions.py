"""Positions of the GPUs of jobs in the blocks of the fleet.

A table for each block of the fleet contains the position of the GPU of each column, as the roster
assigns it; only the rows of nodes with changed jobs or schemas are computed again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from railscope import frame
from railscope_collector.fleet import names, shape_columns, shapes, sheets
from railscope_collector.fleet.fleet import FleetNode
from railscope_collector.state.collector_state import CollectorState
from railscope_collector.workloads.job_roster import NO_JOB, NO_POSITION, JobRoster, Numbers


@dataclass(slots=True)
class PositionTable:
    """The columns of a block that are used for jobs, and their positions, row by row."""

    block: sheets.SheetBlock
    columns: shape_columns.JobColumns
    positions: Numbers


@dataclass(slots=True)
class FleetPositions:
    """The positions of all blocks."""

    core: CollectorState
    roster: JobRoster
    _tables: dict[int, PositionTable] = field(default_factory=dict)

    def find(self, block: sheets.SheetBlock) -> PositionTable | None:
        """Return the positions of a block; None if its stream has no columns for jobs."""
        table = self._tables.get(id(block))
        # The id of a block that no longer exists may be that of another one.
        return table if table and table.block is block else None

    def select_unchanged(
        self, block: sheets.SheetBlock, rows: shape_columns.Positions
    ) -> shape_columns.Positions:
        """Return the rows with the nodes and schemas of the last refresh."""
        touched = self.core.fleet.touched
        # Those of other rows may be positions of the former node or schema.
        if not touched:
            return rows
        return np.array([row for row in rows if block.nodes[row] not in touched], np.intp)

    async def refresh(self, offer: Callable[[], Awaitable[None]]) -> None:
        """Process changes, awaiting `offer` between nodes to yield to other tasks."""
        fleet, roster = self.core.fleet, self.roster
        touched = fleet.touched | roster.touched
        # Before the first turn of other tasks: what changes meanwhile is for the next refresh.
        fleet.touched, roster.touched = set(), set()
        alive = {id(block) for block in fleet.blocks()}
        for gone in self._tables.keys() - alive:
            del self._tables[gone]
        for name in touched:
            node = fleet.nodes.get(name)
            if node:
                self._update_node(node)
            await offer()

    def _update_node(self, node: FleetNode) -> None:
        by_gpu = self.roster.positions.get(node.name, {})
        by_rail = self._of_rails(node, by_gpu)
        for row in node.rows.values():
            schema = row.schema
            if schema.jobs is None:
                continue
            table = self._tables.get(id(row.block))
            if table is None:
                if not by_gpu:
                    continue  # most blocks of a fleet without claims have no jobs
                free = np.full(
                    (len(row.block.nodes), len(schema.jobs.columns)), NO_POSITION, np.int32
                )
                table = self._tables[id(row.block)] = PositionTable(row.block, schema.jobs, free)
            table.positions[row.index] = schema.jobs.positions(
                schema.job_gpus(), by_gpu, by_rail, NO_POSITION
            )

    def _of_rails(self, node: FleetNode, by_gpu: Mapping[str, int]) -> dict[int, int]:
        """Return for each rail a position of the only job with GPUs on it; rails with two jobs are omitted."""
        rail_positions: dict[int, int] = {}
        jobs = self.roster.job_of_position
        for gpu in self.gpus(node):
            position = by_gpu.get(gpu.uuid, NO_POSITION)
            if gpu.rail == frame.NO_RAIL or position == NO_POSITION:
                continue
            before = rail_positions.setdefault(gpu.rail, position)
            # A port of a rail is not divided between jobs.
            if before != NO_POSITION and jobs[before] != jobs[position]:
                rail_positions[gpu.rail] = NO_POSITION
        return {
            rail: s for rail, s in rail_positions.items() if s != NO_POSITION and jobs[s] != NO_JOB
        }

    def gpus(self, node: FleetNode) -> tuple[names.SchemaGpu, ...]:
        """Return the GPUs of a node by the schema of its latest frame."""
        row = node.rows.get(shapes.GPU_STREAM)
        return row.schema.gpus if row else ()
