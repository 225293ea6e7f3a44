"""Rules of Prometheus and cases of promtool, parsed for tests."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from railscope.catalog import MetricKind
from railscope_dashboards.promql import metric_named, metrics_in

ROOT = Path(__file__).parent.parent.parent
RULES = sorted((ROOT / "alerts/rules").glob("*.yml"))
CASES = sorted((ROOT / "alerts/tests").glob("*.yml"))

_VALUES = re.compile(
    r"(?P<first>-?[\d.]+(?:e-?\d+)?)(?P<step>[+-][\d.]+(?:e-?\d+)?)?(?:x(?P<times>\d+))?"
)
_GAP = re.compile(r"(?:_|stale)(?:x(?P<times>\d+))?")


@cache
def rules_of(path: Path) -> list[dict[str, Any]]:
    """Return every rule of a file, recording and alerting."""
    return [
        rule
        for group in yaml.load(path.read_text(), yaml.CSafeLoader)["groups"]
        for rule in group["rules"]
    ]


def samples(values: str) -> list[float | None]:
    """Return the samples of one series in promtool's notation; None for a missing scrape."""
    found: list[float | None] = []
    for term in values.split():
        gap = _GAP.fullmatch(term)
        if gap:
            found += [None] * int(gap["times"] or 1)
            continue
        match = _VALUES.fullmatch(term)
        assert match, term
        first, step = float(match["first"]), float(match["step"] or 0)
        found += [first + step * n for n in range(int(match["times"] or 0) + 1)]
    return found


@dataclass(frozen=True)
class AlertSituation:
    """One group of a file of cases: its series, and the expected alerts with their times."""

    name: str
    series: Mapping[str, list[float | None]]
    cases: tuple[Mapping[str, Any], ...]

    def expects(self, rule: Mapping[str, Any]) -> Iterator[tuple[int, bool]]:
        """Yield the minutes at which a rule's alert is evaluated, and True if this rule is to fire."""
        for case in self.cases:
            if case["alertname"] == rule["alert"]:
                reported = [alert["exp_labels"] for alert in case.get("exp_alerts", [])]
                own = rule["labels"].items()
                yield minutes(case["eval_time"]), any(own <= labels.items() for labels in reported)

    def of(self, metrics: frozenset[str]) -> dict[str, list[float | None]]:
        """Return the series of some metrics."""
        return {
            series: values
            for series, values in self.series.items()
            if re.split(r"[{ ]", series)[0] in metrics
        }


def minutes(time: str | int) -> int:
    """Parse a time of evaluation, such as 1h5m."""
    parts = re.findall(r"(\d+)([hm])", str(time))
    return sum(int(number) * (60 if unit == "h" else 1) for number, unit in parts)


def situations() -> list[AlertSituation]:
    """Return every group of every file of cases."""
    return [
        AlertSituation(
            group["name"],
            {
                entry["series"]: samples(str(entry["values"]))
                for entry in group.get("input_series", [])
            },
            tuple(group.get("alert_rule_test", ())),
        )
        for path in CASES
        for group in yaml.load(path.read_text(), yaml.CBaseLoader)["tests"]  # noqa: S506 - 0x30 is a string here
    ]


def proofs(rule: Mapping[str, Any], every: list[AlertSituation]) -> set[str]:
    """Return the proofs of a rule in the cases: fires, resolves, healthy, idle, gap, reset.

    Only a situation with all the series that make the rule fire elsewhere proves that it is quiet.
    """
    metrics = metrics_in(rule["expr"])
    given: set[str] = set()
    firing = [one for one in every if any(fires for _, fires in one.expects(rule))]
    for one in firing:
        given.add("fires")
        asked = sorted(one.expects(rule))
        if any(before and not after for (_, before), (_, after) in pairwise(asked)):
            given.add("resolves")
    needed = [set(one.of(metrics)) for one in firing]
    for one in every:
        asked = list(one.expects(rule))
        held = one.of(metrics)
        if not asked or one in firing or not any(series <= set(held) for series in needed):
            continue
        given.add("idle" if "idle" in one.name else "healthy")
        if any(None in values for values in held.values()):
            given.add("gap")
        if all(_falls(one.of(frozenset({name}))) for name in metrics if _is_counter(name)):
            given.add("reset")
    return given


def _is_counter(name: str) -> bool:
    metric = metric_named(name)
    return metric is not None and metric.kind in {MetricKind.COUNTER, MetricKind.HISTOGRAM}


def _falls(series: Mapping[str, list[float | None]]) -> bool:
    """True if some series resets: it falls, regardless of gaps in between."""
    reported = [[value for value in values if value is not None] for values in series.values()]
    return any(after < before for values in reported for before, after in pairwise(values))
