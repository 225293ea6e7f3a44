"""Claims by Slurm, from files of a prolog, the environment of jobs and their processes.

In order of precedence: the output of scontrol, the file per GPU, the environment of the job, and
the GPUs that its processes use. A job holds its GPUs until its control group is gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from railscope.claim_terms import ClaimAuthority
from railscope.slurm.resources import mig_profile
from railscope_agent.config import TenancySettings
from railscope_agent.host import Host
from railscope_agent.sampling.probe_result import ProbeFinding, ProbeVerdict, format_count
from railscope_agent.tenancy import (
    claim_provider,
    claims,
    clock_history,
    devices as naming,
    gpu_processes,
    slurm_files,
)
from railscope_agent.tenancy.devices import ClaimableDevice, NodeDevices
from railscope_agent.tenancy.slurm_files import SUBJECT
from railscope_agent.tenancy.slurm_job_groups import JobControlGroups, JobEnvironment

_REMEDY = (
    "list the files of each MIG device by MultipleFiles in gres.conf, and run the agent as root"
)
_MAX_QUOTED = 5


@dataclass(slots=True)
class SlurmProvider:
    """Jobs of this node. `uses` returns the processes on its GPUs."""

    settings: TenancySettings
    node: Callable[[], str]
    clock: Callable[[], clock_history.ClockHistory] = clock_history.ClockHistory
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
    ) -> claim_provider.ClaimReport:
        """Return the GPUs of all jobs that run on this node."""
        try:
            groups = self._groups.scan(host)
        # Unreadable groups are no evidence that all jobs have ended.
        except OSError as error:
            return claim_provider.failed_report(
                SUBJECT, error, "check that the node's cgroups are mounted at /sys/fs/cgroup"
            )
        self.jobs = {
            name: str(environment.job)
            for name, environment in groups
            if environment.job is not None and not name.startswith("job_")
        }
        jobs = {environment.job for _, environment in groups if environment.job is not None}
        written = self._file_claims(host, devices, in_force, jobs)
        grouped = _GroupedClaims(list(written.claims), written.unsized)
        for name, environment in groups:
            job = str(environment.job) if environment.job is not None else name
            others = grouped.other_devices(job, environment, devices)
            # The prolog's file is what Slurm granted; the environment can be changed by the job.
            if job in grouped.named_jobs:
                continue
            group_claims = [
                claim
                for claim in self._claims_of_group({job, name}, job, environment, devices)
                # A device that the file does not grant is a contradiction, which is reported; the environment
                # alone is no claim.
                if claim.part not in others
            ]
            # A process or a step may have ended, also before the agent started: what the job held before stays.
            if not environment.is_complete:
                parts = {*others, *(claim.part for claim in group_claims)}
                before = claim_provider.select_claims(
                    in_force, workload=job, authority=ClaimAuthority.NODE_PLUGIN
                )
                group_claims += [claim for claim in before if claim.part not in parts]
            grouped.add_group(job, environment, group_claims)
        present_jobs = {name for name, _ in groups} | {
            f"job_{environment.job}" for _, environment in groups
        }
        for use in self.uses():  # processes are the only evidence without visible groups
            job = use.owner.workload
            if (
                use.owner.source == self.name
                and not {job, f"job_{job}"} & present_jobs
                and job not in grouped.named_jobs
                and _is_grantable(use.device, devices)
            ):
                grouped.node_claims.append(_claim_of_job(job, use.device, JobEnvironment(None)))
        findings = [*written.findings, *_findings(groups, grouped, self.settings)]
        distinct: dict[tuple[str, ...], claims.NodeClaim] = {}
        for claim in grouped.node_claims:
            distinct.setdefault(claim.key, claim)  # the first of several has precedence
        return claim_provider.ClaimReport(tuple(distinct.values()), tuple(findings))

    def _claims_of_group(
        self, names: set[str], job: str, environment: JobEnvironment, devices: NodeDevices
    ) -> list[claims.NodeClaim]:
        """Return the GPUs that a job's environment names, or else those that its processes use."""
        named = [naming.find_slurm_device(name, devices) for name in environment.gpus or ()]
        used = [device for device in named if device is not None]
        # Names that no device has, for example indices under device confinement, are completed by use.
        if environment.gpus is None or len(used) < len(named):
            used += [
                use.device
                for use in self.uses()
                if use.owner.source == self.name
                and use.owner.workload in names
                and _is_grantable(use.device, devices)
            ]
        return [_claim_of_job(job, device, environment) for device in dict.fromkeys(used)]

    def _file_claims(
        self,
        host: Host,
        devices: NodeDevices,
        in_force: tuple[claims.NodeClaim, ...],
        jobs: set[int],
    ) -> slurm_files.SlurmFileClaims:
        """Return the claims in files; if they cannot be read, those in force from them. `jobs` have control groups."""
        granted = claim_provider.select_claims(in_force, authority=ClaimAuthority.SCHEDULER)
        gpu_files, merged = self.settings.slurm_gpu_directory, slurm_files.SlurmFileClaims()
        try:
            if self.settings.slurm_job_directory:
                nodes = {self.node(), *self._groups.node_names}
                merged = self._files.read(host, nodes, devices, self.clock(), jobs)
                unread_jobs = merged.unread_jobs - {claim.workload for claim in merged.claims}
                unread = [claim for claim in granted if claim.workload in unread_jobs]
                merged.claims += [*claim_provider.unread_claims(unread, merged.claims)]
        except OSError as error:
            _carry_over(merged, error, granted)
        try:
            if gpu_files:
                further = slurm_files.read_gpu_files(host, gpu_files, devices)
                unread = [claim for claim in granted if claim.part in further.unread_devices]
                further.claims += claim_provider.unread_claims(unread, merged.claims)
                # The file of the job has more facts, such as its start and its account.
                written_parts = {(claim.workload, claim.part) for claim in merged.claims}
                merged.claims += [
                    claim
                    for claim in further.claims
                    if (claim.workload, claim.part) not in written_parts
                ]
                merged.findings += further.findings
        except OSError as error:
            _carry_over(merged, error, granted)
        return merged


