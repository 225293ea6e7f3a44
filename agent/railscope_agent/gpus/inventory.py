"""Inventory of the node's GPUs and MIG devices, with their identities.

One inventory serves all sources of the driver thread. A caller that detects a change increments the
generation, and all sources then probe again: what a GPU supports depends on its driver and its
mode.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from railscope.catalog import entities, gpu_health as h
from railscope.frame import Entity, Event
from railscope_agent.gpus.mig_slots import MAX_DEVICES, MigSlots, ReportedMigDevice, find_mig_slots
from railscope_agent.host import MAX_GPUS, Host, Json, NvmlError
from railscope_agent.sampling import fact_readers, probe_result
from railscope_agent.topology.network import NetworkScanner
from railscope_agent.topology.network_device import NodeNetwork
from railscope_agent.topology.pci import (
    DEVICES,
    NO_NUMA_NODE,
    gpu_addresses,
    pci_address,
    read_gpu_uuid,
)

_LIBRARY_NOT_FOUND = 12
_UNKNOWN_ERROR = 999
_RESET_REQUIRED = 16
_LOST = {15, _RESET_REQUIRED}
_NO_MIG = {3, 13}
"""Codes of a GPU or driver without MIG: not supported, and function not found."""
MIG_ENABLED = "1"
NVIDIA_DRIVER = "nvidia"
"""Name of NVIDIA's driver on the PCI bus."""
_ARCHITECTURES = {
    2: "Kepler", 3: "Maxwell", 4: "Pascal", 5: "Volta", 6: "Turing", 7: "Ampere", 8: "Ada",
    9: "Hopper", 10: "Blackwell", 13: "Rubin",
}  # fmt: skip
_VIRTUALIZATION = dict(
    zip("01234", ("none", "passthrough", "vgpu_guest", "vgpu_host", "vsga"), strict=True)
)
_MAX_EVENTS = 100
# Nearly the shortest usual period: all sources of GPUs that find the driver failing call it once per period.
FAILURE_VALID_NS = 900_000_000


@dataclass(frozen=True, slots=True)
class MigDevice:
    """A compute instance of a GPU instance; NVML calls take its UUID as the device."""

    uuid: str
    entity: Entity
    slots: MigSlots | None = None
    """Its slots of the GPU; None if its profile is not recognized."""
    start: int | None = None
    """Its first memory slice; None if the driver does not report it."""


@dataclass(frozen=True, slots=True)
class GpuDevice:
    """A GPU; NVML calls take its NVML index as the device."""

    index: int
    entity: Entity
    pci_address: str
    mig_mode: str = ""
    mig_devices: tuple[MigDevice, ...] = ()
    memory_bytes: int = 0
    """0 if the driver does not report it."""


