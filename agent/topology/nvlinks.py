"""NVLinks between GPUs, and links to a Grace processor (C2C), as NVML reports them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import permutations

from agent.host import Host, Json, NvmlError
from agent.topology.pci import pci_address

_LINK_COUNT, _LINK_STATE, _C2C_COUNT = 91, 165, 170
_MAX_LINKS = 36
_ACTIVE, _TO_GPU, _TO_SWITCH = 1, 0, 2
_NO_NODE = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class GpuLinks:
    """A GPU as NVML reports it: index, model, and the remote ends of its links.

    `peers` counts active direct links to other GPUs by their PCI address, `to_switches` those to
    NVSwitches, which connect all GPUs. `memory_node` is the NUMA node of the GPU's own memory, empty if it
    has none.
    """

    index: int
    address: str
    model: str
    uuid: str
    peers: Mapping[str, int]
    to_switches: int
    c2c_links: int
    memory_node: str


def look(host: Host) -> tuple[GpuLinks, ...]:
    """Return every GPU that the driver reports; none without a driver."""
    count = ask(host, "nvmlDeviceGetCount")
    found = (_gpu(host, index) for index in range(count or 0))
    return tuple(gpu for gpu in found if gpu)


def bonded(gpus: tuple[GpuLinks, ...]) -> dict[tuple[str, str], int]:
    """Return the number of NVLinks between two GPUs, by their addresses, in either order.

    Between GPUs at switches it is the lesser number of both.
    """
    found: dict[tuple[str, str], int] = {}
    for one, other in permutations(gpus, 2):
        straight = max(one.peers.get(other.address, 0), other.peers.get(one.address, 0))
        links = straight or min(one.to_switches, other.to_switches)
        if links:
            found[one.address, other.address] = links
    return found


def ask(host: Host, function: str, *arguments: int) -> Json:
    """Return an answer of NVML, or None if the call fails."""
    try:
        return host.call("nvml", function, *arguments)
    except (NvmlError, OSError):
        return None


def _gpu(host: Host, index: int) -> GpuLinks | None:
    place = ask(host, "nvmlDeviceGetPciInfo", index)
    if not place:
        return None
    peers: Counter[str] = Counter()
    switched = 0
    for link in range(_links(host, index)):
        if _state(host, index, link) != _ACTIVE:
            continue
        leads_to = ask(host, "nvmlDeviceGetNvLinkRemoteDeviceType", index, link)
        if leads_to == _TO_SWITCH:
            switched += 1
        elif leads_to == _TO_GPU:
            remote = ask(host, "nvmlDeviceGetNvLinkRemotePciInfo", index, link)
            if remote and remote["busId"]:
                peers[pci_address(remote["busId"])] += 1
    node = ask(host, "nvmlDeviceGetNumaNodeId", index)
    return GpuLinks(
        index,
        pci_address(place["busId"]),
        ask(host, "nvmlDeviceGetName", index) or "",
        ask(host, "nvmlDeviceGetUUID", index) or "",
        peers,
        switched,
        _field(host, index, _C2C_COUNT) or 0,
        "" if node is None or node == _NO_NODE else str(node),
    )


def _links(host: Host, index: int) -> int:
    told = _field(host, index, _LINK_COUNT)
    return _MAX_LINKS if told is None else min(told, _MAX_LINKS)


def _state(host: Host, index: int, link: int) -> Json:
    told = _field(host, index, f"{_LINK_STATE}:{link}")
    return ask(host, "nvmlDeviceGetNvLinkState", index, link) if told is None else told


def _field(host: Host, index: int, entry: int | str) -> int | None:
    try:
        (value,), (code,) = host.call("nvml", "nvmlDeviceGetFieldValues", index, entry)
    except (NvmlError, OSError):
        return None
    return None if code else int(value)
