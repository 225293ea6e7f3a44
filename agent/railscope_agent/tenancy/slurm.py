"""Claims by Slurm, from files of a prolog, the environment of jobs and their processes.

In order of precedence: the output of scontrol, the file per GPU, the environment of the job, and
the GPUs that its processes use. A job holds its GPUs until its control group is gone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from railscope.claim_terms import ClaimAuthority
from railscope.slurm import SlurmFormatError
from railscope_agent.config import TenancySettings
from railscope_agent.host import Host
from railscope_agent.host.owners import OWNER
from railscope_agent.owners import slurm
from railscope_agent.sampling.source import ProbeFinding, ProbeVerdict, format_count, list_names
from railscope_agent.tenancy import claims, devices as naming, gpu_processes, slurm_files
from railscope_agent.tenancy.devices import ClaimableDevice, NodeDevices

CONTROL_GROUPS = "/sys/fs/cgroup"
_SLICE = f"{CONTROL_GROUPS}/system.slice"
_SCOPE = re.compile(r"(?:.+_)?slurmstepd\.scope")
_CONTROLLERS = ("memory", "cpuset", "freezer", "devices", "systemd")
_V1 = re.compile(r"slurm(?:_.+)?")
_JOB = re.compile(r"job_([0-9]{1,10})")
_SLUID = re.compile(slurm.SLUID_PATTERN)
_JOB_STEPS = ("step_batch", "step_interactive")
_SHARES = ("SLURM_SHARDS_ON_NODE", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
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

    _environments: dict[str, tuple[tuple[str, ...], JobEnvironment]] = field(default_factory=dict)
    """Environments by directory, with the steps that were read."""

    def scan(self, host: Host) -> list[tuple[str, JobEnvironment]]:
        """Return the jobs of the node by the name of their group, which is a job id or a SLUID.

        Raises OSError if their directories cannot be read.
        """
        paths = list(_find_job_groups(host))
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


def _find_job_groups(host: Host) -> Iterator[str]:
    """Yield the control groups of the jobs of the node. Raises OSError.

        v2  /sys/fs/cgroup/system.slice/[NODE_]slurmstepd.scope/job_211 or /SLUID, step_*/user/task_*
        v1  /sys/fs/cgroup/CONTROLLER/slurm[_NODE]/uid_1000/job_211, step_*/task_*

    The directory of a job exists for as long as the job runs. Source:
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
            return JobEnvironment(job, is_denied=True)
        except OSError:
            continue
        number = environment.get("SLURM_JOB_ID", "")
        if not number.isdecimal() or (job is not None and int(number) != job):
            continue  # its environment contains another job id
        return JobEnvironment(
            int(number),
            environment.get("SLURM_JOB_ACCOUNT", ""),
            environment.get("SLURM_JOB_USER", ""),
            _device_names(environment),
            any(name in environment for name in _SHARES),
        )
    return JobEnvironment(job)


def _read_pids(host: Host, group: str) -> list[int]:
    try:
        return [int(line) for line in host.read(f"{group}/cgroup.procs").split()]
    except (OSError, ValueError):
        return []


