"""Status of the cluster, as the API, the console, `railscope status` and the demo show it.

Unknown is never healthy: what is absent or stale makes unknown what it would show.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from railscope import api, figures
from railscope.api.status import Status, StatusReason, worst
from railscope.timestamps import SECOND_NS
from railscope_collector import view_refresh
from railscope_collector.diagnosis import entity_states
from railscope_collector.diagnosis.incident_classes import Severity
from railscope_collector.inventory.inventory_view import NEVER_REPORTED

CLAIMS_UNKNOWN = "the claims of GPUs cannot be determined"
MAX_INCIDENTS = 10
_MAX_NAMED = 5
_TENANT = "the credentials are those of a tenant: own GPUs, jobs and incidents only"


@dataclass(frozen=True, slots=True)
class VisibleFacts:
    """Facts about the cluster that one reader may see, at one time."""

    now_ns: int
    nodes: Sequence[api.Node] | None
    """None for a tenant."""
    gpus: api.GpuList
    incidents: api.IncidentList
    """Open ones, the most urgent first."""
    jobs: int | None
    """Running jobs; None while the claims of GPUs are not known."""
    not_ready: str = ""
    """Reason why the collector is not ready; empty if it is."""

    @property
    def age_seconds(self) -> float | None:
        """Age of the views; None if they have not been computed."""
        at_ns = self.gpus.timestamp_ns
        return (self.now_ns - at_ns) / SECOND_NS if at_ns else None


def make_status(facts: VisibleFacts) -> Status:
    """Return the status by what a reader may see."""
    absent = _absent(facts)
    roots = tuple(one for one in facts.incidents.rows if one.explained_by is None)
    reasons = tuple(_reasons(facts, roots, absent))
    states = Counter(row.state for row in facts.nodes or ())
    severities = Counter(one.severity for one in roots)
    known: dict[str, Any] = {
        "nodes": {state: states[state] for state in reversed(entity_states.STATES)},
        "gpus": facts.gpus.use,
        "jobs": facts.jobs,
        "incidents": {each.value: severities[each] for each in reversed(Severity)},
    }
    return Status(
        status=worst(*(reason.status for reason in reasons)),
        reasons=reasons,
        age_seconds=facts.age_seconds,
        open_incidents=roots[:MAX_INCIDENTS],
        absent=absent,
        **{name: value for name, value in known.items() if name not in absent},
    )


def _absent(facts: VisibleFacts) -> dict[str, str]:
    """Return the reason for each figure that is not known."""
    at_ns, absent = facts.gpus.timestamp_ns, {}
    stale = entity_states.view_problem(at_ns, facts.now_ns)
    if not at_ns or stale:
        absent = dict.fromkeys(("nodes", "gpus", "jobs"), stale or view_refresh.NOT_COMPUTED)
    elif facts.jobs is None:
        absent["jobs"] = CLAIMS_UNKNOWN
    if facts.nodes is None:
        absent["nodes"] = _TENANT
    if problem := entity_states.diagnosis_problem(facts.incidents.timestamp_ns, facts.now_ns):
        absent["incidents"] = problem
    return absent


def _reasons(
    facts: VisibleFacts, roots: Sequence[api.IncidentDocument], absent: Mapping[str, str]
) -> Iterator[StatusReason]:
    for reason in dict.fromkeys(absent.values()):
        if reason != _TENANT:
            about = [name for name, each in absent.items() if each == reason]
            yield StatusReason("unknown", f"{', '.join(about)}: {reason}")
    if facts.not_ready and facts.not_ready not in absent.values():
        yield StatusReason("degraded", f"the collector is not ready: {facts.not_ready}")
    urgent = [one for one in roots if one.severity != "info"]
    for one in urgent[:MAX_INCIDENTS]:
        yield StatusReason(_status_of(one), one.title)
    if more := urgent[MAX_INCIDENTS:]:
        yield StatusReason(_status_of(more[0]), figures.count(len(more), "more open incident"))
    if facts.nodes is not None and "nodes" not in absent:
        critical = {one.id for one in urgent if one.severity == "critical"}
        stated = {"failed": critical, "degraded": {one.id for one in facts.incidents.rows}}
        yield from _node_reasons(facts.nodes, stated)
    if facts.nodes is None and "gpus" not in absent and (unknown := facts.gpus.use["unknown"]):
        text = (
            f"{unknown} of {figures.count(facts.gpus.found, 'GPU')} of your jobs are on stale nodes"
        )
        yield StatusReason("degraded", text)


def _status_of(incident: api.IncidentDocument) -> str:
    return "failed" if incident.severity == "critical" else "degraded"


def _node_reasons(
    rows: Sequence[api.Node], stated: Mapping[str, set[str]]
) -> Iterator[StatusReason]:
    """Yield the reasons that nodes are; `stated` has the incidents that are reasons of their own, by state of their node."""
    if not rows:
        yield StatusReason("unknown", "no node has ever reported")
    for state, incidents in stated.items():
        ill = [row for row in rows if row.state == state and incidents.isdisjoint(row.incidents)]
        if ill:
            yield StatusReason(state, _names([f"{row.node}: {row.reason}" for row in ill], "; "))
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
