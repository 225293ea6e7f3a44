"""Content of an NCCL topology file, apart from its parser.

The parser is in `nccl_xml`, so that an agent without such a file does not load it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from railscope_agent.topology.pci import PciPlace


class NcclFileError(ValueError):
    """A file without an NCCL topology; the message names the invalid part."""


@dataclass(frozen=True, slots=True)
class NcclTopology:
    """Content of such a file.

    Places by PCI address; CPUs of each NUMA node as a list (`0-23,48-71`); number and kind of links for pairs of GPU
    addresses.
    """

    places: dict[str, PciPlace] = field(default_factory=dict)
    cpus: dict[str, str] = field(default_factory=dict)
    links: dict[tuple[str, str], tuple[str, int]] = field(default_factory=dict)