def _device_names(environment: dict[str, str]) -> tuple[str, ...]:
    """Return the names of a job's devices: UUIDs if available, else device files.

    CUDA_VISIBLE_DEVICES counts from 0 in each job with device confinement, so its numbers are not used.
    """
    visible = [name for name in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    if visible and all(name.startswith(("GPU-", "MIG-")) for name in visible):
        return tuple(dict.fromkeys(visible))
    numbers = environment.get("SLURM_JOB_GPUS") or environment.get("SLURM_STEP_GPUS") or ""
    files = [f"/dev/nvidia{number}" for number in numbers.split(",") if number.isdecimal()]
    return tuple(dict.fromkeys(files))


SUBJECT = "claims by Slurm"


@dataclass(slots=True)
class SlurmProvider:
    """Jobs of this node. `uses` returns the processes on its GPUs."""

    settings: TenancySettings
    node: Callable[[], str]
    clock: Callable[[], claims.ClockHistory] = claims.ClockHistory
    uses: Callable[[], tuple[gpu_processes.DeviceUse, ...]] = tuple
    name: str = "slurm"
    jobs: dict[str, str] = field(default_factory=dict)
    """Job ids by SLUID, as of the last poll."""
    _groups: JobControlGroups = field(default_factory=JobControlGroups)
    _files: slurm_files.SlurmJobFiles = field(init=False)

    def __post_init__(self) -> None:
        """Create the reader of the files of jobs."""
        self._files = slurm_files.SlurmJobFiles(
            self.settings.slurm_job_directory, self.settings.gres_conf
        )

    def poll(
        self, host: Host, devices: NodeDevices, in_force: tuple[claims.NodeClaim, ...]
    ) -> claims.ClaimReport:
        """Return the GPUs of all jobs that run on this node."""
        try:
            groups = self._groups.scan(host)
        except OSError as error:
            return claims.failed_report(
                SUBJECT, error, "check that the node's cgroups are mounted at /sys/fs/cgroup"
            )
        self.jobs = {
            name: str(environment.job)
            for name, environment in groups
            if environment.job is not None and not name.startswith("job_")
        }
        written = self._file_claims(host, devices, in_force)
        unnamed = {claim.workload for claim in written.claims if not claim.gpu}
        named_jobs = {claim.workload for claim in written.claims} - unnamed
        node_claims, without_gpus = list(written.claims), []
        for name, environment in groups:
            job = str(environment.job) if environment.job is not None else name
            if job in named_jobs:
                continue
            group_claims = self._claims_of_group({job, name}, job, environment, devices)
            if not group_claims and environment.gpus is None:
                group_claims = list(
                    claims.select_claims(
                        in_force, workload=job, authority=ClaimAuthority.NODE_PLUGIN
                    )
                )
            if not group_claims and environment.gpus is None and job not in unnamed:
                without_gpus.append(job)
            node_claims += group_claims
        present_jobs = {name for name, _ in groups} | {
            f"job_{group_claims.job}" for _, group_claims in groups
        }
        for use in self.uses():  # processes are the only evidence without visible groups
            job = use.owner.workload
            if (
                use.owner.source == self.name
                and not {job, f"job_{job}"} & present_jobs
                and job not in named_jobs
            ):
                node_claims.append(_claim_of_job(job, use.device, JobEnvironment(None)))
        findings = [*written.findings, *_findings(groups, node_claims, without_gpus, self.settings)]
        distinct: dict[tuple[str, ...], claims.NodeClaim] = {}
        for claim in node_claims:
            distinct.setdefault(claim.key, claim)  # the first of several has precedence
        return claims.ClaimReport(tuple(distinct.values()), tuple(findings))

    def _claims_of_group(
        self, names: set[str], job: str, environment: JobEnvironment, devices: NodeDevices
    ) -> list[claims.NodeClaim]:
        """Return the GPUs that a job's environment names, or else those that its processes use."""
        if environment.gpus is not None:
            named = [naming.find_device(name, devices) for name in environment.gpus]
            used = [device for device in named if device is not None]
        else:
            used = [
                use.device
                for use in self.uses()
                if use.owner.source == self.name and use.owner.workload in names
            ]
        return [_claim_of_job(job, device, environment) for device in dict.fromkeys(used)]

    def _file_claims(
        self, host: Host, devices: NodeDevices, in_force: tuple[claims.NodeClaim, ...]
    ) -> slurm_files.SlurmFileClaims:
        """Return the claims in files; if they cannot be read, those in force from them."""
        gpu_files, merged = self.settings.slurm_gpu_directory, slurm_files.SlurmFileClaims()
        try:
            if self.settings.slurm_job_directory:
                merged = self._files.read(host, self.node(), devices, self.clock())
        except OSError as error:
            _carry_over(merged, slurm_files.JOB_FILES_SUBJECT, error, in_force)
        try:
            if gpu_files:
                further = slurm_files.read_gpu_files(host, gpu_files, devices)
                written_parts = {(claim.workload, claim.part) for claim in merged.claims}
                merged.claims += [
                    claim
                    for claim in further.claims
                    if (claim.workload, claim.part) not in written_parts
                ]
                merged.findings += further.findings
        except OSError as error:
            _carry_over(merged, slurm_files.GPU_FILES_SUBJECT, error, in_force)
        return merged


def _carry_over(
    written: slurm_files.SlurmFileClaims,
    subject: str,
    error: OSError,
    in_force: tuple[claims.NodeClaim, ...],
) -> None:
    remedy = "create the directory in the prolog, or clear the setting"
    written.findings.append(claims.failure_finding(subject, error, remedy))
    written.claims += claims.select_claims(in_force, authority=ClaimAuthority.SCHEDULER)


def _claim_of_job(
    job: str, device: ClaimableDevice, environment: JobEnvironment
) -> claims.NodeClaim:
    return claims.NodeClaim(
        source="slurm",
        authority=ClaimAuthority.NODE_PLUGIN,
        workload=job,
        owner=environment.account or environment.user,
        gpu="",
        exclusive=not environment.is_shared,
    ).claim_on_device(device)


def _findings(
    groups: list[tuple[str, JobEnvironment]],
    node_claims: list[claims.NodeClaim],
    without_gpus: list[str],
    settings: TenancySettings,
) -> list[ProbeFinding]:
    has_files = settings.slurm_gpu_directory or settings.slurm_job_directory
    if not groups and not node_claims and not has_files:
        return [ProbeFinding.absent(SUBJECT, "no control groups of Slurm jobs")]
    named, unnamed = (
        len([claim for claim in node_claims if claim.gpu]),
        sum(claim.count for claim in node_claims),
    )
    amounts = [format_count(named, "device")] if named or not unnamed else []
    amounts += [f"{format_count(unnamed, 'GPU')} without a device"] if unnamed else []
    jobs = format_count(len({h.workload for h in node_claims}), "job")
    detail = f"{' and '.join(amounts)} held by {jobs}"
    findings = [ProbeFinding.supported(SUBJECT, detail)]
    denied = [environment.job for _, environment in groups if environment.is_denied]
    if denied and without_gpus:
        detail = f"permission denied for the environment of {format_count(len(denied), 'job')}"
        findings.append(ProbeFinding(SUBJECT, ProbeVerdict.DENIED, detail, claims.RUN_AS_ROOT))
    elif without_gpus:
        detail = f"unknown GPUs of {format_count(len(without_gpus), 'job')}: {', '.join(without_gpus[:5])}"
        findings.append(
            ProbeFinding.absent(SUBJECT, detail, "run `railscope claim start` in a prolog")
        )
    return findings
