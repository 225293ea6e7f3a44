"""Result of the comparison, as cells of /metrics and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from collector.fleet.cell import Cell
from collector.fleet.shown_devices import GPU, RDMA_PORT, Shown
from collector.inventory.compare import Standing, State
from collector.inventory.watch import Found
from collector.metering.units import FOREVER_NS
from railscope.catalog import inventory as catalog
from railscope.catalog.declare import Metric
from railscope.device_names import Names
from railscope.wire import WireEntity

NS = 1_000_000_000
NamesOf: TypeAlias = Callable[[str, WireEntity], Names | None]
"""Names of the device of an entity of a node."""
_DEVICES: Mapping[str, Metric] = {
    GPU: catalog.INVENTORY_GPUS,
    RDMA_PORT: catalog.INVENTORY_RDMA_PORTS,
}
_NAMES = {GPU: "gpus", RDMA_PORT: "rdma_ports"}


def cells(found: Found) -> Iterator[Cell]:
    """Yield all cells; without an inventory, only those that do not depend on it."""
    if found.standings is not None:
        nodes = Counter(standing.state for standing in found.standings)
        for state in State:
            yield Cell(catalog.INVENTORY_NODES, (state.value,), nodes[state])
        for standing in found.standings:
            for state in State:
                labels = (standing.node, state.value)
                yield Cell(catalog.INVENTORY_NODE_STATE, labels, standing.state is state)
            for kind, counts in standing.counts.items():
                for word, number in counts._asdict().items():
                    yield Cell(_DEVICES[kind], (standing.node, word), number)
    for gone in found.gone:
        age_seconds = (found.instant_ns - gone.seen_ns) / NS
        yield Cell(catalog.GONE_GPU_AGE, (gone.node, gone.gpu), age_seconds)
    for gpu in dict.fromkeys(one.gpu for one in found.retired):
        node = found.reporting.get(gpu, "")
        labels = (node or found.last_nodes.get(gpu, ""), gpu)
        yield Cell(catalog.RETIRED_GPU_REPORTING, labels, bool(node))


def inventory_json(found: Found, names_of: NamesOf) -> dict[str, Any]:
    """Return the same with names and reasons. `nodes` is null without an inventory."""

    def names(node: str | None, gpu: str) -> dict[str, str]:
        known = names_of(node or "", WireEntity(GPU, (gpu,))) or {}
        return {name: known.get(name, "") for name in ("index", "pci_address")}

    standings = found.standings
    return {
        "view": "inventory",
        "instant_ns": found.instant_ns,
        "nodes": None
        if standings is None
        else [_node(standing, names_of) for standing in standings],
        "gone_gpus": [
            {
                "node": one.node,
                "gpu": one.gpu,
                **names(one.node, one.gpu),
                "seen_ns": one.seen_ns,
            }
            for one in found.gone
        ],
        "retired_gpus": [
            {
                "gpu": one.gpu,
                **names(found.reporting.get(one.gpu), one.gpu),
                "from_ns": one.start_ns,
                "to_ns": None if one.end_ns == FOREVER_NS else one.end_ns,
                "why": one.why,
                "reported_by": found.reporting.get(one.gpu),
            }
            for one in found.retired
        ],
    }


def _node(standing: Standing, names_of: NamesOf) -> dict[str, Any]:
    heard = standing.heard
    told: dict[str, Any] = {
        "node": standing.node,
        "state": standing.state.value,
        "heard_ns": heard.instant_ns or None if heard else None,
    }
    for kind, name in _NAMES.items():
        shown = heard.devices.get(kind) if heard else None
        counts = standing.counts.get(kind)
        told[name] = {
            "expected": counts.expected if counts else None,
            **(counts._asdict() if counts else {}),
            "reason": standing.reasons.get(kind),
            "names": _names(shown),
            "devices": _devices(standing.node, kind, shown, names_of),
        }
    return told


def _devices(
    node: str, kind: str, shown: Shown | str | None, names_of: NamesOf
) -> dict[str, list[Names]] | None:
    """Return all names of the devices that `names` lists, in its order."""
    listed = _names(shown)
    if listed is None:
        return None
    return {
        state: [
            names_of(node, WireEntity(kind, tuple(name.split("/")))) or {"kind": kind, "name": name}
            for name in names
        ]
        for state, names in listed.items()
    }


def _names(shown: Shown | str | None) -> dict[str, list[str]] | None:
    """Return the devices that a node shows; null if they are unknown."""
    if not isinstance(shown, Shown):
        return None
    return {
        "present": sorted(shown.present),
        "gone": sorted(shown.gone),
        "unknown": sorted(shown.unknown),
    }
