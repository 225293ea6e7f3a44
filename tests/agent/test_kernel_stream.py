"""Following the kernel log: counted, lost and unreadable records."""

from __future__ import annotations

import errno
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
from railscope_agent.streams.kernel_log_clock import LogClockFile
from railscope_agent.streams.kernel_messages import parse_kernel_message
from railscope_agent.streams.xid_matcher import NvmlXid, XidMatcher

XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus."
XIDS = "railscope_kernel_xids_total", ()
RECORDS, LOST = "railscope_kernel_log_records_total", "railscope_kernel_log_lost_records_total"


def record(sequence: int, microseconds: int, text: str) -> str:
    return f"3,{sequence},{microseconds},-;{text}"


def counted(frame: Frame | None, name: str) -> Reading:
    return readings(frame)[name, ()]


async def test_a_message_is_counted_at_once_and_has_its_column_a_tick_later() -> None:
    host = FakeHost()
    async with run_sampler(host, [KernelLogStream()]) as run:
        host.log.waiting = [record(1, 5_000_000, XID)]
        await run.step()
        assert counted(run.frames[-1], "railscope_kernel_xids_total") == 1
        await run.step()
        found = readings(run.frames[-1])
        assert found["railscope_gpu_xid_errors_total", ("0000:3b:00.0", "79")] == 1
        assert [len(frame.events) for frame in run.frames] == [0, 1, 0]


