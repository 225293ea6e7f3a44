"""The compared inventory, with GPUs that are gone or retired, as cells of /metrics and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TypeAlias

from railscope import api as resources
from railscope.api import inventory as api
from railscope.catalog import collector as catalog, declare
from railscope.device_names import Names
from railscope.timestamps import FOREVER_NS, SECOND_NS
from railscope.wire import WireEntity
from railscope_collector.fleet import shape_columns, view_cells
from railscope_collector.inventory.comparison import NodeComparison, NodeInventoryState
from railscope_collector.inventory.inventory_watch import InventoryComparison

NamesOf: TypeAlias = Callable[[str, WireEntity], Names | None]
"""Names of the device of an entity of a node."""
_DEVICES: Mapping[str, declare.Metric] = {
    shape_columns.GPU: catalog.INVENTORY_GPUS,
    shape_columns.RDMA_PORT: catalog.INVENTORY_RDMA_PORTS,
}
_NAMES = {shape_columns.GPU: "gpus", shape_columns.RDMA_PORT: "rdma_ports"}


def inventory_cells(found: InventoryComparison) -> Iterator[view_cells.ViewCell]:
    """Yield all cells; without an inventory, only those that do not depend on it."""
    if found.comparisons is not None:
        nodes = Counter(comparison.state for comparison in found.comparisons)
        for state in NodeInventoryState:
            yield view_cells.ViewCell(catalog.INVENTORY_NODES, (state.value,), nodes[state])
        for comparison in found.comparisons:
            for state in NodeInventoryState:
                labels = (comparison.node, state.value)
                yield view_cells.ViewCell(
                    catalog.INVENTORY_NODE_STATE, labels, comparison.state is state
                )
            for kind, counts in comparison.counts.items():
                for count_name, number in counts._asdict().items():
                    yield view_cells.ViewCell(_DEVICES[kind], (comparison.node, count_name), number)
    for gone in found.gone:
        age_seconds = (found.timestamp_ns - gone.seen_ns) / SECOND_NS
        yield view_cells.ViewCell(catalog.GONE_GPU_AGE, (gone.node, gone.gpu), age_seconds)
    for gpu in dict.fromkeys(retirement.gpu for retirement in found.retired):
        node = found.reporting.get(gpu, "")
        labels = (node or found.last_nodes.get(gpu, ""), gpu)
        yield view_cells.ViewCell(catalog.RETIRED_GPU_REPORTING, labels, bool(node))


def inventory_document(found: InventoryComparison, names_of: NamesOf) -> api.Inventory:
    """Return the same with names and reasons."""

    def names(node: str | None, gpu: str) -> tuple[str, str]:
        device_names = names_of(node or "", WireEntity(shape_columns.GPU, (gpu,))) or {}
        return device_names.get("index", ""), device_names.get("pci_address", "")

    nodes = found.comparisons
    return api.Inventory(
        None if nodes is None else tuple(_expected_node(each, names_of) for each in nodes),
        found.timestamp_ns,
        tuple(
            api.GoneGpu(each.node, each.gpu, *names(each.node, each.gpu), each.seen_ns)
            for each in found.gone
        ),
        tuple(
            api.RetiredGpu(
                each.gpu,
                *names(found.reporting.get(each.gpu), each.gpu),
                each.start_ns,
                None if each.end_ns == FOREVER_NS else each.end_ns,
                each.reason,
                found.reporting.get(each.gpu),
            )
            for each in found.retired
        ),
    )


NEVER_REPORTED = "in the inventory, but never reported"


def missing_nodes(found: InventoryComparison, known: Collection[str]) -> list[resources.Node]:
    """Return the rows of the nodes of the inventory that never reported."""
    return [
        resources.Node(each.node, state="unknown", reason=NEVER_REPORTED, reporting=0.0)
        for each in found.comparisons or ()
        if each.state is NodeInventoryState.MISSING and each.node not in known
    ]


def _expected_node(comparison: NodeComparison, names_of: NamesOf) -> api.ExpectedNode:
    reported = comparison.reported
    devices = {}
    for kind, name in _NAMES.items():
        shown = reported.devices.get(kind) if reported else None
        counts = comparison.counts.get(kind)
        devices[name] = api.ExpectedDevices(
            counts.expected if counts else None,
            **(counts._asdict() if counts else {}),
            reason=comparison.reasons.get(kind),
            names=_device_names(shown),
            devices=_device_documents(comparison.node, kind, shown, names_of),
        )
    heard_ns = reported.timestamp_ns or None if reported else None
    return api.ExpectedNode(comparison.node, comparison.state.value, heard_ns, **devices)


def _device_documents(
    node: str, kind: str, shown: shape_columns.ShownDevices | str | None, names_of: NamesOf
) -> dict[str, list[Names]] | None:
    """Return all names of the devices that `names` lists, in its order."""
    listed = _device_names(shown)
    if listed is None:
        return None
    return {
        state: [
            names_of(node, WireEntity(kind, tuple(name.split("/")))) or {"kind": kind, "name": name}
            for name in names
        ]
        for state, names in listed.items()
    }


def _device_names(shown: shape_columns.ShownDevices | str | None) -> dict[str, list[str]] | None:
    """Return the devices that a node shows; null if they are unknown."""
    if not isinstance(shown, shape_columns.ShownDevices):
        return None
    return {
        "present": sorted(shown.present),
        "gone": sorted(shown.gone),
        "unknown": sorted(shown.unknown),
    }
