"""Holds a PromQL expression against the catalog: do its metrics, labels and states exist?

It reads names, label matchers and grouping clauses and leaves the grammar to Prometheus.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from railscope.catalog import METRICS, ROLLUPS, Kind, Metric

TARGET_LABELS = frozenset({"node", "instance", "job"})
SCRAPE_METRICS = frozenset({"up"})
STATE_LABEL = "state"

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_NAME = re.compile(r"\b(?:railscope_\w+|up)\b")
_SELECTOR = re.compile(r'\b(?P<name>railscope_\w+|up)\s*\{(?P<matchers>(?:[^{}"]|"(?:[^"\\]|\\.)*")*)\}')
_MATCHER = re.compile(r'(?P<label>\w+)\s*(?P<operator>=~|!~|!=|=)\s*"(?P<value>(?:[^"\\]|\\.)*)"')
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_OF_A_COUNTER = re.compile(r"\b(?P<function>rate|irate|increase|resets)\s*\(\s*(?P<name>railscope_\w+)")


def metric_named(name: str) -> Metric | None:
    """The declaration of a metric that an agent or a collector exposes."""
    derived = ROLLUPS.get(name)
    return derived.metric if derived else METRICS.get(name)


def metrics_in(expression: str) -> frozenset[str]:
    """The names of all metrics of an expression."""
    return frozenset(_NAME.findall(_STRING.sub('""', expression)))


def labels_of(name: str) -> frozenset[str]:
    """The labels that samples of a metric carry in Prometheus."""
    metric = metric_named(name)
    if metric is None:
        return TARGET_LABELS
    labels = {*TARGET_LABELS, *metric.about.labels}
    if metric.kind is Kind.INFO:
        labels.update(metric.about.facts)
    if metric.kind is Kind.STATE:
        labels.add(STATE_LABEL)
    return frozenset(labels)


def labels_in(expression: str) -> frozenset[str]:
    """The labels that the metrics of an expression have between them."""
    return frozenset().union(*map(labels_of, metrics_in(expression)))


def problems(expression: str) -> list[str]:
    """What is wrong with an expression; nothing, if the list is empty."""
    return [
        *_unknown_metrics(expression),
        *_wrong_matchers(expression),
        *_wrong_groupings(expression),
        *_rates_of_gauges(expression),
    ]


def _unknown_metrics(expression: str) -> Iterator[str]:
    for name in sorted(metrics_in(expression) - SCRAPE_METRICS):
        if metric_named(name) is None:
            yield f"the catalog has no metric {name}"


def _wrong_matchers(expression: str) -> Iterator[str]:
    for selector in _SELECTOR.finditer(expression):
        name = selector["name"]
        metric = metric_named(name)
        for matcher in _MATCHER.finditer(selector["matchers"]):
            label, value = matcher["label"], matcher["value"]
            if label not in labels_of(name):
                yield f"{name} has no label {label}"
            elif label == STATE_LABEL and metric and metric.kind is Kind.STATE:
                if matcher["operator"] in {"=", "!="} and value not in metric.states.values():
                    yield f"{name} has no state {value}"


def _wrong_groupings(expression: str) -> Iterator[str]:
    known = labels_in(expression)
    for labels in _GROUPING.findall(_STRING.sub('""', expression)):
        for label in filter(None, (part.strip() for part in labels.split(","))):
            if label not in known:
                yield f"no metric of the expression has the label {label}"


def _rates_of_gauges(expression: str) -> Iterator[str]:
    for call in _OF_A_COUNTER.finditer(expression):
        metric = metric_named(call["name"])
        if metric and metric.kind is not Kind.COUNTER:
            yield f"{call['function']}() needs a counter, and {metric.name} is none"
