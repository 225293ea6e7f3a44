"""Formats of runtimes: Docker's container files, libvirt's XML, and the command line of QEMU.

Docker's container file is /var/lib/docker/containers/ID/config.v2.json. It contains the container's
environment, which may hold secrets: only the name and the requested label are returned. Source:
moby/moby:daemon/container/container.go, api/types/container/config.go.

Passed-through devices of a virtual machine are in libvirt's XML and in the command line of QEMU.
Sources: libvirt docs/formatdomain.rst (hostdev), docs/drvqemu.rst;
openstack/nova:nova/virt/libvirt/config.py (metadata); torvalds/linux
Documentation/driver-api/vfio-mediated-device.rst and qemu hw/vfio/pci.c: `-device vfio-pci,host=0000:3b:00.0`, or
`sysfsdev=` with the directory of a PCI function or a mediated device, which replaces the host (Proxmox VE, vGPU).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

from railscope import convert_errors
from railscope.untrusted_text import DECODING_ERRORS
from railscope_agent.owners import OwnerFormatError

if TYPE_CHECKING:
    import xml.etree.ElementTree as ET


class _DockerConfig(msgspec.Struct):
    Labels: dict[str, str] | None = None


class _DockerContainerFile(msgspec.Struct):
    Name: str = ""
    Config: _DockerConfig | None = None


def parse_docker_container(content: bytes, label: str) -> dict[str, str]:
    """Return `name` of a container, and the value of one of its labels as `label`; empty if it has none.

    Raises OwnerFormatError.
    """
    with convert_errors(DECODING_ERRORS, OwnerFormatError, "invalid container file of Docker: "):
        container = msgspec.json.decode(content, type=_DockerContainerFile)
    labels = (container.Config.Labels if container.Config else None) or {}
    return {
        "name": container.Name.removeprefix("/"),
        "label": labels.get(label, "") if label else "",
    }


_NUMBERS = ("domain", "bus", "slot", "function")
_FUNCTION = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", re.IGNORECASE)
_MEDIATED = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_DEVICE_OPTIONS = {"-device", "--device"}
_PASSTHROUGH = "vfio-pci"
_PROGRAM = re.compile(r"(?:^|/)(?:qemu-system-[a-z0-9_]+|qemu-kvm|kvm)$")


@dataclass(frozen=True, slots=True)
class LibvirtDomain:
    """A virtual machine with the PCI addresses and mediated device ids of its passed-through devices.

    The project is that of OpenStack; empty for other machines.
    """

    name: str
    uuid: str
    pci_addresses: tuple[str, ...] = ()
    mediated: tuple[str, ...] = ()
    project: str = ""
    project_id: str = ""


def parse_domain(content: bytes) -> LibvirtDomain:
    """Parse a file of /etc/libvirt/qemu, or of /run/libvirt/qemu, which wraps the domain in its state.

    Raises OwnerFormatError.
    """
    import xml.etree.ElementTree as ET  # noqa: PLC0415 - XML is large, and few nodes have libvirt

    # Entities that refer to each other expand to gigabytes; libvirt writes none.
    if b"<!ENTITY" in content or b"<!DOCTYPE" in content:
        message = "unexpected DOCTYPE or entity"
        raise OwnerFormatError(message)
    with convert_errors(ET.ParseError, OwnerFormatError, "invalid XML: "):
        root = ET.fromstring(content)  # noqa: S314 - a file of root's, and no entities
    domain = root if root.tag == "domain" else root.find("domain")
    if domain is None:
        message = f"unexpected root element {root.tag[:100]!r}: expected an element with a domain"
        raise OwnerFormatError(message)
    project = domain.find("metadata/{*}instance/{*}owner/{*}project")  # of OpenStack Nova
    return LibvirtDomain(
        name=domain.findtext("name", ""),
        uuid=domain.findtext("uuid", ""),
        pci_addresses=tuple(
            _address(source)
            for source in domain.findall("devices/hostdev[@type='pci']/source/address")
        ),
        mediated=tuple(
            source.get("uuid", "")
            for source in domain.findall("devices/hostdev[@type='mdev']/source/address")
        ),
        project=(project.text or "").strip() if project is not None else "",
        project_id=project.get("uuid", "") if project is not None else "",
    )


def parse_qemu_command(cmdline: bytes) -> LibvirtDomain | None:
    """Return the machine of a process, from its /proc/PID/cmdline; None if it is not QEMU."""
    program, *arguments = cmdline.decode(errors="backslashreplace").split("\0")
    if not _PROGRAM.search(program):
        return None
    # Flags without a value shift the alternation of options and values: overlapping pairs find each option
    # all the same.
    options = dict(pairwise(arguments))
    # Other values may be texts of users, such as a name in the panel of a hosting provider.
    named = [
        _device_name(_device_properties(value))
        for option, value in pairwise(arguments)
        if option in _DEVICE_OPTIONS
    ]
    functions = (match for name in named if (match := _FUNCTION.fullmatch(name)))
    # QEMU assumes PCI domain 0 if none is given; sysfs always has one, in lower case.
    addresses = (f"{match[1] or '0000'}:{match[2]}".lower() for match in functions)
    mediated = (name.lower() for name in named if _MEDIATED.fullmatch(name))
    return LibvirtDomain(
        name=_machine_name(options.get("-name", "")),
        uuid=options.get("-uuid", ""),
        pci_addresses=tuple(dict.fromkeys(addresses)),
        mediated=tuple(dict.fromkeys(mediated)),
    )


def _device_name(properties: Mapping[str, object]) -> str:
    """Return the PCI address or id of a passed-through device; empty for any other."""
    if not str(properties.get("driver", "")).startswith(_PASSTHROUGH):
        return ""
    directory = str(properties.get("sysfsdev", "")).rstrip("/")
    return directory.rpartition("/")[2] if directory else str(properties.get("host", ""))


def _device_properties(value: str) -> dict[str, object]:
    """Return the properties of a device: JSON, or `DRIVER,NAME=TEXT,...`."""
    if value.startswith("{"):
        try:
            return msgspec.json.decode(value, type=dict[str, object])
        except DECODING_ERRORS:
            return {}  # QEMU does not start with it
    driver, *others = _split_option(value)
    pairs = (part.partition("=") for part in (f"driver={driver.removeprefix('driver=')}", *others))
    return {name: text for name, _, text in pairs}


def _machine_name(option: str) -> str:
    """Return the name in the value of -name: that of `guest=`, or the first part."""
    parts = _split_option(option)
    named = (part.removeprefix("guest=") for part in parts if part.startswith("guest="))
    return next(named, parts[0])


def _split_option(value: str) -> list[str]:
    """Return the parts of a value. QEMU reads a doubled comma as one (qemu:util/qemu-option.c, get_opt_value)."""
    return [part.replace("\0", ",") for part in value.replace(",,", "\0").split(",")]


def _address(source: ET.Element) -> str:
    """Return the address as sysfs writes it; libvirt writes each part as a hexadecimal number."""
    with convert_errors(ValueError, OwnerFormatError, "invalid PCI address: "):
        domain_, bus, slot, function = (int(source.get(part, "0"), 16) for part in _NUMBERS)
    return f"{domain_:04x}:{bus:02x}:{slot:02x}.{function:x}"
