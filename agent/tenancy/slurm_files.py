"""What a prolog of Slurm wrote down: which job has which GPU, and what scontrol says of jobs.

gpu_files  a file for each GPU, named by its index, or `<gpu>.<gi>` for a MIG device, with the id of
           a job on each line (NVIDIA/dcgm-exporter:README.md, "HPC job mapping")
job_files  what `scontrol show job -d ID` printed, as text or with --json, a file for each job
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from agent.facts import text
from agent.host import Host
from agent.owners import FormatError
from agent.owners.gres_conf import Device as GresDevice
from agent.owners.gres_conf import GresConf, parse_gres_conf
from agent.source import Finding, Verdict
from agent.tenancy.devices import Device, Devices
from agent.tenancy.held import Held, Level
from railscope.slurm import scontrol
from railscope.slurm.job import Job

GPU_FILES, JOB_FILES, GRES_CONF = "jobs by GPU", "jobs by scontrol", "gres.conf"
_GPU_FILE = re.compile(r"(?P<gpu>\d{1,4})(?:\.(?P<instance>\d{1,4}))?")
_ZONES = "/zoneinfo/"
_NS = 1_000_000_000
_MOST_QUOTED = 5


@dataclass(slots=True)
class Written:
    """What came of reading such files."""

    held: list[Held] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def by_gpu(host: Host, folder: str, devices: Devices) -> Written:
    """The claims of a folder with a file for each GPU. Raises OSError for the folder."""
    written, odd = Written(), []
    for name in host.names(folder):
        found = _GPU_FILE.fullmatch(name)
        device = devices.with_index(int(found["gpu"])) if found else None
        if found and found["instance"] and device:
            device = devices.instance(device.gpu, found["instance"])
        jobs = text(host, f"{folder}/{name}").split()
        if device is None or not all(job.isdecimal() for job in jobs):
            odd.append(name)
            continue
        written.held += [_held(job, device, alone=len(jobs) == 1) for job in dict.fromkeys(jobs)]
    if odd:
        detail = f"{folder}: not the jobs of a GPU here: {', '.join(odd[:_MOST_QUOTED])}"
        remedy = "let the prolog name files by GPU, with one id of a job on each line"
        written.findings.append(Finding(GPU_FILES, Verdict.BROKEN, detail, remedy))
    return written


def _held(job: str, device: Device, *, alone: bool = True) -> Held:
    return Held(
        source="slurm", level=Level.SCHEDULER, workload=job, gpu=device.gpu, device=device.id,
        compute=device.compute, memory=device.memory, exclusive=alone and device.exact,
        profile=device.profile,
    )  # fmt: skip


@dataclass(slots=True)
class JobFiles:
    """Jobs by what scontrol printed; what has not changed is not parsed again."""

    folder: str
    gres_conf: str
    _parsed: dict[str, tuple[bytes, tuple[Job, ...]]] = field(default_factory=dict)

    def look(self, host: Host, node: str, devices: Devices) -> Written:
        """The claims of jobs that run on this node. Raises OSError for the folder."""
        written, bad, here = Written(), [], host.names(self.folder)
        self._parsed = {name: kept for name, kept in self._parsed.items() if name in here}
        conf = _gres_conf(host, self.gres_conf, node, written)
        for name in here:
            try:
                jobs = self._jobs(host, name)
            except (OSError, FormatError) as error:
                bad.append(f"{name} ({error})")
                continue
            for job in jobs:
                written.held += _claims(job, node, conf, devices)
        if bad:
            detail = f"{self.folder}: not what scontrol prints: {', '.join(bad[:_MOST_QUOTED])}"
            remedy = "let the prolog write `scontrol show job -d --json ID` there"
            written.findings.append(Finding(JOB_FILES, Verdict.BROKEN, detail, remedy))
        return written

    def _jobs(self, host: Host, name: str) -> tuple[Job, ...]:
        content = host.read(f"{self.folder}/{name}")
        kept = self._parsed.get(name)
        if kept is None or kept[0] != content:
            kept = self._parsed[name] = content, _parse(content, host)
        return kept[1]


def _parse(content: bytes, host: Host) -> tuple[Job, ...]:
    if content.lstrip()[:1] == b"{":
        return scontrol.parse_json(content)
    try:
        return scontrol.parse_text(content.decode(), _zone(host))
    except UnicodeDecodeError as error:
        message = f"no UTF-8: {error}"
        raise FormatError(message) from error


def _zone(host: Host) -> tzinfo:
    """The time zone of the node, in which scontrol prints: localtime(5) is a link to it."""
    try:
        name = host.resolve("/etc/localtime").partition(_ZONES)[2]
        return ZoneInfo(name) if name else UTC
    except (OSError, ValueError, ZoneInfoNotFoundError):
        return UTC


def _gres_conf(host: Host, path: str, node: str, written: Written) -> GresConf:
    """The devices of gres.conf; none where it does not say, which is told."""
    try:
        conf = parse_gres_conf(host.read(path).decode(errors="replace"), node)
    except FileNotFoundError:
        return GresConf((), "")
    except (OSError, FormatError) as error:
        remedy = "set tenancy.gres_conf to a file that names the GPUs of this node"
        written.findings.append(Finding(GRES_CONF, Verdict.BROKEN, f"{path}: {error}", remedy))
        return GresConf((), "")
    if not conf.is_certain and not conf.devices:
        detail = f"{path} leaves it to {conf.auto_detect} to order the GPUs: taken as /dev/nvidiaN"
        written.findings.append(Finding(GRES_CONF, Verdict.ABSENT, detail))
    return conf


def _claims(job: Job, node: str, conf: GresConf, devices: Devices) -> Iterator[Held]:
    """What a job that has begun and not ended holds here."""
    if job.start_seconds is None or job.end_seconds is not None:
        return
    short = node.partition(".")[0]
    for allocation in job.allocations or ():
        if allocation.node not in {node, short}:
            continue
        for gres in allocation.gres:
            indices = gres.indices or ()
            if gres.shares is not None:
                indices = tuple(place for place, share in enumerate(gres.shares) if share.taken)
            elif gres.name != "gpu":
                continue
            for index in indices:
                device = _device(index, conf.devices, devices)
                if device is not None:
                    yield _of_job(job, device, exclusive=gres.shares is None and device.exact)


def _of_job(job: Job, device: Device, *, exclusive: bool) -> Held:
    start_ns = (job.start_seconds or 0) * _NS
    return Held(
        source="slurm", level=Level.SCHEDULER, workload=str(job.id), owner=job.account or job.user,
        gpu=device.gpu, device=device.id, compute=device.compute, memory=device.memory,
        exclusive=exclusive, profile=device.profile, start_ns=start_ns, uncertainty_ns=_NS,
    )  # fmt: skip


def _device(index: int, listed: tuple[GresDevice, ...], devices: Devices) -> Device | None:
    """The device of an index; without a list, that of the device file with its number."""
    if not listed:
        return devices.with_minor(index)
    found = next((device for device in listed if device.index == index), None)
    minor = found.minor if found else None
    return devices.with_minor(minor) if minor is not None else None
