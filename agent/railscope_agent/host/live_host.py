"""The live node, or a copied tree of files: its clocks, kernel log, psutil and NVMe drives.

The answers of psutil are converted to plain dictionaries.
"""

from __future__ import annotations

import array
import asyncio
import ctypes
import errno
import fcntl
import os
import re
import stat
import struct
import time
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from itertools import groupby
from pathlib import Path
from typing import Any

import psutil

from railscope.capture import Json
from railscope.frame import NodeTimestamp
from railscope.timestamps import MICROSECOND_NS, SECOND_NS
from railscope_agent.host import (
    Clock,
    FileGroup,
    NvmlError,
    files,
    job_files,
    nccl_ras,
    network_calls,
    nvml,
    owners,
    tcp_sockets,
    textfiles,
    worker_servers,
)

_TIME_ERROR = 5  # adjtimex(2): the clock is not synchronized
_QUERY_PERIOD_NS = 10 * SECOND_NS  # the kernel's error bound grows by at most 0.5 ms per second


class _Timex(ctypes.Structure):
    """struct timex of <sys/timex.h>; only maxerror is read, the rest pads it to size."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("rest", ctypes.c_byte * 256),
    )


class LiveClock:
    """Clocks of the node itself."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._next_query_ns = 0
        self._uncertainty: int | None = None

    def now(self) -> NodeTimestamp:
        """Wall and boot clock, with the kernel's error bound of the wall clock."""
        boot_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        if boot_ns >= self._next_query_ns:
            self._next_query_ns = boot_ns + _QUERY_PERIOD_NS
            self._uncertainty = self._uncertainty_ns()
        return NodeTimestamp(time.time_ns(), boot_ns, self._uncertainty)

    async def sleep_until(self, boot_ns: int) -> None:
        """Wait until the boot clock has reached a timestamp."""
        # A timer may fire early, and suspend extends the wait: read the clock again.
        while (remaining_ns := boot_ns - time.clock_gettime_ns(time.CLOCK_BOOTTIME)) > 0:  # noqa: ASYNC110 - time has no event
            await asyncio.sleep(remaining_ns / SECOND_NS)

    @property
    def is_running(self) -> bool:
        """True: time passes by itself."""
        return True

    def _uncertainty_ns(self) -> int | None:
        timex = _Timex(modes=0)
        state = self._libc.adjtimex(ctypes.byref(timex))
        if state < 0 or state == _TIME_ERROR:
            return None
        return int(timex.maxerror) * MICROSECOND_NS


KMSG_PATH = "/dev/kmsg"
STANDARD_INPUT = 0
_KMSG = (1, 11)
"""Major and minor number of /dev/kmsg, Documentation/admin-guide/devices.txt."""
_RECORD_BYTES = 8192
_MAX_RECORDS_PER_POLL = 20_000


class LiveKernelLog:
    """Follow /dev/kmsg without blocking. Raises OSError if it cannot be opened.

    The log is /dev/kmsg, or a file of records in a copied tree. Format:
    Documentation/ABI/testing/dev-kmsg. One read returns one record; EAGAIN means that all records were
    read, EPIPE that records were overwritten before they were read: reading continues with the oldest
    remaining record, and the gap is visible in the sequence numbers.
    """

    def __init__(self, path: str, handed_over: int = STANDARD_INPUT) -> None:
        self._descriptor = _inherited_log(path, handed_over)
        if self._descriptor < 0:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._is_device = stat.S_ISCHR(os.fstat(self._descriptor).st_mode)
        self._left_over = b""

    def poll(self) -> list[str]:
        """Records since the last call, oldest first; a flood is returned in several calls."""
        return self._poll_device() if self._is_device else self._poll_file()

    def _poll_device(self) -> list[str]:
        records: list[str] = []
        while len(records) < _MAX_RECORDS_PER_POLL:
            try:
                record = os.read(self._descriptor, _RECORD_BYTES)
            except BlockingIOError:
                break
            except BrokenPipeError:
                continue
            if not record:
                break
            records.append(record.decode(errors="replace").rstrip("\n"))
        return records

    def _poll_file(self) -> list[str]:
        text = self._left_over + b"".join(iter(lambda: os.read(self._descriptor, 1 << 16), b""))
        *lines, self._left_over = text.split(b"\n")
        return [line.decode(errors="replace") for line in lines if line]

    def close(self) -> None:
        """Close the log."""
        os.close(self._descriptor)


