"""The collector's clock: a wrong wall clock shifts no timestamps."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from railscope.timestamps import SECOND_NS
from railscope_collector import clock
from railscope_collector.clock import ClockState, CollectorClock, Correction

DAY_NS = 86_400 * SECOND_NS
START_NS = 1_790_000_000 * SECOND_NS


class MachineClocks:
    """A machine whose clocks a test sets; `right_ns` is the true time."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.boot_ns, self.error_ns, self.began_ns = (
            1000 * SECOND_NS,
            0,
            START_NS - 1000 * SECOND_NS,
        )
        self.offsets: list[int] = []
        self.changes: list[str] = []
        self.boot = "boot-1"

    @property
    def right_ns(self) -> int:
        return self.began_ns + self.boot_ns

    def started(self, newest_ns: int = 0, *, is_lost: bool = False) -> CollectorClock:
        one = CollectorClock(
            self.directory,
            lambda _: self.offsets,
            [self._changed],
            lambda: self.right_ns + self.error_ns,
            lambda: self.boot_ns,
            self.boot,
        )
        one.open(newest_ns, is_lost=is_lost)
        return one

    def _changed(self, state: ClockState) -> None:
        self.changes.append(state.problem)


def test_a_step_is_suspect_at_once_and_moves_nothing(tmp_path: Path):
    machine = MachineClocks(tmp_path)
    agent = machine.started()
    for error in (30 * DAY_NS, -5 * DAY_NS, 6 * SECOND_NS):
        machine.error_ns = error
        assert agent.now_ns() == machine.right_ns
        assert "stepped" in agent.problem
        machine.boot_ns += 6 * SECOND_NS
        assert agent.now_ns() == machine.right_ns
        machine.error_ns = 0
        machine.boot_ns += 2 * SECOND_NS
        assert agent.now_ns() == machine.right_ns
        assert not agent.problem
    assert [bool(change) for change in machine.changes] == [True, False] * 3


def test_a_boot_that_begins_before_the_newest_frame_is_suspect(tmp_path: Path):
    machine = MachineClocks(tmp_path)
    machine.error_ns = -DAY_NS
    agent = machine.started(newest_ns=START_NS)
    assert "before the newest frame" in agent.problem
    assert agent.now_ns() >= START_NS


def test_most_nodes_contradict_a_clock(tmp_path: Path):
    machine = MachineClocks(tmp_path)
    agent = machine.started()
    for offsets, suspect in (
        ([3600 * SECOND_NS] * 2, False),
        ([3600 * SECOND_NS, 3600 * SECOND_NS, 0], True),
        ([3600 * SECOND_NS, -3600 * SECOND_NS, 0], False),
        ([-90 * SECOND_NS] * 40 + [0] * 30, True),
        ([59 * SECOND_NS] * 9, False),
    ):
        machine.offsets = offsets
        machine.boot_ns += 2 * SECOND_NS
        assert bool(agent.problem) is suspect, offsets
        machine.offsets = []
        machine.boot_ns += 2 * SECOND_NS
        assert not agent.problem


def rebooted(directory: Path, *, off_ns: int, error_ns: int) -> MachineClocks:
    """A machine whose collector ran, that was off for a time, and starts with a wrong wall clock."""
    before = MachineClocks(directory)
    before.started()
    machine = MachineClocks(directory)
    machine.boot, machine.error_ns = "boot-2", error_ns
    machine.began_ns += machine.boot_ns + off_ns
    return machine


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_a_boot_ahead_of_its_time_is_found_by_any_number_of_nodes(tmp_path: Path, nodes: int):
    machine = rebooted(tmp_path, off_ns=300 * SECOND_NS, error_ns=30 * DAY_NS)
    agent = machine.started()
    assert agent.hold_reason, "nothing is finalized before a node agrees"
    assert not agent.problem
    began_ns = agent.doubted_since_ns
    assert began_ns == machine.right_ns + machine.error_ns
    machine.offsets = [-30 * DAY_NS] * nodes
    machine.boot_ns += 2 * SECOND_NS
    assert "behind the collector" in agent.problem
    assert agent.doubted_since_ns == began_ns, "all frames of this boot are in doubt"
    machine.error_ns = 0
    (tmp_path / clock.ACCEPTED_FILE).touch()
    machine.boot_ns += 2 * SECOND_NS
    assert agent.now_ns() == machine.right_ns
    assert agent.is_replaced
    machine.offsets = []
    again = machine.started()
    assert not again.hold_reason
    found = clock.read_state(tmp_path)
    assert found is not None
    assert found.corrections == [Correction(began_ns, -30 * DAY_NS)]


@pytest.mark.parametrize(
    "offsets", [[0], [30 * SECOND_NS], [0, -3600 * SECOND_NS], [90 * SECOND_NS, -59 * SECOND_NS]]
)
def test_one_node_that_agrees_confirms_the_clock_of_a_small_cluster(tmp_path: Path, offsets):
    machine = rebooted(tmp_path, off_ns=40 * DAY_NS, error_ns=0)
    agent = machine.started()
    assert agent.hold_reason
    machine.offsets = offsets
    machine.boot_ns += 2 * SECOND_NS
    assert not agent.hold_reason
    assert not agent.doubted_since_ns
    machine.offsets = [-3600 * SECOND_NS]
    machine.boot_ns += 2 * SECOND_NS
    assert not agent.hold_reason, "a confirmed clock is not contradicted by one node"


def test_nodes_that_go_on_contradicting_do_not_undo_a_decision(tmp_path: Path):
    machine = MachineClocks(tmp_path)
    agent = machine.started()
    machine.offsets = [3600 * SECOND_NS] * 3
    machine.boot_ns += 2 * SECOND_NS
    assert agent.problem
    (tmp_path / clock.ACCEPTED_FILE).touch()
    for _ in range(5):
        machine.boot_ns += 2 * SECOND_NS
        assert not agent.problem
    assert not agent.is_replaced, "the reference did not change"
    machine.offsets = [0] * 3
    machine.boot_ns += 2 * SECOND_NS
    assert not agent.problem
    machine.offsets = [3600 * SECOND_NS] * 3
    machine.boot_ns += 2 * SECOND_NS
    assert agent.problem, "a new contradiction is a new question"


@given(st.lists(st.tuples(st.integers(-(10**18), 10**18), st.integers(1, 10**12)), max_size=20))
def test_p25_no_steps_move_the_time_beyond_the_slew(tmp_path_factory, steps):
    machine = MachineClocks(tmp_path_factory.mktemp("clock"))
    agent = machine.started()
    passed = 0
    for error_ns, pause_ns in steps:
        machine.error_ns = error_ns
        machine.boot_ns += pause_ns
        passed += pause_ns
        allowed = passed * clock.MAX_SLEW_PPM // 1_000_000 + 1
        assert abs(agent.now_ns() - machine.right_ns) <= min(allowed, passed)
        assert abs(error_ns) <= clock.MAX_STEP_NS + allowed or agent.problem


@pytest.mark.parametrize("content", [None, b""])
def test_a_clock_whose_file_was_lost_waits_for_a_node(tmp_path: Path, content: bytes | None):
    machine = MachineClocks(tmp_path)
    machine.started()
    (tmp_path / clock.FILE).unlink()
    if content is not None:
        (tmp_path / clock.FILE).write_bytes(content)
    agent = machine.started(is_lost=True)
    assert "no node has confirmed the clock" in agent.hold_reason
    assert clock.read_state(tmp_path) is not None, "it is written again"
