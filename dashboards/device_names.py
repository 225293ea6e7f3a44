"""All names of GPUs and NICs in tables: joins with the metrics that carry the names of devices.

A GPU has an index, a UUID and a PCI address; a NIC has an interface, an RDMA device and a rail. A
device without a name in any of these metrics keeps its row, with the names that its own metric has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from dashboards.query import Query

_GPU_TITLES = {"index": "GPU", "gpu": "UUID", "pci_address": "PCI address"}
_NIC_TITLES = {"interface": "Interface", "rdma_device": "RDMA device", "rail": "Rail"}
_PORT_TITLES = {"interface": "Interface", "device": "RDMA device", "port": "Port", "rail": "Rail"}


@dataclass(frozen=True, slots=True)
class DeviceNames:
    """A join with device names: the labels that identify a device, and a metric with its names."""

    key: tuple[str, ...]
    """Labels that identify a device within its node."""
    titles: Mapping[str, str]
    """Title of each label of a device, in the order of the columns."""
    info: str
    """Expression of the series with the names; of several for one device, the highest value counts."""

    @property
    def on(self) -> str:
        """Labels that series with names and series without them have in common."""
        return ", ".join(("node", *self.key))

    @property
    def added(self) -> str:
        """Labels that a join adds."""
        return ", ".join(label for label in self.titles if label not in self.key)

    def join(self, expression: str) -> str:
        """Return the series of an expression that have names, with their names."""
        best = f"topk by ({self.on}) (1, {self.info})"
        names = f"group by ({self.on}, {self.added}) ({best})"
        return f"({expression}) * on ({self.on}) group_left ({self.added}) {names}"


GPU = DeviceNames(("gpu",), _GPU_TITLES, "railscope_gpu_info")
PAST_GPU = replace(GPU, info="last_over_time(railscope_gpu_info[6h])")
"""GPUs that may have vanished: their names are those of the last six hours."""
GPU_AT_ADDRESS = DeviceNames(("pci_address",), _GPU_TITLES, "railscope_gpu_info")
NIC = DeviceNames(("interface",), _NIC_TITLES, "railscope_nic_info")
RDMA_PORT = DeviceNames(("device", "port"), _PORT_TITLES, "railscope_rdma_port_info")
NIC_AT_ADDRESS = DeviceNames(
    ("pci_address",),
    _NIC_TITLES,
    # Ports and virtual functions share an address: the one on a rail counts. InfiniBand without IP
    # has no interface.
    '(railscope_nic_info{rail!=""} * 3 or railscope_nic_info * 2 '
    'or label_join(railscope_rdma_port_info, "rdma_device", "", "device"))',
)


def ways_to_names(keys: Mapping[str, str]) -> tuple[DeviceNames, ...]:
    """Return the joins for the names of the devices of a table with these key labels; none if complete."""
    if "gpu" in keys:
        return () if "index" in keys else (GPU,)
    if "interface" in keys:
        return () if "rail" in keys else (NIC,)
    if "device" in keys:
        return (RDMA_PORT,)
    if "pci_address" in keys:
        return (GPU_AT_ADDRESS,) if "xid" in keys else (GPU_AT_ADDRESS, NIC_AT_ADDRESS)
    return ()


def with_device_titles(keys: Mapping[str, str], *ways: DeviceNames) -> dict[str, str]:
    """Return the keys of a table, with all names of its devices in place of the key of each."""
    found: dict[str, str] = {}
    for label, title in keys.items():
        shown = [way.titles for way in ways if label in way.key]
        for titles in shown or [{label: title}]:
            found |= titles
        if label not in found:
            found[label] = title
    return found


def with_device_names(query: Query, *ways: DeviceNames) -> Query:
    """Add all device names that nodes report to a query."""
    nameless = " ".join(f"unless on ({way.on}) {way.info}" for way in ways)
    named = " or ".join(way.join(query.expression) for way in ways)
    return replace(query, expression=f"{named} or ({query.expression}) {nameless}")
