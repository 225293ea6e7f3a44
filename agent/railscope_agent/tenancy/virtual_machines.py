"""Claims by libvirt and QEMU: GPUs passed through to virtual machines.

libvirt has a file in /run/libvirt/qemu for each running machine. Machines that run without
libvirt are found by the command line of their process.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from railscope.claim_terms import ClaimAuthority
from railscope_agent.host import Host
from railscope_agent.host.owners import OWNER
from railscope_agent.owners import OwnerFormatError, cgroup
from railscope_agent.owners.runtimes import LibvirtDomain
from railscope_agent.sampling import fact_readers, probe_result
from railscope_agent.tenancy import claim_provider, claims
from railscope_agent.tenancy.devices import ClaimableDevice, NodeDevices
from railscope_agent.tenancy.passed_through_gpus import PassedThroughGpus

SUBJECT = "claims by virtual machines"
RUNNING, DEFINED = "/run/libvirt/qemu", "/etc/libvirt/qemu"
_MEDIATED = "/sys/bus/mdev/devices"
_XML = ".xml"


@dataclass(slots=True)
class VirtualMachineProvider:
    """Virtual machines of this node with GPUs."""

    name: str = "libvirt"
    _passed: PassedThroughGpus = field(default_factory=PassedThroughGpus)
    _scanned_pids: frozenset[str] = frozenset()
    _machines: dict[str, LibvirtDomain] = field(default_factory=dict)
    """QEMU processes among the scanned ones, by process id."""

    def poll(
        self, host: Host, devices: NodeDevices, in_force: tuple[claims.NodeClaim, ...]
    ) -> claim_provider.ClaimReport:
        """Return the claims of running machines. No machine is read on a node without a GPU for one."""
        self._passed.scan(host)
        passed, virtual = self._passed.whole, self._passed.virtual
        mediated = set(fact_readers.list_names(host, _MEDIATED))
        if not passed and not virtual and not mediated and not in_force:
            self._scanned_pids, self._machines = frozenset(), {}
            return claim_provider.absent_report(SUBJECT, "no GPU is passed through")
        try:
            domains = list(_read_running_domains(host))
            known = {name for domain in domains for name in (domain.name, domain.uuid) if name}
            domains += [
                machine
                for machine in self._scan_processes(host)
                # libvirt's machines are QEMU processes too.
                if known.isdisjoint((machine.name, machine.uuid))
            ]
            node_claims = [
                claim
                for domain in domains
                for claim in self._claims_of_domain(host, domain, devices)
            ]
        except (OSError, msgspec.ValidationError) as error:
            return claim_provider.failed_report(SUBJECT, error, "read the log of libvirtd")
        detail = (
            f"{probe_result.format_count(len(passed), 'GPU')} passed through, "
            f"{probe_result.format_count(len(virtual), 'virtual function')}; "
            f"{probe_result.format_count(len(node_claims), 'device')} held by running virtual machines"
        )
        return claim_provider.ClaimReport(
            tuple(node_claims), (probe_result.ProbeFinding.supported(SUBJECT, detail),)
        )

    def _claims_of_domain(
        self, host: Host, domain: LibvirtDomain, devices: NodeDevices
    ) -> Iterator[claims.NodeClaim]:
        for address in domain.pci_addresses:
            if device := self._passed.find(address, devices):
                yield self._claim(domain, device, exclusive=address in self._passed.whole)
        for identity in domain.mediated:
            try:
                path = host.resolve(f"{_MEDIATED}/{identity}")
            except FileNotFoundError:
                continue  # the mediated device was removed meanwhile
            # The mediated device lies below its GPU in sysfs, for newer drivers below a virtual function of
            # it.
            owner = next((d for p in reversed(path.split("/")) if (d := devices.gpu_at(p))), None)
            if owner:
                yield self._claim(domain, ClaimableDevice(owner.gpu, identity), exclusive=False)

    def _claim(
        self, domain: LibvirtDomain, device: ClaimableDevice, *, exclusive: bool
    ) -> claims.NodeClaim:
        return claims.NodeClaim(
            source=self.name,
            authority=ClaimAuthority.NODE_PLUGIN,
            workload=domain.name or domain.uuid,
            owner=domain.project_id or domain.project,
            gpu="",
            exclusive=exclusive,
        ).claim_on_device(device)

    def _scan_processes(self, host: Host) -> list[LibvirtDomain]:
        """Return machines from the command lines of QEMU processes; only new processes are read.

        Raises OSError if one cannot be read: then all new ones are read again.
        """
        pids = frozenset(
            name for name in fact_readers.list_names(host, "/proc") if name.isdecimal()
        )
        self._machines = {pid: machine for pid, machine in self._machines.items() if pid in pids}
        for pid in pids - self._scanned_pids:
            self._machines.pop(pid, None)
            if not fact_readers.read_text(host, f"/proc/{pid}/comm").startswith(("qemu", "kvm")):
                continue
            try:
                answer = host.call(OWNER, "machine", int(pid))
            except (FileNotFoundError, ProcessLookupError):
                continue  # the process has ended meanwhile
            if answer is not None and not _is_of_pod(host, pid):
                self._machines[pid] = msgspec.convert(answer, LibvirtDomain)
        # After all were read: a failure leaves the new processes unscanned, so that they are read again.
        self._scanned_pids = pids
        return list(self._machines.values())


def _is_of_pod(host: Host, pid: str) -> bool:
    """True if a machine belongs to a pod (KubeVirt), which the kubelet reports."""
    try:
        return isinstance(cgroup.parse_owner(host.read(f"/proc/{pid}/cgroup")), cgroup.PodOwner)
    except (FileNotFoundError, ProcessLookupError, OwnerFormatError):
        return False


def _read_running_domains(host: Host) -> Iterator[LibvirtDomain]:
    """Yield the running machines from libvirt's files. Raises OSError if they cannot be read."""
    try:
        files = host.names(RUNNING)
    except FileNotFoundError:
        return
    for file in files:
        if not file.endswith(_XML):
            continue
        try:
            domain = msgspec.convert(host.call(OWNER, "domain", f"{RUNNING}/{file}"), LibvirtDomain)
        except FileNotFoundError:
            continue  # the machine has ended meanwhile
        if not domain.project_id:  # some versions write the metadata to the definition only
            domain = _read_definition(host, file) or domain
        yield domain


def _read_definition(host: Host, file: str) -> LibvirtDomain | None:
    try:
        domain = msgspec.convert(host.call(OWNER, "domain", f"{DEFINED}/{file}"), LibvirtDomain)
    except FileNotFoundError:
        return None  # a transient machine: libvirt has only its running form
    return domain if domain.project_id and domain.pci_addresses else None
