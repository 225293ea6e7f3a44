"""Burst sampling of NICs: every window counts once, in the bucket of its value."""

from __future__ import annotations

import errno
from bisect import bisect_left
from itertools import accumulate

import pytest
from hypothesis import given, strategies as st
from support.nic_burst import COUNTERS, MS, WINDOW_MS, BurstReader, CountingNic, SlowNic
from support.reading import ORIGIN, readings
from support.sampling import run_sampler

from railscope.catalog import bursts as c
from railscope.reading import Absent
from railscope_agent.config import BudgetSettings
from railscope_agent.sampling.budget_keeper import create_governor
from railscope_agent.sampling.burst_windows import MAX_WINDOWS
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.sampling.status import OK
from railscope_agent.sources.nic_burst import NicBurstSource

LINE_BYTES_PER_MS = 400_000 // 8 * 1000
UNSEEN = "railscope_nic_burst_missed_windows_total"


def test_a_window_counts_in_the_bucket_of_its_pause() -> None:
    nic = CountingNic()
    bursts = BurstReader(nic)
    for paused_us in (0, 500, 30_000, 60_000, 100_000):
        nic.go_on(WINDOW_MS, rx_prio3_pause_duration=paused_us)
        bursts.read()
    # 0, 0.005, 0.3, 0.6 and 1.0 of a window; the five until the full second were without pause
    assert bursts.histogram(c.NIC_PAUSE, "receive") == [1 + 5, 7, 7, 7, 7, 8, 9, 9, 10]
    values = readings(bursts.frame)
    assert values[c.NIC_PAUSE.name, ("ens1", "receive", "sum")] == 5_000 + 300_000 + 600_000 + 10**6
    assert values[UNSEEN, ("ens1",)] == 0
    assert values["railscope_nic_burst_window_seconds", ("ens1",)] == WINDOW_MS * MS


def test_utilization_is_of_the_line_rate() -> None:
    nic = CountingNic()
    bursts = BurstReader(nic)
    nic.go_on(WINDOW_MS, rx_bytes_phy=LINE_BYTES_PER_MS * 40, tx_bytes_phy=LINE_BYTES_PER_MS * 100)
    bursts.read()
    assert bursts.histogram(c.NIC_UTILIZATION, "receive") == [9, 9, 9, 9, 9, 10, 10, 10, 10]
    values = readings(bursts.frame)
    assert values[c.NIC_UTILIZATION.name, ("ens1", "receive", "sum")] == 400_000
    assert values[c.NIC_UTILIZATION.name, ("ens1", "transmit", "0.9")] == 9


def test_notifications_are_a_rate() -> None:
    nic = CountingNic()
    bursts = BurstReader(nic)
    nic.host.files[f"{COUNTERS}/np_cnp_sent"] = "500\n"
    nic.go_on(WINDOW_MS)
    bursts.read()
    assert bursts.histogram(c.NIC_NOTIFICATIONS, "transmit") == [9, 9, 9, 9, 10, 10, 10]


def test_unreadable_windows_are_missed_and_not_invented() -> None:
    nic = CountingNic()
    bursts = BurstReader(nic)
    nic.go_on(WINDOW_MS)
    bursts.read()
    del nic.host.files[f"{COUNTERS}/np_cnp_sent"]
    nic.host.clock.advance(0.9 + WINDOW_MS / 1000 * (MAX_WINDOWS - 1))
    nic.host.calls["ethtool.statistics(ens1)"] = OSError(errno.EIO, "Input/output error")
    bursts.read()
    values = bursts.next_readings()
    assert values[UNSEEN, ("ens1",)] == 19
    assert values[c.NIC_PAUSE.name, ("ens1", "receive", "+Inf")] is Absent.ERROR
    nic.go_on(WINDOW_MS, rx_prio3_pause_duration=WINDOW_MS * 1000)
    bursts.read()
    values = bursts.next_readings()
    assert values[UNSEEN, ("ens1",)] == 20, (
        "the first poll after the failure only sets the new start"
    )
    assert values[c.NIC_PAUSE.name, ("ens1", "receive", "+Inf")] == 1 + 9


