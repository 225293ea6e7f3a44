"""The state of a cluster as one reader may see it: documents of a collector's API, or the reasons for their absence.

Unknown is never healthy: a document that is absent or stale makes unknown what it would show.
"""

from __future__ import annotations

import threading
import urllib.parse
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property
from http import HTTPStatus
from typing import Any, NamedTuple

from railscope import api, timestamps
from railscope.api import inventory, tenants
from railscope.catalog.collector import NODE_STATES
from railscope.catalog.incidents import MAX_DIAGNOSIS_AGE_SECONDS
from railscope.client import tables
from railscope.client.connection import ClientError, ReadClient

MAX_VIEW_AGE_SECONDS = 60.0
"""Age from which views are stale; a collector computes them every few seconds."""
READY = "ready"
SEVERITIES = ("critical", "warning", "info")
NO_STATE = "the collector does not report states of {}; fix: upgrade it"


class DocumentRequest(NamedTuple):
    """Request for a document, and the type of its content."""

    path: str
    shape: type[Any]
    query: tuple[tuple[str, str], ...] = ()


DOCUMENTS: Mapping[str, DocumentRequest] = {
    READY: DocumentRequest("/-/ready", bytes),
    "cluster": DocumentRequest("/api/v1/cluster", api.MetricList),
    "rails": DocumentRequest("/api/v1/rails", api.RailList),
    "nodes": DocumentRequest("/api/v1/nodes", api.NodeList),
    "inventory": DocumentRequest("/api/v1/inventory", inventory.Inventory),
    "incidents": DocumentRequest("/api/v1/incidents", api.IncidentList, (("state", "open"),)),
    "jobs": DocumentRequest("/api/v1/jobs", api.JobList),
    "tenants": DocumentRequest("/api/v1/tenants", tenants.TenantList),
    "events": DocumentRequest("/api/v1/events", api.EventList),
}  # fmt: skip


def gpus_request(query: Mapping[str, str]) -> DocumentRequest:
    """Return the request for a part of the GPUs of all nodes, worst first."""
    return DocumentRequest("/api/v1/gpus", api.GpuList, tuple(query.items()))


def node_request(node: str) -> DocumentRequest:
    """Return the request for the GPUs of a node, with the readings of one source: all of them are many."""
    path = f"/api/v1/nodes/{_quoted(node)}"
    return DocumentRequest(path, api.NodeDetail, (("stream", "gpu"),))


def job_request(tenant: str, source: str, workload: str) -> DocumentRequest:
    """Return the request for a job with its GPUs."""
    path = "/".join(map(_quoted, (tenant, source, workload)))
    return DocumentRequest(f"/api/v1/jobs/{path}", api.Job)


def incident_request(number: str) -> DocumentRequest:
    """Return the request for one incident, also an ended one."""
    return DocumentRequest(f"/api/v1/incidents/{_quoted(number)}", api.IncidentDocument)


def _quoted(name: str) -> str:
    return urllib.parse.quote(name, safe="")


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
            return "it has not been computed yet; fix: wait until the collector is ready; /-/ready states the reason"
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
    def open_incidents(self) -> list[api.IncidentDocument]:
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


def decided_state(things: str, state: str, reason: str, stale: str) -> tuple[str, str]:
    """Return the state that the collector decided on with its reason, unless its views are stale."""
    if stale:
        return "unknown", f"the views are {stale}"
    if not state:
        return "unknown", NO_STATE.format(things)
    if state not in NODE_STATES:  # of a newer collector
        return "unknown", f"{state}: {reason}"
    return state, reason


def severity_rank(severity: str) -> int:
    """Return the position of a severity, worst first; an unknown one is as bad as a warning."""
    return SEVERITIES.index(severity) if severity in SEVERITIES else 1


@dataclass
class ClusterReader:
    """Reads documents of a collector, those of one reading at the same time."""

    client: ReadClient
    not_served: dict[str, ClientError] = field(default_factory=dict)
    """Documents that were denied: they are not requested again, as each denial is an audit record."""

    def read(self, names: Iterable[str], **further: DocumentRequest) -> ClusterReading:
        """Read documents. Raises ClientError if the collector does not answer at all, or rejects the credential.

        A document that cannot be read is absent with the reason; the others are read.
        """
        requests = {name: DOCUMENTS[name] for name in names} | further
        errors = {name: error for name, error in self.not_served.items() if name in requests}
        reads = {
            name: self._start(request) for name, request in requests.items() if name not in errors
        }
        documents: dict[str, Any] = {}
        sent_ns = 0
        for name, read in reads.items():
            try:
                documents[name], at_ns = read.result()
                sent_ns = max(sent_ns, at_ns)
            except ClientError as error:
                # All documents have the same credential.
                if error.status == HTTPStatus.UNAUTHORIZED:
                    raise
                errors[name] = error
                if error.is_denied and name in DOCUMENTS:
                    self.not_served[name] = error
        # No response to any request: it is the server that cannot be reached.
        if errors and not documents and all(error.status is None for error in errors.values()):
            raise next(iter(errors.values()))
        not_ready = errors.pop(READY).message if READY in errors else ""
        return ClusterReading(sent_ns, documents, errors, not_ready)

    def _start(self, request: DocumentRequest) -> Future[tuple[Any, int]]:
        """Begin to read a document, in a thread that does not delay the end of the program."""
        read: Future[tuple[Any, int]] = Future()

        def run() -> None:
            try:
                if request.shape is bytes:
                    read.set_result((self.client.get(request.path).body, 0))
                else:
                    read.set_result(self.client.get_as(request.shape, request.path, request.query))
            except BaseException as error:  # noqa: BLE001 - raised again by the caller
                read.set_exception(error)

        threading.Thread(target=run, daemon=True).start()
        return read
