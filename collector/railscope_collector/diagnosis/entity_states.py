"""States of nodes, of GPUs, of their NICs, and of running jobs, decided here for the console and the API; worst first.

failed    the cause of an open critical incident is here, or a GPU has failed
unknown   the node is stale, its incidents are not known now, or a GPU has no verdict
degraded  the cause of a warning or of a symptom is here, or a GPU is degraded by the verdict of its agent
healthy   fresh data, a current diagnosis, and none of these

A state belongs to the device or node that has the fault. What is only a victim of an incident elsewhere keeps its own state,
with the identity of that incident. A node has the worst state of its own and of its devices; a GPU without a verdict does not
change it. A stale node is unknown, never healthy and never failed. Incidents of severity `info` (advice, and what no host can
locate) change no state.

A running job is unknown while incidents are not known, else degraded if an open incident touches it, else unknown if GPUs
of it are on stale nodes, else healthy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import msgspec

from railscope import api, figures
from railscope.api.status import WORST_FIRST, rank, worst
from railscope.catalog import incidents as incident_catalog
from railscope.timestamps import SECOND_NS, utc_text
from railscope_collector.diagnosis.incident_classes import Severity
from railscope_collector.diagnosis.incident_table import (
    IncidentTable,
    ReportedIncident,
    worst_first,
)
from railscope_collector.workloads.job_roster import JobKey

FAILED, UNKNOWN, DEGRADED, HEALTHY = STATES = WORST_FIRST
LETTERS = {FAILED: "F", UNKNOWN: "U", DEGRADED: "D", HEALTHY: ".", "victim": "v", "": "-"}
"""State of a cell, the GPU and the NIC of one rail of a node, as one letter; `-` for a rail without both."""
STATES_BY_LETTER = {letter: state for state, letter in LETTERS.items()} | {"v": HEALTHY}
GPU, NIC = "gpu", "nic"
MAX_RAILS = 64
_MAX_INCIDENTS = 20
"""Incidents that the row of a node or of a job has."""
NOT_DIAGNOSED = "nothing has been diagnosed yet, or the diagnosis is disabled"
MAX_VIEW_AGE_SECONDS = 60.0
"""Age from which views are stale; a collector computes them every few seconds."""
GpuRails = Mapping[str, Mapping[int, str]]
"""UUID of the GPU on each rail by node; GPUs without a rail have a negative key."""


@dataclass(slots=True)
class CellMarks:
    """Statements of the open incidents about the GPU and the NIC of one rail."""

    gpu: str = HEALTHY
    """State of the GPU alone: a link that is down is no reason to reset its GPU."""
    nic: str = HEALTHY
    of_gpu: dict[str, ReportedIncident] = field(default_factory=dict)
    """Incidents caused here, by the GPU or by both."""
    of_nic: dict[str, ReportedIncident] = field(default_factory=dict)
    """Those of the NIC alone."""
    victim_of: dict[str, ReportedIncident] = field(default_factory=dict)

    @property
    def state(self) -> str:
        """Worst state of the GPU and the NIC."""
        return worst(self.gpu, self.nic)

    def add(
        self, number: str, incident: ReportedIncident, caused: str, kinds: Container[str]
    ) -> None:
        """Add an incident that is caused here, by devices of these kinds."""
        (self.of_gpu if GPU in kinds else self.of_nic)[number] = incident
        if GPU in kinds:
            self.gpu = worst(self.gpu, caused)
        if NIC in kinds:
            self.nic = worst(self.nic, caused)


@dataclass(slots=True)
class NodeMarks:
    """Statements of the open incidents about one node and its cells."""

    state: str = HEALTHY
    """The worst state that an incident gives to the node or to a device of it."""
    whole: CellMarks = field(default_factory=CellMarks)
    """Those about the node as a whole, which all of its cells share."""
    cells: dict[int, CellMarks] = field(default_factory=dict)
    """By rail; the key of a GPU without a rail is negative."""
    incidents: dict[str, tuple[str, ReportedIncident]] = field(default_factory=dict)
    """Incidents caused on this node, each with the part of the node in it: cause or symptom."""
    victim_of: dict[str, ReportedIncident] = field(default_factory=dict)

    def explained_by(self, key: int, verdict: str) -> Iterator[str]:
        """Yield the incidents whose cause is the GPU of a cell, if the verdict on it is no better than they are."""
        cell = self.cells.get(key, CellMarks())
        if worst(verdict, cell.gpu) == verdict:
            for number, each in cell.of_gpu.items():
                if isinstance(each.document.cause, api.GpuDocument):
                    yield number

    def cell(self, key: int) -> CellMarks:
        """Return the marks of a rail, with those of the node as a whole."""
        found, whole = self.cells.get(key, CellMarks()), self.whole
        return CellMarks(
            worst(found.gpu, whole.gpu),
            worst(found.nic, whole.nic),
            found.of_gpu | whole.of_gpu,
            found.of_nic | whole.of_nic,
            found.victim_of,
        )


def view_problem(computed_ns: int, now_ns: int) -> str:
    """Return why no state is known now, by the time of the views; empty if they are current, or have not been computed."""
    age = (now_ns - computed_ns) / SECOND_NS
    if not computed_ns or age <= MAX_VIEW_AGE_SECONDS:
        return ""
    return f"the views are stale: computed {figures.duration(round(age, 1))} ago"


def diagnosis_problem(diagnosed_ns: int, now_ns: int) -> str:
    """Return why incidents are not known now, by the time of the last evaluation; empty if they are."""
    if not diagnosed_ns:
        return NOT_DIAGNOSED
    if now_ns - diagnosed_ns <= incident_catalog.MAX_DIAGNOSIS_AGE_SECONDS * SECOND_NS:
        return ""
    since = utc_text(diagnosed_ns)
    return (
        f"not diagnosed since {since}: the log of the collector has the reason (diagnosis_failed)"
    )


def marks_of(
    incidents: Iterable[ReportedIncident], gpu_rails: GpuRails
) -> defaultdict[str, NodeMarks]:
    """Return the marks of all nodes."""
    marks: defaultdict[str, NodeMarks] = defaultdict(NodeMarks)
    for incident in incidents:
        document, number = incident.document, incident.document.id
        if not incident.is_open or document.severity == Severity.INFO:
            continue
        is_critical = incident.is_root and document.severity == Severity.CRITICAL
        caused, part = (
            FAILED if is_critical else DEGRADED,
            "cause" if incident.is_root else "symptom",
        )
        for node, place, kinds in _places(incident, gpu_rails):
            of_node = marks[node]
            of_node.state = worst(of_node.state, caused)
            of_node.incidents.setdefault(number, (part, incident))
            if place is None:
                continue
            cell = (
                of_node.whole if place == _WHOLE else of_node.cells.setdefault(place, CellMarks())
            )
            cell.add(number, incident, caused, kinds)
        for nic in incident.victim_nics:
            marks[nic.node].victim_of[number] = incident
            if nic.rail is not None:
                cells = marks[nic.node].cells
                cells.setdefault(nic.rail, CellMarks()).victim_of[number] = incident
        for node in set[str]().union(*incident.tenant_nodes.values()):
            marks[node].victim_of[number] = incident
    return marks


_WHOLE = -(1 << 62)
"""Place of a node as a whole."""


def _places(
    incident: ReportedIncident, gpu_rails: GpuRails
) -> Iterator[tuple[str, int | None, tuple[str, ...]]]:
    """Yield nodes with the key of the cell of a cause, None for a device without a cell, and the kinds of its devices."""
    cause = incident.document.cause
    devices = [_place(part, gpu_rails) for part in incident.parts]
    match cause:
        case api.NicDocument() | api.GpuDocument():
            yield _place(cause, gpu_rails)
        case api.NodeDocument() | api.RackDocument():
            nodes = (cause.node,) if isinstance(cause, api.NodeDocument) else cause.nodes
            for node in nodes:
                # Only the devices that show the fault, if the incident names them.
                found = [each for each in devices if each[0] == node]
                yield from found or [(node, _WHOLE, (GPU, NIC))]


def _place(
    device: api.NicDocument | api.GpuDocument, gpu_rails: GpuRails
) -> tuple[str, int | None, tuple[str, ...]]:
    if isinstance(device, api.NicDocument):
        return device.node, device.rail, (NIC,)
    rails = gpu_rails.get(device.node, {}).items()
    return device.node, next((key for key, uuid in rails if uuid == device.uuid), None), (GPU,)


class GpuVerdict(NamedTuple):
    """Verdict of an agent on a GPU."""

    state: str
    name: str = ""
    """Name of a failed or degraded GPU in words."""
    fault: str = ""
    """First reason of its verdict, in words."""

    @property
    def is_ill(self) -> bool:
        """True for a failed or degraded GPU."""
        return self.state in {FAILED, DEGRADED}


Verdicts: TypeAlias = Mapping[int, GpuVerdict]
"""Verdicts on the GPUs of a node by rail; GPUs without a rail have a negative key."""


def describe_gpus(verdicts: Iterable[GpuVerdict]) -> str:
    """Return the names of failed or degraded GPUs, each fault once: `GPU 4: uncorrectable memory error`."""
    names: defaultdict[str, list[str]] = defaultdict(list)
    for each in verdicts:
        names[f": {each.fault}" if each.fault else f" {each.state}"].append(each.name)
    return ", ".join(sorted(f"{', '.join(sorted(of))}{text}" for text, of in names.items()))


def decide_nodes(
    nodes: Iterable[tuple[api.Node, Verdicts]],
    gpu_rails: GpuRails,
    table: IncidentTable,
    now_ns: int,
) -> list[api.Node]:
    """Return nodes with their states, worst first."""
    problem = diagnosis_problem(table.timestamp_ns, now_ns)
    marks = marks_of(table.incidents, gpu_rails)
    rows = (
        _decide_node(node, verdicts, marks.get(node.node, NodeMarks()), now_ns, problem)
        for node, verdicts in nodes
    )
    return sorted(rows, key=_urgency)


def _urgency(row: api.Node) -> tuple[int, bool, int, int, bool, str]:
    return (
        rank(row.state),
        not row.incidents,
        -row.rails.count(LETTERS[FAILED]),
        -row.rails.count(LETTERS[DEGRADED]),
        not row.victim_of,
        row.node,
    )


def _decide_node(
    node: api.Node, verdicts: Verdicts, marks: NodeMarks, now_ns: int, problem: str
) -> api.Node:
    """Return a node with its state; `problem` is why it is not diagnosed."""
    is_stale, age_seconds = not node.reporting, node.age_seconds
    found = sorted(
        marks.incidents.values(),
        key=lambda each: (each[0], each[1].document.severity, each[1].onset_ns),
    )
    victim_of = [each for key, each in marks.victim_of.items() if key not in marks.incidents]
    since_ns = min((each.onset_ns for _, each in found), default=None)
    by_agent = worst(HEALTHY, *(each.state for each in verdicts.values() if each.is_ill))
    if is_stale or (problem and by_agent != FAILED):
        by_agent = HEALTHY
    ill = {key: each for key, each in verdicts.items() if each.state == by_agent != HEALTHY}
    # The verdict on a GPU names the fault of the incidents that this GPU causes.
    explained = {number for key in ill for number in marks.explained_by(key, by_agent)}
    reasons = [
        f"{part} of {each.reason(is_fresh=not is_stale)}"
        for part, each in found
        if each.document.id not in explained
    ]
    state, shown = worst(marks.state, HEALTHY), 1
    if is_stale:
        state, shown = UNKNOWN, 2
        since_ns = round(now_ns - age_seconds * SECOND_NS) if age_seconds is not None else None
        since = utc_text(since_ns) if since_ns else ""
        reasons.insert(
            0, f"stale since {since}" if since else "no frames since the collector started"
        )
    elif problem:
        state, reasons, since_ns = UNKNOWN, [problem], None
    if ill:
        state, shown = worst(state, by_agent), 2
        reasons.insert(0, describe_gpus(ill.values()))
    if state == HEALTHY:
        reasons = [f"affected by {each.document.title}" for each in victim_of]
    more = len(reasons) - shown
    reason = "; ".join(reasons[:shown])
    keys = [*verdicts, *marks.cells]
    letters = (
        _cell_letter(verdicts.get(rail), marks, rail, is_fresh=not is_stale, is_known=not problem)
        for rail in range(min(max(keys, default=-1) + 1, MAX_RAILS))
    )
    return msgspec.structs.replace(
        node,
        state=state,
        reason=f"{reason} and {more} more" if more > 0 else reason,
        since_ns=since_ns,
        rails="".join(letters),
        incidents=tuple(each.document.id for _, each in found[:_MAX_INCIDENTS]),
        victim_of=tuple(each.document.id for each in victim_of[:_MAX_INCIDENTS]),
    )


def unknown_row(row: api.Node, problem: str) -> api.Node:
    """Return the row of a node while no state is known."""
    rails = "".join(each if each == LETTERS[""] else LETTERS[UNKNOWN] for each in row.rails)
    return msgspec.structs.replace(row, state=UNKNOWN, reason=problem, since_ns=None, rails=rails)


def device_state(caused: str, verdict: str, *, is_fresh: bool, is_known: bool) -> str:
    """Return a state by the incidents that are caused there and the verdict of the agent.

    A failure that the agent reports stays true with or without a diagnosis (`is_known`).
    """
    if not is_fresh:
        return UNKNOWN
    if verdict == FAILED:
        return FAILED
    return worst(verdict, caused) if is_known else UNKNOWN


def _cell_letter(
    gpu: GpuVerdict | None, marks: NodeMarks, rail: int, *, is_fresh: bool, is_known: bool
) -> str:
    """Return the state of a cell as a letter; without a GPU, the NIC alone has a state, which is that of its incidents."""
    cell = marks.cell(rail)
    if gpu is None and rail not in marks.cells and cell.state == HEALTHY:
        return LETTERS[""]
    verdict = HEALTHY if gpu is None else gpu.state
    state = device_state(cell.state, verdict, is_fresh=is_fresh, is_known=is_known)
    return LETTERS["victim" if state == HEALTHY and cell.victim_of else state]


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
        for incident in worst_first(each for each in incidents if each.is_open):
            if incident.document.severity != Severity.INFO:
                for job in incident.jobs:
                    touching[_key(job)].append(incident)
        return cls(dict(touching), problem)

    def state_of(self, key: JobKey, stale_gpus: int) -> str:
        """Return the state of a running job with a number of GPUs on stale nodes."""
        if self.problem:
            return UNKNOWN
        if key in self.touching:
            return DEGRADED
        return UNKNOWN if stale_gpus else HEALTHY

    def decide(self, row: api.Job) -> api.Job:
        """Return a running job with its state."""
        key = _key(row)
        touching, state = self.touching.get(key, ()), self.state_of(key, row.stale_gpus)
        reason = self.problem
        if state == DEGRADED:
            cause = touching[0].document.cause
            is_cause = isinstance(cause, api.JobDocument) and _key(cause) == key
            reason = f"{'cause of' if is_cause else 'affected by'} {touching[0].document.title}"
            reason += f" and {len(touching) - 1} more" if len(touching) > 1 else ""
        elif state == UNKNOWN and not reason:
            reason = f"{row.stale_gpus} of its GPUs are on stale nodes"
        numbers = tuple(each.document.id for each in touching[:_MAX_INCIDENTS])
        return msgspec.structs.replace(row, state=state, reason=reason, incidents=numbers)


def _key(job: api.JobDocument | api.Job) -> JobKey:
    return JobKey(job.tenant, job.source, job.workload)
