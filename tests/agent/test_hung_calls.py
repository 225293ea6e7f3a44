"""Calls that do not return: they age their own device and nothing else, and the agent goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from support.clock import NS, ManualClock
from support.gpus import add_gpus
from support.machine import FakeHost
from support.metric_samples import Sample, sample, samples
from support.rdma_nics import add_nic
from support.reading import ORIGIN, at_period, readings
from support.sampling import RunningSampler, run_sampler

from railscope.catalog.agent import HANG_EVENT, SOURCE_EVENT
from railscope.catalog.entities import RDMA_PORT
from railscope.catalog.rdma import RDMA_UP
from railscope.exposition import TextFormat
from railscope.frame import Entity, NodeTimestamp
from railscope.reading import Absent, Reading
from railscope_agent.endpoint.metrics_endpoint import MetricsEndpoint
from railscope_agent.host import Host
from railscope_agent.sampling.guard import (
    MAX_HUNG_CALLS,
    CallAbandonedError,
    GuardedHost,
    HungCall,
    HungCalls,
    device_of,
    device_of_call,
)
from railscope_agent.sampling.probe_result import ProbeResult
from railscope_agent.sampling.row_builder import RowBuilder
from railscope_agent.sampling.shipping_stats import ShippingStats
from railscope_agent.sampling.source import Source
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
        for _ in range(8):
            await run.step()
            latest = readings(run.of("gpu")[-1])
            assert {latest[label] for label in columns} <= {Absent.TIMEOUT, Absent.UNSUPPORTED}
            assert power_of(run, "GPU-0") is Absent.TIMEOUT
            assert power_of(run, "GPU-1") == 500_001
        assert (gpu.state, gpu.is_overdue, gpu.missed_ticks) == (PARTIAL, False, missed)
        assert (gpu.reads - reads[0], rdma.reads - reads[1], stuck.callers) == (8, 8, 1)
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
        for _ in range(2):
            await run.step()
        assert len(run.sampler.hung.by_device) == MAX_HUNG_CALLS
        assert (gpu.state, gpu.problem) == (FAILED, f"timeout: no response within {SHORT} s")
        assert (gpu.is_overdue, stuck.callers) == (True, 1)
        assert not any(name.startswith("railscope_gpu_") for name, _ in exposed_samples(run))
        assert rdma.state == OK
        host.calls[POWER] = healthy
        stuck.released.set()
        await run.until(lambda: gpu.state == OK)
        assert gpu.missed_ticks >= 2
        sequences = [frame.sequence for frame in run.of("gpu")]
        assert sequences == list(range(1, len(sequences) + 1))


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


class FaultySource(Source):
    """A source with a bug."""

    name = "faulty"
    period_seconds = 1.0

    def __init__(self) -> None:
        self.wrong = True

    def probe(self, host: Host) -> ProbeResult:
        del host
        return ProbeResult(((RDMA_UP, Entity(RDMA_PORT, ("mlx5_9", "1"))),))

    def read(self, host: Host, into: RowBuilder) -> None:
        if self.wrong:
            raise KeyError(host.boot_id)
        into.put(0, 1)


async def test_a_mistake_in_one_source_ends_no_other() -> None:
    host, faulty = FakeHost(), FaultySource()
    add_nic(host, "mlx5_0")
    async with run_sampler(host, [faulty, RdmaSource()]) as run:
        await run.step()
        status = run.sampler.statuses["faulty"]
        assert (status.state, status.problem) == (FAILED, "fault in the source: KeyError: 'boot-1'")
        assert len(run.of("rdma")) == 2
        faulty.wrong = False
        await run.step()
        assert status.state == OK


@pytest.mark.parametrize(
    ("call", "device"),
    [
        ("/sys/class/net/eth0/speed", "net/eth0"),
        ("/sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error", "infiniband/mlx5_0"),
        ("/sys/bus/pci/devices/0000:3b:00.0/class", "pci/0000:3b:00.0"),
        ("/sys/block/nvme0n1/stat", "block/nvme0n1"),
        ("/sys/devices/system/edac/mc/mc0/ce_count", "/sys/devices/system/edac/mc/mc0"),
        ("/proc/net/dev", "/proc/net/dev"),
        (("ethtool", "statistics", ("eth0",)), "net/eth0"),
        (("netlink", "links", ()), "netlink.links"),
        (("netlink", "rdma_statistics", ("mlx5_0", 1)), "infiniband/mlx5_0"),
        (("nvml", "nvmlDeviceGetFieldValues", (3, 83, "185:2")), "nvml/3"),
        (("nvml", "nvmlDeviceGetCount", ()), "nvml.nvmlDeviceGetCount"),
        (("nvme", "smart", ("nvme0",)), "nvme/nvme0"),
    ],
)
def test_the_device_of_a_call(
    call: str | tuple[str, str, tuple[int | str, ...]], device: str
) -> None:
    if isinstance(call, str):
        assert device_of(call) == device
    else:
        assert device_of_call(call[0], call[1], *call[2])[0] == device


def test_a_hung_device_is_not_called_and_others_are() -> None:
    host, hung = FakeHost(), HungCalls()
    hung.by_device["net/eth1"] = HungCall("net/eth1", "a call", host.clock.now().boot_ns)
    host.clock.advance(12)
    guard = GuardedHost(host, hung)
    paths = [f"/sys/class/net/eth{nic}/{file}" for nic in range(3) for file in ("mtu", "speed")]
    host.files |= {path: f"{number}\n" for number, path in enumerate(paths)}
    for ask in (
        lambda: guard.call("ethtool", "statistics", "eth1"),
        lambda: guard.call("netlink", "pause", "eth1"),
        lambda: guard.read("/sys/class/net/eth1/speed"),
        lambda: guard.names("/sys/class/net/eth1"),
        lambda: guard.resolve("/sys/class/net/eth1/device"),
    ):
        with pytest.raises(TimeoutError, match="a call has not returned for 12 s"):
            ask()
    values, reasons = [9] * 6, bytearray(6)
    guard.open_file_group(paths).read_into(values, reasons, 0)
    assert values == [0, 1, 0, 0, 4, 5]
    timeout = Absent.TIMEOUT.value
    assert [reason == timeout for reason in reasons] == [False, False, True, True, False, False]


class TurnClock(ManualClock):
    """A clock whose readings take a turn first."""

    turn: Callable[[], None] = staticmethod(lambda: None)

    def now(self) -> NodeTimestamp:
        self.turn()
        return super().now()


class TurnTable(dict[str, HungCall]):
    """A table of hung calls that takes a turn before and after a call is stored."""

    turn: Callable[[], None] = staticmethod(lambda: None)

    def __setitem__(self, device: str, call: HungCall) -> None:
        self.turn()
        super().__setitem__(device, call)
        self.turn()


@pytest.mark.parametrize("moment", range(3))
def test_a_call_that_returns_while_it_is_abandoned_leaves_its_device_free(moment: int) -> None:
    clock, table, turns = TurnClock(), TurnTable(), iter(range(3))
    host, hung, path = FakeHost(clock), HungCalls(table), "/sys/class/net/eth0/speed"
    guard = GuardedHost(host, hung)
    entered, released = threading.Event(), threading.Event()

    def content() -> str:
        entered.set()
        assert released.wait(60)
        return "1"

    def work() -> None:
        with suppress(CallAbandonedError):
            guard.read(path)

    def take_turn() -> None:
        if next(turns, None) == moment:
            released.set()
            thread.join(60)

    host.files[path] = content
    thread = threading.Thread(target=work)
    thread.start()
    assert entered.wait(60)
    clock.turn = table.turn = take_turn
    running = guard.running
    assert running
    guard.abandon(running)
    assert released.is_set()
    assert not hung.by_device
    assert guard.read(path) == b"1"
