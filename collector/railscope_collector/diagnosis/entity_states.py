"""States of nodes, of their rails and of running jobs, decided here for the console and the API; worst first.

failed    the cause of an open critical incident is here, or a GPU has failed
unknown   the node is stale, or its incidents are not known now
degraded  the cause of a warning or of a symptom is here, or a victim of an open incident
healthy   fresh data, a current diagnosis, and none of these

A stale node is unknown, never healthy and never failed. Incidents of severity `info` (advice, and what no host can locate)
change no state.

A running job is unknown while incidents are not known, else degraded if an open incident touches it, else unknown if GPUs
of it are on stale nodes, else healthy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from railscope.catalog import collector as catalog, incidents as incident_catalog
from railscope.timestamps import SECOND_NS, format_timestamp
from railscope_collector.diagnosis import incident_report as report
from railscope_collector.diagnosis.incident_classes import Severity
from railscope_collector.diagnosis.incident_table import IncidentTable, ReportedIncident
from railscope_collector.fleet.view_cells import View, ViewCell
from railscope_collector.workloads.job_roster import JobKey

FAILED, UNKNOWN, DEGRADED, HEALTHY = STATES = catalog.NODE_STATES
"""Worst first."""
LETTERS = {FAILED: "F", UNKNOWN: "U", DEGRADED: "D", HEALTHY: ".", "": "-"}
"""State of a rail as one letter; `-` for a rail without a GPU and a NIC."""
_MAX_INCIDENTS = 20
"""Incidents that the row of a node or of a job has."""
STATES_BY_LETTER = {letter: state for state, letter in LETTERS.items()}
_RANKS = {state: rank for rank, state in enumerate(STATES)}
_WHOLE = ""
"""Key of the mark of a whole node among those of its rails."""
NOT_DIAGNOSED = "nothing has been diagnosed yet, or the diagnosis is disabled"
NO_DATA = frozenset({"agent_partition"})
"""Classes whose cause is a node that may be well: its data is missing."""


class NodeRow(msgspec.Struct, frozen=True):
    """State of one node; times are null while they are not known."""

    name: str
    state: str
    reason: str
    """Reason of the state, in words; empty for `healthy`."""
    since_ns: int | None
    age_seconds: float | None
    """Age of the newest frame."""
    gpus: int
    rails: str
    """State of each rail, a letter each, from rail 0 on."""
    incidents: tuple[str, ...]
    """The first ones, causes before symptoms."""

    def state_document(self) -> dict[str, object]:
        """Return the state as the API has it."""
        names = ("state", "reason", "since_ns", "incidents")
        return {name: getattr(self, name) for name in names}


@dataclass(slots=True)
class NodeMarks:
    """Statements of the open incidents about one node: a state by rail, and the incidents with the part of the node in them."""

    rails: dict[str, str] = field(default_factory=dict)
    incidents: dict[str, tuple[str, ReportedIncident]] = field(default_factory=dict)

    def add(self, rail: object, state: str, part: str, incident: ReportedIncident) -> None:
        """Mark a rail, or the whole node (no rail); the worse state counts, and the first part."""
        key = _WHOLE if rail is None else str(rail)
        self.rails[key] = min(state, self.rails.get(key, HEALTHY), key=_RANKS.__getitem__)
        self.incidents.setdefault(incident.document.id, (part, incident))

    @property
    def state(self) -> str:
        """The worst state of the node."""
        return min(self.rails.values(), key=_RANKS.__getitem__, default=HEALTHY)


def diagnosis_problem(diagnosed_ns: int, now_ns: int) -> str:
    """Return why incidents are not known now, by the time of the last evaluation; empty if they are."""
    if not diagnosed_ns:
        return NOT_DIAGNOSED
    if now_ns - diagnosed_ns <= incident_catalog.MAX_DIAGNOSIS_AGE_SECONDS * SECOND_NS:
        return ""
    since = format_timestamp(diagnosed_ns, "seconds")
    return (
        f"not diagnosed since {since}: the log of the collector has the reason (diagnosis_failed)"
    )


def marks_of(
    incidents: Iterable[ReportedIncident], gpu_rails: Mapping[str, Mapping[int, str]]
) -> dict[str, NodeMarks]:
    """Return the marks of all nodes; `gpu_rails` has the GPU of each rail by node."""
    marks: dict[str, NodeMarks] = {}

    def add(node: str, rail: object, state: str, part: str, incident: ReportedIncident) -> None:
        marks.setdefault(node, NodeMarks()).add(rail, state, part, incident)

    for incident in incidents:
        document = incident.document
        if not incident.is_open or document.severity == Severity.INFO:
            continue
        is_critical = incident.is_root and document.severity == Severity.CRITICAL
        caused = FAILED if is_critical else DEGRADED
        if document.incident_class in NO_DATA:
            caused = DEGRADED
        part = "cause" if incident.is_root else "symptom"
        for node, rail in _places(document.cause, gpu_rails):
            add(node, rail, caused, part, incident)
        for nic in incident.victim_nics:
            add(nic.node, nic.rail, DEGRADED, "victim", incident)
        for nodes in incident.tenant_nodes.values():
            for node in nodes:
                add(node, None, DEGRADED, "victim", incident)
    return marks


def _places(
    entity: report.EntityDocument, gpu_rails: Mapping[str, Mapping[int, str]]
) -> Iterator[tuple[str, int | None]]:
    """Yield nodes and rails of an entity; no rail stands for the whole node."""
    match entity:
        case report.NicDocument():
            yield entity.node, entity.rail
        case report.GpuDocument():
            rails = gpu_rails.get(entity.node, {}).items()
            yield entity.node, next((rail for rail, uuid in rails if uuid == entity.uuid), None)
        case report.NodeDocument():
            yield entity.node, None
        case report.RackDocument():
            yield from ((node, None) for node in entity.nodes)


def node_rows(
    nodes: View,
    table: IncidentTable,
    gpu_rails: Mapping[str, Mapping[int, str]],
    failed_gpus: Mapping[str, Mapping[str, str]],
) -> list[NodeRow]:
    """Return all nodes of the view of nodes, worst first; `failed_gpus` has names by node and UUID."""
    problem = diagnosis_problem(table.timestamp_ns, nodes.timestamp_ns)
    marks = marks_of(table.incidents, gpu_rails)
    ages = {
        cell.labels[0]: max(cell.value, 0.0)
        for cell in nodes.cells
        if cell.metric is catalog.NODE_AGE
    }
    rows = [
        _row(
            cell,
            ages.get(cell.labels[0]),
            marks.get(cell.labels[0], NodeMarks()),
            gpu_rails.get(cell.labels[0], {}),
            failed_gpus.get(cell.labels[0], {}),
            nodes.timestamp_ns,
            problem,
        )
        for cell in nodes.cells
        if cell.metric is catalog.NODE_UP
    ]
    return sorted(rows, key=_urgency)


@dataclass(slots=True)
class NodeRanking:
    """Keeps the rows of the newest views and incidents: one value, as threads replace it while others read it."""

    _latest: tuple[tuple[int, int], tuple[NodeRow, ...]] = ((-1, -1), ())

    def rows(
        self,
        nodes: View,
        table: IncidentTable,
        gpu_rails: Mapping[str, Mapping[int, str]],
        failed_gpus: Mapping[str, Mapping[str, str]],
    ) -> tuple[NodeRow, ...]:
        """Return the result of `node_rows`, computed again if the views or the incidents are others."""
        version, latest = (nodes.timestamp_ns, table.timestamp_ns), self._latest
        if latest[0] != version:
            latest = self._latest = version, tuple(node_rows(nodes, table, gpu_rails, failed_gpus))
        return latest[1]


def _urgency(row: NodeRow) -> tuple[int, bool, int, int, str]:
    return (
        _RANKS[row.state],
        not row.incidents,
        -row.rails.count(LETTERS[FAILED]),
        -row.rails.count(LETTERS[DEGRADED]),
        row.name,
    )


def _row(  # noqa: PLR0913, PLR0917 - the facts about one node
    reporting: ViewCell,
    age_seconds: float | None,
    marks: NodeMarks,
    gpus: Mapping[int, str],
    failed: Mapping[str, str],
    now_ns: int,
    problem: str,
) -> NodeRow:
    """Return the row of a node; `reporting` is 1 if its frames are fresh, `problem` why it is not diagnosed."""
    is_stale = not reporting.value
    state = marks.state
    found = sorted(
        marks.incidents.values(),
        key=lambda each: (each[0], each[1].document.severity, each[1].onset_ns),
    )
    since_ns = min((each.onset_ns for _, each in found), default=None)
    reasons = [f"{part} of {each.document.title}" for part, each in found]
    if is_stale:
        state = UNKNOWN
        since_ns = round(now_ns - age_seconds * SECOND_NS) if age_seconds is not None else None
        since = format_timestamp(since_ns // SECOND_NS * SECOND_NS, "seconds") if since_ns else ""
        reasons.insert(
            0, f"stale since {since}" if since else "no frames since the collector started"
        )
    elif problem:
        state, reasons, since_ns = UNKNOWN, [problem], None
    if failed and not is_stale:
        state = FAILED
        reasons.insert(0, f"{', '.join(sorted(failed.values()))} failed")
    reason = "; ".join(reasons[:2] if is_stale or failed else reasons[:1])
    more = len(reasons) - (2 if is_stale or failed else 1)
    highest = max([*gpus, *(int(rail) for rail in marks.rails if rail.isdecimal())], default=-1)
    is_unknown = is_stale or bool(problem)
    return NodeRow(
        reporting.labels[0],
        state,
        f"{reason} and {more} more" if more > 0 else reason,
        since_ns,
        age_seconds,
        len(gpus),
        "".join(
            _letter(
                rail,
                gpus,
                marks,
                is_unknown=is_unknown,
                has_failed=not is_stale and gpus.get(rail) in failed,
            )
            for rail in range(min(highest + 1, 64))
        ),
        tuple(each.document.id for _, each in found[:_MAX_INCIDENTS]),
    )


def _letter(
    rail: int, gpus: Mapping[int, str], marks: NodeMarks, *, is_unknown: bool, has_failed: bool
) -> str:
    """Return the state of a rail: that of its GPU, else its own, else that of the node as a whole."""
    if has_failed:
        return LETTERS[FAILED]
    marked = marks.rails.get(str(rail), "")
    whole = marks.rails.get(_WHOLE, HEALTHY)
    if is_unknown:
        return LETTERS[UNKNOWN]
    if whole != FAILED and not marked and rail not in gpus:
        return LETTERS[""]
    return LETTERS[min(marked or HEALTHY, whole, key=_RANKS.__getitem__)]


class DecidedJobState(msgspec.Struct, frozen=True):
    """State of one running job, as the API has it."""

    state: str
    reason: str
    """Reason of the state, in words; empty for `healthy`."""
    incidents: tuple[str, ...]
    """The first open incidents that touch the job, causes before symptoms."""


@dataclass(frozen=True, slots=True)
class JobStates:
    """States of the running jobs by the incidents that one reader may see."""

    touching: Mapping[JobKey, Sequence[ReportedIncident]]
    """Open incidents by job, the most urgent ones first; those of severity info touch none."""
    problem: str = ""
    """Reason why incidents are not known now; empty if they are."""

    @classmethod
    def from_incidents(cls, incidents: Iterable[ReportedIncident], problem: str) -> JobStates:
        """Return the states by these incidents."""
        touching = defaultdict(list)
        open_incidents = (each for each in incidents if each.is_open)
        for incident in sorted(open_incidents, key=_incident_urgency):
            if incident.document.severity != Severity.INFO:
                for job in incident.jobs:
                    touching[_key(job)].append(incident)
        return cls(dict(touching), problem)

    def find(self, key: JobKey, stale_gpus: int) -> DecidedJobState:
        """Return the state of a job with a number of GPUs on stale nodes."""
        touching = self.touching.get(key, ())
        state, reason = HEALTHY, ""
        if self.problem:
            state, reason = UNKNOWN, self.problem
        elif touching:
            cause = touching[0].document.cause
            is_cause = isinstance(cause, report.JobDocument) and _key(cause) == key
            state = DEGRADED
            reason = f"{'cause' if is_cause else 'victim'} of {touching[0].document.title}"
            reason += f" and {len(touching) - 1} more" if len(touching) > 1 else ""
        elif stale_gpus:
            state, reason = UNKNOWN, f"{stale_gpus} of its GPUs are on stale nodes"
        return DecidedJobState(
            state, reason, tuple(each.document.id for each in touching[:_MAX_INCIDENTS])
        )


def _key(job: report.JobDocument) -> JobKey:
    return JobKey(job.tenant, job.source, job.workload)


def _incident_urgency(incident: ReportedIncident) -> tuple[bool, str, int]:
    return not incident.is_root, incident.document.severity, incident.onset_ns
