"""Both ends of links: readings of switch ports and of the NICs that they are connected to, joined by the links' info metric.

Of several collectors one reads the switches. While another one takes over, Prometheus may have the series of both: the
highest value of each port counts, and one link of each port and of each NIC.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from grafana_foundation_sdk.builders import table
from grafana_foundation_sdk.models.dashboard import DynamicConfigValue

from railscope_dashboards import panels, query

NO_READINGS = "no switch readings"
"""Text of a panel without data: no switch is read, or none of these links is known."""
PRIORITY, QUEUE, GROUP = ("priority",), ("queue",), ("priority_group",)
PORT = "switch, port"
NIC = "node, interface"
_INFO = "railscope_switch_link_info"
_ABOUT_LINKS = (
    f"Links of which both ends are known. “{NO_READINGS}”: no switch is read, or no link is known."
)
ON_RAIL = '{node=~"$node", rail=~"$rail", rail!=""}'
HERE = '{switch="$switch", port="$port"}'
_LINK_HERE = f'{_INFO}{{node="$node", interface="$interface", switch="$switch"}}'
_NIC_HERE = '{node="$node", interface="$interface"}'
_RDMA_HERE = '{node="$node", device="$device"}'


def port_rate(name: str, parts: tuple[str, ...] = (), selector: str = "") -> str:
    """Return the growth of a counter of each port of switches; that of its `parts` combined."""
    found = each_rate(name, parts, selector)
    return f"{_combination(name)} by ({PORT}) ({found})" if parts else found


def _combination(name: str) -> str:
    """Return the aggregation of the parts of a counter: shares of time of priorities overlap and are not added."""
    return "max" if name.endswith("_seconds") else "sum"


def each_rate(name: str, parts: tuple[str, ...] = (), selector: str = "") -> str:
    """Return the growth of a counter of ports of switches by switch, port and part."""
    rate = f"rate(railscope_switch_{name}_total{selector}[$__rate_interval])"
    rate = f"clamp_max({rate}, 1)" if name.endswith("_seconds") else rate
    return f"max by ({', '.join((PORT, *parts))}) ({rate})"


def pause_frames(way: str, selector: str = "") -> str:
    """Return the PFC frames of each port per second: counts, or the averages of switches that have no counts."""
    counted = port_rate(f"port_{way}_pfc_pause_frames", PRIORITY, selector)
    gauge = f"railscope_switch_port_{way}_pfc_pause_frames_per_second{selector}"
    return f"({counted} or sum by ({PORT}) (max by ({PORT}, priority) ({gauge})))"


def with_nic(expression: str, selector: str = ON_RAIL) -> str:
    """Add node, interface and rail to each series of a switch port; ports without a link are omitted."""
    info = f"group by ({PORT}, {NIC}, rail) (topk by ({PORT}) (1, {_INFO}{selector}))"
    return f"{expression} * on ({PORT}) group_left ({NIC}, rail) {info}"


def with_port(expression: str, selector: str = ON_RAIL) -> str:
    """Add switch, port and rail to each series of a NIC; NICs without a link are omitted."""
    info = f"group by ({PORT}, {NIC}, rail) (topk by ({NIC}) (1, {_INFO}{selector}))"
    return f"{expression} * on ({NIC}) group_left ({PORT}, rail) {info}"


def _nic_rate(name: str) -> str:
    return f"sum by ({NIC}) (rate(railscope_nic_{name}_total{query.NODES}[$__rate_interval]))"


def _nic_pause(direction: str) -> str:
    return f"max by ({NIC}) ({query.pause_shares(direction, query.NODES)})"


def explained(panel: panels.Panel) -> panels.Panel:
    """State the reason for the absence of data; a cell of a table alone is what that switch or link does not have."""
    panel = panel.no_value(NO_READINGS)
    if isinstance(panel, table.Panel):
        panel = panel.override_by_field_type(
            "number", [DynamicConfigValue("noValue", "\N{EN DASH}")]
        )
    return panel


# Rails -------------------------------------------------------------------------------------------


def rail_panels() -> Iterator[panels.Panel]:
    """Yield the panels of both ends of all links, by rail, by node and rail, and by link."""
    yield from map(explained, (*_rails(), *_nodes(), *_differences()))


def _columns(aggregation: str, ends: Mapping[str, str]) -> Iterator[panels.Column]:
    """Yield a column for each end of the links of a rail; the first one sorts the table."""
    for number, (title, expression) in enumerate(ends.items()):
        found = query.build_query(f"{aggregation} by (rail) ({expression})")
        yield panels.Column(title, found, worst=None if number else "highest")


def _rails() -> Iterator[panels.Panel]:
    estimated = port_rate("port_receive_pfc_pause_estimated_seconds", PRIORITY)
    measured = port_rate("port_receive_pfc_pause_seconds", PRIORITY)
    traffic = {
        "To NICs: switches sent": with_nic(port_rate("port_transmit_bytes")),
        "NICs received": with_port(_nic_rate("receive_bytes")),
        "To switches: NICs sent": with_port(_nic_rate("transmit_bytes")),
        "Switches received": with_nic(port_rate("port_receive_bytes")),
        "Dropped by switches": with_nic(port_rate("port_transmit_discarded_packets")),
        "Dropped by NICs": with_port(_nic_rate("receive_discarded_packets")),
    }
    pauses = {
        "NICs paused, by switches": with_nic(
            port_rate("port_transmit_pfc_pause_seconds", PRIORITY)
        ),
        "By NICs": with_port(_nic_pause("receive")),
        "Switches paused, by NICs": with_port(_nic_pause("transmit")),
        "By switches": with_nic(measured),
        "By switches, estimated": with_nic(estimated),
    }
    yield from (
        panels.rows(601, "Both ends by rail", f"Traffic and drops, per second. {_ABOUT_LINKS}", {"rail": "Rail"}, *_columns("sum", traffic), span=24),
        panels.rows(602, "Pause time at both ends by rail", f"Share of time of the worst port. SONiC estimates the pauses that it receives, and has no others. {_ABOUT_LINKS}", {"rail": "Rail"}, *_columns("max", pauses)),
    )  # fmt: skip
    marks = query.build_query(_by_queue("queue_ecn_marked_packets"))
    dropped, early = (
        query.build_query(_by_queue(f"queue_{kind}dropped_packets")) for kind in ("", "wred_")
    )
    highest = f"max by (rail, queue) ({with_nic(f'max by ({PORT}, queue) (railscope_switch_queue_watermark_bytes)')})"
    storms = query.build_query(_by_queue("queue_pfc_watchdog_detected_storms"))
    yield panels.rows(
        603,
        "Queues towards NICs by rail",
        f"ECN marks, drops and storms per second, and the highest watermark of a queue. {_ABOUT_LINKS}",
        {"rail": "Rail", "queue": "Queue"},
        panels.Column("ECN marks", marks, worst="highest"),
        panels.Column("Dropped", dropped, panels.ANY_IS_BAD),
        panels.Column("Dropped by WRED", early, panels.ANY_IS_BAD),
        panels.Column("Watermark", query.build_query(highest)),
        panels.Column("Storms", storms, panels.ANY_IS_BAD),
    )


def _by_queue(name: str) -> str:
    return f"sum by (rail, queue) ({with_nic(each_rate(name, QUEUE))})"


def _nodes() -> Iterator[panels.Panel]:
    for ident, title, about, expression in (
        (604, "Pause frames to NICs, sent by switches", "The switch pauses the NIC: congestion behind the switch.",
         with_nic(pause_frames("transmit"))),
        (605, "Pause frames to NICs, received by NICs", "The other end of the links beside: both count the same.",
         with_port(_nic_rate("receive_pfc_pause_frames"))),
        (606, "Pause frames to switches, received by switches", "The NIC pauses the switch: its node is slow.",
         with_nic(pause_frames("receive"))),
        (607, "Pause frames to switches, sent by NICs", "The other end of the links beside: both count the same.",
         with_port(_nic_rate("transmit_pfc_pause_frames"))),
    ):  # fmt: skip
        found = query.build_query(f"max by (node, rail) ({expression})")
        text = f"Per second, node by rail. {about} {_ABOUT_LINKS}"
        yield panels.grid(ident, title, text, "node", "rail", found)


def counted_frames(
    switch_counter: str, nic_counter: str, links: str = ON_RAIL, ports: str = "", nodes: str = ""
) -> tuple[str, str]:
    """Return the pause frames of the last 15 minutes of each link, as the switch port and as the NIC counted them."""
    frames = f"railscope_switch_port_{switch_counter}_pfc_pause_frames_total{ports}"
    port = f"sum by ({PORT}) (max by ({PORT}, priority) ({frames} - {frames} offset 15m >= 0))"
    other = f"railscope_nic_{nic_counter}_pfc_pause_frames_total{nodes}"
    nic = f"sum by ({NIC}) ({other} - {other} offset 15m >= 0)"
    by = f"{NIC}, {PORT}"
    return f"sum by ({by}) ({with_nic(port, links)})", f"sum by ({by}) ({with_port(nic, links)})"


def _differences() -> Iterator[panels.Panel]:
    def between(switch_counter: str, nic_counter: str) -> query.Query:
        port, nic = counted_frames(switch_counter, nic_counter, nodes=query.NODES)
        difference = f"{port} - {nic}"
        return query.build_query(f"topk(20, abs({difference}) > 0)", query.COUNT)

    yield panels.rows(
        608,
        "Pause frames that only one end counted",
        "Difference of what both ends counted in the last 15 minutes; the 20 largest. Ends are read at different times:"
        f" a part of a poll's growth is normal, more is a fault of a counter, of a setting or of the cabling. {_ABOUT_LINKS}",
        {"node": "Node", "interface": "Interface", "switch": "Switch", "port": "Switch port"},
        panels.Column("To the NIC", between("transmit", "receive"), worst="highest"),
        panels.Column("To the switch", between("receive", "transmit"), worst="highest"),
        span=24,
    )


# One pair ----------------------------------------------------------------------------------------


def _at_port(name: str, parts: tuple[str, ...] = (), by: str = "", unit: str = "") -> query.Query:
    """Return the growth of a counter of the port that the NIC of the dashboard is connected to."""
    grouping = f" by ({by})" if by else ""
    linked = f"{each_rate(name, parts, HERE)} and on ({PORT}) {_LINK_HERE}"
    legend = f"{by.replace('_', ' ')} {{{{{by}}}}}" if by else ""
    return query.build_query(f"{_combination(name)}{grouping} ({linked})", unit, legend)


def _now_at_port(name: str, by: str) -> query.Query:
    found = f"max by ({PORT}, {by}) (railscope_switch_{name}{HERE}) and on ({PORT}) {_LINK_HERE}"
    return query.build_query(f"max by ({by}) ({found})", "", f"{by.replace('_', ' ')} {{{{{by}}}}}")


def _at_nic(name: str, selector: str = _NIC_HERE, unit: str = "") -> query.Query:
    """Return the growth of a counter of the NIC of the dashboard while its link is known."""
    rate = f"sum(rate(railscope_{name}_total{selector}[$__rate_interval]))"
    return query.build_query(f"{rate} and on () {_LINK_HERE}", unit)


def _pause_at_nic(direction: str) -> query.Query:
    shares = f"max({query.pause_shares(direction, _NIC_HERE)})"
    return query.build_query(f"{shares} and on () {_LINK_HERE}")


def pair_panels() -> Iterator[panels.Panel]:
    """Yield the panels of both ends of the link of one NIC, as curves beside each other."""
    yield from map(explained, _pair())


def _pair() -> Iterator[panels.Panel]:
    up, speed = (
        f"max by ({PORT}) (railscope_switch_port_{name}{HERE} and on ({PORT}) {_LINK_HERE})"
        for name in ("up", "speed_bytes_per_second")
    )
    discarded = "port_transmit_discarded_packets"
    per_second = query.EVENTS_PER_SECOND
    yield from (
        panels.rows(401, "Switch port", "The other end of the NIC's cable, by LLDP or the cabling file.",
              {"switch": "Switch", "port": "Switch port"},
              panels.Column("State", query.build_query(up, query.COUNT), panels.ALL_IS_GOOD, {0: "down", 1: "up"}, worst="lowest"),
              panels.Column("Speed", query.build_query(speed))),
        panels.lines(402, "ECN marks at both ends", "Marked by the queue of the switch port, and received by the NIC: more where other switches marked as well.",
              _at_port("queue_ecn_marked_packets", QUEUE, "queue", per_second).with_name("switch"),
              _at_nic("rdma_ecn_marked_packets", _RDMA_HERE, per_second).with_name("NIC received"), span=12),
        panels.lines(403, "Pause frames to the NIC", "The switch pauses the NIC: both ends count the same.",
              _at_port("port_transmit_pfc_pause_frames", PRIORITY).with_name("switch sent"), _at_nic("nic_receive_pfc_pause_frames").with_name("NIC received"), span=12),
        panels.lines(404, "Pause frames to the switch", "The NIC pauses the switch: both ends count the same.",
              _at_port("port_receive_pfc_pause_frames", PRIORITY).with_name("switch received"), _at_nic("nic_transmit_pfc_pause_frames").with_name("NIC sent"), span=12),
        panels.lines(405, "Pause time of the NIC", "Share of time in which the switch pauses the NIC. SONiC has no such counter.",
              _at_port("port_transmit_pfc_pause_seconds", PRIORITY).with_name("by the switch"), _pause_at_nic("receive").with_name("by the NIC"), steps=panels.PAUSE, span=12),
        panels.lines(406, "Pause time of the switch", "Share of time in which the NIC pauses the switch; SONiC estimates it.",
              _at_port("port_receive_pfc_pause_seconds", PRIORITY).with_name("by the switch"),
              _at_port("port_receive_pfc_pause_estimated_seconds", PRIORITY).with_name("by the switch, estimated"),
              _pause_at_nic("transmit").with_name("by the NIC"), steps=panels.PAUSE, span=12),
        panels.lines(407, "Traffic to the NIC", "Both ends count the same, but for what the cable loses.",
              _at_port("port_transmit_bytes").with_name("switch sent"), _at_nic("nic_receive_bytes").with_name("NIC received"), span=12),
        panels.lines(408, "Traffic to the switch", "Both ends count the same, but for what the cable loses.",
              _at_port("port_receive_bytes").with_name("switch received"), _at_nic("nic_transmit_bytes").with_name("NIC sent"), span=12),
        panels.lines(409, "Drops at both ends", "RoCE expects none.",
              _at_port(discarded).with_name("switch port"),
              _at_port("queue_dropped_packets", QUEUE, "queue").with_name("switch"),
              _at_port("priority_group_dropped_packets", GROUP).with_name("buffers of the switch"),
              _at_nic("nic_receive_discarded_packets").with_name("NIC"), steps=panels.ANY_IS_BAD, span=12),
        panels.lines(410, "Watermarks of the switch port", "Largest since the switch last cleared them. Headroom above 0: the port had to pause the NIC.",
              _now_at_port("queue_watermark_bytes", "queue").with_name("to the NIC"),
              _now_at_port("priority_group_headroom_watermark_bytes", "priority_group").with_name("headroom"), span=12),
        panels.bars(411, "Storms detected by the PFC watchdog", "In queues towards the NIC, per second: the NIC paused them for too long.",
              _at_port("queue_pfc_watchdog_detected_storms", QUEUE, "queue", per_second), span=12),
        panels.bars(412, "Packets dropped by the PFC watchdog", "While it treats a queue as blocked.",
              _at_port("queue_pfc_watchdog_dropped_packets", QUEUE, "queue"), span=12),
    )  # fmt: skip