@dataclass
class GpuInventory:
    """The GPUs as of the last scan."""

    wiring: NetworkScanner = field(default_factory=NetworkScanner)
    gpus: dict[int, GpuDevice] = field(default_factory=dict)
    generation: int = 0
    """Incremented with every change of the inventory."""
    findings: tuple[probe_result.ProbeFinding, ...] = ()
    is_polled: bool = False
    """True once a scan has completed; before that, an empty inventory is not evidence of absence."""
    is_listed: bool = False
    """True if NVML listed its GPUs at the last scan: only then a GPU that it does not list is missing."""
    to_reset: frozenset[str] = frozenset()
    """PCI addresses of GPUs that NVML could not identify at the last scan because they must be reset."""
    _indices_to_reset: set[int] = field(default_factory=set)
    _events: list[Event] = field(default_factory=list)
    _failure: NvmlError | None = None
    _failed_ns: int = 0

    def scan(self, host: Host) -> dict[int, GpuDevice]:
        """Count the GPUs and identify each one. Raises NvmlError if the driver fails.

        A GPU that NVML counts is in the inventory, whatever NVML answers about it. After a failed call the
        driver is not called again by any source for `FAILURE_VALID_NS`; the same error is raised instead.
        """
        now_ns = host.clock.now().boot_ns
        if self._failure and 0 <= now_ns - self._failed_ns < FAILURE_VALID_NS:
            raise self._failure
        self._failure, self.is_listed = None, False
        try:
            count = _count(host)
        except NvmlError as error:
            # A library that was there and is missing now is an update of the driver, not a node without GPUs.
            if self.gpus or error.code != _LIBRARY_NOT_FOUND:
                self.generation += 1  # after recovery the driver may support other functions
                self._failure, self._failed_ns = error, now_ns
                raise
            count = None
        except FileNotFoundError:
            count = None
        if count is None:
            self.to_reset = frozenset()
            self._replace(host, {}, _no_library_finding(host))
            return self.gpus
        driver = _DriverVersions.read(host)
        network = self.wiring.scan(host)
        self._indices_to_reset.clear()
        addresses = self._find_addresses(host, count)
        identified = {
            index: self._identify(host, index, address, driver, network)
            for index, address in addresses.items()
        }
        self.to_reset = frozenset(
            address for index, address in addresses.items() if index in self._indices_to_reset
        )
        # Two indices with one UUID, as a failing driver may answer, are one GPU: its columns would exist
        # twice.
        named = {gpu.entity.key: index for index, gpu in identified.items()}
        gpus = {index: identified[index] for index in sorted(named.values())}
        self.is_listed = True
        detail = (
            f"{len(gpus)} of {probe_result.format_count(count, 'GPU')}, driver {driver.version}"
        )
        finding = probe_result.ProbeFinding.supported("GPUs", detail)
        if len(gpus) != count:
            remedy = "see the other GPUs below, and the kernel log"
            finding = probe_result.ProbeFinding(
                "GPUs", probe_result.ProbeVerdict.BROKEN, detail, remedy
            )
        self._replace(host, gpus, finding)
        return gpus

    def record_change(self) -> None:
        """Record that something differs from the last scan."""
        self.generation += 1

    def take_events(self) -> list[Event]:
        """Changes since the last call."""
        events, self._events = self._events, []
        return events

    def _replace(
        self, host: Host, gpus: dict[int, GpuDevice], finding: probe_result.ProbeFinding
    ) -> None:
        if gpus != self.gpus:
            self.generation += 1
            # At the start all GPUs are new, which is no change.
            if self.is_polled:
                self._record_changes(host, gpus)
        self.gpus, self.findings, self.is_polled = gpus, (finding,), True

    def _record_changes(self, host: Host, gpus: dict[int, GpuDevice]) -> None:
        before = {gpu.entity.key[0]: gpu for gpu in self.gpus.values()}
        after = {gpu.entity.key[0]: gpu for gpu in gpus.values()}
        for name in sorted(before.keys() | after.keys()):
            old, new = before.get(name), after.get(name)
            if old is None or new is None:
                device = old or new
                assert device is not None  # noqa: S101 - the name is of one of them
                self._event(host, device, change="removed" if old else "added")
            elif old.mig_mode != new.mig_mode:
                self._event(host, new, change="mig_mode", before=old.mig_mode, after=new.mig_mode)
            elif old.mig_devices != new.mig_devices:
                self._event(host, new, change="mig_devices", before=_names(old), after=_names(new))
            elif old.entity.facts != new.entity.facts:
                was, now = old.entity.facts, new.entity.facts
                names = sorted(n for n in {*was, *now} if was.get(n) != now.get(n))
                changes = (f"{n}: {was.get(n, '')} -> {now.get(n, '')}" for n in names)
                self._event(host, new, change="facts", after=", ".join(changes))

    def _event(self, host: Host, gpu: GpuDevice, **facts: str) -> None:
        now = host.clock.now()
        about = Entity(entities.GPU_ADDRESS, (gpu.pci_address,))
        facts_present = fact_readers.nonempty_facts(gpu=gpu.entity.key[0], **facts)
        if len(self._events) < _MAX_EVENTS:
            event = Event(h.GPU_CHANGE_EVENT, about, now.wall_ns, now.boot_ns, facts_present)
            self._events.append(event)

    def _find_addresses(self, host: Host, count: int) -> dict[int, str]:
        """Return the PCI address of each GPU that NVML counts, by its index.

        NVML numbers the GPUs of its driver in the order of the bus (nvml.h, nvmlDeviceGetHandleByIndex). Those
        that do not report their address are therefore the GPUs of the driver that no other index has.
        """
        found: dict[int, str] = {}
        for index in range(count):
            # A GPU that does not answer is identified below, by the bus.
            with self._identifying(index):
                answer = host.call("nvml", "nvmlDeviceGetPciInfo", index)
                found[index] = pci_address(answer["busId"])
        silent = [index for index in range(count) if index not in found]
        if not silent:
            return found
        owned = [address for address in owned_gpus(host) if address not in found.values()]
        if len(owned) == len(silent):
            return found | dict(zip(silent, owned, strict=True))
        # The bus may not be visible; what it shows of other drivers is no GPU of this one.
        taken = {*found.values(), *gpu_addresses(host)} - set(owned)
        before = {index: self.gpus[index].pci_address for index in silent if index in self.gpus}
        return found | {i: address for i, address in before.items() if address not in taken}

    @contextmanager
    def _identifying(self, index: int) -> Iterator[None]:
        """Ignore a failure of NVML, and note a GPU that must be reset."""
        try:
            yield
        except NvmlError as error:
            if error.code == _RESET_REQUIRED:
                self._indices_to_reset.add(index)

    def _identify(
        self, host: Host, index: int, address: str, driver: _DriverVersions, network: NodeNetwork
    ) -> GpuDevice:
        """Identify a GPU by NVML, else by the last scan, else by the kernel's driver."""
        # By address and not by index: NVML numbers the others differently when a GPU is lost.
        before = next((gpu for gpu in self.gpus.values() if gpu.pci_address == address), None)
        name = ""
        with self._identifying(index), suppress(OSError):
            name = fact_readers.without_mark(host.call("nvml", "nvmlDeviceGetUUID", index))
        if name or not before:
            # The kernel's driver reports the UUID in /proc also for a GPU that NVML cannot open.
            name = name or read_gpu_uuid(host, address) or address
            with self._identifying(index):
                gpu = _describe(host, index, name, driver, network, address)
                return _add_mig_devices(host, gpu, before)
        facts = {"index": str(index), "pci_address": address}
        if before:
            # A lost GPU keeps the facts that identify it: they are needed to replace it.
            entity = replace(before.entity, facts={**before.entity.facts, **facts})
            return replace(before, index=index, entity=entity)
        return GpuDevice(index, Entity(entities.GPU, (name,), facts), address)


