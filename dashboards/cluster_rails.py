"""Panels of the rails on the cluster dashboard."""

from __future__ import annotations

from collections.abc import Iterator

from dashboards.colours import ALL_IS_GOOD, PAUSE, STALL
from dashboards.panels import Column, Panel, lines, rows
from dashboards.query import EVENTS_PER_SECOND, over, per_second, present
from railscope.catalog import METRICS, Metric, Rollup, host, nic, nic_link, rdma

SUM, MEAN, MAX, MIN = Rollup.SUM, Rollup.MEAN, Rollup.MAX, Rollup.MIN
RETRANSMISSIONS = {
    "lost by the peer": "packet_sequence_errors",
    "lost responses": "implied_nak_sequence_errors",
    "timeouts": "ack_timeouts",
    "adaptive": "adaptive_retransmissions",
    "received twice": "duplicate_requests",
    "out of order": "out_of_sequence_packets",
}


def rail_panels() -> Iterator[Panel]:
    """Yield panels of the traffic on each rail, and of its causes of delay."""
    received, sent = nic.PFC_RECEIVED_TIME, nic.PFC_SENT_TIME
    yield rows(
        301,
        "Rails now",
        "One row for each rail; rows should look alike.",
        {"rail": "Rail"},
        Column("Ports up", over("rail", rdma.RDMA_UP, SUM)),
        Column(
            "All up", over("rail", rdma.RDMA_UP, MIN), ALL_IS_GOOD, {0: "no", 1: "yes"}, "lowest"
        ),
        Column("Out", over("rail", _rdma("transmit_bytes"), SUM)),
        Column("In", over("rail", _rdma("receive_bytes"), SUM)),
        Column("Paused by switch", over("rail", received, MAX), PAUSE, worst="highest"),
        Column("Pausing switch", over("rail", sent, MAX), PAUSE, worst="highest"),
        Column("ECN marks", over("rail", _rdma("ecn_marked_packets"), SUM)),
        Column("CNPs sent", over("rail", _rdma("congestion_notifications_sent"), SUM)),
        Column("CNPs handled", over("rail", _rdma("congestion_notifications_handled"), SUM)),
        Column("Lost packets", over("rail", _rdma("packet_sequence_errors"), SUM)),
        Column("Timeouts", over("rail", _rdma("ack_timeouts"), SUM)),
        Column("PCIe read stall", over("rail", nic_link.PCIE_READ_STALL, MAX), STALL),
        Column("PCIe write stall", over("rail", nic_link.PCIE_WRITE_STALL, MAX), STALL),
        span=24,
    ).height(10)
    yield lines(
        302,
        "RDMA throughput by rail",
        "What all ports of a rail carry together.",
        over("rail", _rdma("transmit_bytes"), SUM).named("out"),
        over("rail", _rdma("receive_bytes"), SUM).named("in"),
    )
    yield lines(
        303,
        "PFC pause received by rail",
        "Share of time in which the switch kept the worst port from sending: the fabric is "
        "congested. 100 % is a full stop.",
        over("rail", received, MAX, "priority"),
        steps=PAUSE,
    )
    yield lines(
        304,
        "PFC pause sent by rail",
        "Share of time in which the worst port kept the switch from sending: the server is the "
        "slow receiver. 100 % is a full stop.",
        over("rail", sent, MAX, "priority"),
        steps=PAUSE,
    )
    yield lines(
        305,
        "ECN marks by rail",
        "Marks say that a switch's queue grew; they come before pauses.",
        over("rail", _rdma("ecn_marked_packets"), SUM),
    )
    yield lines(
        306,
        "Congestion notifications by rail",
        "Receivers send them for marks, senders slow down for them. Sent and not handled: they "
        "are lost on the way.",
        over("rail", _rdma("congestion_notifications_sent"), SUM).named("sent"),
        over("rail", _rdma("congestion_notifications_handled"), SUM).named("handled"),
    )
    yield lines(
        307,
        "PCIe stall by rail",
        "The worst card of each rail. A card that cannot reach memory pauses the switch.",
        over("rail", nic_link.PCIE_READ_STALL, MAX).named("reads"),
        over("rail", nic_link.PCIE_WRITE_STALL, MAX).named("writes"),
        steps=STALL,
    )
    yield lines(
        308,
        "Retransmission signs",
        "Packets lost, late or sent again. Out of order alone is normal with adaptive routing.",
        *(
            over("cluster", _rdma(stem), SUM).named(words).in_unit(EVENTS_PER_SECOND)
            for words, stem in RETRANSMISSIONS.items()
        ),
    )
    yield lines(
        309,
        "RDMA ports up by rail",
        "A step down is a cable, a transceiver, a port or a server.",
        over("rail", rdma.RDMA_UP, SUM),
    )
    yield lines(
        310,
        "Link changes",
        "On each server; those without any are left out. A link that comes and goes is worse than "
        "one that stays down.",
        present(per_second(host.LINK_CHANGES, "node")),
    )


def _rdma(stem: str) -> Metric:
    return METRICS[f"railscope_rdma_{stem}_total"]
