"""Control groups of the Slurm jobs of a node, and the environments of the jobs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from railscope.slurm import SlurmFormatError
from railscope_agent.host import Host
from railscope_agent.host.owners import OWNER
from railscope_agent.owners import slurm
from railscope_agent.sampling.fact_readers import list_names

CONTROL_GROUPS = "/sys/fs/cgroup"
_SLICE = f"{CONTROL_GROUPS}/system.slice"
_SCOPE = re.compile(r"(?:.+_)?slurmstepd\.scope")
# Slurm creates its directories only in the hierarchies of the plugins that are enabled in cgroup.conf.
_CONTROLLERS = ("memory", "cpuset", "freezer", "devices", "systemd")
_V1 = re.compile(r"slurm(?:_.+)?")
_JOB = re.compile(r"job_([0-9]{1,10})")
_SLUID = re.compile(slurm.SLUID_PATTERN)
"""Slurm 26.05 and later names the directories of jobs by SLUID, unless CgroupJobIdPaths=yes."""
_EMPTY = b"populated 0"
_JOB_STEPS = ("step_batch", "step_interactive")
_EXTERNAL_STEP = "step_extern"
"""It has a `sleep` of slurmstepd and adopted sessions (pam_slurm_adopt): none has the GPUs of the job."""
_SHARES = ("SLURM_SHARDS_ON_NODE", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
# A few, in case the first ones end meanwhile or have changed their environment; a job may have hundreds.
_MAX_PROCESSES = 8
# Twice the devices of a node with 16 GPUs of 7 MIG devices each: users write the names of their environments.
_MAX_NAMES = 256


@dataclass(frozen=True, slots=True)
class JobEnvironment:
    """Values from the environment of a job. `gpus` are device names; None if they are not specified."""

    job: int | None
    account: str = ""
    user: str = ""
    gpus: tuple[str, ...] | None = None
    is_shared: bool = False
    """True if the job has shares of GPUs (gres/shard, gres/mps), which other jobs may have as well."""
    is_denied: bool = False
    is_complete: bool = False
    """True if `gpus` are all GPUs of the job on the node, which the batch and the interactive step have."""


@dataclass(frozen=True, slots=True)
class _ReadSteps:
    """Environment of a job, and those of its steps that it was read from."""

    environment: JobEnvironment
    steps: frozenset[str] = frozenset()


@dataclass(slots=True)
class JobControlGroups:
    """Scanner of job directories; caches the environment of each job while it runs."""

    _read: dict[str, _ReadSteps] = field(default_factory=dict)
    """Environments by directory of a job."""

    def scan(self, host: Host) -> list[tuple[str, JobEnvironment]]:
        """Return the jobs of the node by the name of their group, which is a job id or a SLUID.

        Raises OSError if their directories cannot be read.
        """
        paths = [path for path in _find_job_groups(host) if _is_populated(host, path)]
        self._read = {path: read for path, read in self._read.items() if path in paths}
        return [(path.rpartition("/")[2], self._environment(host, path)) for path in paths]

    def _environment(self, host: Host, path: str) -> JobEnvironment:
        """Return the environment of a job. No step is read again: the job may change its environment.

        A step may have a part of the GPUs. Without the batch step the job has the GPUs of all its steps so far: it
        keeps them when a step ends.
        """
        unread = _ReadSteps(JobEnvironment(_job_number(path.rpartition("/")[2])))
        read = self._read.get(path, unread)
        if read.environment.is_complete or read.environment.is_denied:
            return read.environment
        steps = [name for name in list_names(host, path) if name.startswith("step_")]
        if not steps:
            return read.environment
        job = read.environment.job
        for name in steps:
            if job is None:
                job = _job_of_step(host, f"{path}/{name}")
        read = self._read[path] = _read_new_steps(host, path, steps, job, read)
        return read.environment


def _job_number(name: str) -> int | None:
    match = _JOB.fullmatch(name)
    return int(match[1]) if match else None


def _read_new_steps(
    host: Host, path: str, steps: list[str], job: int | None, read: _ReadSteps
) -> _ReadSteps:
    """Return the environment with the steps that were not read yet, from the batch step alone if that has GPUs."""
    environment, known = replace(read.environment, job=job), read.steps.intersection(steps)
    for name in sorted(steps, key=lambda name: name not in _JOB_STEPS):
        if name in known or name == _EXTERNAL_STEP:
            continue
        found = _read_environment(host, f"{path}/{name}", job)
        if found.is_denied:
            return _ReadSteps(found if environment.gpus is None else environment, known)
        # Without one, its first task has not started yet.
        if found.gpus is None:
            continue
        known |= {name}
        if name in _JOB_STEPS and found.gpus:
            return _ReadSteps(replace(found, is_complete=True), known)
        environment = _join_environments(environment, found)
    return _ReadSteps(environment, known)


def _join_environments(read: JobEnvironment, found: JobEnvironment) -> JobEnvironment:
    """Return the environment of the first step that has GPUs, with the GPUs of both."""
    gpus = tuple(dict.fromkeys((*(read.gpus or ()), *(found.gpus or ()))))[:_MAX_NAMES]
    return replace(
        read if read.gpus else found, gpus=gpus, is_shared=read.is_shared or found.is_shared
    )


def _find_job_groups(host: Host) -> Iterator[str]:
    """Yield the control groups of the jobs of the node. Raises OSError.

        v2  /sys/fs/cgroup/system.slice/[NODE_]slurmstepd.scope/job_211 or /SLUID, step_*/user/task_*
        v1  /sys/fs/cgroup/CONTROLLER/slurm[_NODE]/uid_1000/job_211, step_*/task_*

    The directory of a job exists for as long as the job runs, and may stay behind without processes. Source:
    SchedMD/slurm:doc/html/cgroup_v2.shtml, src/plugins/cgroup/v1, v2.
    """
    for scope in filter(_SCOPE.fullmatch, _entries(host, _SLICE)):
        for name in _entries(host, f"{_SLICE}/{scope}"):
            if _JOB.fullmatch(name) or _SLUID.fullmatch(name):
                yield f"{_SLICE}/{scope}/{name}"
    for controller in _CONTROLLERS:
        roots = [
            name for name in _entries(host, f"{CONTROL_GROUPS}/{controller}") if _V1.fullmatch(name)
        ]
        for root in roots:
            directory = f"{CONTROL_GROUPS}/{controller}/{root}"
            for user in (name for name in _entries(host, directory) if name.startswith("uid_")):
                for name in filter(_JOB.fullmatch, _entries(host, f"{directory}/{user}")):
                    yield f"{directory}/{user}/{name}"
        if roots:
            return  # each hierarchy has the same jobs


def _is_populated(host: Host, path: str) -> bool:
    """True unless a job's group is certain to have no process: slurmd failed to remove it (rackslab/FireHPC#6, ceems-dev/ceems#380).

    v2 reports that for a group with all groups below it (cgroup-v2.rst, cgroup.events); v1 lists processes only.
    A file that exists and cannot be read is no evidence.
    """
    try:
        return _EMPTY not in host.read(f"{path}/cgroup.events").splitlines()
    except FileNotFoundError:
        pass  # v1
    except OSError:
        return True
    groups, is_listed = [path], False
    while groups:
        group = groups.pop()
        try:
            if host.read(f"{group}/cgroup.procs").strip():
                return True
            names = host.names(group)
        except FileNotFoundError:
            continue  # it was removed since its parent was read
        except OSError:
            return True
        is_listed = True
        groups += [f"{group}/{name}" for name in names if name.startswith(("step_", "task_"))]
    return not is_listed


def _entries(host: Host, directory: str) -> list[str]:
    """Return the entries of a directory; none if it does not exist. Raises OSError otherwise."""
    try:
        return host.names(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _job_of_step(host: Host, directory: str) -> int | None:
    """Return the job id from the process title of the slurmstepd of one of its steps."""
    for pid in _read_pids(host, f"{directory}/slurm"):
        try:
            return slurm.parse_step_title(host.read(f"/proc/{pid}/cmdline"))
        except (OSError, SlurmFormatError):
            continue
    return None


def _read_environment(host: Host, directory: str, job: int | None) -> JobEnvironment:
    """Return the environment of the job from the processes of a step."""
    user = f"{directory}/user"
    tasks = [f"{user}/{name}" for name in list_names(host, user) if name.startswith("task_")]
    tasks += [
        f"{directory}/{name}" for name in list_names(host, directory) if name.startswith("task_")
    ]
    pids = [pid for task in tasks for pid in _read_pids(host, task)][:_MAX_PROCESSES]
    for pid in pids:
        try:
            environment = host.call(OWNER, "environ", pid)
        except PermissionError:
            # Without root no other process can be read either.
            return JobEnvironment(job, is_denied=True)
        except OSError:
            continue
        variables = slurm.variables_of_job(environment, job)
        if variables is None:
            continue
        return JobEnvironment(
            int(variables["SLURM_JOB_ID"]),
            variables.get("SLURM_JOB_ACCOUNT", ""),
            variables.get("SLURM_JOB_USER", ""),
            slurm.device_names(variables, is_job_step=directory.endswith(_JOB_STEPS)),
            any(name in variables for name in _SHARES),
        )
    return JobEnvironment(job)


def _read_pids(host: Host, group: str) -> list[int]:
    try:
        return [int(line) for line in host.read(f"{group}/cgroup.procs").split()]
    except (OSError, ValueError):
        return []
