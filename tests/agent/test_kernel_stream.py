"""Times of kernel records, and the log as a file, a device and a descriptor that was handed over."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from support.clock import NS, ManualClock
from support.machine import DENIED, FakeHost
from support.reading import ORIGIN, read_once, readings
from support.sampling import run_sampler

from railscope.frame import Frame, NodeTimestamp
from railscope.reading import Reading
from railscope_agent.host.live_kernel_log import LiveKernelLog
from railscope_agent.sampling.probe_result import ProbeVerdict
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.sampling.status import FAILED, OK
from railscope_agent.streams.kernel_log import KernelLogStream
from railscope_agent.streams.xid_matcher import NvmlXid, XidMatcher

XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus."


def record(sequence: int, microseconds: int, text: str) -> str:
    return f"3,{sequence},{microseconds},-;{text}"


def counted(frame: Frame | None, name: str) -> Reading:
    return readings(frame)[name, ()]


@pytest.mark.parametrize("lag_seconds", [36_000, -20])
async def test_a_record_was_written_since_the_poll_before_it_was_read(lag_seconds: int) -> None:
    """The clock of printk stands still in suspend, and NTP does not correct it.

    Source: kernel/printk/printk.c (local_clock); 10 hours in kubernetes/node-problem-detector#479.
    """
    host = FakeHost(ManualClock(NodeTimestamp(wall_ns=10**18, boot_ns=100_000 * NS)))
    async with run_sampler(host, [KernelLogStream()]) as run:
        for number in range(1, 4):
            before = run.clock.now().boot_ns
            written_ns = before + NS // 2
            host.log.waiting = [record(number, written_ns // 1000 - lag_seconds * 1_000_000, XID)]
            await run.step()
            (event,) = run.frames[-1].events
            assert before <= event.boot_ns <= run.clock.now().boot_ns
            assert event.wall_ns - event.boot_ns == 10**18 - 100_000 * NS


def test_an_agent_that_starts_again_gives_a_record_the_same_time(tmp_path: Path) -> None:
    """The time identifies an event at the collector: another time would be another Xid."""
    host = FakeHost(ManualClock(NodeTimestamp(wall_ns=10**18, boot_ns=100_000 * NS)))
    times, records = [], []
    for run in range(2):
        stream = KernelLogStream()
        stream.remember(tmp_path, "boot-1")
        reader = SourceReader(stream, host, ORIGIN)
        host.log.waiting = list(records)
        frames = [reader.run().frame]
        for number in range(0 if run else 300):
            # 100 ppm of drift, and a suspend of an hour.
            host.clock.advance(3600 if number == 150 else 5)
            lag_ns = number * 500_000 + (3595 * NS if number >= 150 else 0)
            stamp_ns = host.clock.now().boot_ns - NS - lag_ns
            records.append(record(number, stamp_ns // 1000, XID))
            host.log.waiting = records[-1:]
            frames.append(reader.run().frame)
        times.append([event.boot_ns for frame in frames if frame for event in frame.events])
    assert times[0] == times[1]
    assert len(times[0]) == 300
    first, *steps = json.loads((tmp_path / "kernel-log-clock.json").read_bytes())["steps"]
    assert first["offset_ns"] == 0
    assert len(steps) == 1, "each step is written to the disk"


def test_an_xid_of_a_late_clock_is_the_same_that_nvml_reports() -> None:
    """Before, it counted twice, and a recovery that the driver reported earlier cleared it."""
    host, matcher = FakeHost(), XidMatcher()
    reader = SourceReader(KernelLogStream(matcher), host, ORIGIN)
    reader.run()
    host.clock.advance(1)
    now = host.clock.now()
    host.log.waiting = [record(1, now.boot_ns // 1000 - 60_000_000, XID)]
    matcher.record_nvml(NvmlXid("0000:3b:00.0", 79, now.wall_ns, now.boot_ns, now.boot_ns - NS))
    reader.run()
    host.clock.advance(10)
    assert counted(reader.run().frame, "railscope_kernel_xids_total") == 1
    (fatal,) = matcher.actionable_xids("0000:3b:00.0")
    assert now.boot_ns - NS <= fatal.boot_ns <= now.boot_ns


async def test_a_log_that_may_not_be_read_is_denied_and_taken_up_when_it_may() -> None:
    host = FakeHost()
    host.log.closed = DENIED
    async with run_sampler(host, [KernelLogStream()]) as run:
        status = run.sampler.statuses["kernel"]
        assert (status.state, run.frames) == (FAILED, [])
        (finding,) = status.findings
        assert (finding.verdict, finding.detail) == (
            ProbeVerdict.DENIED,
            "cannot open /dev/kmsg: Permission denied",
        )
        assert "CAP_SYSLOG" in finding.remedy
        host.log.closed = None
        host.log.waiting = [record(1, 1, XID)]
        await run.step(60)
        assert (status.state, counted(run.frames[-1], "railscope_kernel_xids_total")) == (OK, 1)


def test_a_record_before_1970_by_a_wall_clock_that_was_set_back_has_a_time() -> None:
    host = FakeHost(ManualClock(NodeTimestamp(wall_ns=5, boot_ns=1_000 * NS)))
    host.log.waiting = [record(1, 1, XID)]
    frame = read_once(KernelLogStream(), host).frame
    assert frame is not None
    (event,) = frame.events
    assert (event.wall_ns, event.boot_ns) == (0, 1000)


def test_a_file_of_records_is_read_to_its_last_whole_line(tmp_path: Path) -> None:
    file = tmp_path / "kmsg"
    file.write_text("6,1,1,-;one\n6,2,2,-;two\n6,3,")
    log = LiveKernelLog(str(file))
    assert log.poll() == ["6,1,1,-;one", "6,2,2,-;two"]
    assert log.poll() == []
    with file.open("a") as more:
        more.write("3,-;three\n")
    assert log.poll() == ["6,3,3,-;three"]
    log.close()


def test_a_log_that_was_handed_over_is_read_from_its_oldest_record_each_time() -> None:
    """As systemd does it: the agent itself may not open the device."""
    if not os.access("/dev/kmsg", os.R_OK):
        pytest.skip("/dev/kmsg cannot be read here: needs CAP_SYSLOG and the device")
    descriptor = os.open("/dev/kmsg", os.O_RDONLY)
    found = []
    try:
        for _ in range(2):
            log = LiveKernelLog("/dev/kmsg", descriptor)
            found.append(log.poll())
            log.close()
    finally:
        os.close(descriptor)
    assert found[0][:3] == found[1][:3] != []


def test_another_standard_input_is_not_the_log(tmp_path: Path) -> None:
    file = tmp_path / "kmsg"
    file.write_text("6,1,1,-;one\n")
    with file.open() as other:
        log = LiveKernelLog(str(file), other.fileno())
        assert log.poll() == ["6,1,1,-;one"]
        log.close()
