"""Files written by a Slurm prolog: jobs by GPU, and the output of scontrol for each job.

gpu_files  a file for each GPU, named by its index, or `<gpu>.<gi>` for a MIG device, with one job
           id per line (NVIDIA/dcgm-exporter:README.md, "HPC job mapping")
job_files  output of `scontrol show job -d ID`, as text or with --json, one file per job
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from fractions import Fraction

import msgspec

from railscope import convert_errors
from railscope.claim_terms import ClaimAuthority, ShareError, checked_share, share_text
from railscope.slurm import SlurmFormatError, scontrol
from railscope.slurm.job_record import NodeAllocation, SlurmJob
from railscope.slurm.resources import Gres, ShardShare
from railscope.timestamps import SECOND_NS
from railscope_agent.host import Host
from railscope_agent.owners.slurm import GresConf, GresDevice, parse_gres_conf
from railscope_agent.sampling.fact_readers import read_text
from railscope_agent.sampling.probe_result import ProbeFinding, ProbeVerdict
from railscope_agent.tenancy.claims import NodeClaim
from railscope_agent.tenancy.clock_history import BootTime, ClockHistory
from railscope_agent.tenancy.devices import ClaimableDevice, NodeDevices

GPU_FILES_SUBJECT, JOB_FILES_SUBJECT, GRES_CONF_SUBJECT = (
    "jobs by GPU",
    "jobs by scontrol",
    "gres.conf",
)
_GPU_FILE = re.compile(r"(?P<gpu>\d{1,4})(?:\.(?P<instance>\d{1,4}))?")
_ZONES = "/zoneinfo/"
_MAX_QUOTED = 5
_SHARED = {"shard", "mps"}


@dataclass(slots=True)
class SlurmFileClaims:
    """Claims and findings from such files."""

    claims: list[NodeClaim] = field(default_factory=list)
    findings: list[ProbeFinding] = field(default_factory=list)

    def add_broken(self, subject: str, detail: str, remedy: str) -> None:
        """Add the finding about a file that cannot be used."""
        self.findings.append(ProbeFinding(subject, ProbeVerdict.BROKEN, detail, remedy))


def read_gpu_files(host: Host, directory: str, devices: NodeDevices) -> SlurmFileClaims:
    """Return the claims of a directory with one file per GPU. Raises OSError for the directory."""
    written, invalid = SlurmFileClaims(), []
    for name in host.names(directory):
        match = _GPU_FILE.fullmatch(name)
        device = devices.gpu_with_index(int(match["gpu"])) if match else None
        if match and match["instance"] and device:
            device = devices.mig_with_instance(device.gpu, match["instance"])
        jobs = read_text(host, f"{directory}/{name}").split()
        if device is None or not all(job.isdecimal() for job in jobs):
            invalid.append(name)
            continue
        written.claims += [
            _claim_of_job(job, alone=len(jobs) == 1).claim_on_device(device)
            for job in dict.fromkeys(jobs)
        ]
    if invalid:
        detail = f"invalid file of a GPU in {directory}: {', '.join(invalid[:_MAX_QUOTED])}"
        remedy = "name the files by GPU in the prolog, with one job id per line"
        written.add_broken(GPU_FILES_SUBJECT, detail, remedy)
    return written


def _claim_of_job(job: str, *, alone: bool) -> NodeClaim:
    return NodeClaim(
        source="slurm", authority=ClaimAuthority.SCHEDULER, workload=job, gpu="", exclusive=alone
    )


@dataclass(slots=True)
class SlurmJobFiles:
    """Jobs from the output of scontrol; unchanged files are not parsed again."""

    directory: str
    gres_conf: str
    _parsed: dict[str, tuple[bytes, tuple[SlurmJob, ...]]] = field(default_factory=dict)

    def read(
        self, host: Host, node: str, devices: NodeDevices, clock: ClockHistory
    ) -> SlurmFileClaims:
        """Return the claims of jobs that run on this node. Raises OSError for the directory."""
        written, bad, names = SlurmFileClaims(), [], host.names(self.directory)
        unclear: list[str] = []
        self._parsed = {name: parsed for name, parsed in self._parsed.items() if name in names}
        conf = _read_gres_conf(host, self.gres_conf, node, written)
        for name in names:
            try:
                jobs = self._jobs(host, name)
            except (OSError, SlurmFormatError) as error:
                bad.append(f"{name} ({error})")
                continue
            for job in jobs:
                allocated = _AllocatedGpus(
                    job, clock.convert_wall_time((job.start_seconds or 0) * SECOND_NS)
                )
                written.claims += allocated.claims(node, conf.devices, devices)
                unclear += allocated.unclear
        if bad:
            detail = (
                f"invalid output of scontrol in {self.directory}: {', '.join(bad[:_MAX_QUOTED])}"
            )
            remedy = "write the output of `scontrol show job -d --json ID` there in the prolog"
            written.add_broken(JOB_FILES_SUBJECT, detail, remedy)
        if unclear:
            detail = f"unknown part of the node's GPUs: {'; '.join(unclear[:_MAX_QUOTED])}"
            remedy = (
                "write the output of `scontrol show job -d --json ID` in the prolog, "
                "or run `railscope claim`"
            )
            written.add_broken(JOB_FILES_SUBJECT, detail, remedy)
        return written

    def _jobs(self, host: Host, name: str) -> tuple[SlurmJob, ...]:
        content = host.read(f"{self.directory}/{name}")
        parsed = self._parsed.get(name)
        if parsed is None or parsed[0] != content:
            parsed = self._parsed[name] = content, _parse_job_file(content, host)
        return parsed[1]


def _parse_job_file(content: bytes, host: Host) -> tuple[SlurmJob, ...]:
    if content.lstrip()[:1] == b"{":
        return scontrol.parse_json(content)
    with convert_errors(UnicodeDecodeError, SlurmFormatError, "invalid UTF-8: "):
        return scontrol.parse_text(content.decode(), _time_zone(host))


def _time_zone(host: Host) -> tzinfo:
    """Return the time zone of the node, which scontrol prints in, from the /etc/localtime link."""
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError  # noqa: PLC0415 - only for nodes with Slurm

    try:
        name = host.resolve("/etc/localtime").partition(_ZONES)[2]
        return ZoneInfo(name) if name else UTC
    except (OSError, ValueError, ZoneInfoNotFoundError):
        return UTC


def _read_gres_conf(host: Host, path: str, node: str, written: SlurmFileClaims) -> GresConf:
    """Return the devices of gres.conf; none, with a finding, if the file does not specify them."""
    try:
        conf = parse_gres_conf(host.read(path).decode(errors="replace"), node)
    except FileNotFoundError:
        return GresConf((), "")
    except (OSError, SlurmFormatError) as error:
        remedy = "set tenancy.gres_conf to a file that lists the GPUs of this node"
        written.add_broken(GRES_CONF_SUBJECT, f"cannot read gres.conf {path}: {error}", remedy)
        return GresConf((), "")
    if conf.auto_detect and not conf.devices:
        detail = f"order of the GPUs in {path} left to {conf.auto_detect}: assumed as /dev/nvidiaN"
        written.findings.append(ProbeFinding.absent(GRES_CONF_SUBJECT, detail))
    return conf


@dataclass(slots=True)
class _AllocatedGpus:
    """Claims of one job on this node, and the parts of its allocation that cannot be resolved."""

    job: SlurmJob
    start_boot: BootTime | None
    unclear: list[str] = field(default_factory=list)

    def claims(
        self, node: str, listed: tuple[GresDevice, ...], devices: NodeDevices
    ) -> Iterator[NodeClaim]:
        """Yield the claims of a job that has started and not ended; GPUs without an index are counted."""
        job = self.job
        if job.start_seconds is None or job.end_seconds is not None:
            return
        names = {node, node.partition(".")[0]}
        counted = 0
        for allocation in job.allocations or ():
            counted += _count_allocated_gpus(allocation)
            if allocation.node in names:
                for gres in allocation.gres:
                    yield from self._claims_of_gres(gres, listed, devices)
        missing = _count_gpus_of_job(job) - counted
        if missing <= 0 or not names & set(job.nodes):
            return
        if len(job.nodes) == 1:
            yield self._unplaced_claims(missing)
        else:
            self.unclear.append(
                f"job {job.id} has {missing} GPUs without a node, on {len(job.nodes)} nodes"
            )

    def _claims_of_gres(
        self, gres: Gres, listed: tuple[GresDevice, ...], devices: NodeDevices
    ) -> Iterator[NodeClaim]:
        if gres.shares is not None:
            for index, share in enumerate(gres.shares):
                if share.allocated:
                    yield from self._claims_of_share(
                        gres, share, _device_with_index(index, listed, devices)
                    )
        elif gres.name == "gpu":
            named_devices = [
                _device_with_index(index, listed, devices) for index in gres.indices or ()
            ]
            named = [device for device in named_devices if device is not None]
            yield from map(self._claim_of_count().claim_on_device, named)
            if gres.count > len(named):
                yield self._unplaced_claims(gres.count - len(named))
        elif gres.name in _SHARED and gres.count:
            self.unclear.append(
                f"job {self.job.id} has {gres.name}:{gres.count}; the number per GPU is unknown"
            )

    def _claims_of_share(
        self, gres: Gres, share: ShardShare, device: ClaimableDevice | None
    ) -> Iterator[NodeClaim]:
        """Yield a share of one GPU: the job's amount of the amount configured for the GPU."""
        try:
            part = share_text(checked_share(Fraction(share.allocated, max(share.total, 1))))
        except ShareError:
            shards = f"{gres.name} {share.allocated}/{share.total}"
            self.unclear.append(f"job {self.job.id} has {shards}: expected a share of a GPU")
            return
        yield (
            self._claim_of_count().claim_on_device(device, part)
            if device is not None
            else self._unplaced_claims(1, part)
        )

    def _unplaced_claims(self, count: int, share: str = "") -> NodeClaim:
        return msgspec.structs.replace(
            self._claim_of_count(), count=count, share=share, exclusive=not share, reference=share
        )

    def _claim_of_count(self) -> NodeClaim:
        job = self.job
        return NodeClaim(
            source="slurm",
            authority=ClaimAuthority.SCHEDULER,
            workload=str(job.id),
            gpu="",
            owner=job.account or job.user,
            start_ns=(job.start_seconds or 0) * SECOND_NS,
            start_boot=self.start_boot,
            uncertainty_ns=SECOND_NS,
        )


def _count_allocated_gpus(allocation: NodeAllocation) -> int:
    """Return the number of GPUs in the resources of one node; each share counts as one GPU."""
    gpu_count = sum(gres.count for gres in allocation.gres if gres.name == "gpu")
    shares = sum(bool(s.allocated) for gres in allocation.gres for s in gres.shares or ())
    return gpu_count + shares


def _count_gpus_of_job(job: SlurmJob) -> int:
    """Return the number of GPUs of a job on all of its nodes, from its trackable resources."""
    counts = job.gres_counts
    typed = sum(count for name, count in counts.items() if name.startswith("gpu:"))
    return max(counts.get("gpu", 0), typed)


def _device_with_index(
    index: int, listed: tuple[GresDevice, ...], devices: NodeDevices
) -> ClaimableDevice | None:
    """Return the device with an index; without a list, the one whose device file has that number."""
    if not listed:
        return devices.gpu_with_minor(index)
    minor = next((device.minor for device in listed if device.index == index), None)
    return devices.gpu_with_minor(minor) if minor is not None else None