async def test_an_event_carries_the_time_of_its_record() -> None:
    host = FakeHost()
    now, ago_ns = host.clock.now(), 90 * NS
    host.log.waiting = [record(1, (now.boot_ns - ago_ns) // 1000, XID)]
    async with run_sampler(host, [KernelLogStream()]) as run:
        (event,) = run.frames[0].events
        assert event.boot_ns == now.boot_ns - ago_ns
        assert event.wall_ns == now.wall_ns - ago_ns
        assert event.entity.key == ("0000:3b:00.0", "79")
        assert event.facts == {
            "process": "1234", "process_name": "python", "message": "GPU has fallen off the bus.",
            "name": "GPU_HAS_FALLEN_OFF_THE_BUS", "meaning": "The GPU cannot be reached over PCIe.",
            "severity": "fatal", "action": "drain reboot", "nvidia_action": "RESTART_BM",
        }  # fmt: skip


async def test_records_from_before_the_agent_started_are_reported_as_well() -> None:
    host = FakeHost()
    host.log.waiting = [record(1, 1_000_000, XID), record(2, 2_000_000, "Linux version 6.8")]
    async with run_sampler(host, [KernelLogStream()]) as run:
        assert [event.boot_ns for event in run.frames[0].events] == [NS]
        assert counted(run.frames[0], RECORDS) == 2


def test_the_name_of_a_process_may_contain_parentheses() -> None:
    line = "Memory cgroup out of memory: Killed process 2345 ((sd-pam)) total-vm:1kB, anon-rss:1kB"
    message = parse_kernel_message(line)
    assert message is not None
    assert (message.facts["process"], message.facts["process_name"]) == ("2345", "(sd-pam)")


@pytest.mark.parametrize("lag_seconds", [36_000, 20, 0, -20])
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
    """The collector knows an event by it: another time would be another Xid."""
    host = FakeHost(ManualClock(NodeTimestamp(wall_ns=10**18, boot_ns=100_000 * NS)))
    memory = LogClockFile(tmp_path / "clock.json", "boot-1")
    times, records = [], []
    for run in range(2):
        stream = KernelLogStream()
        stream.remember(memory)
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
    first, *steps = memory.load()
    assert first.offset_ns == 0
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


@pytest.mark.parametrize(
    "words",
    [
        "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
        "NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.",
        " kernel: NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.",
        "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
        "x 0000:3b:00.0: AER: device recovery failed",
        "x 0000:3b:00.0: AER: Corrected error received: 0000:3b:00.0",
        "mlx5_core 0000:3b:00.0: Port module event: module 0, Cable unplugged",
        " eth0: Link is down",
        "Out of memory: Killed process 1 (init)",
    ],
)
@pytest.mark.parametrize(
    "line",
    [
        "Memory cgroup stats for /user.slice/user-1000.slice/user@1000.service/{words}: cache:0KB",
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),task_memcg=/user.slice/{words},task=a,pid=9,uid=1000",
    ],
)
def test_the_name_of_a_group_is_no_message_of_a_driver(line: str, words: str) -> None:
    """A user names groups below a delegated one, and exceeds their limit: mm/memcontrol.c, mm/oom_kill.c."""
    host = FakeHost()
    host.log.waiting = [record(1, 1, line.format(words=words))]
    frame = SourceReader(KernelLogStream(), host, ORIGIN).run().frame
    assert frame is not None
    assert frame.events == ()


FAILURE_WORDS = [
    "eth0: Link down",
    "NVRM reset requ",
    "NVRM must reset",
    "NVRM: GPU lost",
    "nv_peer_mem",
    "nvidia_peermem",
    "nvidia-peermem:",
    "NVRM: x",
    "NVRM: GPU0 abcd",
    "nvidia: x",
    "NVRM: Xid (PCI:",
    "mlx5_core 0000:",
    "x 0000:3b:00.0:",
    r"NVRM: \x01\x02\x03\xc3\xa9\xff\x7f\x1b\x5c",
]


@pytest.mark.parametrize("words", FAILURE_WORDS)
@pytest.mark.parametrize(
    "line",
    [
        "{words}[42]: segfault at 10 ip 00007f sp 00007f error 6 in {file}[400000+1000] likely on CPU 3",
        "traps: {words}[42] general protection fault ip:4 sp:7 error:0 in {file}[400000+1000]",
        "{words}[42] bad frame in rt_sigreturn frame:0 ip:4 sp:7 orax:f in {file}[400000+1000]",
        "{words} invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
        "{words}: page allocation failure: order:4, mode:0xcc0(GFP_KERNEL), nodemask=(null),cpuset={file},mems_allowed=0",
        "{words} cpuset={file} mems_allowed=0",
    ],
)
@pytest.mark.parametrize(
    "file",
    [
        "a",
        "0000:01:00.0 fallen off the bus",
        " NV_ERR_GPU_IS_LOST",
        "x eth0: Link down",
        "NV_ERR_RESET_REQUIRED",
        "error, please reboot",
        "RmInitAdapter failed",
    ],
)
def test_the_name_of_a_process_or_file_is_no_message_of_a_driver(
    words: str, line: str, file: str
) -> None:
    """An unprivileged user chooses both. The verdict of such a line would be that the node has to be rebooted."""
    assert parse_kernel_message(line.format(words=words, file=file)) is None


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: renamed from GPU_IS_LOST",
        "NVRM: renamed from reset_required",
        "NVRM: port 1(GPU_IS_LOST) entered blocking state",
        "NVRM: (slave reset_required): Enslaving as a backup interface with a down link",
        "nvidia-modeset: Port device resetrequired added",
        "nv_peer_mem: renamed from error",
    ],
)
def test_the_name_of_an_interface_is_no_message_of_a_driver(line: str) -> None:
    """A user names the interfaces of a network namespace of its own."""
    assert parse_kernel_message(line) is None


REPORT = """{{{number}}}[Hardware Error]: Hardware error from APEI Generic Hardware Error Source: 4
{{{number}}}[Hardware Error]: event severity: {severity}
{{{number}}}[Hardware Error]:  Error 0, type: {severity}
{{{number}}}[Hardware Error]:  fru_text: PcieError
{{{number}}}[Hardware Error]:   section_type: {section}
{{{number}}}[Hardware Error]:   port_type: 0, PCIe end point
{{{number}}}[Hardware Error]:   command: 0x0546, status: 0x0010
{{{number}}}[Hardware Error]:   device_id: {device}
{{{number}}}[Hardware Error]:   vendor_id: 0x10de, device_id: 0x2330
{{{number}}}[Hardware Error]:  Error 1, type: info
{{{number}}}[Hardware Error]:   section_type: PCIe error
{{{number}}}[Hardware Error]:   device_id: {device}"""


