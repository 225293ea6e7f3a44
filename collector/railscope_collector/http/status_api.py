"""Route of the status: what the overview of the console, `railscope status` and the first line of `top` state.

Unknown is never healthy: a document that is absent or stale makes unknown what it would show.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from aiohttp import web

from railscope import api, figures
from railscope.api.status import Status, StatusReason, use_counts, worst
from railscope.catalog.collector import NODE_STATES
from railscope.catalog.incidents import MAX_DIAGNOSIS_AGE_SECONDS
from railscope.timestamps import SECOND_NS
from railscope_collector.access.credentials import Credential, Role
from railscope_collector.http import incidents_api, json_responses, read_api
from railscope_collector.inventory.inventory_view import NEVER_REPORTED

MAX_VIEW_AGE_SECONDS = 60.0
"""Age from which views are stale; a collector computes them every few seconds."""
SEVERITIES = ("critical", "warning", "info")
_MAX_NAMED = 5
_TENANT = "the credentials are those of a tenant: own jobs and incidents only"


@dataclass(frozen=True)
class Documents:
    """What one reader may read at one time, by name; a document that is absent has a reason in `problems`."""

    now_ns: int
    found: Mapping[str, Any]
    problems: Mapping[str, str] = field(default_factory=dict)
    not_ready: str = ""
    is_tenant: bool = False

    def absence(self, name: str) -> str:
        """Return why a document is absent or stale; empty if it is neither."""
        if name not in self.found:
            return self.problems.get(name, "not read")
        age = self.age_seconds(name)
        if age is None:
            return "it has not been computed yet; fix: wait until the collector is ready; /-/ready states the reason"
        limit = MAX_DIAGNOSIS_AGE_SECONDS if name == "incidents" else MAX_VIEW_AGE_SECONDS
        return f"stale: computed {figures.duration(round(age, 1))} ago" if age > limit else ""

    def age_seconds(self, name: str) -> float | None:
        """Return the age of a document; None if it has not been computed."""
        at_ns = self.found[name].timestamp_ns if name in self.found else 0
        return (self.now_ns - at_ns) / SECOND_NS if at_ns else None


def handlers(view_api: read_api.ViewApi) -> Mapping[str, Any]:
    """Return the handler by the name of the route."""
    return {"status": partial(_respond, view_api)}


async def _respond(
    view_api: read_api.ViewApi, request: web.Request, credential: Credential
) -> web.Response:
    not_ready = await view_api.not_ready()
    make = partial(read_status, view_api, credential, not_ready)
    return await json_responses.tagged_response(request, make)


def read_status(view_api: read_api.ViewApi, credential: Credential, not_ready: str) -> Status:
    """Return the status as a reader may see it. Blocking."""
    found: dict[str, Any] = {"jobs": view_api.jobs_api.list_of_all(credential)}
    if view_api.incidents().timestamp_ns:
        found["incidents"] = view_api.listed_incidents.list_open(credential)
    is_tenant = credential.role is Role.TENANT
    if not is_tenant:
        found["nodes"] = view_api.select_nodes(read_api.NodesQuery())
        found["cluster"] = view_api.cluster_values()
    problems = {"incidents": incidents_api.NOT_DIAGNOSED}
    return make_status(Documents(view_api.wall_ns(), found, problems, not_ready, is_tenant))


def make_status(documents: Documents) -> Status:
    """Return the status by the documents of one reader."""
    parts = ("incidents", "jobs") if documents.is_tenant else ("nodes", "incidents", "jobs")
    absent = {name: reason for name in parts if (reason := documents.absence(name))}
    absent |= dict.fromkeys(("nodes", "gpus"), _TENANT) if documents.is_tenant else {}
    nodes, incidents, jobs = map(documents.found.get, ("nodes", "incidents", "jobs"))
    opened = incidents.rows if incidents else ()
    gpus = _gpu_use(documents)
    if gpus is None:
        reason = documents.absence("cluster") or "no node with GPUs reports"
        absent.setdefault("gpus", reason)
    reasons = tuple(_reasons(documents, opened, absent))
    states = Counter(row.state for row in nodes.rows) if nodes else {}
    severities = Counter(one.severity for one in opened)
    return Status(
        status=worst(reason.status for reason in reasons),
        reasons=reasons,
        age_seconds=documents.age_seconds("nodes" if nodes else "jobs"),
        nodes={state: states.get(state, 0) for state in reversed(NODE_STATES)}
        if nodes and nodes.timestamp_ns
        else None,
        gpus=gpus,
        jobs=None if jobs is None or "jobs" in absent else len(jobs.rows) + jobs.suppressed,
        incidents=None
        if "incidents" in absent
        else {each: severities[each] for each in SEVERITIES},
        open_incidents=tuple(opened),
        absent=absent,
    )


def _gpu_use(documents: Documents) -> dict[str, float] | None:
    """Return GPUs in all, claimed, used without a claim and idle; None if they are unknown."""
    if documents.absence("cluster"):
        return None
    rows = documents.found["cluster"].rows
    values = {
        row.metric.removeprefix("railscope_cluster_"): row.value for row in rows if not row.labels
    }
    total, share = values.get("gpus"), values.get("mean_gpu_claimed_ratio")
    if total is None or share is None:
        return None if total is None else {"total": total}
    known = values.get("count_gpu_claimed") or total
    unknown = {"unknown": total - known} if known < total else {}
    return (
        {"total": total} | use_counts(known, known * share, values.get("unclaimed_gpus")) | unknown
    )


def _reasons(
    documents: Documents, opened: Sequence[api.IncidentDocument], absent: Mapping[str, str]
) -> Iterator[StatusReason]:
    for name in ("nodes", "incidents", "jobs"):
        if name in absent and absent[name] != _TENANT:
            yield StatusReason("unknown", f"{name}: {absent[name]}")
    if documents.not_ready:
        yield StatusReason("degraded", f"the collector is not ready: {documents.not_ready}")
    roots = [one for one in opened if one.explained_by is None and one.severity != "info"]
    for one in roots:
        yield StatusReason("failed" if one.severity == "critical" else "degraded", one.title)
    if not absent.get("nodes"):
        yield from _node_reasons(
            documents.found["nodes"].rows, {one.id for one in roots if one.severity == "critical"}
        )
    for job in documents.found["jobs"].rows if documents.is_tenant and "jobs" not in absent else ():
        if job.stale_gpus:
            text = f"{job.stale_gpus} of {job.gpus:g} GPUs are on stale nodes"
            yield StatusReason("degraded", f"job {job.workload}: {text}")


def _node_reasons(rows: Sequence[api.Node], stated: set[str]) -> Iterator[StatusReason]:
    if not rows:
        yield StatusReason("unknown", "no node has ever reported")
    # A critical incident of the node is a reason of its own.
    failed = [row for row in rows if row.state == "failed" and stated.isdisjoint(row.incidents)]
    if failed:
        yield StatusReason("failed", _names([f"{row.node}: {row.reason}" for row in failed], "; "))
    silent = [row for row in rows if not row.reporting]
    never = [row.node for row in silent if row.reason == NEVER_REPORTED]
    stale = [row.node for row in silent if row.reason != NEVER_REPORTED]
    if stale and len(silent) == len(rows):
        yield StatusReason("unknown", "no node reports")
    elif stale:
        yield StatusReason("degraded", f"stale: {_names(stale)}")
    if never:
        yield StatusReason("degraded", f"{NEVER_REPORTED}: {_names(never)}")


def _names(names: Sequence[str], separator: str = ", ") -> str:
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return separator.join(names[:_MAX_NAMED]) + more
