"""Each query of dashboards, documents and rules over one collector, and over the same cluster split over two."""

from __future__ import annotations

import math
import re
import subprocess
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from prometheus_support import running_prometheus
from support.dashboards import DASHBOARDS
from support.query_notes import annotated_queries, sections
from support.split_cluster import OF_COLLECTORS, SPLITS, SplitCluster, matched_values

from railscope.service import run_in_thread
from railscope_collector.console import group_curves
from railscope_collector.workloads.job_roster import JobKey
from railscope_dashboards.promql import expand, fill_variables, metrics_in

ROOT = Path(__file__).parents[2]
START, MINUTES = 1_700_000_000, 70
APART_SECONDS = 10 * 86_400
"""Between the splits, so that no query sees two of them."""
VARIABLES = {
    "__rate_interval": "5m", "__range": "1h", "tenant": "t1", "node": "n0", "device": "mlx5_0",
    "rail": "1", "workload": "j1", "interface": "eth1",
}  # fmt: skip

PLACEHOLDERS = {
    "NODE": "n0", "JOB": "j1", "INCIDENT": "i0", "TENANT": "t1", "CLASS": "gpu_lost", "GPU": "GPU-n0-0",
}  # fmt: skip
"""Placeholders of runbooks."""

OF_ONE_COLLECTOR = {"instance", "incident"}
OF_ITSELF = re.compile(r"railscope_(collector|audit|diagnosis|ledger|incident_webhook)_")
"""Metrics of a collector itself: a query may list them by instance."""
OWN_ACCOUNT = (
    "Each collector accounts for its nodes: the alert of this runbook names the collector."
)
BY_COLLECTOR = {
    "RailscopeLedgerNotClosing 0": OWN_ACCOUNT,
    "RailscopeMeteringCoverage 0": OWN_ACCOUNT,
    "RailscopeUnclaimedUse 2": OWN_ACCOUNT,
    "railscope-billing 105 A": "Each collector reads its own files of administrators.",
}
"""Queries that list collectors by design."""
OWN_MEDIAN = "Medians cannot be combined: a collector compares the GPUs of its part of a job."
OWN_DIAGNOSIS = (
    "A collector diagnoses its nodes: a fault of a rail that two share is an incident of each."
)
NOT_COMBINED = {
    "console job step_period": "A collector measures the steps of its part of a job.",
    **dict.fromkeys(
        ("railscope-jobs 501 K", "railscope-jobs 601 A", "railscope-jobs 602 A", "railscope-tenant 501 K",
         "railscope-tenant 503 A", "RailscopeJobStraggler 0"), OWN_MEDIAN),
    **dict.fromkeys(
        ("railscope-incidents 101 A", "railscope-incidents 103 A", "railscope-incidents 105 A",
         "railscope-incidents 201 A", "railscope-incidents 201 B", "railscope-incidents 202 A",
         "railscope-incidents 203 A", "railscope-incidents 204 A", "RailscopeIncidentReach 1"), OWN_DIAGNOSIS),
}  # fmt: skip
"""Queries that return something else where collectors share rails or jobs; by pod they return the same."""

OF_MOVED_NODES = {"RailscopeTenantOverQuota 2"}
"""Queries of nodes that two collectors have: of none, with one collector."""


class EvaluatedQuery(NamedTuple):
    """Values by labels, without those that name a collector, and whether each series has an instance."""

    values: Mapping[tuple[tuple[str, str], ...], list[float]]
    is_by_instance: bool

    def equals(self, other: EvaluatedQuery) -> bool:
        """True if both have the same series with the same values, but for rounding."""
        return self.values.keys() == other.values.keys() and all(
            len(values) == len(other.values[key])
            and all(
                map(partial(math.isclose, rel_tol=1e-9, abs_tol=1e-9), values, other.values[key])
            )
            for key, values in self.values.items()
        )


def dashboard_queries() -> Iterator[tuple[str, str]]:
    """Yield every query of the dashboards that reads a metric of collectors, with its place."""
    for dashboard in DASHBOARDS.values():
        for panel in dashboard["panels"]:
            for target in panel.get("targets", ()):
                yield f"{dashboard['uid']} {panel['id']} {target['refId']}", target["expr"]
        for number, marks in enumerate(dashboard["annotations"]["list"]):
            yield f"{dashboard['uid']} annotation {number}", marks["expr"]


