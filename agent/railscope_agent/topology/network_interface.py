"""A network interface as the kernel's device tree describes it: a port, or a part of one.

Sources: torvalds/linux Documentation/ABI/testing/sysfs-class-net (device, iflink, phys_port_name) and
sysfs-bus-pci (physfn); Documentation/networking/representors.rst; net/devlink/port.c,
__devlink_port_phys_port_name_get, and ef100_rep.c (names of ports); drivers/infiniband/ulp/ipoib, ipoib_get_iflink.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from railscope.reading import Reading, known_speed, parse_integer
from railscope_agent.host import Host, Json
from railscope_agent.sampling.fact_readers import list_names, read_link_name, read_text
from railscope_agent.topology import pci

_PORT_NAME = re.compile(r"(l\d+)?p\d+(s\d+)?")
_REPRESENTED_NAME = re.compile(r"(c\d+)?(p\d+)?pf\d+((vf|sf)\d+)?")
_SUFFIX = re.compile(r"\s*\[[^\[\]\s]*\]?$")
_REPRESENTOR_DRIVER = "_rep"
"""End of the names mlx5e_rep, efx_ef100_rep and rvu_rep. Linux before 5.13 uses mlx5e_rep for the port itself, too."""

_INFINIBAND = "32"
"""ARPHRD_INFINIBAND of linux/if_arp.h: an interface of IP over InfiniBand."""


class InterfaceKind(Enum):
    """Part of a network device that an interface stands for."""

    PORT = "port"
    VIRTUAL_FUNCTION = "virtual function"
    SUBFUNCTION = "sub-function"
    REPRESENTOR = "representor"
    """End of a virtual function or a sub-function in the switch of its NIC: its packets are counted at the port."""


_WHOLE = {InterfaceKind.PORT, InterfaceKind.VIRTUAL_FUNCTION}


@dataclass(frozen=True, slots=True)
class NetworkInterface:
    """A network interface of a device, with its other identifiers in the kernel; unknown ones are empty.

    `function` is the PCI function that it belongs to, as a whole or as a part; `driver` is that of its device.
    """

    name: str
    kind: InterfaceKind = InterfaceKind.PORT
    function: str = ""
    driver: str = ""
    is_infiniband: bool = False
    rdma_device: str = ""
    rdma_port: str = ""

    @property
    def is_port(self) -> bool:
        """True if it represents a port of this node."""
        return self.kind is InterfaceKind.PORT


def read_interfaces(host: Host) -> dict[str, NetworkInterface]:
    """Return the interfaces that have a device, by name: no bond, bridge, VLAN, tunnel or child of a P_Key."""
    found = (_read_interface(host, name) for name in list_names(host, pci.NET_CLASS))
    return {interface.name: interface for interface in found if interface}


def is_infiniband(host: Host, interface: str) -> bool:
    """True for IP over InfiniBand. Its state is not that of the port: verbs run over a port that is active while it is down."""
    return read_text(host, f"{pci.NET_CLASS}/{interface}/type") == _INFINIBAND


def read_driver(host: Host, interface: str) -> dict[str, Json]:
    """Return ethtool's answer about the driver of an interface (linux/ethtool.h, ETHTOOL_GDRVINFO). Raises OSError.

    A suffix in brackets is left out: enhanced IPoIB is mlx5_core[ib_ipoib], with the statistics of mlx5_core
    (drivers/net/ethernet/mellanox/mlx5/core/ipoib/ethtool.c).
    """
    answer: dict[str, Json] = host.call("ethtool", "driver", interface)
    return {**answer, "driver": _SUFFIX.sub("", answer["driver"])}


def parse_speed(content: bytes) -> Reading:
    """Parse a speed in Mb/s as sysfs reports it."""
    return known_speed(parse_integer(content))


def whole_functions(interfaces: Mapping[str, NetworkInterface]) -> dict[str, str]:
    """Return the interfaces that represent a PCI function as a whole: addresses by name."""
    return {i.name: i.function for i in interfaces.values() if i.function and i.kind in _WHOLE}


def with_rdma_device(host: Host, interface: NetworkInterface, device: str) -> NetworkInterface:
    """Return an interface with its RDMA device and port: ports of one PCI function count from zero in `dev_port`."""
    number = read_text(host, f"{pci.NET_CLASS}/{interface.name}/dev_port")
    port = str(int(number) + 1) if number.isdecimal() else ""
    ports = list_names(host, f"{pci.RDMA_CLASS}/{device}/ports")
    return replace(
        interface, rdma_device=device, rdma_port=port if port in ports else next(iter(ports), "")
    )


def _read_interface(host: Host, name: str) -> NetworkInterface | None:
    directory = f"{pci.NET_CLASS}/{name}"
    try:
        device = host.resolve(f"{directory}/device")
    except OSError:
        return None
    if _is_stacked(host, directory):
        return None
    function, is_whole = pci.function_above(device), pci.is_function(device)
    if not is_whole and pci.read_role(host, function) != pci.NIC:
        function = (
            ""  # a USB adapter, below the function of its controller, or no PCI device at all
        )
    try:
        driver: str = read_driver(host, name)["driver"]
    except OSError:
        driver = read_link_name(host, f"{directory}/device/driver")
    # Representors first: they have the device of their NIC, and would be taken for its ports or parts.
    kind = InterfaceKind.PORT
    if _is_representor(read_text(host, f"{directory}/phys_port_name"), driver):
        kind = InterfaceKind.REPRESENTOR
    elif function and not is_whole:
        kind = InterfaceKind.SUBFUNCTION
    elif pci.is_virtual_function(host, f"{directory}/device"):
        kind = InterfaceKind.VIRTUAL_FUNCTION
    return NetworkInterface(name, kind, function, driver, is_infiniband(host, name))


def _is_stacked(host: Host, directory: str) -> bool:
    """True if an interface sends through another one: `iflink` is its index. Legacy children of a P_Key name it."""
    index, lower = (read_text(host, f"{directory}/{file}") for file in ("ifindex", "iflink"))
    return bool(index and lower and index != lower) or "parent" in list_names(host, directory)


def _is_representor(port_name: str, driver: str) -> bool:
    if _PORT_NAME.fullmatch(port_name):
        return False
    return bool(_REPRESENTED_NAME.fullmatch(port_name)) or driver.endswith(_REPRESENTOR_DRIVER)
