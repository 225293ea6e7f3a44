"""The two ends of a cable: the NIC and the switch port, each with the end that it announces or receives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

Nic: TypeAlias = tuple[str, str]
"""Node and interface."""
Port: TypeAlias = tuple[str, str]
"""Switch and port."""
NO_NIC: Nic = ("", "")
LIST_SEPARATOR = ", "
"""Between the names and the chassis of the other neighbours of a switch port."""
MAX_OTHERS = 7
"""Maximum of further neighbours of a port; behind a device that forwards LLDP there are a few."""


def other_neighbours(others: Iterable[Mapping[str, str]], newest: str) -> dict[str, str]:
    """Return names and chassis of other neighbours that a port still receives, in the same order.

    An older one with the chassis of the newest is an earlier announcement of it.
    """
    found = [each for each in others if each["chassis"] != newest][:MAX_OTHERS]
    if not found:
        return {}
    return {
        "other_system_names": LIST_SEPARATOR.join(each["system_name"] for each in found),
        "other_chassis": LIST_SEPARATOR.join(each["chassis"] for each in found),
    }


class HostEnd(NamedTuple):
    """A NIC, and the switch port that it received LLDP from; empty texts for none."""

    node: str
    interface: str
    rail: str = ""
    switch: str = ""
    switch_port: str = ""
    chassis: str = ""
    addresses: tuple[str, ...] = ()
    """MAC addresses, the one of the NIC itself first: a member of a bond also has that of the bond."""
    port_description: str = ""
    """Description of the switch port, as the switch announces it."""


class SwitchEnd(NamedTuple):
    """A switch port with its names, and the neighbour that it received LLDP from; empty texts for none."""

    switch: str
    port: str
    names: tuple[str, ...] = ()
    """Other names of the port: description, MAC address, alias."""
    system_name: str = ""
    chassis: str = ""
    neighbour: str = ""
    neighbour_port: str = ""
    neighbour_chassis: str = ""
    neighbour_description: str = ""
    port_id: str = ""
    """Port ID that the switch announces for the port, if it is known."""
    others: tuple[tuple[str, str], ...] = ()
    """Names and chassis of other neighbours that the port receives LLDP from."""


class CabledLink(NamedTuple):
    """A row of the cabling file."""

    switch: str
    port: str
    node: str
    interface: str
