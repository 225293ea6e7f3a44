"""Entries of the directories of network interfaces and of the devices behind them.

A NIC's PCI device can be reached by its address, its interface and its RDMA device; everything that is
recorded below one of these paths is present below all of them.
"""

from __future__ import annotations

from collections import defaultdict

from railscope.capture import Moment
from simulator.machine import ETHERNET, LOOPBACK, Port
from simulator.model import NodeModel

_NET, _RDMA, _PCI = "/sys/class/net", "/sys/class/infiniband", "/sys/bus/pci/devices"
_OF_ALL_DEVICES = {"driver", "net", "subsystem"}


def show(model: NodeModel, into: Moment) -> None:
    """Add the directory entries to a `Moment` that contains all other results."""
    entries = _entries(into)
    for cable in model.present_cables:
        _show_card(into, cable.port, entries)
    into.names[f"{_NET}/{LOOPBACK}"] = sorted(entries[f"{_NET}/{LOOPBACK}"] - {"device"})
    directory = f"{_NET}/{ETHERNET}"
    into.names[directory] = sorted(entries[directory])
    into.names[f"{directory}/device"] = sorted(_OF_ALL_DEVICES)
    into.links[f"{directory}/device/driver"] = "/sys/bus/virtio/drivers/virtio_net"


def _show_card(into: Moment, port: Port, entries: dict[str, set[str]]) -> None:
    net, pci = f"{_NET}/{port.interface}", f"{_PCI}/{port.pci_address}"
    rdma = f"{_RDMA}/{port.rdma_device}"
    into.names[net] = sorted(entries[net])
    paths = (pci, f"{net}/device", f"{rdma}/device")
    found = set().union(*(entries[path] for path in paths), _OF_ALL_DEVICES, {"infiniband"})
    into.names[f"{net}/device"] = sorted(found)
    into.names[f"{net}/device/infiniband"] = [port.rdma_device]
    into.links[f"{net}/device/driver"] = into.links[f"{pci}/driver"]


def _entries(seen: Moment) -> dict[str, set[str]]:
    """Return the entries of all directories that a `Moment` has content for."""
    found: dict[str, set[str]] = defaultdict(set)
    for section in (seen.files, seen.links):
        for path, content in section.items():
            if path.startswith((_NET, _RDMA, _PCI)) and not isinstance(content, dict):
                directory, _, name = path.rpartition("/")
                while name and name not in found[directory]:
                    found[directory].add(name)
                    directory, _, name = directory.rpartition("/")
    return found
