"""Driver events: each counts once, and an Xid that is also in the kernel log is one Xid."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, strategies as st
from support.clock import NS
from support.gpus import add_gpus
from support.machine import FakeHost
from support.reading import ORIGIN, numbers, readings
from support.sampling import RunningSampler, run_sampler

from railscope.catalog.kernel import XID_EVENT
from railscope.frame import Event
from railscope_agent.gpus.inventory import GpuInventory
from railscope_agent.host import NvmlError
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.sources.nvidia.events import MIG_CHANGE, XID, NvmlEventSource
from railscope_agent.sources.nvidia.gpu_devices import GpuSource
from railscope_agent.streams.kernel_log import KernelLogStream
from railscope_agent.streams.xid_matcher import MAX_WAITING, SAME_NS, NvmlXid, XidMatcher

WAIT = "nvml.nvmlEventSetWait()"
NONE = 0xFFFF_FFFF
ADDRESS = "0000:01:00.0"
LOST = "railscope_gpu_events_lost_total"
XIDS = "railscope_gpu_xid_errors_total"


def gpu() -> FakeHost:
    host = FakeHost()
    add_gpus(host, 1)
    host.calls[WAIT] = []
    return host


def sources(book: XidMatcher) -> tuple[GpuSource, NvmlEventSource, KernelLogStream]:
    shared = GpuInventory()
    return (
        GpuSource.load(gpus=shared),
        NvmlEventSource(book, gpus=shared),
        KernelLogStream(xids=book),
    )


def record(sequence: int, boot_ns: int, xid: int) -> str:
    text = f"NVRM: Xid (PCI:0000:01:00): {xid}, pid=41, name=python3, Ch 00000008"
    return f"4,{sequence},{boot_ns // 1000},-;{text}"


def xids(run: RunningSampler) -> list[Event]:
    return [e for frame in run.frames for e in frame.events if e.event_class is XID_EVENT]


async def test_an_xid_from_both_sources_counts_once_with_the_text_of_the_log() -> None:
    host, book = gpu(), XidMatcher()
    async with run_sampler(host, sources(book)) as run:
        host.calls[WAIT] = [[1, 0, XID, 31, NONE, NONE]]
        host.log.waiting = [record(1, run.clock.now().boot_ns + NS, 31)]
        await run.until(lambda: bool(xids(run)))
        for _ in range(6):
            await run.step()
        (event,) = xids(run)
        assert event.facts["process_name"] == "python3"
        assert event.facts["name"] == "FIFO_ERROR_MMU_ERR_FLT"
        found = numbers(run.of("kernel")[-1])
        assert found[XIDS, (ADDRESS, "31")] == 1
        assert found["railscope_kernel_xids_total", ()] == 1
        assert found["railscope_gpu_last_xid", (ADDRESS,)] == 31


async def test_an_xid_missing_from_the_log_is_reported_after_a_delay() -> None:
    host, book = gpu(), XidMatcher()
    host.log.closed = PermissionError(13, "Permission denied")
    async with run_sampler(host, sources(book)) as run:
        host.calls[WAIT] = [[1, 0, XID, 94, 5, 0]]
        await run.step()
        assert xids(run) == []
        await run.until(lambda: bool(xids(run)))
        (event,) = xids(run)
        assert event.facts["reported_by"] == "nvml"
        assert (event.facts["gpu_instance"], event.facts["compute_instance"]) == ("5", "0")
        await run.step()
        assert numbers(run.of("kernel")[-1])[XIDS, (ADDRESS, "94")] == 1


async def test_xids_beyond_the_bound_of_the_matcher_are_counted_as_lost() -> None:
    host, book = gpu(), XidMatcher()
    async with run_sampler(host, [NvmlEventSource(book)]) as run:
        host.calls[WAIT] = [[n, 0, XID, 31, NONE, NONE] for n in range(1, MAX_WAITING + 4)]
        for _ in range(2):
            await run.step()
        assert numbers(run.of("gpu_event")[-1])[LOST, ()] == 3


async def test_other_events_are_counted_by_kind_and_reported_once() -> None:
    host, book = gpu(), XidMatcher()
    async with run_sampler(host, sources(book)) as run:
        host.calls[WAIT] = [[1, 0, 0x2, 0, NONE, NONE], [2, 0, 0x8000, 1, NONE, NONE]]
        for _ in range(3):
            await run.step()
        host.calls[WAIT] = [*host.calls[WAIT], [3, 0, 0x2, 0, NONE, NONE]]
        for _ in range(2):
            await run.step()
        found = numbers(run.of("gpu_event")[-1])
        assert found == {
            (LOST, ()): 0,
            ("railscope_gpu_events_total", (ADDRESS, "double_bit_ecc")): 2,
            ("railscope_gpu_events_total", (ADDRESS, "gpu_recovery_action")): 1,
        }
        reported = Counter(e.entity.key[1] for frame in run.of("gpu_event") for e in frame.events)
        assert reported == {"double_bit_ecc": 2, "gpu_recovery_action": 1}


def test_an_event_that_a_hung_driver_gave_late_is_the_one_of_the_log() -> None:
    book = XidMatcher()
    book.record_logged(ADDRESS, 119, 100 * NS)
    book.record_nvml(NvmlXid(ADDRESS, 119, 0, 145 * NS, 99 * NS))
    assert book.take_unlogged(1000 * NS) == []


def test_a_mig_change_makes_all_sources_probe_again() -> None:
    host, shared = gpu(), GpuInventory()
    reader = SourceReader(NvmlEventSource(XidMatcher(), gpus=shared), host, ORIGIN)
    shared.scan(host)
    reader.run()
    before = shared.generation
    host.calls[WAIT] = [[1, 0, MIG_CHANGE, 0, NONE, NONE]]
    reader.run()
    assert shared.generation == before + 1


def test_earlier_xids_are_left_to_the_log() -> None:
    """After a reload of the settings the driver's last events are returned again."""
    host, book = gpu(), XidMatcher()
    host.calls[WAIT] = [[n, 0, XID, 31, NONE, NONE] for n in range(40, 104)]
    reader = SourceReader(NvmlEventSource(book), host, ORIGIN)
    assert readings(reader.run().frame)[LOST, ()] == 0
    host.calls[WAIT] = [*host.calls[WAIT][1:], [104, 0, XID, 94, NONE, NONE]]
    reader.run()
    assert [reported.xid for reported in book.take_unlogged(10**18)] == [94]


