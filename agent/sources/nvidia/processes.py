"""Who uses a GPU: processes, bounded in number, and virtual GPUs; and how they share it.

A process is told one by one once it has lived through two looks, so that many short ones do not
make a new schema every time; what is not told is counted. Process ids are those of the host: in a
container the agent needs the host's PID namespace.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from agent.facts import known, text
from agent.host import Host, Json, NvmlError
from agent.source import Columns, HoldsNothing, Inventory, Table, nvml_reason
from agent.sources.nvidia.inventory import GpuDevice, Gpus
from railscope.catalog import gpu_sharing as s
from railscope.catalog.entities import GPU_PROCESS, VGPU
from railscope.entity import Entity
from railscope.reading import Absent, Reading

MOST_TOLD = 64
_NOT_SUPPORTED, _NOT_FOUND = 3, 6
_NONE = {_NOT_FOUND, 21}  # NOT_FOUND, NO_DATA
_HAS_NO_LIST = {_NOT_SUPPORTED, 13, 25}
UNUSED, EXCLUSIVE, TIME_SLICING, MPS, MIG, VGPUS = s.GPU_SHARING.states
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


@dataclass(slots=True)
class _Use:
    """What is known of the use of one GPU, and where its columns are."""

    gpu: GpuDevice
    column: int = 0
    told: dict[int, int] = field(default_factory=dict)
    """First column of each process that has columns."""
    vgpus: dict[int, int] = field(default_factory=dict)


class Processes(HoldsNothing):
    """Processes and virtual GPUs of every GPU."""

    name = "gpu_process"
    family = "nvml"

    def __init__(
        self, period_seconds: float = 5.0, gpus: Gpus | None = None, most_told: int = MOST_TOLD
    ) -> None:
        self.period_seconds = period_seconds
        self._most_told = most_told
        self._gpus = gpus or Gpus()
        self._generation = 0
        self._uses: list[_Use] = []
        self._seen: dict[int, set[int]] = {}
        """Processes of each GPU at the last look: those that are still there now may be told."""
        self._planned: dict[int, list[Process]] = {}

    def probe(self, host: Host) -> Inventory:
        """Make columns for every GPU, and for the processes that have been there a while."""
        gpus = self._gpus.look(host)
        self._generation = self._gpus.generation
        columns = Columns()
        self._uses = [self._plan(host, gpu, columns) for gpu in gpus.values()]
        return Inventory(tuple(columns.columns))

    def _plan(self, host: Host, gpu: GpuDevice, columns: Columns) -> _Use:
        use = _Use(gpu, columns.add(s.GPU_SHARING, gpu.entity))
        for metric in (s.GPU_PROCESSES, s.GPU_PROCESSES_UNTOLD, s.GPU_VGPUS):
            columns.add(metric, gpu.entity)
        there, trouble = processes(host, gpu)
        seen = self._seen.get(gpu.index)
        lasting = [p for p in there.values() if seen is None or p.pid in seen]
        if trouble:  # who was there keeps the columns until it can be told that they are gone
            lasting = self._planned.get(gpu.index, [])
        else:
            self._seen[gpu.index] = set(there)
        self._planned[gpu.index] = lasting
        for process in sorted(lasting, key=_by_memory)[: self._most_told]:
            entity = _entity(host, gpu.entity, process)
            use.told[process.pid] = columns.add(s.PROCESS_MEMORY, entity)
            columns.add(s.PROCESS_SM, entity)
            columns.add(s.PROCESS_MEMORY_ACTIVITY, entity)
        for instance in _vgpus(host, gpu.index) or ():
            entity = _vgpu_entity(host, gpu.entity, instance)
            use.vgpus[instance] = columns.add(s.VGPU_MEMORY, entity)
            columns.add(s.VGPU_UTILIZATION, entity)
        return use

    def read(self, host: Host, into: Table) -> None:
        """Look at every GPU. Whoever has come to stay, or is gone, makes the next read plan anew."""
        for use in self._uses:
            there, trouble = processes(host, use.gpu)
            self._tell(host, use, there, trouble, into)
            if trouble:
                into.put(use.column, trouble)
                into.put_none(use.column + 3, 1, trouble)
                for column in use.vgpus.values():
                    into.put_none(column, 2, trouble)
                continue
            instances = _vgpus(host, use.gpu.index)
            self._tell_vgpus(host, use, instances, into)
            into.put(use.column, _sharing(use.gpu, there, instances))
            lasting = {pid for pid in there if pid in self._seen.get(use.gpu.index, ())}
            self._seen[use.gpu.index] = set(there)
            wanted = min(len(lasting | use.told.keys() & there.keys()), self._most_told)
            into.grown |= use.told.keys() - there.keys() != set() or len(use.told) < wanted
            into.grown |= set(instances or ()) != use.vgpus.keys()
        into.grown |= self._gpus.generation != self._generation

    def _tell(
        self, host: Host, use: _Use, there: dict[int, Process], trouble: Absent | None, into: Table
    ) -> None:
        told = use.told.keys() & there.keys()
        into.put(use.column + 1, trouble or len(there))
        into.put(use.column + 2, trouble or len(there) - len(told))
        busy = trouble or _utilization(host, use.gpu)
        for pid, column in use.told.items():
            process = there.get(pid)
            if process is None:
                into.put_none(column, 3, trouble or Absent.UNSUPPORTED)
                continue
            memory = process.memory_bytes
            into.put(column, Absent.UNSUPPORTED if memory is None else memory)
            if isinstance(busy, Absent):
                into.put_none(column + 1, 2, busy)
            else:
                into.put(column + 1, busy.get(pid, (0, 0))[0])
                into.put(column + 2, busy.get(pid, (0, 0))[1])

    def _tell_vgpus(self, host: Host, use: _Use, instances: list[int] | None, into: Table) -> None:
        into.put(use.column + 3, Absent.UNSUPPORTED if instances is None else len(instances))
        if not use.vgpus:
            return
        busy = _vgpu_utilization(host, use.gpu.index)
        for instance, column in use.vgpus.items():
            try:
                into.put(column, int(host.call("nvml", "nvmlVgpuInstanceGetFbUsage", instance)))
            except NvmlError as error:
                into.put(column, nvml_reason(error.code))
            idle_or_not = busy if isinstance(busy, Absent) else busy.get(instance, 0)
            into.put(column + 1, idle_or_not)


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


def _by_memory(process: Process) -> tuple[int, int]:
    return -(process.memory_bytes or 0), process.pid


def _entity(host: Host, gpu: Entity, process: Process) -> Entity:
    facts = known(
        process_name=text(host, f"/proc/{process.pid}/comm"),
        context=process.context,
        gpu_instance=process.gpu_instance,
        compute_instance=process.compute_instance,
    )
    return Entity(GPU_PROCESS, (*gpu.key, str(process.pid)), facts)


def _utilization(host: Host, gpu: GpuDevice) -> dict[int, tuple[int, int]] | Absent:
    """SM and memory activity in percent by process; those without a sample were idle."""
    if gpu.mig_mode == "1":
        return Absent.UNSUPPORTED
    try:
        samples = host.call("nvml", "nvmlDeviceGetProcessUtilization", gpu.index)
    except NvmlError as error:
        return {} if error.code == _NOT_FOUND else nvml_reason(error.code)
    except FileNotFoundError:
        return Absent.UNSUPPORTED
    ordered = sorted(samples, key=lambda sample: sample["timeStamp"])
    return {sample["pid"]: (sample["smUtil"], sample["memUtil"]) for sample in ordered}


def _vgpus(host: Host, gpu: int) -> list[int] | None:
    """The virtual GPUs that run on a GPU; None where it can have none."""
    try:
        return [int(instance) for instance in host.call("nvml", "nvmlDeviceGetActiveVgpus", gpu)]
    except (NvmlError, FileNotFoundError):
        return None


def _vgpu_entity(host: Host, gpu: Entity, instance: int) -> Entity:
    def ask(function: str, *arguments: int) -> Json:
        try:
            return host.call("nvml", function, *arguments)
        except (NvmlError, FileNotFoundError):
            return None

    kind, machine = (ask(f"nvmlVgpuInstanceGet{what}", instance) for what in ("Type", "VmID"))
    facts = known(
        vgpu_type=str(ask("nvmlVgpuTypeGetName", kind) or "") if kind is not None else "",
        virtual_machine=str(machine[0]) if machine else "",
    )
    name = ask("nvmlVgpuInstanceGetUUID", instance) or str(instance)
    return Entity(VGPU, (*gpu.key, str(name)), facts)


def _vgpu_utilization(host: Host, gpu: int) -> dict[int, int] | Absent:
    try:
        samples = host.call("nvml", "nvmlDeviceGetVgpuUtilization", gpu)
    except NvmlError as error:
        return {} if error.code == _NOT_FOUND else nvml_reason(error.code)
    except FileNotFoundError:
        return Absent.UNSUPPORTED
    ordered = sorted(samples, key=lambda sample: sample["timeStamp"])
    return {sample["vgpuInstance"]: sample["smUtil"] & 0xFFFF_FFFF for sample in ordered}


def _sharing(gpu: GpuDevice, there: dict[int, Process], vgpus: list[int] | None) -> Reading:
    """How the GPU is shared. More than one process that computes, without MPS, takes turns."""
    if gpu.mig_mode == "1":
        return MIG
    if vgpus:
        return VGPUS
    contexts = [process.context for process in there.values()]
    if "mps" in contexts:
        return MPS
    computing = contexts.count("compute")
    if computing > 1:
        return TIME_SLICING
    return EXCLUSIVE if computing else UNUSED
