"""Files written by a Slurm prolog: jobs by GPU, and the output of scontrol for each job.

gpu_files  a file for each GPU, named by its index, or `<gpu>.<gi>` for a MIG device, with one job
           id per line (NVIDIA/dcgm-exporter:README.md, "HPC job mapping")
job_files  output of `scontrol show job -d ID`, as text or with --json, one file per job
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from fractions import Fraction
from io import BytesIO

import msgspec

from railscope import convert_errors
from railscope.claim_terms import ClaimAuthority, ShareError, checked_share, share_text
from railscope.slurm import SlurmFormatError, scontrol
from railscope.slurm.job_record import NodeAllocation, SlurmJob
from railscope.slurm.node_lists import is_same_node
from railscope.slurm.resources import Gres, ShardShare
from railscope.timestamps import SECOND_NS
from railscope_agent.host import Host
from railscope_agent.host.owners import OWNER
from railscope_agent.owners.slurm import GresConf, parse_gres_conf
from railscope_agent.sampling.probe_result import ProbeFinding, ProbeVerdict
from railscope_agent.tenancy.claims import NodeClaim
from railscope_agent.tenancy.clock_history import BootTime, ClockHistory
from railscope_agent.tenancy.devices import NodeDevices
from railscope_agent.tenancy.slurm_devices import GrantedGpu, SlurmDevices

SUBJECT, GRES_CONF_SUBJECT = "claims by Slurm", "gres.conf"
_GPU_FILE = re.compile(r"(?P<gpu>\d{1,4})(?:\.(?P<instance>\d{1,4}))?")
_NUMBER = re.compile(r"\d+")
_LOCAL_TIME, _ZONES = "/etc/localtime", "/zoneinfo/"
_MAX_QUOTED = 5
_SHARED = {"shard", "mps"}


@dataclass(slots=True)
class SlurmFileClaims:
    """Claims and findings from such files."""

    claims: list[NodeClaim] = field(default_factory=list)
    findings: list[ProbeFinding] = field(default_factory=list)
    unsized: dict[str, int] = field(default_factory=dict)
    """Number of GPUs or MIG devices of unknown size by job."""
    unread_jobs: set[str] = field(default_factory=set)
    unread_devices: set[str] = field(default_factory=set)
    """Jobs and devices whose file cannot be read or is invalid: their claims in force stay."""

    def add_broken(self, subject: str, detail: str, remedy: str) -> None:
        """Add the finding about a file that cannot be used."""
        self.findings.append(ProbeFinding(subject, ProbeVerdict.BROKEN, detail, remedy))


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
        written.add_broken(SUBJECT, detail, remedy)
    if unreadable:
        detail = f"cannot read files in {directory}: {', '.join(unreadable[:_MAX_QUOTED])}"
        written.add_broken(
            SUBJECT, detail, "make the directory and its files readable by the agent"
        )
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
    """Content and jobs of each file, as of its last valid content."""
    _conf: dict[str, GresConf] = field(default_factory=dict)
    """gres.conf of this node by its few names in Slurm, as of its last valid content."""

    def read(
        self,
        host: Host,
        nodes: Collection[str],
        devices: NodeDevices,
        clock: ClockHistory,
        running: Collection[int],
    ) -> SlurmFileClaims:
        """Return the claims of jobs that run on this node, by its names. Raises OSError for the directory.

        `running` are jobs that are certain to run.
        """
        written, names = SlurmFileClaims(), host.names(self.directory)
        bad: list[str] = []
        unclear: list[str] = []
        left: list[str] = []
        # Files of ended jobs are removed by the epilog: their content is not kept.
        self._parsed = {name: parsed for name, parsed in self._parsed.items() if name in names}
        named: dict[str, SlurmDevices] = {}
        elsewhere: set[str] = set()
        for name, job in self._started_jobs(host, names, bad, written.unread_jobs):
            # PrologSlurmctld may have written the file while the node was started for the job.
            if job.id not in running and _is_of_earlier_boot(
                host, f"{self.directory}/{name}", clock
            ):
                left.append(name)
                continue
            job_nodes = {*job.nodes, *(each.node for each in job.allocations or ())}
            here = [n for n in job_nodes if any(is_same_node(n, node) for node in nodes)]
            elsewhere |= set(() if here else job_nodes)
            for node in here:
                if node not in named:
                    conf = self._read_gres_conf(host, node, devices, written)
                    named[node] = SlurmDevices(host, conf, devices)
            start_boot = clock.convert_wall_time((job.start_seconds or 0) * SECOND_NS)
            allocated = _AllocatedGpus(job, start_boot, named)
            written.claims += allocated.claims(here)
            unclear += allocated.unclear
            written.unsized[str(job.id)] = allocated.unsized
        if elsewhere and not named:
            shown = ", ".join(sorted(elsewhere)[:_MAX_QUOTED])
            detail = (
                f"jobs of {shown} in {self.directory}; this agent is {' or '.join(sorted(nodes))}"
            )
            written.add_broken(SUBJECT, detail, "set `node` to the NodeName of slurm.conf")
        if bad:
            detail = (
                f"invalid output of scontrol in {self.directory}: {', '.join(bad[:_MAX_QUOTED])}"
            )
            remedy = "write the output of `scontrol show job -d --json ID` there in the prolog"
            written.add_broken(SUBJECT, detail, remedy)
        if left:
            detail = f"ignored in {self.directory}: {', '.join(left[:_MAX_QUOTED])} from before this boot"
            remedy = "remove files whose job has ended: no epilog runs when a node crashes"
            written.findings.append(ProbeFinding.absent(SUBJECT, detail, remedy))
        if unclear:
            detail = f"unknown part of the node's GPUs: {'; '.join(unclear[:_MAX_QUOTED])}"
            remedy = (
                "write the output of `scontrol show job -d --json ID` in the prolog, "
                "or run `railscope claim`"
            )
            written.add_broken(SUBJECT, detail, remedy)
        return written

    def _started_jobs(
        self, host: Host, names: list[str], bad: list[str], unread_jobs: set[str]
    ) -> Iterator[tuple[str, SlurmJob]]:
        """Yield the jobs that have started and not ended, by file.

        Adds files that cannot be parsed to `bad`, and the jobs that may be in them to `unread_jobs`.
        """
        for name in names:
            try:
                jobs = self._jobs(host, name)
            except FileNotFoundError:
                continue  # removed by the epilog since the directory was read
            except (OSError, SlurmFormatError) as error:
                bad.append(f"{name} ({error})")
                # After a restart of the agent, only the name of the file states its job.
                unread_jobs |= {str(job.id) for job in self._parsed.get(name, (b"", ()))[1]}
                unread_jobs |= set(_NUMBER.findall(name))
                continue
            yield from (
                (name, job)
                for job in jobs
                if job.start_seconds is not None and job.end_seconds is None
            )

    def _read_gres_conf(
        self, host: Host, node: str, devices: NodeDevices, written: SlurmFileClaims
    ) -> GresConf:
        """Return the devices of gres.conf; if it cannot be read, those of its last valid content, with a finding."""
        path = self.gres_conf
        try:
            conf = parse_gres_conf(host.read(path).decode(errors="replace"), node)
        # No gres.conf here is usual (configless Slurm): the devices are counted by their files, without a
        # finding.
        except FileNotFoundError:
            return GresConf((), "")
        except (OSError, SlurmFormatError) as error:
            remedy = "set tenancy.gres_conf to a file that lists the GPUs of this node"
            written.add_broken(GRES_CONF_SUBJECT, f"cannot read gres.conf {path}: {error}", remedy)
            return self._conf.get(node, GresConf((), ""))
        self._conf[node] = conf
        if conf.auto_detect and not (conf.devices or devices.has_partitions):
            detail = (
                f"order of the GPUs in {path} left to {conf.auto_detect}: assumed as /dev/nvidiaN"
            )
            written.findings.append(ProbeFinding.absent(GRES_CONF_SUBJECT, detail))
        return conf

    def _jobs(self, host: Host, name: str) -> tuple[SlurmJob, ...]:
        content = host.read(f"{self.directory}/{name}")
        parsed = self._parsed.get(name)
        # Compared by content: a prolog may rewrite a file within the resolution of its time stamp.
        if parsed is None or parsed[0] != content:
            parsed = self._parsed[name] = content, _parse_job_file(content, host)
        return parsed[1]


def _is_of_earlier_boot(host: Host, path: str, clock: ClockHistory) -> bool:
    """True if a file is certain to have been written before this boot.

    No job survives a reboot, and the epilog does not run on a node that crashed: its file stays
    (slurm.schedmd.com/prolog_epilog.html; slurm.conf(5), JobRequeue). The start of the job is no evidence for that: its
    node may be started after the allocation (sbatch(1), --reboot; slurm.conf(5), ResumeTimeout).
    """
    try:
        return clock.is_before_boot(int(host.call(OWNER, "modified", path)))
    except OSError:
        return False  # a recording of an earlier agent, or a file that was just removed


def _parse_job_file(content: bytes, host: Host) -> tuple[SlurmJob, ...]:
    # A prolog whose disk is full, or whose scontrol failed, leaves an empty file: scontrol always prints a text.
    if not content.strip():
        message = "empty file"
        raise SlurmFormatError(message)
    if content.lstrip()[:1] == b"{":
        return scontrol.parse_json(content)
    with convert_errors(UnicodeDecodeError, SlurmFormatError, "invalid UTF-8: "):
        return scontrol.parse_text(content.decode(), _time_zone(host))


def _time_zone(host: Host) -> tzinfo:
    """Return the time zone of the node, which scontrol prints in: /etc/localtime is a link or a copy (localtime(5))."""
    from zoneinfo import ZoneInfo  # noqa: PLC0415 - only for nodes with Slurm

    try:
        name = host.resolve(_LOCAL_TIME).partition(_ZONES)[2]
        if name:
            return ZoneInfo(name)
        content = host.read(_LOCAL_TIME)
        # zoneinfo reads without end where the end of the last line is missing (RFC 9636, section 3.3).
        return ZoneInfo.from_file(BytesIO(content)) if content.endswith(b"\n") else UTC
    except (OSError, ValueError, LookupError, AssertionError, struct.error):
        # The start is then wrong by the offset of the zone: with a start in the future, the claim begins late.
        return UTC


@dataclass(slots=True)
class _AllocatedGpus:
    """Claims of one running job on this node, and the parts of its allocation that cannot be resolved."""

    job: SlurmJob
    start_boot: BootTime | None
    named: Mapping[str, SlurmDevices]
    """GPUs of this node by its names in Slurm."""
    unclear: list[str] = field(default_factory=list)
    unsized: int = 0
    """GPUs or MIG devices of unknown size; the group of the job may name them."""

    def claims(self, here: Collection[str]) -> Iterator[NodeClaim]:
        """Yield the claims of the job on its nodes that are this one; GPUs without an index are counted."""
        counted = 0
        for allocation in self.job.allocations or ():
            counted += _count_allocated_gpus(allocation)
            if allocation.node in here:
                for gres in allocation.gres:
                    yield from self._claims_of_gres(gres, self.named[allocation.node])
        missing = _count_gpus_of_job(self.job) - counted
        if missing <= 0 or not here:
            return
        if len(self.job.nodes) > 1:
            self.unclear.append(
                f"job {self.job.id} has {missing} GPUs without a node, on {len(self.job.nodes)} nodes"
            )
            return
        types = {
            name.removeprefix("gpu:"): count
            for name, count in self.job.gres_counts.items()
            if name.startswith("gpu:")
        }
        if sum(types.values()) != missing:
            # The counts by type are those of the whole job: they fit only if nothing of it is placed.
            types = {next(iter(types)) if len(types) == 1 else "": missing}
        devices = self.named[next(iter(here))]
        for type_, count in types.items():
            yield from self._unplaced_claims(Counter({devices.without_index(type_): count}))

    def _claims_of_gres(self, gres: Gres, devices: SlurmDevices) -> Iterator[NodeClaim]:
        if gres.shares is not None:
            for index, share in enumerate(gres.shares):
                if share.allocated:
                    granted = devices.with_index(index, gres.type)
                    yield from self._claims_of_share(gres, share, granted)
        elif gres.name == "gpu":
            grants = Counter(devices.with_index(index, gres.type) for index in gres.indices or ())
            missing = gres.count - grants.total()
            if missing > 0:
                grants[devices.without_index(gres.type)] += missing
            for granted in grants:
                if granted.device is not None:
                    yield self._claim_of_count().claim_on_device(granted.device)
            yield from self._unplaced_claims(grants)
        elif gres.name in _SHARED and gres.count:
            self.unclear.append(
                f"job {self.job.id} has {gres.name}:{gres.count}; the number per GPU is unknown"
            )

    def _claims_of_share(
        self, gres: Gres, share: ShardShare, granted: GrantedGpu
    ) -> Iterator[NodeClaim]:
        """Yield a share of one GPU: the job's amount of the amount configured for the GPU."""
        try:
            part = checked_share(Fraction(share.allocated, max(share.total, 1)))
        except ShareError:
            shards = f"{gres.name} {share.allocated}/{share.total}"
            self.unclear.append(f"job {self.job.id} has {shards}: expected a share of a GPU")
            return
        if granted.device is not None:
            yield self._claim_of_count().claim_on_device(granted.device, share_text(part))
        else:
            size = None if granted.size is None else granted.size * part
            yield from self._unplaced_claims(Counter({GrantedGpu(size=size): 1}))

    def _unplaced_claims(self, grants: Counter[GrantedGpu]) -> Iterator[NodeClaim]:
        """Yield claims on the GPUs whose device is unknown, by their size."""
        for granted, count in grants.items():
            if granted.device is not None:
                continue
            if granted.size is None:
                self.unsized += count
                continue
            share = share_text(granted.size) if granted.size < 1 else ""
            yield msgspec.structs.replace(
                self._claim_of_count(),
                count=count,
                share=share,
                profile=granted.profile,
                exclusive=not share,
                reference=granted.profile or share,
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
            # Slurm reports whole seconds.
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
