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
        yield panels.grid(ident, title, text, "rail", found)


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
