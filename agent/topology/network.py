"""Network devices with their roles, and the rails of those that carry the traffic of GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from agent.host import Host
from agent.sampling.facts import known, names, text
from agent.sampling.known_devices import FailedCall, failures, machine_of, repeat_failures
from agent.topology import pci
from agent.topology.names import NET, RDMA, functions
from agent.topology.pci import PciDevice, bus_order, slot
from agent.topology.rails import Card, Seating, seat
from agent.topology.routes import default_interfaces
from agent.topology.rules import (
    BRIDGE,
    COMPUTE,
    MANAGEMENT,
    STORAGE,
    VIRTUAL_FUNCTION,
    Rules,
)

BRIDGE_MARK = b"SW_MNG"
"""Mark in the vital product data of a ConnectX function that leads to an NVSwitch."""
_BRIDGE_MODELS = {"15b3:1021"}
_STORAGE_MEGABITS = 40_000
SAME_LOOK_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class NetworkDevice:
    """Network function of the PCI bus with its names, its role and its rail.

    `gpu` is the address of its GPU; `why` explains the role and the rail.
    """

    device: PciDevice
    rdma: tuple[str, ...] = ()
    interfaces: tuple[str, ...] = ()
    link_layer: str = ""
    role: str = ""
    rail: int | None = None
    plane: int = 0
    gpu: str = ""
    why: str = ""

    @property
    def address(self) -> str:
        """PCI address."""
        return self.device.address

    @property
    def names(self) -> tuple[str, ...]:
        """All names, the RDMA device first."""
        return (*self.rdma, *self.interfaces, self.address)

    @property
    def model(self) -> str:
        """Model and link layer: the rail NICs of one node have the same."""
        return f"{self.device.model} {self.link_layer}".strip()

    @property
    def facts(self) -> dict[str, str]:
        """Role and rail as labels; unknown ones are left out."""
        return known(role=self.role, rail="" if self.rail is None else str(self.rail))


NOWHERE = NetworkDevice(PciDevice("", "", "", pci.Place("", ("",))))
"""Placeholder for a device that is not on the PCI bus: it has neither role nor rail."""


@dataclass(frozen=True, slots=True)
class Network:
    """All network devices of a node in bus order, and the GPUs they serve.

    `gpu_rails` maps the PCI address of a GPU to its rail, `gpu_cards` to the NIC that it uses. `problems`
    are settings that contradict the node, or each other; `unused` are names in the settings without a
    device.
    """

    devices: tuple[NetworkDevice, ...] = ()
    gpus: tuple[PciDevice, ...] = ()
    gpu_rails: Mapping[str, int] = field(default_factory=dict)
    gpu_cards: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()

    def at(self, address: str) -> NetworkDevice:
        """Return the device at a PCI address."""
        return next((d for d in self.devices if d.address == address), NOWHERE)


@dataclass(frozen=True, slots=True)
class _Look:
    """Result of a scan, with its time and the device names at that time."""

    host: Host
    there: tuple[tuple[str, ...], ...]
    looked_ns: int
    network: Network
    failed: Mapping[str, FailedCall]

    def serves(self, host: Host, there: tuple[tuple[str, ...], ...], now_ns: int) -> bool:
        """True if it is still valid."""
        fresh = 0 <= now_ns - self.looked_ns < SAME_LOOK_NS
        return fresh and machine_of(host) is self.host and there == self.there


class Wiring:
    """Finds network devices and assigns role and rail, from the settings and the PCI tree.

    One instance serves all sources, on any thread.
    """

    def __init__(self, rules: Rules | None = None) -> None:
        self.rules = rules or Rules()
        self._bridges: dict[str, bool] = {}
        self._last: _Look | None = None

    def look(self, host: Host) -> Network:
        """Return the network devices as they are now.

        Sources probe one after the other: a result of the last second is reused if the devices are the
        same.
        """
        there = tuple(tuple(names(host, directory)) for directory in (pci.DEVICES, RDMA, NET))
        now_ns, last = host.clock.now().boot_ns, self._last
        if last and last.serves(host, there, now_ns):
            repeat_failures(host, last.failed)
            return last.network
        tree, before = self.rules.tree, failures(host)
        found = self.network(host, pci.look(host, tree.places if tree else None).values())
        failed = {key: call for key, call in failures(host).items() if key not in before}
        self._last = _Look(machine_of(host), there, now_ns, found, failed)
        return found

    def network(self, host: Host, devices: Iterable[PciDevice]) -> Network:
        """Return the network devices, given the devices of the PCI bus."""
        there = list(devices)
        gpus = pci.gpus_among(there)
        found = [self._first(host, device) for device in _named(host, there)]
        carrying = default_interfaces(host)
        busy = {d.address for d in found if carrying.intersection(d.interfaces)}
        units = _units(found)
        seating = seat([gpu.place for gpu in gpus], _cards(units, busy))
        addresses = [gpu.address for gpu in gpus]
        seated = [d for unit in units.values() for d in _seated(unit, seating, addresses)]
        by_address = {d.address: d for d in (*found, *seated)}
        named, problems = self._by_name(by_address.values())
        are_rails = any(device.rail is not None for device in named)
        final = [
            _rest(host, device, busy, are_rails=are_rails) if gpus else _unused(device)
            for device in named
        ]
        final.sort(key=lambda device: bus_order(device.address))
        cards = {gpu.address: card for gpu, card in zip(gpus, seating.cards, strict=True)}
        rails = {gpu.address: rail for gpu, rail in zip(gpus, seating.rails, strict=True)}
        if self.rules.name_rails:
            rails = _rails_by_card(cards, rails, final)
        unused = self.rules.unused(name for device in final for name in device.names)
        return Network(tuple(final), tuple(gpus), rails, cards, tuple(problems), unused)

    def _first(self, host: Host, device: NetworkDevice) -> NetworkDevice:
        """Assign the roles that do not depend on rails."""
        given = self.rules.role(device.names)
        if given:
            return replace(device, role=given[0], why=given[1])
        if pci.is_virtual_function(host, device.address):
            return replace(device, role=VIRTUAL_FUNCTION, why="its physical function is here, too")
        if device.rdma and self._is_bridge(host, device.device):
            return replace(device, role=BRIDGE, why="SW_MNG in its vital product data")
        return device

    def _is_bridge(self, host: Host, device: PciDevice) -> bool:
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

    def _by_name(self, devices: Iterable[NetworkDevice]) -> tuple[list[NetworkDevice], list[str]]:
        """Replace rails of the tree by those that the settings specify."""
        found, problems = [], []
        given: dict[int, NetworkDevice] = {}
        for device in devices:
            rail = self.rules.rail(device.names)
            if rail and device.role in {"", COMPUTE}:
                device = replace(device, role=COMPUTE, rail=rail[0], why=rail[1])  # noqa: PLW2901 - the same device, on its rail
                given[rail[0]] = device
            elif rail:
                problems.append(
                    f"{device.names[0]}: {rail[1]}, but it is no {COMPUTE} device: {device.why}"
                )
            found.append(device)
        for place, device in enumerate(found):
            other = given.get(-1 if device.rail is None else device.rail)
            if other and not self.rules.rail(device.names) and slot(other.address) != slot(
                device.address
            ):  # fmt: skip
                problems.append(
                    f"{device.names[0]} would have rail {device.rail} ({device.why}), but"
                    f" {other.why}: name the rail of both"
                )
                found[place] = replace(device, rail=None, why=problems[-1])
        return found, problems


def _named(host: Host, devices: list[PciDevice]) -> list[NetworkDevice]:
    """Return all functions of the bus that are network devices, with their names."""
    rdma, interfaces = functions(host, RDMA), functions(host, NET)
    by_address = {device.address: device for device in devices}
    there = {d.address for d in devices if d.role == pci.NIC}
    found = []
    for address in sorted(there | set(rdma.values()) | set(interfaces.values())):
        names_ = tuple(name for name, at in rdma.items() if at == address)
        nets = [name for name, at in interfaces.items() if at == address]
        nets += [net for name in names_ for net in names(host, f"{RDMA}/{name}/device/net")]
        device = by_address.get(address) or PciDevice(
            pci.NIC,
            text(host, f"{pci.DEVICES}/{address}/vendor"),
            text(host, f"{pci.DEVICES}/{address}/device"),
            pci.place(host, address),
        )
        layers = {layer for name in names_ if (layer := _link_layer(host, name))}
        found.append(
            NetworkDevice(device, names_, tuple(dict.fromkeys(nets)), "/".join(sorted(layers)))
        )
    return found


def _link_layer(host: Host, device: str) -> str:
    ports = names(host, f"{RDMA}/{device}/ports")
    return text(host, f"{RDMA}/{device}/ports/{ports[0]}/link_layer") if ports else ""


def _units(devices: list[NetworkDevice]) -> dict[str, list[NetworkDevice]]:
    """Return NICs that may be rails: RDMA functions by slot, in the order of their functions."""
    units: dict[str, list[NetworkDevice]] = {}
    for device in sorted(devices, key=lambda device: bus_order(device.address)):
        if device.rdma and device.role in {"", COMPUTE}:
            units.setdefault(slot(device.address), []).append(device)
    return units


def _cards(units: Mapping[str, list[NetworkDevice]], busy: set[str]) -> list[Card]:
    return [
        Card(unit[0].device.place, unit[0].model, any(d.address in busy for d in unit))
        for unit in units.values()
    ]


def _seated(
    unit: list[NetworkDevice], seating: Seating, gpus: list[str]
) -> Iterator[NetworkDevice]:
    """Yield the functions of a NIC: all of one rail, each on its own plane."""
    first = unit[0].address
    found = seating.seats.get(first)
    for function, device in enumerate(unit):
        if found is None:
            yield replace(device, why=device.why or seating.why_not[first])
            continue
        yield replace(
            device,
            role=COMPUTE,
            rail=seating.rails[found.gpu],
            plane=found.plane * len(unit) + function,
            gpu=gpus[found.gpu],
            why=found.why,
        )


def _unused(device: NetworkDevice) -> NetworkDevice:
    """Return a device of a node without GPUs, where its role is unknown."""
    return replace(device, why=device.why or "there is no GPU")


def _rest(host: Host, device: NetworkDevice, busy: set[str], *, are_rails: bool) -> NetworkDevice:
    """Assign the remaining roles. Without any rail, RDMA may be for GPUs as well as for storage."""
    if device.role:
        return device
    if device.address in busy:
        return replace(device, role=MANAGEMENT, why="carries the default route")
    if device.rdma and not are_rails:
        return replace(device, why=f"RDMA, but no card here has a rail: {device.why}")
    if device.rdma:
        return replace(device, role=STORAGE, why=f"RDMA, but no rail: {device.why}")
    speeds = [text(host, f"{NET}/{name}/speed") for name in device.interfaces]
    if any(speed.isdecimal() and int(speed) >= _STORAGE_MEGABITS for speed in speeds):
        return replace(device, role=STORAGE, why="no RDMA, but 40 Gb/s or more")
    return replace(device, role=MANAGEMENT, why="no RDMA, and less than 40 Gb/s")


def _rails_by_card(
    cards: Mapping[str, str], rails: Mapping[str, int], devices: Iterable[NetworkDevice]
) -> dict[str, int]:
    """Return GPU rails if names specify rails: that of its NIC; without a NIC none."""
    by_address = {device.address: device.rail for device in devices}
    found = {gpu: by_address.get(cards[gpu]) for gpu in rails}
    return {gpu: rail for gpu, rail in found.items() if rail is not None}
