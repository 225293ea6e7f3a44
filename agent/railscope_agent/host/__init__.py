"""The host: the only interface to the node.

All node data that a source reads passes through here, so a live node, a copied tree and a recording
are interchangeable:

    RealHost(root)        files under a root, NVML, ethtool, NVMe, psutil, the kernel log, the clocks
    RecordingHost(host)   the same, and records every answer
    RecordedHost(capture) replays recorded answers
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from railscope import frame, reading
from railscope.capture import Json, NvmlError

__all__ = [
    "JOB_FILES",
    "MAX_GPUS",
    "MAX_LOG_RECORDS_PER_POLL",
    "Clock",
    "FileGroup",
    "Host",
    "Json",
    "KernelLog",
    "NvmlError",
]


class Clock(Protocol):
    """Clocks of the node, and waiting on them."""

    def now(self) -> frame.NodeTimestamp:
        """Wall clock (UTC) and boot clock (advances during suspend), each in nanoseconds."""
        ...

    async def sleep_until(self, boot_ns: int) -> None:
        """Wait until the boot clock has reached a timestamp."""
        ...

    @property
    def is_running(self) -> bool:
        """True if time passes by itself, so that a thread may wait for a timestamp."""
        ...


class FileGroup(Protocol):
    """A group of small files that are read often; most hold one integer each."""

    def read_into(self, values: list[int], reasons: bytearray, start: int) -> None:
        """Write each file's integer, or the code of its absence reason, into consecutive columns."""
        ...

    def texts(self) -> list[bytes | reading.Absent]:
        """Content of each file, or the reason why it cannot be read."""
        ...

    def close(self) -> None:
        """Close the open files."""
        ...


JOB_FILES = "job_files"
"""Host interface of agent/railscope_agent/host/job_files.py, which is loaded when it is used."""
MAX_GPUS = 64
"""Bounds what a faulty driver can add. More than a node has: the driver supports 32 (open-gpu-kernel-modules, nvlimits.h,
NV_MAX_DEVICES).
"""
MAX_LOG_RECORDS_PER_POLL = 20_000
"""More than the usual ring buffer holds; a driver that writes without pause must not keep a poll from returning."""


class KernelLog(Protocol):
    """The kernel log, followed from its oldest record."""

    def poll(self) -> list[str]:
        """Records since the last call, in the format of /dev/kmsg. Raises OSError.

        Fewer than MAX_LOG_RECORDS_PER_POLL are all that there were.
        """
        ...

    def close(self) -> None:
        """Close the log."""
        ...


class Host(Protocol):
    """A node. Paths are absolute and relative to the host's root."""

    @property
    def clock(self) -> Clock:
        """Clocks of the node."""
        ...

    @property
    def boot_id(self) -> str:
        """Identifier of the current boot; empty if the node does not report one."""
        ...

    def read(self, path: str) -> bytes:
        """Content of a small file. Raises OSError."""
        ...

    def names(self, path: str) -> list[str]:
        """Entries of a directory, sorted. Raises OSError."""
        ...

    def resolve(self, path: str) -> str:
        """Path with all links followed, still under the root. Raises OSError."""
        ...

    def open_file_group(self, paths: Sequence[str]) -> FileGroup:
        """Open a group of files that are read often."""
        ...

    def call(self, host_interface: str, function: str, *arguments: int | str) -> Json:
        """Call a function of an interface of the node. Raises NvmlError or OSError.

        Interfaces: NVML ("nvml"), psutil ("psutil"), NVMe drives ("nvme"); for the network ethtool's
        ioctl ("ethtool"), agent/railscope_agent/host/netlink ("netlink") and the neighbours that switches announce
        ("lldp"). Owners of devices are read from the "kubelet", and users, containers and virtual
        machines from "owner" (agent/railscope_agent/host/owners.py). Files of other programs, which may be hostile, are
        "textfile" (agent/railscope_agent/host/textfiles.py) and "job_files" (agent/railscope_agent/host/job_files.py); processes that answer
        about their collectives are "nccl_ras" (agent/railscope_agent/host/nccl_ras.py).
        """
        ...

    @property
    def statistics_period_ns(self) -> int:
        """Minimum time between two different answers of a NIC: 0 on a live node.

        A recording contains nothing between two recorded timestamps.
        """
        ...

    def kernel_log(self) -> KernelLog:
        """Follow the kernel log from its oldest record. Raises OSError."""
        ...


class HostWrapper:
    """Base of a host that puts something between its callers and another host."""

    def __init__(self, host: Host) -> None:
        self._host = host

    @property
    def clock(self) -> Clock:
        """Clocks of the node."""
        return self._host.clock

    @property
    def boot_id(self) -> str:
        """Identifier of the current boot."""
        return self._host.boot_id

    @property
    def statistics_period_ns(self) -> int:
        """Minimum time between two different answers of a NIC."""
        return self._host.statistics_period_ns

    def kernel_log(self) -> KernelLog:
        """Follow the kernel log; polling it never blocks."""
        return self._host.kernel_log()
