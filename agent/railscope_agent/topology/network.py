"""Network devices of a node with their roles, and the rails of those that carry the traffic of GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from railscope.frame import Entity
from railscope.timestamps import SECOND_NS
from railscope_agent.host import Host
from railscope_agent.sampling.fact_readers import list_names, read_text
from railscope_agent.sampling.probe_host import (
    FailedCall,
    failed_calls,
    repeat_failures,
    unwrap_host,
)
from railscope_agent.topology import pci, rail_rules, rails as rail_map
from railscope_agent.topology.default_routes import default_interfaces
from railscope_agent.topology.network_device import NetworkDevice, NodeNetwork, nic_entity

BRIDGE_MARK = b"SW_MNG"
"""Mark in the vital product data of a ConnectX function that leads to an NVSwitch."""
_BRIDGE_MODELS = {"15b3:1021"}
"""ConnectX-7: on HGX B200 and B300, the functions that manage the NVSwitches have the same PCI id as NICs."""
_STORAGE_MEGABITS = 40_000
SCAN_VALID_NS = SECOND_NS


@dataclass(frozen=True, slots=True)
class _NetworkScan:
    """Result of a scan, with its time and the device names at that time."""

    host: Host
    device_names: tuple[tuple[str, ...], ...]
    polled_ns: int
    network: NodeNetwork
    failed: Mapping[str, FailedCall]

    def is_valid(self, host: Host, device_names: tuple[tuple[str, ...], ...], now_ns: int) -> bool:
        """True if it is still valid."""
        fresh = 0 <= now_ns - self.polled_ns < SCAN_VALID_NS
        return fresh and unwrap_host(host) is self.host and device_names == self.device_names


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

    def scan(self, host: Host) -> NodeNetwork:
        """Return the network devices as they are now.

        Sources probe one after the other: a result of the last second is reused if the devices are the
        same.
        """
        device_names = tuple(
            tuple(list_names(host, directory))
            for directory in (pci.DEVICES, pci.RDMA_CLASS, pci.NET_CLASS)
        )
        now_ns, last = host.clock.now().boot_ns, self._last
        if last and last.is_valid(host, device_names, now_ns):
            repeat_failures(host, last.failed)
            return last.network
        tree, before = self.rules.tree, failed_calls(host)
        network = self.assign_roles(
            host, pci.read_pci_devices(host, tree.places if tree else None).values()
        )
        failed = {key: call for key, call in failed_calls(host).items() if key not in before}
        self._last = _NetworkScan(unwrap_host(host), device_names, now_ns, network, failed)
        return network

    def find_nics(self, host: Host) -> tuple[Entity, ...]:
        """Return every interface whose driver identifies itself."""
        network = self.scan(host)
        nics = []
        for interface in list_names(host, pci.NET_CLASS):
            try:
                driver = host.call("ethtool", "driver", interface)
            except OSError:  # virtual, or denied: source `nic` reports it
                continue
            nics.append(nic_entity(interface, driver, network.device_at(driver.get("bus", ""))))
        return tuple(nics)

    def assign_roles(self, host: Host, devices: Iterable[pci.PciDevice]) -> NodeNetwork:
        """Return the network devices, given the devices of the PCI bus."""
        pci_devices = list(devices)
        gpus = pci.select_gpus(pci_devices)
        candidates = [
            self._assign_initial_role(host, device)
            for device in _find_network_devices(host, pci_devices)
        ]
        default_routes = default_interfaces(host)
        routing_nics = {d.address for d in candidates if default_routes.intersection(d.interfaces)}
        units = _group_by_slot(candidates)
        rail_devices = self._with_missing(gpus, _rail_candidates(units, routing_nics))
        addresses = [*rail_devices.gpus]
        assignment = rail_map.assign_rails(
            [*rail_devices.gpus.values()], [*rail_devices.nics.values()]
        )
        on_rails = [
            d for unit in units.values() for d in _assign_unit_rail(unit, assignment, addresses)
        ]
        by_address = {d.address: d for d in (*candidates, *on_rails)}
        named, problems = self._apply_configured_rails(by_address.values())
        are_rails = any(device.rail is not None for device in named)
        network_devices = [
            _assign_remaining_role(host, device, routing_nics, are_rails=are_rails)
            if gpus
            else replace(device, reason=device.reason or "the node has no GPU")
            for device in named
        ]
        network_devices.sort(key=lambda device: pci.bus_order(device.address))
        number_by_gpu = {address: number for number, address in enumerate(addresses)}
        nics = {gpu.address: assignment.nics[number_by_gpu[gpu.address]] for gpu in gpus}
        rails = {gpu.address: assignment.rails[number_by_gpu[gpu.address]] for gpu in gpus}
        if self.rules.rails or self.rules.rail_pattern:
            rails = _rails_by_nic(nics, rails, network_devices)
        unused = self.rules.find_unused(name for device in network_devices for name in device.names)
        return NodeNetwork(
            tuple(network_devices), tuple(gpus), rails, nics, tuple(problems), unused
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
        if pci.is_virtual_function(host, device.address):
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


def _find_network_devices(host: Host, devices: list[pci.PciDevice]) -> list[NetworkDevice]:
    """Return all functions of the bus that are network devices, with their names."""
    rdma, interfaces = (
        pci.pci_functions(host, pci.RDMA_CLASS),
        pci.pci_functions(host, pci.NET_CLASS),
    )
    by_address = {device.address: device for device in devices}
    nics = {d.address for d in devices if d.role == pci.NIC}
    network_devices = []
    for address in sorted(nics | set(rdma.values()) | set(interfaces.values())):
        rdma_names = tuple(name for name, function in rdma.items() if function == address)
        interface_names = [name for name, function in interfaces.items() if function == address]
        interface_names += [
            net
            for name in rdma_names
            for net in list_names(host, f"{pci.RDMA_CLASS}/{name}/device/net")
        ]
        device = by_address.get(address) or pci.PciDevice(
            pci.NIC,
            read_text(host, f"{pci.DEVICES}/{address}/vendor"),
            read_text(host, f"{pci.DEVICES}/{address}/device"),
            pci.read_place(host, address),
        )
        layers = {layer for name in rdma_names if (layer := _link_layer(host, name))}
        network_devices.append(
            NetworkDevice(
                device, rdma_names, tuple(dict.fromkeys(interface_names)), "/".join(sorted(layers))
            )
        )
    return network_devices


def _link_layer(host: Host, device: str) -> str:
    ports = list_names(host, f"{pci.RDMA_CLASS}/{device}/ports")
    return (
        read_text(host, f"{pci.RDMA_CLASS}/{device}/ports/{ports[0]}/link_layer") if ports else ""
    )


def _group_by_slot(devices: list[NetworkDevice]) -> dict[str, list[NetworkDevice]]:
    """Return NICs that may be rails: RDMA functions by slot, in the order of their functions."""
    units: dict[str, list[NetworkDevice]] = {}
    for device in sorted(devices, key=lambda device: pci.bus_order(device.address)):
        if device.rdma and device.role in {"", rail_rules.COMPUTE}:
            units.setdefault(pci.pci_slot(device.address), []).append(device)
    return units


def _rail_candidates(
    units: Mapping[str, list[NetworkDevice]], routing_nics: set[str]
) -> list[rail_map.RailNic]:
    return [
        rail_map.RailNic(
            unit[0].device.place, unit[0].model, any(d.address in routing_nics for d in unit)
        )
        for unit in units.values()
    ]


def _assign_unit_rail(
    unit: list[NetworkDevice], assignment: rail_map.RailAssignment, gpus: list[str]
) -> Iterator[NetworkDevice]:
    """Yield the functions of a NIC: all of one rail, each on its own plane."""
    first = unit[0].address
    position = assignment.assigned.get(first)
    for function, device in enumerate(unit):
        if position is None:
            yield replace(device, reason=device.reason or assignment.why_not[first])
            continue
        yield replace(
            device,
            role=rail_rules.COMPUTE,
            rail=assignment.rails[position.gpu],
            plane=position.plane * len(unit) + function,
            gpu=gpus[position.gpu],
            reason=position.reason,
        )


def _assign_remaining_role(
    host: Host, device: NetworkDevice, routing_nics: set[str], *, are_rails: bool
) -> NetworkDevice:
    """Assign the remaining roles. Without any rail, RDMA may be for GPUs as well as for storage."""
    if device.role:
        return device
    if device.address in routing_nics:
        return replace(device, role=rail_rules.MANAGEMENT, reason="carries the default route")
    if device.rdma and not are_rails:
        return replace(device, reason=f"RDMA, but no NIC of this node has a rail: {device.reason}")
    if device.rdma:
        return replace(device, role=rail_rules.STORAGE, reason=f"RDMA, not a rail: {device.reason}")
    speeds = [read_text(host, f"{pci.NET_CLASS}/{name}/speed") for name in device.interfaces]
    if any(speed.isdecimal() and int(speed) >= _STORAGE_MEGABITS for speed in speeds):
        return replace(device, role=rail_rules.STORAGE, reason="no RDMA, but 40 Gb/s or more")
    return replace(device, role=rail_rules.MANAGEMENT, reason="no RDMA, and less than 40 Gb/s")


def _rails_by_nic(
    nics: Mapping[str, str], rails: Mapping[str, int], devices: Iterable[NetworkDevice]
) -> dict[str, int]:
    """Return GPU rails if names specify rails: that of its NIC; without a NIC none."""
    by_address = {device.address: device.rail for device in devices}
    configured = {gpu: by_address.get(nics[gpu]) for gpu in rails}
    return {gpu: rail for gpu, rail in configured.items() if rail is not None}