@pytest.mark.parametrize(
    ("severity", "section", "expected"),
    [
        ("corrected", "PCIe error", [("0000:3b:00.0", "correctable")]),
        ("recoverable", "PCIe error", [("0000:3b:00.0", "nonfatal")]),
        ("fatal", "PCIe error", [("0000:3b:00.0", "fatal")]),
        ("info", "PCIe error", []),
        ("corrected", "memory error", []),
    ],
)
def test_a_pcie_error_that_the_firmware_reports(
    severity: str, section: str, expected: list[tuple[str, ...]]
) -> None:
    """Without a number a report is of the previous boot: drivers/acpi/apei/ghes.c, bert.c."""
    host = FakeHost()
    text = REPORT.format(number=7, severity=severity, section=section, device="0000:3b:00.0")
    before = text.replace("{7}", "").replace("0000:3b", "0000:5e")
    lines = [*before.split("\n"), *text.split("\n")]
    host.log.waiting = [record(number, number, line) for number, line in enumerate(lines, 1)]
    frame = SourceReader(KernelLogStream(), host, ORIGIN).run().frame
    assert frame is not None
    assert [event.entity.key for event in frame.events] == expected
    assert {event.event_class.name for event in frame.events} <= {"pcie_aer"}


async def test_overwritten_records_are_counted_as_lost() -> None:
    host = FakeHost()
    async with run_sampler(host, [KernelLogStream()]) as run:
        host.log.waiting = [record(10, 1, "a"), record(11, 2, "b"), record(15, 3, "c")]
        await run.step()
        assert (counted(run.frames[-1], RECORDS), counted(run.frames[-1], LOST)) == (3, 3)
        host.log.waiting = [record(100, 4, "d")]
        await run.step()
        assert counted(run.frames[-1], LOST) == 3 + 84


def test_lines_below_a_record_belong_to_it() -> None:
    host = FakeHost()
    host.log.waiting = [record(1, 1, f"{XID}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0")]
    reader = SourceReader(KernelLogStream(), host, ORIGIN)
    frame = reader.run().frame
    assert counted(frame, "railscope_kernel_xids_total") == 1
    assert counted(frame, LOST) == 0


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


def test_a_machine_without_a_log_has_none() -> None:
    host = FakeHost()
    host.log.closed = FileNotFoundError(errno.ENOENT, "No such file or directory")
    (finding,) = read_once(KernelLogStream(), host).findings
    assert finding.verdict is ProbeVerdict.ABSENT


async def test_a_log_that_is_opened_again_is_not_counted_twice() -> None:
    """It starts over from the oldest record that is left."""
    host = FakeHost()
    old = [record(7, 7, XID), record(8, 8, "b")]
    host.log.waiting = list(old)
    async with run_sampler(host, [KernelLogStream()]) as run:
        host.log.broken = OSError(errno.EIO, "Input/output error")
        await run.step()
        await run.step()
        host.log.broken = None
        host.log.waiting = [*old, record(9, 9, XID)]
        await run.step(60)
        last = run.frames[-1]
        assert counted(last, "railscope_kernel_xids_total") == 2
        assert (counted(last, RECORDS), counted(last, LOST)) == (3, 0)
        assert sum(len(frame.events) for frame in run.frames) == 2
        assert host.log.times_closed == 1


async def test_a_record_with_a_number_out_of_range_is_counted_once_if_the_log_is_opened_again() -> (
    None
):
    host = FakeHost()
    records = [record(7, 7, XID), record(8, 1 << 64, XID), record(9, 9, XID)]
    host.log.waiting = list(records)
    async with run_sampler(host, [KernelLogStream()]) as run:
        host.log.broken = OSError(errno.EIO, "Input/output error")
        await run.step()
        await run.step()
        host.log.broken = None
        host.log.waiting = list(records)
        await run.step(60)
        last = run.frames[-1]
        assert counted(last, "railscope_kernel_xids_total") == 2
        assert (counted(last, RECORDS), counted(last, LOST)) == (3, 1)


def test_a_record_before_1970_by_a_wall_clock_that_was_set_back_has_a_time() -> None:
    host = FakeHost(ManualClock(NodeTimestamp(wall_ns=5, boot_ns=1_000 * NS)))
    host.log.waiting = [record(1, 1, XID)]
    frame = read_once(KernelLogStream(), host).frame
    assert frame is not None
    (event,) = frame.events
    assert (event.wall_ns, event.boot_ns) == (0, 1000)


