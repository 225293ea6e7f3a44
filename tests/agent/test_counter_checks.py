"""Counters that jump further than their device can count."""

from __future__ import annotations

import pytest
from support.machine import FakeHost
from support.reading import ORIGIN, readings

from railscope.catalog import account, gpu, host as host_metrics, nic, sensors
from railscope.catalog.declare import Metric
from railscope.catalog.entities import GPU
from railscope.frame import Entity
from railscope.reading import Absent, Reading
from railscope_agent.host import Host
from railscope_agent.sampling.probe_result import ColumnBuilder, ProbeResult
from railscope_agent.sampling.row_builder import RowBuilder
from railscope_agent.sampling.source import SourceWithoutResources
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.sources.nvidia.column_history import DeviceTotals

LIMITED = (
    nic.RECEIVED,
    nic.SENT,
    nic.PFC_RECEIVED_TIME,
    nic.GLOBAL_PAUSE_SENT_TIME,
    host_metrics.NETWORK_RECEIVED,
    host_metrics.PRESSURE_STALLED,
    host_metrics.DISK_BUSY_TIME,
    sensors.RAPL_ENERGY,
    sensors.SENSOR_ENERGY,
    gpu.GPU_ENERGY,
    gpu.GPU_THROTTLE_TIME,
    account.RDMA_RECEIVED,
    account.RDMA_SENT,
)


class OneCounter(SourceWithoutResources):
    """A source of one counter, and with a total that of its device."""

    name = "counter"
    family = "counter"

    def __init__(self, metric: Metric, total: Metric | None = None) -> None:
        self.metric = metric
        self.value: Reading = 0
        self.totals = DeviceTotals(metric, total) if total else None

    def probe(self, host: Host) -> ProbeResult:  # noqa: ARG002 - an interface
        columns = ColumnBuilder()
        about = self.metric.about
        columns.add(self.metric, Entity(about, tuple("x" for _ in about.labels)))
        if self.totals:
            self.totals.add_columns(columns, [Entity(GPU, ("x",))])
        return columns.result()

    def read(self, host: Host, into: RowBuilder) -> None:  # noqa: ARG002 - an interface
        into.put(0, self.value)
        if self.totals:
            into.check_counters()
            self.totals.read(into)


def values(source: OneCounter, steps: list[tuple[float, Reading]]) -> list[list[Reading]]:
    """Readings after each step: seconds, and the value that the device has then."""
    host, found = FakeHost(), []
    reader = SourceReader(source, host, ORIGIN)
    for seconds, source.value in steps:
        host.clock.advance(seconds)
        found.append(list(readings(reader.run().frame).values()))
    return found


@pytest.mark.parametrize("metric", LIMITED, ids=lambda metric: metric.name)
def test_a_counter_cannot_exceed_what_its_device_counts_in_the_time(metric: Metric) -> None:
    assert metric.valid
    second = int(metric.valid[1] / metric.scale)
    start, jump, noise = 5 * second, 10**6 * second, 2 * 10**6 * second
    steps: list[tuple[float, Reading]] = [
        (1, start), (1, start + second), (1, jump), (1, noise), (1, start + 4 * second),
        (100, start + 104 * second), (1, second // 3), (1, start + 106 * second), (1, second // 2), (1, second),
    ]  # fmt: skip
    errors = jump, noise, second // 3, second // 2
    assert [row[0] for row in values(OneCounter(metric), steps)] == [
        value if value not in errors else Absent.ERROR for _, value in steps
    ]


def test_a_counter_that_stays_is_another_one() -> None:
    source = OneCounter(nic.RECEIVED)
    other = 10**15
    steps: list[tuple[float, Reading]] = [(10, 1), *((10, other + n) for n in range(5))]
    found = [row[0] for row in values(source, steps)]
    assert found == [1, Absent.ERROR, Absent.ERROR, Absent.ERROR, other + 3, other + 4]


def test_a_counter_continues_after_readings_that_were_too_low() -> None:
    large, low, error = 10**17, 10**9, Absent.ERROR
    steps: list[tuple[float, Reading]] = [
        (1, large), (1, low), (1, low), (1, low // 10), (1, large + 9), (60, large + 10), (1, low),
        (1, low + 1), (1, large + 20), (1, low + 2),
    ]  # fmt: skip
    assert [row[0] for row in values(OneCounter(nic.RECEIVED), steps)] == [
        large, error, low, error, large + 9, large + 10, error, low + 1, large + 20, error,
    ]  # fmt: skip


def test_a_probe_does_not_forget_the_counters_that_remain() -> None:
    steps: list[tuple[float, Reading]] = [(1, 7), (61, 10**15), (61, 8)]
    found = [row[0] for row in values(OneCounter(nic.RECEIVED), steps)]
    assert found == [7, Absent.ERROR, 8]


def test_an_absent_reading_and_one_without_a_number_are_not_compared() -> None:
    steps: list[tuple[float, Reading]] = [(1, 7), (1, Absent.DENIED), (1, -1), (1, 2**64), (1, 8)]
    found = [row[0] for row in values(OneCounter(nic.RECEIVED), steps)]
    assert found == [7, Absent.DENIED, Absent.ERROR, Absent.ERROR, 8]


def test_a_jump_does_not_stay_in_a_total() -> None:
    source = OneCounter(gpu.GPU_THROTTLE_TIME, gpu.GPU_ALL_THROTTLE_TIME)
    second = 10**9
    found = values(source, [(1, second), (1, 10**6 * second), (1, 2 * second)])
    error = Absent.ERROR
    assert found == [[second, second], [error, error], [2 * second, 2 * second]]
