"""Devices of the cluster as the nodes report them: NICs, GPUs, mounts, and the switches beside them.

The position of a device is its column in the sums of its kind (`slot_sums`). Devices never move; one that has
left keeps its position, without readings.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from railscope.catalog import KINDS
from railscope.wire import WireEntity
from railscope_collector.diagnosis.quantities import DeviceKind
from railscope_collector.diagnosis.slot_sums import SlotSums
from railscope_collector.fleet.fleet import SWITCH_PREFIX

NO_POSITION = -1
MAX_SWITCHES = 256
MAX_PARTS_PER_SWITCH = 16_384
"""Ports and queues of a switch; further ones are ignored."""
MAX_DEVICES_PER_NODE = 256
"""Devices of one kind of a node; further ones are ignored, and reported."""

MAX_SERVERS_PER_NODE = 64
"""File servers of a node whose further mounts are one device each: containers may mount new names for as long as they come and go."""

_NAMING_KINDS = frozenset({"nic", "nic_neighbour", "rdma_port", "gpu", "pcie"})
"""Kinds of entities that state devices and their names."""
MAX_FACT = 128
"""Characters of a fact that are kept; of a setting, four times as many."""
_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}(\.[0-7])?")
_IGNORED_ROLES = frozenset({"management", "bridge", "virtual_function"})


@dataclass(slots=True)
class ClusterNic:
    """A NIC with its names, its place in the fabric, and its PCIe socket."""

    node: str
    interface: str
    device: str = ""
    pci_address: str = ""
    rail: str = ""
    role: str = ""
    switch: str = ""
    switch_port: str = ""
    is_placed: bool = False
    """True if the switch and its port are of a known link, and not as the switch announces itself to the NIC."""
    numa_node: str = ""


@dataclass(slots=True)
class ClusterGpu:
    """A GPU with its names."""

    node: str
    uuid: str
    index: str = ""
    pci_address: str = ""
    model: str = ""
    chassis: str = ""
    rail: str = ""


@dataclass(slots=True)
class ClusterMount:
    """A file system mounted on a node; `server` is the same for all of its clients."""

    node: str
    server: str
    key: tuple[str, ...]
    """Kind and key of the entity."""

    @property
    def export(self) -> str:
        """Name of what is mounted."""
        return self.key[1]


class SwitchQueue(NamedTuple):
    """A queue of a switch port, or the whole port."""

    switch: str
    port: str
    queue: str = ""

    @property
    def place(self) -> str:
        """Switch, port and queue in words."""
        return f"{self.switch} {self.port}" + (f" queue {self.queue}" if self.queue else "")


@dataclass(slots=True)
class ClusterSwitch:
    """A switch, and the positions of its ports and of their queues."""

    name: str
    ports: dict[str, int] = field(default_factory=dict)
    queues: dict[tuple[str, str], int] = field(default_factory=dict)
    neighbours: dict[str, str] = field(default_factory=dict)
    """Name of the device that each port received LLDP from."""
    system_name: str = ""
    """Name under which the switch itself announces."""
    last_slot: int = -1
    period: int = 1
    """Slots between its last two samples."""
    has_ignored_devices: bool = False

    @property
    def names(self) -> int:
        """Number of known names."""
        return len(self.ports) + len(self.queues)

    def position(self, kind: DeviceKind, port: str = "", queue: str = "") -> int:
        """Return the position of a port, or of one of its queues, or NO_POSITION."""
        if kind is DeviceKind.PORT:
            return self.ports.get(port, NO_POSITION)
        return self.queues.get((port, queue), NO_POSITION)

    def is_fresh(self, slot: int) -> bool:
        """True if its last sample is not older than three periods and 30 seconds: else it is unknown."""
        return self.last_slot >= 0 and slot - self.last_slot <= 3 * self.period + 3


@dataclass(slots=True)
class ClusterNode:
    """A node, and the positions of its devices by their names."""

    name: str
    position: int
    nics: dict[str, int] = field(default_factory=dict)
    gpus: dict[str, int] = field(default_factory=dict)
    mounts: dict[tuple[str, ...], int] = field(default_factory=dict)
    by_rdma_device: dict[str, int] = field(default_factory=dict)
    nic_by_address: dict[str, int] = field(default_factory=dict)
    gpu_by_address: dict[str, int] = field(default_factory=dict)
    has_ignored_devices: bool = False

    @property
    def names(self) -> int:
        """Number of known names, which grows as schemas state more devices."""
        tables = (
            self.nics,
            self.gpus,
            self.by_rdma_device,
            self.nic_by_address,
            self.gpu_by_address,
        )
        return sum(map(len, tables))


class ClusterDevices:
    """All devices by kind and position, and their sums."""

    def __init__(self, slots: int, open_slots: int) -> None:
        self.sums = {kind: SlotSums(kind, slots, open_slots) for kind in DeviceKind}
        self.nodes: dict[str, ClusterNode] = {}
        self.node_names: list[str] = []
        self.nics: list[ClusterNic] = []
        self.gpus: list[ClusterGpu] = []
        self.mounts: list[ClusterMount] = []
        self.switches: dict[str, ClusterSwitch] = {}
        self.ports: list[SwitchQueue] = []
        self.queues: list[SwitchQueue] = []
        self.version = 0
        """Changes with every device and every fact that is new."""

    def restore(
        self,
        nodes: Iterable[str],
        nics: Iterable[ClusterNic],
        gpus: Iterable[ClusterGpu],
        mounts: Iterable[ClusterMount],
    ) -> None:
        """Add the devices of before a restart, with their positions, and without readings."""
        for name in nodes:
            self.node(name)
        for nic in nics:
            node = self.node(nic.node)
            position = node.nics[nic.interface] = self.sums[DeviceKind.NIC].add_device()
            self.nics.append(nic)
            if nic.device:
                node.by_rdma_device[nic.device] = position
            if nic.pci_address:
                node.nic_by_address[nic.pci_address] = position
        for gpu in gpus:
            node = self.node(gpu.node)
            position = node.gpus[gpu.uuid] = self.sums[DeviceKind.GPU].add_device()
            self.gpus.append(gpu)
            if gpu.pci_address:
                node.gpu_by_address[gpu.pci_address] = position
        for mount in mounts:
            self.node(mount.node).mounts[mount.key] = self.sums[DeviceKind.MOUNT].add_device()
            self.mounts.append(mount)

    def node(self, name: str) -> ClusterNode:
        """Return a node, added if it is new."""
        found = self.nodes.get(name)
        if found is None:
            found = ClusterNode(name, self.sums[DeviceKind.NODE].add_device())
            self.nodes[name] = found
            self.node_names.append(name)
            self.version += 1
        return found

    def switch(self, name: str) -> ClusterSwitch | None:
        """Return a switch, added if it is new; None if there are too many."""
        if name not in self.switches and len(self.switches) < MAX_SWITCHES:
            self.switches[name] = ClusterSwitch(name)
        return self.switches.get(name)

    def sender(self, name: str) -> ClusterNode | ClusterSwitch:
        """Return a node, added if it is new, or a switch that is known."""
        if name.startswith(SWITCH_PREFIX):
            return self.switches[name.removeprefix(SWITCH_PREFIX)]
        return self.node(name)

    def _add_ports(self, switch: ClusterSwitch, entities: Iterable[WireEntity]) -> None:
        """Add the ports, queues and neighbours that a schema of a switch states."""
        found = [each for each in entities if each.kind == "switch_neighbour"]
        if found:
            names = {each.key[-1]: each.facts.get("system_name", "") for each in found}
            switch.neighbours = {port: name for port, name in names.items() if name}
        for entity in entities:
            if entity.kind == "switch" and entity.facts:
                switch.system_name = entity.facts.get("system_name", "")
            _, port, number = (*entity.key, "", "", "")[:3]
            if not port:
                continue
            if switch.names >= MAX_PARTS_PER_SWITCH:
                switch.has_ignored_devices = True
                continue
            if port not in switch.ports:
                switch.ports[port] = self.sums[DeviceKind.PORT].add_device()
                self.ports.append(SwitchQueue(switch.name, port))
            if number and (port, number) not in switch.queues:
                switch.queues[port, number] = self.sums[DeviceKind.QUEUE].add_device()
                self.queues.append(SwitchQueue(switch.name, port, number))

    def add_entities(
        self, node: ClusterNode | ClusterSwitch, entities: Iterable[WireEntity]
    ) -> None:
        """Add the devices and the facts that a schema of a node or a switch states."""
        if isinstance(node, ClusterSwitch):
            self._add_ports(node, list(entities))
            return
        found = [_with_short_facts(each) for each in entities if each.kind in _NAMING_KINDS]
        for entity in sorted(found, key=lambda each: each.kind != "nic"):  # others refer to NICs
            if entity.kind == "nic" and entity.facts.get("role", "") not in _IGNORED_ROLES:
                self._add_nic(node, entity)
            elif entity.kind == "nic_neighbour" and entity.key[0] in node.nics:
                nic = self.nics[node.nics[entity.key[0]]]
                nic.switch = entity.facts.get("switch", "") or entity.facts.get("chassis", "")
                nic.switch_port = entity.facts.get("switch_port", "")
                nic.is_placed = False
            elif entity.kind == "rdma_port" and (name := _nic_name(node, entity)):
                facts = {**entity.facts, "rdma_device": entity.key[0]}
                self._add_nic(node, WireEntity("nic", (name,), facts))
            elif entity.kind == "gpu":
                self._add_gpu(node, entity)
            elif entity.kind == "pcie":
                position = node.nic_by_address.get(entity.key[0], NO_POSITION)
                if position != NO_POSITION:
                    self.nics[position].numa_node = entity.facts.get("numa_node", "")
        self.version += 1

    def place_nics(
        self,
        ports: Mapping[tuple[str, str], tuple[str, str]],
        announced: Container[tuple[str, str]] = (),
    ) -> None:
        """Place NICs to which no switch announces itself at the port of their link, by node and interface.

        A switch has the name under which it announces itself to others. A port that it announces to a NIC (`announced`) has
        the name that the switch has for it: SONiC announces the alias.
        """
        ends = [ports.get((nic.node, nic.interface), ("", "")) for nic in self.nics]
        names: dict[str, Counter[str]] = defaultdict(Counter)
        for nic, (switch, _) in zip(self.nics, ends, strict=True):
            if nic.switch and not nic.is_placed:
                names[switch][nic.switch] += 1
        switch_names = {switch: found.most_common(1)[0][0] for switch, found in names.items()}
        for nic, (switch, port) in zip(self.nics, ends, strict=True):
            place = switch_names.get(switch, switch) if switch else "", port
            if (nic.is_placed or not nic.switch) and place != (nic.switch, nic.switch_port):
                nic.switch, nic.switch_port = place
                nic.is_placed = bool(switch)
                self.version += 1
            elif (nic.node, nic.interface) in announced and port != nic.switch_port:
                nic.switch_port = port
                self.version += 1

    def _add_nic(self, node: ClusterNode, entity: WireEntity) -> None:
        interface, facts = entity.key[0], entity.facts
        if interface not in node.nics:
            if not facts.get("rdma_device") and facts.get("role", "") not in {"compute", "storage"}:
                return
            if len(node.nics) >= MAX_DEVICES_PER_NODE:
                node.has_ignored_devices = True
                return
            node.nics[interface] = self.sums[DeviceKind.NIC].add_device()
            self.nics.append(ClusterNic(node.name, interface))
        position = node.nics[interface]
        nic = self.nics[position]
        nic.device = facts.get("rdma_device", "") or nic.device
        nic.pci_address = facts.get("pci_address", "") or nic.pci_address
        nic.rail = facts.get("rail", "") or nic.rail
        nic.role = facts.get("role", "") or nic.role
        if nic.device:
            node.by_rdma_device[nic.device] = position
        if nic.pci_address:
            node.nic_by_address[nic.pci_address] = position

    def _add_gpu(self, node: ClusterNode, entity: WireEntity) -> None:
        uuid, facts = entity.key[0], entity.facts
        if uuid not in node.gpus:
            of_events = node.gpu_by_address.get(facts.get("pci_address", ""), NO_POSITION)
            if of_events != NO_POSITION and not self.gpus[of_events].uuid:
                node.gpus[uuid] = of_events
                self.gpus[of_events].uuid = uuid
            elif len(node.gpus) >= MAX_DEVICES_PER_NODE:
                node.has_ignored_devices = True
                return
            else:
                node.gpus[uuid] = self.sums[DeviceKind.GPU].add_device()
                self.gpus.append(ClusterGpu(node.name, uuid))
        gpu = self.gpus[node.gpus[uuid]]
        gpu.index = facts.get("index", "") or gpu.index
        gpu.model = facts.get("model", "") or gpu.model
        gpu.chassis = facts.get("chassis", "") or gpu.chassis
        gpu.rail = facts.get("rail", "") or gpu.rail
        gpu.pci_address = facts.get("pci_address", "") or gpu.pci_address
        if gpu.pci_address:
            node.gpu_by_address[gpu.pci_address] = node.gpus[uuid]

    def add_gpu_of_event(self, node: ClusterNode, pci_address: str) -> None:
        """Add a GPU that only the kernel log names: its driver answers nothing else about it."""
        if not _PCI_ADDRESS.fullmatch(pci_address):
            return
        if pci_address not in node.gpu_by_address:
            if len(node.gpu_by_address) >= MAX_DEVICES_PER_NODE:
                node.has_ignored_devices = True
                return
            node.gpu_by_address[pci_address] = self.sums[DeviceKind.GPU].add_device()
            self.gpus.append(ClusterGpu(node.name, "", pci_address=pci_address))
            self.version += 1

    def position(  # noqa: PLR0911 - one for each kind of device
        self, node: ClusterNode | ClusterSwitch, kind: DeviceKind, entity: WireEntity
    ) -> int:
        """Return the position of the device of this kind that an entity is part of, or NO_POSITION."""
        key = entity.key
        if isinstance(node, ClusterSwitch):
            return node.position(kind, *key[1:3])
        if kind is DeviceKind.NODE:
            return node.position
        if kind is DeviceKind.MOUNT:
            return self._mount_position(node, entity)
        if entity.kind in {"pcie", "gpu_address"}:
            by_address = node.nic_by_address if kind is DeviceKind.NIC else node.gpu_by_address
            return by_address.get(key[0], NO_POSITION)
        if kind is DeviceKind.GPU:
            return node.gpus.get(key[0], NO_POSITION) if key else NO_POSITION
        if entity.kind.startswith("rdma_"):
            return node.by_rdma_device.get(key[0], NO_POSITION)
        return node.nics.get(key[0], NO_POSITION) if key else NO_POSITION

    def _mount_position(self, node: ClusterNode, entity: WireEntity) -> int:
        whole = KINDS[entity.kind].outermost if entity.kind in KINDS else None
        if whole is None or len(entity.key) < len(whole.labels):
            return NO_POSITION
        key = (whole.name, *entity.key[: len(whole.labels)])
        export = key[1]
        is_lustre = whole.name.startswith("lustre")
        server = export if is_lustre or ":/" not in export else export.rpartition(":/")[0]
        if key not in node.mounts and len(node.mounts) >= MAX_DEVICES_PER_NODE:
            key = (whole.name, server)
        if key not in node.mounts:
            if len(node.mounts) >= MAX_DEVICES_PER_NODE + MAX_SERVERS_PER_NODE:
                node.has_ignored_devices = True
                return NO_POSITION
            node.mounts[key] = self.sums[DeviceKind.MOUNT].add_device()
            self.mounts.append(ClusterMount(node.name, server, key))
        return node.mounts[key]


def _nic_name(node: ClusterNode, port: WireEntity) -> str:
    """Return the name of a port's NIC: its interface, or its RDMA device if it never had one, as EFA; empty for none of the fabric."""
    interface, device = port.facts.get("interface", ""), port.key[0]
    is_named = device in node.by_rdma_device and device not in node.nics
    if interface or is_named or port.facts.get("role", "") not in {"compute", "storage"}:
        return interface
    return device


def _with_short_facts(entity: WireEntity) -> WireEntity:
    facts = {name: text[:MAX_FACT] for name, text in entity.facts.items()}
    return WireEntity(entity.kind, entity.key, facts)