def test_a_flood_of_different_messages_stays_bounded() -> None:
    host = FakeHost()
    host.log.waiting = [
        record(number, number, f"NVRM: Xid (PCI:0000:{number // 256:02x}:{number % 256:02x}): 13")
        for number in range(1, 3001)
    ]
    reader = SourceReader(KernelLogStream(), host, ORIGIN)
    frame = reader.run().frame
    assert frame is not None
    assert counted(frame, "railscope_kernel_xids_total") == 3000
    assert len(frame.values) < 1100


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("mlx5_core 0000:3b:00.0 ens1f0np0: Link down", ("ens1f0np0", "down")),
        ("mlx5_core 0000:3b:00.0 ens1f0np0: Link up", ("ens1f0np0", "up")),
        ("igb 0000:01:00.0 eno1: igb: eno1 NIC Link is Up 1000 Mbps Full Duplex", ("eno1", "up")),
        ("bnxt_en 0000:5e:00.0 ens2: NIC Link is Down", ("ens2", "down")),
        ("gve 0000:00:04.0 ens4: Device link is down.", ("ens4", "down")),
        ("ixgbe 0000:5e:00.0 10g0: NIC Link is Up 10 Gbps, Flow Control: None", ("10g0", "up")),
        ("10g0: Link down", ("10g0", "down")),
        ("mlx5_core 0000:3b:00.0 100gbe-1: Link up", ("100gbe-1", "up")),
        ("pcieport 0000:00:03.0: AER: Corrected error received: 0000:3b:00.0", ("0000:3b:00.0", "correctable")),
        ("pcieport 0000:00:03.0: AER: Correctable error message received from 0000:3b:00.0", ("0000:3b:00.0", "correctable")),
        ("pcieport 0000:00:03.0: AER: Multiple Uncorrectable (Non-Fatal) error message received from 0000:3b:00.0", ("0000:3b:00.0", "nonfatal")),
        ("pcieport 0000:00:03.0: AER: Uncorrected (Fatal) error received: 0000:3b:00.0", ("0000:3b:00.0", "fatal")),
        ("pcieport 0000:00:03.0: AER: Corrected error received: id=0018", ("0000:00:03.0", "correctable")),
        ("pcieport 10001:00:03.0: AER: Multiple Corrected error received: id=3b0a", ("10001:3b:01.2", "correctable")),
        ("pcieport 0000:00:03.0: AER: Uncorrected (Non-Fatal) error received: id=0018", ("0000:00:03.0", "nonfatal")),
        ("AER: Corrected error received: id=0018", ("unknown", "correctable")),
        ("Out of memory (oom_kill_allocating_task): Killed process 4711 (python3) total-vm:1kB", ()),
        ("NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.", ("0000:3b:00.0",)),
        ("NVRM: GPU 0000:3b:00.0: RmInitAdapter failed! (0x62:0x40:2477)", ("0000:3b:00.0",)),
        ("Out of memory: Killed process 4711 (python3) total-vm:1kB, anon-rss:1kB", ()),
        ("Memory cgroup out of memory: Killed process 1 (a b) total-vm:1kB", ()),
    ],
)  # fmt: skip
def test_messages_of_the_kernel(text: str, key: tuple[str, ...]) -> None:
    message = parse_kernel_message(text)
    assert message is not None
    assert message.entity.key == key


@pytest.mark.parametrize(
    "text",
    [
        "",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  590.48.01",
        "nvidia-nvswitch3: using MSI",
        "pci 0000:3b:00.0: 252.048 Gb/s available PCIe bandwidth (32.0 GT/s PCIe x8 link)",
        "nvme nvme0: Shutdown timeout set to 8 seconds",
        "AER: aer_layer=Transaction Layer, aer_agent=Receiver ID",
        "audit: type=1400 link up",
        "r8169: Uplink: none",
        "IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready",
        "nvidia-nvswitch0: Link down",
        "nvidia-nvlink: Link is Up",
        "pcieport 0000:00:01.0: Link Up",
        "pcieport 0000:00:0a.0: Link Up",
        "pcieport 0000:00:01.0: pciehp: Slot(5): Link Down",
        "Port 1: Link Down",
        "33800000.pcie: Link up",
        "1c00000.pcie: Link up",
        "ata1: SATA link down (SStatus 0 SControl 300)",
        "NVRM: GPU 0000:3b:00.0: rm_init_adapter failed, device minor number 0",
    ],
)
def test_messages_that_mean_nothing_to_us(text: str) -> None:
    assert parse_kernel_message(text) is None


