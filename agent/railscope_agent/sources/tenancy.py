"""All claim providers of the node, as one source of the agent.

It runs on its own thread: a kubelet that does not answer blocks no GPU source. Data from NVML are
taken from the latest reads of the sources on the driver's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from railscope import claim_terms, frame, reading
from railscope.catalog import tenancy as c
from railscope.catalog.entities import GPU
from railscope.settings import SettingsError
from railscope_agent.config import TenancySettings
from railscope_agent.gpus.inventory import GpuInventory
from railscope_agent.gpus.process_lists import ProcessLists
from railscope_agent.host import Host
from railscope_agent.sampling import fact_readers, probe_result, row_builder, source
from railscope_agent.tenancy import (
    claim_placement,
    claim_tracker,
    command_claims,
    devices,
    gpu_processes,
    kubernetes,
    slurm,
    tenancy_state_file,
    unclaimed_use,
    virtual_machines,
)
from railscope_agent.tenancy.claim_provider import ClaimProvider, ClaimReport
from railscope_agent.tenancy.claims import NodeClaim
from railscope_agent.tenancy.clock_history import ClockHistory

MAX_EVENTS_PER_FRAME = 500
"""Maximum of events per frame: a collector accepts a limited number per envelope, for all sources."""
WAIT_FOR_GPUS_NS = 15_000_000_000
"""Time that the driver has to report its GPUs before the remembered ones are used instead."""
PROCESS, UNCLAIMED = "process", "unclaimed"
OWNERS = frozenset(
    ["docker", "containerd", "cri-o", "podman", "lxc", "systemd", "libvirt", "slurm", "kubernetes"]
)
"""Owners that may be trusted, so that their processes count as claims."""
_METRICS = (c.GPU_CLAIMS, c.GPU_CLAIMED, c.GPU_UNCLAIMED_PROCESSES)


def _owners(trusted: str) -> frozenset[str]:
    """Trusted owners. Raises SettingsError for an unknown one."""
    names = frozenset(trusted.split())
    if unknown := sorted(names - OWNERS):
        valid_owners = ", ".join(sorted(OWNERS))
        message = f"invalid tenancy.trusted_owners: {', '.join(unknown)}: expected owners among {valid_owners}"
        raise SettingsError(message)
    return names


class ClaimSource(source.Source):
    """Claims as events, and the claimed share of each GPU."""

    name = "tenancy"
    period_seconds = 5.0
    stage = 1
    longest_period_seconds = 30.0
    """Claims that begin and end within a period are not detected."""

    def __init__(
        self,
        settings: TenancySettings,
        node: str = "",
        gpus: GpuInventory | None = None,
        lists: ProcessLists | None = None,
    ) -> None:
        """Raises SettingsError for an unknown owner."""
        self.commands = command_claims.CommandClaims()
        self.devices = devices.NodeDevices()
        self._settings, self._node = settings, node
        self._gpus = gpus or GpuInventory()
        self._system = frozenset(settings.system_owners.split())
        self._trusted = _owners(settings.trusted_owners)
        self._kubernetes = kubernetes.KubernetesProvider(settings, self._system)
        self._processes = gpu_processes.GpuProcessOwners(
            lists or ProcessLists(), settings.owner_label, self._system
        )
        self.clock = ClockHistory()
        """Clock history of the boot, from the first poll on."""
        self._slurm = slurm.SlurmProvider(settings, lambda: self._uses.uses)
        adapters: tuple[ClaimProvider, ...] = (
            self._slurm,
            virtual_machines.VirtualMachineProvider(),
            self.commands,
        )
        self._adapters = adapters
        self._unclaimed = unclaimed_use.UnclaimedUseDetector()
        self._state_file: tenancy_state_file.TenancyStateFile | None = None
        self._tracker: claim_tracker.ClaimTracker | None = None
        self._before: dict[str, devices.GpuNames] = {}
        self._uses = gpu_processes.DeviceUses()
        self._free: tuple[gpu_processes.DeviceUse, ...] = ()
        self._problem: reading.Absent | None = None
        self._columns: tuple[str, ...] = ()
        self._findings: tuple[probe_result.ProbeFinding, ...] = ()
        self._events: list[frame.Event] = []
        self._first_ns: int | None = None
        self._just_polled = False

    def remember(self, directory: Path, boot_id: str) -> None:  # noqa: ARG002 - claims last longer than a boot
        """Load and store the claims."""
        self._state_file = tenancy_state_file.TenancyStateFile(directory)
        self.commands.open_directory(directory)

    @property
    def active_claims(self) -> tuple[claim_tracker.ActiveClaim, ...]:
        """All claims and observed uses in force, as of the last poll."""
        return self._tracker.active_claims if self._tracker else ()

    def claims_of_process(self, pid: int) -> tuple[NodeClaim, ...]:
        """Return the claims in force that cover a process on a GPU, as of the last poll."""
        uses = [use for use in self._uses.uses if pid in use.pids]
        claims = (active.claim for active in self.active_claims if active.is_claim)
        return tuple(
            claim
            for claim in claims
            if any(unclaimed_use.can_account_for(claim, use, self._slurm.jobs) for use in uses)
        )

    def probe(self, host: Host) -> probe_result.ProbeResult:
        """Poll, and create columns for the existing GPUs and for those with a claim."""
        self._just_polled = self._poll(host)
        columns = probe_result.ColumnBuilder()
        entities = {gpu.entity.key[0]: gpu.entity for gpu in self._gpus.gpus.values()}
        entities |= {
            uuid: self._entity(uuid) for uuid in sorted(self._claimed_gpus - entities.keys())
        }
        self._columns = tuple(entities)
        for metric in _METRICS:
            for entity in entities.values():
                columns.add(metric, entity)
        return probe_result.ProbeResult(tuple(columns.columns), (), self._findings)

    def read(self, host: Host, into: row_builder.RowBuilder) -> None:
        """Poll, unless the probe just did, and report the claims and their changes."""
        is_polled, self._just_polled = self._just_polled or self._poll(host), False
        if not is_polled:
            into.is_intermediate = True
            return
        # The rest is sent with the next frames.
        into.events = self._events[:MAX_EVENTS_PER_FRAME]
        del self._events[:MAX_EVENTS_PER_FRAME]
        present_gpus = {gpu.entity.key[0] for gpu in self._gpus.gpus.values()} | self._claimed_gpus
        into.needs_probe = present_gpus != set(self._columns)
        count = len(self._columns)
        for place, gpu in enumerate(self._columns):
            claims = list(claim_tracker.claims_on_gpu(self.active_claims, gpu))
            into.put(place, self._problem or len(claims))
            into.put(count + place, self._problem or claim_placement.count_claimed_slots(claims))
            absence = self._uses.absences.get(gpu) or (
                reading.Absent.GONE if gpu not in self._present_gpus else None
            )
            processes = sum(len(use.pids) for use in self._free if use.device.gpu == gpu)
            into.put(2 * count + place, absence or self._problem or processes)

    @property
    def _present_gpus(self) -> set[str]:
        return {gpu.uuid for gpu in self.devices.present}

    @property
    def _claimed_gpus(self) -> set[str]:
        return {active.claim.gpu for active in self.active_claims if active.claim.gpu}

    def _entity(self, uuid: str) -> frame.Entity:
        gpu = self._before.get(uuid)
        address = gpu.pci_address if gpu else uuid.partition("pci:")[2]
        return frame.Entity(GPU, (uuid,), {"pci_address": address} if address else {})

    def _poll(self, host: Host) -> bool:
        """Poll all claim providers. Return False while the set of GPUs is still unknown."""
        now = host.clock.now()
        self._first_ns = now.boot_ns if self._first_ns is None else self._first_ns
        # Without GPUs, all claims in force would be about unknown devices.
        if not self._gpus.is_polled and now.boot_ns - self._first_ns < WAIT_FOR_GPUS_NS:
            return False
        tracker = self._tracker or self._open_tracker(host)
        self.clock.observe(now)
        self.devices = devices.NodeDevices.from_inventory(
            self._gpus.gpus.values(), self._before.values()
        )
        names_changed = self.devices.all != self._before
        self._before = self.devices.all
        reports = claim_placement.place_claims(
            list(self._reports(host, tracker)), tracker.in_force, self.devices
        )
        # Before the unclaimed use, which is compared with the claims in force.
        tracker.process_reports(reports, host.clock.now())
        unreadable_providers = {
            report.adapter for report in reports if report.report.absence is not None
        }
        claims = [active.claim for active in tracker.active_claims if active.is_claim]
        context = unclaimed_use.ClaimContext(
            claims,
            unreadable_providers,
            self._slurm.jobs,
            self._system,
            tracker.in_force(UNCLAIMED),
            host.boot_id,
        )
        self._free, unclaimed = self._unclaimed.update(self._uses, context)
        if (report := self._process_report(UNCLAIMED, unclaimed)) is not None:
            tracker.process_reports([report], host.clock.now())
        self._problem = next(
            (report.report.absence for report in reports if report.report.absence), None
        )
        self._findings = tuple(f for report in reports for f in report.report.findings)
        self._findings += (*claim_placement.placement_findings(reports), *self._report_processes())
        if self._state_file:
            now = host.clock.now()
            self._state_file.save(
                tracker, self._before, self.clock, now, names_changed=names_changed
            )
            self._findings += self._state_file.findings
        self._events += tracker.take_events()
        return True

    def _open_tracker(self, host: Host) -> claim_tracker.ClaimTracker:
        self._node = self._node or fact_readers.read_text(host, "/proc/sys/kernel/hostname")
        saved = self._state_file.load() if self._state_file else None
        if saved:
            self._before = {gpu.uuid: gpu for gpu in saved.gpus}
        self.clock = ClockHistory(host.boot_id, saved.clock if saved else None)
        tracker = self._tracker = claim_tracker.ClaimTracker(
            self._node, host.boot_id, saved.book if saved else None
        )
        return tracker

    def _reports(
        self, host: Host, tracker: claim_tracker.ClaimTracker
    ) -> Iterator[claim_tracker.ProviderReport]:
        """Reports of the providers; Kubernetes first, as the owners of processes are named by its pods."""
        yield self._poll_provider(host, tracker, self._kubernetes.name, self._kubernetes.poll)
        self._uses = self._processes.poll(host, self.devices, self._kubernetes.pods)
        for adapter in self._adapters:
            yield self._poll_provider(host, tracker, adapter.name, adapter.poll)
        trusted = tuple(
            unclaimed_use.claim_of_use(use, claim_terms.ClaimAuthority.NODE_PLUGIN, self._system)
            for use in self._uses.uses
            if use.owner.source in self._trusted and not use.owner.is_shared_or_hidden
        )
        if (report := self._process_report(PROCESS, trusted)) is not None:
            yield report

    def _poll_provider(
        self,
        host: Host,
        tracker: claim_tracker.ClaimTracker,
        name: str,
        poll: Callable[..., ClaimReport],
    ) -> claim_tracker.ProviderReport:
        began = host.clock.now()
        claims_reported = poll(host, self.devices, tracker.in_force(name))
        return claim_tracker.ProviderReport(name, claims_reported, began, host.clock.now())

    def _process_report(
        self, name: str, claims: tuple[NodeClaim, ...]
    ) -> claim_tracker.ProviderReport | None:
        """Report of the processes, as of their lists; GPUs without a list are excluded."""
        oldest, newest = self._uses.oldest, self._uses.newest
        if oldest is None or newest is None:
            return None
        # A lost GPU has no list: the use on it has not ended for that reason.
        without = frozenset(self._before.keys() - self._present_gpus) | self._uses.absences.keys()
        return claim_tracker.ProviderReport(
            name, ClaimReport(claims, (), None, without), oldest, newest
        )

    def _report_processes(self) -> Iterator[probe_result.ProbeFinding]:
        if not self._present_gpus:
            return
        subject = "claims and processes"
        if self._uses.oldest is None:
            reason = next(iter(self._uses.absences.values()), reading.Absent.ERROR)
            yield probe_result.ProbeFinding.absent(
                subject, f"processes cannot be read: {reason.label}"
            )
            return
        hidden = sum(
            use.owner.source == "process" and use.owner.is_shared_or_hidden
            for use in self._uses.uses
        )
        count, free = (sum(len(u.pids) for u in uses) for uses in (self._uses.uses, self._free))
        detail = f"{count} on GPUs, {free} of them without a claim"
        remedy = "run the agent in the PID and cgroup namespaces of the host" if hidden else ""
        yield probe_result.ProbeFinding.supported(subject, detail, remedy)
