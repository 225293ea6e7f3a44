"""The dashboard of rails: whether every rail carries its share, and the origin of congestion."""

from __future__ import annotations

from collections.abc import Iterator

from grafana_foundation_sdk.models.dashboard import Dashboard

from railscope_dashboards.dashboard_parts import (
    DashboardVariable,
    assemble,
    settings_marks,
    xid_marks,
)
from railscope_dashboards.panels import (
    ANY_IS_BAD,
    BELOW_OTHERS,
    PAUSE,
    Panel,
    bars,
    grid,
    lines,
    number,
)
from railscope_dashboards.query import (
    EVENTS_PER_SECOND,
    NODES,
    SHARE,
    Query,
    build_query,
    pause_shares,
    pauses_of_any_kind,
    with_port_rail,
    with_rail,
)
from railscope_dashboards.switch_panels import rail_panels

UID = "railscope-rails"
QUESTION = "Does every rail carry its share, and where does congestion come from?"
NIC_ON_RAIL = '{node=~"$node", rail=~"$rail", rail!=""}'
RAILS = '{rail=~"$rail"}'
CHOICES = (
    DashboardVariable("node", "Node", "railscope_node_info", allows_several=True),
    DashboardVariable("rail", "Rail", 'railscope_nic_info{rail!=""}', allows_several=True),
)
PAUSE_RECEIVED, PAUSE_SENT = "max_nic_receive_pfc_pause_ratio", "max_nic_transmit_pfc_pause_ratio"
SENT, RECEIVED = "sum_rdma_transmit_bytes_per_second", "sum_rdma_receive_bytes_per_second"
ECN_MARKED = "sum_rdma_ecn_marked_packets_per_second"
CNP_SENT = "sum_rdma_congestion_notifications_sent_per_second"
CNP_HANDLED = "sum_rdma_congestion_notifications_handled_per_second"
DISCARDED = "sum_nic_receive_discarded_packets_per_second"
STORMS = "sum_nic_transmit_pause_storm_errors_per_second"


def build_dashboard() -> Dashboard:
    """Build the dashboard."""
    marks = (xid_marks(NODES), settings_marks(NODES))
    return assemble(
        "Rails and congestion",
        UID,
        QUESTION,
        SECTIONS,
        console="/rails",
        choices=CHOICES,
        marks=marks,
        tags=("rdma",),
    )


def _pause(direction: str) -> Query:
    shares = with_rail(pause_shares(direction, NODES), NIC_ON_RAIL)
    return build_query(f"max by (node, rail) ({shares})")


def _port_rate(name: str) -> str:
    inner = f"rate({name}{NODES}[$__rate_interval])"
    return f"sum by (node, rail) ({with_port_rail(inner, NIC_ON_RAIL)})"


def _of_rails(aggregation: str, name: str, unit: str = "") -> Query:
    """Return a roll-up of the selected rails as one number."""
    return build_query(f"{aggregation}({_rollup(name)})", unit)


def _by_rail(aggregation: str, name: str, unit: str = "", legend: str = "rail {{rail}}") -> Query:
    return build_query(f"{aggregation} by (rail) ({_rollup(name)})", unit, legend)


def _rollup(name: str) -> str:
    found = f"railscope_rail_{name}{RAILS}"
    return pauses_of_any_kind(found) if "_pfc_" in name else found


def _summary() -> Iterator[Panel]:
    yield from (
        number(101, "Worst pause received", "The port that the switch pauses the most.", _of_rails("max", PAUSE_RECEIVED), PAUSE),
        number(102, "Worst pause sent", "The port that pauses the switch the most.", _of_rails("max", PAUSE_SENT), PAUSE),
        number(103, "ECN marks", "Marked packets that all ports received, per second.", _of_rails("sum", ECN_MARKED, EVENTS_PER_SECOND)),
        number(104, "CNPs sent", "Congestion notifications of all ports, per second.", _of_rails("sum", CNP_SENT, EVENTS_PER_SECOND)),
        number(105, "Out", "Sum of all ports on rails.", _of_rails("sum", SENT)),
        number(106, "In", "Sum of all ports on rails.", _of_rails("sum", RECEIVED)),
        number(107, "Packets discarded", "By all ports for lack of a buffer; RoCE expects none.", _of_rails("sum", DISCARDED, EVENTS_PER_SECOND), ANY_IS_BAD),
        number(108, "Pause storms", "Ports stopped by their stall prevention, per second.", _of_rails("sum", STORMS, EVENTS_PER_SECOND), ANY_IS_BAD),
    )  # fmt: skip


def _pauses() -> Iterator[Panel]:
    yield from (
        grid(201, "Pause received, node by rail", "Share of time in which the switch stopped a port from sending: check the fabric.", "rail", _pause("receive"), PAUSE),
        grid(202, "Pause sent, node by rail", "Share of time in which a port stopped the switch from sending: check the node.", "rail", _pause("transmit"), PAUSE),
        lines(203, "Pause received by rail", "The worst port of each rail.", _by_rail("max", PAUSE_RECEIVED), steps=PAUSE, span=12),
        lines(204, "Pause sent by rail", "The worst port of each rail.", _by_rail("max", PAUSE_SENT), steps=PAUSE, span=12),
    )  # fmt: skip


