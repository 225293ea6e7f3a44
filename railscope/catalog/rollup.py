"""Roll-ups: metrics derived from the declared ones for a rail, a tenant, a job or the cluster.

`railscope_<scope>_<rollup>_<what>_<unit>`: a gauge keeps its unit; a counter becomes its rate, in
`bytes_per_second` or `per_second`, as a ratio where it counts seconds, in watts where it counts joules.

A roll-up answers a question about the scope as a whole: how much there is and how much is used (sum), the
usual value (mean of shares), the worst one (max, min), whether there are faults and how many (sum). There is
none that repeats another one: frames and seconds of pause, state of a port by two sources. A mean has the number
of its readings (count), by which means of several collectors are combined.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from railscope.catalog.declare import BASIC, EntityKind, Metric, MetricKind, MetricUnit, Rollup
from railscope.catalog.entities import CLUSTER, GPU, JOB, NIC, RAIL, RDMA_PORT, TENANT

SCOPES: Mapping[str, EntityKind] = {"cluster": CLUSTER, "rail": RAIL, "tenant": TENANT, "job": JOB}
ON_A_RAIL = (GPU, NIC, RDMA_PORT)
_UNITS_BY_PLACE = (MetricUnit.RATIO, MetricUnit.WATTS, MetricUnit.CELSIUS)
_WORDS = {
    Rollup.SUM: "Sum", Rollup.MEAN: "Mean", Rollup.COUNT: "Number of readings",
    Rollup.MAX: "Highest", Rollup.MIN: "Lowest",
}  # fmt: skip
_RATE_UNITS = {
    MetricUnit.SECONDS: MetricUnit.RATIO,
    MetricUnit.JOULES: MetricUnit.WATTS,
    MetricUnit.BYTES: MetricUnit.BYTES_PER_SECOND,
}


def is_averaged(metric: Metric) -> bool:
    """True for a gauge that views show as its mean of the last minute."""
    return metric.name == "railscope_gpu_utilization_ratio"


def is_of_last_minute(metric: Metric) -> bool:
    """True for a metric of which views show the last minute: traffic, pauses and busy time."""
    of_port = metric.about.outermost in {NIC, RDMA_PORT}
    return is_averaged(metric) or (metric.kind is MetricKind.COUNTER and of_port)


def shows_largest(metric: Metric) -> bool:
    """True for a counter of time of which views show the largest share of ten seconds in the last minute."""
    return (
        is_of_last_minute(metric)
        and metric.kind is MetricKind.COUNTER
        and Rollup.MAX in metric.rollups
    )


@dataclass(frozen=True, slots=True, eq=False)
class DerivedMetric:
    """A roll-up of a declared metric over a scope; `metric` is the declaration of the result."""

    metric: Metric
    source: Metric
    scope: str
    rollup: Rollup

    @property
    def title(self) -> str:
        """The roll-up in words, such as "Highest: Temperature of the GPU die."."""
        return f"{_WORDS[self.rollup]}: {self.source.help}"


def part_labels(kind: EntityKind) -> tuple[str, ...]:
    """Return the labels that distinguish the parts of one entity, which roll-ups retain."""
    return kind.labels[len(kind.outermost.labels) :]


def scopes_of(metric: Metric) -> tuple[str, ...]:
    """Return the scopes of a metric's declared roll-ups; jobs have only a few.

    GPUs of one rail have the same place in their nodes: what differs by place is load, power and temperature.
    """
    kind = metric.about
    if kind.outermost not in ON_A_RAIL:
        return ("cluster",)
    is_by_place = kind is GPU and metric.unit in _UNITS_BY_PLACE
    if kind.outermost is GPU and not is_by_place:
        return "cluster", "tenant"
    return "cluster", "rail", "tenant"


def derived_name(source: Metric, scope: str, rollup: Rollup) -> str:
    """Return the name of a roll-up."""
    if rollup is Rollup.COUNT:
        return f"railscope_{scope}_count_{source.stem}"
    if source.kind is not MetricKind.COUNTER:
        return f"railscope_{scope}_{rollup}_{source.name.removeprefix('railscope_')}"
    suffix = _RATE_UNITS.get(source.unit)
    if suffix is None:
        return f"railscope_{scope}_{rollup}_{source.stem}_{source.unit}_per_second".replace(
            "__", "_"
        )
    return f"railscope_{scope}_{rollup}_{source.stem}_{suffix}"


def derive(metrics: Iterable[Metric]) -> dict[str, DerivedMetric]:
    """Return all roll-ups of the given metrics, by name."""
    rollups = {}
    for source in metrics:
        for rollup in source.rollups:
            for scope in scopes_of(source):
                derived = DerivedMetric(_declare(source, scope, rollup), source, scope, rollup)
                rollups[derived.metric.name] = derived
    return rollups


def derive_by_job(chosen: Mapping[Metric, Sequence[Rollup]]) -> dict[str, DerivedMetric]:
    """Return the roll-ups over jobs, by name."""
    families = (
        DerivedMetric(_declare(source, "job", rollup), source, "job", rollup)
        for source, rollups in chosen.items()
        for rollup in rollups
    )
    return {derived.metric.name: derived for derived in families}


def _declare(source: Metric, scope: str, rollup: Rollup) -> Metric:
    about = SCOPES[scope]
    labels = about.labels + part_labels(source.about)
    rate = source.kind is MetricKind.COUNTER
    unit = _RATE_UNITS.get(source.unit, MetricUnit.NONE) if rate else source.unit
    is_count = rollup is Rollup.COUNT
    of = "the rate per second of " if rate else ""
    return Metric(
        derived_name(source, scope, rollup),
        MetricKind.GAUGE,
        about
        if labels == about.labels
        else EntityKind(f"{scope}_{source.about.name}", labels, part_of=about),
        unit=MetricUnit.NONE if is_count else unit,
        scale=Fraction(1) if is_count else source.scale,
        help=f"{_WORDS[rollup]} over the {scope} of {of}{source.name}."
        + ("" if is_count else _window_text(source))
        + (" Absent at zero." if source.sparse else ""),
        origin=f"collector, {source.name}",
        detail=BASIC,
        sparse=source.sparse,
    )


def _window_text(source: Metric) -> str:
    if shows_largest(source):
        return " The largest share of ten seconds in the last minute counts."
    return " Means of the last minute." if is_of_last_minute(source) else ""
