"""Metrics that NVIDIA Cumulus Linux pushes by OTLP, and the readings that they become.

Cumulus sends every number as a gauge with a floating-point value, counters included: this table specifies what each is.
What is not in it is not stored. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from railscope import otlp_metrics
from railscope.catalog import declare, entities, switches as catalog
from railscope.frame import Column, Entity
from railscope.reading import Absent, Reading, known_speed
from railscope_collector.switches.switch_reading import NEIGHBOURS, PORTS, PRIORITY, QUEUES

HOST_NAME = "net.host.name"
"""Attribute of the resource with the name of the switch."""
GROUPS = "switch_priority_groups"
TRAFFIC_CLASSES, PRIORITY_NUMBERS = (frozenset(map(str, range(count))) for count in (16, 8))
MAX_EXACT = 1 << 53
"""Integers from here on are not exact as floating-point numbers."""
MAX_PORT_NAME = 64
_MEGABIT_BITS = 10**6
_UP, _NOT_UP = 1, 2 | 4 | 8
"""Bits of oper_state: Up; Down, Invalid and Error (Cumulus Linux, Open Telemetry Export). It is not ifOperStatus of RFC 2863."""


class MetricRule(NamedTuple):
    """Meaning of one pushed metric."""

    metric: declare.Metric
    stream: str = PORTS
    attribute: str = ""
    """Attribute with the number of the priority, traffic class or priority group."""
    numbers: frozenset[str] = frozenset()
    parts: int = 1
    """Number of pushed metrics of which this one is the sum."""


class PointResult(StrEnum):
    """Result of a pushed point, as in the counter."""

    STORED = "stored"
    UNMAPPED = "unmapped"
    INVALID = "invalid"
    INEXACT = "inexact"
    DELTA = otlp_metrics.INCREMENTS
    OLD = "old"
    LIMIT = "limit"


def _priority(metric: declare.Metric) -> MetricRule:
    return MetricRule(metric, PRIORITY, "sp", PRIORITY_NUMBERS)


def _queue(metric: declare.Metric) -> MetricRule:
    return MetricRule(metric, QUEUES, "tc", TRAFFIC_CLASSES)


def _group(metric: declare.Metric) -> MetricRule:
    return MetricRule(metric, GROUPS, "pg", PRIORITY_NUMBERS)


_RECEIVED, _SENT = (
    MetricRule(metric, parts=3) for metric in (catalog.RECEIVED_PACKETS, catalog.SENT_PACKETS)
)
_PREFIX = "nvswitch_interface_"
RULES: Mapping[str, MetricRule] = {
    f"{_PREFIX}{name}": rule
    for name, rule in {
        "oper_state": MetricRule(catalog.PORT_UP), "oper_aggregate_speed": MetricRule(catalog.SPEED),
        "if_in_octets": MetricRule(catalog.RECEIVED), "if_out_octets": MetricRule(catalog.SENT),
        "if_in_errors": MetricRule(catalog.RECEIVED_ERRORS), "if_out_errors": MetricRule(catalog.SENT_ERRORS),
        "if_in_discards": MetricRule(catalog.RECEIVED_DISCARDS), "if_out_discards": MetricRule(catalog.SENT_DISCARDS),
        "if_in_ucast_pkts": _RECEIVED, "if_in_multicast_pkts": _RECEIVED, "if_in_broadcast_pkts": _RECEIVED,
        "if_out_ucast_pkts": _SENT, "if_out_multicast_pkts": _SENT, "if_out_broadcast_pkts": _SENT,
        "dot3_in_pause_frames": MetricRule(catalog.PAUSE_RECEIVED), "dot3_out_pause_frames": MetricRule(catalog.PAUSE_SENT),
        "dot3_stats_fcs_errors": MetricRule(catalog.FCS_ERRORS), "dot3_stats_symbol_errors": MetricRule(catalog.SYMBOL_ERRORS),
        "phy_stats_phy_corrected_bits": MetricRule(catalog.CORRECTED),
        "phy_stats_phy_symbol_errors": MetricRule(catalog.UNCORRECTED_SYMBOLS),
        "sp_rx_pause": _priority(catalog.PFC_RECEIVED), "sp_tx_pause": _priority(catalog.PFC_SENT),
        "sp_rx_pause_duration": _priority(catalog.PFC_RECEIVED_TIME), "sp_tx_pause_duration": _priority(catalog.PFC_SENT_TIME),
        "sp_rx_pause_transition": _priority(catalog.PFC_RECEIVED_TRANSITIONS),
        "tc_tx_uc_frames": _queue(catalog.QUEUE_PACKETS), "tc_tx_ecn_marked_tc": _queue(catalog.QUEUE_MARKED_PACKETS),
        "tc_tx_wred_discard": _queue(catalog.QUEUE_WRED_DROPPED_PACKETS),
        "tc_tx_no_buffer_discard_uc": _queue(catalog.QUEUE_NO_BUFFER_DROPPED),
        "pg_rx_buffer_discard": _group(catalog.GROUP_DROPPED),
        "pg_rx_shared_buffer_discard": _group(catalog.GROUP_SHARED_DROPPED),
    }.items()
} | {"nvswitch_lldp_neighbor_info": MetricRule(catalog.NEIGHBOUR_KNOWN, NEIGHBOURS)}  # fmt: skip
_KINDS = {PORTS: entities.SWITCH_PORT, PRIORITY: entities.SWITCH_PRIORITY, QUEUES: entities.SWITCH_QUEUE, GROUPS: entities.SWITCH_PRIORITY_GROUP, NEIGHBOURS: entities.SWITCH_NEIGHBOUR}  # fmt: skip
_NEIGHBOUR = {"system_name": "system_name", "chassis": "chassis_id", "neighbour_port": "port_id", "port_description": "port_description"}  # fmt: skip
"""Attributes with the facts of a neighbour."""


def find_column(switch: str, rule: MetricRule, attributes: Mapping[str, str]) -> Column | None:
    """Return the column that a point belongs to; None if an attribute is invalid."""
    port = attributes.get("interface", "")
    if not port or len(port) > MAX_PORT_NAME or not port.isprintable():
        return None
    key = [switch, port]
    if rule.attribute:
        number = attributes.get(rule.attribute, "")
        if number not in rule.numbers:
            return None
        key.append(number)
    facts = {fact: attributes.get(name, "") for fact, name in _NEIGHBOUR.items()}
    is_neighbour = rule.stream == NEIGHBOURS
    return rule.metric, Entity(_KINDS[rule.stream], tuple(key), facts if is_neighbour else {})


def read_value(rule: MetricRule, point: otlp_metrics.MetricPoint) -> Reading | PointResult:
    """Return the value of a point, GONE if it states that there is none, or why it has none."""
    value = point.value
    if value is None:
        return Absent.GONE
    if isinstance(value, float):
        if not value.is_integer():  # neither are infinity and NaN
            return PointResult.INVALID
        if abs(value) >= MAX_EXACT:
            return PointResult.INEXACT
    number = int(value)
    if rule.metric is catalog.PORT_UP:
        return int(bool(number & _UP) and not number & _NOT_UP)
    if rule.metric is catalog.SPEED:
        speed = known_speed(number)
        return speed if isinstance(speed, Absent) else known_speed(speed // _MEGABIT_BITS)
    return number if number >= 0 else PointResult.INVALID
