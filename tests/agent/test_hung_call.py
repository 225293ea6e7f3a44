"""A call into a broken driver that does not return."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import cast

import pytest
from structlog.testing import capture_logs
from support.clock import NS
from support.gpus import add_gpus
from support.machine import FakeHost
from support.metric_samples import Sample, sample, samples
from support.rdma_nics import add_nic
from support.reading import ORIGIN, at_period, readings
from support.sampling import RunningSampler, run_sampler

from railscope.catalog.agent import HANG_EVENT, SOURCE_EVENT
from railscope.exposition import TextFormat
from railscope.frame import Frame
from railscope.reading import Absent, Reading
from railscope_agent.endpoint.metrics_endpoint import MetricsEndpoint
from railscope_agent.sampling.call_time import CallTime
from railscope_agent.sampling.hang_guard import MAX_HUNG_CALLS, GuardedHost, HungCall, HungCalls
from railscope_agent.sampling.read_threads import FamilyThread
from railscope_agent.sampling.sampler import ReadLimits, Sampler, _DeviceFamily, _FamilyMember
from railscope_agent.sampling.shipping_stats import ShippingStats
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.sampling.status import FAILED, OK, PARTIAL
from railscope_agent.sources.agent_metrics import SelfMetricsSource
from railscope_agent.sources.nvidia.gpu_devices import GpuSource
from railscope_agent.sources.rdma import RdmaSource

POWER = "nvml.nvmlDeviceGetPowerUsage(0)"
SHORT = 0.3


class BlockedAnswer:
    """An answer that blocks until it is released."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.callers = 0
        self.answer = 499_000

    def __call__(self) -> int:
        self.callers += 1
        assert self.released.wait(60), "the test forgot to release the call"
        return self.answer


@pytest.fixture
def stuck() -> Iterator[BlockedAnswer]:
    call = BlockedAnswer()
    yield call
    call.released.set()


@pytest.fixture
def host() -> FakeHost:
    host = FakeHost()
    add_gpus(host, 2)
    add_nic(host)
    return host


def exposed_samples(run: RunningSampler) -> dict[Sample, float]:
    """Return the samples of a scrape now."""
    clock, statuses = run.clock, run.sampler.statuses
    page = MetricsEndpoint("node-1", statuses.values, lambda: clock.now().boot_ns, "")
    return samples(page.text(TextFormat.PROMETHEUS))


def power_of(run: RunningSampler, gpu: str) -> Reading | None:
    """The latest reading of a GPU's power."""
    return readings(run.of("gpu")[-1]).get(("railscope_gpu_power_watts", (gpu,)))


async def test_a_hung_call_ages_its_own_device_and_nothing_else(
    host: FakeHost, stuck: BlockedAnswer
) -> None:
    healthy = host.calls[POWER]
    with capture_logs() as logs:
        async with run_sampler(
            host, [GpuSource.load(), GpuSource.health(), RdmaSource()], SHORT
        ) as run:
            gpu, rdma = run.sampler.statuses["gpu"], run.sampler.statuses["rdma"]
            await run.step()
            columns = {label for label in readings(run.of("gpu")[-1]) if label[1][0] == "GPU-0"}
            host.calls[POWER] = stuck
            await run.until(lambda: "nvml/0" in run.sampler.hung.by_device)
            await run.until(lambda: gpu.state == PARTIAL)
            reads, missed = (gpu.reads, rdma.reads), gpu.missed_ticks
            for _ in range(30):
                await run.step()
                latest = readings(run.of("gpu")[-1])
                assert {latest[label] for label in columns} <= {Absent.TIMEOUT, Absent.UNSUPPORTED}
                assert power_of(run, "GPU-0") is Absent.TIMEOUT
                assert power_of(run, "GPU-1") == 500_001
            assert (gpu.state, gpu.is_overdue, gpu.missed_ticks) == (PARTIAL, False, missed)
            assert (gpu.reads - reads[0], rdma.reads - reads[1], stuck.callers) == (30, 30, 1)
            assert (rdma.state, rdma.missed_ticks) == (OK, 0)
            page = exposed_samples(run)
            assert sample("railscope_gpu_power_watts", gpu="GPU-1") in page
            assert sample("railscope_gpu_power_watts", gpu="GPU-0") not in page

            host.calls[POWER] = healthy
            stuck.released.set()
            await run.until(lambda: gpu.state == OK)
            powers = {power_of(run, "GPU-0"), power_of(run, "GPU-1")}
            assert powers == {500_000, 500_001}, "the late answer is thrown away"
            sequences = [frame.sequence for frame in run.of("gpu")]
            assert sequences == list(range(1, len(sequences) + 1))
    events = [(entry["event"], entry.get("source", entry.get("device"))) for entry in logs]
    assert {event for event, _ in events} >= {
        "call_hung",
        "call_returned",
        "source_degraded",
        "source_recovered",
    }
    assert ("call_hung", "nvml/0") in events


