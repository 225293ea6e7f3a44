"""The node itself: processors, memory, pressure, disks, interface traffic and load."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from functools import partial

from railscope import __version__
from railscope.catalog import declare, entities, host as c
from railscope.frame import Entity
from railscope.reading import Absent, Reading, reason_of
from railscope_agent.host import Host, Json
from railscope_agent.sampling import (
    answer_readings,
    fact_readers,
    probe_result,
    row_builder,
    source,
)

_SEVERITIES = ("some", "full")
_WINDOWS = ("1m", "5m", "15m")
_HUNDREDTHS = 100
_TOTAL = re.compile(rb"total=(\d+)")
_NODE_GAUGES: tuple[tuple[str, str | None, declare.Metric], ...] = (
    ("cpu_count", None, c.CPUS),
    ("boot_time", None, c.BOOT_TIME),
    ("virtual_memory", "total", c.MEMORY_SIZE),
    ("virtual_memory", "available", c.MEMORY_AVAILABLE),
    ("virtual_memory", "cached", c.MEMORY_CACHED),
    ("swap_memory", "used", c.SWAP_USED),
)
_DISK = (
    ("read_bytes", c.DISK_READ), ("write_bytes", c.DISK_WRITTEN), ("read_count", c.DISK_READS),
    ("write_count", c.DISK_WRITES), ("read_time", c.DISK_READ_TIME),
    ("write_time", c.DISK_WRITE_TIME), ("busy_time", c.DISK_BUSY_TIME),
)  # fmt: skip
_NETWORK = (
    ("bytes_recv", c.NETWORK_RECEIVED), ("bytes_sent", c.NETWORK_SENT),
    ("packets_recv", c.NETWORK_RECEIVED_PACKETS), ("packets_sent", c.NETWORK_SENT_PACKETS),
    ("errin", c.NETWORK_RECEIVE_ERRORS), ("errout", c.NETWORK_SEND_ERRORS),
    ("dropin", c.NETWORK_RECEIVE_DROPS), ("dropout", c.NETWORK_SEND_DROPS),
)  # fmt: skip
_BLOCK = "/sys/block"
_NO_DRIVE = re.compile(
    r"(loop|ram|zram|sr|scd|fd|dm-|md|md_d|bcache|drbd|zd|dasd_eer)\d+(p\d+)?"
    r"|nvme\d+c\d+n\d+(p\d+)?"
)
"""Block devices that are not drives of their own.

