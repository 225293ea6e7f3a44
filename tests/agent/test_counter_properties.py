"""Arithmetic of counters: wraps of 32 bits and of energy, resets, and jumps that no device can count."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from support.clock import START
from support.machine import FakeHost
from support.reading import ORIGIN, readings
from support.sampling import lanes_of

from railscope.catalog import account, gpu, host as host_metrics, nic, sensors
from railscope.catalog.declare import Metric
from railscope.catalog.entities import GPU
from railscope.counter_unwrap import CounterUnwrapper
from railscope.frame import Entity
from railscope.reading import PRESENT, Absent, Reading
from railscope_agent.config import AgentSettings
from railscope_agent.host import Host
from railscope_agent.sampling.probe_result import ColumnBuilder, ProbeResult
from railscope_agent.sampling.row_builder import RowBuilder
from railscope_agent.sampling.source import Source
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.service import Agent
from railscope_agent.sources.nvidia.column_history import DeviceTotals
from railscope_agent.sources.rapl import MAX_WATTS, EnergyCounter, RaplSource

RANGE = 2**32
HALF = RANGE // 2
NAMES = ("writes", "reads", "marked", "errors")
WIDE = len(NAMES)
ABSENT = Absent.ERROR.value


@dataclass
class HardwareCounters:
    """A counter set in hardware: counts since the last reset, exported modulo 2^32."""

    counted: list[int]
    wide: int = 0
    shown: list[int] = field(default_factory=list)

    def row(self) -> list[int]:
        return [*(number % RANGE for number in self.counted), self.wide]


def unwrap(before: CounterUnwrapper | None = None) -> CounterUnwrapper:
    columns = {name: column for column, name in enumerate(NAMES)}
    return CounterUnwrapper(columns, [WIDE], before.state if before else None)


def unwrap_row(
    carrier: CounterUnwrapper, row: list[int], missing: frozenset[int] = frozenset()
) -> list[int]:
    values = [0 if column in missing else number for column, number in enumerate(row)]
    reasons = bytearray(ABSENT if column in missing else PRESENT for column in range(len(row)))
    carrier.extend_values(values, reasons)
    assert all(values[column] == 0 for column in missing), "nothing is made up"
    return values[:WIDE]


def rows(carrier: CounterUnwrapper, *all_rows: list[int]) -> list[list[int]]:
    return [unwrap_row(carrier, row) for row in all_rows]


step = st.integers(0, HALF - 1)
steps = st.lists(st.tuples(step, step, step, st.integers(0, 3)), min_size=1, max_size=12)
missing = st.frozensets(st.integers(0, WIDE - 1), max_size=2)


@given(st.lists(st.tuples(step, missing), min_size=1, max_size=20))
def test_one_busy_counter_among_quiet_ones_is_carried_on_exactly(
    walk: list[tuple[int, frozenset[int]]],
) -> None:
    """Also with gaps: a missing reading affects only itself while growth is below half the range."""
    hardware, carrier = HardwareCounters([0, 7, 11, 3]), unwrap()
    assert unwrap_row(carrier, hardware.row()) == hardware.counted
    unread = 0
    for ahead, without in walk:
        ahead = min(ahead, HALF - 1 - unread)  # noqa: PLW2901 - the gap counts as well
        hardware.counted[0] += ahead
        unread = unread + ahead if 0 in without else 0
        found = unwrap_row(carrier, hardware.row(), without)
        for column in set(range(WIDE)) - without:
            assert found[column] == hardware.counted[column]


@given(steps, st.booleans())
def test_unwrapped_counters_equal_the_total_or_the_growth_since_a_reset(
    walk: list[tuple[int, int, int, int]],
    probed: bool,  # noqa: FBT001 - a case
) -> None:
    """For any traffic: never more growth than real, and less only if wraps resemble a reset."""
    hardware, carrier = HardwareCounters([5, 6, 7, 8]), unwrap()
    before = unwrap_row(carrier, hardware.row())
    counted = list(hardware.counted)
    for ahead in walk:
        hardware.counted = [
            number + more for number, more in zip(hardware.counted, ahead, strict=True)
        ]
        if probed:
            carrier = unwrap(carrier)
        found = unwrap_row(carrier, hardware.row())
        for column in range(WIDE):
            grown = found[column] - before[column]
            if grown >= 0:
                assert grown == hardware.counted[column] - counted[column]
            else:
                assert found[column] == hardware.counted[column] % RANGE, "shown as a reset"
        before, counted = found, list(hardware.counted)


@given(
    st.lists(st.integers(0, 2**40), min_size=WIDE, max_size=WIDE),
    st.lists(st.integers(0, HALF - 1), min_size=WIDE, max_size=WIDE),
    st.integers(0, 2**40),
)
def test_after_a_reset_with_a_witness_all_begin_again(
    counted: list[int], since: list[int], wide: int
) -> None:
    """The witness: a 64-bit counter that fell, or an error counter that fell back to less."""
    carrier = unwrap()
    for share in (8, 4, 2, 1):  # in steps of less than half a range, as it would be read
        hardware = HardwareCounters([number // share for number in counted], wide // share)
        unwrap_row(carrier, hardware.row())
    last = hardware.row()
    hardware = HardwareCounters(since, wide // 2)
    found = unwrap_row(carrier, hardware.row())
    fell = any(now < before for now, before in zip(hardware.row()[:WIDE], last[:WIDE], strict=True))
    if fell and wide // 2 < wide:
        assert found == since
        assert carrier.wraps == 0


@given(
    st.lists(st.integers(0, 2**40), min_size=3, max_size=3),
    st.integers(1, HALF),
    st.lists(st.integers(0, HALF - 1), min_size=3, max_size=3),
    st.data(),
)
def test_an_error_counter_that_fell_back_marks_a_reset_despite_busy_ones(
    busy: list[int], errors: int, since: list[int], data: st.DataObject
) -> None:
    """Error counters stay in the lower half; only a reset, not a wrap, reduces them."""
    carrier = unwrap()
    unwrap_row(carrier, [*(number % RANGE for number in busy), errors, 0])
    after = [*since, data.draw(st.integers(0, errors - 1))]
    assert unwrap_row(carrier, [*after, 0]) == after
    assert carrier.wraps == 0


def test_half_a_range_is_the_farthest_a_wrap_goes() -> None:
    last = RANGE - 1
    assert rows(unwrap(), [last, 0, 0, 0, 0], [HALF - 2, 0, 0, 0, 0])[-1][0] == RANGE + HALF - 2
    assert rows(unwrap(), [last, 0, 0, 0, 0], [HALF - 1, 0, 0, 0, 0])[-1][0] == HALF - 1


def test_a_device_that_was_gone_begins_again() -> None:
    carrier = unwrap()
    assert rows(carrier, [RANGE - 10, 9, 0, 0, 0], [20, 9, 0, 0, 0])[-1][0] == RANGE + 20
    reasons = bytearray([Absent.GONE.value] * (WIDE + 1))
    carrier.extend_values([0] * (WIDE + 1), reasons)
    assert unwrap_row(carrier, [25, 9, 0, 0, 0]) == [25, 9, 0, 0]


LIMITED = (
    nic.RECEIVED,
    host_metrics.PRESSURE_STALLED,
    sensors.RAPL_ENERGY,
    gpu.GPU_ENERGY,
    gpu.GPU_THROTTLE_TIME,
    account.RDMA_SENT,
)


class OneCounter(Source):
    """A source of one counter, and with a total that of its device."""

    name = "counter"
    period_seconds = 1.0

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


def test_a_counter_continues_after_readings_that_were_too_low() -> None:
    large, low, error = 10**17, 10**9, Absent.ERROR
    steps: list[tuple[float, Reading]] = [
        (1, large), (1, low), (1, low), (1, low // 10), (1, large + 9), (60, large + 10), (1, low),
        (1, low + 1), (1, large + 20), (1, low + 2),
    ]  # fmt: skip
    assert [row[0] for row in values(OneCounter(nic.RECEIVED), steps)] == [
        large, error, low, error, large + 9, large + 10, error, low + 1, large + 20, error,
    ]  # fmt: skip


def test_a_jump_does_not_stay_in_a_total() -> None:
    source = OneCounter(gpu.GPU_THROTTLE_TIME, gpu.GPU_ALL_THROTTLE_TIME)
    second = 10**9
    found = values(source, [(1, second), (1, 10**6 * second), (1, 2 * second)])
    error = Absent.ERROR
    assert found == [[second, second], [error, error], [2 * second, 2 * second]]


ENERGY_RANGE = 262_143_328_850
SECOND = 10**9


@given(
    start=st.integers(0, ENERGY_RANGE - 1),
    reads=st.lists(st.tuples(st.integers(1, 60), st.integers(0, MAX_WATTS)), max_size=40),
)
def test_rounds_are_carried_on_exactly(start: int, reads: list[tuple[int, int]]) -> None:
    counter = EnergyCounter(ENERGY_RANGE)
    used, now_ns = 0, START.boot_ns
    assert counter.advance(start, now_ns) is Absent.NOT_DUE
    for seconds, watts in reads:
        used += seconds * watts * 10**6
        now_ns += seconds * SECOND
        assert counter.advance((start + used) % ENERGY_RANGE, now_ns) == used


@given(
    before=st.integers(1, ENERGY_RANGE - 1),
    after=st.integers(0, ENERGY_RANGE - 1),
    seconds=st.integers(0, 60),
)
def test_a_fall_that_no_processor_could_have_made_is_a_reset(
    before: int, after: int, seconds: int
) -> None:
    counter = EnergyCounter(ENERGY_RANGE)
    counter.advance(before, 0)
    total = counter.advance(after, seconds * SECOND)
    if after >= before:
        assert total == after - before
    elif after + ENERGY_RANGE - before > seconds * MAX_WATTS * 10**6:
        assert total == 0
    else:
        assert total == after + ENERGY_RANGE - before
    assert counter.advance(after, seconds * SECOND) == total, "it goes on from there"


def test_however_rarely_it_is_read_no_round_goes_by_unseen() -> None:
    smallest = 65_532_610_987  # 2^32 units of 15.26 uJ: AMD, and memory of Intel
    seconds = round(RaplSource.longest_period_seconds)
    counter = EnergyCounter(smallest)
    counter.advance(0, 0)
    used = 0
    for number in range(1, 10):
        used += seconds * MAX_WATTS * 10**6
        assert counter.advance(used % smallest, number * seconds * SECOND) == used


PORT = "/sys/class/infiniband/mlx5_0/ports/1"
END = 2**32
WRITES = "railscope_rdma_write_requests_total"


def show(host: FakeHost, writes: int) -> None:
    host.files |= {
        f"{PORT}/hw_counters/rx_write_requests": str(writes),
        f"{PORT}/hw_counters/rx_read_requests": "7",
    }


async def read_by_an_agent(host: FakeHost, state: Path, *shown: int) -> list[Reading]:
    """Return the counter readings of one agent run, at its start and one second after each change."""
    agent = Agent(AgentSettings(listen="127.0.0.1:0", state_directory=str(state)), host, "node-1")
    task = asyncio.create_task(agent.run())
    counts = []
    try:
        await host.clock.asleep(lanes_of(agent.sampler.sources))
        counts.append(readings(agent.sampler.statuses["rdma"].frame)[WRITES, ("mlx5_0", "1")])
        for number in shown:
            show(host, number)
            host.clock.advance(1)
            await host.clock.asleep(lanes_of(agent.sampler.sources))
            counts.append(readings(agent.sampler.statuses["rdma"].frame)[WRITES, ("mlx5_0", "1")])
    finally:
        task.cancel()
        await asyncio.wait({task})
    return counts


async def test_an_agent_takes_up_the_wraps_of_the_one_before(
    tmp_path: Path,
) -> None:
    host = FakeHost()
    show(host, END - 10)
    assert await read_by_an_agent(host, tmp_path, 20) == [END - 10, END + 20]
    assert await read_by_an_agent(host, tmp_path, 25) == [END + 20, END + 25]


@pytest.mark.parametrize("content", [b"", b"{", b'{"boot_id": "boot-1", "sets": 5}', b"\xff"])
async def test_a_damaged_file_of_wraps_does_no_harm(tmp_path: Path, content: bytes) -> None:
    host = FakeHost()
    show(host, END - 10)
    (tmp_path / "rdma-counter-wraps.json").write_bytes(content)
    assert await read_by_an_agent(host, tmp_path) == [END - 10]
