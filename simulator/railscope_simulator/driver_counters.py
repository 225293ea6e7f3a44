"""Counters of a port under the names of its driver: `ethtool -S`, `counters/` and `hw_counters/`.

All of them show the same port values, which derive from `PortCounters`. The names, their order and
the value of each are data: data/ethtool_statistics.toml and data/rdma_counters.toml.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property

from railscope.timestamps import MICROSECOND_NS, SECOND_NS
from railscope_simulator import data, device_models, fabric, port

_WRAP = 1 << 32
_ETHERNET_HEADER_BYTES = 14
_REPEATED = {"{priority}": port.PRIORITIES, "{lane}": range(device_models.LANES)}


@dataclass(frozen=True)
class CounterTable:
    """Counters of one driver; data/rdma_counters.toml documents the fields."""

    names: Sequence[Sequence[str]] = ()
    values: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, int] = field(default_factory=dict)
    maximum: Mapping[str, int] = field(default_factory=dict)
    wraps: Sequence[str] = ()
    only_with_pfc: Sequence[str] = ()

    @cached_property
    def port_counters(self) -> dict[str, str]:
        """Counters with a port value, by name."""
        return {name: value for pair in self.values.items() for name, value in _expand_names(pair)}

    @cached_property
    def zeros(self) -> dict[str, int]:
        """All counters in the driver's order: zero, or their constant."""
        listed = [name for group in self.names for names in _expand_names(group) for name in names]
        return dict.fromkeys((*listed, *self.port_counters), 0) | dict(self.constants)

    def show(self, values: Mapping[str, int]) -> dict[str, int]:
        """Return all counters, given the port values."""
        shown = self.zeros | {name: values[value] for name, value in self.port_counters.items()}
        for name, limit in self.maximum.items():
            shown[name] = min(shown[name], limit)
        for name in self.wraps:
            shown[name] %= _WRAP
        return shown


def _expand_names(names: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield a group of names, once for each number if they have a placeholder."""
    for placeholder, numbers in _REPEATED.items():
        if placeholder in names[0]:
            for number in numbers:
                yield [name.replace(placeholder, str(number)) for name in names]
            return
    yield names


@dataclass(frozen=True)
class RdmaTables:
    """The file data/rdma_counters.toml."""

    counters: CounterTable
    hw_counters: Mapping[str, CounterTable]
    optional: Mapping[str, CounterTable]


RDMA = data.read_table("rdma_counters", RdmaTables)
ETHTOOL = data.read_table("ethtool_statistics", dict[str, CounterTable])


def ethtool_statistics(cable: fabric.Cable) -> dict[str, int]:
    """Return the statistics of `ethtool -S`, in the order of the driver."""
    table = ETHTOOL[cable.port.nic.driver]
    statistics = table.show(port_values(cable))
    if not cable.settings.pausing:
        for name in table.only_with_pfc:
            del statistics[name]
    return statistics


def counters(cable: fabric.Cable) -> dict[str, int] | None:
    """Return the files of `counters/`, data in words of four bytes; None if there is no directory.

    The core creates it only for devices that support performance management queries, unlike irdma.
    """
    return None if cable.port.nic.driver == "ice" else RDMA.counters.show(port_values(cable))


def hw_counters(cable: fabric.Cable) -> dict[str, int]:
    """Return the files of `hw_counters/`."""
    return RDMA.hw_counters[cable.port.nic.driver].show(port_values(cable))


def optional_counters(cable: fabric.Cable) -> dict[str, int]:
    """Return the enabled counters that never appear in sysfs; only mlx5 has some."""
    table = RDMA.optional.get(cable.port.nic.driver)
    return table.show(port_values(cable)) if table else {}


def port_values(cable: fabric.Cable) -> dict[str, int]:
    """Return all values that a counter may show, by name: the fields of `PortCounters`, and more."""
    # Derived once per step: several views show the same values.
    if not cable.port_values:
        cable.port_values = _port_values(cable)
    return cable.port_values


def _port_values(cable: fabric.Cable) -> dict[str, int]:
    counters = cable.counters
    counts = {name: getattr(counters, name) for name in _COUNTED}
    for direction, flow in (("sent", counters.sent), ("received", counters.received)):
        counts[f"rdma_{direction}_packets"] = flow.packets
        counts[f"rdma_{direction}_words"] = flow.words
        counts[f"rdma_{direction}_bytes"] = flow.data_bytes
        counts[f"datagram_{direction}_bytes"] = (
            flow.data_bytes - flow.packets * _ETHERNET_HEADER_BYTES
        )
    counts |= _wire_values(counters) | _pause_values(counters)
    counts["repeated_packets"] = counters.sequence_errors + counters.adaptive_retransmissions
    counts["corrected_bits"] = sum(counters.corrected_bits)
    for lane, corrected in enumerate(counters.corrected_bits):
        counts[f"lane_{lane}_corrected_bits"] = corrected
    counts["pcie_read_stall_percent"] = cable.pcie_read_stall_percent
    counts["pcie_write_stall_percent"] = cable.pcie_write_stall_percent
    counts["write_stalled_seconds"] = counters.write_stalled_ns // SECOND_NS
    return counts


_COUNTED = tuple(
    counter.name for counter in fields(port.PortCounters) if isinstance(counter.default, int)
)


def _wire_values(counters: port.PortCounters) -> dict[str, int]:
    """Return all traffic of the port, by priority, and the part of the kernel: frames of LLDP."""
    wire, frames = port.on_the_wire(counters), counters.neighbour_frames
    counts = {
        "wire_received_unicast": wire.received_packets - frames,
        "wire_sent_unicast": wire.sent_packets - frames,
        "kernel_packets": frames,
        "kernel_bytes": frames * port.NEIGHBOUR_FRAME_BYTES,
        "kernel_events": 2 * frames,
    }
    counts |= {f"wire_{name}": value for name, value in wire._asdict().items()}
    for priority, traffic in enumerate(port.by_priority(counters)):
        for name, value in traffic._asdict().items():
            counts[f"priority_{priority}_{name}"] = value
    return counts


def _pause_values(counters: port.PortCounters) -> dict[str, int]:
    counts = {
        "paused_us": counters.paused_ns // MICROSECOND_NS,
        "pausing_us": counters.pausing_ns // MICROSECOND_NS,
    }
    for direction, frames in (
        ("received", counters.pause_frames_received),
        ("sent", counters.pause_frames_sent),
    ):
        counts[f"pauses_{direction}"] = frames // 2
        counts[f"xon_{direction}"], counts[f"xoff_{direction}"] = xon_and_xoff(frames)
    return counts


def xon_and_xoff(frames: int) -> tuple[int, int]:
    """Return the frames that end a pause, and those that begin or prolong one."""
    return frames // 2, frames - frames // 2
