"""The catalog: every metric and event, declared once, by subject.

`METRICS` and `EVENTS` contain all declarations by name, in the order of the modules; `INFO` maps an
entity kind to its info metric; `KINDS` contains all entity kinds; `rollups()` derives metrics of rails,
tenants, jobs and the cluster, computed on first use: agents never call it.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType

from railscope.catalog import account, entities
from railscope.catalog.declare import EntityKind, EventClass, Metric, MetricKind, MetricUnit, Rollup
from railscope.catalog.rollup import DerivedMetric, derive, derive_by_job, derived_name

SUBJECTS: dict[str, ModuleType] = {
    name: import_module(f"railscope.catalog.{name}")
    for name in (
        "gpu", "gpu_health", "gpu_sharing", "nvlink", "rdma", "nic", "nic_settings", "cabling", "pcie", "bursts", "host",
        "network", "storage", "sensors", "kernel", "tenancy", "collectives", "textfile", "switches", "agent", "collector",
        "account", "incidents",
    )
}  # fmt: skip
"""Modules of this package that declare metrics, in the order of the metrics."""


def _declared(module: ModuleType) -> list[Metric]:
    metrics: list[Metric] = []
    for value in vars(module).values():
        if isinstance(value, Metric):
            metrics.append(value)
        elif isinstance(value, tuple | dict):
            items = value.values() if isinstance(value, dict) else value
            metrics.extend(item for item in items if isinstance(item, Metric))
    return metrics


METRICS: dict[str, Metric] = {}
SUBJECT_OF: dict[str, str] = {}
EVENTS: dict[str, EventClass] = {}
for _subject, _module in SUBJECTS.items():
    for _metric in _declared(_module):
        if METRICS.setdefault(_metric.name, _metric) is not _metric:
            _message = f"metric {_metric.name} is declared twice"
            raise ValueError(_message)
        SUBJECT_OF.setdefault(_metric.name, _subject)
    EVENTS |= {v.name: v for v in vars(_module).values() if isinstance(v, EventClass)}

KINDS: dict[str, EntityKind] = {
    kind.name: kind for kind in vars(entities).values() if isinstance(kind, EntityKind)
}
INFO: dict[str, Metric] = {m.about.name: m for m in METRICS.values() if m.kind is MetricKind.INFO}
ORDER: dict[str, int] = {name: position for position, name in enumerate(METRICS)}


@cache
def rollups() -> dict[str, DerivedMetric]:
    """Return every roll-up of the declared metrics, by name."""
    return derive(METRICS.values()) | derive_by_job(account.BY_JOB)


@cache
def derived_metric(metric: Metric, scope: str, rollup: Rollup) -> Metric:
    """Return a roll-up of a metric."""
    return rollups()[derived_name(metric, scope, rollup)].metric


__all__ = [
    "EVENTS",
    "INFO",
    "KINDS",
    "METRICS",
    "ORDER",
    "SUBJECTS",
    "SUBJECT_OF",
    "DerivedMetric",
    "EntityKind",
    "EventClass",
    "Metric",
    "MetricKind",
    "MetricUnit",
    "Rollup",
    "derived_metric",
    "rollups",
]
