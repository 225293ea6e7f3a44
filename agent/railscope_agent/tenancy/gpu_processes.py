"""Processes on the GPUs by NVML, and their owners by control group.

A process is identified by id and start time, because ids are reused (proc(5), /proc/PID/stat,
field 22, in hundredths of a second since boot). Its control group is read once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from railscope.frame import NodeTimestamp
from railscope.reading import Absent
from railscope_agent.gpus.process_lists import ListedProcess, ListedProcesses, ProcessLists
from railscope_agent.host import Host
from railscope_agent.host.owners import OWNER
from railscope_agent.owners import OwnerFormatError, cgroup
from railscope_agent.sampling.fact_readers import read_text
from railscope_agent.tenancy.devices import ClaimableDevice, NodeDevices
from railscope_agent.tenancy.pod_directories import NodePods

# USER_HZ is 100 on every architecture with NVIDIA's driver (include/asm-generic/param.h).
_NS_PER_TICK = 10_000_000
_START_FIELD = 19
"""Index of the start time in the fields after the program name."""
# The control daemon and the server of MPS compute for several users. The kernel cuts names to these 15
# characters.
_MPS = "nvidia-cuda-mps"
_VGPU_MANAGER = "nvidia-vgpu-mgr.service"
"""Its processes compute for the virtual machines with a vGPU (docs.nvidia.com, Virtual GPU Software User Guide)."""
MAX_LIST_AGE_NS = 60_000_000_000
"""Maximum age of a process list: an older one is not used, as the driver's thread hangs or is gone."""


@dataclass(frozen=True, slots=True)
class ProcessOwner:
    """Owner of a process, as in events. `is_named` is False for a pod of which only the uid is known."""

    source: str
    workload: str
    owner: str = ""
    is_named: bool = True
    is_shared_or_hidden: bool = False
    """True if the owner is not visible, or if the process serves several users: any claim may cover it."""
    is_server: bool = False
    """True for the server of MPS in a pod or container of the system: the claims that share the device may cover it.

    Any other pod can give a program this name.
    """


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """Processes of one owner on one GPU or MIG device. Times are wall clock."""

    owner: ProcessOwner
    device: ClaimableDevice
    pids: tuple[int, ...]
    listed_at: NodeTimestamp
    begun_boot_ns: int
    """Start of the first of the processes; 0 if unknown."""


@dataclass(frozen=True, slots=True)
class DeviceUses:
    """Result of one poll of the process lists; GPUs without a usable list have an absence reason."""

    uses: tuple[DeviceUse, ...] = ()
    absences: Mapping[str, Absent] = field(default_factory=dict)
    listed: Mapping[str, NodeTimestamp] = field(default_factory=dict)
    """Time of the process list of each other GPU."""

    @property
    def oldest(self) -> NodeTimestamp | None:
        """Time of the oldest list."""
        return min(self.listed.values(), key=lambda listed: listed.boot_ns, default=None)

    @property
    def newest(self) -> NodeTimestamp | None:
        """Time of the newest list."""
        return max(self.listed.values(), key=lambda listed: listed.boot_ns, default=None)


@dataclass(slots=True)
class GpuProcessOwners:
    """Owners of the processes on GPUs, cached by process."""

    lists: ProcessLists
    label: str = ""
    """Docker container label that names the owner."""
    system: Collection[str] = frozenset()
    """System owners."""
    _owners: dict[int, tuple[int, ProcessOwner]] = field(default_factory=dict)
    """Start time in ticks, and owner, by process."""
    _missed_ns: dict[int, int] = field(default_factory=dict)
    """Processes that NVML lists and /proc does not have, with the time of the first such list."""

    def poll(self, host: Host, devices: NodeDevices, pods: NodePods) -> DeviceUses:
        """Group the processes of the latest lists by owner."""
        now = host.clock.now()
        lists = {gpu.uuid: self.lists.get(gpu.uuid) for gpu in devices.present}
        absences = {
            uuid: reason for uuid, listed in lists.items() if (reason := _list_failure(listed, now))
        }
        readable = {
            uuid: listed for uuid, listed in lists.items() if listed and uuid not in absences
        }
        pids = {pid for listed in readable.values() for pid in listed.processes}
        self._owners = {pid: cached for pid, cached in self._owners.items() if pid in pids}
        self._missed_ns = {pid: since for pid, since in self._missed_ns.items() if pid in pids}
        ticks = {pid: self._ticks(host, pid) for pid in pids}
        uses: dict[tuple[str, str, str], DeviceUse] = {}
        for uuid, listed in readable.items():
            for process in listed.processes.values():
                owner = self._owner(host, process.pid, ticks[process.pid], listed.listed)
                if owner is None:
                    continue
                device = _used_device(devices, uuid, process)
                begun_ns = (ticks[process.pid] or 0) * _NS_PER_TICK
                use = DeviceUse(
                    self._with_system(_with_pod_name(owner, pods)),
                    device,
                    (process.pid,),
                    listed.listed,
                    begun_ns,
                )
                key = (use.owner.source, use.owner.workload, device.id)
                uses[key] = _join_uses(uses[key], use) if key in uses else use
        return DeviceUses(
            tuple(uses.values()),
            absences,
            {uuid: listed.listed for uuid, listed in readable.items()},
        )

    def _with_system(self, owner: ProcessOwner) -> ProcessOwner:
        """Return the owner, as a server of MPS only if it is a system owner. Needs the name of a pod."""
        is_system = owner.workload in self.system or owner.owner in self.system
        return replace(owner, is_server=owner.is_server and is_system)

    def _owner(
        self, host: Host, pid: int, ticks: int | None, listed: NodeTimestamp
    ) -> ProcessOwner | None:
        """Return the owner of a process; None for one that has just ended.

        A process that ended since the list was made is not in the next list.
        """
        if ticks is None:
            # In a second list it has not ended: it is in another PID namespace, and its owner is hidden.
            if self._missed_ns.setdefault(pid, listed.boot_ns) == listed.boot_ns:
                return None
            return ProcessOwner("process", str(pid), is_shared_or_hidden=True)
        self._missed_ns.pop(pid, None)
        remembered = self._owners.get(pid)
        # Another start time is another process with the same number.
        if remembered is None or remembered[0] != ticks:
            try:
                group = host.read(f"/proc/{pid}/cgroup")
            except OSError:
                return None
            remembered = self._owners[pid] = ticks, _find_owner(host, pid, group, self.label)
        return remembered[1]

    def _ticks(self, host: Host, pid: int) -> int | None:
        """Return the start time of a process in ticks since boot; None if there is no such process."""
        try:
            # The program's name before may contain spaces and parentheses (proc(5)), so the last parenthesis
            # counts.
            behind = host.read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
            return int(behind[_START_FIELD])
        except (OSError, ValueError, IndexError):
            return None


