"""The state of a cluster as one reader may see it: documents of a collector's API, or the reasons for their absence.

Unknown is never healthy: a document that is absent or stale makes unknown what it would show.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from http import HTTPStatus
from typing import Any

from railscope import timestamps
from railscope.catalog.incidents import MAX_DIAGNOSIS_AGE_SECONDS
from railscope.client import answers, tables
from railscope.client.connection import ClientError, ReadClient

MAX_VIEW_AGE_SECONDS = 60.0
"""Age from which views are stale; a collector computes them every few seconds."""
READY = "ready"
SEVERITIES = ("critical", "warning", "info")
DOCUMENTS: Mapping[str, tuple[str, type[Any]]] = {
    "cluster": ("/api/v1/cluster", answers.ViewAnswer),
    "rails": ("/api/v1/rails", answers.ViewAnswer),
    "nodes": ("/api/v1/nodes", answers.NodesAnswer),
    "inventory": ("/api/v1/inventory", answers.InventoryAnswer),
    "incidents": ("/api/v1/incidents", answers.IncidentsAnswer),
    "jobs": ("/api/v1/jobs", answers.JobsAnswer),
    "tenants": ("/api/v1/tenants", answers.ViewAnswer),
    "account": ("/api/v1/account", answers.AccountAnswer),
    "events": ("/api/v1/events", answers.EventsAnswer),
}
_NODE_SOURCES = ("gpu", "gpu_verdict", "tenancy", "link", "nic")


@dataclass(frozen=True)
class ClusterReading:
    """Documents by name, read at one time, and the reason for each one that is absent."""

    sent_ns: int
    """Time of the last answer by the collector's clock."""
    documents: Mapping[str, Any]
    errors: Mapping[str, ClientError]
    not_ready: str = ""
    """Reason that the collector states for not being ready."""

    def document(self, name: str) -> Any:
        """Return a document; None if it is absent."""
        return self.documents.get(name)

    def absence(self, name: str) -> str:
        """Return the reason for which a document is absent or stale; empty if there is none."""
        if name in self.errors:
            return self.errors[name].message
        timestamp_ns = getattr(self.document(name), "timestamp_ns", None)
        if timestamp_ns is None:
            return "" if name in self.documents else "not read"
        if not timestamp_ns:
            return "the views have not been computed yet"
        age = self.age_seconds(name) or 0.0
        limit = MAX_DIAGNOSIS_AGE_SECONDS if name == "incidents" else MAX_VIEW_AGE_SECONDS
        return f"stale: computed {tables.show_age(age)} ago" if age > limit else ""

    def age_seconds(self, name: str) -> float | None:
        """Return the age of a document when it was sent; None without one."""
        timestamp_ns = getattr(self.document(name), "timestamp_ns", 0)
        return (self.sent_ns - timestamp_ns) / timestamps.SECOND_NS if timestamp_ns else None

    def is_denied(self, name: str) -> bool:
        """True if the credentials do not permit to read a document."""
        return name in self.errors and self.errors[name].is_denied

    @property
    def is_tenant(self) -> bool:
        """True if the credentials are those of a tenant: its jobs and incidents, no nodes."""
        return self.is_denied("nodes") and "jobs" in self.documents

    @cached_property
    def open_incidents(self) -> list[answers.IncidentItem]:
        """Open incidents, worst first, those that another one explains last."""
        document = self.document("incidents")
        rows = [row for row in document.rows if row.ended is None] if document else []
        return sorted(
            rows,
            key=lambda row: (row.explained_by is not None, severity_rank(row.severity), row.onset),
        )

    def value(self, metric: str, name: str = "cluster") -> float | None:
        """Return a value of a view without labels; None if it is absent or the view is stale."""
        document = self.document(name)
        if document is None or self.absence(name):
            return None
        return next(
            (row.value for row in document.rows if row.metric == metric and not row.labels), None
        )


def severity_rank(severity: str) -> int:
    """Return the position of a severity, worst first; an unknown one is as bad as a warning."""
    return SEVERITIES.index(severity) if severity in SEVERITIES else 1


@dataclass
class ClusterReader:
    """Reads documents of a collector, one request after the other."""

    client: ReadClient
    not_served: dict[str, ClientError] = field(default_factory=dict)
    """Documents that were denied: they are not requested again, as each denial is an audit record."""
    is_wanted: Callable[[], bool] = lambda: True
    """Returns false if the documents are not needed any more: on a slow link each one takes long."""

    def read(self, names: Collection[str]) -> ClusterReading:
        """Read documents. Raises ClientError if the collector does not answer at all."""
        documents: dict[str, Any] = {}
        errors = {name: self.not_served[name] for name in names if name in self.not_served}
        not_ready, sent_ns = "", 0
        for name in names:
            if name in errors:
                continue
            if not self.is_wanted():
                break
            try:
                if name == READY:
                    self.client.get("/-/ready")
                    continue
                path, shape = DOCUMENTS[name]
                answer = self.client.get(path)
                documents[name] = self.client.decode(shape, path, answer.body)
                sent_ns = answer.sent_ns
            except ClientError as error:
                if error.status is None or error.status == HTTPStatus.UNAUTHORIZED:
                    raise
                if name == READY:
                    not_ready = error.message
                    continue
                errors[name] = error
                if error.is_denied:
                    self.not_served[name] = error
        return ClusterReading(sent_ns, documents, errors, not_ready)

    def read_gpus(self, query: Mapping[str, str]) -> answers.GpusAnswer:
        """Read a part of the GPUs of all nodes, worst first. Raises ClientError."""
        return self.client.get_as(answers.GpusAnswer, "/api/v1/gpus", [*query.items()])

    def read_node(self, node: str) -> answers.NodeAnswer:
        """Read the GPUs and NICs of a node. Raises ClientError."""
        path = f"/api/v1/nodes/{urllib.parse.quote(node, safe='')}"
        return self.client.get_as(
            answers.NodeAnswer, path, [("stream", name) for name in _NODE_SOURCES]
        )

    def read_job(self, tenant: str, source: str, workload: str) -> answers.JobItem:
        """Read a job with its GPUs. Raises ClientError."""
        parts = (urllib.parse.quote(part, safe="") for part in (tenant, source, workload))
        return self.client.get_as(answers.JobItem, f"/api/v1/jobs/{'/'.join(parts)}")
