"""Status of a cluster or of a node in one screen: healthy, degraded, failed or unknown, with the reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from railscope import api, figures, timestamps
from railscope.catalog.gpu_health import reason_text
from railscope.client import cluster_tables, tables
from railscope.client.agent_reading import CLAIMED, AgentReading
from railscope.client.cluster_reading import NO_STATE, READY, ClusterReading

CLUSTER_DOCUMENTS = ("nodes", "incidents", "jobs", "cluster", "inventory", READY)
_MAX_REASONS = 10
"""Reasons on the screen; JSON has all of them."""
_MAX_LISTED = 5
UNCLAIMED = "unclaimed"


class OverallStatus(IntEnum):
    """Status; the value is the exit status of the command."""

    HEALTHY = 0
    DEGRADED = 1
    FAILED = 2
    UNKNOWN = 3


_WORST_FIRST = (OverallStatus.FAILED, OverallStatus.UNKNOWN, OverallStatus.DEGRADED)


@dataclass(frozen=True, slots=True)
class StatusReason:
    """A fact, and the status that follows from it."""

    status: OverallStatus
    text: str
    is_incident: bool = False
    """True if the text is the title of an open incident."""


@dataclass(frozen=True)
class StatusReport:
    """Status with its reasons and figures; a figure that is None is unknown, `absent` has the reason."""

    server: str
    program: str
    reasons: Sequence[StatusReason]
    observed_ns: int
    age_seconds: float | None = None
    nodes: dict[str, int] | None = None
    gpus: dict[str, float] | None = None
    jobs: int | None = None
    incidents: dict[str, int] | None = None
    open_incidents: Sequence[tables.Row] = ()
    absent: dict[str, str] = field(default_factory=dict)

    @property
    def status(self) -> OverallStatus:
        """The worst status of all reasons; failed is worse than unknown."""
        found = {reason.status for reason in self.reasons}
        return next((status for status in _WORST_FIRST if status in found), OverallStatus.HEALTHY)

    def to_json(self) -> dict[str, Any]:
        """Return the keys of `railscope status --json`."""
        return {
            "status": self.status.name.lower(),
            "exit_status": int(self.status),
            "reasons": [
                {"status": reason.status.name.lower(), "text": reason.text}
                for reason in self.reasons
            ],
            "server": self.server,
            "program": self.program,
            "observed": timestamps.format_timestamp(self.observed_ns) if self.observed_ns else None,
            "age_seconds": self.age_seconds,
            "nodes": self.nodes,
            "gpus": self.gpus,
            "jobs": self.jobs,
            "incidents": self.incidents,
            "open_incidents": list(self.open_incidents),
            "absent": self.absent,
        }

    def as_text(self, width: int = tables.NARROW) -> str:
        """Return one screen of text."""
        lines = [f"{self.status.name}  {self.program} {self.server}"]
        no_incidents = [reason for reason in self.reasons if not reason.is_incident]
        ordered = sorted(no_incidents, key=lambda reason: _WORST_FIRST.index(reason.status))
        for reason in ordered[:_MAX_REASONS]:
            lines += tables.wrap(f"  {reason.status.name.lower()}: {reason.text}", width, "    ")
        if len(ordered) > _MAX_REASONS:
            lines.append(
                f"  and {len(ordered) - _MAX_REASONS} more reasons: --json has all of them"
            )
        lines.append("")
        for figure in self._figures():
            lines += tables.wrap(figure, width, " " * 11)
        if self.open_incidents:
            shown = self.open_incidents[:_MAX_LISTED]
            lines += ["", *cluster_tables.incident_lines(shown, width)]
            if len(shown) < len(self.open_incidents):
                lines.append(
                    f"and {len(self.open_incidents) - len(shown)} more: railscope incidents"
                )
        return "\n".join(lines)

    def _figures(self) -> Iterator[str]:
        """Yield each figure, or the reason for its absence if it is not one of those above."""
        above = {reason.text for reason in self.reasons}
        absent = {
            name: "unknown" if f"{name}: {reason}" in above else f"unknown: {reason}"
            for name, reason in self.absent.items()
        }
        age = "unknown" if self.age_seconds is None else tables.show_age(self.age_seconds)
        yield f"data       age {age}"
        named = {"nodes": self.nodes, "gpus": self.gpus, "incidents": self.incidents}
        for name, counts in named.items():
            if counts is not None:
                yield f"{name:10} {counts_text(counts)}"
            elif name in self.absent:
                yield f"{name:10} {absent[name]}"
        if self.jobs is not None:
            yield f"{'jobs':10} {self.jobs} running"
        elif "jobs" in self.absent:
            yield f"{'jobs':10} {absent['jobs']}"


def counts_text(counts: Mapping[str, float], omitted: Collection[str] = (UNCLAIMED,)) -> str:
    """Return numbers by state, without those of `omitted` that are zero."""
    shown = {name: count for name, count in counts.items() if count or name not in omitted}
    titles = {UNCLAIMED: "used without a claim", "not_claimed": "not claimed"}
    return ", ".join(
        f"{figures.digits(count)} {titles.get(name, name)}" for name, count in shown.items()
    )


def unknown_report(server: str, program: str, reason: str) -> StatusReport:
    """Return the report of a server that could not be read."""
    return StatusReport(server, program, [StatusReason(OverallStatus.UNKNOWN, reason)], 0)


# Of a cluster ------------------------------------------------------------------------------------


def cluster_report(server: str, reading: ClusterReading) -> StatusReport:
    """Return the status of what the credentials may read of a cluster."""
    nodes = cluster_tables.node_table(reading)
    jobs = reading.document("jobs")
    parts = ("incidents", "jobs") if reading.is_tenant else ("nodes", "incidents", "jobs")
    requested = reading.documents.keys() | reading.errors.keys()
    absent = {
        name: reason for name in parts if name in requested and (reason := reading.absence(name))
    }
    if reading.is_tenant:
        absent |= dict.fromkeys(
            ("nodes", "gpus"), "the credentials are those of a tenant: own jobs and incidents only"
        )
    incidents = None
    if "incidents" not in absent:
        counts = Counter(reason.severity for reason in reading.open_incidents)
        incidents = {severity: counts[severity] for severity in ("critical", "warning", "info")}
    by_state = Counter(row["state"] for row in nodes.rows)
    gpus = _gpu_counts(reading)
    if gpus is None and "gpus" not in absent:
        absent["gpus"] = reading.absence("cluster") or "no node with GPUs reports"
    return StatusReport(
        server,
        "collector",
        [*_cluster_reasons(reading, nodes, absent)],
        reading.sent_ns,
        age_seconds=reading.age_seconds("nodes" if reading.document("nodes") else "jobs"),
        nodes=None
        if nodes.absence
        else {status.name.lower(): by_state[status.name.lower()] for status in OverallStatus},
        gpus=gpus,
        jobs=None if jobs is None or "jobs" in absent else len(jobs.rows) + jobs.suppressed,
        incidents=incidents,
        open_incidents=cluster_tables.incident_table(reading).rows,
        absent=absent,
    )


def _gpu_counts(reading: ClusterReading) -> dict[str, float] | None:
    """Return GPUs in all, claimed, used without a claim and idle; None if they are unknown."""
    total, share, reporting, unclaimed = (
        reading.value(f"railscope_cluster_{name}")
        for name in ("gpus", "mean_gpu_claimed_ratio", "count_gpu_claimed", "unclaimed_gpus")
    )
    if total is None:
        return None
    if share is None:
        return {"total": total}
    known = total if reporting is None else reporting
    unknown = {"unknown": total - known} if known < total else {}
    return {"total": total} | _use_counts(known, known * share, unclaimed) | unknown


def _use_counts(gpus: float, claimed: float, unclaimed: float | None) -> dict[str, float]:
    """Return GPUs by their use; without the number of unclaimed ones the rest may be used or idle."""
    if unclaimed is None:
        return {"claimed": round(claimed, 2), "not_claimed": round(gpus - claimed, 2)}
    idle = max(gpus - claimed - unclaimed, 0.0)
    counts = {"claimed": claimed, UNCLAIMED: unclaimed, "idle": idle}
    return {name: round(count, 2) for name, count in counts.items()}


def _cluster_reasons(
    reading: ClusterReading, nodes: tables.ClientTable, absent: dict[str, str]
) -> Iterator[StatusReason]:
    for name in ("nodes", "incidents", "jobs"):
        if name in absent and not (reading.is_tenant and name == "nodes"):
            yield StatusReason(OverallStatus.UNKNOWN, f"{name}: {absent[name]}")
    if reading.not_ready:
        yield StatusReason(
            OverallStatus.DEGRADED, f"the collector is not ready: {reading.not_ready}"
        )
    for incident in reading.open_incidents:
        if incident.explained_by is None and incident.severity != "info":
            is_critical = incident.severity == "critical"
            status = OverallStatus.FAILED if is_critical else OverallStatus.DEGRADED
            yield StatusReason(status, incident.title, is_incident=True)
    yield from _node_reasons(reading, nodes)
    if not nodes.absence and not nodes.rows:
        yield StatusReason(OverallStatus.UNKNOWN, "no node has ever reported")
    if reading.is_tenant and "jobs" not in absent:
        yield from _job_reasons(reading.document("jobs").rows)


def _node_reasons(reading: ClusterReading, nodes: tables.ClientTable) -> Iterator[StatusReason]:
    # A critical incident of the node is a reason of its own.
    stated = {
        incident.id
        for incident in reading.open_incidents
        if incident.severity == "critical" and incident.explained_by is None
    }
    failed = [
        row
        for row in nodes.rows
        if row["state"] == "failed" and stated.isdisjoint(row["incidents"])
    ]
    if failed:
        names = _names([f"{row['node']}: {row['reason']}" for row in failed], "; ")
        yield StatusReason(OverallStatus.FAILED, names)
    never = [row["node"] for row in nodes.rows if row["reason"] == cluster_tables.NEVER_REPORTED]
    not_reporting = [row["node"] for row in nodes.rows if not row["is_reporting"]]
    stale = [name for name in not_reporting if name not in never]
    if len(not_reporting) == len(nodes.rows) > 0 and stale:
        yield StatusReason(OverallStatus.UNKNOWN, "no node reports")
    elif stale:
        yield StatusReason(OverallStatus.DEGRADED, f"stale: {_names(stale)}")
    if never and not nodes.notes:
        yield StatusReason(
            OverallStatus.DEGRADED, f"{cluster_tables.NEVER_REPORTED}: {_names(never)}"
        )
    no_state = NO_STATE.format("nodes")
    if any(row["reason"] == no_state for row in nodes.rows):
        yield StatusReason(OverallStatus.UNKNOWN, f"nodes: {no_state}")


def _job_reasons(jobs: Sequence[api.Job]) -> Iterator[StatusReason]:
    for job in jobs:
        if job.stale_gpus:
            text = f"job {job.workload}: {job.stale_gpus} of {tables.show_number(job.gpus)} GPUs are on stale nodes"
            yield StatusReason(OverallStatus.DEGRADED, text)


def _names(names: Sequence[str], separator: str = ", ") -> str:
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return f"{separator.join(names[:_MAX_LISTED])}{more}"


# Of a node ---------------------------------------------------------------------------------------


def agent_report(server: str, reading: AgentReading) -> StatusReport:
    """Return the status of a node, from the verdicts of its agent."""
    health = Counter(gpu.health for gpu in reading.gpus)
    reasons = [*_agent_reasons(reading)]
    shares = {gpu.gpu: reading.values.get((CLAIMED, gpu.gpu)) for gpu in reading.gpus}
    known = {gpu: share for gpu, share in shares.items() if share is not None}
    gpus: dict[str, float] = {"total": len(reading.gpus)}
    gpus |= {state: health[state] for state in ("healthy", "degraded", "failed", "unknown")}
    if known:
        used = [gpu for gpu in reading.gpus if gpu.gpu in known]
        unclaimed = sum(1 - known[gpu.gpu] for gpu in used if gpu.unclaimed_processes)
        is_known = all(gpu.unclaimed_processes is not None for gpu in used)
        gpus |= _use_counts(len(known), sum(known.values()), unclaimed if is_known else None)
    return StatusReport(
        server,
        "agent",
        reasons,
        reading.sent_ns,
        age_seconds=reading.age_seconds,
        gpus=gpus,
        absent={}
        if reading.age_seconds is not None
        else {"age_seconds": "the agent exposes no age of its sources"},
    )


def _agent_reasons(reading: AgentReading) -> Iterator[StatusReason]:
    if not reading.gpus:
        yield StatusReason(OverallStatus.UNKNOWN, "the agent reports no GPU")
    for gpu in reading.gpus:
        if gpu.health != "healthy":
            reason = ", ".join(map(reason_text, gpu.reasons)) or "no reason is reported"
            text = f"GPU {gpu.index or gpu.gpu}: {reason}"
            yield StatusReason(OverallStatus[gpu.health.upper()], text)
    for gpu in reading.gpus:
        if gpu.link_up is False:
            text = f"rail {gpu.rail}: the link of {', '.join(gpu.nics)} is down"
            yield StatusReason(OverallStatus.DEGRADED, text)
    for source in reading.failed_sources:
        yield StatusReason(OverallStatus.DEGRADED, f"source {source} cannot be read")
    if reading.age_seconds is not None and reading.age_seconds > reading.max_age_seconds:
        yield StatusReason(
            OverallStatus.UNKNOWN, f"stale: read {tables.show_age(reading.age_seconds)} ago"
        )
