"""Processes on the GPUs by NVML, and their owners by control group.

A process is identified by id and start time, because ids are reused (proc(5), /proc/PID/stat, field 22, in
hundredths of a second since boot). Its control group is read once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from agent.gpus.process_lists import ListedProcesses, Process, ProcessLists
from agent.host import Host
from agent.host.owners import OWNER
from agent.owners import FormatError
from agent.owners import cgroup as groups
from agent.sampling.facts import text
from agent.tenancy.devices import Device, Devices
from agent.tenancy.pod_directories import Pods
from railscope.frame import Instant
from railscope.reading import Absent

_NS_PER_TICK = 10_000_000
_START = 19
"""Index of the start time in the fields after the program name."""
_MPS = "nvidia-cuda-mps"
STALE_NS = 60_000_000_000
"""Maximum age of a process list: an older one is not used, as the driver's thread hangs or is gone."""


@dataclass(frozen=True, slots=True)
class Whose:
    """Owner of a process, as in events. `is_named` is False for a pod of which only the uid is known."""

    source: str
    workload: str
    owner: str = ""
    is_named: bool = True
    is_anyones: bool = False
    """True if the owner is not visible, or if the process serves several users: any claim may cover it."""


@dataclass(frozen=True, slots=True)
class Use:
    """Processes of one owner on one GPU or MIG device. Times are wall clock."""

    whose: Whose
    device: Device
    pids: tuple[int, ...]
    seen: Instant
    begun_boot_ns: int
    """Start of the first of the processes; 0 if unknown."""


@dataclass(frozen=True, slots=True)
class Uses:
    """Result of one poll of the process lists; GPUs without a usable list have an absence reason."""

    uses: tuple[Use, ...] = ()
    unread: Mapping[str, Absent] = field(default_factory=dict)
    listed: Mapping[str, Instant] = field(default_factory=dict)
    """Time of the process list of each other GPU."""

    @property
    def oldest(self) -> Instant | None:
        """Time of the oldest list."""
        return min(self.listed.values(), key=lambda at: at.boot_ns, default=None)

    @property
    def newest(self) -> Instant | None:
        """Time of the newest list."""
        return max(self.listed.values(), key=lambda at: at.boot_ns, default=None)


@dataclass(slots=True)
class Processes:
    """Owners of the processes on GPUs, cached by process."""

    lists: ProcessLists
    label: str = ""
    """Docker container label that names the owner."""
    _known: dict[int, tuple[int, Whose]] = field(default_factory=dict)
    """Start time in ticks, and owner, by process."""
    _missed: dict[int, int] = field(default_factory=dict)
    """Processes that NVML lists and /proc does not have, with the time of the first such list."""

    def look(self, host: Host, devices: Devices, pods: Pods) -> Uses:
        """Group the processes of the latest lists by owner."""
        now = host.clock.now()
        listed = {gpu.uuid: self.lists.get(gpu.uuid) for gpu in devices.present}
        unread = {uuid: reason for uuid, one in listed.items() if (reason := _trouble(one, now))}
        good = {uuid: one for uuid, one in listed.items() if one and uuid not in unread}
        pids = {pid for one in good.values() for pid in one.there}
        self._known = {pid: known for pid, known in self._known.items() if pid in pids}
        self._missed = {pid: since for pid, since in self._missed.items() if pid in pids}
        ticks = {pid: self._ticks(host, pid) for pid in pids}
        found: dict[tuple[str, str, str], Use] = {}
        for uuid, one in good.items():
            for process in one.there.values():
                whose = self._owner(host, process.pid, ticks[process.pid], one.at)
                if whose is None:
                    continue
                device = _device(devices, uuid, process)
                begun_ns = (ticks[process.pid] or 0) * _NS_PER_TICK
                use = Use(_in_pods(whose, pods), device, (process.pid,), one.at, begun_ns)
                key = (use.whose.source, use.whose.workload, device.id)
                found[key] = _together(found[key], use) if key in found else use
        return Uses(tuple(found.values()), unread, {uuid: one.at for uuid, one in good.items()})

    def _owner(self, host: Host, pid: int, ticks: int | None, listed: Instant) -> Whose | None:
        """Return the owner of a process; None for one that has just ended.

        A process that ended since the list was made is not in the next list.
        """
        if ticks is None:
            if self._missed.setdefault(pid, listed.boot_ns) == listed.boot_ns:
                return None
            return Whose("process", str(pid), is_anyones=True)
        self._missed.pop(pid, None)
        known = self._known.get(pid)
        if known is None or known[0] != ticks:
            try:
                group = host.read(f"/proc/{pid}/cgroup")
            except OSError:
                return None
            known = self._known[pid] = ticks, _whose(host, pid, group, self.label)
        return known[1]

    def _ticks(self, host: Host, pid: int) -> int | None:
        """Return the start time of a process in ticks since boot; None if there is no such process."""
        try:
            behind = host.read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
            return int(behind[_START])
        except (OSError, ValueError, IndexError):
            return None


