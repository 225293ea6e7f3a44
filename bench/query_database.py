"""Database with Prometheus' protocols: writes, queries of dashboards, and rule evaluation.

Queries are those of dashboards when they are opened, and those of alerting rules.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import yaml

from bench.harness import HOST, BenchError, ProcessStopwatch, ServerProcess, http_get
from bench.http_requests import Connection, Request
from railscope_dashboards import build, promql
from railscope_simulator.demo.process import free_port

RATE_SECONDS = 75
"""$__rate_interval of six hours in steps of a minute, scraped every 15 seconds: a step and a scrape."""
MARK_POINTS = 360
"""Points of annotations: Grafana queries them once per minute."""


@dataclass(frozen=True, slots=True, eq=False)
class PanelQuery:
    """A query of a panel, or of the annotations of a dashboard, as Grafana sends it."""

    dashboard: str
    panel: str
    expression: str
    variables: Sequence[Mapping[str, Any]]
    points: int
    """Points of a curve over the default six hours; none if only the last value is shown."""

    def __str__(self) -> str:
        return f"{self.dashboard} {self.panel}"


def panel_queries() -> Iterator[PanelQuery]:
    """Yield every query of every dashboard."""
    for file, text in build.dashboards():
        dashboard, name = json.loads(text), file.removesuffix(".json")
        variables = dashboard["templating"]["list"][1:]
        for panel in dashboard["panels"]:
            for target in panel.get("targets", ()):
                title = f"{panel['id']}{target['refId']}"
                points = 0 if target.get("instant") else panel["maxDataPoints"]
                yield PanelQuery(name, title, target["expr"], variables, points)
        for marks in dashboard["annotations"]["list"]:
            yield PanelQuery(name, marks["name"], marks["expr"], variables, MARK_POINTS)


def needed_metrics(chosen: Sequence[PanelQuery], *, rules: bool) -> frozenset[str]:
    """Return the metrics in the queries, and those of the rules."""
    texts = [panel_query.expression for panel_query in chosen]
    texts += [v["query"] for panel_query in chosen for v in panel_query.variables]
    if rules:
        texts += [rule["expr"] for group in promql.rule_groups() for rule in group["rules"]]
    return frozenset().union(*map(promql.metrics_in, texts))


PROMETHEUS = "prometheus"
RULES_SECONDS = 15
"""Evaluation interval of rules, as in deploy/prometheus/prometheus.yml."""


@dataclass(frozen=True, slots=True)
class QueryCost:
    """Cost of a query."""

    seconds: float
    samples: int
    """Samples read, counted again at each point."""
    peak: int
    """Peak number of samples in memory."""
    series: int
    problem: str = ""


@dataclass(slots=True)
class RuleCost:
    """Seconds of the evaluations of a rule, and how often its group is evaluated."""

    group: str
    name: str
    interval_seconds: float
    seconds: list[float] = field(default_factory=list)

    @property
    def share(self) -> float:
        """Share of a core: the shortest evaluation, free of other load, per interval."""
        return min(self.seconds) / self.interval_seconds


@dataclass(frozen=True, slots=True)
class RulesCost:
    """Cost of all rules, evaluated every few seconds."""

    rules: Sequence[RuleCost]
    share_of_core: float
    """Share of a core that Prometheus used."""
    every_seconds: int

    def share_at_own_intervals(self, idle: float) -> float:
        """Return the share of a core of all rules at the intervals of their groups."""
        total = sum(sum(rule.seconds) for rule in self.rules)
        at_own = sum(sum(rule.seconds) / rule.interval_seconds for rule in self.rules)
        return max(self.share_of_core - idle, 0.0) * at_own * self.every_seconds / total

    def groups(self) -> dict[str, float]:
        """Return the share of each group, in descending order."""
        shares: dict[str, float] = {}
        for rule in self.rules:
            shares[rule.group] = shares.get(rule.group, 0.0) + rule.share
        return dict(sorted(shares.items(), key=lambda item: -item[1]))


@dataclass(frozen=True, slots=True)
class QueryRange:
    """Time range of a query: some seconds up to a timestamp."""

    end: float
    seconds: float


class QueryDatabase:
    """A running database."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.port = server.port
        self._choices: dict[str, str] = {}

    def write(self, requests: Iterable[Request]) -> None:
        """Write requests. Raises BenchError if the database rejects one."""
        connection = Connection(self.port)
        for request in requests:
            status, content = connection.exchange(request)
            if status // 100 != 2:  # noqa: PLR2004 - HTTP's success
                message = f"a write failed: status {status}: {content[:300]!r}"
                raise BenchError(message)
        connection.close()

    def measure_query(self, panel_query: PanelQuery, span: QueryRange) -> QueryCost:
        """Run a query of a dashboard, with all values of its variables selected."""
        expression = promql.fill_variables(
            panel_query.expression, self._choose_variables(panel_query.variables, span)
        )
        if not panel_query.points:
            return self.query_instant(expression, span.end)
        return self.query_range(expression, span, span.seconds / panel_query.points)

    def query_instant(self, expression: str, timestamp: float) -> QueryCost:
        """Run an instant query."""
        return _cost(*self._time_query("query", query=expression, time=str(timestamp)))

    def query_range(self, expression: str, span: QueryRange, step: float) -> QueryCost:
        """Run a range query."""
        return _cost(*self.curves(expression, span, step))

    def curves(
        self, expression: str, span: QueryRange, step: float
    ) -> tuple[float, dict[str, Any]]:
        """Run a range query, and return the seconds it took with its answer."""
        times = {"start": str(span.end - span.seconds), "end": str(span.end)}
        return self._time_query("query_range", query=expression, step=f"{step:.3f}", **times)

    def _choose_variables(
        self, variables: Sequence[Mapping[str, Any]], span: QueryRange
    ) -> dict[str, str]:
        chosen = {"__rate_interval": f"{RATE_SECONDS}s"}
        for variable in variables:
            if variable["multi"]:
                chosen[variable["name"]] = variable["allValue"]
                continue
            query = promql.fill_variables(variable["query"], chosen)
            if query not in self._choices:
                self._choices[query] = self._first_value(query, span)
            chosen[variable["name"]] = self._choices[query]
        return chosen

    def _first_value(self, query: str, span: QueryRange) -> str:
        selector, _, label = query.removeprefix("label_values(").removesuffix(")").rpartition(", ")
        times = {"start": str(span.end - span.seconds), "end": str(span.end)}
        _, answer = self._time_query(f"label/{label}/values", **times, **{"match[]": selector})
        return next(iter(answer.get("data", ())), "")

    def _time_query(self, path: str, **parameters: str) -> tuple[float, dict[str, Any]]:
        query = urlencode({**parameters, "stats": "all"})
        with ProcessStopwatch() as spent:
            text = http_get(self.port, f"/api/v1/{path}?{query}")
        answer: dict[str, Any] = json.loads(text)
        return spent.wall_seconds, answer

    def series(self) -> int:
        """Return the number of series in Prometheus' head."""
        match = re.search(
            r"(?m)^prometheus_tsdb_head_series (\S+)", http_get(self.port, "/metrics")
        )
        return int(float(match[1])) if match else 0

    def follow(self, directory: Path, interval_seconds: int, evaluations: int) -> RulesCost:
        """Evaluate all rules every few seconds, and return what they cost at their own intervals."""
        (directory / "rules").mkdir()
        rules = []
        for path in promql.RULES.glob("*.yml"):
            content = yaml.safe_load(path.read_text())
            for group in content["groups"]:
                period_seconds = _seconds(group.get("interval", f"{RULES_SECONDS}s"))
                group["interval"] = f"{interval_seconds}s"
                rules += [
                    RuleCost(group["name"], _rule_name(rule), period_seconds)
                    for rule in group["rules"]
                ]
            (directory / "rules" / path.name).write_text(yaml.safe_dump(content))
        rules.sort(key=lambda rule: rule.group)
        http_get(self.port, "/-/reload", "POST")
        while not all(self._evaluations()):
            time.sleep(interval_seconds / 10)
        with self.server.measure() as spent:
            for _ in range(evaluations):
                time.sleep(interval_seconds)
                for rule, seconds in zip(rules, self._evaluations(), strict=True):
                    rule.seconds.append(seconds)
        return RulesCost(rules, spent.share_of_core, interval_seconds)

    def _evaluations(self) -> list[float]:
        """Return the seconds of the last evaluation of each rule, in the order of group names."""
        groups = json.loads(http_get(self.port, "/api/v1/rules"))["data"]["groups"]
        groups.sort(key=lambda group: group["name"])
        return [rule["evaluationTime"] for group in groups for rule in group["rules"]]


