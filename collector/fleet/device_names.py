"""All names of a GPU or a NIC of a node, from the current schemas of the node."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from railscope.device_names import Names, bare_gpu, device_key, fullest

if TYPE_CHECKING:
    from collector.fleet.fleet import Node
    from collector.fleet.schemas import Schemas

NamesOfGpu: TypeAlias = Callable[[str, str], Names]
"""Names of a GPU by its node and its UUID."""


def names_of(schemas: Schemas, node: Node | None, kind: str, key: tuple[str, ...]) -> Names | None:
    """Return names of the device that contains an entity of a node; None if there are none."""
    if node is None:
        return None
    wanted = device_key(kind, key)
    known = (schemas.get(row.schema) for row in list(node.rows.values()))
    return fullest(one.names[wanted] for one in known if one and wanted in one.names)


def gpu_names(schemas: Schemas, node: Node | None, uuid: str) -> Names:
    """Return names of a GPU by its UUID; the other names are empty if its node does not report them."""
    return names_of(schemas, node, "gpu", (uuid,)) or bare_gpu(uuid)
