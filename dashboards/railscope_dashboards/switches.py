"""The dashboard of switches: whether they are read, and the ports and queues of one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from grafana_foundation_sdk.models.dashboard import Dashboard

from railscope_dashboards import dashboard_parts, panels, query, switch_panels
from railscope_dashboards.switch_panels import (
    GROUP,
    PORT,
    PRIORITY,
    QUEUE,
    counted_frames,
    each_rate,
    pause_frames,
    port_rate,
)

HERE = '{switch="$switch"}'
CHOICES = (dashboard_parts.DashboardVariable("switch", "Switch", "railscope_switch_up"),)
_UP = "max by (switch) (railscope_switch_up)"
_AGE = "time() - max by (switch) (railscope_switch_last_poll_timestamp_seconds)"
_IDENTITY = {"switch": "Switch", "system_name": "System name", "description": "Description", "missing_tables": "Missing tables"}  # fmt: skip
_NEIGHBOUR = {"switch": "Switch", "port": "Port", "system_name": "System name", "neighbour_port": "Port of the neighbour", "chassis": "Chassis"}  # fmt: skip
_READ = {0: "not read", 1: "read"}
_FAULTS = "max by (kind) (railscope_cabling_faults)"
_STORMS = f"max by ({PORT}, queue) (railscope_switch_queue_pfc_watchdog_storm) == 1"


def build_dashboard() -> Dashboard:
    """Build the dashboard."""
    return dashboard_parts.assemble(
        "Switches",
        "railscope-switches",
        "Is every switch read, and which of its ports and queues are congested?",
        SECTIONS,
        console="/switches/${switch:percentencode}",
        choices=CHOICES,
        tags=("switch",),
    )


def _ports_by(name: str) -> str:
    return f"max by ({PORT}) (railscope_switch_port_{name})"


def _summary() -> Iterator[panels.Panel]:
    down = f"{_ports_by('enabled')} == 1 and on ({PORT}) {_ports_by('up')} == 0"
    unlinked = f"count({_ports_by('up')} == 1 unless on ({PORT}) railscope_switch_link_info) or 0 * sum({_UP})"
    for ident, title, about, expression, unit, steps in (
        (101, "Switches read", "Their last poll succeeded, or their last push is recent.", f"sum({_UP})", "", panels.GOOD),
        (102, "Switches not read", "Their readings are unknown.", f"count({_UP}) - sum({_UP})", "", panels.NONE_IS_GOOD),
        (103, "Oldest readings", "Of the switch with the oldest newest readings.", f"max({_AGE})", "s", panels.OLD),
        (104, "Ports up", "Ports of all switches that can pass packets.", f"sum({_ports_by('up')})", "", panels.GOOD),
        (105, "Ports down", "Enabled in the configuration of their switch, and not up.", f"count({down}) or 0 * count({_ports_by('up')})", "", panels.GOOD),
        (106, "Links to NICs", "Ports with a known NIC at the other end.", f"count(group by ({PORT}) (railscope_switch_link_info)) or 0 * sum({_UP})", "", panels.GOOD),
        (107, "Ports up without a NIC", "To other switches, to devices without an agent, or without LLDP.", unlinked, "", panels.GOOD),
        (108, "Queues blocked", "By a storm of pauses, as the PFC watchdog treats them.", f"count({_STORMS}) or 0 * sum({_UP})", "", panels.NONE_IS_GOOD),
    ):  # fmt: skip
        found = query.build_query(expression, unit or query.COUNT)
        yield panels.number(ident, title, about, found, steps)


def _reads() -> Iterator[panels.Panel]:
    count = query.COUNT
    up, ports, ports_up, linked = (
        query.build_query(expression, count)
        for expression in (
            _UP,
            "max by (switch) (railscope_switch_ports)",
            f"sum by (switch) ({_ports_by('up')})",
            f"count by (switch) (group by ({PORT}) (railscope_switch_link_info))",
        )
    )
    duration = query.build_query("max by (switch) (railscope_switch_poll_seconds)")
    failures = (
        "max by (switch, reason) (rate(railscope_switch_poll_failures_total[$__rate_interval]))"
    )
    identities = f"max by ({', '.join(_IDENTITY)}) (railscope_switch_info)"
    yield from (
        panels.rows(201, "All switches", "Polled and pushing ones, with their ports and links to NICs.", {"switch": "Switch"},
              panels.Column("State", up, panels.ALL_IS_GOOD, _READ, worst="lowest"),
              panels.Column("Age", query.build_query(_AGE, "s"), panels.OLD, worst="highest"),
              panels.Column("Poll", duration), panels.Column("Ports", ports), panels.Column("Up", ports_up), panels.Column("Links", linked)),
        panels.rows(202, "Identities", "As the switches state them. The metrics of missing tables are absent.", _IDENTITY,
              panels.Column("Read", query.build_query(identities, count), worst="lowest")),
        panels.lines(203, "Age of readings", "Time since the last successful poll or push; the ten oldest.",
              query.build_query(f"topk(10, {_AGE})", "s", "{{switch}}"), steps=panels.OLD, span=12),
        panels.bars(204, "Failed polls", "By reason, per second; docs/switches.md explains them.",
              query.build_query(f"topk(10, {failures} > 0)", query.EVENTS_PER_SECOND, "{{switch}}, {{reason}}"), span=12),
    )  # fmt: skip


def _highest(expression: str, legend: str = "{{port}}", unit: str = "") -> query.Query:
    return query.build_query(f"topk(10, {expression})", unit, legend)


def _ports() -> Iterator[panels.Panel]:
    # A switch without counters by priority may have those of all priorities.
    sent, received = (
        f"{pause_frames(way, HERE)} or {port_rate(f'port_all_priorities_{way}_pfc_pause_frames', (), HERE)}"
        for way in ("transmit", "receive")
    )
    dropped, dropped_in, wrong = (
        port_rate(f"port_{name}", (), HERE)
        for name in ("transmit_discarded_packets", "receive_discarded_packets", "receive_errors")
    )
    up = query.build_query(f"max by ({PORT}) (railscope_switch_port_up{HERE})", query.COUNT)
    time_sent, time_received, estimated = (
        port_rate(f"port_{name}_seconds", PRIORITY, HERE)
        for name in ("transmit_pfc_pause", "receive_pfc_pause", "receive_pfc_pause_estimated")
    )
    marks = port_rate("queue_ecn_marked_packets", QUEUE, HERE)
    column = panels.Column
    yield panels.rows(
        301,
        "Ports",
        "Pauses per second in the direction of the port: those that it receives, the server sent.",
        {"switch": "Switch", "port": "Port"},
        column("Pauses sent", query.build_query(sent), worst="highest"),
        column("Pauses received", query.build_query(received), worst="highest"),
        column("ECN marks", query.build_query(marks)),
        column("Dropped, out", query.build_query(dropped), panels.ANY_IS_BAD, worst="highest"),
        column("Dropped, in", query.build_query(dropped_in), panels.ANY_IS_BAD),
        column("Errors", query.build_query(wrong), panels.ANY_IS_BAD),
        column("State", up, panels.ALL_IS_GOOD, {0: "down", 1: "up"}),
        span=24,
    )
    yield from (
        panels.lines(302, "Pause frames sent", "The ten ports that pause their servers the most: congestion behind the switch.", _highest(sent)),
        panels.lines(303, "Pause frames received", "The ten ports that their servers pause the most: slow servers.", _highest(received)),
        panels.lines(304, "Pause time", "Share of time of the longest paused priority; the ten highest of each. SONiC estimates the time of received pauses.",
              _highest(time_sent).with_name("sent"), _highest(time_received).with_name("received"),
              _highest(estimated).with_name("received, estimated"), steps=panels.PAUSE),
        panels.lines(305, "Packets dropped by ports", "Without an error; the ten ports that drop the most.",
              _highest(dropped).with_name("out"), _highest(dropped_in).with_name("in")),
        panels.lines(306, "Bytes sent by ports", "The ten busiest.", _highest(port_rate("port_transmit_bytes", (), HERE))),
        panels.lines(307, "Bytes received by ports", "The ten busiest.", _highest(port_rate("port_receive_bytes", (), HERE))),
    )  # fmt: skip


def _queues() -> Iterator[panels.Panel]:
    of_queue = f"{PORT}, queue"
    marks, dropped, early, no_buffer = (
        each_rate(f"queue_{name}_packets", QUEUE, HERE)
        for name in ("ecn_marked", "dropped", "wred_dropped", "no_buffer_dropped")
    )
    depth, watermark = (
        f"max by ({of_queue}) (railscope_switch_queue_{name}_bytes{HERE})"
        for name in ("occupancy", "watermark")
    )
    headroom, shared, headroom_share = (
        f"max by ({PORT}, priority_group) (railscope_switch_priority_group_{name}{HERE})"
        for name in (
            "headroom_watermark_bytes",
            "shared_watermark_bytes",
            "headroom_peak_ratio",
        )
    )
    queue_share = f"max by ({of_queue}) (railscope_switch_queue_buffer_peak_ratio{HERE})"
    full = each_rate("priority_group_dropped_packets", GROUP, HERE)
    pool, pool_headroom = (
        f"max by (switch, pool) (railscope_switch_pool_{name}watermark_bytes{HERE})"
        for name in ("", "headroom_")
    )
    port_queue, port_group = "{{port}} queue {{queue}}", "{{port}} group {{priority_group}}"
    column = panels.Column

    def top(expression: str) -> query.Query:
        return query.build_query(f"topk(50, {expression})")

    yield panels.rows(
        401,
        "Queues",
        "Queues of unicast packets that leave a port; of each column the 50 highest.",
        {"switch": "Switch", "port": "Port", "queue": "Queue"},
        column("ECN marks", top(marks), worst="highest"),
        column("Dropped", top(dropped), panels.ANY_IS_BAD, worst="highest"),
        column("By WRED", top(early), panels.ANY_IS_BAD),
        column("Without buffer", top(no_buffer), panels.ANY_IS_BAD),
        column("Depth", top(depth), worst="highest"),
        column("Watermark", top(watermark)),
        span=24,
    )
    per_queue = f"sum by (queue) ({marks})"
    yield from (
        panels.lines(402, "ECN marks by queue", "Of all ports together.", query.build_query(per_queue, "", "queue {{queue}}")),
        panels.lines(403, "Packets dropped by queues", "The ten queues that drop the most.", _highest(dropped, port_queue).with_name("full"), _highest(early, port_queue).with_name("WRED"), _highest(no_buffer, port_queue).with_name("no buffer"), steps=panels.ANY_IS_BAD),
        panels.lines(404, "Depth of queues", "When the switch last read them; the ten deepest.", _highest(depth, port_queue)),
        panels.lines(405, "Watermarks of queues", "Largest depth since the switch last cleared them; the ten highest.", _highest(watermark, port_queue)),
        panels.lines(406, "Headroom of ports", "Watermarks of priority groups; above 0, the port had to pause its server.", _highest(headroom, port_group).with_name("headroom"), _highest(shared, port_group).with_name("shared")),
        panels.lines(407, "Packets dropped by full buffers", "Received packets, by priority group: a lossless one must drop none.", _highest(full, port_group), steps=panels.ANY_IS_BAD),
        panels.lines(408, "Buffer pools", "Watermarks of the pools of the switch.", query.build_query(pool, "", "{{pool}}"), query.build_query(pool_headroom, "", "{{pool}}").with_name("headroom"), span=12),
        panels.lines(409, "Peak shares of buffers", "Of switches that report shares in place of bytes: the largest since the switch last cleared them.", _highest(queue_share, port_queue), _highest(headroom_share, port_group).with_name("headroom"), span=12),
    )  # fmt: skip


def _links_health() -> Iterator[panels.Panel]:
    wrong, checksum, symbols, corrected, uncorrectable = (
        port_rate(f"port_receive_{name}", (), HERE)
        for name in (
            "errors",
            "fcs_errors",
            "symbol_errors",
            "fec_corrected_frames",
            "fec_uncorrectable_frames",
        )
    )
    by_lane = f"{PORT}, lane"
    received, sent, bias = (
        f"max by ({by_lane}) (railscope_switch_transceiver_{name}{HERE})"
        for name in ("receive_power_watts", "transmit_power_watts", "bias_amperes")
    )
    heat = f"max by ({PORT}) (railscope_switch_transceiver_temperature_celsius{HERE})"
    lane = "{{port}} lane {{lane}}"
    yield from (
        panels.lines(701, "Errors of ports", "Packets received with errors; the ten ports with the most.",
              _highest(wrong), _highest(checksum).with_name("checksum"), _highest(symbols).with_name("symbols"), steps=panels.ANY_IS_BAD),
        panels.lines(702, "FEC frames corrected", "Some are normal; growth is not.", _highest(corrected)),
        panels.lines(703, "FEC frames not corrected", "None is normal.", _highest(uncorrectable), steps=panels.ANY_IS_BAD),
        panels.lines(704, "Optical power received", "The ten darkest lanes; lane 0 is the whole transceiver.",
              query.build_query(f"bottomk(10, {received})", "", lane)),
        panels.lines(705, "Optical power sent", "The ten darkest lanes.", query.build_query(f"bottomk(10, {sent})", "", lane)),
        panels.lines(706, "Temperature of transceivers", "The ten hottest.", _highest(heat)),
        panels.lines(707, "Bias current of lasers", "A laser that needs more than before ages; the ten highest.", _highest(bias, lane), span=24),
    )  # fmt: skip


def _watchdog() -> Iterator[panels.Panel]:
    detected, restored = (
        each_rate(f"queue_pfc_watchdog_{name}_storms", QUEUE) for name in ("detected", "restored")
    )
    dropped = each_rate("queue_pfc_watchdog_dropped_packets", QUEUE)
    queue_of = "{{switch}} {{port}} queue {{queue}}"
    per_second = query.EVENTS_PER_SECOND
    yield from (
        panels.rows(501, "Blocked queues", "Queues of all switches that the watchdog treats as blocked by a storm of pauses: it drops their packets or forwards them unpaused.",
              {"switch": "Switch", "port": "Port", "queue": "Queue"},
              panels.Column("State", query.build_query(_STORMS, query.COUNT), panels.NONE_IS_GOOD, {1: "storm"}, worst="highest"), span=8),
        panels.bars(502, "Storms", "Of all switches, per second: the server paused a queue for too long.",
              _highest(f"{detected} > 0", queue_of, per_second).with_name("detected"), _highest(f"{restored} > 0", queue_of, per_second).with_name("restored")),
        panels.bars(503, "Packets dropped by the watchdog", "Of all switches.", _highest(f"{dropped} > 0", queue_of)),
    )  # fmt: skip


def _links() -> Iterator[panels.Panel]:
    keys = {"switch": "Switch", "port": "Port", "node": "Node", "interface": "Interface"}
    up, speed = (
        switch_panels.with_nic(f"max by ({PORT}) (railscope_switch_port_{name}{HERE})", HERE)
        for name in ("up", "speed_bytes_per_second")
    )
    neighbours = f"max by ({', '.join(_NEIGHBOUR)}) (railscope_switch_neighbour_info{HERE})"
    to_nic, to_switch = (
        [query.build_query(each, query.COUNT) for each in counted_frames(*counters, HERE, HERE)]
        for counters in (("transmit", "receive"), ("receive", "transmit"))
    )
    yield from (
        panels.rows(601, "NICs", "Links between ports of the switch and NICs, by LLDP of either end or the cabling file.", keys,
              panels.Column("State", query.build_query(up, query.COUNT), panels.ALL_IS_GOOD, {0: "down", 1: "up"}, worst="lowest"),
              panels.Column("Speed", query.build_query(speed))),
        panels.rows(602, "Neighbours", "Devices that the switch receives LLDP from, as they name themselves.", _NEIGHBOUR,
              panels.Column("Known", query.build_query(neighbours, query.COUNT), worst="lowest")),
        panels.rows(603, "Cabling faults", "Of all switches, by kind; docs/switches.md explains them, and the console lists them with their ports.", {"kind": "Kind"},
              panels.Column("Faults", query.build_query(_FAULTS, query.COUNT), panels.NONE_IS_GOOD, worst="highest")),
        panels.lines(604, "Cabling faults over time", "Of all switches, by kind.", query.build_query(_FAULTS, query.COUNT, "{{kind}}"), span=12),
        panels.rows(605, "Pause frames at both ends", "What both ends of each link counted in the last 15 minutes. They are read at different times: a part of a poll's growth is normal, more is a fault of a counter, of a setting or of the cabling.", keys,
              panels.Column("To the NIC: sent", to_nic[0], worst="highest"), panels.Column("Received", to_nic[1]),
              panels.Column("To the switch: sent", to_switch[1], worst="highest"), panels.Column("Received by the switch", to_switch[0]), span=24),
    )  # fmt: skip


def _explain(make: Callable[[], Iterator[panels.Panel]]) -> Iterator[panels.Panel]:
    return map(switch_panels.explained, make())


SECTIONS = tuple(
    (title, partial(_explain, make))
    for title, make in (
        ("", _summary),
        ("Is every switch read?", _reads),
        ("Which ports of the selected switch pause, are paused, or drop packets?", _ports),
        ("Which queues of the selected switch are congested?", _queues),
        ("Where does the PFC watchdog act?", _watchdog),
        (
            "Do links of the selected switch have errors, and is their light strong enough?",
            _links_health,
        ),
        ("What is connected to the selected switch, and are cables where they should be?", _links),
    )
)
