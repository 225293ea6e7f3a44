"""Topology file of NCCL (NCCL_TOPO_FILE): the PCI tree of a cloud instance, which its guest does not show.

Format: NVIDIA/nccl src/graph/xml.cc. A `pci` element that contains others is a switch: NCCL omits the two
ports of each that sysfs shows. They are added here, so that places from such a file and from sysfs are
comparable.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator

from railscope import convert_errors
from railscope_agent.topology import nccl_topology, pci as pci_tree

_LINKS = {"nvlink": "NV", "xgmi": "XGMI"}
_MASK_BITS = 32
_MASK = re.compile(r"[0-9a-fA-F]+(,[0-9a-fA-F]+)*")
_COUNT = re.compile(r"[0-9]{1,4}")


def parse_nccl_topology(content: bytes) -> nccl_topology.NcclTopology:
    """Parse such a file. Raises NcclFileError."""
    # Entities that contain one another expand a small file to gigabytes.
    if b"<!ENTITY" in content or b"<!DOCTYPE" in content:
        message = "unexpected DOCTYPE or entity"
        raise nccl_topology.NcclFileError(message)
    # ValueError and LookupError: encodings that the parser does not support or know.
    unreadable = (ET.ParseError, ValueError, LookupError)
    with convert_errors(unreadable, nccl_topology.NcclFileError, "invalid XML: "):
        root = ET.fromstring(content)  # noqa: S314 - the operator's file, and no entities
    if root.tag != "system":
        message = f"unexpected root element {root.tag!r}: expected 'system'"
        raise nccl_topology.NcclFileError(message)
    topology = nccl_topology.NcclTopology()
    for number, cpu in enumerate(root.findall("cpu")):
        node = cpu.get("numaid", "")
        node = "" if node == pci_tree.NO_NUMA_NODE else node
        if cpu.get("affinity"):
            topology.cpus[node] = format_cpu_list(cpu.attrib["affinity"])
        for pci, above in _devices(cpu, ()):
            _add_device(topology, pci, pci_tree.PciPlace(f"cpu{number}", _chain(above, pci), node))
    return topology


def _add_device(
    topology: nccl_topology.NcclTopology, pci: ET.Element, place: pci_tree.PciPlace
) -> None:
    address = place.address
    if address in topology.places:
        message = f"duplicate PCI address {address}"
        raise nccl_topology.NcclFileError(message)
    topology.places[address] = place
    counts: Counter[tuple[str, str]] = Counter()
    for tag, kind in _LINKS.items():
        for link in pci.findall(f"gpu/{tag}"):
            target = pci_tree.pci_address(link.get("target", ""))
            # Targets may be other ends than GPUs, with addresses that are none.
            if pci_tree.is_address(target) and target != address:
                counts[target, kind] += _link_count(link)
    for (target, kind), count in counts.items():
        topology.links[address, target] = kind, count


def _link_count(link: ET.Element) -> int:
    text = link.get("count", "1")
    if not _COUNT.fullmatch(text):
        message = f"invalid number of links {text!r}"
        raise nccl_topology.NcclFileError(message)
    return int(text)


def _devices(
    element: ET.Element, above: tuple[str, ...]
) -> Iterator[tuple[ET.Element, tuple[str, ...]]]:
    """Yield every PCI device below an element, with the addresses of the switches above it."""
    for pci in element.findall("pci"):
        yield pci, above
        yield from _devices(pci, (*above, _address(pci)))


def _address(pci: ET.Element) -> str:
    bus_id = pci.get("busid", "")
    address = pci_tree.pci_address(bus_id)
    if not pci_tree.is_address(address):
        message = f"invalid busid {bus_id!r}: expected a PCI address such as 0000:3b:00.0"
        raise nccl_topology.NcclFileError(message)
    return address


def _chain(above: tuple[str, ...], pci: ET.Element) -> tuple[str, ...]:
    """Return, for each switch, its address and that of its port below, and finally the device."""
    address = _address(pci)
    chain: list[str] = []
    # The name of the lower port contains what is below it: two devices at one switch have different lower
    # ports, as in sysfs.
    for switch, below in zip(above, (*above, address)[1:], strict=True):
        chain += [switch, f"{switch}>{below}"]
    return (*chain, address)


def format_cpu_list(mask: str) -> str:
    """Convert a CPU mask as the kernel prints it, `000000ff,ffff0000,00ffffff`, to `0-23,48-71`.

    Raises NcclFileError.
    """
    if not _MASK.fullmatch(mask):
        message = f"invalid affinity {mask!r}: expected a CPU mask"
        raise nccl_topology.NcclFileError(message)
    value = 0
    for part in mask.split(","):
        value = value << _MASK_BITS | int(part, 16)
    ranges, cpu = [], 0
    while value >> cpu:
        if value >> cpu & 1:
            first = cpu
            while value >> cpu + 1 & 1:
                cpu += 1
            ranges.append(str(first) if first == cpu else f"{first}-{cpu}")
        cpu += 1
    return ",".join(ranges)