def _whose(host: Host, pid: int, group: bytes, label: str) -> Whose:
    """Return the owner of a process, from its control group."""
    try:
        owner = groups.owner(group)
    except FormatError:
        owner = groups.NotVisible()
    program = text(host, f"/proc/{pid}/comm")
    serves = program.startswith(_MPS)
    match owner:
        case groups.SlurmTask(job=job, sluid=sluid):
            found = Whose("slurm", sluid if job is None else str(job), is_named=job is not None)
        case groups.Pod(uid=uid):
            found = Whose("kubernetes", uid, is_named=False)
        case groups.Machine(name=name):
            found = Whose("libvirt", name)
        case groups.Container():
            found = _container(host, owner, label)
        case groups.User(user_id=user, session=session):
            workload = f"session-{session}" if session else f"user@{user}"
            found = Whose("systemd", workload, _user(host, user))
        case groups.Unit(name=name):
            found = Whose("systemd", name, is_anyones=serves)
        case groups.NotVisible() | groups.Nobody():
            hidden = isinstance(owner, groups.NotVisible)
            found = Whose("process", program or str(pid), is_anyones=hidden or serves)
    return found


def _container(host: Host, container: groups.Container, label: str) -> Whose:
    """Return the owner for a container; Docker's files provide its name and a label with the owner."""
    runtime = container.runtime or "process"
    if container.user_id is not None:
        return Whose(runtime, container.id, _user(host, container.user_id))
    try:
        if runtime == "docker":
            told = host.call(OWNER, "container", container.id, label)
            return Whose(runtime, told["name"] or container.id, told["label"])
    except OSError:
        pass  # its id identifies it
    return Whose(runtime, container.id)


def _device(devices: Devices, gpu: str, process: Process) -> Device:
    """Return the GPU or MIG device that a process uses."""
    if not process.gpu_instance:
        return devices.gpu(gpu)
    part = devices.instance(gpu, process.gpu_instance, process.compute_instance)
    return part or devices.gpu(gpu)


def _trouble(listed: ListedProcesses | None, now: Instant) -> Absent | None:
    if listed is None:
        return Absent.NOT_DUE
    if listed.trouble is not None:
        return listed.trouble
    return Absent.TIMEOUT if now.boot_ns - listed.at.boot_ns > STALE_NS else None


def _in_pods(whose: Whose, pods: Pods) -> Whose:
    """Replace the uid of a pod by its name once that is known."""
    if whose.source == "kubernetes" and whose.workload in pods.names:
        namespace, name = pods.names[whose.workload]
        return Whose("kubernetes", f"{namespace}/{name}", namespace)
    return whose


def _together(one: Use, other: Use) -> Use:
    known = [use.begun_boot_ns for use in (one, other) if use.begun_boot_ns]
    return replace(one, pids=(*one.pids, *other.pids), begun_boot_ns=min(known, default=0))


def _user(host: Host, number: int) -> str:
    try:
        return str(host.call(OWNER, "user", number)) or str(number)
    except OSError:
        return str(number)


def on(uses: Iterable[Use], gpu: str) -> Iterator[Use]:
    """Return the uses of one GPU."""
    return (use for use in uses if use.device.gpu == gpu)
