"""Processes of each GPU, as the driver lists them.

The lists are expensive; the source that reads them keeps the latest for other sources.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from agent.gpus.inventory import GpuDevice
from agent.host import Host, Json, NvmlError
from agent.sampling.source import nvml_reason
from railscope.frame import Instant
from railscope.reading import Absent

_NOT_SUPPORTED, _NOT_FOUND = 3, 6
_NONE = {_NOT_FOUND, 21}  # NOT_FOUND, NO_DATA
_HAS_NO_LIST = {_NOT_SUPPORTED, 13, 25}
_CONTEXTS = {
    "compute": "nvmlDeviceGetComputeRunningProcesses",
    "graphics": "nvmlDeviceGetGraphicsRunningProcesses",
    "mps": "nvmlDeviceGetMPSComputeRunningProcesses",
}
_NO_INSTANCE = 0xFFFF_FFFF


@dataclass(slots=True)
class Process:
    """A process as one look found it; None where the driver does not tell its memory."""

    pid: int
    context: str
    memory_bytes: int | None
    gpu_instance: str = ""
    compute_instance: str = ""


@dataclass(frozen=True, slots=True)
class ListedProcesses:
    """The processes of a GPU by their id as one look found them, or why they could not be told."""

    at: Instant
    there: Mapping[int, Process]
    trouble: Absent | None


class ProcessLists:
    """The last look at each GPU's processes, by its UUID: lists are dear, and others want them, too.

    Whoever reads them may be on another thread: what is in here is never changed.
    """

    def __init__(self) -> None:
        self._latest: dict[str, ListedProcesses] = {}

    def put(self, gpu: str, listed: ListedProcesses) -> None:
        """Keep a look."""
        self._latest = {**self._latest, gpu: listed}

    def get(self, gpu: str) -> ListedProcesses | None:
        """The last look; None where there was none."""
        return self._latest.get(gpu)


def processes(host: Host, gpu: GpuDevice) -> tuple[dict[int, Process], Absent | None]:
    """The processes of a GPU by their id, or why they cannot be told.

    A GPU that is cut tells those of its MIG devices; the whole needs privilege then.
    """
    devices: list[int | str] = [device.uuid for device in gpu.mig_devices]
    found: dict[int, Process] = {}
    for device in devices if gpu.mig_mode == "1" else [gpu.index]:
        here: dict[int, Process] = {}
        for context, function in _CONTEXTS.items():
            told = _listed(host, function, device)
            if isinstance(told, Absent):
                if context == "compute" or told is not Absent.UNSUPPORTED:
                    return {}, told
                continue  # a GPU need not draw, nor have MPS
            for process in told:
                _merge(here, process, context)
        for pid, process in here.items():
            before = found.setdefault(pid, process)
            if before is not process:
                before.memory_bytes = _sum(before.memory_bytes, process.memory_bytes)
    return found, None


def _listed(host: Host, function: str, device: int | str) -> Json | Absent:
    """A list of processes, by the older function where the driver lacks the newer."""
    for name in (function, f"{function}_v2"):
        try:
            return host.call("nvml", name, device)
        except NvmlError as error:
            if error.code in _NONE:
                return []
            if error.code not in _HAS_NO_LIST:
                return nvml_reason(error.code)
        except FileNotFoundError:
            continue
    return Absent.UNSUPPORTED


def _merge(here: dict[int, Process], told: Json, context: str) -> None:
    """Add a process of one device. Its memory is the same in the list of every context it has."""
    pid, memory = int(told["pid"]), told["usedGpuMemory"]
    before = here.get(pid)
    if before is None:
        gpu, compute = (_instance(told.get(k)) for k in ("gpuInstanceId", "computeInstanceId"))
        here[pid] = Process(pid, context, memory, gpu, compute)
    elif before.context == context:
        before.memory_bytes = _sum(before.memory_bytes, memory)
    elif context == "mps":
        before.context = "mps"


def _sum(one: int | None, other: int | None) -> int | None:
    """A part that is not known leaves the whole unknown."""
    return None if one is None or other is None else one + other


def _instance(number: int | None) -> str:
    return "" if number in {None, _NO_INSTANCE} else str(number)