async def test_when_all_devices_hang_each_has_a_thread_and_all_recover(
    host: FakeHost, stuck: BlockedAnswer
) -> None:
    """A lock of the library: every further call hangs as well."""
    powers = {key: answer for key, answer in host.calls.items() if "PowerUsage(" in key}
    async with run_sampler(
        host, [GpuSource.load(), at_period(GpuSource.health(), 1.0), RdmaSource()], SHORT
    ) as run:
        states = run.sampler.statuses
        host.calls |= dict.fromkeys(powers, stuck)
        await run.until(lambda: set(run.sampler.hung.by_device) == {"nvml/0", "nvml/1"})
        await run.until(lambda: states["gpu"].state == states["gpu_health"].state == FAILED)
        assert states["rdma"].state == OK
        host.calls |= powers
        stuck.released.set()
        await run.until(lambda: states["gpu"].state == states["gpu_health"].state == OK)
        assert not run.sampler.hung.by_device


async def test_no_more_threads_are_left_behind_than_the_bound(
    host: FakeHost, stuck: BlockedAnswer
) -> None:
    """Beyond the bound a family waits for its thread, like a slow one."""
    async with run_sampler(host, [GpuSource.load(), RdmaSource()], SHORT) as run:
        gpu, rdma = run.sampler.statuses["gpu"], run.sampler.statuses["rdma"]
        run.sampler.hung.by_device |= {
            f"net/eth{place}": HungCall(f"net/eth{place}", "ethtool.statistics", 0)
            for place in range(MAX_HUNG_CALLS)
        }
        healthy, host.calls[POWER] = host.calls[POWER], stuck
        await run.until(lambda: gpu.is_overdue)
        missed = gpu.missed_ticks
        for _ in range(4):
            await run.step()
        assert len(run.sampler.hung.by_device) == MAX_HUNG_CALLS
        assert (gpu.state, gpu.problem) == (FAILED, f"timeout: no response within {SHORT} s")
        assert (gpu.is_overdue, gpu.missed_ticks - missed, stuck.callers) == (True, 4, 1)
        assert not any(name.startswith("railscope_gpu_") for name, _ in exposed_samples(run))
        assert rdma.state == OK
        host.calls[POWER] = healthy
        stuck.released.set()
        await run.until(lambda: gpu.state == OK)
        sequences = [frame.sequence for frame in run.of("gpu")]
        assert sequences == list(range(1, len(sequences) + 1))


async def test_a_hung_file_of_one_nic_delays_no_other_nic(
    host: FakeHost, stuck: BlockedAnswer
) -> None:
    add_nic(host, "mlx5_1")
    path = next(p for p in host.files if "/mlx5_0/" in p and p.endswith("port_xmit_packets"))
    content, host.files[path] = host.files[path], lambda: str(stuck())
    async with run_sampler(host, [RdmaSource()], SHORT) as run:
        await run.until(lambda: "infiniband/mlx5_0" in run.sampler.hung.by_device)
        await run.until(lambda: bool(run.of("rdma")))
        for _ in range(3):
            await run.step()
            latest = readings(run.of("rdma")[-1])
            by_nic: dict[str, set[bool]] = {}
            for (_, key), reading in latest.items():
                by_nic.setdefault(key[0], set()).add(isinstance(reading, Absent))
            assert by_nic.get("mlx5_1") == {False}
            assert by_nic.get("mlx5_0", {True}) == {True}
        host.files[path] = content
        stuck.released.set()
        status = run.sampler.statuses["rdma"]
        await run.until(lambda: status.state == OK and not run.sampler.hung.by_device)