def _seconds(interval: str) -> float:
    return int(interval[:-1]) * {"s": 1, "m": 60, "h": 3600}[interval[-1]]


def _rule_name(rule: Mapping[str, Any]) -> str:
    labels = (rule.get("labels", {}).get(name, "") for name in ("severity", "problem", "direction"))
    return " ".join(filter(None, (rule.get("record") or rule["alert"], *labels)))


def prometheus(directory: Path) -> ServerProcess:
    """Start Debian's Prometheus with its defaults; it receives writes."""
    port = free_port()
    settings = {
        "global": {"evaluation_interval": f"{RULES_SECONDS}s"},
        "rule_files": ["rules/*.yml"],
    }
    (directory / "prometheus.yml").write_text(yaml.safe_dump(settings))
    command = [
        PROMETHEUS,
        f"--config.file={directory / 'prometheus.yml'}",
        "--web.enable-lifecycle",
    ]
    command += [f"--storage.tsdb.path={directory / 'prometheus'}"]
    command += [
        "--web.enable-admin-api",
        "--web.enable-remote-write-receiver",
        f"--web.listen-address={HOST}:{port}",
    ]
    log = directory / "prometheus.log"
    return ServerProcess(command, port=port, log=log, ready_path="/-/ready")


def _cost(seconds: float, answer: dict[str, Any]) -> QueryCost:
    if answer["status"] != "success":
        return QueryCost(seconds, 0, 0, 0, answer.get("error", "failed without a message"))
    data = answer["data"]
    samples = data.get("stats", {}).get("samples", {})
    read, peak = samples.get("totalQueryableSamples", 0), samples.get("peakSamples", 0)
    return QueryCost(seconds, read, peak, len(data["result"]))
