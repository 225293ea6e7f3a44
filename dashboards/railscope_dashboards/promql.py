"""PromQL expressions: checked against the catalog, and recorded series replaced by their expressions.

The metrics, labels and states of an expression must exist. The check reads names, label matchers
and grouping clauses and leaves the grammar to Prometheus. Recorded series are those of the rule
files of Prometheus, and are checked by the expression of their rule.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from railscope.catalog import METRICS, Metric, MetricKind, rollups
from railscope.catalog.declare import BASIC, MetricDetail

RULES = Path(__file__).parents[2] / "alerts" / "rules"
_RECORDED_NAME = re.compile(r"\brailscope:[\w:]+")
_SERIES_SELECTOR = re.compile(
    r'\b(?P<name>railscope[_:][\w:]+|up\b)(?P<matchers>\{(?:[^{}"]|"(?:[^"\\]|\\.)*")*\})?'
)


def rule_groups() -> Iterator[Mapping[str, Any]]:
    """Yield every rule group of Prometheus, by file and in evaluation order."""
    for path in sorted(RULES.glob("*.yml")):
        yield from yaml.load(path.read_text(), yaml.CSafeLoader)["groups"]


def recording_rules() -> Iterator[Mapping[str, str]]:
    """Yield the rules of recorded series, in evaluation order."""
    return (rule for group in rule_groups() for rule in group["rules"] if "record" in rule)


@cache
def recorded_expressions() -> Mapping[str, str]:
    """Return the expression of each recorded series by its name, in evaluation order."""
    return {rule["record"]: rule["expr"] for rule in recording_rules()}


def recorded_in(expression: str) -> frozenset[str]:
    """Return the names of recorded series in an expression."""
    return frozenset(_RECORDED_NAME.findall(expression))


def expand(expression: str) -> str:
    """Return an expression with recorded series replaced by their expressions.

    The matchers of a recorded series apply to all of its source series.
    """

    def expand_series(found: re.Match[str]) -> str:
        made_of = recorded_expressions().get(found["name"])
        if made_of is None:
            return found[0]
        return f"({_add_matchers(made_of, (found['matchers'] or '{}')[1:-1])})"

    while recorded_in(expression) & recorded_expressions().keys():
        expression = _SERIES_SELECTOR.sub(expand_series, expression)
    return expression


def _add_matchers(expression: str, matchers: str) -> str:
    """Return an expression with additional matchers on all of its series that have the label."""
    added = [(matcher["label"], matcher[0]) for matcher in _MATCHER.finditer(matchers)]
    if not added:
        return expression
    expression_labels = labels_in(expression)

    def more(found: re.Match[str]) -> str:
        matchers, labels = (found["matchers"] or "{}")[1:-1], labels_of(found["name"])
        new = (text for label, text in added if label in labels or label not in expression_labels)
        return f"{found['name']}{{{', '.join(filter(None, (matchers, *new)))}}}"

    return _SERIES_SELECTOR.sub(more, expression)


CLUSTER = "cluster"
"""Label of an installation, which the external labels of a Prometheus add; absent from series of a Prometheus without."""
TARGET_LABELS = frozenset({"node", "instance", "job", CLUSTER})
SCRAPE_METRICS = frozenset({"up"})
STATE_LABEL = "state"
_SERIES = frozenset({"bucket", "sum", "count"})
"""Suffixes of the sample names of a histogram."""

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_NAME = re.compile(r"\b(?:railscope_\w+|up)\b")
_SELECTOR = re.compile(
    r'\b(?P<name>railscope_\w+|up)\s*\{(?P<matchers>(?:[^{}"]|"(?:[^"\\]|\\.)*")*)\}'
)
_MATCHER = re.compile(r'(?P<label>\w+)\s*(?:=~|!~|!=|=)\s*"(?P<value>(?:[^"\\]|\\.)*)"')
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_SERIES_OR_STRING = re.compile(rf"{_STRING.pattern}|{_SERIES_SELECTOR.pattern}")
_IN_CLUSTER = f'{CLUSTER}=~"${CLUSTER}"'
_CALL = re.compile(r"\b(?P<function>\w+)\s*\(\s*(?P<name>railscope_\w+)")
_OF_COUNTERS = frozenset({"rate", "irate", "increase", "resets"})
_OF_GAUGES = frozenset({"deriv", "delta", "idelta"})


def metric_named(name: str) -> Metric | None:
    """Find the declaration of a metric that an agent or a collector exposes."""
    derived = rollups().get(name)
    if derived:
        return derived.metric
    metric = METRICS.get(name)
    if metric and metric.kind is MetricKind.HISTOGRAM:
        return None  # its samples have the names of its series
    stem, _, series = name.rpartition("_")
    histogram = METRICS.get(stem) if series in _SERIES else None
    return histogram if histogram and histogram.kind is MetricKind.HISTOGRAM else metric


def metrics_in(expression: str) -> frozenset[str]:
    """Collect the names of all metrics of an expression, and of the sources of its recorded series."""
    return frozenset(_NAME.findall(_STRING.sub('""', expand(expression))))


def fill_variables(text: str, values: Mapping[str, str]) -> str:
    """Replace the variables of a text, $name or ${name}, by values."""
    return re.sub(
        r"\$(?:(\w+)|\{(\w+)\})", lambda name: values.get(name[1] or name[2], name[0]), text
    )


def detail_of(expression: str) -> MetricDetail:
    """Return the smallest detail of the metrics endpoint that contains all metrics of an expression."""
    metrics = filter(None, map(metric_named, metrics_in(expression)))
    needed = {metric.detail for metric in metrics}
    return next(detail for detail in reversed(MetricDetail) if detail in {*needed, BASIC})


def in_cluster(expression: str) -> str:
    """Select the series of the chosen clusters: all, unless one is chosen. `.*` also matches series without the label."""

    def select(found: re.Match[str]) -> str:
        if not found["name"]:
            return found[0]
        matchers = (found["matchers"] or "{}")[1:-1].strip()
        return f"{found['name']}{{{', '.join(filter(None, (matchers, _IN_CLUSTER)))}}}"

    return _SERIES_OR_STRING.sub(select, expression)


def labels_of(name: str) -> frozenset[str]:
    """Collect the labels that samples of a metric carry in Prometheus."""
    metric = metric_named(name)
    if metric is None:
        return TARGET_LABELS
    labels = {*TARGET_LABELS, *metric.about.labels}
    if metric.kind is MetricKind.INFO:
        labels.update(metric.about.facts)
    if metric.kind is MetricKind.STATE:
        labels.add(STATE_LABEL)
    return frozenset(labels)


def labels_in(expression: str) -> frozenset[str]:
    """Collect the labels of all metrics of an expression."""
    return frozenset().union(*map(labels_of, metrics_in(expression)))


def problems(expression: str) -> list[str]:
    """Return the problems of an expression; an empty list if it is correct."""
    unknown = sorted(recorded_in(expression) - recorded_expressions().keys())
    expression = expand(expression)
    return [
        *(f"unknown recorded series {name}" for name in unknown),
        *_unknown_metrics(expression),
        *_wrong_matchers(expression),
        *_wrong_groupings(expression),
        *_wrong_kinds(expression),
    ]


def _unknown_metrics(expression: str) -> Iterator[str]:
    for name in sorted(metrics_in(expression) - SCRAPE_METRICS):
        if metric_named(name) is None:
            yield f"unknown metric {name}"


def _wrong_matchers(expression: str) -> Iterator[str]:
    for selector in _SELECTOR.finditer(expression):
        name = selector["name"]
        states = metric.states.values() if (metric := metric_named(name)) else ()
        for matcher in _MATCHER.finditer(selector["matchers"]):
            label, value = matcher["label"], matcher["value"]
            if label not in labels_of(name):
                yield f"unknown label {label} of {name}"
            elif label == STATE_LABEL and states:
                for state in sorted(set(value.split("|")) - set(states)):
                    yield f"unknown state {state} of {name}"


def _wrong_groupings(expression: str) -> Iterator[str]:
    expression_labels = labels_in(expression)
    for labels in _GROUPING.findall(_STRING.sub('""', expression)):
        for label in filter(None, (part.strip() for part in labels.split(","))):
            if label not in expression_labels:
                yield f"unknown label {label} in a grouping"


def _wrong_kinds(expression: str) -> Iterator[str]:
    for call in _CALL.finditer(expression):
        metric, function = metric_named(call["name"]), call["function"]
        counter = metric is not None and metric.kind in {MetricKind.COUNTER, MetricKind.HISTOGRAM}
        if metric and function in _OF_COUNTERS and not counter:
            yield f"{function}({metric.name}): expected a counter"
        if metric and function in _OF_GAUGES and counter:
            yield f"{function}({metric.name}): expected a gauge"
