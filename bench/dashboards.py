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
from dashboards import promql

LARGE = 1000
"""Nodes of the cluster for which dashboards and rules must stay cheap."""
MAX_SAMPLES = 50_000_000
"""Limit of samples in memory of one query; Prometheus rejects a query above it (--query.max-samples)."""
ALIKE_NODES, TRIES = 3, 3
SHOWN = 8
_MARGIN_SECONDS = 30
FLUSH = "/internal/force_flush"

PEAK = harness.Aim("<=", 0.4)
OF_INTERVAL = harness.Aim("<=", 0.2)
ALL_RULES = harness.Aim("<=", 15)
"""Percent of a core."""
REJECTED = harness.Aim("<=", 0)
BY_KIND = (
    'increase(railscope_pcie_aer_errors_total{severity="fatal"}[15m]) > 0',
    'increase(railscope_pcie_device_errors_total{severity="fatal"}[15m]) > 0',
)
"""An alert on counters by kind of error, and on the kernel's own sum of them."""


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


THOROUGH = ClusterSize(100, 16, 6, 840, span_seconds=2700, scrapes=240, rules_seconds=15)
QUICK = ClusterSize(2, 2, 1, 150, span_seconds=600, scrapes=52, rules_seconds=1)


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
    groups: dict[str, query_database.RuleGroupCost] = field(default_factory=dict)
    queried: dict[str, float] = field(default_factory=dict)
    """Seconds of all queries of a rule group, each at its fastest repetition, free of other load."""
    following: float = 0.0
    """Share of a core that Prometheus used to evaluate all rules, without what it used before."""
    compared: tuple[query_database.QueryCost, ...] = ()

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
    needed = query_database.needed_metrics(chosen, rules=not names)
    if not names:
        needed |= promql.metrics_in(BY_KIND[0])
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
        for question in chosen:
            cost.answers[question] = running.ask(question, span)
            if promql.recorded_in(question.expression):
                plain = replace(question, expression=promql.expand(question.expression))
                cost.unrecorded[question] = running.ask(plain, span)
        if rules:
            cost.compared = tuple(running.query_instant(text, span.end) for text in BY_KIND)
            for group in promql.rule_groups():
                cost.queried[group["name"]] = sum(
                    min(
                        running.query_instant(promql.expand(rule["expr"]), span.end).seconds
                        for _ in range(TRIES)
                    )
                    for rule in group["rules"]
                )
            with running.server.measure() as idle:
                time.sleep(size.rules_seconds)
            with running.server.measure() as spent:
                running.follow(directory, size.rules_seconds)
                cost.groups = running.rule_groups(2)
            cost.following = max(spent.share_of_core - idle.share_of_core, 0.0)
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
        writer = cluster_scrapes.SeriesWriter(
            query_database.WRITE, time.time() + size.lead_seconds, size.scrapes
        )
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
    wanted = {name for question in chosen for name in promql.recorded_in(question.expression)}
    scrapes = round(span.seconds) // cluster_scrapes.SCRAPE_SECONDS + 1
    writer = cluster_scrapes.SeriesWriter(query_database.WRITE, span.end, scrapes)
    places = {second: place for place, second in enumerate(writer.seconds)}
    for name in promql.recorded_expressions().keys() & wanted:
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
    for question, plain in cost.unrecorded.items():
        answer = cost.answers[question]
        if plain.peak:  # a rejected query has none
            report.ratio(f"peak samples, recorded / not, {question}", answer.peak / plain.peak)
        report.figure(f"{question}, not recorded", _cost_text(plain, cost.times))
    if cost.compared:
        by_kind, together = cost.compared
        report.ratio("time, PCIe errors of all kinds / by kind", together.seconds / by_kind.seconds)
        report.figure("PCIe errors by kind, instant query", _cost_text(by_kind, cost.times))
        report.figure("PCIe errors of all kinds, instant query", _cost_text(together, cost.times))
    shares = {
        name: min(cost.queried[name], one.seconds) * cost.times / one.interval_seconds
        for name, one in cost.groups.items()
    }
    if shares:
        longest = max(shares, key=lambda name: shares[name])
        report.ratio(f"time, {longest} {at} / its interval", shares[longest], OF_INTERVAL)
        own = [share for name, share in shares.items() if name.endswith("recorded")]
        report.ratio(f"share of a core, recording rules {at}", 100 * sum(own), unit=" %")
        report.ratio(
            f"share of a core, all rules {at}",
            100 * cost.following * cost.times,
            ALL_RULES,
            unit=" %",
        )
    report.figure(
        "Prometheus",
        f"{cost.nodes} nodes, {cost.series:,} series, RSS {harness.mebibytes(cost.resident)}",
    )
    _report_dashboards(report, cost)
    for name in sorted(shares, key=lambda name: -shares[name])[:SHOWN]:
        one = cost.groups[name]
        report.figure(
            name,
            f"{cost.queried[name] * 1e3:.1f} ms as queries, {one.seconds * 1e3:.1f} ms evaluated by"
            f" Prometheus, every {one.interval_seconds:g} s; {one.series} resulting series",
        )


def _report_dashboards(report: harness.BenchReport, cost: ClusterQueryCost) -> None:
    by_dashboard: dict[str, list[query_database.QueryCost]] = {}
    for question, answer in cost.answers.items():
        by_dashboard.setdefault(question.dashboard, []).append(answer)
    for name, answers in by_dashboard.items():
        report.figure(
            f"dashboard {name}",
            f"{len(answers)} queries, {sum(a.seconds for a in answers):.2f} s one after the other,"
            f" {sum(a.samples for a in answers) / 1e6:,.1f} M samples read,"
            f" peak {max(a.peak for a in answers) / 1e6:,.2f} M",
        )
    by_peak = sorted(cost.answers.items(), key=lambda item: -item[1].peak)
    for question, answer in by_peak[:SHOWN]:
        report.figure(f"most expensive: {question}", _cost_text(answer, cost.times))


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
        answers = {question: running.ask(question, span) for question in chosen}
    rejected = {question: answer for question, answer in answers.items() if answer.problem}
    report.ratio("queries that VictoriaMetrics rejects", len(rejected), REJECTED)
    for question, answer in rejected.items():
        report.figure(f"VictoriaMetrics: {question}", answer.problem)


if __name__ == "__main__":
    main()
