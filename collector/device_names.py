"""All names of a GPU or a NIC, as the present schemas of its node state them.

A GPU has an index, a UUID and a PCI address; a NIC has an interface, an RDMA device and a rail. An
entity carries one of them as its key. A name that the node does not state is an empty text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from railscope.catalog import KINDS
from railscope.wire import WireEntity, WireSchema

if TYPE_CHECKING:
    from collector.fleet import Node
    from collector.schemas import Schemas

MAX_DEVICES = 1024
"""Devices of one schema whose names are kept: more is no server."""
Names: TypeAlias = Mapping[str, str]
DeviceKey: TypeAlias = tuple[str, ...]
"""A label and its value, or several of each: what identifies a device in an entity."""
_PCI = "pci_address"


def names_in(wire: WireSchema) -> Mapping[DeviceKey, Names]:
    """Names of each GPU and NIC that a schema describes, by every key that an entity may have."""
    found: dict[DeviceKey, Names] = {}
    devices = (
        entity
        for entity in wire.entities
        if entity.kind in _NAMES_OF and len(entity.key) == len(KINDS[entity.kind].labels)
    )
    for entity, _ in zip(devices, range(MAX_DEVICES), strict=False):
        names = _NAMES_OF[entity.kind](entity)
        found[_key_of(entity)] = names
        if names[_PCI]:
            found.setdefault((_PCI, names[_PCI]), names)
    return found


def names_of(schemas: Schemas, node: Node | None, kind: str, key: DeviceKey) -> Names | None:
    """Names of the device that an entity of a node is or is a part of; None where there are none."""
    whole = KINDS[kind].whole if kind in KINDS else None
    if node is None or whole is None or len(key) < len(whole.labels) or not whole.labels:
        return None
    wanted = _prefix(whole.labels, key)
    known = (schemas.get(row.schema) for row in list(node.rows.values()))
    stated = [one.names[wanted] for one in known if one and wanted in one.names]
    return max(stated, key=_stated, default=None)


def gpu_names(schemas: Schemas, node: Node | None, uuid: str) -> Names:
    """Names of a GPU by its UUID; where its node does not name it, the others are empty."""
    return names_of(schemas, node, "gpu", (uuid,)) or _gpu(WireEntity("gpu", (uuid,)))


NamesOfGpu: TypeAlias = Callable[[str, str], Names]
"""Names of a GPU by its node and its UUID."""


def _stated(names: Names) -> int:
    """Number of names that a schema states: a stream may know a device by its key alone."""
    return sum(map(bool, names.values()))


def _prefix(labels: Iterable[str], key: DeviceKey) -> DeviceKey:
    labels = [label for label in labels if label in _IDENTITY]
    return (*labels, *key[: len(labels)])


_IDENTITY = frozenset({"gpu", "interface", "device", "port", _PCI})


def _key_of(entity: WireEntity) -> DeviceKey:
    return _prefix(KINDS[entity.kind].labels, entity.key)


def _gpu(entity: WireEntity) -> Names:
    return {
        "kind": "gpu",
        "index": entity.facts.get("index", ""),
        "uuid": entity.key[0],
        _PCI: entity.facts.get(_PCI, ""),
    }


def _nic(entity: WireEntity) -> Names:
    facts = entity.facts
    return {
        "kind": "nic",
        "interface": entity.key[0],
        "device": facts.get("rdma_device", ""),
        "rail": facts.get("rail", ""),
        _PCI: facts.get(_PCI, ""),
    }


def _port(entity: WireEntity) -> Names:
    facts = entity.facts
    return {
        "kind": "nic",
        "interface": facts.get("interface", ""),
        "device": entity.key[0],
        "port": entity.key[1],
        "rail": facts.get("rail", ""),
        _PCI: facts.get(_PCI, ""),
    }


_NAMES_OF: Mapping[str, Callable[[WireEntity], Names]] = {
    "gpu": _gpu,
    "nic": _nic,
    "rdma_port": _port,
}
