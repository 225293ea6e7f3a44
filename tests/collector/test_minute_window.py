"""The last minute: the mean of traffic and busy time, and the largest share of pauses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import pytest
from fleet_updates import SECOND, update
from hypothesis import given, strategies as st
from support.batches import batch_of
from support.schemas import known_schema

from railscope.catalog import gpu, nic
from railscope.catalog.declare import Metric
from railscope.catalog.entities import GPU, NIC
from railscope.frame import Entity, Schema
from railscope_collector.fleet.fleet import Fleet, NodeUpdate

NIC_0 = Entity(NIC, ("eth0",))
COLUMNS = (
    (gpu.GPU_UTILIZATION, Entity(GPU, ("GPU-1",))),
    (nic.RECEIVED, NIC_0),
    (nic.GLOBAL_PAUSE_SENT_TIME, NIC_0),
)
SCHEMA = Schema("test", tuple(COLUMNS[place] for place in Schema.ordered(COLUMNS)))
KNOWN = known_schema(SCHEMA)
LAYOUT = KNOWN.layout


class PhasedNode:
    """A node that sends for 6 of 12 seconds, and pauses its switch for half of one of these times."""

    def __init__(self) -> None:
        self.fleet, self.second = Fleet(), 100
        self.received = self.paused_us = 0

    def run(self, seconds: int, *, pausing: bool = False) -> None:
        for _ in range(seconds):
            self.second += 1
            is_busy = self.second % 12 < 6
            self.received += 1200 * is_busy
            self.paused_us += 500_000 * pausing
            at = self.second * SECOND
            values = {
                gpu.GPU_UTILIZATION: 100 * is_busy,
                nic.RECEIVED: self.received,
                nic.GLOBAL_PAUSE_SENT_TIME: self.paused_us,
            }
            row = [values[metric] for metric, _ in SCHEMA.columns]
            self.fleet.apply(
                update("n", KNOWN, row, row, first_boot_ns=at, last_boot_ns=at, timestamp_ns=at)
            )

    def shown(self) -> dict[str, float]:
        return shown(self.fleet)


def shown(fleet: Fleet) -> dict[str, float]:
    """What views show of the columns of a node."""
    row = fleet.nodes["n"].rows["test"]
    metrics = [SCHEMA.columns[column][0] for column in LAYOUT.rate_columns]
    rates = row.block.rates[row.index].tolist()
    return {metric.name: value for metric, value in zip(metrics, rates, strict=True)}


def send(  # noqa: PLR0913 - parameters of the cases
    fleet: Fleet,
    rows: Sequence[Mapping[Metric, int]],
    *,
    at_ns: Sequence[int],
    delays_us: Sequence[int] = (),
    reasons: Sequence[Sequence[int]] = (),
    boot_id: str = "b",
) -> None:
    """Send rows of a node; a delay is that of all columns of a row."""
    table = [[row.get(metric, 0) for metric, _ in SCHEMA.columns] for row in rows]
    batch = batch_of(table, boot_ns=at_ns, stream=LAYOUT.stream, reasons=reasons)
    delays = np.repeat(np.array(delays_us, "<u4"), len(COLUMNS)).tobytes()
    batch = msgspec.structs.replace(batch, read_delays=delays)
    assert fleet.apply(NodeUpdate("n", "r", boot_id, KNOWN, batch, at_ns[-1]))


def test_traffic_and_busy_time_are_means_of_the_last_minute_whatever_the_phase() -> None:
    node = PhasedNode()
    node.run(120)
    for _ in range(12):
        node.run(1)
        found = node.shown()
        assert found[nic.RECEIVED.name] == pytest.approx(600, rel=0.12)
        assert found[gpu.GPU_UTILIZATION.name] == pytest.approx(50, rel=0.12)


LINE = 50_000
"""Bytes per microsecond of a port of 400 Gb/s."""
delays = st.lists(st.integers(0, 900_000), min_size=1, max_size=5)
"""Of each row of a batch, in microseconds."""


@given(st.lists(delays, min_size=1, max_size=16))
def test_reads_that_are_late_show_no_rate_above_that_of_the_line(
    batches: list[list[int]],
) -> None:
    fleet, second = Fleet(), 100
    for late_us in ([0, 0], *batches):
        at_us = [(second + n) * 1_000_000 for n in range(len(late_us))]
        second += len(late_us)
        read_us = [at + late for at, late in zip(at_us, late_us, strict=True)]
        rows = [{nic.RECEIVED: LINE * us, nic.GLOBAL_PAUSE_SENT_TIME: us} for us in read_us]
        send(fleet, rows, at_ns=[us * 1000 for us in at_us], delays_us=late_us)
        found = shown(fleet)
        assert found[nic.RECEIVED.name] == pytest.approx(LINE * 1_000_000, rel=0.01)
        assert found[nic.GLOBAL_PAUSE_SENT_TIME.name] == pytest.approx(1_000_000, rel=0.01)
