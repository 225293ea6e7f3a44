"""Number of processes and virtual GPUs of each GPU, and its sharing mode.

The numbers and the mode have the same columns for any set of processes.
"""

from __future__ import annotations

from railscope.catalog import gpu_sharing as s
from railscope.reading import Absent, Reading
from railscope_agent.gpus.inventory import GpuDevice, GpuInventory
from railscope_agent.gpus.process_lists import (
    ListedProcess,
    ListedProcesses,
    ProcessLists,
    list_processes,
)
from railscope_agent.host import Host, Json, NvmlError
from railscope_agent.sampling import answer_readings, probe_result, row_builder, source

UNUSED, EXCLUSIVE, TIME_SLICING, MPS, MIG, VGPUS = s.GPU_SHARING.states


class GpuSharingSource(source.Source):
    """Number of processes and virtual GPUs of each GPU, and its sharing mode."""

    name = "gpu_sharing"
    lane = source.NVML
    period_seconds = 5.0

    def __init__(self, gpus: GpuInventory | None = None, lists: ProcessLists | None = None) -> None:
        self._gpus = gpus or GpuInventory()
        self._lists = lists or ProcessLists()
        self._generation = 0
        self._columns: list[tuple[GpuDevice, int]] = []

    def probe(self, host: Host) -> probe_result.ProbeResult:
        """Three columns for each GPU."""
        gpus = self._gpus.scan(host)
        self._generation = self._gpus.generation
        columns = probe_result.ColumnBuilder()
        self._columns = [(gpu, columns.add(s.GPU_SHARING, gpu.entity)) for gpu in gpus.values()]
        for metric in (s.GPU_PROCESSES, s.GPU_VGPUS):
            for gpu in gpus.values():
                columns.add(metric, gpu.entity)
        return columns.result()

    def read(self, host: Host, into: row_builder.RowBuilder) -> None:
        """Count the processes and virtual GPUs."""
        count = len(self._columns)
        for gpu, column in self._columns:
            # Before the lists are read: a process is not claimed to have been there later than it was.
            listed = host.clock.now()
            processes, absent = list_processes(host, gpu)
            self._lists.put(gpu.entity.key[0], ListedProcesses(listed, processes, absent))
            vgpus = absent or list_vgpus(host, gpu.index)
            into.put(column, absent or _sharing_mode(gpu, processes, vgpus))
            into.put(column + count, absent or len(processes))
            into.put(column + 2 * count, vgpus if isinstance(vgpus, Absent) else len(vgpus))
        into.needs_probe = self._gpus.generation != self._generation


def list_vgpus(host: Host, gpu: int) -> list[int] | Absent:
    """Running virtual GPUs of a GPU, or the reason for their absence."""
    answer = call_for_list(host, "nvmlDeviceGetActiveVgpus", gpu)
    return answer if isinstance(answer, Absent) else [int(instance) for instance in answer]


def call_for_list(
    host: Host, function: str, gpu: int, empty_code: int | None = None
) -> list[Json] | Absent:
    """List that a call returns, or the reason for its absence; `empty_code` stands for no entry."""
    try:
        answer: list[Json] = host.call("nvml", function, gpu)
    except NvmlError as error:
        return [] if error.code == empty_code else answer_readings.nvml_reason(error.code)
    except FileNotFoundError:
        return Absent.UNSUPPORTED
    return answer


def _sharing_mode(
    gpu: GpuDevice, processes: dict[int, ListedProcess], vgpus: list[int] | Absent
) -> Reading:
    """Sharing mode of the GPU. Several computing processes without MPS are time-sliced."""
    if gpu.mig_mode == "1":
        return MIG
    if isinstance(vgpus, Absent):
        if vgpus is not Absent.UNSUPPORTED:
            return vgpus  # some may be running
    elif vgpus:
        return VGPUS
    contexts = [process.context for process in processes.values()]
    if "mps" in contexts:
        return MPS
    computing = contexts.count("compute")
    if computing > 1:
        return TIME_SLICING
    return EXCLUSIVE if computing else UNUSED
