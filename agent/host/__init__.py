"""The host: the only way to touch the machine.

Everything a source wants to know goes through here, so that a live machine, a copied tree and a
recording are the same to it:

    RealHost(root)        files under a root, NVML, ethtool, NVMe, psutil, the kernel log, the clocks
    RecordingHost(host)   the same, and writes down what was answered
    RecordedHost(capture) answers from what was written down
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from railscope.capture import Json, NvmlError
from railscope.frame import Instant

__all__ = ["Clock", "Host", "Json", "KeptFiles", "KernelLog", "NvmlError"]


class Clock(Protocol):
    """The clocks of the machine, and waiting on them."""

    def now(self) -> Instant:
        """Wall clock (UTC) and boot clock (runs on while suspended), nanoseconds each."""
        ...

    async def sleep_until(self, boot_ns: int) -> None:
        """Wait until the boot clock has reached an instant."""
        ...


class KeptFiles(Protocol):
    """A group of small files that are read often: most hold one integer each."""

    def read_into(self, values: list[int], reasons: bytearray, start: int) -> None:
        """Put each file's integer, or the code of its reason, into consecutive columns."""
        ...

    def text(self, index: int) -> bytes:
        """The content of one file. Raises OSError."""
        ...

    def close(self) -> None:
        """Give the open files back."""
        ...


class KernelLog(Protocol):
    """The kernel log, followed from its oldest record."""

    def poll(self) -> list[str]:
        """Records that came since the last call, as /dev/kmsg prints them. Raises OSError."""
        ...

    def close(self) -> None:
        """Give the log back."""
        ...


class Host(Protocol):
    """A machine. Paths are absolute and lie under the host's root."""

    @property
    def clock(self) -> Clock:
        """The machine's clocks."""
        ...

    @property
    def boot_id(self) -> str:
        """What identifies the present boot; empty where the machine does not say."""
        ...

    def read(self, path: str) -> bytes:
        """The content of a small file. Raises OSError."""
        ...

    def names(self, path: str) -> list[str]:
        """The entries of a directory, sorted. Raises OSError."""
        ...

    def resolve(self, path: str) -> str:
        """A path with all links followed, still under the root. Raises OSError."""
        ...

    def keep(self, paths: Sequence[str]) -> KeptFiles:
        """A group of files to be read often."""
        ...

    def call(self, seam: str, function: str, *arguments: int | str) -> Json:
        """Ask NVML ("nvml"), psutil ("psutil"), an NVMe drive ("nvme"), or the network.

        The network is ethtool's ioctl ("ethtool"), "netlink" (agent/host/netlink) and the neighbours
        that switches announce ("lldp"). Who holds what is asked of the "kubelet", and of what users,
        containers and virtual machines say of themselves ("owner", agent/host/owners.py).
        Raises NvmlError or OSError.
        """
        ...

    @property
    def grain_ns(self) -> int:
        """How far apart two different answers of a card are at least: 0 on a live machine.

        A recording knows of no moment between two that were recorded.
        """
        ...

    def kernel_log(self) -> KernelLog:
        """Follow the kernel log from its oldest record. Raises OSError."""
        ...
