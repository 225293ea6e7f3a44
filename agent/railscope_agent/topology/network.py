"""Network devices of a node with their roles, and the rails of those that carry the traffic of GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from railscope.frame import Entity
from railscope.reading import Absent
from railscope.timestamps import SECOND_NS
from railscope_agent.host import Host
from railscope_agent.sampling.answer_readings import parsed_reading
from railscope_agent.sampling.fact_readers import list_names, read_link_name, read_text
from railscope_agent.sampling.guard import GuardedHost, failures_of
from railscope_agent.topology import pci, rail_rules, rails as rail_map
from railscope_agent.topology.default_routes import default_interfaces
from railscope_agent.topology.network_device import NetworkDevice, NodeNetwork, nic_entity
from railscope_agent.topology.network_interface import (
    InterfaceKind,
    NetworkInterface,
    parse_speed,
    read_driver,
    read_interfaces,
    whole_functions,
    with_rdma_device,
)

BRIDGE_MARK = b"SW_MNG"
"""Mark in the vital product data of a ConnectX function that leads to an NVSwitch."""
_BRIDGE_MODELS = {"15b3:1021"}
"""ConnectX-7: on HGX B200 and B300, the functions that manage the NVSwitches have the same PCI id as NICs."""
_STORAGE_MEGABITS = 40_000
IN_OTHER_NAMESPACE = "no interface in this network namespace"
"""Reason of a NIC with a driver and without any name: an interface is in one namespace (network_namespaces(7))."""
_DRIVERS_WITHOUT_INTERFACE = pci.PASSTHROUGH_DRIVERS | {
    "mlx5_vfio_pci",
    "uio_pci_generic",
    "igb_uio",
}
_GIDS = 16
"""Number of GID table entries that are read: those of the bond itself come first."""
SCAN_VALID_NS = SECOND_NS


@dataclass(frozen=True, slots=True)
class _NetworkScan:
    """Result of a scan, with its time and the device names at that time."""

    host: Host
    device_names: tuple[tuple[str, ...], ...]
    polled_ns: int
    network: NodeNetwork
    failures: Mapping[str, Absent]

    def is_valid(self, host: Host, device_names: tuple[tuple[str, ...], ...], now_ns: int) -> bool:
        """True if it is still valid."""
        fresh = 0 <= now_ns - self.polled_ns < SCAN_VALID_NS
        return fresh and _machine(host) is self.host and device_names == self.device_names


def _machine(host: Host) -> Host:
    """Return the host that the lanes share."""
    return host.machine if isinstance(host, GuardedHost) else host


class _RailDevices(NamedTuple):
    """GPUs and NICs of an assignment by address, in bus order."""

    gpus: Mapping[str, pci.PciPlace]
    nics: Mapping[str, rail_map.RailNic]


class NetworkScanner:
    """Finds network devices and assigns role and rail, from the settings and the PCI tree.

    One instance serves all sources, on any thread.
    """

    def __init__(self, rules: rail_rules.RailRules | None = None) -> None:
        self.rules = rules or rail_rules.RailRules()
        self._bridges: dict[str, bool] = {}
        self._last: _NetworkScan | None = None
        self._devices = _RailDevices({}, {})
        self._on_rails: set[str] = set()
        """Functions that had a rail at the last scan: one that moves to another network namespace keeps it."""

    def scan(self, host: Host) -> NodeNetwork:
        """Return the network devices as they are now.

        Sources probe one after the other: a result of the last second is reused if the devices are the
        same.
        """
        # Listed at each call: a device that came or went within the second makes the result invalid.
        device_names = tuple(
            tuple(list_names(host, directory))
            for directory in (pci.DEVICES, pci.RDMA_CLASS, pci.NET_CLASS)
        )
        now_ns, last = host.clock.now().boot_ns, self._last
        if last and last.is_valid(host, device_names, now_ns):
            # The failures belong to each source that uses the result, and not only to the one whose scan it was.
            failures_of(host).update(last.failures)
            return last.network
        tree, before = self.rules.tree, set(failures_of(host))
        network = self.assign_roles(
            host, pci.read_pci_devices(host, tree.places if tree else None).values()
        )
        failures = {d: reason for d, reason in failures_of(host).items() if d not in before}
        self._last = _NetworkScan(_machine(host), device_names, now_ns, network, failures)
        return network

    def find_nics(self, host: Host) -> tuple[Entity, ...]:
        """Return the interfaces of all functions and sub-functions: representors are no NICs."""
        network = self.scan(host)
        nics = []
        for name, interface in network.interfaces.items():
            if interface.kind is InterfaceKind.REPRESENTOR:
                continue
            try:
                driver = read_driver(host, name)
            except OSError:  # source `nic` reports it
                driver = {}
            nics.append(nic_entity(interface, network.device_of(name), driver))
        return tuple(nics)

    def assign_roles(self, host: Host, devices: Iterable[pci.PciDevice]) -> NodeNetwork:
        """Return the network devices, given the devices of the PCI bus."""
        pci_devices = list(devices)
        gpus = pci.select_gpus(pci_devices)
        interfaces = read_interfaces(host)
        candidates = [
            self._assign_initial_role(host, device)
            for device in _find_network_devices(host, pci_devices, interfaces)
        ]
        default_routes = default_interfaces(host)
        routing_nics = {d.address for d in candidates if default_routes.intersection(d.interfaces)}
        # Ports of one NIC have one place on the bus, and count once.
        units = _group_by_slot(candidates, self._on_rails)
        # In bus order over present and missing ones: positions in the assignment are positions in this table.
        rail_devices = self._with_missing(gpus, _rail_candidates(units, routing_nics))
        addresses = [*rail_devices.gpus]
        assignment = rail_map.assign_rails(
            [*rail_devices.gpus.values()], [*rail_devices.nics.values()]
        )
        on_rails = [
            d for unit in units.values() for d in _assign_unit_rail(unit, assignment, addresses)
        ]
        # Those with a rail last: they replace the same devices without one.
        by_address = {d.address: d for d in (*candidates, *on_rails)}
        named, problems = self._apply_configured_rails(by_address.values())
        self._on_rails = {device.address for device in named if device.rail is not None}
        are_rails = any(device.rail is not None for device in named)
        network_devices = [
            _assign_remaining_role(host, device, routing_nics, are_rails=are_rails)
            if gpus
            else replace(device, reason=device.reason or "the node has no GPU")
            for device in named
        ]
        subfunctions = _find_subfunctions(host, interfaces)
        network_devices.sort(key=lambda device: pci.bus_order(device.address))
        number_by_gpu = {address: number for number, address in enumerate(addresses)}
        nics = {gpu.address: assignment.nics[number_by_gpu[gpu.address]] for gpu in gpus}
        rails = {gpu.address: assignment.rails[number_by_gpu[gpu.address]] for gpu in gpus}
        # The number of a rail is then that of the setting, not the position of a GPU.
        if self.rules.rails or self.rules.rail_pattern:
            rails = _rails_by_nic(nics, rails, network_devices)
        unused = self.rules.find_unused(name for device in network_devices for name in device.names)
        rdma_devices = {
            name: device.rdma[0]
            for device in (*network_devices, *subfunctions)
            for name in device.interfaces
            if device.rdma
        }
        interfaces |= {
            name: with_rdma_device(host, interfaces[name], device)
            for name, device in rdma_devices.items()
        }
        return NodeNetwork(
            tuple(network_devices),
            tuple(gpus),
            rails,
            nics,
            tuple(problems),
            unused,
            interfaces,
            subfunctions,
        )

    def _with_missing(
        self, gpus: Iterable[pci.PciDevice], candidates: Iterable[rail_map.RailNic]
    ) -> _RailDevices:
        """Return GPUs and NICs with those that have vanished: a missing one moves no rail of another.

        A device at a new address is other hardware: then only those that are present count.
        """
        found = _RailDevices(
            {gpu.address: gpu.place for gpu in gpus},
            {nic.place.address: nic for nic in candidates},
        )
        last = self._devices
        # No new address: what is not found now has vanished from the bus, or is in another namespace.
        if found.gpus.keys() <= last.gpus.keys() and found.nics.keys() <= last.nics.keys():
            missing = {a: replace(nic, is_missing=True) for a, nic in last.nics.items()}
            found = _RailDevices({**last.gpus, **found.gpus}, {**missing, **found.nics})
        self._devices = found
        return found

    def _assign_initial_role(self, host: Host, device: NetworkDevice) -> NetworkDevice:
        """Assign the roles that do not depend on rails."""
        role = self.rules.find_role(device.names)
        if role:
            return replace(device, role=role[0], reason=role[1])
        if pci.is_virtual_function(host, f"{pci.DEVICES}/{device.address}"):
            return replace(
                device,
                role=rail_rules.VIRTUAL_FUNCTION,
                reason="its physical function is on this node",
            )
        if device.rdma and self._is_bridge(host, device.device):
            return replace(
                device, role=rail_rules.BRIDGE, reason="SW_MNG in its vital product data"
            )
        return device

    def _is_bridge(self, host: Host, device: pci.PciDevice) -> bool:
        """True if a function leads to an NVSwitch. Its slow vital product data is read once.

        The data is readable by root only; if it cannot be read, the function counts as a NIC.
        """
        if device.model not in _BRIDGE_MODELS:
            return False
        # A failure is not stored: after it the next scan tries again.
        if device.address not in self._bridges:
            try:
                data = host.read(f"{pci.DEVICES}/{device.address}/vpd")
            except OSError:
                return False
            self._bridges[device.address] = BRIDGE_MARK in data
        return self._bridges[device.address]

    def _apply_configured_rails(
        self, devices: Iterable[NetworkDevice]
    ) -> tuple[list[NetworkDevice], list[str]]:
        """Replace rails of the tree by those that the settings specify."""
        configured, problems = [], []
        rail_owners: dict[int, NetworkDevice] = {}
        for device in devices:
            rail = self.rules.find_rail(device.names)
            if rail and device.role in {"", rail_rules.COMPUTE}:
                device = replace(device, role=rail_rules.COMPUTE, rail=rail[0], reason=rail[1])  # noqa: PLW2901 - the same device, on its rail
                rail_owners[rail[0]] = device
            elif rail:
                problems.append(
                    f"{device.names[0]}: {rail[1]}, but it is not a {rail_rules.COMPUTE} device: {device.reason}"
                )
            configured.append(device)
        for position, device in enumerate(configured):
            # Only the functions of one NIC may share a rail with a configured one: the rail from the tree is
            # removed.
            other = rail_owners.get(-1 if device.rail is None else device.rail)
            if (
                other
                and not self.rules.find_rail(device.names)
                and pci.pci_slot(other.address) != pci.pci_slot(device.address)
            ):
                problems.append(
                    f"conflicting rail {device.rail} of {device.names[0]} "
                    f"({device.reason}): {other.reason}; fix: specify the rail of both"
                )
                configured[position] = replace(device, rail=None, reason=problems[-1])
        return configured, problems


def _find_network_devices(
    host: Host, devices: list[pci.PciDevice], interfaces: Mapping[str, NetworkInterface]
) -> list[NetworkDevice]:
    """Return all functions of the bus that are network devices, with their names."""
    rdma, functions = pci.pci_functions(host, pci.RDMA_CLASS), whole_functions(interfaces)
    by_address = {device.address: device for device in devices}
    nics = {d.address for d in devices if d.role == pci.NIC}
    network_devices = []
    for address in sorted(nics | set(rdma.values()) | set(functions.values())):
        interface_names = tuple(name for name, function in functions.items() if function == address)
        rdma_names = tuple(
            name for name, function in rdma.items() if function == address
        ) or _rdma_of_bond(host, rdma, address, interface_names)
        device = by_address.get(address) or pci.PciDevice(
            pci.NIC,
            read_text(host, f"{pci.DEVICES}/{address}/vendor"),
            read_text(host, f"{pci.DEVICES}/{address}/device"),
            pci.read_place(host, address),
        )
        layers = {layer for name in rdma_names if (layer := _link_layer(host, name))}
        network_devices.append(
            NetworkDevice(
                device,
                rdma_names,
                interface_names,
                "/".join(sorted(layers)),
                read_link_name(host, f"{pci.DEVICES}/{address}/driver"),
            )
        )
    are_drivers_known = any(device.driver for device in network_devices)
    return [
        device
        if device.rdma or device.interfaces
        else replace(
            device, reason=_why_nameless(device.driver, are_drivers_known=are_drivers_known)
        )
        for device in network_devices
    ]


def _why_nameless(driver: str, *, are_drivers_known: bool) -> str:
    """Return the reason why a function has neither interface nor RDMA device. A copied tree may lack all drivers."""
    if are_drivers_known and not driver:
        return "no driver is bound"
    if driver in _DRIVERS_WITHOUT_INTERFACE:
        return f"driver {driver} has no network interface"
    return IN_OTHER_NAMESPACE


def _rdma_of_bond(
    host: Host, rdma: Mapping[str, str], address: str, interfaces: Iterable[str]
) -> tuple[str, ...]:
    """Return the RDMA device of a function's slot whose bond or team contains the function's interface.

    The driver makes one RDMA device for both ports of a NIC whose interfaces have a LAG as their master
    (drivers/net/ethernet/mellanox/mlx5/core/lag, netif_is_lag_master); its GIDs belong to the master.
    """
    bonds = {read_link_name(host, f"{pci.NET_CLASS}/{name}/master") for name in interfaces} - {""}
    # A copied tree may lack the links.
    bonds |= {
        bond
        for bond in read_text(host, f"{pci.NET_CLASS}/bonding_masters").split()
        if not set(interfaces).isdisjoint(
            read_text(host, f"{pci.NET_CLASS}/{bond}/bonding/slaves").split()
        )
    }
    return tuple(
        name
        for name, other in rdma.items()
        if bonds
        and pci.pci_slot(other) == pci.pci_slot(address)
        and any(
            read_text(host, f"{pci.RDMA_CLASS}/{name}/ports/{port}/gid_attrs/ndevs/{gid}") in bonds
            for port in list_names(host, f"{pci.RDMA_CLASS}/{name}/ports")
            for gid in range(_GIDS)
        )
    )


def _find_subfunctions(
    host: Host, interfaces: Mapping[str, NetworkInterface]
) -> tuple[NetworkDevice, ...]:
    """Return the sub-functions of NICs: devices below a PCI function, with an interface or an RDMA device."""
    parts: dict[str, tuple[list[str], list[str]]] = {}
    for name, interface in interfaces.items():
        if interface.kind is InterfaceKind.SUBFUNCTION:
            device = _resolved_device(host, pci.NET_CLASS, name)
            parts.setdefault(device, ([], []))[1].append(name)
    for name in list_names(host, pci.RDMA_CLASS):
        device = _resolved_device(host, pci.RDMA_CLASS, name)
        if pci.function_above(device) and not pci.is_function(device):
            parts.setdefault(device, ([], []))[0].append(name)
    return tuple(
        NetworkDevice(
            pci.PciDevice(pci.NIC, "", "", pci.PciPlace("", (pci.function_above(device),))),
            tuple(rdma),
            tuple(names),
            role=rail_rules.VIRTUAL_FUNCTION,
            reason=f"sub-function of {pci.function_above(device)}",
        )
        for device, (rdma, names) in parts.items()
    )


def _resolved_device(host: Host, class_: str, name: str) -> str:
    try:
        return host.resolve(f"{class_}/{name}/device")
    except OSError:
        return ""


def _link_layer(host: Host, device: str) -> str:
    ports = list_names(host, f"{pci.RDMA_CLASS}/{device}/ports")
    return (
        read_text(host, f"{pci.RDMA_CLASS}/{device}/ports/{ports[0]}/link_layer") if ports else ""
    )


def _group_by_slot(
    devices: list[NetworkDevice], on_rails: set[str]
) -> dict[str, list[NetworkDevice]]:
    """Return NICs that may be rails: RDMA functions by slot, in the order of their functions."""
    units: dict[str, list[NetworkDevice]] = {}
    for device in sorted(devices, key=lambda device: pci.bus_order(device.address)):
        keeps_rail = device.reason == IN_OTHER_NAMESPACE and device.address in on_rails
        if (device.rdma or keeps_rail) and device.role in {"", rail_rules.COMPUTE}:
            units.setdefault(pci.pci_slot(device.address), []).append(device)
    return units


def _rail_candidates(
    units: Mapping[str, list[NetworkDevice]], routing_nics: set[str]
) -> list[rail_map.RailNic]:
    return [
        rail_map.RailNic(
            unit[0].device.place, with_rdma.model, any(d.address in routing_nics for d in unit)
        )
        for unit in units.values()
        if (with_rdma := next((d for d in unit if d.rdma), None))
    ]


def _assign_unit_rail(
    unit: list[NetworkDevice], assignment: rail_map.RailAssignment, gpus: list[str]
) -> Iterator[NetworkDevice]:
    """Yield the functions of a NIC: all of one rail, each on its own plane."""
    first = unit[0].address
    position = assignment.assigned.get(first)
    for function, device in enumerate(unit):
        if position is None:
            yield replace(device, reason=device.reason or assignment.why_not.get(first, ""))
            continue
        yield replace(
            device,
            role=rail_rules.COMPUTE,
            rail=assignment.rails[position.gpu],
            plane=position.plane * len(unit) + function,
            gpu=gpus[position.gpu],
            reason=position.reason if device.rdma else device.reason,
        )


def _assign_remaining_role(
    host: Host, device: NetworkDevice, routing_nics: set[str], *, are_rails: bool
) -> NetworkDevice:
    """Assign the remaining roles. Without any rail, RDMA may be for GPUs as well as for storage."""
    if device.role or not (device.rdma or device.interfaces):
        return device
    if device.address in routing_nics:
        return replace(device, role=rail_rules.MANAGEMENT, reason="carries the default route")
    if device.rdma and not are_rails:
        return replace(device, reason=f"RDMA, but no NIC of this node has a rail: {device.reason}")
    if device.rdma:
        return replace(device, role=rail_rules.STORAGE, reason=f"RDMA, not a rail: {device.reason}")
    speeds = [
        parsed_reading(host.read, f"{pci.NET_CLASS}/{name}/speed", parse_speed)
        for name in device.interfaces
    ]
    if any(isinstance(speed, int) and speed >= _STORAGE_MEGABITS for speed in speeds):
        return replace(device, role=rail_rules.STORAGE, reason="no RDMA, but 40 Gb/s or more")
    is_known = any(isinstance(speed, int) for speed in speeds)
    reason = "no RDMA, and less than 40 Gb/s" if is_known else "no RDMA, and its speed is unknown"
    return replace(device, role=rail_rules.MANAGEMENT, reason=reason)


def _rails_by_nic(
    nics: Mapping[str, str], rails: Mapping[str, int], devices: Iterable[NetworkDevice]
) -> dict[str, int]:
    """Return GPU rails if names specify rails: that of its NIC; without a NIC none."""
    by_address = {device.address: device.rail for device in devices}
    configured = {gpu: by_address.get(nics[gpu]) for gpu in rails}
    return {gpu: rail for gpu, rail in configured.items() if rail is not None}
