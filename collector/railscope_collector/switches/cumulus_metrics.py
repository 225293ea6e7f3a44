"""Metrics that NVIDIA Cumulus Linux pushes by OTLP, and the readings that they become.

Cumulus sends every number as a gauge with a floating-point value, counters included: the table of facts specifies what
each is. What is not in it is not stored. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from railscope import otlp_metrics
from railscope.catalog import declare, entities, switches as catalog
from railscope.frame import Column, Entity
from railscope.reading import Absent, Reading
from railscope_collector.switches import switch_facts as facts
from railscope_collector.switches.switch_reading import NEIGHBOURS, PORTS, PRIORITY, QUEUES

HOST_NAME = "net.host.name"
"""Attribute of the resource with the name of the switch."""
GROUPS = "switch_priority_groups"
TRAFFIC_CLASSES, PRIORITY_NUMBERS = (frozenset(map(str, range(count))) for count in (16, 8))
MAX_EXACT = 1 << 53
"""Integers from here on are not exact as floating-point numbers."""
MAX_PORT_NAME = 64
_UNITS = facts.UNITS[facts.CUMULUS]
_UP, _NOT_UP = 1, 2 | 4 | 8
"""Bits of oper_state: Up; Down, Invalid and Error (Cumulus Linux, Open Telemetry Export). It is not ifOperStatus of RFC 2863."""


class PointResult(StrEnum):
    """Result of a pushed point, as in the counter."""

    STORED = "stored"
    UNMAPPED = "unmapped"
    INVALID = "invalid"
    INEXACT = "inexact"
    DELTA = otlp_metrics.INCREMENTS
    OLD = "old"
    LIMIT = "limit"


class PushedKind(NamedTuple):
    """Stream of the facts of an entity kind, and the attribute with its number: a priority, traffic class or group."""

    stream: str
    attribute: str = ""
    numbers: frozenset[str] = frozenset()


KINDS: Mapping[declare.EntityKind, PushedKind] = {
    entities.SWITCH_PORT: PushedKind(PORTS),
    entities.SWITCH_PRIORITY: PushedKind(PRIORITY, "sp", PRIORITY_NUMBERS),
    entities.SWITCH_QUEUE: PushedKind(QUEUES, "tc", TRAFFIC_CLASSES),
    entities.SWITCH_PRIORITY_GROUP: PushedKind(GROUPS, "pg", PRIORITY_NUMBERS),
    entities.SWITCH_NEIGHBOUR: PushedKind(NEIGHBOURS),
}
_FACTS = {
    metric: names
    for names_of in facts.select(lambda fact: fact.cumulus).values()
    for metric, (names,) in names_of.items()
}
METRICS: Mapping[str, declare.Metric] = {
    f"nvswitch_{name}": metric for metric, names in _FACTS.items() for name in names
}
"""Metrics by pushed name."""
PARTS: Mapping[declare.Metric, int] = {metric: len(names) for metric, names in _FACTS.items()}
"""Number of pushed metrics whose sum a metric is."""
_NEIGHBOUR = {"system_name": "system_name", "chassis": "chassis_id", "neighbour_port": "port_id", "port_description": "port_description"}  # fmt: skip
"""Attributes with the facts of a neighbour."""


def read_point(
    switch: str, point: otlp_metrics.MetricPoint
) -> tuple[Column, Reading] | PointResult:
    """Return the column that a point belongs to, and its value; or why it has none."""
    metric = METRICS.get(point.name)
    if metric is None or point.kind not in otlp_metrics.NUMBER_KINDS:
        return PointResult.UNMAPPED
    port, kind = point.attributes.get("interface", ""), KINDS[metric.about]
    if not port or len(port) > MAX_PORT_NAME or not port.isprintable():
        return PointResult.INVALID
    key = [switch, port]
    if kind.attribute:
        number = point.attributes.get(kind.attribute, "")
        if number not in kind.numbers:
            return PointResult.INVALID
        key.append(number)
    value = _read_value(metric, point)
    if isinstance(value, PointResult):
        return value
    is_neighbour = kind.stream == NEIGHBOURS
    texts = {fact: point.attributes.get(name, "") for fact, name in _NEIGHBOUR.items()}
    return (metric, Entity(metric.about, tuple(key), texts if is_neighbour else {})), value


def _read_value(metric: declare.Metric, point: otlp_metrics.MetricPoint) -> Reading | PointResult:
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
    if metric is catalog.PORT_UP:
        return int(bool(number & _UP) and not number & _NOT_UP)
    if number < 0 and metric is not catalog.SPEED:
        return PointResult.INVALID
    return facts.as_stored(metric, number, _UNITS.get(metric))
