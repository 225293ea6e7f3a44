"""The last minute: the mean of traffic and busy time, and the largest share of pauses."""

from __future__ import annotations

import pytest
from fleet_updates import SECOND, update

from railscope.catalog import gpu, nic
from railscope.catalog.entities import GPU, NIC
from railscope.frame import Entity, Schema
from railscope.wire import to_wire_schema
from railscope_collector.fleet.fleet import Fleet
from railscope_collector.fleet.schemas import make_layout

NIC_0 = Entity(NIC, ("eth0",))
COLUMNS = (
    (gpu.GPU_UTILIZATION, Entity(GPU, ("GPU-1",))),
    (nic.RECEIVED, NIC_0),
    (nic.GLOBAL_PAUSE_SENT_TIME, NIC_0),
)
SCHEMA = Schema("test", tuple(COLUMNS[place] for place in Schema.ordered(COLUMNS)))
LAYOUT = make_layout(to_wire_schema(SCHEMA))


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
                update("n", LAYOUT, row, row, first_boot_ns=at, last_boot_ns=at, timestamp_ns=at)
            )

    def shown(self) -> dict[str, float]:
        row = self.fleet.nodes["n"].rows["test"]
        metrics = [SCHEMA.columns[column][0] for column in LAYOUT.rate_columns]
        shown = row.block.rates[row.index].tolist()
        return {metric.name: value for metric, value in zip(metrics, shown, strict=True)}


def test_traffic_and_busy_time_are_means_of_the_last_minute_whatever_the_phase() -> None:
    node = PhasedNode()
    node.run(120)
    for _ in range(12):
        node.run(1)
        found = node.shown()
        assert found[nic.RECEIVED.name] == pytest.approx(600, rel=0.12)
        assert found[gpu.GPU_UTILIZATION.name] == pytest.approx(50, rel=0.12)


def test_a_pause_is_shown_by_its_largest_share_for_a_minute() -> None:
    node = PhasedNode()
    node.run(60)
    node.run(20, pausing=True)
    name = nic.GLOBAL_PAUSE_SENT_TIME.name
    scale = float(nic.GLOBAL_PAUSE_SENT_TIME.scale)
    assert node.shown()[name] * scale == pytest.approx(0.5)
    node.run(30)
    assert node.shown()[name] * scale == pytest.approx(0.5)
    node.run(40)
    assert node.shown()[name] == 0


def test_what_happened_while_nothing_was_received_is_not_of_the_last_minute() -> None:
    node = PhasedNode()
    node.run(60)
    node.second += 600
    node.received += 10**9
    node.run(12)
    assert node.shown()[nic.RECEIVED.name] <= 1200