def _count(host: Host) -> int:
    """Return the number of GPUs. Raises NvmlError, also for a number that no node has: each one is called."""
    count = int(host.call("nvml", "nvmlDeviceGetCount"))
    if not 0 <= count <= MAX_GPUS:
        problem = f"nvmlDeviceGetCount returned {count}: expected 0 to {MAX_GPUS}"
        raise NvmlError(_UNKNOWN_ERROR, problem)
    return count


@dataclass(frozen=True, slots=True)
class _DriverVersions:
    version: str
    cuda: str

    @classmethod
    def read(cls, host: Host) -> _DriverVersions:
        number = _call_or_absence(host, "nvmlSystemGetCudaDriverVersion")
        cuda = f"{number // 1000}.{number % 1000 // 10}" if isinstance(number, int) else ""
        return cls(_format_answer(host, "nvmlSystemGetDriverVersion"), cuda)


def owned_gpus(host: Host) -> list[str]:
    """Return the PCI addresses of the GPUs that NVIDIA's driver owns, in bus order."""
    return [
        address
        for address in gpu_addresses(host)
        if fact_readers.read_link_name(host, f"{DEVICES}/{address}/driver") == NVIDIA_DRIVER
    ]


def _describe(  # noqa: PLR0913, PLR0917 - what identifies a GPU
    host: Host, index: int, name: str, driver: _DriverVersions, network: NodeNetwork, bus: str
) -> GpuDevice:
    """Return a GPU with its facts, without its MIG devices. Raises NvmlError if none can be read at present."""
    entity = Entity(entities.GPU, (name,), _facts(host, index, driver, network, bus))
    memory = _call_or_absence(host, "nvmlDeviceGetMemoryInfo", index)
    total = int(memory.get("total", 0)) if isinstance(memory, dict) else 0
    return GpuDevice(index, entity, bus, memory_bytes=total)