async def test_a_probe_that_hangs_is_a_hung_call(host: FakeHost, stuck: BlockedAnswer) -> None:
    count = "nvml.nvmlDeviceGetCount()"
    healthy, host.calls[count] = host.calls[count], stuck
    stuck.answer = 1
    async with run_sampler(host, [GpuSource.load(), RdmaSource()], SHORT) as run:
        assert run.sampler.statuses["gpu"].state == FAILED
        assert run.sampler.statuses["rdma"].state == OK
        host.calls[count] = healthy
        stuck.released.set()
        await run.until(lambda: run.sampler.statuses["gpu"].state == OK)


async def test_the_agent_reports_the_hung_device(host: FakeHost, stuck: BlockedAnswer) -> None:
    async with run_sampler(host, [GpuSource.load(), RdmaSource()], SHORT) as run:
        host.calls[POWER] = stuck
        await run.until(lambda: run.sampler.statuses["gpu"].state == PARTIAL)
        for _ in range(2):
            await run.step()
        own = SelfMetricsSource(
            lambda: run.sampler.statuses,
            ShippingStats(),
            run.sampler.take_events,
            hung=lambda: run.sampler.hung.by_device,
        )
        frame = SourceReader(own, host, ORIGIN).run().frame
        assert frame is not None
        found = readings(frame)
        assert found["railscope_source_absent_readings", ("gpu", "timeout")] > 0
        assert found["railscope_source_absent_readings", ("rdma", "timeout")] == 0
        assert found["railscope_source_state", ("gpu",)] == PARTIAL
        hung_ns = found["railscope_agent_hung_device_seconds", ("nvml/0",)]
        assert isinstance(hung_ns, int)
        assert hung_ns >= 2 * NS
        events = {event.event_class: event.facts for event in frame.events}
        assert set(events) >= {SOURCE_EVENT, HANG_EVENT}
        facts = events[HANG_EVENT]
        assert (facts["device"], facts["state"]) == ("nvml/0", "hung")
        assert facts["call"] == "nvml.nvmlDeviceGetPowerUsage"


async def test_a_stuck_thread_does_not_keep_the_agent_from_stopping(
    host: FakeHost, stuck: BlockedAnswer
) -> None:
    async with run_sampler(host, [GpuSource.load()], SHORT) as run:
        host.calls[POWER] = stuck
        await run.step()
    assert not stuck.released.is_set(), "stopped while the call was still out"


async def test_a_slow_answer_in_time_is_not_a_failure(host: FakeHost) -> None:
    """A read of half a period that crosses no tick."""
    power = host.calls[POWER]
    async with run_sampler(host, [GpuSource.load()]) as run:

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
    async with run_sampler(host, [GpuSource.load()]) as run:

        def slowly() -> int:
            host.calls[POWER] = power
            host.clock.advance(3.5)
            return int(power)

        host.calls[POWER] = slowly
        await run.step()
        status = run.sampler.statuses["gpu"]
        assert (status.reads, status.missed_ticks) == (2, 3)
        await run.step(0.5)
        assert [frame.timestamp.boot_ns % NS for frame in run.frames] == [0, 0, 0], "on the grid"


class UnfinishedThread:
    """A thread whose work is done and whose completion is still pending."""

    def submit(self, function: Callable[[], int | None]) -> asyncio.Future[None]:
        assert function() is None
        return asyncio.get_running_loop().create_future()


async def test_a_read_that_ends_at_its_deadline_is_not_late(host: FakeHost) -> None:
    frames: list[Frame] = []
    sampler = Sampler(host, ORIGIN, [RdmaSource()], frames.append, ReadLimits(0, 0.01))
    status = sampler.statuses["rdma"]
    member = _FamilyMember(status, SourceReader(status.source, host, ORIGIN), 0)
    guard = GuardedHost(host, HungCalls(), CallTime())
    family = _DeviceFamily(guard, cast("FamilyThread", UnfinishedThread()), [member])
    await sampler._tick(family, [member])  # noqa: SLF001 - a moment that no test can hit from outside
    assert (len(frames), status.state, status.is_overdue) == (1, OK, False)
    assert family.pending
    family.pending[0].set_result(None)
    await sampler._tick(family, [member])  # noqa: SLF001
    assert [frame.sequence for frame in frames] == [1, 2]
