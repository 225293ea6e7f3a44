"""Burst sampling of cards: every window counts once, in the bucket of what was seen in it."""

from __future__ import annotations

import errno
from bisect import bisect_left
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clock import ManualClock
from support.machine import FakeHost
from support.reading import ORIGIN, readings
from support.sampling import sampling

from agent.config import BudgetSettings
from agent.host.recorded_host import RecordedHost
from agent.sampling.burst_windows import MAX_WINDOWS
from agent.sampling.governor import create_governor
from agent.sampling.source_reader import SourceReader
from agent.sampling.status import OK
from agent.sources.nic_burst import NicBurstSource
from railscope.catalog import bursts as c
from railscope.frame import Frame
from railscope.reading import Absent, Reading
from simulator import NodeSpec, simulate

MS = 1_000_000
WINDOW_MS = 100
LINE_BYTES_A_MS = 400_000 // 8 * 1000
UNSEEN = "railscope_nic_burst_missed_windows_total"
COUNTERS = "/sys/class/infiniband/mlx5_0/ports/1/hw_counters"


class Card:
    """A card at 400 Gb/s whose counters a test moves."""

    def __init__(self, interface: str = "ens1") -> None:
        self.interface = interface
        self.host = FakeHost(ManualClock())
        self.grown = {
            "rx_bytes_phy": 10**12, "tx_bytes_phy": 10**12, "rx_prio3_pause_duration": 5_000_000,
            "tx_prio3_pause_duration": 0, "rx_prio4_pause_duration": 0,
        }  # fmt: skip
        self.names = list(self.grown)
        self.host.files |= {
            f"/sys/class/net/{interface}/speed": "400000\n",
            f"{COUNTERS}/np_cnp_sent": "0\n",
            f"{COUNTERS}/rp_cnp_handled": "0\n",
            "/sys/bus/pci/devices/0000:18:00.0/vendor": "0x15b3\n",
        }
        self.host.links["/sys/class/infiniband/mlx5_0/device"] = "/sys/bus/pci/devices/0000:18:00.0"
        self.host.calls[f"ethtool.driver({interface})"] = {
            "driver": "mlx5_core", "version": "", "firmware": "", "bus": "0000:18:00.0",
        }  # fmt: skip
        self.say()

    def say(self) -> None:
        """Answer with the counters as they are now."""
        self.host.calls[f"ethtool.statistics({self.interface})"] = {
            "names": self.names, "values": [self.grown[name] for name in self.names],
        }  # fmt: skip

    def go_on(self, milliseconds: float, **growth: int) -> None:
        """Let time pass and counters grow."""
        self.host.clock.advance(milliseconds / 1000)
        for name, amount in growth.items():
            self.grown[name] += amount
        self.say()


class Lane:
    """A source on a card, and the last frame of it."""

    def __init__(self, card: Card, window_seconds: float = 0.1) -> None:
        self.card = card
        self.window_ms = 1000 * window_seconds
        self.reader = SourceReader(NicBurstSource(window_seconds), card.host, ORIGIN)
        self.frame: Frame | None = None
        self.look()

    def look(self) -> None:
        outcome = self.reader.run()
        assert not outcome.problem
        self.frame = outcome.frame or self.frame

    def told(self) -> dict[tuple[str, tuple[str, ...]], Reading]:
        """What a frame says that is made now: at the next full second."""
        clock = self.card.host.clock
        while True:
            left_ms = 1000 - clock.now().boot_ns // MS % 1000
            self.card.host.clock.advance(min(left_ms, self.window_ms) / 1000)
            self.look()
            if left_ms <= self.window_ms:
                return readings(self.frame)

    def histogram(self, metric: c.Metric, direction: str) -> list[Reading]:
        told = self.told()
        return [told[metric.name, ("ens1", direction, part)] for part in metric.buckets]