def page_queries() -> Iterator[tuple[str, str]]:
    """Yield every query of documents and runbooks, with its place."""
    for page in sorted([*ROOT.glob("docs/*.md"), *ROOT.glob("alerts/runbooks/*.md")]):
        if page.name in {"developer.md", "alerts.md"}:
            continue
        for name, text in sections(page):
            for number, (_, query) in enumerate(annotated_queries(text)):
                filled = re.sub(
                    r'="([A-Z]+)"',
                    lambda label: f'="{PLACEHOLDERS.get(label[1], label[1])}"',
                    query,
                )
                yield f"{name} {number}", filled


def console_queries() -> Iterator[tuple[str, str]]:
    """Yield the queries of the console for longer history."""
    job = JobKey("t1", "slurm", "j1")
    scopes = ("rail", "0", group_curves.RAIL_FIGURES), ("job", job, group_curves.JOB_FIGURES)
    for scope, key, figures in scopes:
        for query in group_curves.queries(key, figures):
            yield f"console {scope} {query.name}", query.text


def queries_of_collectors() -> dict[str, str]:
    found = {
        place: expand(text)
        for place, text in (*dashboard_queries(), *page_queries(), *console_queries())
    }
    return {
        place: fill_variables(re.sub(r'=~"\$\w+"', '=~".*"', query), VARIABLES).replace(
            "time()", "2e9"
        )
        for place, query in found.items()
        if metrics_in(query) & OF_COLLECTORS.keys()
    }


def write_samples(path: Path, cluster: SplitCluster) -> dict[str, float]:
    """Write the series of all splits, one after the other; return the end of each."""
    ends = {}
    with path.open("w") as file:
        for number, split in enumerate(SPLITS):
            start = START + number * APART_SECONDS
            for each in cluster.series(split):
                labels = ",".join(f'{label}="{value}"' for label, value in each.labels.items())
                for minute in range(MINUTES + 1):
                    value = each.value + each.growth * minute
                    file.write(f"{each.name}{{{labels}}} {value!r} {start + 60 * minute}\n")
            ends[split] = float(start + 60 * MINUTES)
        file.write("# EOF\n")
    return ends


def import_samples(directory: Path) -> None:
    command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", "samples", "tsdb"]
    subprocess.run(command, cwd=directory, check=True, capture_output=True)


@pytest.mark.thorough
async def test_a_query_returns_for_two_collectors_what_it_returns_for_one(tmp_path: Path) -> None:
    queries = queries_of_collectors()
    names = frozenset[str]().union(*map(metrics_in, queries.values()))
    ends = write_samples(
        tmp_path / "samples", SplitCluster(names, matched_values(queries.values()))
    )
    await run_in_thread(import_samples, tmp_path)
    options = "--storage.tsdb.path=tsdb", "--storage.tsdb.retention.time=100y"
    async with running_prometheus(tmp_path, {}, *options) as prometheus:

        async def evaluate(query: str, split: str) -> EvaluatedQuery:
            answer = await prometheus.get("query", query=query, time=str(ends[split]))
            found: dict[tuple[tuple[str, str], ...], list[float]] = {}
            for series in answer["result"]:
                labels = {k: v for k, v in series["metric"].items() if k not in OF_ONE_COLLECTOR}
                found.setdefault(tuple(sorted(labels.items())), []).append(
                    float(series["value"][1])
                )
            is_by_instance = all("instance" in series["metric"] for series in answer["result"])
            return EvaluatedQuery({key: sorted(of) for key, of in found.items()}, is_by_instance)

        results = {
            place: {split: await evaluate(query, split) for split in SPLITS}
            for place, query in queries.items()
        }
    empty = {place for place, found in results.items() if not found["one"].values}
    assert empty == OF_MOVED_NODES
    differing = {
        (place, split)
        for place, (one, *others) in (
            (place, [*found.values()]) for place, found in results.items()
        )
        for split, two in zip([*SPLITS][1:], others, strict=True)
        if not one.equals(two)
        and not (two.is_by_instance and is_of_collectors_themselves(queries[place]))
    }
    assert {place for place, split in differing if split == "by pod"} == set(BY_COLLECTOR)
    assert {place for place, _ in differing} == {*BY_COLLECTOR, *NOT_COMBINED, *OF_MOVED_NODES}


def is_of_collectors_themselves(query: str) -> bool:
    """True if a query reads metrics of the collectors themselves, not of their nodes."""
    return all(map(OF_ITSELF.match, metrics_in(query) & OF_COLLECTORS.keys()))
