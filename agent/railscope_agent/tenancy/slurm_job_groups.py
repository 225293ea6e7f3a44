"""Control groups of the Slurm jobs of a node, and the environments of the jobs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from railscope.slurm import SlurmFormatError
from railscope_agent.host import Host
from railscope_agent.host.owners import OWNER
from railscope_agent.owners import slurm
from railscope_agent.sampling.fact_readers import list_names, read_text

CONTROL_GROUPS = "/sys/fs/cgroup"
_SLICE = f"{CONTROL_GROUPS}/system.slice"
_SCOPE = re.compile(r"(?:(.+)_)?slurmstepd\.scope")
# Slurm creates its directories only in the hierarchies of the plugins that are enabled in cgroup.conf.
_CONTROLLERS = ("memory", "cpuset", "freezer", "devices", "systemd")
_V1 = re.compile(r"slurm(?:_(.+))?")
_JOB = re.compile(r"job_([0-9]{1,10})")
_SLUID = re.compile(slurm.SLUID_PATTERN)
"""Slurm 26.05 and later names the directories of jobs by SLUID, unless CgroupJobIdPaths=yes."""
_EMPTY = "populated 0"
_JOB_STEPS = ("step_batch", "step_interactive")
_SHARES = ("SLURM_SHARDS_ON_NODE", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
# A few, in case the first ones end meanwhile or have changed their environment; a job may have hundreds.
_MAX_PROCESSES = 8


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


@dataclass(slots=True)
class JobControlGroups:
    """Scanner of job directories; caches the environment of each job while it runs."""

    node_names: frozenset[str] = frozenset()
    """Names that Slurm has for this node, where several slurmd run on it."""
    _environments: dict[str, tuple[tuple[str, ...], JobEnvironment]] = field(default_factory=dict)
    """Environments by directory, with the steps that were read."""

    def scan(self, host: Host) -> list[tuple[str, JobEnvironment]]:
        """Return the jobs of the node by the name of their group, which is a job id or a SLUID.

        Raises OSError if their directories cannot be read.
        """
        names: set[str] = set()
        paths = [path for path in _find_job_groups(host, names) if _is_populated(host, path)]
        self.node_names = frozenset(names)
        self._environments = {
            path: cached for path, cached in self._environments.items() if path in paths
        }
        return [(path.rpartition("/")[2], self._environment(host, path)) for path in paths]

    def _environment(self, host: Host, path: str) -> JobEnvironment:
        """Return the environment of a job, not read again once it has GPUs: a job may change it."""
        not_polled = (), JobEnvironment(_job_number(path.rpartition("/")[2]))
        polled, cached = self._environments.get(path, not_polled)
        if cached.gpus or cached.is_denied:
            return cached
        steps = tuple(name for name in list_names(host, path) if name.startswith("step_"))
        # A new step may have GPUs that the earlier ones lacked.
        if steps == polled and cached.gpus is not None:
            return cached
        job = cached.job
        for name in steps:
            if job is None:
                job = _job_of_step(host, f"{path}/{name}")
        environments = _read_environments(host, path, steps, job)
        self._environments[path] = steps, environments
        return environments


def _job_number(name: str) -> int | None:
    match = _JOB.fullmatch(name)
    return int(match[1]) if match else None


def _read_environments(
    host: Host, path: str, steps: tuple[str, ...], job: int | None
) -> JobEnvironment:
    """Return the environment from the batch and interactive steps, or else from all other steps."""
    job_steps = [name for name in _JOB_STEPS if name in steps]
    # The batch step has all GPUs of the job on the node; other steps may have a part of them.
    environments = [_read_environment(host, f"{path}/{name}", job) for name in job_steps]
    if not any(environment.gpus for environment in environments):
        environments += [
            _read_environment(host, f"{path}/{name}", job)
            for name in steps
            if name not in job_steps
        ]
    with_gpus = [environment for environment in environments if environment.gpus is not None]
    if not with_gpus:
        return JobEnvironment(
            job, is_denied=any(environment.is_denied for environment in environments)
        )
    gpus = tuple(dict.fromkeys(gpu for environment in with_gpus for gpu in environment.gpus or ()))
    first = next((environment for environment in with_gpus if environment.gpus), with_gpus[0])
    return replace(
        first, gpus=gpus, is_shared=any(environment.is_shared for environment in with_gpus)
    )


def _find_job_groups(host: Host, node_names: set[str]) -> Iterator[str]:
    """Yield the control groups of the jobs of the node; add the names of nodes in them. Raises OSError.

        v2  /sys/fs/cgroup/system.slice/[NODE_]slurmstepd.scope/job_211 or /SLUID, step_*/user/task_*
        v1  /sys/fs/cgroup/CONTROLLER/slurm[_NODE]/uid_1000/job_211, step_*/task_*

    The directory of a job exists for as long as the job runs, and may stay behind without processes. Source:
    SchedMD/slurm:doc/html/cgroup_v2.shtml, src/plugins/cgroup/v1, v2.
    """
    for scope in filter(_SCOPE.fullmatch, _entries(host, _SLICE)):
        _add_node_name(_SCOPE, scope, node_names)
        for name in _entries(host, f"{_SLICE}/{scope}"):
            if _JOB.fullmatch(name) or _SLUID.fullmatch(name):
                yield f"{_SLICE}/{scope}/{name}"
    for controller in _CONTROLLERS:
        roots = [
            name for name in _entries(host, f"{CONTROL_GROUPS}/{controller}") if _V1.fullmatch(name)
        ]
        for root in roots:
            _add_node_name(_V1, root, node_names)
            directory = f"{CONTROL_GROUPS}/{controller}/{root}"
            for user in (name for name in _entries(host, directory) if name.startswith("uid_")):
                for name in filter(_JOB.fullmatch, _entries(host, f"{directory}/{user}")):
                    yield f"{directory}/{user}/{name}"
        if roots:
            return  # each hierarchy has the same jobs


def _is_populated(host: Host, path: str) -> bool:
    """True unless a job's group is certain to have no process: slurmd failed to remove it (rackslab/FireHPC#6, ceems-dev/ceems#380).

    v2 reports that for a group with all groups below it (cgroup-v2.rst, cgroup.events); v1 lists processes only.
    """
    events = read_text(host, f"{path}/cgroup.events").splitlines()
    if events:
        return _EMPTY not in events
    groups, is_listed = [path], False
    while groups:
        group = groups.pop()
        try:
            if host.read(f"{group}/cgroup.procs").strip():
                return True
        except OSError:
            continue
        is_listed = True
        names = list_names(host, group)
        groups += [f"{group}/{name}" for name in names if name.startswith(("step_", "task_"))]
    return not is_listed


def _add_node_name(pattern: re.Pattern[str], group: str, node_names: set[str]) -> None:
    match = pattern.fullmatch(group)
    if match and match[1]:
        node_names.add(match[1])


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