def test_a_window_counts_in_the_bucket_of_its_pause() -> None:
    card = Card()
    lane = Lane(card)
    for paused_us in (0, 500, 30_000, 60_000, 100_000):
        card.go_on(WINDOW_MS, rx_prio3_pause_duration=paused_us)
        lane.look()
    # 0, 0.005, 0.3, 0.6 and 1.0 of a window; the five until the full second were without pause
    assert lane.histogram(c.NIC_PAUSE, "receive") == [1 + 5, 7, 7, 7, 7, 8, 9, 9, 10]
    told = readings(lane.frame)
    assert told[c.NIC_PAUSE.name, ("ens1", "receive", "sum")] == 5_000 + 300_000 + 600_000 + 10**6
    assert told[UNSEEN, ("ens1",)] == 0
    assert told["railscope_nic_burst_window_seconds", ("ens1",)] == WINDOW_MS * MS


def test_of_several_priorities_the_one_paused_longest_counts() -> None:
    card = Card()
    lane = Lane(card)
    card.go_on(WINDOW_MS, rx_prio3_pause_duration=20_000, rx_prio4_pause_duration=80_000)
    lane.look()
    assert lane.histogram(c.NIC_PAUSE, "receive")[-3:] == [9, 10, 10]


def test_utilization_is_of_the_line_rate() -> None:
    card = Card()
    lane = Lane(card)
    card.go_on(WINDOW_MS, rx_bytes_phy=LINE_BYTES_A_MS * 40, tx_bytes_phy=LINE_BYTES_A_MS * 100)
    lane.look()
    assert lane.histogram(c.NIC_UTILIZATION, "receive") == [9, 9, 9, 9, 9, 10, 10, 10, 10]
    told = readings(lane.frame)
    assert told[c.NIC_UTILIZATION.name, ("ens1", "receive", "sum")] == 400_000
    assert told[c.NIC_UTILIZATION.name, ("ens1", "transmit", "0.9")] == 9


def test_notifications_are_a_rate() -> None:
    card = Card()
    lane = Lane(card)
    card.host.files[f"{COUNTERS}/np_cnp_sent"] = "500\n"
    card.go_on(WINDOW_MS)
    lane.look()
    assert lane.histogram(c.NIC_NOTIFICATIONS, "transmit") == [9, 9, 9, 9, 10, 10, 10]


def test_what_cannot_be_read_is_unseen_and_nothing_is_made_up() -> None:
    card = Card()
    lane = Lane(card)
    card.go_on(WINDOW_MS)
    lane.look()
    del card.host.files[f"{COUNTERS}/np_cnp_sent"]
    card.host.clock.advance(0.9 + WINDOW_MS / 1000 * (MAX_WINDOWS - 1))
    card.host.calls["ethtool.statistics(ens1)"] = OSError(errno.EIO, "Input/output error")
    lane.look()
    told = lane.told()
    assert told[UNSEEN, ("ens1",)] == 19
    assert told[c.NIC_PAUSE.name, ("ens1", "receive", "+Inf")] is Absent.ERROR
    card.go_on(WINDOW_MS, rx_prio3_pause_duration=WINDOW_MS * 1000)
    lane.look()
    told = lane.told()
    assert told[UNSEEN, ("ens1",)] == 20, "the first look after the trouble only begins anew"
    assert told[c.NIC_PAUSE.name, ("ens1", "receive", "+Inf")] == 1 + 9


def test_an_answer_that_took_long_speaks_of_no_instant() -> None:
    card = Card()
    lane = Lane(card)
    card.go_on(WINDOW_MS)
    lane.look()
    answer = card.host.calls["ethtool.statistics(ens1)"]

    def read_then_stuck() -> object:
        card.host.clock.advance(0.25)
        return answer

    card.host.clock.advance(0.1)
    card.host.calls["ethtool.statistics(ens1)"] = read_then_stuck
    lane.look()
    card.go_on(50, rx_bytes_phy=LINE_BYTES_A_MS * 300, rx_prio3_pause_duration=300_000)
    lane.look()
    told = lane.told()
    assert told[UNSEEN, ("ens1",)] == 4
    assert told[c.NIC_PAUSE.name, ("ens1", "receive", "0.0")] == 6
    assert told[c.NIC_PAUSE.name, ("ens1", "receive", "+Inf")] == 6
    assert told[c.NIC_UTILIZATION.name, ("ens1", "receive", "sum")] == 0


