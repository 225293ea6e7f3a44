"""The live node, or a copied tree of files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agent.host import Clock, Json, NvmlError
from agent.host.clock import RealClock
from agent.host.files import OpenFiles, RootedFiles
from agent.host.kernel_log import RealKernelLog
from agent.host.machine import Machine
from agent.host.network import SEAMS, Network
from agent.host.nvme import Nvme
from agent.host.nvml import Nvml
from agent.host.owners import SEAMS as OF_OWNERS
from agent.host.owners import Owners

_LIBRARY_NOT_FOUND = 12
_ENODEV, _EOPNOTSUPP = 19, 95


class RealHost:
    """This node. With a root other than "/" only the files of that tree exist.

    A copied tree has no GPUs and no network interfaces of its own: NVML and network calls would
    describe the wrong node, so they fail as on a node without such devices.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._files = RootedFiles(root)
        self._live = self._files.real("") == ""
        self._clock = RealClock()
        self._machine = Machine(self._files.real("/proc"))
        self._nvml = Nvml()
        self._network = Network(self._clock)
        self._nvme = Nvme()
        self._owners = Owners(self._files, live=self._live)

    @property
    def clock(self) -> Clock:
        """Clocks of the node."""
        return self._clock

    @property
    def boot_id(self) -> str:
        """The kernel's boot ID; empty in a tree without one."""
        try:
            return self.read("/proc/sys/kernel/random/boot_id").decode().strip()
        except FileNotFoundError:
            return ""

    def read(self, path: str) -> bytes:
        """Content of a small file."""
        return self._files.read(path)

    def names(self, path: str) -> list[str]:
        """Entries of a directory, sorted."""
        return self._files.names(path)

    def resolve(self, path: str) -> str:
        """Path with all links followed."""
        return self._files.resolve(path)

    def keep(self, paths: Sequence[str]) -> OpenFiles:
        """Open a group of counter files with persistent descriptors."""
        return self._files.keep(paths)

    def call(self, seam: str, function: str, *arguments: int | str) -> Json:
        """Call NVML, psutil, a drive, the network (ethtool, netlink, LLDP), or an owner seam."""
        if seam == "psutil":
            return self._machine.call(function)
        if seam == "nvml":
            if not self._live:
                raise NvmlError(_LIBRARY_NOT_FOUND, "a copied tree has no NVML")
            return self._nvml.call(function, *arguments)
        if seam in SEAMS:
            if not self._live:
                raise OSError(_ENODEV, "a copied tree has no network interfaces")
            return self._network.call(seam, function, *arguments)
        if seam == "nvme":
            if not self._live:
                raise OSError(_EOPNOTSUPP, "a copied tree has no drives")
            return self._nvme.call(function, str(arguments[0]))
        if seam in OF_OWNERS:
            return self._owners.call(seam, function, *arguments)
        message = f"unknown seam {seam!r}"
        raise ValueError(message)

    @property
    def grain_ns(self) -> int:
        """Always 0: a live node returns a new answer each time."""
        return 0

    def kernel_log(self) -> RealKernelLog:
        """Follow /dev/kmsg."""
        return RealKernelLog(self._files.real("/dev/kmsg"))

    def close(self) -> None:
        """Release the node's resources."""
        self._network.close()
        self._nvml.close()