def test_a_nic_whose_statistics_cannot_be_listed_has_the_reason() -> None:
    nic = CountingNic()
    nic.host.calls["ethtool.statistics(ens1)"] = OSError(errno.EIO, "Input/output error")
    values = readings(BurstReader(nic).frame)
    assert values[UNSEEN, ("ens1",)] is Absent.ERROR
    assert values["railscope_nic_burst_window_seconds", ("ens1",)] is Absent.ERROR


def test_a_nic_that_restarts_its_counters_loses_its_window() -> None:
    nic = CountingNic()
    bursts = BurstReader(nic)
    nic.go_on(WINDOW_MS)
    bursts.read()
    nic.grown = dict.fromkeys(nic.grown, 3)
    nic.go_on(WINDOW_MS)
    bursts.read()
    values = bursts.next_readings()
    assert values[UNSEEN, ("ens1",)] == 1
    assert values[c.NIC_PAUSE.name, ("ens1", "receive", "+Inf")] == 9


def test_a_priority_that_is_paused_from_now_on_is_taken_up() -> None:
    nic = CountingNic()
    bursts = BurstReader(nic)
    nic.go_on(WINDOW_MS)
    bursts.read()
    nic.names = [*nic.names, "rx_prio5_pause_duration"]
    nic.grown["rx_prio5_pause_duration"] = 0
    nic.go_on(WINDOW_MS)
    bursts.read()
    bursts.read()
    nic.go_on(WINDOW_MS, rx_prio5_pause_duration=90_000)
    bursts.read()
    values = bursts.next_readings()
    assert values[c.NIC_PAUSE.name, ("ens1", "receive", "+Inf")] == 9, "the histogram went on"
    assert values[c.NIC_PAUSE.name, ("ens1", "receive", "0.75")] == 8
    assert values[UNSEEN, ("ens1",)] == 1


def test_a_link_that_came_back_slower_has_another_line_rate_or_none() -> None:
    nic = CountingNic()
    bursts = BurstReader(nic)
    bursts.next_readings()
    nic.host.files["/sys/class/net/ens1/speed"] = "200000\n"
    bursts.next_readings()
    nic.go_on(WINDOW_MS, rx_bytes_phy=LINE_BYTES_PER_MS * 40)
    bursts.read()
    values = bursts.next_readings()
    assert values[c.NIC_UTILIZATION.name, ("ens1", "receive", "sum")] == 800_000
    seen = values[c.NIC_UTILIZATION.name, ("ens1", "receive", "+Inf")]
    nic.host.files["/sys/class/net/ens1/speed"] = "-1\n"
    bursts.next_readings()
    nic.go_on(WINDOW_MS, rx_bytes_phy=1)
    bursts.read()
    values = bursts.next_readings()
    assert values[c.NIC_UTILIZATION.name, ("ens1", "receive", "+Inf")] == seen + 19


@pytest.mark.parametrize(
    ("patterns", "found"), [((), {"ens1"}), (("eth*",), set()), (("e*",), {"ens1"})]
)
def test_sampled_nics_have_rdma_or_are_configured(
    patterns: tuple[str, ...], found: set[str]
) -> None:
    frame = SourceReader(NicBurstSource(0.1, patterns), CountingNic().host, ORIGIN).run().frame
    assert {key[0] for _, key in readings(frame)} == found


def test_a_driver_that_fetches_once_a_second_has_windows_of_a_second() -> None:
    nic = SlowNic(350)
    bursts = BurstReader(nic)
    for _ in range(200):
        nic.go_on(WINDOW_MS, rx_bytes=LINE_BYTES_PER_MS * 40)
        bursts.read()
    values = readings(bursts.frame)
    assert values["railscope_nic_burst_window_seconds", ("ens1",)] == 1000 * MS
    windows = [
        values[c.NIC_UTILIZATION.name, ("ens1", "receive", le)] for le in ("0.25", "0.5", "+Inf")
    ]
    assert windows[0] <= 1, "the first may begin before anything is known"
    assert 18 <= windows[1] == windows[2] <= 20, "none resembles a burst"
    assert values[UNSEEN, ("ens1",)] <= 1


