"""All names of a GPU or a NIC, added to texts for people that contain one of them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from railscope.catalog.entities import GPU, NIC
from railscope.entity import Entity


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
                others = [facts.get("rdma_device", ""), _rail(facts.get("rail", ""))]
                self._names[name] = f"{name} ({', '.join(filter(None, others))})"
        words = "|".join(map(re.escape, sorted(self._names, key=len, reverse=True)))
        self._pattern = re.compile(rf"(?<![\w.:-])(?:{words})(?![\w.:-]*\w)") if words else None

    def spell_out(self, text: str) -> str:
        """Return a text with the other names of a device appended to each of its names."""
        if self._pattern is None:
            return text
        return self._pattern.sub(lambda found: self._names[found[0]], text)


def _rail(number: str) -> str:
    return f"rail {number}" if number else ""