Memory, images, removable media, volumes on drives (LVM, RAID, caches, mirrors), and paths to an NVMe
drive that is listed itself.
"""
_NVME_PATH = re.compile(r"(nvme\d+)c\d+(n\d+)")
_PARTITION = re.compile(r"(?P<disk>.*\d)p\d+|(?P<lettered>.*\D)\d+")


class HostSource(source.Source):
    """Processors, memory, pressure, disks, network interfaces and load of the node."""

    name = "host"
    lane = source.SYSTEM
    period_seconds = 5.0

    def __init__(self) -> None:
        self._functions: tuple[str, ...] = ()
        self._answers: list[tuple[int, str, Callable[[Json], Reading]]] = []
        self._files: list[tuple[int, str, Callable[[bytes], Reading]]] = []

    def probe(self, host: Host) -> probe_result.ProbeResult:
        """Call every psutil function once; each one that answers becomes columns."""
        columns = probe_result.ColumnBuilder()
        facts = fact_readers.nonempty_facts(
            hostname=fact_readers.read_text(host, "/proc/sys/kernel/hostname"),
            kernel=fact_readers.read_text(host, "/proc/sys/kernel/osrelease"),
            agent_version=__version__,
        )
        node = Entity(entities.NODE, (), facts)
        self._answers, self._files = [], []
        for function, key, metric in filter(lambda row: self.selects(row[2]), _NODE_GAUGES):
            if _answer(host, function) is not None:
                self._answers.append((columns.add(metric, node), function, _number(key)))
        for mode in (self.selects(c.CPU_TIME) and _answer(host, "cpu_times")) or {}:
            column = columns.add(c.CPU_TIME, node.child(entities.CPU_MODE, mode))
            self._answers.append((column, "cpu_times", _scaled_member(mode, _HUNDREDTHS)))
        self._probe_tables(columns, host)
        self._probe_files(columns, host)
        self._functions = tuple(dict.fromkeys(function for _, function, _ in self._answers))
        return columns.result(columnless_entities=(node,))

    def read(self, host: Host, into: row_builder.RowBuilder) -> None:
        """Call each function once, read each file once."""
        answers: dict[str, Json | Absent] = {}
        for function in self._functions:
            try:
                answers[function] = host.call("psutil", function)
            except OSError as error:
                answers[function] = reason_of(error)
        for column, function, pick in self._answers:
            answer = answers[function]
            absent = answer if isinstance(answer, Absent) else None
            into.put(column, absent or answer_readings.pick_reading(pick, answer))
        for column, path, parse in self._files:
            pick_from = partial(answer_readings.pick_reading, parse)
            into.put(column, answer_readings.parsed_reading(host.read, path, pick_from))

    def _probe_tables(self, columns: probe_result.ColumnBuilder, host: Host) -> None:
        disks = _answer(host, "disk_io_counters") or {}
        for disk in whole_drives(host, disks):
            for key, metric in _DISK:
                if key in disks[disk] and self.selects(metric):
                    column = columns.add(metric, Entity(entities.DISK, (disk,)))
                    self._answers.append((column, "disk_io_counters", _drive_counter(disk, key)))
        for interface in sorted(_answer(host, "net_io_counters") or {}):
            for key, metric in filter(lambda row: self.selects(row[1]), _NETWORK):
                column = columns.add(metric, Entity(entities.INTERFACE, (interface,)))
                self._answers.append((column, "net_io_counters", _nested_member(interface, key)))

    def _probe_files(self, columns: probe_result.ColumnBuilder, host: Host) -> None:
        if self.selects(c.LOAD_AVERAGE) and fact_readers.read_text(host, "/proc/loadavg"):
            for position, window in enumerate(_WINDOWS):
                column = columns.add(c.LOAD_AVERAGE, Entity(entities.LOAD_WINDOW, (window,)))
                self._files.append((column, "/proc/loadavg", _load(position)))
        for resource in ("cpu", "memory", "io") if self.selects(c.PRESSURE_STALLED) else ():
            path = f"/proc/pressure/{resource}"
            for line in fact_readers.read_text(host, path).splitlines():
                severity = line.split(" ", 1)[0]
                if severity not in _SEVERITIES:
                    continue
                about = Entity(entities.PRESSURE, (resource, severity))
                self._files.append(
                    (columns.add(c.PRESSURE_STALLED, about), path, _pressure(severity))
                )


def whole_drives(host: Host, disks: Collection[str]) -> list[str]:
    """Drives among block devices, so that a sum over them counts every byte once.

    A partition, a volume of LVM or RAID and an NVMe path carry the data of their drive. Sysfs shows
    partitions (they have no entry of their own) and stacked devices (they have `slaves`); without
    sysfs, as in a capture of counters, names decide.
    """
    listed = {name.replace("!", "/") for name in fact_readers.list_names(host, _BLOCK)}
    return [
        disk
        for disk in sorted(disks)
        if not _NO_DRIVE.fullmatch(disk)
        and not _is_partition(disk, disks, listed)
        and not fact_readers.list_names(host, f"{_BLOCK}/{disk.replace('/', '!')}/slaves")
    ]


def _is_partition(disk: str, disks: Collection[str], listed: Collection[str]) -> bool:
    if disk in listed:
        return False
    match = _PARTITION.fullmatch(disk)
    return bool(match and (match["disk"] or match["lettered"]) in {*disks, *listed})


def _answer(host: Host, function: str) -> Json:
    try:
        return host.call("psutil", function)
    except OSError:
        return None


def _number(key: str | None) -> Callable[[Json], Reading]:
    return lambda answer: int(answer if key is None else answer[key])


def _scaled_member(key: str, steps: int) -> Callable[[Json], Reading]:
    return lambda answer: round(answer[key] * steps)


def _nested_member(entry: str, key: str) -> Callable[[Json], Reading]:
    return lambda answer: int(answer[entry][key]) if entry in answer else Absent.GONE


def _drive_counter(drive: str, key: str) -> Callable[[Json], Reading]:
    """Return a function that picks a counter of a drive; of one that counts nothing, the sum of its paths.

    With native multipath of NVMe, older kernels count at the paths only (torvalds/linux, drivers/nvme/host/multipath.c).
    """
    # Paths are busy at the same time: a sum could exceed the time that has passed.
    combine = max if key == "busy_time" else sum

    def pick(answer: Json) -> Reading:
        if drive not in answer:
            return Absent.GONE
        counters = [answer[drive]]
        if not any(answer[drive].values()):
            counters += [
                of for name, of in answer.items() if _NVME_PATH.sub(r"\1\2", name) == drive
            ]
        return combine(int(of[key]) for of in counters)

    return pick


def _load(position: int) -> Callable[[bytes], Reading]:
    return lambda content: round(float(content.split()[position]) * _HUNDREDTHS)


def _pressure(severity: str) -> Callable[[bytes], Reading]:
    def parse(content: bytes) -> Reading:
        for line in content.splitlines():
            match = _TOTAL.search(line)
            if line.startswith(severity.encode()) and match:
                return int(match[1])
        return Absent.GONE

    return parse
