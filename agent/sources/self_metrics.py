"""What the agent tells about itself: its sources, its spool, its own cost.

A source like any other, only that it reads the agent and not the machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Protocol

from agent.host import Host
from agent.source import Columns, HoldsNothing, Inventory, Table
from agent.stats import ShippingStats
from railscope.catalog import agent as c
from railscope.catalog.entities import ABSENCE, DROP, NODE, SOURCE
from railscope.entity import Entity
from railscope.frame import Event, Frame
from railscope.reading import REASONS, Absent, Reading

_PAGE_BYTES = 4096
_RESIDENT_FIELD = 1


class SourceStatus(Protocol):
    """What is asked of the status of a source."""

    state: int
    reads: int
    missed_ticks: int
    duration_ns: int
    finished_boot_ns: int | None
    overdue: bool
    frame: Frame | None


class SelfMetrics(HoldsNothing):
    """The agent's own state as columns."""

    name = "agent"
    family = "agent"

    def __init__(
        self,
        statuses: Callable[[], Mapping[str, SourceStatus]],
        shipping: ShippingStats,
        take_events: Callable[[], list[Event]],
        period_seconds: float = 1.0,
    ) -> None:
        self.period_seconds = period_seconds
        self._statuses = statuses
        self._shipping = shipping
        self._take_events = take_events

    def probe(self, host: Host) -> Inventory:  # noqa: ARG002 - the agent itself is asked
        """Columns for every source and for the agent."""
        columns = Columns()
        for name in self._statuses():
            source = Entity(SOURCE, (name,))
            for metric in (
                c.SOURCE_STATE, c.SOURCE_READ_TIME, c.SOURCE_AGE, c.SOURCE_READS, c.SOURCE_MISSED,
            ):  # fmt: skip
                columns.add(metric, source)
            for reason in Absent:
                columns.add(c.SOURCE_ABSENT, source.part(ABSENCE, reason.word))
        node = Entity(NODE)
        for metric in (
            c.AGENT_CPU, c.AGENT_MEMORY, c.SPOOL_SIZE, c.SPOOL_BATCHES, c.FRAMES_SHIPPED,
            c.SHIP_FAILURES,
        ):  # fmt: skip
            columns.add(metric, node)
        for why in self._shipping.dropped_frames:
            columns.add(c.FRAMES_DROPPED, node.part(DROP, why))
        return Inventory(tuple(columns.columns))

    def read(self, host: Host, into: Table) -> None:
        """Look at every status, the spool and the process."""
        now_ns = host.clock.now().boot_ns
        readings: list[Reading] = []
        for status in self._statuses().values():
            finished = status.finished_boot_ns
            never = finished is None
            readings += [
                status.state,
                Absent.NOT_DUE if never else status.duration_ns,
                Absent.NOT_DUE if finished is None else now_ns - finished,
                status.reads,
                status.missed_ticks,
                *_absent_counts(status),
            ]
        shipping = self._shipping
        readings += [
            time.process_time_ns(),
            _resident_bytes(),
            shipping.spool_bytes,
            shipping.spool_envelopes,
            shipping.shipped_frames,
            shipping.failures,
            *shipping.dropped_frames.values(),
        ]
        for position, reading in enumerate(readings):
            into.put(position, reading)
        into.events = self._take_events()


def _absent_counts(status: SourceStatus) -> list[int]:
    frame = status.frame
    if frame is None:
        return [0] * len(REASONS)
    if status.overdue:
        return [len(frame.values) if r is Absent.TIMEOUT else 0 for r in REASONS.values()]
    return [frame.reasons.count(code) for code in REASONS]


def _resident_bytes() -> int:
    with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - once a second
        return int(file.read().split()[_RESIDENT_FIELD]) * _PAGE_BYTES