def test_a_short_trouble_costs_no_window() -> None:
    card = Card()
    lane = Lane(card)
    answer = card.host.calls["ethtool.statistics(ens1)"]
    card.host.calls["ethtool.statistics(ens1)"] = OSError(errno.EAGAIN, "again")
    card.host.clock.advance(0.1)
    lane.look()
    card.host.calls["ethtool.statistics(ens1)"] = answer
    card.go_on(WINDOW_MS, rx_prio3_pause_duration=50_000)
    lane.look()
    assert lane.histogram(c.NIC_PAUSE, "receive") == [8, 8, 8, 8, 10, 10, 10, 10, 10]


def test_a_card_that_counts_anew_costs_its_window() -> None:
    card = Card()
    lane = Lane(card)
    card.go_on(WINDOW_MS)
    lane.look()
    card.grown = dict.fromkeys(card.grown, 3)
    card.go_on(WINDOW_MS)
    lane.look()
    told = lane.told()
    assert told[UNSEEN, ("ens1",)] == 1
    assert told[c.NIC_PAUSE.name, ("ens1", "receive", "+Inf")] == 9


def test_a_priority_that_is_paused_from_now_on_is_taken_up() -> None:
    card = Card()
    lane = Lane(card)
    card.go_on(WINDOW_MS)
    lane.look()
    card.names = [*card.names, "rx_prio5_pause_duration"]
    card.grown["rx_prio5_pause_duration"] = 0
    card.go_on(WINDOW_MS)
    lane.look()
    lane.look()
    card.go_on(WINDOW_MS, rx_prio5_pause_duration=90_000)
    lane.look()
    told = lane.told()
    assert told[c.NIC_PAUSE.name, ("ens1", "receive", "+Inf")] == 9, "the histogram went on"
    assert told[c.NIC_PAUSE.name, ("ens1", "receive", "0.75")] == 8
    assert told[UNSEEN, ("ens1",)] == 1


def test_without_a_line_rate_there_is_no_share_of_it() -> None:
    card = Card()
    card.host.files["/sys/class/net/ens1/speed"] = "-1\n"
    lane = Lane(card)
    card.go_on(WINDOW_MS, rx_bytes_phy=1)
    lane.look()
    told = lane.told()
    assert told[c.NIC_UTILIZATION.name, ("ens1", "receive", "+Inf")] == 9
    assert told[c.NIC_UTILIZATION.name, ("ens1", "transmit", "0.0")] == 10, "nothing is nothing"


@pytest.mark.parametrize("counts_downs", [True, False])
def test_a_link_that_came_back_slower_has_another_line_rate(*, counts_downs: bool) -> None:
    card = Card()
    if counts_downs:
        card.grown["link_down_events_phy"] = 0
        card.names = list(card.grown)
        card.say()
    lane = Lane(card)
    lane.told()
    card.host.files["/sys/class/net/ens1/speed"] = "200000\n"
    if counts_downs:
        card.grown["link_down_events_phy"] = 1
        card.say()
    lane.told()
    card.go_on(WINDOW_MS, rx_bytes_phy=LINE_BYTES_A_MS * 40)
    lane.look()
    told = lane.told()
    assert told[c.NIC_UTILIZATION.name, ("ens1", "receive", "sum")] == 800_000


@pytest.mark.parametrize(
    ("patterns", "found"), [((), {"ens1"}), (("eth*",), set()), (("e*",), {"ens1"})]
)
def test_the_cards_are_those_with_rdma_or_those_asked_for(
    patterns: tuple[str, ...], found: set[str]
) -> None:
    frame = SourceReader(NicBurstSource(0.1, patterns), Card().host, ORIGIN).run().frame
    assert {key[0] for _, key in readings(frame)} == found


BNXT = {"driver": "bnxt_en", "version": "", "firmware": "", "bus": "0000:18:00.0"}


