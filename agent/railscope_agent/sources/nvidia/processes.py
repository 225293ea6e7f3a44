"""Processes and virtual GPUs of each GPU, one by one.

They are bounded in number. A process gets its own columns once it has been present at two polls, so
that short processes do not create new columns every time; the others are counted. PIDs are in the
host's PID namespace, which the agent needs in a container too. Every job has different columns: acceptable
on a metrics endpoint, too many for a schema that is transmitted.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from railscope.catalog import entities, gpu_sharing as s
from railscope.frame import Entity
from railscope.reading import Absent, Reading
from railscope_agent.gpus.inventory import GpuDevice, GpuInventory
from railscope_agent.gpus.process_lists import (
    ListedProcess,
    list_processes,
)
from railscope_agent.host import Host, Json, NvmlError
from railscope_agent.sampling import (
    answer_readings,
    fact_readers,
    probe_result,
    row_builder,
    source,
)
from railscope_agent.sources.nvidia.gpu_sharing import call_for_list, list_vgpus

MAX_REPORTED = 64
_NOT_FOUND = 6
"""No sample since the last call."""


@dataclass(slots=True)
class _GpuUse:
    """Usage of one GPU, and its columns."""

    gpu: GpuDevice
    column: int = 0
    reported: dict[int, int] = field(default_factory=dict)
    """First column of each process that has columns."""
    vgpus: dict[int, int] = field(default_factory=dict)


class GpuProcessSource(source.Source):
    """Processes and virtual GPUs of every GPU, one by one."""

    name = "gpu_process"
    is_shipped = False
    """Every process would add a schema that all collectors have to store."""
    lane = source.NVML
    period_seconds = 5.0

    def __init__(self, gpus: GpuInventory | None = None, max_reported: int = MAX_REPORTED) -> None:
        self._max_reported = max_reported
        self._gpus = gpus or GpuInventory()
        self._generation = 0
        self._uses: list[_GpuUse] = []
        self._earlier_pids: dict[int, set[int]] = {}
        """Processes of each GPU at the last poll: those still present at the next one get columns."""
        self._planned: dict[int, list[ListedProcess]] = {}
        self._vgpus: dict[int, dict[int, Entity]] = {}

    def probe(self, host: Host) -> probe_result.ProbeResult:
        """Create columns for every GPU, and for the processes that have been present at two polls."""
        gpus = self._gpus.scan(host)
        self._generation = self._gpus.generation
        columns = probe_result.ColumnBuilder()
        self._uses = [self._plan(host, gpu, columns) for gpu in gpus.values()]
        return columns.result()

    def _plan(self, host: Host, gpu: GpuDevice, columns: probe_result.ColumnBuilder) -> _GpuUse:
        use = _GpuUse(gpu, columns.add(s.GPU_SUPPRESSED_PROCESSES, gpu.entity))
        processes, absent = list_processes(host, gpu)
        earlier_pids = self._earlier_pids.get(gpu.index)
        # At the first probe there is no earlier list: all processes get columns, so that `once` shows them.
        lasting = [p for p in processes.values() if earlier_pids is None or p.pid in earlier_pids]
        if absent:  # processes keep their columns until they are confirmed to have ended
            lasting = self._planned.get(gpu.index, [])
        else:
            self._earlier_pids[gpu.index] = set(processes)
        self._planned[gpu.index] = lasting
        # Of too many, those with most memory: they explain the use of the GPU. The number breaks ties.
        by_memory = sorted(lasting, key=lambda process: (-(process.memory_bytes or 0), process.pid))
        for process in by_memory[: self._max_reported]:
            entity = _entity(host, gpu.entity, process)
            metrics = s.PROCESS_MEMORY, s.PROCESS_SM, s.PROCESS_MEMORY_ACTIVITY
            use.reported[process.pid] = columns.add_each(metrics, entity)
        instances = _running_vgpus(host, gpu.index)
        if not isinstance(instances, Absent):
            vgpus = {instance: _vgpu_entity(host, gpu.entity, instance) for instance in instances}
            self._vgpus[gpu.index] = vgpus
        for instance, entity in self._vgpus.get(gpu.index, {}).items():
            use.vgpus[instance] = columns.add_each((s.VGPU_MEMORY, s.VGPU_UTILIZATION), entity)
        return use

    def read(self, host: Host, into: row_builder.RowBuilder) -> None:
        """Poll every GPU. A process that stayed or ended, or a changed vGPU, requests another probe."""
        for use in self._uses:
            processes, absent = list_processes(host, use.gpu)
            self._fill(host, use, processes, absent, into)
            into.needs_probe |= self._fill_vgpus(host, use, absent, into)
            if absent:
                continue
            lasting = {pid for pid in processes if pid in self._earlier_pids.get(use.gpu.index, ())}
            self._earlier_pids[use.gpu.index] = set(processes)
            reportable = min(
                len(lasting | use.reported.keys() & processes.keys()), self._max_reported
            )
            into.needs_probe |= (
                use.reported.keys() - processes.keys() != set() or len(use.reported) < reportable
            )
        into.needs_probe |= self._gpus.generation != self._generation

    def _fill(
        self,
        host: Host,
        use: _GpuUse,
        processes: dict[int, ListedProcess],
        absent: Absent | None,
        into: row_builder.RowBuilder,
    ) -> None:
        still_reported = use.reported.keys() & processes.keys()
        into.put(use.column, absent or len(processes) - len(still_reported))
        busy = absent or _utilization(host, use.gpu)
        for pid, column in use.reported.items():
            process = processes.get(pid)
            if process is None:
                into.put_none(column, 3, absent or Absent.UNSUPPORTED)
                continue
            into.put(column, _memory_on(use.gpu, process.memory_bytes))
            activity = (busy, busy) if isinstance(busy, Absent) else busy.get(pid, (0, 0))
            into.put_readings(column + 1, activity)

    def _fill_vgpus(
        self, host: Host, use: _GpuUse, absent: Absent | None, into: row_builder.RowBuilder
    ) -> bool:
        """Report the virtual GPUs that have columns. Return True if the running ones differ from them."""
        instances = absent or _running_vgpus(host, use.gpu.index)
        if isinstance(instances, Absent):
            for column in use.vgpus.values():
                into.put_none(column, 2, instances)
            return False
        if not use.vgpus:
            return bool(instances)
        busy = _vgpu_utilization(host, use.gpu.index)
        for instance, column in use.vgpus.items():
            try:
                used = int(host.call("nvml", "nvmlVgpuInstanceGetFbUsage", instance))
                into.put(column, _memory_on(use.gpu, used))
            except NvmlError as error:
                into.put(column, answer_readings.nvml_reason(error.code))
            into.put(column + 1, busy if isinstance(busy, Absent) else busy.get(instance, 0))
        return set(instances) != use.vgpus.keys()


def _memory_on(gpu: GpuDevice, used_bytes: int | None) -> Reading:
    """Memory of a GPU that a process or virtual GPU uses: an error if the GPU has less, if its memory is known."""
    if used_bytes is None:
        return Absent.UNSUPPORTED
    return Absent.ERROR if 0 < gpu.memory_bytes < used_bytes else used_bytes


def _entity(host: Host, gpu: Entity, process: ListedProcess) -> Entity:
    facts = fact_readers.nonempty_facts(
        process_name=fact_readers.read_text(host, f"/proc/{process.pid}/comm"),
        context=process.context,
        gpu_instance=process.gpu_instance,
        compute_instance=process.compute_instance,
    )
    return Entity(entities.GPU_PROCESS, (*gpu.key, str(process.pid)), facts)


def _utilization(host: Host, gpu: GpuDevice) -> dict[int, tuple[int, int]] | Absent:
    """SM and memory activity in percent by process; those without a sample were idle."""
    # nvml.h: the call is not supported for a GPU in MIG mode, nor for its MIG devices.
    if gpu.mig_mode == "1":
        return Absent.UNSUPPORTED
    samples = _samples(host, "nvmlDeviceGetProcessUtilization", gpu.index)
    if isinstance(samples, Absent):
        return samples
    return {sample["pid"]: (sample["smUtil"], sample["memUtil"]) for sample in samples}


def _samples(host: Host, function: str, gpu: int) -> list[Json] | Absent:
    """Samples since the last call, the oldest first."""
    samples = call_for_list(host, function, gpu, _NOT_FOUND)
    if isinstance(samples, Absent):
        return samples
    return sorted(samples, key=lambda sample: sample["timeStamp"])


def _running_vgpus(host: Host, gpu: int) -> list[int] | Absent:
    """Running virtual GPUs, none if the GPU does not support them; or the absence reason."""
    vgpus = list_vgpus(host, gpu)
    return [] if vgpus is Absent.UNSUPPORTED else vgpus


def _vgpu_entity(host: Host, gpu: Entity, instance: int) -> Entity:
    kind, machine, name = (
        fact_readers.call_nvml(host, f"nvmlVgpuInstanceGet{member}", instance)
        for member in ("Type", "VmID", "UUID")
    )
    vgpu_type = None if kind is None else fact_readers.call_nvml(host, "nvmlVgpuTypeGetName", kind)
    facts = fact_readers.nonempty_facts(
        vgpu_type=str(vgpu_type or ""), virtual_machine=str(machine[0]) if machine else ""
    )
    return Entity(entities.VGPU, (*gpu.key, str(name or instance)), facts)


def _vgpu_utilization(host: Host, gpu: int) -> dict[int, int] | Absent:
    samples = _samples(host, "nvmlDeviceGetVgpuUtilization", gpu)
    if isinstance(samples, Absent):
        return samples
    # nvml.h, nvmlValue_t: the value is an unsigned int in a union of eight bytes.
    return {sample["vgpuInstance"]: sample["smUtil"] & 0xFFFF_FFFF for sample in samples}