def _find_owner(host: Host, pid: int, group: bytes, label: str) -> ProcessOwner:
    """Return the owner of a process, from its control group."""
    try:
        reported = cgroup.parse_owner(group)
    except OwnerFormatError:
        # An unknown format: a guess would report a tenant's own process as unclaimed use.
        reported = cgroup.OwnerNotVisible()
    program = read_text(host, f"/proc/{pid}/comm")
    serves = program.startswith(_MPS)
    match reported:
        case cgroup.SlurmTask(job=job, sluid=sluid):
            owner = ProcessOwner(
                "slurm", sluid if job is None else str(job), is_named=job is not None
            )
        case cgroup.PodOwner(uid=uid):
            # The name is added at each poll: the pod's directory may not exist yet when the process is found.
            # The servers of pods that share a GPU run in a pod of the plugin
            # (NVIDIA/k8s-device-plugin:deployments/helm, mps-control-daemon).
            owner = ProcessOwner("kubernetes", uid, is_named=False, is_server=serves)
        case cgroup.VirtualMachineOwner(name=name):
            owner = ProcessOwner("libvirt", name)
        case cgroup.ContainerOwner():
            owner = replace(_container_owner(host, reported, label), is_server=serves)
        case cgroup.UserOwner(user_id=user, session=session):
            workload = f"session-{session}" if session else f"user@{user}"
            owner = ProcessOwner("systemd", workload, _user_name(host, user))
        case cgroup.UnitOwner(name=name):
            serves = serves or name == _VGPU_MANAGER
            owner = ProcessOwner("systemd", name, is_shared_or_hidden=serves)
        case cgroup.OwnerNotVisible() | cgroup.NoOwner():
            hidden = isinstance(reported, cgroup.OwnerNotVisible)
            owner = ProcessOwner(
                "process", program or str(pid), is_shared_or_hidden=hidden or serves
            )
    return owner


def _container_owner(host: Host, container: cgroup.ContainerOwner, label: str) -> ProcessOwner:
    """Return the owner for a container; Docker's files provide its name and a label with the owner."""
    runtime = container.runtime or "process"
    if container.user_id is not None:
        # Rootless containers are in the user's own directories, which may contain anything: the user is the
        # owner.
        return ProcessOwner(runtime, container.id, _user_name(host, container.user_id))
    try:
        if runtime == "docker":
            answer = host.call(OWNER, "container", container.id, label)
            return ProcessOwner(runtime, answer["name"] or container.id, answer["label"])
    except OSError:
        pass  # its id identifies it
    return ProcessOwner(runtime, container.id)


def _used_device(devices: NodeDevices, gpu: str, process: ListedProcess) -> ClaimableDevice:
    """Return the GPU or MIG device that a process uses."""
    if not process.gpu_instance:
        return devices.gpu(gpu)
    part = devices.mig_with_instance(gpu, process.gpu_instance, process.compute_instance)
    # A MIG device that was just created is not in the inventory yet; its GPU is certain.
    return part or devices.gpu(gpu)


def _list_failure(listed: ListedProcesses | None, now: NodeTimestamp) -> Absent | None:
    if listed is None:
        return Absent.NOT_DUE
    if listed.absent is not None:
        return listed.absent
    return Absent.TIMEOUT if now.boot_ns - listed.listed.boot_ns > MAX_LIST_AGE_NS else None


def _with_pod_name(owner: ProcessOwner, pods: NodePods) -> ProcessOwner:
    """Replace the uid of a pod by its name once that is known."""
    if owner.source == "kubernetes" and owner.workload in pods.names:
        namespace, name = pods.names[owner.workload]
        named = f"{namespace}/{name}"
        return ProcessOwner("kubernetes", named, namespace, is_server=owner.is_server)
    return owner


def _join_uses(use: DeviceUse, other: DeviceUse) -> DeviceUse:
    starts = [start_ns for start_ns in (use.begun_boot_ns, other.begun_boot_ns) if start_ns]
    owner = replace(use.owner, is_server=use.owner.is_server and other.owner.is_server)
    return replace(
        use, owner=owner, pids=(*use.pids, *other.pids), begun_boot_ns=min(starts, default=0)
    )


def _user_name(host: Host, number: int) -> str:
    try:
        return str(host.call(OWNER, "user", number)) or str(number)
    except OSError:
        return str(number)
