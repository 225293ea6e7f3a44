"""Names of each GPU and NIC, collected from the entities of a node.

A GPU has an index, a UUID and a PCI address; a NIC has an interface, an RDMA device and a rail. An entity
carries one of them as its key. A name that no entity states is an empty text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from sys import intern
from typing import TypeAlias

from railscope.catalog import KINDS
from railscope.wire import WireEntity

MAX_DEVICES = 1024
"""Maximum number of devices with names; above the size of any node."""
Names: TypeAlias = Mapping[str, str]
DeviceKey: TypeAlias = tuple[str, ...]
"""One or more labels with their values: identity of a device in an entity."""
_PCI = "pci_address"


def names_in(entities: Iterable[WireEntity]) -> Mapping[DeviceKey, Names]:
    """Return the names of each GPU and NIC among entities, by every key that an entity may have."""
    names_of: dict[DeviceKey, Names] = {}
    for entity in devices_in(entities):
        names = _names_of(entity)
        keys = [device_key(entity.kind, entity.key)]
        if names[_PCI]:
            keys.append((_PCI, names[_PCI]))
        for key in keys:
            names_of[key] = max(names_of.get(key, names), names, key=_count_names)
    return names_of


def devices_in(entities: Iterable[WireEntity]) -> list[WireEntity]:
    """Return the GPUs and NICs among entities, at most MAX_DEVICES."""
    devices = (
        entity
        for entity in entities
        if entity.kind in _NAMES_OF and len(entity.key) == len(KINDS[entity.kind].labels)
    )
    return list(islice(devices, MAX_DEVICES))


def device_key(kind: str, key: tuple[str, ...]) -> DeviceKey:
    """Return the key of the device that an entity is or is part of; empty if there is none."""
    whole = KINDS[kind].outermost if kind in KINDS else None
    if whole is None or len(key) < len(whole.labels):
        return ()
    labels = [label for label in whole.labels if label in _IDENTITY]
    return (*labels, *map(intern, key[: len(labels)]))


def choose_most_complete(stated: Iterable[Names]) -> Names | None:
    """Return the names with the most values set; a stream may contain only a device's key."""
    return max(stated, key=_count_names, default=None)


def _count_names(names: Names) -> int:
    return sum(map(bool, names.values()))


def bare_gpu(uuid: str) -> Names:
    """Return the names of a GPU of which only the UUID is known."""
    return _names_of(WireEntity("gpu", (uuid,)))


_IDENTITY = frozenset({"gpu", "interface", "device", "port", _PCI})


_NAMES_OF: Mapping[str, Mapping[str, int | str]] = {
    "gpu": {"index": "index", "uuid": 0, _PCI: _PCI},
    "nic": {"interface": 0, "device": "rdma_device", "rail": "rail", _PCI: _PCI},
    "rdma_port": {"interface": "interface", "device": 0, "port": 1, "rail": "rail", _PCI: _PCI},
}
"""Names of a device by kind of entity: position in the key, or the fact that contains it."""


def _names_of(entity: WireEntity) -> Names:
    names = {"kind": "gpu" if entity.kind == "gpu" else "nic"}
    for name, place in _NAMES_OF[entity.kind].items():
        value = entity.key[place] if isinstance(place, int) else entity.facts.get(place, "")
        names[name] = intern(value)  # shared with the other schemas of a node
    return names
