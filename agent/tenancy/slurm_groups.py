"""Slurm jobs of the node, from their control groups and the environment of their processes.

    v2  /sys/fs/cgroup/system.slice/[NODE_]slurmstepd.scope/job_211 or /SLUID, step_*/user/task_*
    v1  /sys/fs/cgroup/CONTROLLER/slurm[_NODE]/uid_1000/job_211, step_*/task_*

The directory of a job exists for as long as the job runs. Source: SchedMD/slurm:doc/html/cgroup_v2.shtml,
src/plugins/cgroup/v1, v2.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from agent.host import Host
from agent.host.owners import OWNER
from agent.owners import FormatError, sluid
from agent.owners.slurmstepd import step
from agent.sampling.facts import names

GROUPS = "/sys/fs/cgroup"
_SLICE = f"{GROUPS}/system.slice"
_SCOPE = re.compile(r"(?:.+_)?slurmstepd\.scope")
_CONTROLLERS = ("memory", "cpuset", "freezer", "devices", "systemd")
_V1 = re.compile(r"slurm(?:_.+)?")
_JOB = re.compile(r"job_([0-9]{1,10})")
_SLUID = re.compile(sluid.PATTERN)
_OF_THE_JOB = ("step_batch", "step_interactive")
_SHARES = ("SLURM_SHARDS_ON_NODE", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
_MAX_ASKED = 8


@dataclass(frozen=True, slots=True)
class JobGroup:
    """Control group directory of a job, named by its job id or by its SLUID."""

    path: str
    name: str


@dataclass(frozen=True, slots=True)
class Environment:
    """Values from the environment of a job. `gpus` are device names; None if they are not specified."""

    job: int | None
    account: str = ""
    user: str = ""
    gpus: tuple[str, ...] | None = None
    is_shared: bool = False
    """True if the job has shares of GPUs (gres/shard, gres/mps), which other jobs may have as well."""
    is_denied: bool = False


@dataclass(slots=True)
class JobGroups:
    """Scanner of job directories; caches the environment of each job while it runs."""

    _known: dict[str, tuple[tuple[str, ...], Environment]] = field(default_factory=dict)
    """By directory: the steps that were read, and the environment they have."""

    def look(self, host: Host) -> list[tuple[JobGroup, Environment]]:
        """Return the jobs of the node. Raises OSError if their directories cannot be read."""
        found = list(_jobs(host))
        paths = {group.path for group in found}
        self._known = {path: known for path, known in self._known.items() if path in paths}
        return [(group, self._environment(host, group)) for group in found]

    def _environment(self, host: Host, group: JobGroup) -> Environment:
        """Return the environment of a job, not read again once it has GPUs: a job may change it."""
        asked, known = self._known.get(group.path, ((), Environment(_number(group.name))))
        if known.gpus or known.is_denied:
            return known
        steps = tuple(name for name in names(host, group.path) if name.startswith("step_"))
        if steps == asked and known.gpus is not None:
            return known
        job = known.job
        for name in steps:
            if job is None:
                job = _titled(host, f"{group.path}/{name}")
        found = _all_told(host, group.path, steps, job)
        self._known[group.path] = steps, found
        return found


def _number(name: str) -> int | None:
    found = _JOB.fullmatch(name)
    return int(found[1]) if found else None


def _all_told(host: Host, path: str, steps: tuple[str, ...], job: int | None) -> Environment:
    """Return the environment from the batch and interactive steps, or else from all other steps."""
    whole = [name for name in _OF_THE_JOB if name in steps]
    told = [_asked(host, f"{path}/{name}", job) for name in whole]
    if not any(one.gpus for one in told):
        told += [_asked(host, f"{path}/{name}", job) for name in steps if name not in whole]
    heard = [one for one in told if one.gpus is not None]
    if not heard:
        return Environment(job, is_denied=any(one.is_denied for one in told))
    gpus = tuple(dict.fromkeys(gpu for one in heard for gpu in one.gpus or ()))
    first = next((one for one in heard if one.gpus), heard[0])
    return replace(first, gpus=gpus, is_shared=any(one.is_shared for one in heard))


def _jobs(host: Host) -> Iterator[JobGroup]:
    for scope in filter(_SCOPE.fullmatch, _entries(host, _SLICE)):
        for name in _entries(host, f"{_SLICE}/{scope}"):
            if _JOB.fullmatch(name) or _SLUID.fullmatch(name):
                yield JobGroup(f"{_SLICE}/{scope}/{name}", name)
    for controller in _CONTROLLERS:
        roots = [name for name in _entries(host, f"{GROUPS}/{controller}") if _V1.fullmatch(name)]
        for root in roots:
            directory = f"{GROUPS}/{controller}/{root}"
            for user in (name for name in _entries(host, directory) if name.startswith("uid_")):
                for name in filter(_JOB.fullmatch, _entries(host, f"{directory}/{user}")):
                    yield JobGroup(f"{directory}/{user}/{name}", name)
        if roots:
            return  # each hierarchy has the same jobs


def _entries(host: Host, directory: str) -> list[str]:
    """Return the entries of a directory; none if it does not exist. Raises OSError otherwise."""
    try:
        return host.names(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _titled(host: Host, directory: str) -> int | None:
    """Return the job id from the process title of the slurmstepd of one of its steps."""
    for pid in _pids(host, f"{directory}/slurm"):
        try:
            return step(host.read(f"/proc/{pid}/cmdline")).job
        except (OSError, FormatError):
            continue
    return None


def _asked(host: Host, directory: str, job: int | None) -> Environment:
    """Return the environment of the job from the processes of a step."""
    user = f"{directory}/user"
    tasks = [f"{user}/{name}" for name in names(host, user) if name.startswith("task_")]
    tasks += [f"{directory}/{name}" for name in names(host, directory) if name.startswith("task_")]
    pids = [pid for task in tasks for pid in _pids(host, task)][:_MAX_ASKED]
    for pid in pids:
        try:
            told = host.call(OWNER, "environ", pid)
        except PermissionError:
            return Environment(job, is_denied=True)
        except OSError:
            continue
        number = told.get("SLURM_JOB_ID", "")
        if not number.isdecimal() or (job is not None and int(number) != job):
            continue  # its environment names another job
        return Environment(
            int(number), told.get("SLURM_JOB_ACCOUNT", ""), told.get("SLURM_JOB_USER", ""),
            _gpus(told), any(name in told for name in _SHARES),
        )  # fmt: skip
    return Environment(job)


def _pids(host: Host, group: str) -> list[int]:
    try:
        return [int(line) for line in host.read(f"{group}/cgroup.procs").split()]
    except (OSError, ValueError):
        return []


def _gpus(told: dict[str, str]) -> tuple[str, ...]:
    """Return the names of a job's devices: UUIDs if available, else device files.

    CUDA_VISIBLE_DEVICES counts from 0 in each job with device confinement, so its numbers are not used.
    """
    visible = [name for name in told.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    if visible and all(name.startswith(("GPU-", "MIG-")) for name in visible):
        return tuple(dict.fromkeys(visible))
    numbers = told.get("SLURM_JOB_GPUS") or told.get("SLURM_STEP_GPUS") or ""
    files = [f"/dev/nvidia{number}" for number in numbers.split(",") if number.isdecimal()]
    return tuple(dict.fromkeys(files))