def test_a_port_is_looked_at_once_and_not_for_each_virtual_function() -> None:
    nic = CountingNic()
    physical = "/sys/bus/pci/devices/0000:17:00.0"
    nic.host.files[f"{physical}/vendor"] = "0x15b3\n"
    nic.host.links["/sys/bus/pci/devices/0000:18:00.0/physfn"] = physical
    assert SourceReader(NicBurstSource(0.1), nic.host, ORIGIN).run().frame is None
    assert SourceReader(NicBurstSource(0.1, ["ens1"]), nic.host, ORIGIN).run().frame is not None


POLLS = st.lists(
    st.tuples(st.integers(1, 6 * WINDOW_MS), st.integers(0, 700_000)), min_size=1, max_size=40
)


@given(POLLS)
def test_windows_add_up_to_time(polls: list[tuple[int, int]]) -> None:
    nic = CountingNic()
    bursts = BurstReader(nic)
    started_ns = nic.host.clock.now().boot_ns
    for later_ms, paused_us in polls:
        nic.go_on(later_ms, rx_prio3_pause_duration=paused_us)
        bursts.read()
    values = bursts.next_readings()
    seen = values[c.NIC_PAUSE.name, ("ens1", "receive", "+Inf")]
    unseen = values[UNSEEN, ("ens1",)]
    passed = (nic.host.clock.now().boot_ns - started_ns) // (WINDOW_MS * MS)
    assert (0 if seen is Absent.NOT_DUE else seen) + unseen == passed


@given(st.lists(st.integers(0, WINDOW_MS * 1000), min_size=1, max_size=50))
def test_windows_are_where_plain_counting_puts_them(paused_us: list[int]) -> None:
    nic = CountingNic()
    bursts = BurstReader(nic)
    for amount in paused_us:
        nic.go_on(WINDOW_MS, rx_prio3_pause_duration=amount)
        bursts.read()
    still = 10 - len(paused_us) % 10
    bounds = [int(bound * 10**6) for bound in c.NIC_PAUSE.bounds]
    counts = [0] * (len(bounds) + 1)
    for share in [*(amount * 10 for amount in paused_us), *[0] * still]:
        counts[bisect_left(bounds, share)] += 1
    assert bursts.histogram(c.NIC_PAUSE, "receive") == [*accumulate(counts)]


@pytest.mark.parametrize("window_seconds", [0.02, 1.0])
def test_no_period_within_the_budget_misses_windows(window_seconds: float) -> None:
    governor = create_governor(BudgetSettings(cpu_ratio=0.001), [NicBurstSource(window_seconds)])
    load = governor.loads["nic_burst"]
    while load.can_grow:
        load.period_factor *= 2
    period_factor = load.period_factor
    assert period_factor > 1
    nic = CountingNic()
    bursts = BurstReader(nic, window_seconds)
    for late in (0.0, 0.9, 0.0, 0.5, 0.9):
        nic.go_on(1000 * window_seconds * (period_factor + late))
        bursts.read()
    assert bursts.next_readings()[UNSEEN, ("ens1",)] == 0


async def test_frames_come_once_a_second_and_hold_in_between() -> None:
    nic = CountingNic()
    async with run_sampler(nic.host, [NicBurstSource(0.1)]) as run:
        status = run.sampler.statuses["nic_burst"]
        first = status.frame
        for _ in range(9):
            nic.go_on(0, rx_prio3_pause_duration=1000)
            await run.step(0.1)
        assert (status.frame, len(run.frames)) == (first, 1)
        await run.step(0.1)
        assert len(run.frames) == 2
        assert (status.state, status.reads) == (OK, 11)
        assert readings(status.frame)[c.NIC_PAUSE.name, ("ens1", "receive", "+Inf")] == 10


def test_an_agent_that_reads_once_polls_twice_and_reports_the_difference() -> None:
    nic = CountingNic()
    source = NicBurstSource(0.1)
    SourceReader(source, nic.host, ORIGIN).run()
    source.close()
    nic.go_on(150, rx_prio3_pause_duration=90_000)
    frame = SourceReader(source, nic.host, ORIGIN).run().frame
    values = readings(frame)
    assert values[c.NIC_PAUSE.name, ("ens1", "receive", "0.5")] == 0
    assert values[c.NIC_PAUSE.name, ("ens1", "receive", "0.75")] == 1
    assert values[UNSEEN, ("ens1",)] == 0
