"""A call into a sick driver that does not come back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import cast

import pytest
from structlog.testing import capture_logs
from support.cards import add_card
from support.clock import NS
from support.gpus import add_gpus
from support.machine import FakeHost
from support.pages import Sample, sample, samples
from support.reading import ORIGIN, readings
from support.sampling import Sampling, sampling

from agent.device_thread import DeviceThread
from agent.reader import Reader
from agent.sampler import Limits, Sampler, _Family, _Member
from agent.sinks.prometheus import Page
from agent.sources.nvidia.gpu import Gpu
from agent.sources.rdma import Rdma
from agent.sources.self_metrics import SelfMetrics
from agent.stats import ShippingStats
from agent.status import FAILED, OK
from railscope.catalog.agent import SOURCE_EVENT
from railscope.exposition import Format
from railscope.frame import Frame

POWER = "nvml.nvmlDeviceGetPowerUsage(0)"
SHORT = 0.3


class Stuck:
    """An answer that blocks until it is released."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.callers = 0
        self.answer = 499_000

    def __call__(self) -> int:
        self.callers += 1
        assert self.released.wait(30), "the test forgot to release the call"
        return self.answer


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    call = Stuck()
    yield call
    call.released.set()


@pytest.fixture
def host() -> FakeHost:
    host = FakeHost()
    add_gpus(host, 2)
    add_card(host)
    return host


def page_of(run: Sampling) -> dict[Sample, float]:
    """What a scrape would see now."""
    clock, statuses = run.clock, run.sampler.statuses
    page = Page("node-1", statuses.values, lambda: clock.now().boot_ns, "")
    return samples(page.text(Format.PROMETHEUS))


async def test_a_hung_call_ages_its_own_source_and_nothing_else(
    host: FakeHost, stuck: Stuck
) -> None:
    healthy = host.calls[POWER]
    with capture_logs() as logs:
        async with sampling(host, [Gpu.load(), Rdma()], SHORT) as run:
            gpu, rdma = run.sampler.statuses["gpu"], run.sampler.statuses["rdma"]
            await run.step()
            host.calls[POWER] = stuck
            hung_at = run.clock.now().boot_ns + NS
            for _ in range(30):
                await run.step()
            assert (gpu.state, gpu.problem) == (FAILED, f"no answer within {SHORT} s")
            assert (gpu.overdue, gpu.missed_ticks, stuck.callers) == (True, 29, 1)
            assert (rdma.state, rdma.reads, rdma.missed_ticks) == (OK, 32, 0)
            assert len(run.of("gpu")) == 2
            assert len(run.of("rdma")) == 32
            names = {name for name, _ in page_of(run)}
            assert not any(name.startswith("railscope_gpu_") for name in names)
            assert "railscope_rdma_transmit_packets_total" in names

            host.calls[POWER] = healthy
            stuck.released.set()
            await run.until(lambda: gpu.state == OK)
            assert gpu.overdue is False
            powers = [readings(f)["railscope_gpu_power_watts", ("GPU-0",)] for f in run.of("gpu")]
            assert set(powers) == {500_000}, "the late answer is thrown away"
            assert hung_at not in {frame.instant.boot_ns for frame in run.of("gpu")}
            sequences = [frame.sequence for frame in run.of("gpu")]
            assert sequences == list(range(1, len(sequences) + 1))
            assert sample("railscope_gpu_power_watts", gpu="GPU-0") in page_of(run)
    told = [(entry["event"], entry["source"]) for entry in logs]
    assert told == [("source_failed", "gpu"), ("source_recovered", "gpu")]
    assert logs[1]["after_seconds"] >= 29


async def test_all_sources_of_the_driver_wait_and_recover_together(
    host: FakeHost, stuck: Stuck
) -> None:
    """They share a thread: NVML must not be entered twice."""
    async with sampling(host, [Gpu.load(), Gpu.health(), Rdma()], SHORT) as run:
        states = run.sampler.statuses
        healthy, host.calls[POWER] = host.calls[POWER], stuck
        for _ in range(12):
            await run.step()
        assert (states["gpu"].state, states["gpu_health"].state) == (FAILED, FAILED)
        assert states["rdma"].state == OK
        host.calls[POWER] = healthy
        stuck.released.set()
        await run.until(lambda: states["gpu"].state == states["gpu_health"].state == OK)


async def test_each_read_has_its_own_deadline(host: FakeHost, stuck: Stuck) -> None:
    """A source that may take long, due at the same tick, lends the hung one no time."""
    host.calls[POWER] = stuck
    patient = Gpu.health(period_seconds=100_000 * SHORT)
    async with sampling(host, [Gpu.load(), patient], SHORT, deadline_periods=SHORT) as run:
        gpu, health = run.sampler.statuses["gpu"], run.sampler.statuses["gpu_health"]
        assert (gpu.state, gpu.problem) == (FAILED, f"no answer within {SHORT} s")
        held_up = "the driver has not come back from an earlier call"
        assert (health.state, health.problem) == (FAILED, held_up)


