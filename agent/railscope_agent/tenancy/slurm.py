"""Claims by Slurm, from files of a prolog, the environment of jobs and their processes.

In order of precedence: the file per GPU, the environment of the job, and the GPUs that its processes use. A job holds its GPUs until its control group is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from railscope.claim_terms import ClaimAuthority
from railscope_agent.config import TenancySettings
from railscope_agent.host import Host
from railscope_agent.sampling.probe_result import ProbeFinding, ProbeVerdict, format_count
from railscope_agent.tenancy import (
    claim_provider,
    claims,
    devices as naming,
    gpu_processes,
    slurm_files,
)
from railscope_agent.tenancy.devices import ClaimableDevice, NodeDevices
from railscope_agent.tenancy.slurm_files import SUBJECT
from railscope_agent.tenancy.slurm_job_groups import JobControlGroups, JobEnvironment

_MAX_QUOTED = 5


@dataclass(slots=True)
class SlurmProvider:
    """Jobs of this node. `uses` returns the processes on its GPUs."""

    settings: TenancySettings
    uses: Callable[[], tuple[gpu_processes.DeviceUse, ...]] = tuple
    name: str = "slurm"
    jobs: dict[str, str] = field(default_factory=dict)
    """Job ids by SLUID, as of the last poll."""
    _groups: JobControlGroups = field(default_factory=JobControlGroups)

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
        written = self._file_claims(host, devices, in_force)
        grouped = _GroupedClaims(list(written.claims))
        for name, environment in groups:
            job = str(environment.job) if environment.job is not None else name
            # The prolog's file is what Slurm granted; the environment can be changed by the job.
            if job in grouped.granted:
                grouped.compare_with_files(job, environment, devices)
                continue
            group_claims = self._claims_of_group({job, name}, job, environment, devices)
            # A process or a step may have ended, also before the agent started: what the job held before stays.
            if not environment.is_complete:
                parts = {claim.part for claim in group_claims}
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
                and job not in grouped.granted
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
        self, host: Host, devices: NodeDevices, in_force: tuple[claims.NodeClaim, ...]
    ) -> slurm_files.SlurmFileClaims:
        """Return the claims in files; if these cannot be read, the claims in force from them."""
        granted = claim_provider.select_claims(in_force, authority=ClaimAuthority.SCHEDULER)
        directory, written = self.settings.slurm_gpu_directory, slurm_files.SlurmFileClaims()
        try:
            if directory:
                written = slurm_files.read_gpu_files(host, directory, devices)
                unread = [claim for claim in granted if claim.part in written.unread_devices]
                written.claims += unread
        except OSError as error:
            remedy = "create the directory in the prolog, or clear the setting"
            written.findings.append(claim_provider.failure_finding(SUBJECT, error, remedy))
            written.claims += granted
        return written


def _is_grantable(device: ClaimableDevice, devices: NodeDevices) -> bool:
    """True unless the device is a whole GPU in MIG mode."""
    return device.id != device.gpu or not devices.is_partitioned(device.gpu)


@dataclass(slots=True)
class _GroupedClaims:
    """Claims in files of a prolog, completed by those of the control groups of jobs."""

    node_claims: list[claims.NodeClaim]
    without_gpus: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    granted: dict[str, set[str]] = field(default_factory=dict)
    """Devices by job, as files name them."""

    def __post_init__(self) -> None:
        """Sort the claims by job."""
        for claim in self.node_claims:
            self.granted.setdefault(claim.workload, set()).add(claim.part)

    def compare_with_files(
        self, job: str, environment: JobEnvironment, devices: NodeDevices
    ) -> None:
        """Note devices that a job's environment names by UUID and that no file grants.

        Numbers are not compared: those of SLURM_JOB_GPUS need not be those of the device files.
        """
        named = (
            naming.find_device(name, devices)
            for name in environment.gpus or ()
            if not name.startswith("/dev/")
        )
        others = [each.id for each in named if each and each.id not in self.granted[job]]
        if others:
            shown = ", ".join(others[:_MAX_QUOTED])
            self.faults.append(f"job {job} was not granted {shown} of its environment")

    def add_group(
        self, job: str, environment: JobEnvironment, group_claims: list[claims.NodeClaim]
    ) -> None:
        """Add the claims of a job's group, or note that there are none."""
        self.node_claims += group_claims
        if not group_claims:
            if environment.gpus is None:
                self.without_gpus.append(job)
            elif environment.gpus:
                self.faults.append(f"job {job} has no device with a name of its environment")

    def find_faults(self) -> list[str]:
        """Return what contradicts a file, and devices held twice."""
        holders: dict[str, set[str]] = {}
        for claim in self.node_claims:
            if claim.exclusive:
                holders.setdefault(claim.part, set()).add(claim.workload)
        return self.faults + [
            f"{part} is granted to jobs {' and '.join(sorted(jobs))}"
            for part, jobs in holders.items()
            if len(jobs) > 1
        ]


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
    if not groups and not node_claims and not settings.slurm_gpu_directory:
        return [ProbeFinding.absent(SUBJECT, "no control groups of Slurm jobs")]
    devices = format_count(len(node_claims), "device")
    detail = f"{devices} held by {format_count(len({h.workload for h in node_claims}), 'job')}"
    findings = [ProbeFinding.supported(SUBJECT, detail)]
    if faults := grouped.find_faults():
        detail = "; ".join(faults[:_MAX_QUOTED])
        remedy = "check the prolog that writes the files, and run the agent as root"
        findings.append(ProbeFinding(SUBJECT, ProbeVerdict.BROKEN, detail, remedy))
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
