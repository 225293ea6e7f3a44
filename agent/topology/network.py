"""Network devices: what each is for, and the rail of those that carry the traffic of GPUs."""

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
"""In the vital product data of a ConnectX function that leads to an NVSwitch."""
_BRIDGE_MODELS = {"15b3:1021"}
_STORAGE_MEGABITS = 40_000
SAME_LOOK_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class NetworkDevice:
    """A network function of the PCI bus, its names, its role and its rail.

    `gpu` is the address of the GPU it belongs to; `why` says how role and rail were decided.
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
        """Its PCI address."""
        return self.device.address

    @property
    def names(self) -> tuple[str, ...]:
        """Everything it is called, the RDMA device first."""
        return (*self.rdma, *self.interfaces, self.address)

    @property
    def model(self) -> str:
        """What tells kinds of cards apart: cards of one server's rails are of one kind."""
        return f"{self.device.model} {self.link_layer}".strip()

    @property
    def facts(self) -> dict[str, str]:
        """Role and rail as they stand in labels; what is not known is not there."""
        return known(role=self.role, rail="" if self.rail is None else str(self.rail))


NOWHERE = NetworkDevice(PciDevice("", "", "", pci.Place("", ("",))))
"""Stands for a device that is not on the PCI bus: it has neither role nor rail."""


@dataclass(frozen=True, slots=True)
class Network:
    """All network devices of a server in bus order, and the GPUs they serve.

    `gpu_rails` gives the rail of a GPU by its PCI address, `gpu_cards` the card it uses. `problems`
    are settings that contradict what is there, or each other; `unused` are names in the settings
    that nothing here has.
    """

    devices: tuple[NetworkDevice, ...] = ()
    gpus: tuple[PciDevice, ...] = ()
    gpu_rails: Mapping[str, int] = field(default_factory=dict)
    gpu_cards: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()

    def at(self, address: str) -> NetworkDevice:
        """The device at a PCI address."""
        return next((d for d in self.devices if d.address == address), NOWHERE)


@dataclass(frozen=True, slots=True)
class _Look:
    """What was found when, and which names there were then."""

    host: Host
    there: tuple[tuple[str, ...], ...]
    looked_ns: int
    network: Network
    failed: Mapping[str, FailedCall]

    def serves(self, host: Host, there: tuple[tuple[str, ...], ...], now_ns: int) -> bool:
        """Whether it still holds."""
        fresh = 0 <= now_ns - self.looked_ns < SAME_LOOK_NS
        return fresh and machine_of(host) is self.host and there == self.there


class Wiring:
    """Finds network devices and gives them role and rail, by the settings and by the PCI tree.

    One serves all sources, whichever thread they have.
    """

    def __init__(self, rules: Rules | None = None) -> None:
        self.rules = rules or Rules()
        self._bridges: dict[str, bool] = {}
        self._last: _Look | None = None

    def look(self, host: Host) -> Network:
        """The network devices as they are now.

        Sources probe one after the other: what was found within the last second, and has the same
        devices still, is not looked for again.
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
        """The same, where the devices of the PCI bus are known already."""
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
        """What is known of a role before any rail is."""
        given = self.rules.role(device.names)
        if given:
            return replace(device, role=given[0], why=given[1])
        if pci.is_virtual_function(host, device.address):
            return replace(device, role=VIRTUAL_FUNCTION, why="its physical function is here, too")
        if device.rdma and self._is_bridge(host, device.device):
            return replace(device, role=BRIDGE, why="SW_MNG in its vital product data")
        return device

    def _is_bridge(self, host: Host, device: PciDevice) -> bool:
        """Whether a function leads to an NVSwitch. Its data is read once: that takes the card long.

        The data is for root; where it cannot be read, the function counts as a card.
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
        """Put the rails that the settings give in the place of those of the tree."""
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
    """All functions of the bus that are network devices, with what they are called."""
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
    """Cards that may be rails: RDMA functions by slot, in the order of their functions."""
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
    """The functions of a card: all of one rail, each a plane of its own."""
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
    """A device of a server without GPUs, where nothing tells what it is for."""
    return replace(device, why=device.why or "there is no GPU")


def _rest(host: Host, device: NetworkDevice, busy: set[str], *, are_rails: bool) -> NetworkDevice:
    """The role of what has none yet. Where no card has a rail, RDMA may be for GPUs as for storage."""
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
    """Where names give rails, a GPU has that of its card; without a card it has none."""
    by_address = {device.address: device.rail for device in devices}
    found = {gpu: by_address.get(cards[gpu]) for gpu in rails}
    return {gpu: rail for gpu, rail in found.items() if rail is not None}
