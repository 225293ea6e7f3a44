"""Content of a topology file. Apart from its parser, so that an agent without one does not load that."""

from __future__ import annotations

from dataclasses import dataclass, field

from agent.topology.pci import Place


class NcclFileError(ValueError):
    """A file that is no NCCL topology; the message names the invalid part."""


@dataclass(frozen=True, slots=True)
class NcclTopology:
    """Content of such a file.

    Places by PCI address; network devices by name with their addresses; CPUs of each NUMA node as a list
    (`0-23,48-71`); number and kind of links for pairs of GPU addresses.
    """

    places: dict[str, Place] = field(default_factory=dict)
    classes: dict[str, str] = field(default_factory=dict)
    networks: dict[str, str] = field(default_factory=dict)
    cpus: dict[str, str] = field(default_factory=dict)
    links: dict[tuple[str, str], tuple[str, int]] = field(default_factory=dict)
