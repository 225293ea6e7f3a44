"""Panels of the cluster overview that compare the fleet with the inventory, and panels of the rails.

Several collectors may share the nodes. A collector that never received a report of a node reports
it as missing, so the report of a collector that receives the node takes precedence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from railscope.catalog import METRICS, Rollup, host, nic, rdma
from railscope_dashboards import panels
from railscope_dashboards.query import (
    COUNT,
    EVENTS_PER_SECOND,
    PAST_GPU,
    Query,
    build_query,
    pauses_of_any_kind,
    per_second,
    present,
    rollup,
    with_device_names,
    with_device_titles,
)

_INVENTORY_NODES = "max by (node) (railscope_inventory_node)"
_PRESENT_NODES = 'max by (node) (railscope_inventory_node{state!="missing"} == 1)'


def inventory_panels() -> Iterator[panels.Panel]:
    """Yield the panels of missing, unexpected and retired devices and nodes."""
    nodes = build_query(
        f"count({_INVENTORY_NODES}) - (count({_PRESENT_NODES}) or vector(0))", COUNT
    )
    gone_gpus = "max by (node, gpu) (railscope_gone_gpu_age_seconds)"
    gone = build_query(f"count({gone_gpus}) or 0 * max(railscope_cluster_nodes)", COUNT)
    yield from (
        panels.number(601, "GPUs missing", "GPUs of the inventory that reporting nodes do not report. No data: no inventory is configured.", _all("gpus", "missing"), panels.NONE_IS_GOOD).span(6),
        panels.number(602, "RDMA ports missing", "RDMA ports of the inventory that reporting nodes do not report; a missing NIC removes its ports.", _all("rdma_ports", "missing"), panels.NONE_IS_GOOD).span(6),
        panels.number(603, "Nodes missing", "Nodes of the inventory that never reported to a collector.", nodes, panels.NONE_IS_GOOD).span(6),
        panels.number(604, "GPUs gone", "GPUs that a node reported before and no longer reports; restore or retire them.", gone, panels.NONE_IS_GOOD).span(6),
    )  # fmt: skip
    yield panels.rows(
        605,
        "Nodes with missing devices",
        "Unknown: the node is stale, or its driver hangs.",
        {"node": "Node"},
        _bad("GPUs missing", _count_in_state("gpus", "missing")),
        _bad("GPUs unknown", _count_in_state("gpus", "unknown")),
        _bad("Unexpected GPUs", _count_in_state("gpus", "unexpected")),
        _bad("Ports missing", _count_in_state("rdma_ports", "missing")),
        _bad("Unexpected ports", _count_in_state("rdma_ports", "unexpected")),
        span=10,
    )
    yield panels.rows(
        606,
        "Nodes missing or unexpected",
        "Missing: in the inventory and never reported. Unexpected: reports and not in the inventory.",
        {"node": "Node"},
        _bad(
            "Missing",
            build_query(f"{_in_state('missing')} unless on (node) {_PRESENT_NODES}", COUNT),
            {1: "yes"},
        ),
        _bad("Unexpected", build_query(_in_state("unexpected"), COUNT), {1: "yes"}),
        span=6,
    )
    retired = build_query("max by (node, gpu) (railscope_retired_gpu_reporting)", COUNT)
    gone_for = with_device_names(build_query(gone_gpus), PAST_GPU)
    yield panels.rows(
        607,
        "Gone and retired GPUs",
        "By UUID: a replaced GPU is gone as well.",
        with_device_titles({"node": "Node", "gpu": "GPU"}, PAST_GPU),
        panels.Column("Gone for", gone_for, panels.OLD, worst="highest"),
        _bad("Retired", with_device_names(retired, PAST_GPU), {0: "is away", 1: "reports"}),
        span=8,
    )


def _bad(title: str, query: Query, texts: Mapping[int, str] | None = None) -> panels.Column:
    """Return a column in which any value but 0 is bad."""
    return panels.Column(title, query, panels.NONE_IS_GOOD, texts or {}, "highest")


def _all(devices: str, state: str) -> Query:
    return build_query(f"sum({_devices(devices, state)})", COUNT)


def _devices(devices: str, state: str) -> str:
    """Devices in a state: from a collector with the node present, else from one with the node stale."""
    selector = f'railscope_inventory_{devices}{{state="{state}"}}'
    present, stale = (
        f"max by (node) ({selector} and on (instance, node) "
        f'(railscope_inventory_node{{state="{state}"}} == 1))'
        for state in ("present", "stale")
    )
    return f"({present} or {stale})"


def _count_in_state(devices: str, state: str) -> Query:
    return build_query(f"{_devices(devices, state)} > 0", COUNT)


def _in_state(state: str) -> str:
    return f'max by (node) (railscope_inventory_node{{state="{state}"}} == 1)'


SUM, MAX, MIN = Rollup.SUM, Rollup.MAX, Rollup.MIN
RETRANSMISSIONS = {
    "lost by the peer": "packet_sequence_errors",
    "lost responses": "implied_nak_sequence_errors",
    "timeouts": "ack_timeouts",
    "adaptive": "adaptive_retransmissions",
    "received twice": "duplicate_requests",
    "out of order": "out_of_sequence_packets",
}


def _pause(direction: str) -> Query:
    shares = pauses_of_any_kind(f"railscope_rail_max_nic_{direction}_pfc_pause_ratio")
    return build_query(f"max by (rail) ({shares})", legend="rail {{rail}}")


def rail_panels() -> Iterator[panels.Panel]:
    """Yield panels of the traffic on each rail, and of its causes of delay."""
    received, sent = map(_pause, ("receive", "transmit"))
    all_up = rollup("rail", rdma.RDMA_UP, MIN)
    yield panels.rows(
        301,
        "Rails now",
        "One row for each rail; values should be similar.",
        {"rail": "Rail"},
        panels.Column("Ports up", rollup("rail", rdma.RDMA_UP, SUM)),
        panels.Column("All up", all_up, panels.ALL_IS_GOOD, {0: "no", 1: "yes"}, "lowest"),
        panels.Column("Out", _rdma("transmit_bytes")),
        panels.Column("In", _rdma("receive_bytes")),
        panels.Column("Paused by switch", received, panels.PAUSE, worst="highest"),
        panels.Column("Pausing switch", sent, panels.PAUSE, worst="highest"),
        panels.Column("ECN marks", _rdma("ecn_marked_packets")),
        panels.Column("CNPs sent", _rdma("congestion_notifications_sent")),
        panels.Column("CNPs handled", _rdma("congestion_notifications_handled")),
        panels.Column("Lost packets", _rdma("packet_sequence_errors")),
        panels.Column("Timeouts", _rdma("ack_timeouts")),
        panels.Column("PCIe read stall", rollup("rail", nic.PCIE_READ_STALL, MAX), panels.STALL),
        panels.Column("PCIe write stall", rollup("rail", nic.PCIE_WRITE_STALL, MAX), panels.STALL),
        span=24,
    ).height(10)
    retransmissions = (
        _rdma(stem, "cluster").with_name(name).in_unit(EVENTS_PER_SECOND)
        for name, stem in RETRANSMISSIONS.items()
    )
    yield from (
        panels.lines(302, "RDMA throughput by rail", "Sum of all ports of a rail.", _rdma("transmit_bytes").with_name("out"), _rdma("receive_bytes").with_name("in")),
        panels.lines(303, "Pause received by rail", "Share of time in which the switch stopped the worst port from sending: the fabric is congested. 100 % is a full stop.",
                     received, steps=panels.PAUSE),
        panels.lines(304, "Pause sent by rail", "Share of time in which the worst port stopped the switch from sending: the node is the slow receiver. 100 % is a full stop.",
                     sent, steps=panels.PAUSE),
        panels.lines(305, "ECN marks by rail", "A mark shows that a switch's queue grew; marks precede pauses.", _rdma("ecn_marked_packets")),
        panels.lines(306, "Congestion notifications by rail", "Receivers send them for marks, senders slow down for them. Sent and not handled: they are lost in transit.",
                     _rdma("congestion_notifications_sent").with_name("sent"), _rdma("congestion_notifications_handled").with_name("handled")),
        panels.lines(307, "PCIe stall by rail", "The worst NIC of each rail. A NIC that cannot reach memory pauses the switch.",
                     rollup("rail", nic.PCIE_READ_STALL, MAX).with_name("reads"), rollup("rail", nic.PCIE_WRITE_STALL, MAX).with_name("writes"), steps=panels.STALL),
        panels.lines(308, "Retransmission signs", "Packets lost, late or repeated. Out of order alone is normal with adaptive routing.", *retransmissions),
        panels.lines(309, "RDMA ports up by rail", "A step down indicates a cable, a transceiver, a port or a node.", rollup("rail", rdma.RDMA_UP, SUM)),
        panels.lines(310, "Link changes", "On each node; nodes without any are omitted. A link that flaps is worse than one that stays down.", present(per_second(host.LINK_CHANGES, "node"))),
    )  # fmt: skip


def _rdma(stem: str, scope: str = "rail") -> Query:
    """Return the sum of a counter of all RDMA ports, per second."""
    return rollup(scope, METRICS[f"railscope_rdma_{stem}_total"], SUM)
