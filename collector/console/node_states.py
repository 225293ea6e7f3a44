"""States of nodes and of their rails, from the incidents and the age of data; worst first.

bad      the cause of an open incident is here
unknown  no fresh data, or no diagnosis, and nothing known to be bad
touched  a victim of an open incident is here, or the cause of a symptom
ok       fresh data, and neither of them

Incidents of severity `info` (advice, and what no host can locate) change no state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from collector.diagnosis import incident_report as report
from collector.diagnosis.incident_classes import Severity
from collector.diagnosis.incident_table import ReportedIncident
from collector.fleet.view_cells import View, ViewCell
from railscope.catalog import collector as catalog
from railscope.timestamps import SECOND_NS

BAD, UNKNOWN, TOUCHED, OK = "bad", "unknown", "touched", "ok"
STATES = (BAD, UNKNOWN, TOUCHED, OK)
"""Worst first."""
LETTERS = {BAD: "B", UNKNOWN: "U", TOUCHED: "T", OK: ".", "": "-"}
"""State of a rail as one letter; `-` for a rail without a GPU and a NIC."""
_MAX_INCIDENTS = 20
"""Incidents that the row of a node has."""
STATES_BY_LETTER = {letter: state for state, letter in LETTERS.items()}
_RANKS = {state: rank for rank, state in enumerate(STATES)}
_WHOLE = ""
"""Key of the mark of a whole node among those of its rails."""
NOT_DIAGNOSED = "nothing has been diagnosed yet, or the diagnosis is disabled"
_NO_DATA = frozenset({"agent_partition"})
"""Classes whose cause is a node that may be well: its data is missing."""


class NodeRow(msgspec.Struct, frozen=True):
    """State of one node; times are null while they are not known."""

    name: str
    state: str
    reason: str
    """Reason of the state, in words; empty for `ok`."""
    since_ns: int | None
    age_seconds: float | None
    """Age of the newest frame."""
    gpus: int
    rails: str
    """State of each rail, a letter each, from rail 0 on."""
    incidents: tuple[str, ...]
    """The first ones, causes before symptoms."""


@dataclass(slots=True)
class NodeMarks:
    """Statements of the open incidents about one node: a state by rail, and the incidents."""

    rails: dict[str, str] = field(default_factory=dict)
    incidents: dict[str, ReportedIncident] = field(default_factory=dict)

    def add(self, rail: object, state: str, incident: ReportedIncident) -> None:
        """Mark a rail, or the whole node (no rail); the worse state counts."""
        key = _WHOLE if rail is None else str(rail)
        self.rails[key] = min(state, self.rails.get(key, OK), key=_RANKS.__getitem__)
        self.incidents.setdefault(incident.document.id, incident)

    @property
    def state(self) -> str:
        """The worst state of the node."""
        return min(self.rails.values(), key=_RANKS.__getitem__, default=OK)


def marks_of(
    incidents: Iterable[ReportedIncident], gpu_rails: Mapping[str, Mapping[int, str]]
) -> dict[str, NodeMarks]:
    """Return the marks of all nodes; `gpu_rails` has the GPU of each rail by node."""
    marks: dict[str, NodeMarks] = {}

    def add(node: str, rail: object, state: str, incident: ReportedIncident) -> None:
        marks.setdefault(node, NodeMarks()).add(rail, state, incident)

    for incident in incidents:
        document = incident.document
        if not incident.is_open or document.severity == Severity.INFO:
            continue
        caused = BAD if incident.is_root else TOUCHED
        if document.incident_class in _NO_DATA:
            caused = UNKNOWN
        for node, rail in _places(document.cause, gpu_rails):
            add(node, rail, caused, incident)
        for nic in incident.victim_nics:
            add(nic.node, nic.rail, TOUCHED, incident)
        for nodes in incident.tenant_nodes.values():
            for node in nodes:
                add(node, None, TOUCHED, incident)
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
    incidents: Iterable[ReportedIncident],
    gpu_rails: Mapping[str, Mapping[int, str]],
    *,
    is_diagnosed: bool = True,
) -> list[NodeRow]:
    """Return all nodes of the view of nodes, worst first; without a diagnosis none of them is known to be well."""
    marks = marks_of(incidents, gpu_rails)
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
            nodes.timestamp_ns,
        )
        for cell in nodes.cells
        if cell.metric is catalog.NODE_UP
    ]
    if not is_diagnosed:
        rows = [_undiagnosed(row) if row.state == OK else row for row in rows]
    return sorted(rows, key=_urgency)


def _undiagnosed(row: NodeRow) -> NodeRow:
    rails = row.rails.replace(LETTERS[OK], LETTERS[UNKNOWN])
    return msgspec.structs.replace(row, state=UNKNOWN, reason=NOT_DIAGNOSED, rails=rails)


def _urgency(row: NodeRow) -> tuple[int, int, int, str]:
    return (
        _RANKS[row.state],
        -row.rails.count(LETTERS[BAD]),
        -row.rails.count(LETTERS[TOUCHED]),
        row.name,
    )


def _row(
    reporting: ViewCell,
    age_seconds: float | None,
    marks: NodeMarks,
    gpus: Mapping[int, str],
    now_ns: int,
) -> NodeRow:
    """Return the row of a node; `reporting` is 1 if its frames are fresh."""
    state = marks.state
    if not reporting.value:
        state = min(state, UNKNOWN, key=_RANKS.__getitem__)
    elif state == UNKNOWN:
        state = TOUCHED  # frames arrive again, and the incident has not been closed yet
    roots = sorted(marks.incidents.values(), key=lambda each: (not each.is_root, each.onset_ns))
    since_ns = min((each.onset_ns for each in roots), default=None)
    reason = roots[0].document.title if roots else ""
    if state == UNKNOWN and not roots:
        is_silent = age_seconds is None
        reason = "no frames since the collector started" if is_silent else "no fresh frames"
        since_ns = round(now_ns - age_seconds * SECOND_NS) if age_seconds is not None else None
    elif len(roots) > 1:
        reason += f" and {len(roots) - 1} more"
    highest = max([*gpus, *(int(rail) for rail in marks.rails if rail.isdecimal())], default=-1)
    return NodeRow(
        reporting.labels[0],
        state,
        reason,
        since_ns,
        age_seconds,
        len(gpus),
        "".join(_letter(rail, gpus, marks, state) for rail in range(min(highest + 1, 64))),
        tuple(each.document.id for each in roots[:_MAX_INCIDENTS]),
    )


def _letter(rail: int, gpus: Mapping[int, str], marks: NodeMarks, state: str) -> str:
    """Return the state of a rail: its own, else that of the node as a whole."""
    marked = marks.rails.get(str(rail), "")
    whole = marks.rails.get(_WHOLE, OK)
    if state == UNKNOWN and marked != BAD:
        return LETTERS[UNKNOWN]
    if whole == BAD:
        return LETTERS[BAD]
    whole = TOUCHED if whole == UNKNOWN else whole
    if not marked and rail not in gpus:
        return LETTERS[""]
    return LETTERS[min(marked or OK, whole, key=_RANKS.__getitem__)]
