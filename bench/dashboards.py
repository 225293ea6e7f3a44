"""`python -m bench.dashboards`: cost of dashboards and rules for the Prometheus of a large cluster."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import click
import numpy as np

from bench import cluster_scrapes, harness, query_database
from railscope_dashboards import promql

LARGE = 1000
"""Nodes of the cluster for which dashboards and rules must stay cheap."""
MAX_SAMPLES = 50_000_000
"""Limit of samples in memory of one query; Prometheus rejects a query above it (--query.max-samples)."""
ALIKE_NODES = 3
SHOWN, SHOWN_RULES = 8, 60
_MARGIN_SECONDS = 30
FLUSH = "/internal/force_flush"

PEAK = harness.Aim("<=", 0.4)
OF_INTERVAL = harness.Aim("<=", 0.2)
ALL_RULES = harness.Aim("<=", 15)
"""Percent of a core."""
REJECTED = harness.Aim("<=", 0)


@dataclass(frozen=True, slots=True)
class ClusterSize:
    """Amount of data, and duration of the queries."""

    nodes: int
    loop_scrapes: int
    faults: int
    lead_seconds: int
    """Limit of the loading time: the data extend this far into the future."""
    span_seconds: int
    scrapes: int
    rules_seconds: int
    """Seconds from one evaluation of all rules to the next."""
    evaluations: int


THOROUGH = ClusterSize(100, 16, 6, 840, 2700, 240, rules_seconds=15, evaluations=5)
QUICK = ClusterSize(2, 2, 1, 150, 600, 52, rules_seconds=1, evaluations=2)


@dataclass
class ClusterQueryCost:
    """Measured cost of a cluster."""

    nodes: int
    series: int = 0
    resident: int = 0
    answers: dict[query_database.PanelQuery, query_database.QueryCost] = field(default_factory=dict)
    unrecorded: dict[query_database.PanelQuery, query_database.QueryCost] = field(
        default_factory=dict
    )
    """Answers to queries with recorded series, with those series replaced by their expressions."""
    rules: query_database.RulesCost | None = None
    idle: float = 0.0
    """Share of a core that Prometheus uses without rules."""

    @property
    def times(self) -> float:
        """Size of the large cluster as a multiple of this cluster."""
        return LARGE / self.nodes


@click.option("--nodes", type=int, help="Number of nodes, with 8 GPUs and 8 rails each.")
@click.option(
    "--dashboard",
    "names",
    multiple=True,
    help="Measure only this dashboard, with only the metrics that it needs; may be repeated.",
)
@click.option("--rules", "only_rules", is_flag=True, help="Measure only the rules.")
@harness.benchmark("Dashboards and rules", full=THOROUGH, quick=QUICK)
def main(  # noqa: PLR0913 - flags
    report: harness.BenchReport,
    size: ClusterSize,
    directory: Path,
    *,
    nodes: int | None,
    names: Sequence[str],
    only_rules: bool,
) -> None:
    """Measure queries of dashboards and rules, and print ratios."""
    size = replace(size, nodes=nodes or size.nodes)
    if not report.has_program(query_database.PROMETHEUS):
        return
    queries = () if only_rules else query_database.panel_queries()
    chosen = [q for q in queries if not names or q.dashboard in names]
    if unknown := set(names) - {q.dashboard for q in chosen}:
        message = f"unknown dashboards: {', '.join(sorted(unknown))}: expected names of files in dashboards/generated"
        raise click.BadParameter(message)
    needed = query_database.needed_metrics(chosen, rules=not names)
    cluster = cluster_scrapes.cluster_scrapes_of(size.nodes, size.loop_scrapes, size.faults, needed)
    if chosen:
        check_other_database(report, size, cluster, chosen, directory)
    report_costs(report, measure(size, cluster, chosen, directory, rules=not names))


def measure(
    size: ClusterSize,
    cluster: cluster_scrapes.ClusterScrapes,
    chosen: Sequence[query_database.PanelQuery],
    directory: Path,
    *,
    rules: bool,
) -> ClusterQueryCost:
    """Load the metrics of a cluster, run the dashboards' queries, and evaluate the rules."""
    cost = ClusterQueryCost(size.nodes)
    with load_database(query_database.prometheus(directory), size, cluster) as (running, span):
        record(running, chosen, span)
        for panel_query in chosen:
            cost.answers[panel_query] = running.measure_query(panel_query, span)
            if promql.recorded_in(panel_query.expression):
                plain = replace(panel_query, expression=promql.expand(panel_query.expression))
                cost.unrecorded[panel_query] = running.measure_query(plain, span)
        if rules:
            with running.server.measure() as idle:
                time.sleep(size.rules_seconds)
            cost.idle = idle.share_of_core
            cost.rules = running.follow(directory, size.rules_seconds, size.evaluations)
        cost.series = running.series()
        cost.resident = running.server.memory().resident
    return cost


