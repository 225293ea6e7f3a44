"""Kernel log as events and counters.

Record format: Documentation/ABI/testing/dev-kmsg, `priority,sequence,microseconds,flags;text`.
Plain lines, as dmesg and journalctl write them, are accepted as well, without their time.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

from railscope.catalog import declare, entities, gpu_health as gpu_catalog, kernel as c
from railscope.catalog.xids import UNKNOWN, Judgement, judge, sxid, xid
from railscope.frame import Entity, Event
from railscope.reading import Absent, Reading, reason_of
from railscope.timestamps import MICROSECOND_NS, SECOND_NS
from railscope_agent.host import MAX_GPUS, MAX_LOG_RECORDS_PER_POLL, Host, KernelLog
from railscope_agent.sampling import fact_readers, probe_result, row_builder, source
from railscope_agent.streams.driver_reports import DriverReports
from railscope_agent.streams.firmware_errors import FirmwareErrors
from railscope_agent.streams.kernel_log_clock import KernelLogClock
from railscope_agent.streams.kernel_messages import (
    KernelMessage,
    parse_kernel_message,
    strip_log_prefix,
)
from railscope_agent.streams.xid_matcher import (
    EVERY_GPU,
    UNNAMED_GPU,
    ActionableXid,
    InitFailure,
    XidMatcher,
)

_RECORD_PATTERN = re.compile(
    r"(?P<priority>\d+),(?P<sequence>\d+),(?P<time>\d+),[^;]*;(?P<text>.*)", re.DOTALL
)
_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_MAX_DIGITS = 15
"""Bound of the numbers of a record: this many microseconds are 31 years, and a timestamp in nanoseconds."""
_DRIVER_LOADED = "NVRM: loading NVIDIA UNIX"
_LINE_BREAK = re.compile(r"\\x0a(?:NVRM: ?)?")
"""Line break inside a record, as the kernel escapes it (Documentation/ABI/testing/dev-kmsg): one message of the driver."""
_DEVICE_MINOR = "Device Minor:"
"""Field of /proc/driver/nvidia/gpus/*/information (open-gpu-kernel-modules, kernel-open/nvidia/nv-procfs.c)."""
_LEVEL_BITS = 3
"""A priority consists of a level and, above it, a facility; that of the kernel is 0."""
_MAX_ENTITIES = 1000
MAX_EVENTS_PER_FRAME, MAX_EVENTS_WAITING = 500, 10_000
"""Bounds such that a collector accepts the events of some seconds and all sources in one envelope."""
_BY_ENTITY: dict[str, declare.Metric] = {
    c.XID_EVENT.name: gpu_catalog.GPU_XID_ERRORS,
    c.SXID_EVENT.name: c.SXID_ERRORS,
    c.LINK_EVENT.name: c.LINK_MESSAGES,
    c.AER_EVENT.name: c.AER_MESSAGES,
}
_BY_NODE: dict[str, declare.Metric] = {
    c.XID_EVENT.name: c.XIDS,
    c.SXID_EVENT.name: c.SXIDS,
    c.OOM_EVENT.name: c.OOM_KILLS,
    c.GPU_LOST_EVENT.name: c.GPU_FAILURES,
    c.GPU_INIT_FAILED_EVENT.name: c.GPU_FAILURES,
    c.GPU_RESET_EVENT.name: c.GPU_FAILURES,
}
_XIDS_OF_LINES = {
    c.GPU_LOST_EVENT.name: (79, ""),
    c.GPU_RESET_EVENT.name: (154, "to 0x1 (GPU Reset Required)"),
}
"""Xid, with its message, that declares the same as a line of the driver without an Xid."""
_AT_START = "installed in this system"
"""Words of a line that the driver prints while it starts a GPU (open-gpu-kernel-modules, src/nvidia/arch/nvalloc/unix/src/osinit.c)."""
_REBOOT = "to 0x2 (Node Reboot Required)"
REPEATED_NS = 60 * SECOND_NS
"""Time in which a line about the same GPU or interface makes no other event: failed checks repeat in a loop."""
_NODE_METRICS = tuple(metric for metric in dict.fromkeys(_BY_NODE.values()) if metric is not c.XIDS)


class KernelLogStream(source.Source):
    """Follows the kernel log and counts relevant messages."""

    name = "kernel"
    lane = source.SYSTEM
    period_seconds = 1.0
    min_period_seconds = 0.02
    longest_period_seconds = 5.0
    """The log is a ring: records that are overwritten before they are read are lost."""

    def __init__(self, xids: XidMatcher | None = None) -> None:
        self._xids = xids or XidMatcher()
        self._last_xid: dict[tuple[str, ...], int] = {}
        self._problem: Absent | None = None
        self._log: KernelLog | None = None
        self._clock = KernelLogClock()
        self._firmware_errors = FirmwareErrors()
        self._driver_reports = DriverReports()
        self._counts: Counter[tuple[str, Entity]] = Counter()
        self._node_counts: Counter[declare.Metric] = Counter()
        self._records = 0
        self._lost_records = 0
        self._next_sequence: int | None = None
        self._counted_below = 0
        self._events: list[Event] = []
        self._reported_ns: dict[tuple[str, tuple[str, ...]], int] = {}
        """Time of the last event about each fault that the driver declares without an Xid."""
        self._suppressed = 0
        self._columns: list[tuple[str, Entity]] = []
        self._last: list[tuple[str, ...]] = []
        self._reported: list[str] = []
        """Devices with a column of their driver's report."""

    def remember(self, directory: Path, boot_id: str) -> None:
        """Load and store the offsets of the log's clock."""
        self._clock.remember(directory, boot_id)

    def probe(self, host: Host) -> probe_result.ProbeResult:
        """Open the log if necessary, read new records, and add a column for everything counted so far.

        Xids come from NVML, too: they are reported even if the log cannot be read.
        """
        findings = self._open(host)
        self._report_unlogged(host)
        columns = probe_result.ColumnBuilder()
        if self._log or self._counts:
            metrics = (c.XIDS, *_NODE_METRICS, c.LOG_RECORDS, c.LOG_LOST, c.LOG_SUPPRESSED)
            columns.add_each(metrics, Entity(entities.NODE))
        self._columns = list(self._counts)
        for name, entity in self._columns:
            columns.add(_BY_ENTITY[name], entity)
        self._last = list(self._last_xid)
        for key in self._last:
            columns.add(gpu_catalog.GPU_LAST_XID, Entity(entities.GPU_ADDRESS, key))
        self._reported = list(self._driver_reports.addresses)
        for address in self._reported:
            columns.add(c.DRIVER_REPORT, Entity(entities.PCIE, (address,)))
        return columns.result(*findings)

    def _open(self, host: Host) -> list[probe_result.ProbeFinding]:
        try:
            if self._log is None:
                self._log = host.kernel_log()
                self._counted_below = self._next_sequence or 0  # it starts over from the oldest
            self._follow(host, self._log)
        except OSError as error:
            self.close()
            self._problem = reason_of(error)
            return [_open_failure(error)]
        self._problem = None
        return []

    def read(self, host: Host, into: row_builder.RowBuilder) -> None:
        """Read new records. The first message of its kind gets its column with the next probe."""
        if self._log:
            self._follow(host, self._log)
        self._report_unlogged(host)
        into.events = self._events[:MAX_EVENTS_PER_FRAME]
        del self._events[:MAX_EVENTS_PER_FRAME]
        into.needs_probe = len(self._counts) != len(self._columns)
        into.needs_probe |= len(self._last_xid) != len(self._last)
        into.needs_probe |= len(list(self._driver_reports.addresses)) != len(self._reported)
        if not into.reasons:
            return
        now_ns = host.clock.now().boot_ns
        of_log = [self._node_counts[metric] for metric in _NODE_METRICS]
        of_log += [self._records, self._lost_records, self._suppressed]
        readings: list[Reading] = [
            self._node_counts[c.XIDS],
            *(self._problem or reading for reading in of_log),
            *(self._counts[counted] for counted in self._columns),
            *(self._last_xid[gpu] for gpu in self._last),
            *(self._driver_reports.reading(each, now_ns) for each in self._reported),
        ]
        into.put_readings(0, readings)

    def close(self) -> None:
        """Close the log; the counts stay."""
        if self._log:
            self._log.close()
        self._log = None

    def _follow(self, host: Host, log: KernelLog) -> None:
        began, addresses = host.clock.now(), dict[str, str]()
        polled = log.poll()
        now = host.clock.now()
        records = [record for record in polled if not self._is_counted(record)]
        matches = filter(None, map(_RECORD_PATTERN.match, records))
        if stamps := [_stamp_ns(match) for match in matches if not _is_damaged(match)]:
            self._clock.place(min(stamps), max(stamps), now.boot_ns)
        self._records += len(records)
        for record in records:
            boot_ns, text = self._parse_record(record, now.boot_ns)
            if text.startswith(_DRIVER_LOADED):
                self._xids.record_driver_load(boot_ns)
            message = parse_kernel_message(text) or self._firmware_errors.parse(text)
            if message:
                if message.gpu_number:
                    # Read once per poll, and only if a line names a GPU by its number.
                    addresses = addresses or _addresses_by_number(host)
                    address = addresses.get(message.gpu_number, UNNAMED_GPU)
                    message = replace(message, entity=Entity(entities.GPU_ADDRESS, (address,)))
                # A wall clock that was set back by more than the uptime places early records before 1970.
                wall_ns = max(now.wall_ns - (now.boot_ns - boot_ns), 0)
                if message.event_class is c.XID_EVENT:
                    address, number = message.entity.key
                    self._xids.record_logged(address, int(number), boot_ns)
                if self._record_driver_report(host, message, boot_ns):
                    self._record_message(message, wall_ns, boot_ns)
        self._clock.end_poll(began.boot_ns, is_at_end=len(polled) < MAX_LOG_RECORDS_PER_POLL)

    def _report_unlogged(self, host: Host) -> None:
        """Report the Xids that only NVML reported."""
        for reported in self._xids.take_unlogged(host.clock.now().boot_ns):
            entity = Entity(entities.XID, (reported.pci_address, str(reported.xid)))
            facts = fact_readers.nonempty_facts(
                gpu_instance=reported.gpu_instance,
                compute_instance=reported.compute_instance,
                reported_by="nvml",
            )
            self._record_message(
                KernelMessage(c.XID_EVENT, entity, facts), reported.wall_ns, reported.boot_ns
            )

    def _record_driver_report(self, host: Host, message: KernelMessage, boot_ns: int) -> bool:
        """Record what a line states about a device; return False if it is no event."""
        kind, key = message.entity.kind, message.entity.key
        address = key[0] if kind in {entities.PCIE, entities.PORT_MODULE} else ""
        if kind is entities.NIC:
            link = f"/sys/class/net/{key[0]}/device"
            address = message.pci_address or fact_readers.read_link_name(host, link)
        if not _PCI_ADDRESS.fullmatch(address):
            return True
        state = message.facts.get("state", "")
        return self._driver_reports.record(message.event_class.name, state, address, boot_ns)

    def _record_message(self, message: KernelMessage, wall_ns: int, boot_ns: int) -> None:
        facts = message.facts
        if message.event_class is c.XID_EVENT:
            address, number = message.entity.key
            gpu = Entity(entities.GPU_ADDRESS, (address,))
            if gpu.key in self._last_xid or len(self._last_xid) < MAX_GPUS:
                self._last_xid[gpu.key] = int(number)
            judged, entry = judge(int(number), facts.get("message", "")), xid(int(number))
            self._xids.record_judgement(address, ActionableXid(int(number), boot_ns, judged))
            facts = fact_readers.nonempty_facts(
                **facts,
                name=entry.name,
                meaning=entry.meaning,
                severity=judged.severity,
                action=" ".join(judged.actions),
                nvidia_action=judged.nvidia,
            )
        elif message.event_class is c.SXID_EVENT:
            self._record_sxid(message, boot_ns)
        # Before the bound below: the counters stay exact in a flood, only events are dropped.
        self._count(message)
        is_repeated = False
        if _BY_NODE.get(message.event_class.name) is c.GPU_FAILURES:
            is_repeated = self._record_driver_line(message, boot_ns)
        elif message.event_class is c.TRANSMIT_TIMEOUT_EVENT:
            # The kernel and the driver each write a line, again every few seconds while the queue is stuck.
            is_repeated = self._is_repeated(message, boot_ns)
        if is_repeated or len(self._events) >= MAX_EVENTS_WAITING:
            self._suppressed += 1
            return
        self._events.append(Event(message.event_class, message.entity, wall_ns, boot_ns, facts))

    def _record_sxid(self, message: KernelMessage, boot_ns: int) -> None:
        """Record an SXid about all GPUs if the whole fabric fails, else about one: no line names those behind a link."""
        _, number, stated = message.entity.key
        entry = sxid(int(number))
        severity = entry.severity if stated == "unstated" else stated
        if severity in ("fatal", UNKNOWN):
            judged = Judgement(severity, entry.actions, "")
            line = f"SXid {number} {entry.name}: {message.facts.get('message', entry.meaning)}"
            report = ActionableXid(int(number), boot_ns, judged, line, is_of_switch=True)
            is_fabric = entry.error_class == "fatal"
            self._xids.record_judgement(EVERY_GPU if is_fabric else UNNAMED_GPU, report)

    def _record_driver_line(self, message: KernelMessage, boot_ns: int) -> bool:
        """Record what the driver declares without an Xid; return True if it was reported a short time ago."""
        name, (address,) = message.event_class.name, message.entity.key
        line = message.facts["message"]
        if name in _XIDS_OF_LINES:
            number, text = _XIDS_OF_LINES[name]
            if message.event_class is c.GPU_RESET_EVENT and "reboot" in line.lower():
                text = _REBOOT
            judged = judge(number, text)
            self._xids.record_judgement(address, ActionableXid(number, boot_ns, judged, line))
        is_start = message.event_class is c.GPU_INIT_FAILED_EVENT or _AT_START in line
        if is_start:
            self._xids.record_init_failure(address, InitFailure(boot_ns, line))
        return self._is_repeated(message, boot_ns)

    def _is_repeated(self, message: KernelMessage, boot_ns: int) -> bool:
        """Return True if the same was reported a short time ago."""
        key = message.event_class.name, message.entity.key
        last_ns = self._reported_ns.get(key)
        if last_ns is not None and boot_ns - last_ns < REPEATED_NS:
            return True
        if last_ns is not None or len(self._reported_ns) < _MAX_ENTITIES:
            self._reported_ns[key] = boot_ns
        return False

    def _is_counted(self, record: str) -> bool:
        """True if a record was counted before the log had to be opened again."""
        if not self._counted_below:
            return False
        match = _RECORD_PATTERN.match(record)
        is_counted = match is not None and (
            _is_damaged(match) or int(match["sequence"]) < self._counted_below
        )
        # Records are in order: behind the first new one there is no counted one.
        self._counted_below = self._counted_below if is_counted else 0
        return is_counted

    def _parse_record(self, record: str, now_boot_ns: int) -> tuple[int, str]:
        match = _RECORD_PATTERN.match(record)
        if not match:
            return now_boot_ns, strip_log_prefix(record)
        if _is_damaged(match):
            return now_boot_ns, ""
        sequence = int(match["sequence"])
        if self._next_sequence is not None and sequence > self._next_sequence:
            self._lost_records += sequence - self._next_sequence
        self._next_sequence = sequence + 1
        # Any process that may write to /dev/kmsg can write any text, but not with the kernel's facility.
        by_kernel = int(match["priority"]) >> _LEVEL_BITS == 0
        text = _LINE_BREAK.sub(" ", match["text"].split("\n", 1)[0]) if by_kernel else ""
        return self._clock.boot_ns(_stamp_ns(match)), text

    def _count(self, message: KernelMessage) -> None:
        name = message.event_class.name
        if name in _BY_NODE:
            self._node_counts[_BY_NODE[name]] += 1
        key = (name, message.entity)
        if name in _BY_ENTITY and (key in self._counts or len(self._counts) < _MAX_ENTITIES):
            self._counts[key] += 1


def _addresses_by_number(host: Host) -> dict[str, str]:
    """Return the addresses of GPUs by the numbers in the driver's lines, which are those of their device files."""
    information = {
        address: fact_readers.read_text(host, f"/proc/driver/nvidia/gpus/{address}/information")
        for address in fact_readers.list_names(host, "/sys/bus/pci/devices")
    }
    return {
        line.removeprefix(_DEVICE_MINOR).strip(): address
        for address, text in information.items()
        for line in text.splitlines()
        if line.startswith(_DEVICE_MINOR)
    }


def _stamp_ns(record: re.Match[str]) -> int:
    return int(record["time"]) * MICROSECOND_NS


def _is_damaged(record: re.Match[str]) -> bool:
    """True if a number is too large, which only a damaged capture contains: such a record is read, and is about nothing."""
    return max(len(record[name]) for name in ("priority", "sequence", "time")) > _MAX_DIGITS


def _open_failure(error: OSError) -> probe_result.ProbeFinding:
    if reason_of(error) is Absent.GONE:
        return probe_result.ProbeFinding.absent("kernel log", "/dev/kmsg does not exist")
    remedy = "run the agent under its systemd unit, which opens the kernel log, or with CAP_SYSLOG"
    detail = f"cannot open /dev/kmsg: {error.strerror}"
    return probe_result.ProbeFinding("kernel log", probe_result.ProbeVerdict.DENIED, detail, remedy)