def test_lost_gpus_and_those_that_do_not_start_are_events_and_one_count() -> None:
    host = FakeHost()
    host.log.waiting = [
        record(1, 1, "NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus."),
        record(2, 2, "NVRM: GPU 0000:5e:00.0: RmInitAdapter failed! (0x62:0x40:2477)"),
    ]
    frame = SourceReader(KernelLogStream(), host, ORIGIN).run().frame
    assert frame is not None
    assert [(event.event_class.name, event.entity.key, event.facts) for event in frame.events] == [
        ("gpu_lost", ("0000:3b:00.0",), {"message": "GPU has fallen off the bus."}),
        (
            "gpu_init_failed",
            ("0000:5e:00.0",),
            {"message": "RmInitAdapter failed! (0x62:0x40:2477)"},
        ),
    ]
    assert counted(frame, "railscope_kernel_gpu_failures_total") == 2


FALLEN_RECORD = (
    "NVRM: The NVIDIA GPU 0000:61:00.0\\x0aNVRM: (PCI ID: 10de:20b2) installed in this system has"
    "\\x0aNVRM: fallen off the bus and is not responding to commands."
)
FAILED_CHECK = "nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062) returned"


@pytest.mark.parametrize(
    ("text", "event", "address"),
    [
        (FALLEN_RECORD, "gpu_lost", "0000:61:00.0"),
        ("NVRM: GPU at PCI:0000:61:00: GPU lost from the bus [NV_ERR_GPU_IS_LOST] (0xF)", "gpu_lost", "0000:61:00.0"),
        ("NVRM: GPU3 nvCheckOkFailedNoLog: Check failed: GPU lost from the bus", "gpu_lost", "0000:61:00.0"),
        ("NVRM: GPU7 nvCheckOkFailedNoLog: Check failed: GPU lost from the bus", "gpu_lost", "unknown"),
        ("NVRM: fallen off the bus and is not responding to commands.", "gpu_lost", "unknown"),
        ("nvidia: probe of 0000:61:00.0 failed with error -1", "gpu_init_failed", "0000:61:00.0"),
        ("nvidia 0000:61:00.0: probe with driver nvidia failed with error -1", "gpu_init_failed", "0000:61:00.0"),
        (f"NVRM: {FAILED_CHECK}", "gpu_reset_required", "unknown"),
        (f"NVRM: GPU 00000000:61:00.0: {FAILED_CHECK}", "gpu_reset_required", "0000:61:00.0"),
        ("nvidia-uvm: uvm_channel.c:1234 uvm_channel_check_errors[pid:42] channel error, status: GPU lost from the bus", "gpu_lost", "unknown"),
        ("nvidia-modeset: ERROR: GPU:0: GPU is lost", "gpu_lost", "unknown"),
        ("NVRM: GPU0 GspRmControl[12]: failed: status=GPU is lost", "gpu_lost", "unknown"),
        ("NVRM: GPU 0000:61:00.0: the node needs to be rebooted", "gpu_reset_required", "0000:61:00.0"),
    ],
)  # fmt: skip
def test_a_line_of_the_driver_about_a_lost_or_broken_gpu_is_an_event(
    text: str, event: str, address: str
) -> None:
    host = FakeHost()
    host.files["/sys/bus/pci/devices/0000:61:00.0/vendor"] = "0x10de"
    information = "/proc/driver/nvidia/gpus/0000:61:00.0/information"
    host.files[information] = "Model: \t\t NVIDIA A100\nDevice Minor: \t 3\n"
    host.log.waiting = [record(1, 1, text)]
    frame = SourceReader(KernelLogStream(), host, ORIGIN).run().frame
    assert frame is not None
    found = [(each.event_class.name, each.entity.key) for each in frame.events]
    assert found == [(event, (address,))]
    assert counted(frame, "railscope_kernel_gpu_failures_total") == 1


