"""Distance between two PCI devices, as in NCCL (src/graph/topo.cc, src/graph/xml.cc)."""

from __future__ import annotations

from enum import IntEnum

from agent.topology.pci import Place

_SAME_SWITCH = 2
"""Levels below the shared port of a switch: its downstream port, and the device there."""


class Distance(IntEnum):
    """Distance between two PCI devices, in the terms of `nvidia-smi topo -m`; P2C is NCCL's."""

    PIX = 1
    PXB = 2
    P2C = 3
    PHB = 4
    NODE = 5
    SYS = 6


MEANING = {
    Distance.SYS: "Connection traversing PCIe as well as the SMP interconnect between NUMA nodes"
    " (e.g., QPI/UPI)",
    Distance.NODE: "Connection traversing PCIe as well as the interconnect between PCIe Host"
    " Bridges within a NUMA node",
    Distance.PHB: "Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)",
    Distance.P2C: "Connection traversing C2C between GPU and CPU, then PCIe of the same CPU",
    Distance.PXB: "Connection traversing multiple PCIe bridges (without traversing the PCIe Host"
    " Bridge)",
    Distance.PIX: "Connection traversing at most a single PCIe bridge",
}
"""Explanation of each distance, as printed by `nvidia-smi topo -m`, which users are familiar with."""

RAIL_REACH = Distance.PXB
"""Maximum distance for GPUDirect RDMA between a NIC and a GPU, except over C2C."""


def distance(one: Place, other: Place) -> Distance:
    """Return the distance of two devices. It is symmetric; a device is PIX to itself."""
    if one.bridge != other.bridge:
        return Distance.NODE if same_numa_node(one, other) else Distance.SYS
    shared = 0
    for left, right in zip(one.chain, other.chain, strict=False):
        if left != right:
            break
        shared += 1
    if shared == 0:
        return Distance.PHB
    deepest = max(len(one.chain), len(other.chain))
    return Distance.PIX if deepest - shared <= _SAME_SWITCH else Distance.PXB


def same_numa_node(one: Place, other: Place) -> bool:
    """True if two devices are known to be at the same NUMA node."""
    return one.numa_node == other.numa_node != ""


def over_c2c(gpu: Place, other: Place) -> Distance:
    """Return the distance of a device from a GPU that is linked to its processor by C2C.

    A device at the same processor is P2C, whatever its host bridge.
    """
    apart = distance(gpu, other)
    near = apart in {Distance.PHB, Distance.NODE} and same_numa_node(gpu, other)
    return Distance.P2C if near else apart
