"""Claims by Slurm, from files of a prolog, the environment of jobs and their processes.

In order of precedence: the output of scontrol, the file per GPU, the environment of the job, and the GPUs
that its processes use. A job holds its GPUs until its control group is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from agent.host import Host
from agent.sampling.facts import counted
from agent.sampling.source import Finding, Verdict
from agent.tenancy import naming
from agent.tenancy.clock_history import ClockHistory
from agent.tenancy.devices import Device, Devices
from agent.tenancy.held import Held, Level, Told
from agent.tenancy.processes import Use
from agent.tenancy.slurm_files import GPU_FILES, JOB_FILES, JobFiles, Written, by_gpu
from agent.tenancy.slurm_groups import Environment, JobGroup, JobGroups
from agent.tenancy.trouble import AS_ROOT, carried, finding, unread

WHAT = "claims by Slurm"


@dataclass(frozen=True, slots=True)
class Places:
    """Paths to read; an empty one is not read."""

    gpu_files: str = ""
    job_files: str = ""
    gres_conf: str = "/etc/slurm/gres.conf"


@dataclass(slots=True)
class Slurm:
    """Jobs of this node. `uses` returns the processes on its GPUs."""

    places: Places
    node: Callable[[], str]
    clock: Callable[[], ClockHistory] = ClockHistory
    uses: Callable[[], tuple[Use, ...]] = tuple
    name: str = "slurm"
    jobs: dict[str, str] = field(default_factory=dict)
    """Job ids by SLUID, as of the last poll."""
    _groups: JobGroups = field(default_factory=JobGroups)
    _files: JobFiles | None = None

    def look(self, host: Host, devices: Devices, in_force: tuple[Held, ...]) -> Told:
        """Return the GPUs of all jobs that run on this node."""
        try:
            groups = self._groups.look(host)
        except OSError as error:
            return unread(
                WHAT, error, "see whether the node's cgroups are mounted at /sys/fs/cgroup"
            )
        self.jobs = {
            group.name: str(told.job)
            for group, told in groups
            if told.job is not None and not group.name.startswith("job_")
        }
        written = self._written(host, devices, in_force)
        unnamed = {held.workload for held in written.held if not held.gpu}
        wanted = {held.workload for held in written.held} - unnamed
        held, homeless = list(written.held), []
        for group, told in groups:
            job = str(told.job) if told.job is not None else group.name
            if job in wanted:
                continue
            found = self._of_group(job, group, told, devices)
            if not found and told.gpus is None:
                found = list(carried(in_force, workload=job, level=Level.NODE_PLUGIN))
            if not found and told.gpus is None and job not in unnamed:
                homeless.append(job)
            held += found
        there = {group.name for group, _ in groups} | {f"job_{told.job}" for _, told in groups}
        for use in self.uses():  # processes are the only evidence without visible groups
            job = use.whose.workload
            if (
                use.whose.source == self.name
                and not {job, f"job_{job}"} & there
                and job not in wanted
            ):
                held.append(_held(job, use.device, Environment(None)))
        findings = [*written.findings, *_findings(groups, held, homeless, self.places)]
        return Told(tuple(_once(held)), tuple(findings))

    def _of_group(
        self, job: str, group: JobGroup, told: Environment, devices: Devices
    ) -> list[Held]:
        """Return the GPUs that a job's environment names, or else those that its processes use."""
        if told.gpus is not None:
            named = [naming.find(name, devices) for name in told.gpus]
            holds = [device for device in named if device is not None]
        else:
            holds = [
                use.device
                for use in self.uses()
                if use.whose.source == self.name and use.whose.workload in {job, group.name}
            ]
        return [_held(job, device, told) for device in dict.fromkeys(holds)]

    def _written(self, host: Host, devices: Devices, in_force: tuple[Held, ...]) -> Written:
        """Return the claims in files; if they cannot be read, those in force from them."""
        places, whole = self.places, Written()
        if self._files is None:
            self._files = JobFiles(places.job_files, places.gres_conf)
        try:
            if places.job_files:
                whole = self._files.look(host, self.node(), devices, self.clock())
        except OSError as error:
            _carry(whole, JOB_FILES, error, in_force)
        try:
            if places.gpu_files:
                more = by_gpu(host, places.gpu_files, devices)
                told = {(held.workload, held.part) for held in whole.held}
                whole.held += [h for h in more.held if (h.workload, h.part) not in told]
                whole.findings += more.findings
        except OSError as error:
            _carry(whole, GPU_FILES, error, in_force)
        return whole


def _carry(written: Written, what: str, error: OSError, in_force: tuple[Held, ...]) -> None:
    remedy = "let the prolog make the directory, or clear the setting"
    written.findings.append(finding(what, error, remedy))
    written.held += carried(in_force, level=Level.SCHEDULER)


def _held(job: str, device: Device, told: Environment) -> Held:
    return Held(
        source="slurm", level=Level.NODE_PLUGIN, workload=job,
        owner=told.account or told.user,
        gpu=device.gpu, device=device.id, compute=device.compute, memory=device.memory,
        exclusive=device.exact and not told.is_shared, profile=device.profile,
    )  # fmt: skip


def _once(held: list[Held]) -> list[Held]:
    """Remove duplicate claims; the first of several has precedence."""
    found: dict[tuple[str, ...], Held] = {}
    for one in held:
        found.setdefault(one.key, one)
    return list(found.values())


def _findings(
    groups: list[tuple[JobGroup, Environment]],
    held: list[Held],
    homeless: list[str],
    places: Places,
) -> list[Finding]:
    if not groups and not held and not places.gpu_files and not places.job_files:
        return [Finding(WHAT, Verdict.ABSENT, "there are no control groups of Slurm's jobs")]
    named, unnamed = len([one for one in held if one.gpu]), sum(one.count for one in held)
    amounts = [counted(named, "device")] if named or not unnamed else []
    amounts += [f"{counted(unnamed, 'GPU')} without a device"] if unnamed else []
    jobs = counted(len({h.workload for h in held}), "job")
    detail = f"{' and '.join(amounts)} held by {jobs}"
    found = [Finding(WHAT, Verdict.SUPPORTED, detail)]
    denied = [told.job for _, told in groups if told.is_denied]
    if denied and homeless:
        detail = f"the environment of {counted(len(denied), 'job')} may not be read"
        found.append(Finding(WHAT, Verdict.DENIED, detail, AS_ROOT))
    elif homeless:
        detail = f"not known which GPUs {counted(len(homeless), 'job')} may have: {', '.join(homeless[:5])}"
        found.append(
            Finding(WHAT, Verdict.ABSENT, detail, "have a prolog run `railscope claim start`")
        )
    return found
