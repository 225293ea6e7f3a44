"""`railscope agent topology`: devices of this node and rails of its NICs, as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from railscope.reading import Absent, Reading
from railscope.untrusted_text import printable
from railscope_agent.config import TopologySettings
from railscope_agent.host import Host
from railscope_agent.topology import node_topology, pci, pcie_links, rail_rules
from railscope_agent.topology.distance_matrix import create_matrix, format_matrix, matrix_nics
from railscope_agent.topology.network_device import NetworkDevice

_MEGATRANSFERS = 1000
_INNER = ">"
"""Separator in the name of the downstream port of a switch in a topology file."""


def as_text(node: node_topology.NodeTopology) -> str:
    """Return the tree, the table, the rail of each GPU, and the roles of the other network devices."""
    parts = [_join(_tree_lines(node)), format_matrix(node), _join(_rail_lines(node))]
    for head, lines in (
        ("Invalid settings:", node.network.problems),
        ("Names in the settings without a device on this node:", node.network.unused),
    ):
        if lines:
            parts.append(_join([head, *(f"  {line}" for line in lines)]))
    return "\n".join(parts)


def _join(lines: Iterable[str]) -> str:
    """Return the lines as a text; the kernel accepts control characters in the name of an interface."""
    return "\n".join(map(printable, lines)) + "\n"


def as_json(node: node_topology.NodeTopology) -> dict[str, Any]:
    """Return the same as plain numbers, strings, lists and dictionaries."""
    heads, rows = create_matrix(node)
    return {
        "devices": [_device_json(node, device) for device in node.devices.values()],
        "gpus": [_gpu_json(node, gpu) for gpu in node.gpus],
        "network": [_network_device_json(device) for device in node.network.devices],
        "matrix": {
            "columns": heads,
            "rows": {name: cells for name, *cells in rows},
            "nics": [name for name, _ in matrix_nics(node)],
        },
        "problems": list(node.network.problems),
        "unused": list(node.network.unused),
    }


# Text -------------------------------------------------------------------------------------------


def _tree_lines(node: node_topology.NodeTopology) -> Iterator[str]:
    places = [device.place for device in node.devices.values()]
    of_bridge = {place.bridge: place.numa_node for place in places if place.numa_node}

    def numa_node_of(device: pci.PciDevice) -> str:
        """Return its NUMA node; for a port without one, that of devices at the same host bridge."""
        return device.place.numa_node or of_bridge.get(device.place.bridge, "")

    devices = sorted(
        node.devices.values(),
        key=lambda d: (
            numa_node_of(d),
            d.place.bridge,
            [pci.bus_order(address.rpartition(_INNER)[2]) for address in d.place.chain],
        ),
    )
    for numa_node, at_node in groupby(devices, key=numa_node_of):
        yield f"NUMA node {numa_node}" if numa_node else "NUMA node unknown"
        for bridge, below in groupby(at_node, key=lambda device: device.place.bridge):
            yield f"  {bridge}"
            yield from _device_lines(node, below)


def _device_lines(
    node: node_topology.NodeTopology, devices: Iterable[pci.PciDevice]
) -> Iterator[str]:
    """Yield a line for each device, and for switches that are in a topology file only."""
    shown: set[str] = set()
    for device in devices:
        above = [address for address in device.place.chain[:-1] if _INNER not in address]
        for depth, address in enumerate(above):
            if address not in shown:
                shown.add(address)
                bridge = node.devices.get(address)
                description = _describe_pci_device(node, bridge) if bridge else "switch"
                yield _format_line(depth, address, description)
        if device.address not in shown:
            shown.add(device.address)
            yield _format_line(len(above), device.address, _describe_pci_device(node, device))


def _format_line(depth: int, address: str, description: str) -> str:
    return f"    {'  ' * depth}{address} {description}"


def _describe_pci_device(node: node_topology.NodeTopology, device: pci.PciDevice) -> str:
    gpu = _gpu_at(node, device)
    names = [f"GPU{gpu.index} {gpu.model}"] if gpu else node.names.get(device.address, [])
    network = node.network.device_at(device.address)
    rail = "" if network.rail is None else f"rail {network.rail}"
    terms = [_device_kind(node, device), *names, network.role, rail]
    return ", ".join([" ".join(filter(None, terms)), *_format_link(node.links[device.address])])


def _device_kind(node: node_topology.NodeTopology, device: pci.PciDevice) -> str:
    if device.role != pci.BRIDGE:
        return "" if _gpu_at(node, device) else device.role
    depth = len([a for a in device.place.chain[:-1] if a in node.devices])
    if depth == 0:
        return "root port"
    return "switch" if depth % 2 else "switch port"


def _gpu_at(
    node: node_topology.NodeTopology, device: pci.PciDevice
) -> node_topology.TopologyGpu | None:
    return next((gpu for gpu in node.gpus if gpu.address == device.address), None)


def _format_link(state: pcie_links.PcieLinkState) -> list[str]:
    """Format speed and width, with the maximum if that is more: `32 GT/s x16`, `16 of 32 GT/s x16`."""
    speed = _format_value(state.speed, state.speed_limit, _MEGATRANSFERS)
    width = _format_value(state.width, state.width_limit, 1)
    terms = [f"{speed} GT/s" if speed else "", f"x{width}" if width else ""]
    return [" ".join(filter(None, terms))] if any(terms) else []


def _format_value(now: Reading, limit: Reading, scale: int) -> str:
    if isinstance(now, Absent):
        return ""
    if isinstance(limit, Absent) or now >= limit:
        return f"{now / scale:g}"
    return f"{now / scale:g} of {limit / scale:g}"


def _rail_lines(node: node_topology.NodeTopology) -> Iterator[str]:
    """Yield the rail of each GPU, and the roles of the other network devices."""
    if node.gpus:
        yield "Rails:"
    for gpu in node.gpus:
        rail = node.network.gpu_rails.get(gpu.address)
        head = f"GPU{gpu.index} {gpu.model}: {'no rail' if rail is None else f'rail {rail}'}"
        nics = _nics_of_gpu(node, gpu)
        if not nics:
            head += ", without a NIC nearby"
        yield f"  {head}"
        for nic in nics:
            plane = f", plane {nic.plane}" if len(nics) > 1 else ""
            yield f"    {' '.join(nic.names)}{plane}: {_format_reason(node, gpu, nic)}"
    without_rail = [device for device in node.network.devices if device.rail is None]
    if without_rail:
        yield from ("", "Other network devices:") if node.gpus else ("Network devices:",)
    for device in without_rail:
        yield f"  {' '.join(device.names)}: {device.role or 'role unknown'}; {device.reason}"


def _format_reason(
    node: node_topology.NodeTopology, gpu: node_topology.TopologyGpu, nic: NetworkDevice
) -> str:
    """Return the reason for assigning a NIC to this GPU, with the distance if it is not included."""
    distance = node.format_distance(gpu.address, nic.address)
    return nic.reason if nic.reason.startswith(distance) else f"{distance}, {nic.reason}"


def _nics_of_gpu(
    node: node_topology.NodeTopology, gpu: node_topology.TopologyGpu
) -> list[NetworkDevice]:
    """Return the NICs of a GPU: its own, or the one that it shares with a neighbour."""
    nearest = [device for device in node.network.devices if device.gpu == gpu.address]
    shared = node.network.nic_by_gpu.get(gpu.address, "")
    return nearest or ([node.network.device_at(shared)] if shared else [])


# JSON -------------------------------------------------------------------------------------------


def _device_json(node: node_topology.NodeTopology, device: pci.PciDevice) -> dict[str, Any]:
    state = node.links[device.address]
    return {
        "address": device.address,
        "role": device.role,
        "vendor": device.vendor,
        "device": device.device,
        "names": node.names.get(device.address, []),
        "host_bridge": device.place.bridge,
        "path": list(device.place.chain),
        "numa_node": device.place.numa_node,
        "cpus": node.cpus[device.address],
        "link": {
            name: None if isinstance(reading, Absent) else reading
            for name, reading in (
                ("megatransfers_per_second", state.speed),
                ("max_megatransfers_per_second", state.speed_limit),
                ("lanes", state.width),
                ("max_lanes", state.width_limit),
            )
        },
    }


def _gpu_json(node: node_topology.NodeTopology, gpu: node_topology.TopologyGpu) -> dict[str, Any]:
    return {
        "index": gpu.index,
        "address": gpu.address,
        "model": gpu.model,
        "uuid": gpu.reported.uuid if gpu.reported else "",
        "rail": node.network.gpu_rails.get(gpu.address),
        "nics": [nic.address for nic in _nics_of_gpu(node, gpu)],
    }


def _network_device_json(device: NetworkDevice) -> dict[str, Any]:
    return {
        "address": device.address,
        "rdma": list(device.rdma),
        "interfaces": list(device.interfaces),
        "link_layer": device.link_layer,
        "role": device.role,
        "rail": device.rail,
        "plane": None if device.rail is None else device.plane,
        "gpu": device.gpu,
        "reason": device.reason,
    }


def show_topology(host: Host, settings: TopologySettings, form: str) -> tuple[str, bool]:
    """Return the topology in a format (`text` or `json`), and whether the settings match the node.

    Raises SettingsError for settings that are invalid on every node.
    """
    node = node_topology.read_topology(host, rail_rules.parse_rail_rules(settings))
    shown = json.dumps(as_json(node), indent=1) + "\n" if form == "json" else as_text(node)
    return shown, not node.network.problems
