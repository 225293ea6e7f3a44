"""Queries, made of catalog metrics or written out and checked against the catalog.

A query takes its unit and its explanation from the declarations of its metrics.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from dashboards.promql import metric_named, metrics_in, problems
from dashboards.recorded import expanded
from railscope.catalog import Kind, Metric, Rollup, Unit, rollups
from railscope.catalog.rollup import derived_name

COUNT = "short"
UNITS: Mapping[Unit, str] = {
    Unit.BYTES: "bytes",
    Unit.BYTES_PER_SECOND: "Bps",
    Unit.SECONDS: "s",
    Unit.RATIO: "percentunit",
    Unit.WATTS: "watt",
    Unit.JOULES: "joule",
    Unit.VOLTS: "volt",
    Unit.AMPERES: "amp",
    Unit.REVOLUTIONS_PER_MINUTE: "rotrpm",
    Unit.CELSIUS: "celsius",
    Unit.HERTZ: "hertz",
}
RATE_UNITS: Mapping[Unit, str] = {
    Unit.BYTES: "Bps",
    Unit.SECONDS: "percentunit",
    Unit.JOULES: "watt",
    Unit.PACKETS: "pps",
}
EVENTS_PER_SECOND = "cps"
SHARE = "percentunit"

_VECTOR = re.compile(r'\brailscope[_:][\w:]+(?:\{(?:[^{}"]|"(?:[^"\\]|\\.)*")*\})?(?:\[[^\]]*\])?')
_AGGREGATION = {Rollup.SUM: "sum", Rollup.MEAN: "avg", Rollup.MAX: "max", Rollup.MIN: "min"}


@dataclass(frozen=True, slots=True)
class Query:
    """An expression, the Grafana unit of its result, its legend, and its source metrics."""

    expression: str
    unit: str
    legend: str = ""
    metrics: tuple[Metric, ...] = ()

    def named(self, name: str) -> Query:
        """Name the query, to distinguish it from others in a panel."""
        return replace(self, legend=", ".join(filter(None, (name, self.legend))))

    def in_unit(self, unit: str) -> Query:
        """Show the query in another unit, if readers do not think in the declared one."""
        return replace(self, unit=unit)


def now(metric: Metric, how: Rollup, *by: str, where: str = "") -> Query:
    """Aggregate the current value of a gauge."""
    expression = _aggregated(how, by, f"{metric.name}{where}")
    return Query(expression, unit_of(metric), _legend(by), (metric,))


def per_second(counter: Metric, *by: str, where: str = "") -> Query:
    """Sum the rate of a counter."""
    expression = _aggregated(Rollup.SUM, by, f"rate({counter.name}{where}[$__rate_interval])")
    return Query(expression, rate_unit_of(counter), _legend(by), (counter,))


def slope(gauge: Metric, *by: str) -> Query:
    """Sum the growth per second of a gauge, for a value that may also be corrected downwards."""
    expression = _aggregated(Rollup.SUM, by, f"deriv({gauge.name}[$__rate_interval])")
    return Query(expression, rate_unit_of(gauge), _legend(by), (gauge,))


def over(scope: str, metric: Metric, how: Rollup, *by: str, where: str = "") -> Query:
    """Return a roll-up that the collectors expose: of each rail, each tenant or the cluster.

    Several collectors may each hold a share of the nodes, so their roll-ups are rolled up again.
    """
    derived = rollups()[derived_name(metric, scope, how)].metric
    return now(derived, how, *(() if scope == "cluster" else (scope,)), *by, where=where)


def unit_of(metric: Metric) -> str:
    """Translate the unit of a metric's value into Grafana's."""
    derived = rollups().get(metric.name)
    if derived and derived.source.kind is Kind.COUNTER:
        return rate_unit_of(derived.source)
    return UNITS.get(metric.unit, COUNT)


def rate_unit_of(metric: Metric) -> str:
    """Translate the unit of a metric's change per second into Grafana's."""
    return RATE_UNITS.get(metric.unit, EVENTS_PER_SECOND)


def with_rail(expression: str, where: str = '{rail!=""}') -> str:
    """Add the rail to each series of a NIC; NICs without a rail are omitted."""
    info = f"max by (node, interface, rail) (railscope_nic_info{where})"
    return f"{expression} * on (node, interface) group_left (rail) {info}"


def with_port_rail(expression: str, where: str = '{rail!=""}') -> str:
    """Add the rail to each series of an RDMA port; ports without a rail are omitted."""
    info = f"max by (node, device, port, rail) (railscope_rdma_port_info{where})"
    return f"{expression} * on (node, device, port) group_left (rail) {info}"


def with_index(expression: str, where: str = "") -> str:
    """Add the index in its node to each series of a GPU."""
    info = f"max by (node, gpu, index) (railscope_gpu_info{where})"
    return f"{expression} * on (node, gpu) group_left (index) {info}"


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


def grown(selector: str) -> Query:
    """Count events of the last hour in whole numbers; a counter reset counts as no growth."""
    return ask(f"sum({selector} - min_over_time({selector}[1h]))", COUNT)


def ask(expression: str, unit: str = "", legend: str = "") -> Query:
    """Return a query of an expression as written; its unit defaults to that of its first metric.

    Raises ValueError if the catalog does not declare a name in the expression.
    """
    if found := problems(expression):
        message = f"{expression}: {'; '.join(found)}"
        raise ValueError(message)
    made_of = expanded(expression)
    metrics = tuple(_metrics_of(made_of))
    if not unit:
        first = metrics[0]
        unit = rate_unit_of(first) if "rate(" in made_of else unit_of(first)
    return Query(expression, unit, legend, metrics)


def _metrics_of(expression: str) -> Iterator[Metric]:
    """Yield the metrics with visible values, in the order of the expression; info metrics need no help."""
    for name in sorted(metrics_in(expression), key=lambda name: (expression.index(name), name)):
        metric = metric_named(name)
        if metric is not None and metric.kind is not Kind.INFO:
            yield metric


def _aggregated(how: Rollup, by: tuple[str, ...], inner: str) -> str:
    grouping = f" by ({', '.join(by)}) " if by else ""
    return f"{_AGGREGATION[how]}{grouping}({inner})"


def _legend(by: tuple[str, ...]) -> str:
    return ", ".join(f"{label} {{{{{label}}}}}" for label in by)