def _carry_over(
    written: slurm_files.SlurmFileClaims,
    error: OSError,
    granted: tuple[claims.NodeClaim, ...],
) -> None:
    remedy = "create the directory in the prolog, or clear the setting"
    written.findings.append(claim_provider.failure_finding(SUBJECT, error, remedy))
    written.claims += granted


def _is_grantable(device: ClaimableDevice, devices: NodeDevices) -> bool:
    """True unless the device is a whole GPU in MIG mode."""
    return device.id != device.gpu or not devices.is_partitioned(device.gpu)


@dataclass(slots=True)
class _GroupedClaims:
    """Claims in files of a prolog, completed by those of the control groups of jobs."""

    node_claims: list[claims.NodeClaim]
    unsized: Mapping[str, int]
    without_gpus: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    named_jobs: set[str] = field(init=False)
    """Jobs whose file names all their devices."""
    _granted: dict[str, list[claims.NodeClaim]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Sort the claims by job."""
        for claim in self.node_claims:
            self._granted.setdefault(claim.workload, []).append(claim)
        self.named_jobs = {
            job for job, granted in self._granted.items() if all(claim.gpu for claim in granted)
        }

    def other_devices(
        self, job: str, environment: JobEnvironment, devices: NodeDevices
    ) -> list[str]:
        """Return the devices that a job's environment names by UUID and that its file does not grant.

        Numbers are not compared: those of SLURM_JOB_GPUS need not be those of IDX.
        """
        granted = self._granted.get(job)
        if granted is None or environment.gpus is None:
            return []
        free = Counter(
            {mig_profile(claim.profile): claim.count for claim in granted if not claim.gpu}
        )
        others = []
        for name in environment.gpus:
            device = None if name.startswith("/dev/") else naming.find_device(name, devices)
            if device is None or any(claim.part == device.id for claim in granted):
                continue
            # A counted GPU of this profile may be this one, as long as there are as many.
            free.subtract([mig_profile(device.profile)])
            if free[mig_profile(device.profile)] < 0:
                others.append(device.id)
        if others:
            shown = ", ".join(others[:_MAX_QUOTED])
            self.faults.append(f"job {job} was not granted {shown} of its environment")
        return others

    def add_group(
        self, job: str, environment: JobEnvironment, group_claims: list[claims.NodeClaim]
    ) -> None:
        """Add the claims of a job's group, or note that there are none."""
        self.node_claims += group_claims
        if not group_claims and job not in self._granted:
            if environment.gpus is None:
                self.without_gpus.append(job)
            elif environment.gpus:
                self.faults.append(f"job {job} has no device with a name of its environment")

    def find_faults(self) -> list[str]:
        """Return what contradicts a file, with MIG devices that remain unknown and devices held twice."""
        holders: dict[str, set[str]] = {}
        for claim in self.node_claims:
            if claim.gpu and claim.exclusive:
                holders.setdefault(claim.part, set()).add(claim.workload)
        faults = [
            f"{part} is granted to jobs {' and '.join(sorted(jobs))}"
            for part, jobs in holders.items()
            if len(jobs) > 1
        ]
        for job, granted in self._granted.items():
            parts = [each for each in granted if each.profile and not each.gpu]
            named = {each.part for each in granted if each.gpu}
            found = {part for part, jobs in holders.items() if job in jobs} - named
            if sum(part.count for part in parts) > len(found):
                profiles = ", ".join(f"{part.count} x {part.profile}" for part in parts)
                faults.append(f"unknown MIG devices of job {job}: {profiles}")
        held = {claim.workload for claim in self.node_claims}
        faults += [
            f"job {job} has {count} GPUs or MIG devices of unknown size"
            for job, count in self.unsized.items()
            if count and job not in held
        ]
        return self.faults + faults


def _claim_of_job(
    job: str, device: ClaimableDevice, environment: JobEnvironment
) -> claims.NodeClaim:
    return claims.NodeClaim(
        source="slurm",
        authority=ClaimAuthority.NODE_PLUGIN,
        workload=job,
        owner=environment.account or environment.user,
        gpu="",
        # Jobs with shards or MPS share a GPU: others on it are no conflict.
        exclusive=not environment.is_shared,
    ).claim_on_device(device)


def _findings(
    groups: list[tuple[str, JobEnvironment]],
    grouped: _GroupedClaims,
    settings: TenancySettings,
) -> list[ProbeFinding]:
    node_claims, without_gpus = grouped.node_claims, grouped.without_gpus
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
    if faults := grouped.find_faults():
        detail = "; ".join(faults[:_MAX_QUOTED])
        findings.append(ProbeFinding(SUBJECT, ProbeVerdict.BROKEN, detail, _REMEDY))
    denied = [environment.job for _, environment in groups if environment.is_denied]
    if denied and without_gpus:
        detail = f"permission denied for the environment of {format_count(len(denied), 'job')}"
        findings.append(
            ProbeFinding(SUBJECT, ProbeVerdict.DENIED, detail, claim_provider.RUN_AS_ROOT)
        )
    elif without_gpus:
        detail = f"unknown GPUs of {format_count(len(without_gpus), 'job')}: {', '.join(without_gpus[:5])}"
        findings.append(
            ProbeFinding.absent(SUBJECT, detail, "run `railscope claim start` in a prolog")
        )
    return findings
