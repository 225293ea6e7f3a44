"""The last minute: the mean of traffic and busy time, and the largest share of pauses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import pytest
from fleet_updates import SECOND, update
from hypothesis import given, strategies as st
from support.batches import batch_of

from railscope.catalog import gpu, nic
from railscope.catalog.declare import ALL_ONES, Metric
from railscope.catalog.entities import GPU, NIC
from railscope.frame import Entity, Schema
from railscope.reading import Absent
from railscope.wire import to_wire_schema
from railscope_collector.fleet.fleet import Fleet, NodeUpdate
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
    assert fleet.apply(NodeUpdate("n", "r", boot_id, LAYOUT, batch, at_ns[-1]))


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


@pytest.mark.parametrize("last_percent", [0, 100])
def test_busy_time_is_the_mean_of_all_rows_where_a_step_takes_as_long_as_a_batch(
    last_percent: int,
) -> None:
    fleet, other = Fleet(), 100 - last_percent
    for second in range(5, 65, 5):
        percents = [other, other, 50, last_percent, last_percent]
        rows = [{gpu.GPU_UTILIZATION: percent} for percent in percents]
        send(fleet, rows, at_ns=[(second + n) * SECOND for n in range(5)])
    assert shown(fleet)[gpu.GPU_UTILIZATION.name] == 50


@pytest.mark.parametrize("absent", [set[int](), {0}, {1, 2}, {0, 1, 2}])
def test_rows_without_a_valid_value_are_not_in_the_mean(absent: set[int]) -> None:
    fleet, percents = Fleet(), {0: 20, 1: 40, 2: 60, 3: 90}
    codes = [[Absent.ERROR.value * (n in absent)] * len(COLUMNS) for n in percents]
    rows = [{gpu.GPU_UTILIZATION: 0 if n in absent else each} for n, each in percents.items()]
    # Earlier agents sent what the driver answers in place of an error.
    rows.insert(2, {gpu.GPU_UTILIZATION: ALL_ONES[0]})
    codes.insert(2, [0] * len(COLUMNS))
    send(fleet, rows, at_ns=[n * SECOND for n in range(1, 6)], reasons=codes)
    known = [percent for n, percent in percents.items() if n not in absent]
    assert shown(fleet)[gpu.GPU_UTILIZATION.name] == pytest.approx(sum(known) / len(known))


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


def test_the_last_minute_of_a_boot_is_not_that_of_the_boot_before() -> None:
    """The boot clocks of both are at the same time when the node is read."""
    fleet, busy, idle = Fleet(), {gpu.GPU_UTILIZATION: 100}, {gpu.GPU_UTILIZATION: 0}
    for second in range(100, 160, 5):
        send(fleet, [busy] * 2, at_ns=[second * SECOND, (second + 4) * SECOND])
    send(fleet, [idle] * 2, at_ns=[160 * SECOND, 164 * SECOND], boot_id="b2")
    assert shown(fleet)[gpu.GPU_UTILIZATION.name] == 0