def _inherited_log(path: str, descriptor: int) -> int:
    """The log as opened by systemd (StandardInput=file:), from its oldest record; -1 without it.

    Opening the kernel log may need CAP_SYSLOG (dmesg_restrict); reading from it does not.
    """
    if path != KMSG_PATH:
        return -1
    try:
        if os.fstat(descriptor).st_rdev != os.makedev(*_KMSG):
            return -1
        duplicate = os.dup(descriptor)
        os.set_blocking(duplicate, False)
        os.lseek(duplicate, 0, os.SEEK_SET)
    except OSError:
        return -1
    return duplicate


# File of /proc that a function needs. If it is missing, psutil would read the running node instead
# of the tree that it was pointed to.
_FILE_OF_FUNCTION = {
    "cpu_times": "stat",
    "cpu_count": "stat",
    "boot_time": "stat",
    "virtual_memory": "meminfo",
    "swap_memory": "meminfo",
    "disk_io_counters": "diskstats",
    "net_io_counters": "net/dev",
}


class PsutilCalls:
    """psutil pointed at the /proc of a root."""

    def __init__(self, proc: str) -> None:
        self._proc = proc

    def call(self, function: str) -> Json:
        """Return the answer of a psutil function. Raises OSError."""
        needed = _FILE_OF_FUNCTION[function]
        proc = self._proc
        if needed.startswith("net/") and not os.path.exists(f"{proc}/{needed}"):  # noqa: PTH110 - plain text paths
            proc = (
                f"{proc}/self"  # /proc/net links to it: a copied tree may have only one of the two
            )
        if not os.path.exists(f"{proc}/{needed}"):  # noqa: PTH110 - as above
            raise OSError(errno.ENOENT, f"{self._proc}/{needed} does not exist")
        psutil.PROCFS_PATH = proc  # process-wide: set before each call
        return _FUNCTIONS[function]()


def _as_dict(answer: Any) -> dict[str, Any]:
    return dict(answer._asdict())


def _each_as_dict(answers: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: _as_dict(answer) for name, answer in answers.items()}


# nowrap=False: psutil's correction of wrapped counters keeps state; the agent corrects wraps
# itself.
_FUNCTIONS: dict[str, Callable[[], Json]] = {
    "cpu_times": lambda: _as_dict(psutil.cpu_times()),
    "cpu_count": lambda: len(psutil.cpu_times(percpu=True)),
    "boot_time": psutil.boot_time,
    "virtual_memory": lambda: _as_dict(psutil.virtual_memory()),
    "swap_memory": lambda: _as_dict(psutil.swap_memory()),
    "disk_io_counters": lambda: _each_as_dict(
        psutil.disk_io_counters(perdisk=True, nowrap=False) or {}
    ),
    "net_io_counters": lambda: _each_as_dict(
        psutil.net_io_counters(pernic=True, nowrap=False) or {}
    ),
}


_NVME_IOCTL_ADMIN_CMD = 0xC0484E41
_GET_LOG_PAGE, _HEALTH_PAGE, _ALL_NAMESPACES = 0x02, 0x02, 0xFFFFFFFF
LOG_BYTES = 512
_STATUS = 0x7FF
_NO_SUCH_LOG = {0x001, 0x002, 0x109}  # Invalid Command Opcode, Invalid Field, Invalid Log Page
_COMMAND = struct.Struct("=BBHIIIQQIIIIIIIIII")
"""opcode, flags, -, namespace, cdw2-3, metadata, data, their lengths, cdw10-15, timeout, result."""
_CONTROLLER_NAME = re.compile(r"nvme\d+")
_HEAD = struct.Struct("<BHBBB")
_COUNTS = (
    "data_units_read", "data_units_written", "host_reads", "host_writes", "busy_minutes",
    "power_cycles", "power_on_hours", "unsafe_shutdowns", "media_errors", "logged_errors",
)  # fmt: skip
_COUNTS_AT, _COUNT_BYTES = 32, 16
_TIMES = struct.Struct("<II")
_TIMES_AT = 192


