"""Process count, vGPU count and sharing mode of a GPU: the same columns for any set of processes."""

from __future__ import annotations

from agent.gpus.inventory import GpuDevice, Gpus
from agent.gpus.process_lists import ListedProcesses, Process, ProcessLists, processes
from agent.host import Host, NvmlError
from agent.sampling.source import Columns, HoldsNothing, Inventory, Table, nvml_reason
from railscope.catalog import gpu_sharing as s
from railscope.reading import Absent, Reading

_NOT_SUPPORTED, _NOT_FOUND = 3, 6
_NONE = {_NOT_FOUND, 21}  # NOT_FOUND, NO_DATA
_HAS_NO_LIST = {_NOT_SUPPORTED, 13, 25}
UNUSED, EXCLUSIVE, TIME_SLICING, MPS, MIG, VGPUS = s.GPU_SHARING.states


class Sharing(HoldsNothing):
    """Number of processes and virtual GPUs of each GPU, and its sharing mode."""

    name = "gpu_sharing"
    family = "nvml"

    def __init__(
        self,
        period_seconds: float = 5.0,
        gpus: Gpus | None = None,
        lists: ProcessLists | None = None,
    ) -> None:
        self.period_seconds = period_seconds
        self._gpus = gpus or Gpus()
        self._lists = lists or ProcessLists()
        self._generation = 0
        self._columns: list[tuple[GpuDevice, int]] = []

    def probe(self, host: Host) -> Inventory:
        """Three columns for each GPU."""
        gpus = self._gpus.look(host)
        self._generation = self._gpus.generation
        columns = Columns()
        self._columns = [(gpu, columns.add(s.GPU_SHARING, gpu.entity)) for gpu in gpus.values()]
        for metric in (s.GPU_PROCESSES, s.GPU_VGPUS):
            for gpu in gpus.values():
                columns.add(metric, gpu.entity)
        return Inventory(tuple(columns.columns))

    def read(self, host: Host, into: Table) -> None:
        """Count the processes and virtual GPUs."""
        count = len(self._columns)
        for gpu, column in self._columns:
            at = host.clock.now()
            there, trouble = processes(host, gpu)
            self._lists.put(gpu.entity.key[0], ListedProcesses(at, there, trouble))
            vgpus = trouble or vgpus_of(host, gpu.index)
            into.put(column, trouble or _sharing(gpu, there, vgpus))
            into.put(column + count, trouble or len(there))
            into.put(column + 2 * count, vgpus if isinstance(vgpus, Absent) else len(vgpus))
        into.grown = self._gpus.generation != self._generation


def vgpus_of(host: Host, gpu: int) -> list[int] | Absent:
    """Running virtual GPUs of a GPU, or the reason for their absence."""
    try:
        return [int(instance) for instance in host.call("nvml", "nvmlDeviceGetActiveVgpus", gpu)]
    except NvmlError as error:
        return nvml_reason(error.code)
    except FileNotFoundError:
        return Absent.UNSUPPORTED


def _sharing(gpu: GpuDevice, there: dict[int, Process], vgpus: list[int] | Absent) -> Reading:
    """Sharing mode of the GPU. Several computing processes without MPS are time-sliced."""
    if gpu.mig_mode == "1":
        return MIG
    if isinstance(vgpus, Absent):
        if vgpus is not Absent.UNSUPPORTED:
            return vgpus  # some may be running
    elif vgpus:
        return VGPUS
    contexts = [process.context for process in there.values()]
    if "mps" in contexts:
        return MPS
    computing = contexts.count("compute")
    if computing > 1:
        return TIME_SLICING
    return EXCLUSIVE if computing else UNUSED