async def test_a_probe_that_hangs_is_a_hung_call(host: FakeHost, stuck: Stuck) -> None:
    count = "nvml.nvmlDeviceGetCount()"
    healthy, host.calls[count] = host.calls[count], stuck
    stuck.answer = 1
    async with sampling(host, [Gpu.load(), Rdma()], SHORT) as run:
        assert run.sampler.statuses["gpu"].state == FAILED
        assert run.sampler.statuses["rdma"].state == OK
        host.calls[count] = healthy
        stuck.released.set()
        await run.until(lambda: run.sampler.statuses["gpu"].state == OK)


async def test_the_agent_tells_of_the_hung_source(host: FakeHost, stuck: Stuck) -> None:
    async with sampling(host, [Gpu.load(), Rdma()], SHORT) as run:
        columns = len(run.of("gpu")[0].values)
        host.calls[POWER] = stuck
        for _ in range(3):
            await run.step()
        own = SelfMetrics(lambda: run.sampler.statuses, ShippingStats(), run.sampler.take_events)
        frame = Reader(own, host, ORIGIN).run().frame
        assert frame is not None
        found = readings(frame)
        assert found["railscope_source_absent_readings", ("gpu", "timeout")] == columns
        assert found["railscope_source_absent_readings", ("rdma", "timeout")] == 0
        assert found["railscope_source_age_seconds", ("gpu",)] == 3 * NS
        assert found["railscope_source_age_seconds", ("rdma",)] == 0
        assert found["railscope_source_missed_ticks_total", ("gpu",)] == 2
        assert found["railscope_source_state", ("gpu",)] == FAILED
        (event,) = frame.events
        assert (event.event_class, event.entity.key) == (SOURCE_EVENT, ("gpu",))
        assert event.facts == {
            "before": "ok", "after": "failed", "problem": f"no answer within {SHORT} s",
        }  # fmt: skip


async def test_a_stuck_thread_does_not_keep_the_agent_from_stopping(
    host: FakeHost, stuck: Stuck
) -> None:
    async with sampling(host, [Gpu.load()], SHORT) as run:
        host.calls[POWER] = stuck
        await run.step()
    assert not stuck.released.is_set(), "stopped while the call was still out"


async def test_slow_but_in_time_is_no_failure(host: FakeHost) -> None:
    """A read of half a period that crosses no tick."""
    power = host.calls[POWER]
    async with sampling(host, [Gpu.load()]) as run:

        def slowly() -> int:
            host.clock.advance(0.5)
            return int(power)

        host.calls[POWER] = slowly
        await run.step()
        status = run.sampler.statuses["gpu"]
        assert (status.state, status.duration_ns) == (OK, NS // 2)
        await run.step(0.5)
        assert status.missed_ticks == 0


async def test_ticks_that_pass_during_a_long_read_are_missed_and_counted(host: FakeHost) -> None:
    power = host.calls[POWER]
    async with sampling(host, [Gpu.load()]) as run:

        def slowly() -> int:
            host.calls[POWER] = power
            host.clock.advance(3.5)
            return int(power)

        host.calls[POWER] = slowly
        await run.step()
        status = run.sampler.statuses["gpu"]
        assert (status.reads, status.missed_ticks) == (2, 3)
        await run.step(0.5)
        assert [frame.instant.boot_ns % NS for frame in run.frames] == [0, 0, 0], "on the grid"


class Lagging:
    """A thread that has done its work, and whose word of it is still under way."""

    def submit(self, function: Callable[[], None]) -> asyncio.Future[None]:
        function()
        return asyncio.get_running_loop().create_future()


async def test_a_read_that_ends_at_its_deadline_is_late_for_no_one(host: FakeHost) -> None:
    frames: list[Frame] = []
    sampler = Sampler(host, ORIGIN, [Rdma()], frames.append, Limits(0, 0.01))
    status = sampler.statuses["rdma"]
    member = _Member(status, Reader(status.source, host, ORIGIN), 0)
    family = _Family(cast("DeviceThread", Lagging()), [member])
    await sampler._tick(family, [member])  # noqa: SLF001 - a moment that no test can hit from outside
    assert (len(frames), status.state, status.overdue) == (1, OK, False)
    assert family.pending
    family.pending[0].set_result(None)
    await sampler._tick(family, [member])  # noqa: SLF001
    assert [frame.sequence for frame in frames] == [1, 2]
