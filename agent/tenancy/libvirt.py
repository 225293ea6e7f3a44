"""Claims by libvirt and QEMU: GPUs passed through to virtual machines.

libvirt has a file in /run/libvirt/qemu for each running machine. Machines that run without libvirt are
found by the command line of their process.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from agent.host import Host
from agent.host.owners import OWNER
from agent.owners import FormatError
from agent.owners import cgroup as groups
from agent.owners.libvirt import Domain
from agent.sampling.facts import counted, linked, names, text
from agent.sampling.source import Finding, Verdict
from agent.tenancy.devices import Device, Devices
from agent.tenancy.held import Held, Level, Told
from agent.tenancy.passthrough import PassedOn, device_at
from agent.tenancy.trouble import unread
from agent.topology.pci import DEVICES

WHAT = "claims by virtual machines"
RUNNING, DEFINED = "/run/libvirt/qemu", "/etc/libvirt/qemu"
_MEDIATED = "/sys/bus/mdev/devices"
_XML = ".xml"


@dataclass(slots=True)
class Libvirt:
    """Virtual machines of this node with GPUs."""

    name: str = "libvirt"
    _passed: PassedOn = field(default_factory=PassedOn)
    _looked_at: frozenset[str] = frozenset()
    _machines: dict[str, Domain] = field(default_factory=dict)
    """QEMU processes among the scanned ones, by process id."""

    def look(self, host: Host, devices: Devices, in_force: tuple[Held, ...]) -> Told:
        """Return the claims of running machines. No machine is read without a passed-through GPU."""
        passed = self._passed.look(host)
        mediated = set(names(host, _MEDIATED))
        if not passed and not mediated and not in_force:
            self._looked_at, self._machines = frozenset(), {}
            return Told(findings=(Finding(WHAT, Verdict.ABSENT, "no GPU was handed to one"),))
        try:
            domains = list(_running(host))
            known = {domain.name for domain in domains}
            domains += [machine for machine in self._by_process(host) if machine.name not in known]
            held = [one for domain in domains for one in self._held(host, domain, passed, devices)]
        except (OSError, msgspec.ValidationError) as error:
            return unread(WHAT, error, "see what libvirtd logs")
        detail = f"{counted(len(passed), 'GPU')} handed over, {len(held)} held by machines that run"
        return Told(tuple(held), (Finding(WHAT, Verdict.SUPPORTED, detail),))

    def _held(
        self, host: Host, domain: Domain, passed: set[str], devices: Devices
    ) -> Iterator[Held]:
        for address in domain.pci_addresses:
            whole = linked(host, f"{DEVICES}/{address}/physfn")
            if address in passed and not whole:
                yield self._claim(domain, device_at(address, devices), exclusive=True)
            elif whole and devices.at(whole):
                yield self._claim(domain, _share(devices.at(whole), address), exclusive=False)
        for identity in domain.mediated:
            try:
                path = host.resolve(f"{_MEDIATED}/{identity}")
            except FileNotFoundError:
                continue  # the mediated device was removed meanwhile
            owner = next((d for p in reversed(path.split("/")) if (d := devices.at(p))), None)
            if owner:
                yield self._claim(domain, _share(owner, identity), exclusive=False)

    def _claim(self, domain: Domain, device: Device, *, exclusive: bool) -> Held:
        return Held(
            source=self.name, level=Level.NODE_PLUGIN, workload=domain.name or domain.uuid,
            owner=domain.project_id or domain.project, gpu=device.gpu, device=device.id,
            exclusive=exclusive,
        )  # fmt: skip

    def _by_process(self, host: Host) -> list[Domain]:
        """Return machines from the command lines of QEMU processes; only new processes are read.

        Raises OSError if one cannot be read: then all new ones are read again.
        """
        there = frozenset(name for name in names(host, "/proc") if name.isdecimal())
        self._machines = {pid: one for pid, one in self._machines.items() if pid in there}
        for pid in there - self._looked_at:
            self._machines.pop(pid, None)
            if not text(host, f"/proc/{pid}/comm").startswith(("qemu", "kvm")):
                continue
            try:
                told = host.call(OWNER, "machine", int(pid))
            except (FileNotFoundError, ProcessLookupError):
                continue  # the process has ended meanwhile
            if told is not None and not _is_of_pod(host, pid):
                self._machines[pid] = msgspec.convert(told, Domain)
        self._looked_at = there
        return list(self._machines.values())


def _is_of_pod(host: Host, pid: str) -> bool:
    """True if a machine belongs to a pod (KubeVirt), which the kubelet reports."""
    try:
        return isinstance(groups.owner(host.read(f"/proc/{pid}/cgroup")), groups.Pod)
    except (FileNotFoundError, ProcessLookupError, FormatError):
        return False


def _running(host: Host) -> Iterator[Domain]:
    """Yield the running machines from libvirt's files. Raises OSError if they cannot be read."""
    try:
        files = host.names(RUNNING)
    except FileNotFoundError:
        return
    for file in files:
        if not file.endswith(_XML):
            continue
        try:
            told = msgspec.convert(host.call(OWNER, "domain", f"{RUNNING}/{file}"), Domain)
        except FileNotFoundError:
            continue  # the machine has ended meanwhile
        if not told.project_id:  # some versions write the metadata to the definition only
            told = _defined(host, file) or told
        yield told


def _defined(host: Host, file: str) -> Domain | None:
    try:
        found = msgspec.convert(host.call(OWNER, "domain", f"{DEFINED}/{file}"), Domain)
    except FileNotFoundError:
        return None  # a transient machine: libvirt has only its running form
    return found if found.project_id and found.pci_addresses else None


def _share(owner: Device | None, name: str) -> Device:
    assert owner is not None  # noqa: S101 - found just before
    return Device(owner.gpu, name)
