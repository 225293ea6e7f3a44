"""All names of the GPUs and NICs of a node, for texts that contain one of them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from railscope.catalog.entities import GPU, NIC
from railscope.frame import Entity


class DeviceNames:
    """Names of the devices of a node.

    A GPU has a UUID, an index and a PCI address; a NIC has an interface, an RDMA device and a rail.
    """

    def __init__(self, entities: Iterable[Entity]) -> None:
        self._names: dict[str, str] = {}
        for entity in entities:
            name, facts = entity.key[0] if entity.key else "", entity.facts
            if entity.kind is GPU and {"index", "pci_address"} <= facts.keys():
                index, address = facts["index"], facts["pci_address"]
                self._names[name] = f"{name} (index {index}, {address})"
                self._names[address] = f"{address} (GPU {index}, {name})"
            elif entity.kind is NIC and facts.keys() & {"rdma_device", "rail"}:
                rail = f"rail {facts['rail']}" if facts.get("rail") else ""
                details = ", ".join(filter(None, (facts.get("rdma_device"), rail)))
                self._names[name] = f"{name} ({details})"
        # The longest first: an alternative that matches ends the search, and a name may be the beginning of
        # another.
        any_name = "|".join(map(re.escape, sorted(self._names, key=len, reverse=True)))
        self._pattern = (
            re.compile(rf"(?<![\w.:-])(?:{any_name})(?![\w.:-]*\w)") if any_name else None
        )

    def spell_out(self, text: str) -> str:
        """Return a text with the other names of a device appended to each of its names."""
        if self._pattern is None:
            return text
        return self._pattern.sub(lambda match: self._names[match[0]], text)