def decode_health_log(log: bytes) -> dict[str, int]:
    """Numbers of a health log in the drive's own units: kelvins, percent, minutes, hours.

    Raises OSError with EIO if the log is too short.
    """
    if len(log) < LOG_BYTES:
        raise OSError(errno.EIO, f"health log too short: {len(log)} bytes")
    warning, kelvins, spare, spare_limit, used = _HEAD.unpack_from(log)
    readings = {
        "critical_warning": warning,
        "temperature_kelvins": kelvins,
        "spare_percent": spare,
        "spare_limit_percent": spare_limit,
        "used_percent": used,
    }
    for position, name in enumerate(_COUNTS):
        start = _COUNTS_AT + position * _COUNT_BYTES
        readings[name] = int.from_bytes(log[start : start + _COUNT_BYTES], "little")
    readings["warm_minutes"], readings["hot_minutes"] = _TIMES.unpack_from(log, _TIMES_AT)
    return readings


def call_nvme(function: str, controller: str) -> Json:
    """Return "smart", the health log, of a controller of this node such as nvme0. Raises OSError."""
    if function != "smart" or not _CONTROLLER_NAME.fullmatch(controller):
        message = f"invalid NVMe controller {controller!r}: expected a name such as nvme0"
        raise OSError(errno.ENODEV, message)
    with open(f"/dev/{controller}", "rb", buffering=0) as device:  # noqa: PTH123 - a device
        return decode_health_log(read_health_log(device.fileno()))


def command_error(status: int) -> OSError:
    """Error for the status of a command: no such log (EOPNOTSUPP), or unreadable (EIO)."""
    number = errno.EOPNOTSUPP if status & _STATUS in _NO_SUCH_LOG else errno.EIO
    return OSError(number, f"the drive returned NVMe status {status:#x}")


def read_health_log(descriptor: int) -> bytes:
    """Health log of the drive of a descriptor. Raises OSError, also if it is not a drive.

    Sources: linux UAPI include/uapi/linux/nvme_ioctl.h (struct nvme_passthru_cmd); NVM Express base
    specification, Get Log Page command and SMART / Health Information log (page 0x02). The ioctl
    requires CAP_SYS_ADMIN. The command runs with the kernel's own timeout: if a shorter one expired,
    the kernel would reset the drive.
    """
    buffer = array.array("B", bytes(LOG_BYTES))
    address, _ = buffer.buffer_info()
    length = LOG_BYTES // 4 - 1  # in units of four bytes, counted from 0
    data = (address, 0, LOG_BYTES)
    command = bytearray(
        _COMMAND.pack(
            *(_GET_LOG_PAGE, 0, 0, _ALL_NAMESPACES, 0, 0, 0),
            *data,
            *(_HEALTH_PAGE | length << 16, 0, 0, 0, 0, 0, 0, 0),
        )
    )
    status = fcntl.ioctl(descriptor, _NVME_IOCTL_ADMIN_CMD, command)
    if status:
        raise command_error(status)
    return buffer.tobytes()


_LIBRARY_NOT_FOUND = 12


MIN_CALLED_COUNTERS = 16
"""Reading fewer files costs less than a call, which decodes the names of all counters of the port."""
_PORT_COUNTER = re.compile(r"/sys/class/infiniband/([^/]+)/ports/(\d+)/hw_counters/[^/]+")