class SlowCard(Card):
    """A card whose driver fetches its counters once a second."""

    def __init__(self, fetched_at_ms: int) -> None:
        super().__init__()
        self.host.calls["ethtool.driver(ens1)"] = BNXT
        self.grown = {"rx_bytes": 10**12, "tx_bytes": 10**12}
        self.names = list(self.grown)
        self._fetched_at_ms = fetched_at_ms
        self._fetched = -1
        self.say()

    def say(self) -> None:
        second = (self.host.clock.now().boot_ns // MS - getattr(self, "_fetched_at_ms", 0)) // 1000
        if second != getattr(self, "_fetched", second):
            self._fetched = second
            super().say()


def test_a_card_of_longer_windows_is_looked_at_as_often_as_they_end() -> None:
    card = SlowCard(350)
    lane = Lane(card)
    asked = []

    def answer() -> object:
        asked.append(card.host.clock.now().boot_ns)
        return {"names": card.names, "values": [card.grown[name] for name in card.names]}

    for _ in range(50):
        card.go_on(WINDOW_MS, rx_bytes=1)
        card.host.calls["ethtool.statistics(ens1)"] = answer
        lane.look()
    assert [at_ns % (1000 * MS) for at_ns in asked] == [0] * 5


@pytest.mark.parametrize("fetched_at_ms", [0, 350, 990])
def test_a_driver_that_fetches_once_a_second_has_windows_of_a_second(fetched_at_ms: int) -> None:
    card = SlowCard(fetched_at_ms)
    lane = Lane(card)
    for _ in range(200):
        card.go_on(WINDOW_MS, rx_bytes=LINE_BYTES_A_MS * 40)
        lane.look()
    told = readings(lane.frame)
    assert told["railscope_nic_burst_window_seconds", ("ens1",)] == 1000 * MS
    windows = [
        told[c.NIC_UTILIZATION.name, ("ens1", "receive", le)] for le in ("0.25", "0.5", "+Inf")
    ]
    assert windows[0] <= 1, "the first may begin before anything is known"
    assert 18 <= windows[1] == windows[2] <= 20, "none looks like a burst"
    assert told[UNSEEN, ("ens1",)] <= 1


def test_an_idle_card_of_such_a_driver_is_idle_and_not_unseen() -> None:
    card = SlowCard(350)
    lane = Lane(card)
    for _ in range(200):
        card.go_on(WINDOW_MS)
        lane.look()
    told = readings(lane.frame)
    assert told[c.NIC_UTILIZATION.name, ("ens1", "receive", "0.0")] >= 18
    assert told[UNSEEN, ("ens1",)] == 0


def test_a_port_is_looked_at_once_and_not_for_each_virtual_function() -> None:
    card = Card()
    physical = "/sys/bus/pci/devices/0000:17:00.0"
    card.host.files[f"{physical}/vendor"] = "0x15b3\n"
    card.host.links["/sys/bus/pci/devices/0000:18:00.0/physfn"] = physical
    assert SourceReader(NicBurstSource(0.1), card.host, ORIGIN).run().frame is None
    assert SourceReader(NicBurstSource(0.1, ["ens1"]), card.host, ORIGIN).run().frame is not None


LOOKS = st.lists(
    st.tuples(st.integers(1, 6 * WINDOW_MS), st.integers(0, 700_000)), min_size=1, max_size=40
)


@given(LOOKS)
def test_windows_add_up_to_time(looks: list[tuple[int, int]]) -> None:
    card = Card()
    lane = Lane(card)
    started_ns = card.host.clock.now().boot_ns
    for later_ms, paused_us in looks:
        card.go_on(later_ms, rx_prio3_pause_duration=paused_us)
        lane.look()
    told = lane.told()
    seen = told[c.NIC_PAUSE.name, ("ens1", "receive", "+Inf")]
    unseen = told[UNSEEN, ("ens1",)]
    passed = (card.host.clock.now().boot_ns - started_ns) // (WINDOW_MS * MS)
    assert (0 if seen is Absent.NOT_DUE else seen) + unseen == passed


@given(st.lists(st.integers(0, WINDOW_MS * 1000), min_size=1, max_size=50))
def test_windows_are_where_plain_counting_puts_them(paused_us: list[int]) -> None:
    card = Card()
    lane = Lane(card)
    for amount in paused_us:
        card.go_on(WINDOW_MS, rx_prio3_pause_duration=amount)
        lane.look()
    still = 10 - len(paused_us) % 10
    bounds = [int(bound * 10**6) for bound in c.NIC_PAUSE.bounds]
    counts = [0] * (len(bounds) + 1)
    for share in [*(amount * 10 for amount in paused_us), *[0] * still]:
        counts[bisect_left(bounds, share)] += 1
    assert lane.histogram(c.NIC_PAUSE, "receive") == [*accumulate(counts)]


@pytest.mark.parametrize("window_seconds", [0.02, 0.07, 0.1, 1.0])
def test_no_period_that_the_budget_may_ask_for_leaves_windows_unseen(window_seconds: float) -> None:
    governor = create_governor(BudgetSettings(cpu_ratio=0.001), [NicBurstSource(window_seconds)])
    stretch = governor.loads["nic_burst"].most
    assert stretch > 1
    card = Card()
    lane = Lane(card, window_seconds)
    for late in (0.0, 0.9, 0.0, 0.5, 0.9):
        card.go_on(1000 * window_seconds * (stretch + late))
        lane.look()
    assert lane.told()[UNSEEN, ("ens1",)] == 0


async def test_frames_come_once_a_second_and_hold_in_between() -> None:
    card = Card()
    async with sampling(card.host, [NicBurstSource(0.1)]) as run:
        status = run.sampler.statuses["nic_burst"]
        first = status.frame
        for _ in range(9):
            card.go_on(0, rx_prio3_pause_duration=1000)
            await run.step(0.1)
        assert (status.frame, len(run.frames)) == (first, 1)
        await run.step(0.1)
        assert len(run.frames) == 2
        assert (status.state, status.reads) == (OK, 11)
        assert readings(status.frame)[c.NIC_PAUSE.name, ("ens1", "receive", "+Inf")] == 10


def test_a_recording_of_whole_seconds_has_windows_of_a_second() -> None:
    capture = simulate(NodeSpec("node-1", gpus=1, scenario="incast"), 30)
    clock = ManualClock()
    started_ns = clock.now().boot_ns
    host = RecordedHost(capture, clock, lambda: clock.now().boot_ns - started_ns)
    reader = SourceReader(NicBurstSource(0.1), host, ORIGIN)
    frame = None
    for _ in range(300):
        frame = reader.run().frame or frame
        clock.advance(0.1)
    told = readings(frame)
    assert told["railscope_nic_burst_window_seconds", ("ens1f0np0",)] == 1000 * MS
    seen = told[c.NIC_UTILIZATION.name, ("ens1f0np0", "receive", "+Inf")]
    total = told[c.NIC_UTILIZATION.name, ("ens1f0np0", "receive", "sum")]
    assert isinstance(seen, int)
    assert isinstance(total, int)
    assert seen + told[UNSEEN, ("ens1f0np0",)] >= 28
    assert total <= seen * 10**6, "no window has more than the line rate"


async def test_the_burst_sampling_waits_for_no_turn() -> None:
    card = Card()
    async with sampling(card.host, [NicBurstSource(0.1)]) as run:
        async with run.sampler._turn:  # noqa: SLF001 - as if others were slow, one after the other
            for _ in range(10):
                card.go_on(0, rx_prio3_pause_duration=10_000)
                await run.step(0.1)
        told = readings(run.sampler.statuses["nic_burst"].frame)
    assert told[c.NIC_PAUSE.name, ("ens1", "receive", "0.05")] == 0
    assert told[c.NIC_PAUSE.name, ("ens1", "receive", "0.1")] == 10
    assert told[UNSEEN, ("ens1",)] == 0


def test_an_agent_that_reads_once_looks_twice_and_tells_of_what_was_between() -> None:
    card = Card()
    source = NicBurstSource(0.1)
    SourceReader(source, card.host, ORIGIN).run()
    source.close()
    card.go_on(150, rx_prio3_pause_duration=90_000)
    frame = SourceReader(source, card.host, ORIGIN).run().frame
    told = readings(frame)
    assert told[c.NIC_PAUSE.name, ("ens1", "receive", "0.5")] == 0
    assert told[c.NIC_PAUSE.name, ("ens1", "receive", "0.75")] == 1
    assert told[UNSEEN, ("ens1",)] == 0
