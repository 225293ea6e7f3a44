"""What a topology file tells. Apart from its parser, so that an agent without one carries none."""

from __future__ import annotations

from dataclasses import dataclass, field

from agent.topology.pci import Place


class NcclFileError(ValueError):
    """A file that is no topology of NCCL; the message says where it fails."""


@dataclass(frozen=True, slots=True)
class NcclTopology:
    """What such a file tells.

    Places by PCI address; network devices by name with the address each sits at; CPUs of each NUMA
    node as a list (`0-23,48-71`); for pairs of GPU addresses how many links of which sort.
    """

    places: dict[str, Place] = field(default_factory=dict)
    classes: dict[str, str] = field(default_factory=dict)
    networks: dict[str, str] = field(default_factory=dict)
    cpus: dict[str, str] = field(default_factory=dict)
    links: dict[tuple[str, str], tuple[str, int]] = field(default_factory=dict)
