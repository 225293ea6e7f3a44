"""Properties of every declaration, and of everything derived from them."""

from __future__ import annotations

import re

import pytest

from railscope.catalog import EVENTS, KINDS, METRICS, rollups
from railscope.catalog.account import BY_JOB
from railscope.catalog.declare import (
    BUCKET,
    EntityKind,
    Metric,
    MetricKind,
    MetricUnit,
    Rollup,
)
from railscope.catalog.entities import NODE
from railscope.catalog.rollup import SCOPES, part_labels

NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
RESERVED_LABELS = {"le", "quantile", "job", "instance"}
RESERVED_ENDINGS = ("_bucket", "_sum", "_count", "_created", "_gsum", "_gcount")
DECLARED = list(METRICS.values())
DERIVED = list(rollups().values())


def test_metrics_keep_the_naming_rules() -> None:
    names = [*METRICS, *rollups()]
    assert [name for name in names if not NAME.fullmatch(name)] == []
    assert [name for name in names if name.endswith(RESERVED_ENDINGS)] == []
    assert [
        m.name for m in DECLARED if (m.kind is MetricKind.INFO) != m.name.endswith("_info")
    ] == []


def test_metrics_are_about_entities_of_the_catalog() -> None:
    assert [m.name for m in DECLARED if KINDS.get(m.about.name) is not m.about] == []


def test_metrics_have_a_source_and_counters_a_reset() -> None:
    assert [m.name for m in DECLARED if not m.origin] == []
    assert [m.name for m in DECLARED if m.kind is MetricKind.COUNTER and not m.resets] == []


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_labels_and_facts_of_a_kind_do_not_collide(kind: EntityKind) -> None:
    terms = (*kind.labels, *kind.facts)
    assert len(set(terms)) == len(terms), "a fact would overwrite a label"
    assert all(NAME.fullmatch(term) for term in terms)
    own = kind.labels[:-1] if kind.labels[-1:] == (BUCKET,) else kind.labels
    assert not {*own, *kind.facts} & RESERVED_LABELS


def test_one_info_metric_a_kind() -> None:
    info = [metric for metric in DECLARED if metric.kind is MetricKind.INFO]
    assert len({metric.about.name for metric in info}) == len(info)
    assert all(metric.about.facts for metric in info)


def test_openmetrics_families_do_not_clash() -> None:
    """A family is called without `_total` and `_info`; its samples with them."""
    suffixes = {MetricKind.COUNTER: "_total", MetricKind.INFO: "_info"}
    every = [*DECLARED, *(derived.metric for derived in DERIVED)]
    families = [metric.name.removesuffix(suffixes.get(metric.kind, "")) for metric in every]
    names = [*families, *(metric.name for metric in every if metric.kind in suffixes)]
    assert len(set(names)) == len(names)


def rollups_of(source: Metric, scope: str) -> tuple[Rollup, ...]:
    return BY_JOB.get(source, ()) if scope == "job" else source.rollups


def test_rollups_are_gauges_of_their_scope() -> None:
    for name, derived in rollups().items():
        assert name not in METRICS
        assert name.startswith(f"railscope_{derived.scope}_{derived.rollup}_")
        assert derived.metric.kind is MetricKind.GAUGE
        assert derived.rollup in rollups_of(derived.source, derived.scope)


def test_rollups_keep_the_labels_of_parts() -> None:
    for derived in DERIVED:
        scope, parts = SCOPES[derived.scope].labels, part_labels(derived.source.about)
        assert derived.metric.about.labels == (*scope, *parts), derived.metric.name


def test_event_classes_are_complete() -> None:
    for event in EVENTS.values():
        assert event.severity in {"info", "warning", "error"}
        assert event.help.endswith(".")
        assert KINDS[event.about.name] is event.about
        assert len(set(event.facts)) == len(event.facts)


def declare(name: str, **changes: object) -> Metric:
    given: dict[str, object] = {
        "kind": MetricKind.GAUGE,
        "about": NODE,
        "help": "A.",
        "origin": "test",
    }
    return Metric(name, **(given | changes))  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize(
    ("name", "changes", "problem"),
    [
        ("power_watts", {}, "must start with railscope_"),
        ("railscope_reads", {"kind": MetricKind.COUNTER}, "end in _total"),
        ("railscope_reads_total", {}, "end in _total"),
        ("railscope_power", {"unit": MetricUnit.WATTS}, "end in its unit watts"),
        ("railscope_power", {"help": "Power"}, "full stop"),
        ("railscope_state", {"kind": MetricKind.STATE}, "name their states"),
        ("railscope_state", {"states": {0: "down"}}, "name their states"),
    ],
)
def test_a_wrong_declaration_is_rejected(
    name: str, changes: dict[str, object], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        declare(name, **changes)
