"""Distance between two PCI devices, as NCCL computes it (src/graph/topo.cc, src/graph/xml.cc)."""

from __future__ import annotations

from enum import IntEnum

from railscope_agent.topology.pci import PciPlace

_SAME_SWITCH = 2
"""Levels below the shared port of a switch: its downstream port, and the device there."""


class PciDistance(IntEnum):
    """Distance between two PCI devices, in the terms of `nvidia-smi topo -m`; P2C is NCCL's."""

    PIX = 1
    PXB = 2
    P2C = 3
    PHB = 4
    NODE = 5
    SYS = 6


DISTANCE_MEANINGS = {
    PciDistance.SYS: "Connection traversing PCIe as well as the SMP interconnect between NUMA nodes"
    " (e.g., QPI/UPI)",
    PciDistance.NODE: "Connection traversing PCIe as well as the interconnect between PCIe Host"
    " Bridges within a NUMA node",
    PciDistance.PHB: "Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)",
    PciDistance.P2C: "Connection traversing C2C between GPU and CPU, then PCIe of the same CPU",
    PciDistance.PXB: "Connection traversing multiple PCIe bridges (without traversing the PCIe Host"
    " Bridge)",
    PciDistance.PIX: "Connection traversing at most a single PCIe bridge",
}
"""Explanation of each distance, as printed by `nvidia-smi topo -m`, which users are familiar with."""

RAIL_REACH = PciDistance.PXB
"""Maximum distance at which NCCL uses GPUDirect RDMA between a NIC and a GPU by default, except over C2C."""


def distance_between(place: PciPlace, other: PciPlace) -> PciDistance:
    """Return the distance of two devices. It is symmetric; a device is PIX to itself."""
    if place.bridge != other.bridge:
        return PciDistance.NODE if same_numa_node(place, other) else PciDistance.SYS
    shared = 0
    for left, right in zip(place.chain, other.chain, strict=False):
        if left != right:
            break
        shared += 1
    if shared == 0:
        return PciDistance.PHB
    # The deeper device decides: it may be below a further switch.
    deepest = max(len(place.chain), len(other.chain))
    return PciDistance.PIX if deepest - shared <= _SAME_SWITCH else PciDistance.PXB


def same_numa_node(place: PciPlace, other: PciPlace) -> bool:
    """True if two devices are known to be at the same NUMA node."""
    return place.numa_node == other.numa_node != ""


def c2c_distance(gpu: PciPlace, other: PciPlace) -> PciDistance:
    """Return the distance of a device from a GPU that is linked to its processor by C2C.

    A device at the same processor is P2C, whatever its host bridge.
    """
    distance = distance_between(gpu, other)
    near = distance in {PciDistance.PHB, PciDistance.NODE} and same_numa_node(gpu, other)
    return PciDistance.P2C if near else distance