@contextmanager
def load_database(
    database: harness.ServerProcess, size: ClusterSize, cluster: cluster_scrapes.ClusterScrapes
) -> Iterator[tuple[query_database.QueryDatabase, query_database.QueryRange]]:
    """Yield a database loaded with all scrapes. Raises BenchError if loading took too long."""
    with database as server:
        running = query_database.QueryDatabase(server)
        writer = cluster_scrapes.SeriesWriter(time.time() + size.lead_seconds, size.scrapes)
        running.write(writer.of_collector(cluster.collector))
        for number in range(size.nodes):
            running.write(writer.of_node(cluster, number))
        now = time.time()
        if now > writer.seconds[-1] - _MARGIN_SECONDS:
            message = f"loading took too long: expected less than {size.lead_seconds} s"
            raise harness.BenchError(message)
        newest = max(second for second in writer.seconds if second <= now)
        yield running, query_database.QueryRange(newest, size.span_seconds)


def record(
    running: query_database.QueryDatabase,
    chosen: Sequence[query_database.PanelQuery],
    span: query_database.QueryRange,
) -> None:
    """Write the recorded series that dashboards show, as if the rules had always been evaluated."""
    used_names = {
        name for panel_query in chosen for name in promql.recorded_in(panel_query.expression)
    }
    scrapes = round(span.seconds) // cluster_scrapes.SCRAPE_SECONDS + 1
    writer = cluster_scrapes.SeriesWriter(span.end, scrapes)
    places = {second: place for place, second in enumerate(writer.seconds)}
    for name in promql.recorded_expressions().keys() & used_names:
        _, answer = running.curves(promql.expand(name), span, cluster_scrapes.SCRAPE_SECONDS)
        curves = answer["data"]["result"]
        values = np.full((len(curves), scrapes), np.nan)
        for row, curve in enumerate(curves):
            for second, value in curve["values"]:
                values[row, places[round(second)]] = float(value)
        series: list[cluster_scrapes.Labels] = [
            tuple({**c["metric"], "__name__": name}.items()) for c in curves
        ]
        running.write(writer.write_requests(series, values))


def report_costs(report: harness.BenchReport, cost: ClusterQueryCost) -> None:
    """Report the results, scaled to the node count of a large cluster."""
    at = f"at {LARGE:,} nodes"
    if peaks := [answer.peak * cost.times for answer in cost.answers.values()]:
        report.ratio(
            f"peak samples, most expensive query, {at} / limit of Prometheus",
            max(peaks) / MAX_SAMPLES,
            PEAK,
        )
    rejected = sum(bool(answer.problem) for answer in cost.answers.values())
    report.ratio("queries that Prometheus rejects", rejected, REJECTED)
    for panel_query, plain in cost.unrecorded.items():
        answer = cost.answers[panel_query]
        if plain.peak:  # a rejected query has none
            report.ratio(f"peak samples, recorded / not, {panel_query}", answer.peak / plain.peak)
        report.figure(f"{panel_query}, not recorded", _cost_text(plain, cost.times))
    if cost.rules:
        _report_rules(report, cost.rules, cost)
    report.figure(
        "Prometheus",
        f"{cost.nodes} nodes, {cost.series:,} series, RSS {harness.mebibytes(cost.resident)}",
    )
    _report_dashboards(report, cost)