def _add_mig_devices(host: Host, gpu: GpuDevice, before: GpuDevice | None) -> GpuDevice:
    """Return a GPU with its MIG mode and devices. Without a valid mode it keeps the mode and devices from before."""
    try:
        mode = read_mig_mode(host, gpu.index)
    except OSError:
        return gpu
    except NvmlError as error:
        if error.code in _LOST:
            raise
        if error.code in _NO_MIG or not before or before.entity.key != gpu.entity.key:
            return gpu
        return replace(gpu, mig_mode=before.mig_mode, mig_devices=before.mig_devices)
    devices = list_mig_devices(host, gpu) if mode == MIG_ENABLED else ()
    return replace(gpu, mig_mode=mode, mig_devices=devices)


def read_mig_mode(host: Host, index: int) -> str:
    """Return the MIG mode of a GPU, 0 or 1. Raises NvmlError, also for a number that is no mode (nvml.h)."""
    mode = host.call("nvml", "nvmlDeviceGetMigMode", index)[0]
    if mode not in {0, 1}:
        problem = f"nvmlDeviceGetMigMode returned {mode}: expected 0 or 1"
        raise NvmlError(_UNKNOWN_ERROR, problem)
    return str(int(mode))


def list_mig_devices(host: Host, gpu: GpuDevice) -> tuple[MigDevice, ...]:
    """MIG devices of a partitioned GPU. Raises NvmlError if the driver cannot list them."""
    listed = host.call("nvml", "nvmlDeviceGetMigDevices", gpu.index)
    instances = [
        ReportedMigDevice(
            device["uuid"],
            _profile(_format_answer(host, "nvmlDeviceGetName", device["uuid"])),
            int(device["gpu"]),
            int(device["compute"]),
            device.get("start"),
            device.get("size"),
            device.get("most", MAX_DEVICES),
            gpu.memory_bytes,
        )
        for device in listed
    ]
    try:
        slots_by_uuid = find_mig_slots(instances)
    except ValueError:  # positions outside the GPU
        slots_by_uuid = {}
    devices = []
    for device, instance in zip(listed, instances, strict=True):
        slots = slots_by_uuid.get(instance.uuid)
        facts = fact_readers.nonempty_facts(
            profile=instance.profile,
            gpu_instance=str(device["gpu"]),
            compute_instance=str(device["compute"]),
            mig_index=str(device["index"]),
            compute_slots=str(slots.compute) if slots else "",
            memory_slots=str(slots.memory) if slots else "",
        )
        entity = Entity(entities.MIG, (*gpu.entity.key, instance.uuid), facts)
        devices.append(MigDevice(instance.uuid, entity, slots, instance.start))
    return tuple(devices)


def _facts(
    host: Host, index: int, driver: _DriverVersions, network: NodeNetwork, bus: str
) -> dict[str, str]:
    architecture = _format_answer(host, "nvmlDeviceGetArchitecture", index)
    capability = _call_or_absence(host, "nvmlDeviceGetCudaComputeCapability", index)
    virtual = _format_answer(host, "nvmlDeviceGetVirtualizationMode", index)
    numa_node = fact_readers.read_text(host, f"/sys/bus/pci/devices/{bus}/numa_node")
    return fact_readers.nonempty_facts(
        index=str(index),
        model=_format_answer(host, "nvmlDeviceGetName", index),
        pci_address=bus,
        serial=_format_answer(host, "nvmlDeviceGetSerial", index),
        minor=_format_answer(host, "nvmlDeviceGetMinorNumber", index),
        architecture=_ARCHITECTURES.get(int(architecture or 0), architecture),
        compute_capability=".".join(map(str, capability or ())),
        vbios=_format_answer(host, "nvmlDeviceGetVbiosVersion", index),
        inforom=_format_answer(host, "nvmlDeviceGetInforomImageVersion", index),
        gsp_firmware=_format_answer(host, "nvmlDeviceGetGspFirmwareVersion", index),
        part_number=_format_answer(host, "nvmlDeviceGetBoardPartNumber", index),
        driver=driver.version,
        cuda=driver.cuda,
        virtualization=_VIRTUALIZATION.get(virtual, virtual),
        numa_node=numa_node.removeprefix(NO_NUMA_NODE),
        rail=_rail(network, bus, index),
        **_rack_position_facts(host, index),
        **_fabric_facts(host, index),
    )