def test_a_recording_that_starts_over_gives_its_events_again() -> None:
    host = gpu()
    reader = SourceReader(NvmlEventSource(XidMatcher()), host, ORIGIN)
    reader.run()
    for _ in range(2):
        host.calls[WAIT] = [[1, 0, 0x1, 0, NONE, NONE]]
        reader.run()
        host.calls[WAIT] = []
        reader.run()
    found = readings(reader.run().frame)
    assert found["railscope_gpu_events_total", ("unknown", "single_bit_ecc")] == 2


def test_events_that_came_too_fast_are_counted() -> None:
    host = gpu()
    reader = SourceReader(NvmlEventSource(XidMatcher()), host, ORIGIN)
    reader.run()
    host.calls[WAIT] = [[n, 0, 0x1, 0, NONE, NONE] for n in range(11, 75)]
    assert readings(reader.run().frame)[LOST, ()] == 10
    host.calls[WAIT] = [[n, 0, 0x1, 0, NONE, NONE] for n in range(12, 76)]
    assert readings(reader.run().frame)[LOST, ()] == 10


def test_a_driver_without_events_is_not_a_problem_and_a_lost_one_is() -> None:
    host = gpu()
    reader = SourceReader(NvmlEventSource(XidMatcher()), host, ORIGIN)
    host.calls[WAIT] = NvmlError(3, "Not Supported")
    assert reader.run().problem == ""
    host.clock.advance(60)
    host.calls[WAIT] = NvmlError(9, "Driver Not Loaded")
    assert reader.run().problem == "NVML error 9: Driver Not Loaded"


# The book -------------------------------------------------------------------------------------------


@given(
    logged=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 20))),
    seen=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 20))),
)
def test_no_xid_is_reported_twice_and_none_is_lost(
    logged: list[tuple[int, int]], seen: list[tuple[int, int]]
) -> None:
    """The Xids reported by NVML alone are at least the surplus of NVML over the log, per number."""
    book = XidMatcher()
    for number, second in logged:
        book.record_logged(ADDRESS, number, second * NS)
    for number, second in seen:
        book.record_nvml(NvmlXid(ADDRESS, number, 0, second * NS, second * NS))
    alone = book.take_unlogged(21 * NS + SAME_NS)
    assert book.take_unlogged(10**18) == []
    for number in (1, 2, 3):
        reported = sum(s.xid == number for s in alone)
        by_nvml = sum(n == number for n, _ in seen)
        by_log = sum(n == number for n, _ in logged)
        assert max(by_nvml - by_log, 0) <= reported <= by_nvml


def test_xids_close_in_time_match_in_either_order() -> None:
    book = XidMatcher()
    book.record_nvml(NvmlXid(ADDRESS, 79, 0, 10 * NS, 9 * NS))
    book.record_logged(ADDRESS, 79, 9 * NS - SAME_NS)
    book.record_logged(ADDRESS, 31, 20 * NS)
    book.record_nvml(NvmlXid(ADDRESS, 31, 0, 20 * NS + SAME_NS, 20 * NS + SAME_NS))
    book.record_nvml(NvmlXid(ADDRESS, 31, 0, 20 * NS + SAME_NS, 20 * NS + SAME_NS))
    assert [s.xid for s in book.take_unlogged(100 * NS)] == [31]
