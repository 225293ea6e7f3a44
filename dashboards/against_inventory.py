"""Panels that compare the fleet with the inventory: part of the cluster overview.

Several collectors may share the nodes. A collector that never received a report of a node reports
it as missing, so the report of a collector that receives the node takes precedence.
"""

from __future__ import annotations

from collections.abc import Iterator

from dashboards.colours import NONE_IS_GOOD, OLD
from dashboards.device_names import PAST_GPU, with_device_names, with_device_titles
from dashboards.panels import Column, Panel, number, rows
from dashboards.query import COUNT, Query, ask

_STANDING = "max by (node) (railscope_inventory_node)"
_STANDS = 'max by (node) (railscope_inventory_node{state!="missing"} == 1)'


def inventory_panels() -> Iterator[Panel]:
    """Yield the panels of missing, unexpected and retired devices and nodes."""
    yield number(
        601,
        "GPUs missing",
        "Of servers that report: GPUs that the inventory has and they do not show. "
        "No data: there is no inventory.",
        _all("gpus", "missing"),
        NONE_IS_GOOD,
    ).span(6)
    yield number(
        602,
        "RDMA ports missing",
        "The same of ports: a card that is gone takes its ports along.",
        _all("rdma_ports", "missing"),
        NONE_IS_GOOD,
    ).span(6)
    yield number(
        603,
        "Nodes missing",
        "Servers of the inventory that no collector has ever heard of.",
        ask(f"count({_STANDING}) - (count({_STANDS}) or vector(0))", COUNT),
        NONE_IS_GOOD,
    ).span(6)
    yield number(
        604,
        "GPUs gone",
        "GPUs that a server showed before and shows no more; bring them back or retire them.",
        ask(
            "count(max by (node, gpu) (railscope_gone_gpu_age_seconds)) "
            "or 0 * max(railscope_cluster_nodes)",
            COUNT,
        ),
        NONE_IS_GOOD,
    ).span(6)
    yield rows(
        605,
        "Servers that do not show what they should",
        "Unknown: the node is stale, or its driver hangs; no one knows whether they are there.",
        {"node": "Node"},
        Column("GPUs missing", _some("gpus", "missing"), NONE_IS_GOOD, worst="highest"),
        Column("GPUs unknown", _some("gpus", "unknown"), NONE_IS_GOOD, worst="highest"),
        Column("GPUs too many", _some("gpus", "unexpected"), NONE_IS_GOOD, worst="highest"),
        Column("Ports missing", _some("rdma_ports", "missing"), NONE_IS_GOOD, worst="highest"),
        Column("Ports too many", _some("rdma_ports", "unexpected"), NONE_IS_GOOD, worst="highest"),
        span=10,
    )
    yield rows(
        606,
        "Servers missing or unexpected",
        "Missing: in the inventory and never heard of. Unexpected: heard and not in the inventory.",
        {"node": "Node"},
        Column("Missing", ask(_never_heard(), COUNT), NONE_IS_GOOD, {1: "yes"}, "highest"),
        Column(
            "Unexpected", ask(_in_state("unexpected"), COUNT), NONE_IS_GOOD, {1: "yes"}, "highest"
        ),
        span=6,
    )
    yield rows(
        607,
        "GPUs gone, and retired ones",
        "By their names: one that another has replaced is gone as well.",
        with_device_titles({"node": "Node", "gpu": "GPU"}, PAST_GPU),
        Column(
            "Gone for",
            with_device_names(ask("max by (node, gpu) (railscope_gone_gpu_age_seconds)"), PAST_GPU),
            OLD,
            worst="highest",
        ),
        Column(
            "Retired",
            with_device_names(
                ask("max by (node, gpu) (railscope_retired_gpu_reporting)", COUNT), PAST_GPU
            ),
            NONE_IS_GOOD,
            {0: "is away", 1: "reports"},
            "highest",
        ),
        span=8,
    )


def _all(what: str, state: str) -> Query:
    return ask(f"sum({_devices(what, state)})", COUNT)


def _devices(what: str, state: str) -> str:
    """Devices in a state: from a collector with the node present, else from one with the node stale."""
    selector = f'railscope_inventory_{what}{{state="{state}"}}'
    present, stale = (
        f"max by (node) ({selector} and on (instance, node) "
        f'(railscope_inventory_node{{state="{word}"}} == 1))'
        for word in ("present", "stale")
    )
    return f"({present} or {stale})"


def _some(what: str, state: str) -> Query:
    return ask(f"{_devices(what, state)} > 0", COUNT)


def _in_state(state: str) -> str:
    return f'max by (node) (railscope_inventory_node{{state="{state}"}} == 1)'


def _never_heard() -> str:
    return f"{_in_state('missing')} unless on (node) {_STANDS}"
