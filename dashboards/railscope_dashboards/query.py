"""Queries, made of catalog metrics or written out and checked against the catalog, with device names.

A query takes its unit and its explanation from the declarations of its metrics.

All names of GPUs and NICs in tables come from joins with the metrics that carry the names of
devices. A GPU has an index, a UUID and a PCI address; a NIC has an interface, an RDMA device and a
rail. A device without a name in any of these metrics keeps its row, with the names that its own
metric has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from railscope.catalog import Metric, MetricKind, MetricUnit, Rollup, derived_metric, rollups
from railscope_dashboards.promql import expand, in_cluster, metric_named, metrics_in, problems

COUNT = "short"
_BYTES_PER_SECOND = "Bps"
UNITS: Mapping[MetricUnit, str] = {
    MetricUnit.BYTES: "bytes",
    MetricUnit.BYTES_PER_SECOND: _BYTES_PER_SECOND,
    MetricUnit.SECONDS: "s",
    MetricUnit.RATIO: "percentunit",
    MetricUnit.WATTS: "watt",
    MetricUnit.JOULES: "joule",
    MetricUnit.VOLTS: "volt",
    MetricUnit.AMPERES: "amp",
    MetricUnit.REVOLUTIONS_PER_MINUTE: "rotrpm",
    MetricUnit.FRAMES_PER_SECOND: "pps",
    MetricUnit.CELSIUS: "celsius",
    MetricUnit.HERTZ: "hertz",
}
RATE_UNITS: Mapping[MetricUnit, str] = {
    MetricUnit.BYTES: _BYTES_PER_SECOND,
    MetricUnit.SECONDS: "percentunit",
    MetricUnit.JOULES: "watt",
    MetricUnit.PACKETS: "pps",
}
EVENTS_PER_SECOND = "cps"
SHARE = "percentunit"
NODES = '{node=~"$node"}'
"""Selector of the chosen nodes."""

_VECTOR = re.compile(r'\brailscope[_:][\w:]+(?:\{(?:[^{}"]|"(?:[^"\\]|\\.)*")*\})?(?:\[[^\]]*\])?')
_AGGREGATION = {Rollup.SUM: "sum", Rollup.MAX: "max", Rollup.MIN: "min"}


@dataclass(frozen=True, slots=True)
class Query:
    """An expression, the Grafana unit of its result, its legend, and its source metrics."""

    expression: str
    unit: str
    legend: str = ""
    metrics: tuple[Metric, ...] = ()

    def with_name(self, name: str) -> Query:
        """Name the query, to distinguish it from others in a panel."""
        return replace(self, legend=", ".join(filter(None, (name, self.legend))))

    def in_unit(self, unit: str) -> Query:
        """Show the query in a unit that is more common than the declared one."""
        return replace(self, unit=unit)

    @property
    def shown(self) -> Query:
        """The query as people read it, of the chosen clusters. Traffic is in bits, as the speeds of ports and links; metrics count bytes."""
        expression = in_cluster(self.expression)
        if self.unit != _BYTES_PER_SECOND:
            return replace(self, expression=expression)
        return replace(self, unit="bps", expression=f"8 * ({expression})")


def now(metric: Metric, rollup_kind: Rollup, *by: str, selector: str = "") -> Query:
    """Aggregate the current value of a gauge."""
    expression = _aggregate(rollup_kind, by, f"{metric.name}{selector}")
    return Query(expression, unit_of(metric), _legend(by), (metric,))


def per_second(counter: Metric, *by: str) -> Query:
    """Sum the rate of a counter."""
    expression = _aggregate(Rollup.SUM, by, f"rate({counter.name}[$__rate_interval])")
    return Query(expression, rate_unit_of(counter), _legend(by), (counter,))


def slope(gauge: Metric, *by: str) -> Query:
    """Sum the growth per second of a gauge, for a value that may also be corrected downwards."""
    expression = _aggregate(Rollup.SUM, by, f"deriv({gauge.name}[$__rate_interval])")
    return Query(expression, rate_unit_of(gauge), _legend(by), (gauge,))


def rollup(scope: str, metric: Metric, rollup_kind: Rollup, *by: str, selector: str = "") -> Query:
    """Return a roll-up that the collectors expose: of each rail, each tenant or the cluster.

    Several collectors may each hold a share of the nodes, so their roll-ups are rolled up again.
    """
    derived = derived_metric(metric, scope, rollup_kind)
    by = (*(() if scope == "cluster" else (scope,)), *by)
    if rollup_kind is Rollup.MEAN:
        expression = mean(derived.name, *by, selector=selector)
        return Query(expression, unit_of(derived), _legend(by), (derived,))
    return now(derived, rollup_kind, *by, selector=selector)


def mean(name: str, *by: str, selector: str = "") -> str:
    """Return the mean of all readings of a mean roll-up: several collectors may each have a part of them."""
    source = rollups()[name]
    count = derived_metric(source.source, source.scope, Rollup.COUNT).name + selector
    total = _aggregate(Rollup.SUM, by, f"{name}{selector} * {count}")
    return f"{total} / {_aggregate(Rollup.SUM, by, count)}"


def active_gpus(name: str) -> str:
    """Return a mean share of GPUs of the cluster as their number."""
    share = f"railscope_cluster_mean_gpu_{name}_ratio"
    return f"sum({share} * railscope_cluster_count_gpu_{name})"


def highest_rates(counter: str) -> Query:
    """Return the ten nodes with the highest rate of a counter."""
    rate = f"rate(railscope_{counter}_total{NODES}[$__rate_interval])"
    return build_query(f"topk(10, sum by (node) ({rate}))", EVENTS_PER_SECOND, "{{node}}")


def unit_of(metric: Metric) -> str:
    """Translate the unit of a metric's value into Grafana's."""
    derived = rollups().get(metric.name)
    if derived and derived.source.kind is MetricKind.COUNTER:
        return rate_unit_of(derived.source)
    return UNITS.get(metric.unit, COUNT)


def rate_unit_of(metric: Metric) -> str:
    """Translate the unit of a metric's change per second into Grafana's."""
    return RATE_UNITS.get(metric.unit, EVENTS_PER_SECOND)


def pauses_of_any_kind(expression: str) -> str:
    """Add link-wide pause (IEEE 802.3x) to an expression of PFC: a port uses one of them, and counts 0 of the other one.

    Only series of PFC have a priority, so `or` keeps those of both.
    """
    return f"({expression} or {expression.replace('_pfc_', '_global_')})"


def pause_shares(direction: str, selector: str = "") -> str:
    """Return the share of time of each pause of NICs. The largest one of a NIC counts: pauses of several priorities overlap."""
    counter = f"railscope_nic_{direction}_pfc_pause_seconds_total{selector}"
    return f"clamp_max({pauses_of_any_kind(f'rate({counter}[$__rate_interval])')}, 1)"


def with_rail(expression: str, selector: str = '{rail!=""}') -> str:
    """Add the rail to each series of a NIC; NICs without a rail are omitted."""
    info = f"max by (node, interface, rail) (railscope_nic_info{selector})"
    return f"{expression} * on (node, interface) group_left (rail) {info}"


def with_port_rail(expression: str, selector: str = '{rail!=""}') -> str:
    """Add the rail to each series of an RDMA port; ports without a rail are omitted."""
    info = f"max by (node, device, port, rail) (railscope_rdma_port_info{selector})"
    return f"{expression} * on (node, device, port) group_left (rail) {info}"


def with_index(expression: str, selector: str = "") -> str:
    """Add the index in its node to each series of a GPU."""
    info = f"max by (node, gpu, index) (railscope_gpu_info{selector})"
    return f"{expression} * on (node, gpu) group_left (index) {info}"


def state_number(metric: str, states: Mapping[int, str], by: str, selector: str) -> str:
    """Return the largest number in `states` that is active in each group of a state metric."""
    matchers = selector.removesuffix("}")
    return " or ".join(
        f'(max by ({by}) ({metric}{matchers}, state="{state}"}}) == 1) * {value}'
        for value, state in sorted(states.items(), reverse=True)
    )


def in_state(metric: str, selector: str, state: str) -> Query:
    """Count the devices in a state: 0 if all are in other states, absent if no state is known.

    `state` is a matcher. A state metric has only the series of the present state.
    """
    selected = ", ".join(filter(None, (selector.strip("{}"), state)))
    return build_query(f"count({metric}{{{selected}}}) or 0 * count({metric}{selector})", COUNT)


def present(query: Query) -> Query:
    """Omit zeros."""
    return replace(query, expression=f"{query.expression} > 0")


def lowest(expression: str) -> str:
    """Select the ten lowest at the end of the time range, with their full curves.

    `bottomk` alone selects again at each timestamp: many similar curves become dots.
    """
    return f"({expression}) and bottomk(10, {at_end(expression)})"


def highest(expression: str) -> str:
    """Select the ten highest in the same way."""
    return f"({expression}) and topk(10, {at_end(expression)})"


def at_end(expression: str) -> str:
    """Evaluate an expression at the end of the time range, at each timestamp of it."""
    return _VECTOR.sub(r"\g<0> @ end()", expression)


def count_increase(selector: str) -> Query:
    """Count events of the last hour in whole numbers; a counter reset counts as no growth."""
    return build_query(f"sum({selector} - min_over_time({selector}[1h]))", COUNT)


def build_query(expression: str, unit: str = "", legend: str = "") -> Query:
    """Return a query of an expression as written; its unit defaults to that of its first metric.

    Raises ValueError if the catalog does not declare a name in the expression.
    """
    if faults := problems(expression):
        message = f"invalid expression {expression}: {'; '.join(faults)}"
        raise ValueError(message)
    made_of = expand(expression)
    metrics = tuple(_metrics_of(made_of))
    if not unit:
        first = metrics[0]
        unit = rate_unit_of(first) if "rate(" in made_of else unit_of(first)
    return Query(expression, unit, legend, metrics)


def _metrics_of(expression: str) -> Iterator[Metric]:
    """Yield the metrics with visible values, in the order of the expression; info metrics need no help."""
    for name in sorted(metrics_in(expression), key=lambda name: (expression.index(name), name)):
        metric = metric_named(name)
        if metric is not None and metric.kind is not MetricKind.INFO:
            yield metric


def _aggregate(rollup_kind: Rollup, by: tuple[str, ...], inner: str) -> str:
    grouping = f" by ({', '.join(by)}) " if by else ""
    return f"{_AGGREGATION[rollup_kind]}{grouping}({inner})"


def _legend(by: tuple[str, ...]) -> str:
    return ", ".join(f"{label} {{{{{label}}}}}" for label in by)


_GPU_TITLES = {"index": "GPU", "gpu": "UUID", "pci_address": "PCI address"}
_NIC_TITLES = {"interface": "Interface", "rdma_device": "RDMA device", "rail": "Rail"}
_PORT_TITLES = {"interface": "Interface", "device": "RDMA device", "port": "Port", "rail": "Rail"}


@dataclass(frozen=True, slots=True)
class DeviceNameJoin:
    """A join with device names: the labels that identify a device, and a metric with its names."""

    key: tuple[str, ...]
    """Labels that identify a device within its node."""
    titles: Mapping[str, str]
    """Title of each label of a device, in the order of the columns."""
    info: str
    """Expression of the series with the names; of several for one device, the highest value counts."""

    @property
    def shared_labels(self) -> str:
        """Labels that series with names and series without them have in common."""
        return ", ".join(("node", *self.key))

    @property
    def added_labels(self) -> str:
        """Labels that a join adds."""
        return ", ".join(label for label in self.titles if label not in self.key)

    def join(self, expression: str) -> str:
        """Return the series of an expression that have names, with their names."""
        best = f"topk by ({self.shared_labels}) (1, {self.info})"
        names = f"group by ({self.shared_labels}, {self.added_labels}) ({best})"
        return (
            f"({expression}) * on ({self.shared_labels}) group_left ({self.added_labels}) {names}"
        )


GPU = DeviceNameJoin(("gpu",), _GPU_TITLES, "railscope_gpu_info")
PAST_GPU = replace(GPU, info="last_over_time(railscope_gpu_info[6h])")
"""GPUs that may have vanished: their names are those of the last six hours."""
GPU_AT_ADDRESS = DeviceNameJoin(("pci_address",), _GPU_TITLES, "railscope_gpu_info")
NIC = DeviceNameJoin(("interface",), _NIC_TITLES, "railscope_nic_info")
RDMA_PORT = DeviceNameJoin(("device", "port"), _PORT_TITLES, "railscope_rdma_port_info")
NIC_AT_ADDRESS = DeviceNameJoin(
    ("pci_address",),
    _NIC_TITLES,
    # Ports and virtual functions share an address: the one on a rail counts. InfiniBand without IP
    # has no interface.
    '(railscope_nic_info{rail!=""} * 3 or railscope_nic_info * 2 '
    'or label_join(railscope_rdma_port_info, "rdma_device", "", "device"))',
)


INCIDENT_TITLES = "group by (incident, title) (topk by (incident) (1, railscope_incident_title))"
"""Title of each incident, as people read it; of several collectors one counts."""


def joins_for(keys: Mapping[str, str]) -> tuple[DeviceNameJoin, ...]:
    """Return the joins for the names of the devices of a table with these key labels; none if complete."""
    if "title" in keys:
        return ()
    if "gpu" in keys:
        return () if "index" in keys else (GPU,)
    if "interface" in keys:
        return () if "rail" in keys else (NIC,)
    if "device" in keys:
        return (RDMA_PORT,)
    if "pci_address" in keys:
        return (GPU_AT_ADDRESS,) if "xid" in keys else (GPU_AT_ADDRESS, NIC_AT_ADDRESS)
    return ()


def with_device_titles(keys: Mapping[str, str], *ways: DeviceNameJoin) -> dict[str, str]:
    """Return the keys of a table, with all names of its devices in place of the key of each."""
    found: dict[str, str] = {}
    for label, title in keys.items():
        shown = [way.titles for way in ways if label in way.key]
        for titles in shown or [{label: title}]:
            found |= titles
        if label not in found:
            found[label] = title
    return found


def with_device_names(query: Query, *ways: DeviceNameJoin) -> Query:
    """Add all device names that nodes report to a query."""
    nameless = " ".join(f"unless on ({way.shared_labels}) {way.info}" for way in ways)
    named = " or ".join(way.join(query.expression) for way in ways)
    return replace(query, expression=f"{named} or ({query.expression}) {nameless}")