def _marks() -> Iterator[Panel]:
    notified, received = (_by_rail("sum", name).expression for name in (CNP_SENT, RECEIVED))
    per_gigabyte = build_query(f"{notified} / ({received} / 1e9 > 0)", "short", "rail {{rail}}")
    notifications = (
        _by_rail("sum", CNP_SENT, EVENTS_PER_SECOND, "sent, rail {{rail}}"),
        _by_rail("sum", CNP_HANDLED, EVENTS_PER_SECOND, "handled, rail {{rail}}"),
    )
    sent = _port_rate("railscope_rdma_congestion_notifications_sent_total")
    lost = _port_rate("railscope_rdma_packet_sequence_errors_total")
    yield from (
        lines(301, "CNPs per gigabyte received", "Congestion of a rail relative to its traffic; absent without traffic.", per_gigabyte),
        lines(302, "ECN marks by rail", "Marks precede pauses.", _by_rail("sum", ECN_MARKED, EVENTS_PER_SECOND)),
        lines(303, "Congestion notifications by rail", "Sent and not handled: they are lost in transit, or the senders are elsewhere.", *notifications),
        grid(304, "CNPs sent, node by rail", "Receivers of incasts stand out, per second.", "rail", build_query(sent, EVENTS_PER_SECOND)),
        grid(305, "Lost packets, node by rail", "Packets requested again, per second.", "rail", build_query(lost, EVENTS_PER_SECOND), ANY_IS_BAD),
    )  # fmt: skip


def _shares() -> Iterator[Panel]:
    sent = _port_rate("railscope_rdma_transmit_bytes_total")
    median = f"quantile by (rail) (0.5, {sent})"
    ports = build_query(f"{sent} / on (rail) group_left () ({median} > 0) - 1", SHARE)
    rail = _by_rail("sum", SENT).expression
    rails = build_query(f"{rail} / scalar(quantile(0.5, {rail}) > 0) - 1", SHARE, "rail {{rail}}")
    out, into = (
        _by_rail("sum", name, legend=f"{way}, rail {{{{rail}}}}")
        for name, way in ((SENT, "out"), (RECEIVED, "in"))
    )
    about = "Deviation of each port from the median port of its rail: 0 % where all are equal."
    yield from (
        grid(401, "Throughput against the median of the rail", about, "rail", ports, BELOW_OTHERS, worst="lowest"),
        lines(402, "Rail against the median of rails", "Jobs use all rails equally: a slow rail slows all of them.", rails, span=12).min(-1),
        lines(403, "Throughput by rail", "Sent and received by all ports of a rail.", out, into, span=12),
        lines(404, "Ports up by rail", "A step down indicates a cable, a transceiver, a port or a node.", _by_rail("sum", "sum_rdma_port_up"), span=12),
    )  # fmt: skip


def _share_above(histogram: str, bound: str, direction: str, by: str = "") -> str:
    """Return the share of windows in which a value was above a bound.

    NICs are joined to their rails only in instant queries: over time it would cost seconds at a
    thousand nodes.
    """

    def windows(series: str, le: str = "") -> str:
        selector = f'{{node=~"$node", direction="{direction}"{le}}}'
        rate = f"rate({histogram}_{series}{selector}[$__rate_interval])"
        return f"sum by ({by}) ({with_rail(rate, NIC_ON_RAIL)})" if by else f"sum({rate})"

    within = windows("bucket", f', le="{bound}"')
    return f"1 - {within} / ({windows('count')} > 0)"


def _bursts() -> Iterator[Panel]:
    pause, use = "railscope_nic_burst_pause_ratio", "railscope_nic_burst_utilization_ratio"
    notified = "railscope_nic_burst_congestion_notifications_per_second"
    for ident, title, kind, histogram, bound in (
        (501, "Windows in pause", "paused for more than half of them", pause, "0.5"),
        (502, "Windows at line rate", "with more than 90 % of a port's speed", use, "0.9"),
        (503, "Windows with congestion notifications", "with any", notified, "0.0"),
    ):
        yield bars(
            ident,
            title,
            f"Share of all ports' short windows {kind}: what an average over a scrape hides.",
            build_query(_share_above(histogram, bound, "receive"), SHARE, "receive"),
            build_query(_share_above(histogram, bound, "transmit"), SHARE, "transmit"),
        )
    for ident, title, direction in (
        (504, "Windows paused by the switch, node by rail", "receive"),
        (506, "Windows pausing the switch, node by rail", "transmit"),
    ):
        share = _share_above(pause, "0.5", direction, "node, rail")
        about = "Share of short windows paused for more than half of them."
        yield grid(ident, title, about, "rail", build_query(share, SHARE), PAUSE, span=8)
    unseen = (
        f"sum by (node) (rate(railscope_nic_burst_missed_windows_total{NODES}[$__rate_interval]))"
    )
    yield lines(
        505,
        "Missed windows",
        "A read failed or was late.",
        build_query(f"topk(10, {unseen})", EVENTS_PER_SECOND, "{{node}}"),
    )


SECTIONS = (
    ("", _summary),
    ("Which side pauses the other?", _pauses),
    ("Does the fabric mark before it pauses?", _marks),
    ("Are all ports of a rail equal?", _shares),
    ("What happens between two scrapes?", _bursts),
    ("Do switches and NICs count the same?", rail_panels),
)
