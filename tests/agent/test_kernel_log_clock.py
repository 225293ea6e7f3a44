"""Times of the kernel log on the boot clock: drift, suspends, and restarts of the agent."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from support.clock import NS

from railscope_agent.streams.kernel_log_clock import TOLERANCE_NS, KernelLogClock, LogClockFile

POLL_NS = 5 * NS
UPTIME_NS = 20 * 86_400 * NS


class NodeWithLog:
    """Node whose log has a clock of its own, and an agent that starts again now and then."""

    def __init__(self, path: Path, chance: random.Random, drift_ppm: float) -> None:
        self._file = LogClockFile(path, "boot-1")
        self._chance, self._drift_ppm = chance, drift_ppm
        self._suspended_ns = 0
        self._agent: KernelLogClock | None = None
        self.now_ns = UPTIME_NS
        self.stamps: list[int] = []
        self.written_ns: list[int] = []
        self.read_ns: list[int] = []
        self.times: list[int] = []

    def suspend(self, seconds: int) -> None:
        self._suspended_ns += seconds * NS
        self.now_ns += seconds * NS

    def write_records(self, count: int, span_ns: int) -> None:
        for written_ns in sorted(
            self.now_ns + self._chance.randrange(span_ns) for _ in range(count)
        ):
            drift_ns = int((written_ns - UPTIME_NS) * self._drift_ppm / 1e6)
            self.stamps.append((written_ns - self._suspended_ns + drift_ns) // 1000 * 1000)
            self.written_ns.append(written_ns)
        self.now_ns += span_ns

    def poll(self) -> None:
        began_ns = self.now_ns
        self.now_ns += self._chance.randrange(NS // 100)
        if self._agent is None:
            self._agent = KernelLogClock()
            self._agent.remember(self._file)
            unread = self.stamps
        else:
            unread = self.stamps[len(self.times) :]
        if unread:
            self._agent.place(min(unread), max(unread), self.now_ns)
        placed = [self._agent.boot_ns(stamp) for stamp in unread]
        known = self.times[: len(placed)] if unread is self.stamps else []
        assert placed[: len(known)] == known, "a record has another time after a restart"
        self.times += placed[len(known) :]
        self.read_ns += [self.now_ns] * (len(self.times) - len(self.read_ns))
        self._agent.end_poll(began_ns, is_at_end=True)

    def restart(self) -> None:
        self._agent = None

    @property
    def steps(self) -> int:
        return len(self._file.load())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("drift_ppm", [0, 20, -50, 50, 150])
@pytest.mark.parametrize("suspended_seconds", [0, 7, 3600])
def test_a_record_keeps_its_time_and_steps_are_rare(
    tmp_path: Path, seed: int, drift_ppm: float, suspended_seconds: int
) -> None:
    chance = random.Random(f"{seed} {drift_ppm} {suspended_seconds}")  # noqa: S311
    node = NodeWithLog(tmp_path / "clock.json", chance, drift_ppm)
    node.poll()
    for number in range(4320):  # 6 hours
        node.write_records(chance.choice([0, 0, 0, 1, 3]), POLL_NS)
        if number == 1000:
            node.suspend(suspended_seconds)
        if chance.random() < 0.002:
            node.write_records(chance.choice([0, 9]), chance.choice([1, 60, 3600]) * NS)
            node.restart()
        node.poll()
    for placed_ns, read_ns in zip(node.times, node.read_ns, strict=True):
        assert placed_ns <= read_ns + TOLERANCE_NS
    errors = sorted(abs(a - b) for a, b in zip(node.times, node.written_ns, strict=True))
    assert errors[len(errors) * 95 // 100] < 3 * NS
    drift_ns = abs(drift_ppm) / 1e6 * (node.now_ns - UPTIME_NS)
    assert node.steps <= 6 + 2 * drift_ns / TOLERANCE_NS


@pytest.mark.parametrize("age_ns", [1, NS // 20, 4 * NS])
def test_the_first_poll_after_a_restart_leaves_earlier_records_where_they_were(
    tmp_path: Path, age_ns: int
) -> None:
    """An agent that was down for a day, with a clock of the log that is fast by 50 ppm."""
    chance = random.Random(1)  # noqa: S311
    node = NodeWithLog(tmp_path / "clock.json", chance, 50)
    node.poll()
    for _ in range(20_000):
        node.write_records(1, POLL_NS)
        node.poll()
    node.write_records(0, 86_400 * NS - age_ns)
    node.write_records(1, age_ns)
    node.restart()
    node.poll()
    assert node.times[-1] <= node.now_ns
    node.restart()
    node.poll()


def test_records_that_are_older_than_the_steps_keep_the_oldest_offset() -> None:
    clock = KernelLogClock()
    clock.end_poll(10 * NS, is_at_end=True)
    for number in range(1, 2000):
        # Each poll finds the log another two seconds behind.
        clock.place(10 * NS + 3 * number * NS, 10 * NS + 3 * number * NS, (10 + 5 * number) * NS)
        clock.end_poll((10 + 5 * number) * NS, is_at_end=True)
    ages = [clock.boot_ns(stamp * NS) - stamp * NS for stamp in range(13, 6000, 3)]
    assert ages == sorted(ages)
    assert ages[0] > 900 * NS


def test_a_poll_that_left_records_is_no_earliest_time_of_the_next_ones() -> None:
    clock = KernelLogClock()
    clock.end_poll(100 * NS, is_at_end=False)
    clock.place(40 * NS, 40 * NS, 105 * NS)
    assert clock.boot_ns(40 * NS) == 40 * NS