@pytest.mark.parametrize(
    "text",
    [
        "NVRM: no reset required",
        "NVRM: GPU 0000:61:00.0: reset is not required",
        "NVRM: GPU at PCI:0000:61:00: GPU-561aa6e6-8938-4a36-9103-2c3b8e5b96f8",
        "oom-kill:task_memcg=/NVRM: GPU is lost,task=a,pid=1,uid=0",
    ],
)
def test_other_lines_are_not_about_a_lost_gpu(text: str) -> None:
    assert parse_kernel_message(text) is None


def test_a_failed_check_that_repeats_is_counted_and_reported_once_a_minute() -> None:
    host = FakeHost()
    host.log.waiting = [record(i, i * 30_000, f"NVRM: {FAILED_CHECK}") for i in range(4000)]
    frame = SourceReader(KernelLogStream(), host, ORIGIN).run().frame
    assert frame is not None
    assert [event.boot_ns // NS for event in frame.events] == [0, 60]
    assert counted(frame, "railscope_kernel_gpu_failures_total") == 4000
    assert counted(frame, "railscope_kernel_log_suppressed_events_total") == 3998


def test_a_send_queue_that_stays_stuck_is_one_event_a_minute_of_each_interface() -> None:
    """The kernel and the driver each write a line, again with every period of the watchdog."""
    host = FakeHost()
    texts = [
        "{0}: NETDEV WATCHDOG: CPU: 5: transmit queue 3 timed out 5234 ms",
        "{0}: TX timeout detected, starting reset task!",
    ]
    names = ("bnxt_en 0000:3b:00.0 ens1", "bnxt_en 0000:5e:00.0 ens2")
    lines = [text.format(name) for text in texts for name in names]
    host.log.waiting = [record(i, i // 4 * 5_000_000, lines[i % 4]) for i in range(4 * 18)]
    frame = SourceReader(KernelLogStream(), host, ORIGIN).run().frame
    assert frame is not None
    found = [(event.entity.key[0], event.boot_ns // NS) for event in frame.events]
    assert found == [("ens1", 0), ("ens2", 0), ("ens1", 60), ("ens2", 60)]
    assert counted(frame, "railscope_kernel_log_suppressed_events_total") == 4 * 18 - 4


@pytest.mark.parametrize(("priority", "xids"), [(3, 1), (7, 1), (11, 0), (14, 0), (187, 0)])
def test_only_kernel_messages_count(priority: int, xids: int) -> None:
    """A process that writes to /dev/kmsg does so as another facility."""
    host = FakeHost()
    host.log.waiting = [f"{priority},1,1,-;{XID}"]
    frame = SourceReader(KernelLogStream(), host, ORIGIN).run().frame
    assert frame is not None
    assert (counted(frame, XIDS[0]), len(frame.events)) == (xids, xids)
    assert counted(frame, RECORDS) == 1


# The log as a file of a copied tree, and the device -------------------------------------------------


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


def test_the_device_gives_records_in_order() -> None:
    if not os.access("/dev/kmsg", os.R_OK):
        pytest.skip("/dev/kmsg cannot be read here: needs CAP_SYSLOG and the device")
    log = LiveKernelLog("/dev/kmsg")
    try:
        sequences = [int(found.split(",")[1]) for found in log.poll()]
    finally:
        log.close()
    assert sequences == sorted(set(sequences))


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


def test_a_flood_is_reported_in_portions_and_the_excess_is_counted() -> None:
    """A collector rejects an envelope with too many events."""
    host = FakeHost()
    reader = SourceReader(KernelLogStream(), host, ORIGIN)
    reader.run()
    host.log.waiting = [record(n, n, XID) for n in range(1, 12_001)]
    frames = [reader.run().frame for _ in range(25)]
    counts = [len(frame.events) for frame in frames if frame]
    assert max(counts) == 500
    assert sum(counts) == 10_000
    assert counted(frames[-1], "railscope_kernel_xids_total") == 12_000
    assert counted(frames[-1], "railscope_kernel_log_suppressed_events_total") == 2_000
