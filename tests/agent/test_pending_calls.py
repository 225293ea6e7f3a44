"""Calls that do not return: recorded as such, and replayed so that they block a real thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.clock import NS, ManualClock
from support.machine import FakeHost

from railscope.capture import PENDING, Capture, CaptureMetadata, CaptureMoment
from railscope.exposition import TextFormat
from railscope_agent.config import AgentSettings, BudgetSettings
from railscope_agent.host import NvmlError
from railscope_agent.host.recorded_host import RecordedHost
from railscope_agent.host.recording_host import RecordingHost
from railscope_agent.sampling.status import OK, PARTIAL
from railscope_agent.service import Agent
from railscope_simulator import NodeSpec, simulate

PATIENCE_SECONDS = 60
POWER = "nvml.nvmlDeviceGetPowerUsage(0)"
ABOUT = CaptureMetadata("n1", "b", 0, 0, 60 * NS, "test")


class PendingCaller:
    """A caller on its own thread, and the answers to its call."""

    def __init__(self, ask: Callable[[], Any]) -> None:
        self.answers: list[Any] = []
        self._thread = threading.Thread(target=lambda: self.answers.append(ask()), daemon=True)
        self._thread.start()

    def answer(self) -> Any:
        self._thread.join(PATIENCE_SECONDS)
        return self.answers[0]

    @property
    def waits(self) -> bool:
        self._thread.join(0.1)
        return self._thread.is_alive()


class BlockedAnswer:
    """An answer that blocks until a test releases it."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked, self.released = threading.Event(), threading.Event()

    def __call__(self) -> Any:
        self.asked.set()
        assert self.released.wait(PATIENCE_SECONDS)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def machine(clock: ManualClock) -> FakeHost:
    host = FakeHost(clock)
    host.calls[POWER] = 500
    return host


def power(host: RecordingHost | RecordedHost) -> Any:
    return host.call("nvml", "nvmlDeviceGetPowerUsage", 0)


def replayed(moments: list[CaptureMoment]) -> tuple[RecordedHost, ManualClock]:
    clock = ManualClock()
    began = clock.now().boot_ns
    capture = Capture(ABOUT, tuple(moments))
    return RecordedHost(capture, clock, lambda: (clock.now().boot_ns - began) % (60 * NS)), clock


def waited(
    recording: RecordingHost, machine: FakeHost, answer: Any, seconds: float
) -> tuple[BlockedAnswer, PendingCaller]:
    """Make a call whose answer takes some seconds."""
    machine.calls[POWER] = slow = BlockedAnswer(answer)

    def ask() -> Any:
        try:
            return power(recording)
        except NvmlError as error:
            return error

    asking = PendingCaller(ask)
    assert slow.asked.wait(PATIENCE_SECONDS)
    machine.clock.advance(seconds)
    return slow, asking


def test_a_caller_waits_until_the_recording_has_the_answer(
    machine: FakeHost, clock: ManualClock
) -> None:
    recording = RecordingHost(machine)
    assert power(recording) == 500
    clock.advance(10)
    slow, asking = waited(recording, machine, 600, 30)
    slow.released.set()
    assert asking.answer() == 600
    assert [(m.offset_ns // NS, m.calls) for m in recording.moments] == [
        (0, {POWER: 500}),
        (10, {POWER: PENDING}),
        (40, {POWER: 600}),
    ]

    replay, now = replayed([CaptureMoment.from_line(m.to_line()) for m in recording.moments])
    assert power(replay) == 500
    now.advance(11)
    asking = PendingCaller(lambda: power(replay))
    assert asking.waits
    now.advance(28)
    assert asking.waits
    now.advance(1)
    assert asking.answer() == 600


def test_a_recording_that_ends_before_the_answer_leaves_it_open(
    machine: FakeHost, clock: ManualClock
) -> None:
    recording = RecordingHost(machine)
    assert power(recording) == 500
    clock.advance(20)
    slow, asking = waited(recording, machine, 500, 30)
    moments = recording.moments
    slow.released.set()
    assert asking.answer() == 500
    assert [(m.offset_ns // NS, m.calls) for m in moments] == [
        (0, {POWER: 500}),
        (20, {POWER: PENDING}),
    ]
    assert recording.moments[-1].calls == {POWER: 500}, "the same answer is news after all"

    replay, now = replayed(moments)
    now.advance(50)
    asking = PendingCaller(lambda: power(replay))
    assert asking.waits
    now.advance(12)
    assert asking.answer() == 500, "the recording has started over"


@pytest.fixture
def stuck() -> Iterator[tuple[RecordedHost, ManualClock]]:
    """A server whose driver is stuck from its tenth second on, until the recording starts over."""
    spec = NodeSpec("n1", gpus=2, scenario="driver_stuck")
    capture, clock = simulate(spec, 20, 5), ManualClock()
    began = clock.now().boot_ns
    yield RecordedHost(capture, clock, lambda: (clock.now().boot_ns - began) % (21 * NS)), clock
    clock.advance(21 - (clock.now().boot_ns - began) / NS % 21)


async def test_a_stuck_gpu_ages_itself_alone(
    stuck: tuple[RecordedHost, ManualClock],
) -> None:
    host, clock = stuck
    settings = AgentSettings(budget=BudgetSettings(cpu_ratio=0), read_timeout_seconds=0.3)
    agent = Agent(settings, host, "n1")
    await agent.sampler.once()
    states = {name: status.state for name, status in agent.sampler.statuses.items()}
    assert (states["gpu"], states["rdma"]) == (OK, OK)
    clock.advance(11)
    for _ in range(2):  # the self-metrics of the agent are read beside the others
        await agent.sampler.once()
    states = {name: status.state for name, status in agent.sampler.statuses.items()}
    assert (states["gpu"], states["nvlink"], states["rdma"]) == (PARTIAL, PARTIAL, OK)
    assert list(agent.sampler.hung.by_device) == ["nvml/1"]
    page = agent.endpoint.text(TextFormat.PROMETHEUS)
    assert 'railscope_source_state{source="gpu",state="partial"} 1' in page
    assert page.count("railscope_gpu_power_watts{") == 1
    assert 'railscope_agent_hung_device_seconds{device="nvml/1"} ' in page
    assert "railscope_rdma_transmit_bytes_total{" in page