def _rack_position_facts(host: Host, index: int) -> dict[str, str]:
    """Position of the GPU in a rack system; one-byte members arrive as one character.

    A standalone node has no chassis: its slot and tray of 0 carry no information, and nvidia-smi
    omits them too.
    """
    answer = _call_or_absence(host, "nvmlDeviceGetPlatformInfo", index)
    if not answer:
        return {"module": _format_answer(host, "nvmlDeviceGetModuleId", index)}
    if not answer.get("chassisSerialNumber"):
        return {"module": _parse_byte(answer.get("moduleId", ""))}
    return {
        "chassis": answer.get("chassisSerialNumber", ""),
        "slot": _parse_byte(answer.get("slotNumber", answer.get("chassisPhysicalSlotNumber", ""))),
        "tray": _parse_byte(answer.get("trayIndex", answer.get("computeSlotIndex", ""))),
        "module": _parse_byte(answer.get("moduleId", "")),
    }


def _parse_byte(answer: str | int) -> str:
    return str(answer) if isinstance(answer, int) else str(ord(answer)) if answer else ""


def _fabric_facts(host: Host, index: int) -> dict[str, str]:
    """NVLink domain: GPUs with the same cluster and clique reach each other."""
    answer = _call_or_absence(host, "nvmlDeviceGetGpuFabricInfoV", index) or _call_or_absence(
        host, "nvmlDeviceGetGpuFabricInfo", index
    )
    if not answer or not any(answer.get("clusterUuid", ())):
        return {}
    cluster = str(uuid.UUID(bytes=bytes(answer["clusterUuid"])))
    return {"fabric_cluster": cluster, "fabric_clique": str(answer.get("cliqueId", ""))}


def _profile(name: str) -> str:
    """Profile at the end of a MIG device's name: NVIDIA H100 80GB HBM3 MIG 1c.3g.40gb."""
    _, marked, profile = name.rpartition("MIG ")
    return profile if marked else ""


def _names(gpu: GpuDevice) -> str:
    return " ".join(device.uuid for device in gpu.mig_devices)


def _rail(network: NodeNetwork, bus: str, index: int) -> str:
    """Rail of the GPU's NIC; the NVML index if the GPU is not visible on the PCI bus."""
    if all(gpu.address != bus for gpu in network.gpus):
        return str(index)
    return str(network.gpu_rails.get(bus, ""))


def _call_or_absence(host: Host, function: str, *arguments: int | str) -> Json:
    """Result of an NVML call, or None if there is none: the fact is then omitted.

    Raises NvmlError if the GPU has been lost meanwhile: its facts cannot be refreshed then.
    """
    try:
        return fact_readers.without_mark(host.call("nvml", function, *arguments))
    except NvmlError as error:
        if error.code in _LOST:
            raise
        return None
    except OSError:
        return None


def _format_answer(host: Host, function: str, *arguments: int | str) -> str:
    answer = _call_or_absence(host, function, *arguments)
    return "" if answer is None else str(answer)


def _no_library_finding(host: Host) -> probe_result.ProbeFinding:
    if present := len(gpu_addresses(host)):
        detail = f"{present} NVIDIA GPUs on the PCI bus, but libnvidia-ml.so.1 is not installed"
        remedy = "install the NVIDIA driver on this node"
        return probe_result.ProbeFinding("GPUs", probe_result.ProbeVerdict.BROKEN, detail, remedy)
    detail = "NVIDIA driver library libnvidia-ml.so.1 is not installed"
    return probe_result.ProbeFinding.absent("GPUs", detail)