def _rdma_port(path: str) -> tuple[str, int] | None:
    """RDMA device and port of a file in `hw_counters`; None for other files."""
    match = _PORT_COUNTER.fullmatch(path)
    return (match[1], int(match[2])) if match else None


class LiveHost(files.RootedFiles):
    """This node. With a root other than "/" only the files of that tree exist.

    A copied tree has no GPUs and no network interfaces of its own: NVML and network calls would
    describe the wrong node, so they fail as on a node without such devices.
    """

    statistics_period_ns = 0
    """A live node returns a new answer each time."""

    def __init__(self, root: Path = Path("/"), clock: Clock | None = None) -> None:
        super().__init__(root)
        self._live = not self.real("")
        self.clock = clock or LiveClock()
        self._machine = PsutilCalls(self.real("/proc"))
        self._nvml = nvml.Nvml()
        self._network = network_calls.NetworkCalls(self.clock)
        self._ras = nccl_ras.RasCalls(self, live=self._live)
        owner = owners.OwnerCalls(self, live=self._live)
        jobs = job_files.JobFileCalls(self)
        sockets = tcp_sockets.TcpSocketCalls(self, live=self._live)
        self._file_calls: dict[str, Callable[..., Json]] = {
            **{name: partial(owner.call, name) for name in owners.HOST_INTERFACES},
            textfiles.HOST_INTERFACE: textfiles.TextfileCalls(self.real, self.clock).call,
            job_files.JOB_FILES: jobs.call,
            nccl_ras.NCCL_RAS: self._ras.call,
            tcp_sockets.TCP_SOCKETS: sockets.call,
            worker_servers.WORKER_SERVERS: worker_servers.WorkerServerCalls(
                jobs, sockets, live=self._live
            ).call,
        }

    @cached_property
    def boot_id(self) -> str:
        """Boot ID of the kernel, constant for the life of a process; empty in a tree without one."""
        try:
            return self.read("/proc/sys/kernel/random/boot_id").decode().strip()
        except FileNotFoundError:
            return ""

    def open_file_group(self, paths: Sequence[str]) -> FileGroup:
        """Open a group of files; one call per RDMA port reads those in its `hw_counters`."""
        groups = [
            (len(members), self._open_port_counters(port, members))
            for port, members in ((p, list(ps)) for p, ps in groupby(paths, _rdma_port))
        ]
        return groups[0][1] if len(groups) == 1 else files.JoinedFiles(groups)

    def _open_port_counters(self, port: tuple[str, int] | None, paths: list[str]) -> FileGroup:
        opened = super().open_file_group(paths)
        if port is None or not self._live or len(paths) < MIN_CALLED_COUNTERS:
            return opened
        return files.PortCounterFiles(paths, opened, partial(self._network.rdma_counters, *port))

    def call(self, host_interface: str, function: str, *arguments: int | str) -> Json:
        """Call NVML, psutil, a drive, the network, owners of processes and devices, or files of jobs."""
        if host_interface == "psutil":
            return self._machine.call(function)
        if host_interface == "nvml":
            if not self._live:
                raise NvmlError(_LIBRARY_NOT_FOUND, "NVML is not available in a copied tree")
            return self._nvml.call(function, *arguments)
        if host_interface in network_calls.HOST_INTERFACES:
            if not self._live:
                raise OSError(errno.ENODEV, "network interfaces are not available in a copied tree")
            return self._network.call(host_interface, function, *arguments)
        if host_interface == "nvme":
            if not self._live:
                raise OSError(errno.EOPNOTSUPP, "drives are not available in a copied tree")
            return call_nvme(function, str(arguments[0]))
        if host_interface in self._file_calls:
            return self._file_calls[host_interface](function, *arguments)
        message = f"unknown host interface {host_interface!r}"
        raise ValueError(message)

    def kernel_log(self) -> LiveKernelLog:
        """Follow /dev/kmsg."""
        return LiveKernelLog(self.real(KMSG_PATH))

    def close(self) -> None:
        """Release the node's resources."""
        self._network.close()
        self._ras.close()
        self._nvml.close()
