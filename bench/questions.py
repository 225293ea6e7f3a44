"""Queries of dashboards when they are opened, and queries of alerting rules."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from dashboards.build import boards
from dashboards.promql import metrics_in
from dashboards.recorded import RULES

RATE_SECONDS = 75
"""$__rate_interval of six hours in steps of a minute, scraped every 15 seconds: a step and a scrape."""
MARK_POINTS = 360
"""Points of annotations: Grafana queries them once per minute."""
_VARIABLE = re.compile(r"\$(\w+)")


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """A query of a panel, or of the annotations of a dashboard, as Grafana sends it."""

    board: str
    panel: str
    expression: str
    variables: Sequence[Mapping[str, Any]]
    points: int
    """Points of a curve over the default six hours; none if only the last value is shown."""

    def __str__(self) -> str:
        return f"{self.board} {self.panel}"


def questions() -> Iterator[Question]:
    """Yield every query of every dashboard."""
    for file, text in boards():
        board, name = json.loads(text), file.removesuffix(".json")
        variables = board["templating"]["list"][1:]
        for panel in board["panels"]:
            for target in panel.get("targets", ()):
                title = f"{panel['id']}{target['refId']}"
                points = 0 if target.get("instant") else panel["maxDataPoints"]
                yield Question(name, title, target["expr"], variables, points)
        for marks in board["annotations"]["list"]:
            yield Question(name, marks["name"], marks["expr"], variables, MARK_POINTS)


def groups() -> Iterator[Mapping[str, Any]]:
    """Yield every rule group."""
    for path in sorted(RULES.glob("*.yml")):
        yield from yaml.safe_load(path.read_text())["groups"]


def needed(chosen: Sequence[Question], *, rules: bool) -> frozenset[str]:
    """Return the metrics in the queries, and those of the rules."""
    texts = [question.expression for question in chosen]
    texts += [v["query"] for question in chosen for v in question.variables]
    if rules:
        texts += [rule["expr"] for group in groups() for rule in group["rules"]]
    return frozenset().union(*map(metrics_in, texts))


def filled(text: str, values: Mapping[str, str]) -> str:
    """Replace the variables of a text by values."""
    return _VARIABLE.sub(lambda name: values.get(name[1], name[0]), text)
