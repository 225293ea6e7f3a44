"""The live node, or a copied tree of files: the host interfaces that sources call, and their dispatch."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from railscope.capture import Json
from railscope_agent.host import (
    JOB_FILES,
    Clock,
    FileGroup,
    NvmlError,
    file_groups,
    files,
    network_calls,
    nvml,
    owners,
    textfiles,
)
from railscope_agent.host.live_clock import LiveClock
from railscope_agent.host.live_kernel_log import KMSG_PATH, LiveKernelLog
from railscope_agent.host.nvme_health_log import call_nvme
from railscope_agent.host.psutil_calls import PsutilCalls

if TYPE_CHECKING:
    from railscope_agent.host import nccl_ras

_COLLECTIVE_CALLS = {JOB_FILES, "nccl_ras"}
_LIBRARY_NOT_FOUND = 12  # nvml.h: as on a node without the driver
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
        self._ras: nccl_ras.RasCalls | None = None
        owner = owners.OwnerCalls(self, live=self._live)
        self._file_calls: dict[str, Callable[..., Json]] = {
            **{name: partial(owner.call, name) for name in owners.HOST_INTERFACES},
            textfiles.HOST_INTERFACE: textfiles.TextfileCalls(self.real, self.clock).call,
        }

    def _collective_calls(
        self, function: str, *arguments: int | str
    ) -> dict[str, Callable[..., Json]]:
        """Load the calls about collectives. Raises OSError for a listing of a directory that does not exist."""
        if function.startswith("list"):
            Path(self.real(str(arguments[0]))).stat()
        from railscope_agent.host import (  # noqa: PLC0415 - 1 MiB
            job_files,
            nccl_ras,
        )

        ras = self._ras = nccl_ras.RasCalls(self, live=self._live)
        return {
            JOB_FILES: job_files.JobFileCalls(self).call,
            nccl_ras.NCCL_RAS: ras.call,
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
        return groups[0][1] if len(groups) == 1 else file_groups.JoinedFiles(groups)

    def _open_port_counters(self, port: tuple[str, int] | None, paths: list[str]) -> FileGroup:
        opened = super().open_file_group(paths)
        # The files of a copied tree are of another node than the kernel that would be called.
        if port is None or not self._live or len(paths) < MIN_CALLED_COUNTERS:
            return opened
        return file_groups.PortCounterFiles(
            paths, opened, partial(self._network.rdma_counters, *port)
        )

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
                raise OSError(errno.ENOENT, "network interfaces are not available in a copied tree")
            return self._network.call(host_interface, function, *arguments)
        if host_interface == "nvme":
            if not self._live:
                raise OSError(errno.EOPNOTSUPP, "drives are not available in a copied tree")
            return call_nvme(function, str(arguments[0]))
        if host_interface in _COLLECTIVE_CALLS and host_interface not in self._file_calls:
            self._file_calls |= self._collective_calls(function, *arguments)
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
        if self._ras:
            self._ras.close()
        self._nvml.close()
