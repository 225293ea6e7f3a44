"""State of a simulated switch in the form of OpenConfig, as Arista EOS has it: leaves with their paths.

Ports have the names that their LLDP announces. A counter that the model does not have is absent, as in SONiC's form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from railscope_simulator import port as port_model
from railscope_simulator.switch_ports import FRAME_BYTES, SimulatedSwitch, SwitchPort

LeafValue: TypeAlias = int | str
_MAC_LENGTH = 17
_GIGABIT = 1000
MODELS = (
    "openconfig-interfaces", "openconfig-if-ethernet", "openconfig-qos", "openconfig-lldp", "openconfig-system",
    "arista-intf-augments",
)  # fmt: skip


class PathElement(NamedTuple):
    """Element of a path, with the keys of an entry of a list."""

    name: str
    keys: Mapping[str, str] = {}


class StateLeaf(NamedTuple):
    """A leaf, and the path of its container."""

    container: tuple[PathElement, ...]
    name: str
    value: LeafValue


FindState: TypeAlias = Callable[[], Iterable[StateLeaf]]
"""Returns the leaves of a switch. Blocking."""


def state_leaves(switch: SimulatedSwitch) -> Iterator[StateLeaf]:
    """Yield the leaves of a switch; the leaves of a container follow each other."""
    yield from _leaves(_path("system/state"), {"hostname": switch.name})
    own = {
        "chassis-id": switch.chassis,
        "chassis-id-type": "MAC_ADDRESS",
        "system-name": switch.name,
    }
    yield from _leaves(_path("lldp/state"), own)
    for port in switch.ports.values():
        yield from _port_leaves(port)
        yield from _queue_leaves(port)
        if port.is_up:
            yield from _neighbour_leaves(port)


def _path(text: str, **keys: Mapping[str, str]) -> tuple[PathElement, ...]:
    """Return a path with the keys of its elements, by their name."""
    return tuple(PathElement(name, keys.get(name, {})) for name in text.split("/"))


def _leaves(
    container: tuple[PathElement, ...], values: Mapping[str, LeafValue]
) -> Iterator[StateLeaf]:
    for name, value in values.items():
        yield StateLeaf(container, name, value)


def _port_leaves(port: SwitchPort) -> Iterator[StateLeaf]:
    counters, interface = port.counters, {"name": port.alias}
    sent = port.counters.queues
    yield from _leaves(_path("interfaces/interface/state", interface=interface), {
        "name": port.alias, "type": "iana-if-type:ethernetCsmacd", "ifindex": port.number,
        "description": port.description, "admin-status": "UP", "oper-status": "UP" if port.is_up else "DOWN",
    })  # fmt: skip
    yield from _leaves(_path("interfaces/interface/state/counters", interface=interface), {
        "in-octets": counters.received_bytes, "out-octets": sum(queue.bytes for queue in sent),
        "in-pkts": counters.received_packets, "out-pkts": sum(queue.packets for queue in sent),
        "in-errors": counters.received_errors, "out-errors": 0, "in-discards": 0,
        "out-discards": sum(queue.dropped_packets for queue in sent),
    })  # fmt: skip
    whole = port.megabits % _GIGABIT == 0
    speed = f"{port.megabits // _GIGABIT}GB" if whole else f"{port.megabits}MB"
    values = {"port-speed": f"SPEED_{speed}" if port.megabits else "SPEED_UNKNOWN"}
    yield from _leaves(_path("interfaces/interface/ethernet/state", interface=interface), values)
    for number in port_model.PRIORITIES:
        is_lossless = number == port_model.LOSSLESS
        path = "interfaces/interface/ethernet/pfc/priorities/priority/state"
        priority = {"index": str(number)}
        yield from _leaves(_path(path, interface=interface, priority=priority), {
            "index": number, "in-frames": counters.pauses_received * is_lossless,
            "out-frames": counters.pauses_sent * is_lossless,
        })  # fmt: skip


def _queue_leaves(port: SwitchPort) -> Iterator[StateLeaf]:
    for number, queue in enumerate(port.counters.queues):
        name = f"UC{number}"
        keys = {"interface": {"interface-id": port.alias}, "queue": {"name": name}}
        yield from _leaves(_path("qos/interfaces/interface/output/queues/queue/state", **keys), {
            "name": name, "id": number, "queue-type": "UC", "transmit-pkts": queue.packets,
            "transmit-octets": queue.bytes, "dropped-pkts": queue.dropped_packets,
            "dropped-octets": queue.dropped_packets * FRAME_BYTES, "ecn-marked-pkts": queue.marked_packets,
            "ecn-marked-octets": queue.marked_packets * FRAME_BYTES, "wred-dropped-pkts": 0,
            "max-queue-len": queue.watermark_bytes,
        })  # fmt: skip


def _neighbour_leaves(port: SwitchPort) -> Iterator[StateLeaf]:
    neighbour = port.neighbour
    keys = {"interface": {"name": port.alias}, "neighbor": {"id": "1"}}
    is_mac = len(neighbour.port) == _MAC_LENGTH
    path = _path("lldp/interfaces/interface/neighbors/neighbor/state", **keys)
    yield from _leaves(path, {
        "chassis-id": neighbour.chassis, "chassis-id-type": "MAC_ADDRESS", "port-id": neighbour.port,
        "port-id-type": "MAC_ADDRESS" if is_mac else "LOCAL", "port-description": neighbour.port_description,
        "system-name": neighbour.system_name,
    })  # fmt: skip


def is_below(container: Sequence[PathElement], path: Sequence[str]) -> bool:
    """True if a container is at or below a path that names no keys."""
    return [element.name for element in container[: len(path)]] == list(path)
