"""Physical network interfaces of a node, and the settings read from one of them.

An interface is physical if /sys/class/net has a link to its device (not a bond, a bridge, a VLAN or
a tunnel), and represents a port of a NIC: not a virtual function, which has a `physfn`, and not a
representor of one, with a port name such as pf0vf3 (Documentation/ABI/testing/sysfs-class-net,
sysfs-bus-pci; Documentation/networking/representors.rst).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from railscope.catalog.declare import Metric
from railscope.frame import Column, Entity
from railscope.reading import Absent, Reading
from railscope_agent.host import Host
from railscope_agent.sampling.fact_readers import list_names, read_link_name, read_text

NET = "/sys/class/net"
NO_VALUE = "none"
NO_INTERFACE = "the node has no physical network interface"
PRIORITIES = 8
_REPRESENTOR = re.compile(r"(c\d+)?pf\d+(vf|sf)\d+")
_MAX_TEXT_LENGTH = 200
_DIGEST = 8


@dataclass(frozen=True, slots=True)
class PhysicalInterface:
    """A physical network interface, with its other identifiers in the kernel."""

    interface: str
    driver: str = ""
    pci_address: str = ""
    rdma_device: str = ""
    rdma_port: str = ""


def physical_interfaces(host: Host) -> list[str]:
    """Interfaces that represent a port of a NIC."""
    return [name for name in list_names(host, NET) if _is_physical(host, f"{NET}/{name}")]


def _is_physical(host: Host, directory: str) -> bool:
    return (
        "device" in list_names(host, directory)
        and "physfn" not in list_names(host, f"{directory}/device")
        and not _REPRESENTOR.fullmatch(read_text(host, f"{directory}/phys_port_name"))
    )


def read_interface(host: Host, interface: str) -> PhysicalInterface:
    """An interface with its driver, its PCI address and its RDMA port, if it has them.

    If several ports share one PCI function they count from zero in `dev_port`.
    """
    directory = f"{NET}/{interface}"
    devices = list_names(host, f"{directory}/device/infiniband")
    number = read_text(host, f"{directory}/dev_port")
    ports = list_names(host, f"/sys/class/infiniband/{devices[0]}/ports") if devices else []
    port = str(int(number) + 1) if number.isdecimal() else ""
    return PhysicalInterface(
        interface,
        driver=read_link_name(host, f"{directory}/device/driver"),
        pci_address=read_link_name(host, f"{directory}/device"),
        rdma_device=devices[0] if devices else "",
        rdma_port=port if port in ports else next(iter(ports), ""),
    )


@dataclass
class SettingAnswers:
    """Result of one query of a NIC: texts that are watched for changes, and readings."""

    nic: PhysicalInterface
    texts: dict[str, str] = field(default_factory=dict)
    readings: dict[Column, Reading] = field(default_factory=dict)

    def set(self, setting: str, text: str) -> None:
        """Add a setting in its canonical form; a long text is truncated, with its digest appended."""
        if len(text) > _MAX_TEXT_LENGTH:
            digest = hashlib.sha256(text.encode()).hexdigest()[:_DIGEST]
            text = f"{text[:_MAX_TEXT_LENGTH]}... {digest}"
        self.texts[setting] = text

    def put(self, metric: Metric, reading: Reading, *part: str) -> None:
        """Add a number of the interface or of a part of it.

        Unsupported and missing values have no column.
        """
        if reading not in {Absent.UNSUPPORTED, Absent.GONE}:
            self.readings[metric, Entity(metric.about, (self.nic.interface, *part))] = reading

    def number(self, setting: str, metric: Metric, reading: Reading, *part: str) -> None:
        """Add a setting that is a number."""
        self.put(metric, reading, *part)
        if not isinstance(reading, Absent):
            self.set(setting, str(reading))

    def switches(
        self, setting: str, metric: Metric, states: dict[int, Reading], *part: str
    ) -> None:
        """Add the on/off state of each priority; as a text only if all states are readable."""
        for priority, state in states.items():
            self.put(metric, state, *part, str(priority))
        supported = {p: s for p, s in states.items() if s not in {Absent.UNSUPPORTED, Absent.GONE}}
        if supported and not any(isinstance(state, Absent) for state in supported.values()):
            self.set(
                setting, join_items(priority for priority, state in supported.items() if state)
            )


def join_items(items: Iterable[object]) -> str:
    """Items of a list in their order, or `NO_VALUE` if there are none."""
    return ",".join(map(str, items)) or NO_VALUE