def _report_rules(
    report: harness.BenchReport, rules: query_database.RulesCost, cost: ClusterQueryCost
) -> None:
    at = f"at {LARGE:,} nodes"
    groups = rules.groups()
    longest = next(iter(groups))
    report.ratio(f"time, {longest} {at} / its interval", groups[longest] * cost.times, OF_INTERVAL)
    recorded_share = sum(share for name, share in groups.items() if name.endswith("recorded"))
    report.ratio(
        f"share of a core, recording rules {at}", 100 * recorded_share * cost.times, unit=" %"
    )
    share = 100 * rules.share_at_own_intervals(cost.idle) * cost.times
    report.ratio(f"share of a core, all rules {at}", share, ALL_RULES, unit=" %")
    for name, share in groups.items():
        report.figure(f"group {name}", _share_text(share, cost))
    for rule in sorted(rules.rules, key=lambda rule: -rule.share)[:SHOWN_RULES]:
        report.figure(
            f"rule {rule.name}",
            f"{_share_text(rule.share, cost)}; {min(rule.seconds) * 1e3:.2f} ms every"
            f" {rule.interval_seconds:g} s",
        )


def _share_text(share: float, cost: ClusterQueryCost) -> str:
    return f"{100 * share * cost.times:.3f} % of a core at {LARGE:,} nodes"


def _report_dashboards(report: harness.BenchReport, cost: ClusterQueryCost) -> None:
    by_dashboard: dict[str, list[query_database.QueryCost]] = {}
    for panel_query, answer in cost.answers.items():
        by_dashboard.setdefault(panel_query.dashboard, []).append(answer)
    for name, answers in by_dashboard.items():
        report.figure(
            f"dashboard {name}",
            f"{len(answers)} queries, {sum(a.seconds for a in answers):.2f} s one after the other,"
            f" {sum(a.samples for a in answers) / 1e6:,.1f} M samples read,"
            f" peak {max(a.peak for a in answers) / 1e6:,.2f} M",
        )
    by_peak = sorted(cost.answers.items(), key=lambda item: -item[1].peak)
    for panel_query, answer in by_peak[:SHOWN]:
        report.figure(f"most expensive: {panel_query}", _cost_text(answer, cost.times))


def _cost_text(answer: query_database.QueryCost, times: float) -> str:
    if answer.problem:
        return f"rejected: {answer.problem}"
    return (
        f"{answer.seconds * 1e3:,.0f} ms, {answer.samples / 1e6:,.2f} M samples read,"
        f" peak {answer.peak / 1e6:,.2f} M, {answer.peak * times / 1e6:,.1f} M at {LARGE:,} nodes"
    )


def check_other_database(
    report: harness.BenchReport,
    size: ClusterSize,
    cluster: cluster_scrapes.ClusterScrapes,
    chosen: Sequence[query_database.PanelQuery],
    directory: Path,
) -> None:
    """Send the same queries to another database: if its language differs, a dashboard shows nothing."""
    if not report.has_program(harness.VICTORIA):
        return
    few = replace(size, nodes=min(size.nodes, ALIKE_NODES))
    with load_database(harness.start_victoria(directory), few, cluster) as (running, span):
        harness.http_get(running.port, FLUSH)
        record(running, chosen, span)
        harness.http_get(running.port, FLUSH)
        answers = {panel_query: running.measure_query(panel_query, span) for panel_query in chosen}
    rejected = {panel_query: answer for panel_query, answer in answers.items() if answer.problem}
    report.ratio("queries that VictoriaMetrics rejects", len(rejected), REJECTED)
    for panel_query, answer in rejected.items():
        report.figure(f"VictoriaMetrics: {panel_query}", answer.problem)


if __name__ == "__main__":
    main()
