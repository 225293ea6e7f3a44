"""NVLinks between the GPUs of a node, and their links to a Grace processor (C2C), as NVML reports them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import permutations

from railscope.catalog.nvlink import NVLINK_INACTIVE
from railscope_agent.host import Host
from railscope_agent.sampling.fact_readers import call_nvml
from railscope_agent.topology import pci

_LINK_COUNT, _LINK_STATE, _C2C_COUNT = 91, 165, 170
"""Field ids of nvml.h."""
_MAX_LINKS = 36
"""NVML_NVLINK_MAX_LINKS."""
_TO_GPU, _TO_SWITCH = 0, 2
"""Answers of nvmlDeviceGetNvLinkRemoteDeviceType."""
_NO_NODE = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class GpuLinks:
    """A GPU as NVML reports it: index, model, and the remote ends of its links.

    `peers` counts the direct links to other GPUs by their PCI address, `to_switches` those to NVSwitches,
    which connect all GPUs. Both count links that are up. `memory_node` is the NUMA node of the GPU's own memory, empty if it
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


def read_gpu_links(host: Host) -> tuple[GpuLinks, ...]:
    """Return every GPU that the driver reports; none without a driver."""
    count = call_nvml(host, "nvmlDeviceGetCount")
    links = (_read_gpu(host, index) for index in range(count or 0))
    return tuple(gpu for gpu in links if gpu)


def count_bonded_links(gpus: tuple[GpuLinks, ...]) -> dict[tuple[str, str], int]:
    """Return the number of NVLinks between two GPUs, by their addresses, in either order.

    Between GPUs at switches it is the lesser number of both.
    """
    bonded: dict[tuple[str, str], int] = {}
    for gpu, other in permutations(gpus, 2):
        # Each end counts the links, and one of the two may not have answered.
        straight = max(gpu.peers.get(other.address, 0), other.peers.get(gpu.address, 0))
        links = straight or min(gpu.to_switches, other.to_switches)
        if links:
            bonded[gpu.address, other.address] = links
    return bonded


def _read_gpu(host: Host, index: int) -> GpuLinks | None:
    place = call_nvml(host, "nvmlDeviceGetPciInfo", index)
    if not place:
        return None
    peers: Counter[str] = Counter()
    switched = 0
    count = _read_field(host, index, _LINK_COUNT)
    # Without a count every possible link is queried: those that do not exist answer with an error.
    for link in range(_MAX_LINKS if count is None else min(count, _MAX_LINKS)):
        state = _read_field(host, index, f"{_LINK_STATE}:{link}")
        # Drivers that do not have the field answer the older function.
        if state is None:
            state = call_nvml(host, "nvmlDeviceGetNvLinkState", index, link)
        if state in {None, NVLINK_INACTIVE}:
            continue
        leads_to = call_nvml(host, "nvmlDeviceGetNvLinkRemoteDeviceType", index, link)
        if leads_to == _TO_SWITCH:
            switched += 1
        elif leads_to == _TO_GPU:
            remote = call_nvml(host, "nvmlDeviceGetNvLinkRemotePciInfo", index, link)
            if remote and remote["busId"]:
                peers[pci.pci_address(remote["busId"])] += 1
    node = call_nvml(host, "nvmlDeviceGetNumaNodeId", index)
    return GpuLinks(
        index,
        pci.pci_address(place["busId"]),
        call_nvml(host, "nvmlDeviceGetName", index) or "",
        call_nvml(host, "nvmlDeviceGetUUID", index) or "",
        peers,
        switched,
        _read_field(host, index, _C2C_COUNT) or 0,
        "" if node is None or node == _NO_NODE else str(node),
    )


def _read_field(host: Host, index: int, entry: int | str) -> int | None:
    answer = call_nvml(host, "nvmlDeviceGetFieldValues", index, entry)
    if answer is None:
        return None
    (value,), (code,) = answer
    return None if code else int(value)
