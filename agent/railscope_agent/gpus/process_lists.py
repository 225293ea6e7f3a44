"""Processes of each GPU, as the driver lists them.

The lists are expensive; the source that reads them caches the latest for other sources.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from railscope.frame import NodeTimestamp
from railscope.reading import Absent
from railscope_agent.gpus.inventory import GpuDevice
from railscope_agent.host import Host, Json, NvmlError
from railscope_agent.sampling.answer_readings import nvml_reason

_NOT_SUPPORTED, _NOT_FOUND = 3, 6
_NONE = {_NOT_FOUND, 21}  # NOT_FOUND, NO_DATA
# FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH: an older driver, which has an older function.
_HAS_NO_LIST = {_NOT_SUPPORTED, 13, 25}
_CONTEXTS = {
    "compute": "nvmlDeviceGetComputeRunningProcesses",
    "graphics": "nvmlDeviceGetGraphicsRunningProcesses",
    "mps": "nvmlDeviceGetMPSComputeRunningProcesses",
}
# nvml.h, nvmlProcessInfo_t: the instance ids of a process on a GPU without MIG.
_NO_INSTANCE = 0xFFFF_FFFF


@dataclass(slots=True)
class ListedProcess:
    """A process as of one poll; `memory_bytes` is None if the driver does not report it."""

    pid: int
    context: str
    memory_bytes: int | None
    gpu_instance: str = ""
    compute_instance: str = ""


@dataclass(frozen=True, slots=True)
class ListedProcesses:
    """Processes of a GPU by PID as of one poll, or the reason for their absence."""

    listed: NodeTimestamp
    processes: Mapping[int, ListedProcess]
    absent: Absent | None


class ProcessLists:
    """Last poll of each GPU's processes, by GPU UUID; the lists are expensive and have several readers.

    Readers may be on other threads: the mapping is replaced, never modified.
    """

    def __init__(self) -> None:
        self._latest: dict[str, ListedProcesses] = {}

    def put(self, gpu: str, listed: ListedProcesses) -> None:
        """Store the result of a poll."""
        self._latest = {**self._latest, gpu: listed}

    def get(self, gpu: str) -> ListedProcesses | None:
        """Result of the last poll; None if there was none."""
        return self._latest.get(gpu)


def list_processes(host: Host, gpu: GpuDevice) -> tuple[dict[int, ListedProcess], Absent | None]:
    """Processes of a GPU by PID, or the reason for their absence.

    On a partitioned GPU the processes of its MIG devices are merged; listing the whole GPU would
    need privilege.
    """
    devices: list[int | str] = [device.uuid for device in gpu.mig_devices]
    processes: dict[int, ListedProcess] = {}
    for device in devices if gpu.mig_mode == "1" else [gpu.index]:
        on_device: dict[int, ListedProcess] = {}
        for context, function in _CONTEXTS.items():
            answer = _read_process_list(host, function, device)
            if isinstance(answer, Absent):
                # A list without the compute processes would make their owners look absent.
                if context == "compute" or answer is not Absent.UNSUPPORTED:
                    return {}, answer
                continue  # a GPU may lack graphics and MPS
            for process in answer:
                _merge_list(on_device, process, context)
        for pid, process in on_device.items():
            before = processes.setdefault(pid, process)
            if before is not process:
                before.memory_bytes = _add_optional(before.memory_bytes, process.memory_bytes)
    return processes, None


def _read_process_list(host: Host, function: str, device: int | str) -> Json | Absent:
    """List of processes, from the older function if the driver lacks the newer."""
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


def _merge_list(processes: dict[int, ListedProcess], answer: Json, context: str) -> None:
    """Add a process of one device. Its memory is the same in the list of each of its contexts."""
    pid, memory = int(answer["pid"]), answer["usedGpuMemory"]
    before = processes.get(pid)
    if before is None:
        gpu, compute = (_instance(answer.get(k)) for k in ("gpuInstanceId", "computeInstanceId"))
        processes[pid] = ListedProcess(pid, context, memory, gpu, compute)
    elif before.context == context:
        before.memory_bytes = _add_optional(before.memory_bytes, memory)
    # MPS clients are in the compute list as well: the more specific context counts.
    elif context == "mps":
        before.context = "mps"


def _add_optional(value: int | None, other: int | None) -> int | None:
    """Sum of two amounts; unknown if either is unknown."""
    return None if value is None or other is None else value + other


def _instance(number: int | None) -> str:
    return "" if number in {None, _NO_INSTANCE} else str(number)
