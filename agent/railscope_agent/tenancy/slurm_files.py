"""Files of a Slurm prolog: one for each GPU, with the jobs that hold it.

A file is named by the index of its GPU, or `<gpu>.<gi>` for a MIG device, and has one job id per line
(NVIDIA/dcgm-exporter:README.md, "HPC job mapping").
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from railscope.claim_terms import ClaimAuthority
from railscope_agent.host import Host
from railscope_agent.sampling.probe_result import ProbeFinding, ProbeVerdict
from railscope_agent.tenancy.claims import NodeClaim
from railscope_agent.tenancy.devices import NodeDevices

SUBJECT = "claims by Slurm"
_GPU_FILE = re.compile(r"(?P<gpu>\d{1,4})(?:\.(?P<instance>\d{1,4}))?")
_MAX_QUOTED = 5


@dataclass(slots=True)
class SlurmFileClaims:
    """Claims and findings from such files."""

    claims: list[NodeClaim] = field(default_factory=list)
    findings: list[ProbeFinding] = field(default_factory=list)
    unread_devices: set[str] = field(default_factory=set)
    """Devices whose file cannot be read or is invalid: their claims in force stay."""

    def add_broken(self, detail: str, remedy: str) -> None:
        """Add the finding about a file that cannot be used."""
        self.findings.append(ProbeFinding(SUBJECT, ProbeVerdict.BROKEN, detail, remedy))


def read_gpu_files(host: Host, directory: str, devices: NodeDevices) -> SlurmFileClaims:
    """Return the claims of a directory with one file per GPU. Raises OSError for the directory."""
    written = SlurmFileClaims()
    invalid: list[str] = []
    unreadable: list[str] = []
    for name in host.names(directory):
        match = _GPU_FILE.fullmatch(name)
        device = devices.gpu_with_index(int(match["gpu"])) if match else None
        if match and match["instance"] and device:
            device = devices.mig_with_instance(device.gpu, match["instance"])
        elif device and devices.is_partitioned(device.gpu):
            # Only instances of a GPU in MIG mode can be granted: the name of the whole GPU is a mistake.
            device = None
        if device is None:
            invalid.append(name)
            continue
        try:
            jobs = host.read(f"{directory}/{name}").decode(errors="replace").split()
        except FileNotFoundError:
            continue  # removed since the directory was read
        except OSError as error:
            unreadable.append(f"{name} ({error.strerror or error})")
            written.unread_devices.add(device.id)
            continue
        if not all(job.isdecimal() for job in jobs):
            invalid.append(name)
            written.unread_devices.add(device.id)
            continue
        written.claims += [
            _claim_of_job(job, alone=len(jobs) == 1).claim_on_device(device)
            for job in dict.fromkeys(jobs)
        ]
    if invalid:
        detail = f"invalid file of a GPU in {directory}: {', '.join(invalid[:_MAX_QUOTED])}"
        remedy = "name the files GPU or GPU.INSTANCE in the prolog, with one job id per line"
        written.add_broken(detail, remedy)
    if unreadable:
        detail = f"cannot read files in {directory}: {', '.join(unreadable[:_MAX_QUOTED])}"
        written.add_broken(detail, "make the directory and its files readable by the agent")
    return written


def _claim_of_job(job: str, *, alone: bool) -> NodeClaim:
    return NodeClaim(
        source="slurm", authority=ClaimAuthority.SCHEDULER, workload=job, gpu="", exclusive=alone
    )
