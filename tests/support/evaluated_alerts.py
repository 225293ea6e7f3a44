"""Alerts from the rules on given series, by promtool, and Alertmanager's notifications, by its example.

promtool evaluates the real rules with their real times; it is queried for the alerts at every
minute, and the results are parsed from its answer.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from support.agent_hours import SCRAPE_SECONDS, UP_SECONDS, Samples
from support.alert_rules import ROOT, RULES, rules_of

from railscope_dashboards.promql import expand, metrics_in

Labels = Mapping[str, str]

ALERTMANAGER = ROOT / "deploy/alertmanager.yml"
COLLECTOR = {'up{job="railscope-collector",instance="head:9470"}': "1"}
"""Prometheus reaches a collector without series of its own."""
_GOT = re.compile(r"time: (?P<time>[\dhms]+),\s+exp: .*\s+got: (?P<alerts>.*)")
_ALERT = re.compile(r"\{(?P<labels>[^{}]*)\} 1E\+00")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_MATCHER = re.compile(r'(?P<label>\w+)(?P<how>=~|!~|!=|=)"(?P<value>.*)"')


def metrics_of_rules() -> frozenset[str]:
    """Return every metric that some rule reads."""
    rules = [rule for path in RULES for rule in rules_of(path)]
    return frozenset().union(*(metrics_in(expand(rule["expr"])) for rule in rules))


def alerts(series: Mapping[str, Samples], minutes: int, directory: Path) -> list[list[Labels]]:
    """Return the alerts at every minute, from the first to the last; `alertstate` is pending or firing."""
    if not shutil.which("promtool"):
        pytest.skip("promtool is missing: install the Debian package prometheus")
    path = directory / "cases.yml"
    path.write_text("\n".join(_case(series, minutes)))
    outcome = subprocess.run(
        ["promtool", "test", "rules", str(path)], capture_output=True, text=True, check=False
    )
    output = outcome.stdout + outcome.stderr
    found = {
        _seconds(one["time"]): [
            dict(_LABEL.findall(alert["labels"])) for alert in _ALERT.finditer(one["alerts"])
        ]
        for one in _GOT.finditer(output)
    }
    times = [UP_SECONDS + 60 * minute for minute in range(minutes + 1)]
    assert sorted(found) == times, output[:2000]
    return [found[time] for time in times]


def _case(series: Mapping[str, Samples], minutes: int) -> Iterator[str]:
    before = UP_SECONDS // SCRAPE_SECONDS - 1
    scrapes = minutes * 60 // SCRAPE_SECONDS + 1
    yield f"rule_files: [{', '.join(map(str, RULES))}]"
    yield "evaluation_interval: 1m"
    yield "tests:"
    yield f"  - interval: {SCRAPE_SECONDS}s"
    yield "    input_series:"
    for name, samples in series.items():
        values = " ".join(_values(samples))
        yield f"      - series: '{name}'\n        values: '_x{before} {values}'"
    for name, value in COLLECTOR.items():
        yield f"      - series: '{name}'\n        values: '{value}x{before + scrapes}'"
    yield "    promql_expr_test:"
    for minute in range(minutes + 1):
        yield f"      - expr: ALERTS\n        eval_time: {UP_SECONDS + 60 * minute}s"
        yield "        exp_samples: []"


def _values(samples: Samples) -> Iterator[str]:
    """Values of a series; like a scrape, the first missing one marks it stale."""
    for before, sample in pairwise([None, *samples]):
        yield sample or ("_" if before is None else "stale")


def _seconds(time: str) -> int:
    units = {"h": 3600, "m": 60, "s": 1}
    return sum(int(number) * units[unit] for number, unit in re.findall(r"(\d+)([hms])", time))


@dataclass(frozen=True)
class InhibitionRule:
    """A rule by which one alert makes another unnecessary."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    equal: tuple[str, ...]

    def silences(self, alert: Labels, by: Labels) -> bool:
        """True if one alert is suppressed because of another; none is by an equal one."""
        if not (_matches(self.source, by) and _matches(self.target, alert)):
            return False
        if _matches(self.target, by) and _matches(self.source, alert):
            return False
        return all(alert.get(label, "") == by.get(label, "") for label in self.equal)


@cache
def inhibitions() -> list[InhibitionRule]:
    """Return the inhibition rules of the example for Alertmanager."""
    return [
        InhibitionRule(
            tuple(rule["source_matchers"]),
            tuple(rule["target_matchers"]),
            tuple(rule.get("equal", ())),
        )
        for rule in yaml.load(ALERTMANAGER.read_text(), yaml.CSafeLoader)["inhibit_rules"]
    ]


def _matches(matchers: tuple[str, ...], alert: Labels) -> bool:
    for text in matchers:
        matcher = _MATCHER.fullmatch(text)
        assert matcher, text
        value, wanted, how = alert.get(matcher["label"], ""), matcher["value"], matcher["how"]
        matches = bool(re.fullmatch(wanted, value)) if "~" in how else wanted == value
        if matches == how.startswith("!"):
            return False
    return True


def notified_alerts(every: list[list[Labels]]) -> list[Labels]:
    """Return the notified alerts among those that fire: no information only, and none that is inhibited."""
    rules = inhibitions()
    found: dict[tuple[tuple[str, str], ...], Labels] = {}
    for present in every:
        firing = [alert for alert in present if alert["alertstate"] == "firing"]
        for alert in firing:
            if alert["severity"] == "info":
                continue
            if not any(rule.silences(alert, by) for rule in rules for by in firing):
                found.setdefault(tuple(sorted(alert.items())), alert)
    return list(found.values())
