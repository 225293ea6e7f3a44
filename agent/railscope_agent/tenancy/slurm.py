"""Claims by Slurm, from files of a prolog, the environment of jobs and their processes.

In order of precedence: the output of scontrol, the file per GPU, the environment of the job, and
the GPUs that its processes use. A job holds its GPUs until its control group is gone.
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
    clock_history,
    devices as naming,
    gpu_processes,
    slurm_files,
)
from railscope_agent.tenancy.devices import ClaimableDevice, NodeDevices
from railscope_agent.tenancy.slurm_job_groups import JobControlGroups, JobEnvironment

SUBJECT = "claims by Slurm"


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
                    claim_provider.select_claims(
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
        return claim_provider.ClaimReport(tuple(distinct.values()), tuple(findings))

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
    written.findings.append(claim_provider.failure_finding(subject, error, remedy))
    written.claims += claim_provider.select_claims(in_force, authority=ClaimAuthority.SCHEDULER)


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
        findings.append(
            ProbeFinding(SUBJECT, ProbeVerdict.DENIED, detail, claim_provider.RUN_AS_ROOT)
        )
    elif without_gpus:
        detail = f"unknown GPUs of {format_count(len(without_gpus), 'job')}: {', '.join(without_gpus[:5])}"
        findings.append(
            ProbeFinding.absent(SUBJECT, detail, "run `railscope claim start` in a prolog")
        )
    return findings
