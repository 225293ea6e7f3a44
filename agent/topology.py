"""Where GPUs and network cards sit in the PCI tree, and which rail a card belongs to.

The rail of a card is the position of the GPU it is nearest to, never the number in its name, which
counts all ports of a server, storage included. Distances follow NCCL (src/graph/topo.h): the fewer
bridges between two devices, the nearer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import IntEnum

from agent.facts import linked, names, text
from agent.host import Host

_DEVICES = "/sys/bus/pci/devices"
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_SAME_SWITCH = 2
NO_NUMA_NODE = "-1"
_NVIDIA, _DISPLAY_CLASS = "0x10de", "0x03"


class Distance(IntEnum):
    """How far two PCI devices are apart, in the words of `nvidia-smi topo -m`."""

    PIX = 1
    PXB = 2
    PHB = 3
    NODE = 4
    SYS = 5


RAIL_REACH = Distance.PXB
"""A card farther away than this is no rail of the GPU: GPUDirect would not use it by default."""


def pci_address(text: str) -> str:
    """A PCI address as sysfs writes it: 0000:3b:00.0. NVML writes 00000000:3B:00.0."""
    domain, _, rest = text.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}" if rest else text.lower()


def pci_path(resolved: str) -> tuple[str, ...]:
    """Host bridge and PCI addresses along a resolved sysfs path.

    /sys/devices/pci0000:3a/0000:3a:01.0/0000:3b:00.0 gives (pci0000:3a, 0000:3a:01.0, 0000:3b:00.0).
    """
    parts = resolved.split("/")
    bridge = next((part for part in parts if part.startswith("pci")), "")
    return (bridge, *[part for part in parts if _ADDRESS.fullmatch(part)])


def distance(one: Sequence[str], other: Sequence[str], *, same_numa_node: bool) -> Distance:
    """How far two devices are apart, given their PCI paths."""
    if one[0] != other[0]:
        return Distance.NODE if same_numa_node else Distance.SYS
    shared = 0
    for left, right in zip(one[1:], other[1:], strict=False):
        if left != right:
            break
        shared += 1
    if shared == 0:
        return Distance.PHB
    deepest = max(len(one), len(other)) - 1
    return Distance.PIX if deepest - shared <= _SAME_SWITCH else Distance.PXB


def gpu_addresses(host: Host) -> list[str]:
    """PCI addresses of NVIDIA GPUs, in bus order, which is the order NVML counts them in."""
    return [address for address in names(host, _DEVICES) if _is_gpu(host, address)]


def _is_gpu(host: Host, address: str) -> bool:
    folder = f"{_DEVICES}/{address}"
    vendor, class_ = text(host, f"{folder}/vendor"), text(host, f"{folder}/class")
    return vendor == _NVIDIA and class_.startswith(_DISPLAY_CLASS)


def rails(host: Host, cards: Mapping[str, str], gpus: Sequence[str]) -> dict[str, int]:
    """The rail of each card that has one: card name to position of its GPU.

    `cards` maps names to PCI addresses, `gpus` lists PCI addresses. Each GPU takes the nearest card
    that is still free, nearest pairs first, ties in order; cards beyond `RAIL_REACH` stay without a
    rail.
    """
    paths = {address: _path(host, address) for address in (*cards.values(), *gpus)}
    nodes = {address: _numa_node(host, address) for address in paths}
    pairs = sorted(
        (
            distance(paths[gpu], paths[address], same_numa_node=_same(nodes[gpu], nodes[address])),
            position,
            order,
            name,
        )
        for order, (name, address) in enumerate(cards.items())
        for position, gpu in enumerate(gpus)
        if paths[address][0] and paths[gpu][0]
    )
    found: dict[str, int] = {}
    for apart, position, _, name in pairs:
        if apart <= RAIL_REACH and name not in found and position not in found.values():
            found[name] = position
    return found


def _same(one: str, other: str) -> bool:
    return one == other != NO_NUMA_NODE


def _path(host: Host, address: str) -> tuple[str, ...]:
    try:
        return pci_path(host.resolve(f"{_DEVICES}/{address}"))
    except OSError:
        return ("",)


def _numa_node(host: Host, address: str) -> str:
    return text(host, f"{_DEVICES}/{address}/numa_node") or NO_NUMA_NODE


def rdma_cards(host: Host) -> dict[str, str]:
    """RDMA devices by name with the PCI address each sits at."""
    folder = "/sys/class/infiniband"
    found = {name: linked(host, f"{folder}/{name}/device") for name in names(host, folder)}
    return {name: address for name, address in found.items() if _ADDRESS.fullmatch(address)}


def rails_by_address(host: Host) -> dict[str, int]:
    """The rail of every RDMA card that has one, by PCI address."""
    cards = rdma_cards(host)
    # Two ports of one card share an address: the first stands for both.
    by_address = {address: name for name, address in reversed(cards.items())}
    unique = {name: address for address, name in by_address.items()}
    found = rails(host, dict(sorted(unique.items())), gpu_addresses(host))
    return {cards[name]: rail for name, rail in found.items()}
