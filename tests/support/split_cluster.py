"""Series of a small cluster at one collector, and of the same cluster split over two.

Every metric is derived from amounts of nodes: a collector reports the sum, mean, highest or lowest of the nodes
that it has. So a query over the series of two collectors must return what it returns for one.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import NamedTuple

from railscope.catalog import Metric, MetricKind, Rollup, account, collector, incidents, rollups
from railscope.catalog.declare import BUCKET
from railscope_dashboards.promql import metric_named

NODES = ("n0", "n1", "n2", "n3")
STALE_NODE, MISSING_NODE, UNEXPECTED_NODE = "n3", "n9", "n8"
RAILS = ("0", "1")
JOBS = {("t1", "slurm", "j1"): ("n0", "n1"), ("t2", "slurm", "j2"): ("n2", "n3")}
TENANTS = {"t1": ("n0", "n1"), "t2": ("n2", "n3")}
SPLITS: Mapping[str, Sequence[Sequence[str]]] = {
    "one": (NODES,),
    "by pod": (("n0", "n1"), ("n2", "n3")),
    "at random": (("n0", "n2"), ("n1", "n3")),
    "after a move": (("n0",), ("n1", "n2", "n3")),
}
"""Nodes of each collector. Rails have nodes of both, and jobs and tenants have, except those by pod."""
MOVED_NODE = "n1"
"""Stale at the first collector after a move."""
OF_COLLECTORS = {
    metric.name: metric
    for module in (account, collector, incidents)
    for metric in vars(module).values()
    if isinstance(metric, Metric) and not metric.name.startswith("railscope_rdma_")
} | {name: derived.metric for name, derived in rollups().items()}
HIGHEST = {
    "railscope_audit_checkpoint_conflict", "railscope_ledger_replaced", "railscope_collector_lost_files",
    "railscope_diagnosis_age_seconds", "railscope_diagnosis_evaluation_seconds",
    "railscope_diagnosis_running", "railscope_diagnosis_lag_seconds", "railscope_diagnosis_lag_bytes",
    "railscope_collector_views_refresh_seconds", "railscope_audit_verification_age_seconds",
}  # fmt: skip
LOWEST = {"railscope_job_start_time_seconds"}
FLAGS = {
    "railscope_node_identity_conflict", "railscope_retired_gpu_reporting", "railscope_collector_cluster_head",
    "railscope_collector_clock_suspect",
}  # fmt: skip
EQUAL = {"railscope_tenant_quota_gpu_time_seconds", "railscope_tenant_quota_gpus"}
"""Metrics of a whole collector that are not sums over nodes; files of administrators are equal."""
GROWING = {
    name for name, metric in OF_COLLECTORS.items()
    if metric.kind is MetricKind.COUNTER or name.endswith(("_gpu_time_seconds", "capacity_seconds"))
} - EQUAL  # fmt: skip
INCIDENTS = {
    "i0": ("gpu_lost", "critical", ("gpu", "n0", "0", ""), ("n0",)),
    "i1": ("rail_congestion", "warning", ("leaf", "", "leaf1", "1"), ("n2", "n3")),
}
"""Class, severity, cause and touched nodes; each collector that has touched nodes finds it, with an ID of its own."""
DEVICE_LABELS = {
    "gpu": "GPU-{node}-{rail}", "index": "{rail}", "rail": "{rail}", "pci_address": "0000:{rail}",
    "interface": "eth{rail}", "device": "mlx5_{rail}", "rdma_device": "mlx5_{rail}",
}  # fmt: skip
_SELECTOR = re.compile(r"\b(railscope_\w+)\{([^{}]*)\}")
_MATCHER = re.compile(r'(\w+)(=~|!=|=)"([^"]*)"')


class SplitSeries(NamedTuple):
    """A series: its value, and its growth per minute."""

    name: str
    labels: Mapping[str, str]
    value: float
    growth: float = 0.0


def matched_values(queries: Iterable[str]) -> dict[tuple[str, str], set[str]]:
    """Return the values that queries select, by metric and label."""
    found: dict[tuple[str, str], set[str]] = {}
    for query in queries:
        for name, matchers in _SELECTOR.findall(query):
            for label, how, value in _MATCHER.findall(matchers):
                if value and "$" not in value and how != "!=":
                    terms = (re.sub(r"[.][*+]|[^\w.-]", "", term) for term in value.split("|"))
                    found.setdefault((name, label), set()).update(filter(None, terms))
    return found


def _amount(*key: str) -> float:
    return 1 + zlib.crc32(" ".join(key).encode()) % 1000


class SplitCluster:
    """All series of given metrics."""

    def __init__(self, names: Iterable[str], matched: Mapping[tuple[str, str], set[str]]) -> None:
        """`matched` are values of labels that queries select."""
        self._names, self._matched = sorted(names), matched
        self._moved: list[str] = []

    def series(self, split: str) -> Iterator[SplitSeries]:
        """Yield the series of agents, and of the collectors of a split."""
        for name in self._names:
            if name in OF_COLLECTORS:
                for number, nodes in enumerate(SPLITS[split]):
                    self._moved = [MOVED_NODE] if split == "after a move" and not number else []
                    for each in self._of_collector(name, number, nodes):
                        labels = {"instance": f"c{number}:9470", "job": "railscope-collector"}
                        yield each._replace(labels={**each.labels, **labels})
            elif name == "up":
                for node in NODES:
                    yield SplitSeries(name, {"job": "railscope-agent", "node": node}, 1)
            else:
                yield from self._of_agents(name)

    def _values(self, metric: Metric, name: str, label: str) -> Sequence[str]:
        if label == "period":
            return ("day", "month")
        if label == "state" and metric.kind is MetricKind.STATE and metric.states:
            known = set(metric.states.values())
        else:
            known = {"x"}
        return sorted(self._matched.get((name, label), set()) | known)

    def _parts(self, metric: Metric, name: str, without: Iterable[str]) -> Iterator[dict[str, str]]:
        labels = [
            *metric.about.labels,
            *(metric.about.facts if metric.kind is MetricKind.INFO else ()),
        ]
        if metric.kind is MetricKind.STATE:
            labels.append("state")
        rest = [label for label in labels if label not in {*without, *DEVICE_LABELS, BUCKET}]
        if "pci_address" in metric.about.labels and not {"gpu", "interface"} & {*labels}:
            rest = [label for label in rest if label not in DEVICE_LABELS]
        for values in product(*(self._values(metric, name, label) for label in rest)):
            yield dict(zip(rest, values, strict=True))

    def _devices(self, metric: Metric, node: str) -> Iterator[dict[str, str]]:
        labels = (
            [*metric.about.labels, *metric.about.facts]
            if metric.kind is MetricKind.INFO
            else metric.about.labels
        )
        used = [label for label in labels if label in DEVICE_LABELS]
        for rail in RAILS if used else RAILS[:1]:
            yield {label: DEVICE_LABELS[label].format(node=node, rail=rail) for label in used}

    def _of_agents(self, name: str) -> Iterator[SplitSeries]:
        metric = metric_named(name)
        assert metric, name
        for node in NODES:
            for part in self._parts(metric, name, ("node",)):
                for device in self._devices(metric, node):
                    labels = {"node": node, **part, **device, "job": "railscope-agent"}
                    value = _amount(name, *labels.values())
                    if metric.kind in {MetricKind.INFO, MetricKind.STATE} or name.endswith(
                        "_active"
                    ):
                        value = 1
                    growth = value if name.endswith(("_total", "_sum", "_count")) else 0
                    yield SplitSeries(name, labels, value, growth)

    def _of_collector(self, name: str, number: int, nodes: Sequence[str]) -> Iterator[SplitSeries]:
        metric = OF_COLLECTORS[name]
        special = getattr(self, f"_{name.removeprefix('railscope_')}", None)
        if special:
            yield from special(name, number, nodes)
        elif "node" in metric.about.labels:
            for node in nodes:
                for part in self._parts(metric, name, ("node",)):
                    for device in self._devices(metric, node):
                        labels = {"node": node, **part, **device}
                        yield self._combined(name, labels, (node,))
        else:
            for scope, members in self._scopes(metric):
                if own := [node for node in nodes if node in members]:
                    for part in self._parts(metric, name, scope):
                        yield self._combined(name, {**scope, **part}, own)

    @staticmethod
    def _scopes(metric: Metric) -> Iterator[tuple[dict[str, str], Sequence[str]]]:
        labels = metric.about.labels
        if "rail" in labels:
            yield from (({"rail": rail}, NODES) for rail in RAILS)
        elif "workload" in labels:
            for job, members in JOBS.items():
                yield dict(zip(("tenant", "source", "workload"), job, strict=True)), members
        elif "tenant" in labels:
            yield from (({"tenant": tenant}, members) for tenant, members in TENANTS.items())
        else:
            yield {}, NODES

    @staticmethod
    def _combined(name: str, labels: dict[str, str], nodes: Sequence[str]) -> SplitSeries:
        """Combine the amounts of some nodes; n0 has one reading, the others have two."""
        key = (
            name.replace("_count_", "_mean_") + ("_ratio" if "_count_" in name else ""),
            *labels.values(),
        )
        amounts = [_amount(*key, node) for node in nodes for _ in range(1 if node == "n0" else 2)]
        derived = rollups().get(name)
        if derived and derived.rollup is Rollup.COUNT:
            value = float(len(amounts))
        elif derived and derived.rollup is Rollup.MEAN:
            value = sum(amounts) / len(amounts)
        elif name in HIGHEST or (derived and derived.rollup is Rollup.MAX):
            value = max(amounts)
        elif name in LOWEST or (derived and derived.rollup is Rollup.MIN):
            value = min(amounts)
        elif name in EQUAL:
            value = _amount(*key)
        elif name in FLAGS:
            value = 1.0
        else:
            value = sum(amounts)
        return SplitSeries(name, labels, value, value / 100 if name in GROWING else 0)

    def _node_reporting(
        self, name: str, _number: int, nodes: Sequence[str]
    ) -> Iterator[SplitSeries]:
        for node in (*nodes, *self._moved):
            yield SplitSeries(name, {"node": node}, float(node in nodes and node != STALE_NODE))

    def _node_last_frame_age_seconds(
        self, name: str, _number: int, nodes: Sequence[str]
    ) -> Iterator[SplitSeries]:
        for node in (*nodes, *self._moved):
            is_old = node in self._moved
            yield SplitSeries(name, {"node": node}, 1e6 if is_old else _amount(name, node))

    _node_clock_offset_seconds = _node_last_frame_age_seconds

    def _inventory_node(
        self, name: str, _number: int, nodes: Sequence[str]
    ) -> Iterator[SplitSeries]:
        for node in (*NODES, MISSING_NODE):
            is_stale = node == STALE_NODE or node in self._moved
            is_known = node in nodes or node in self._moved
            state = "missing" if not is_known else "stale" if is_stale else "present"
            yield SplitSeries(name, {"node": node, "state": state}, 1)
        if NODES[-1] in nodes:
            yield SplitSeries(name, {"node": UNEXPECTED_NODE, "state": "unexpected"}, 1)

    @staticmethod
    def _inventory_gpus(name: str, _number: int, nodes: Sequence[str]) -> Iterator[SplitSeries]:
        for node, state in product(
            (*NODES, MISSING_NODE), ("present", "missing", "unknown", "unexpected")
        ):
            value = (
                _amount(name, node, state) if node in nodes else 8.0 if state == "unknown" else 0
            )
            yield SplitSeries(name, {"node": node, "state": state}, value)

    _inventory_rdma_ports = _inventory_gpus

    @staticmethod
    def _job_straggler_deviation_ratio(
        name: str, _number: int, nodes: Sequence[str]
    ) -> Iterator[SplitSeries]:
        for job, members in JOBS.items():
            for measure in account.STRAGGLER_MEASURES if {*members} & {*nodes} else ():
                node = min({*members} & {*nodes}, key=lambda node: _amount(name, measure, node))
                labels = dict(zip(("tenant", "source", "workload"), job, strict=True))
                device = {"measure": measure, "node": node, "gpu": f"GPU-{node}-0"}
                yield SplitSeries(name, labels | device, -_amount(name, measure, node) / 1000)

    @staticmethod
    def _found(number: int, nodes: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
        for incident, (_, _, _, touched) in INCIDENTS.items():
            if own := [node for node in nodes if node in touched]:
                yield incident if touched[0] in nodes else f"{incident}-{number}", own

    @staticmethod
    def _collector_file_valid(name: str, _number: int, _nodes: object) -> Iterator[SplitSeries]:
        yield SplitSeries(name, {"file": "claims"}, 0)

    @staticmethod
    def _collector_cluster_included(
        name: str, _number: int, _nodes: object
    ) -> Iterator[SplitSeries]:
        yield SplitSeries(name, {"collector": "x"}, 0)

    @staticmethod
    def _cluster_jobs(name: str, _number: int, nodes: Sequence[str]) -> Iterator[SplitSeries]:
        found = sum(bool({*members} & {*nodes}) for members in JOBS.values())
        yield SplitSeries(name, {}, float(found))

    @staticmethod
    def _job_nodes(name: str, _number: int, nodes: Sequence[str]) -> Iterator[SplitSeries]:
        for job, members in JOBS.items():
            if own := {*members} & {*nodes}:
                labels = dict(zip(("tenant", "source", "workload"), job, strict=True))
                yield SplitSeries(name, labels, float(len(own)))

    def _incident_onset_timestamp_seconds(
        self, name: str, number: int, nodes: Sequence[str]
    ) -> Iterator[SplitSeries]:
        for incident, _ in self._found(number, nodes):
            kind, severity, cause, _ = INCIDENTS[incident[:2]]
            where = dict(zip(("kind", "node", "device", "rail"), cause, strict=True))
            labels = {"incident": incident, "class": kind, "severity": severity, **where}
            yield SplitSeries(name, labels, 1e9 + 10 * ("-" in incident))

    def _incidents(self, name: str, number: int, nodes: Sequence[str]) -> Iterator[SplitSeries]:
        for incident, _ in self._found(number, nodes):
            kind, severity, _, _ = INCIDENTS[incident[:2]]
            yield SplitSeries(name, {"class": kind, "severity": severity}, 1)

    def _incidents_opened_total(
        self, name: str, number: int, nodes: Sequence[str]
    ) -> Iterator[SplitSeries]:
        for incident, _ in self._found(number, nodes):
            yield SplitSeries(name, {"class": INCIDENTS[incident[:2]][0]}, 5, 1)

    def _incident_cause(
        self, name: str, number: int, nodes: Sequence[str]
    ) -> Iterator[SplitSeries]:
        for incident, _ in self._found(number, nodes):
            kind, _, cause, _ = INCIDENTS[incident[:2]]
            if cause[0] == "gpu":
                labels = {"incident": incident, "class": kind, "kind": "gpu", "node": cause[1]}
                yield SplitSeries(
                    name, labels | {"gpu": f"GPU-{cause[1]}-0", "pci_address": "0000:0"}, 1
                )

    def _incident_reach(
        self, name: str, number: int, nodes: Sequence[str]
    ) -> Iterator[SplitSeries]:
        for incident, touched in self._found(number, nodes):
            kind, _, cause, _ = INCIDENTS[incident[:2]]
            labels = {"incident": incident, "class": kind, "area": "network"}
            yield from (SplitSeries(name, labels | {"node": node}, 1) for node in touched)
            if cause[3]:
                yield SplitSeries(name, labels | {"rail": cause[3]}, 1)

    def _job_incident(self, name: str, number: int, nodes: Sequence[str]) -> Iterator[SplitSeries]:
        for incident, touched in self._found(number, nodes):
            kind = INCIDENTS[incident[:2]][0]
            for job, members in JOBS.items():
                if {*members} & {*touched}:
                    labels = dict(zip(("tenant", "source", "workload"), job, strict=True))
                    yield SplitSeries(name, labels | {"incident": incident, "class": kind}, 1)
