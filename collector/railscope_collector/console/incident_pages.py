"""Incidents as rows of pages; models of the list of incidents, of one incident with its timeline and curves, and of runbooks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import NamedTuple

import msgspec
import numpy as np

from railscope import api as resources, incident_victims
from railscope.service import run_in_thread
from railscope.timestamps import format_timestamp, parse_timestamp
from railscope_collector.console import (
    PageProblemError,
    curves as shapes,
    history_pages,
    page_rendering,
    page_table,
)
from railscope_collector.diagnosis import (
    entity_states,
    evidence_words,
    incident_table,
)
from railscope_collector.fleet.recent_events import SeenEvent
from railscope_collector.http import incidents_api, read_api
from railscope_collector.switches import links

_MAX_SHOWN = 3
MAX_TIMELINE, MAX_VICTIMS = 40, 100
MOMENT_PAGES = ("overview", "node", "rail", "job")
"""Pages that show the present, or what is stored of a time in the past."""


class RunbookModel(msgspec.Struct, frozen=True):
    """One runbook."""

    name: str
    blocks: tuple[page_rendering.TextBlock, ...]


def read_runbook(name: str) -> RunbookModel:
    """Return a runbook. Blocking; raises PageProblemError."""
    if name not in page_rendering.RUNBOOK_FILES:
        message = f"unknown runbook {name[:100]!r}: expected one of {', '.join(page_rendering.RUNBOOK_FILES)}"
        raise PageProblemError(HTTPStatus.NOT_FOUND, message)
    text = page_rendering.RUNBOOK_FILES[name].read_text()
    return RunbookModel(name, page_rendering.parse_markdown(text, page_rendering.RUNBOOKS))


def documents_of(
    incidents: Iterable[incident_table.ReportedIncident],
) -> tuple[resources.IncidentDocument, ...]:
    """Return the documents of incidents, as the API has them."""
    return tuple(each.document for each in incidents)


def touched_jobs(incidents: Sequence[incident_table.ReportedIncident]) -> set[tuple[str, str, str]]:
    """Return the jobs that open incidents touch, except those of severity info."""
    return {
        (job.tenant, job.source, job.workload)
        for incident in incidents
        if incident.is_open and incident.document.severity != "info"
        for job in incident.jobs
    }


class MomentModel(msgspec.Struct, frozen=True):
    """Page about the overview, a node, a rail or a job at a time in the past: what is stored of it, and what is not."""

    at_ns: int
    from_ns: int
    to_ns: int
    """Period of the events."""
    incidents: tuple[resources.IncidentDocument, ...]
    found: int
    events: tuple[resources.Event, ...] | None
    """Events around the time; null if the reader sees none."""
    gaps: tuple[str, ...]
    """Parts that are not known of the time, with the reason."""
    has_curves: bool
    """True if curves around the time may be stored."""


NOT_STORED = "states of nodes, readings, ages of data and running jobs are stored of the present only; without `[console] history_url`, curves of rails and jobs cover the last hour"
AS_OF_NOW = "incidents have the evidence, victims and action of their last evaluation; of the closed ones, the oldest are dropped in time"


def was_open_at(incident: incident_table.ReportedIncident, at_ns: int) -> bool:
    """True if an incident was open at a time."""
    ended = incident.document.ended
    return incident.onset_ns <= at_ns and (ended is None or parse_timestamp(ended) > at_ns)


class EvidenceFigure(NamedTuple):
    """Curves of one signal around the onset of an incident."""

    figure: history_pages.FigureModel
    period: shapes.TimeRange
    """From the first to the last value."""
    onset_ns: int

    @property
    def onset_share(self) -> float:
        """Position of the onset in the period."""
        from_ns, to_ns = self.period
        return min(max((self.onset_ns - from_ns) / max(to_ns - from_ns, 1), 0.0), 1.0)


def evidence_figure(curve: resources.CurveDocument, number: int, onset_ns: int) -> EvidenceFigure:
    """Return the figure of one signal: the cause, and the median of all devices of its kind if the reader may see it."""
    times_ns = np.array([point.timestamp_ns for point in curve.points], np.int64)
    period = shapes.TimeRange(int(times_ns.min()), int(times_ns.max()))
    both = [
        shapes.HistoryCurve(name, label, curve.unit, times_ns, np.array(values, np.float64))
        for name, label, values in (
            ("cause", "Cause", [point.value for point in curve.points]),
            ("peers", "Median of all", [point.peers for point in curve.points]),
        )
        if name == "cause" or any(value is not None for value in values)
    ]
    title = evidence_words.quantity_text(curve.signal)
    figure = history_pages.figure_model(
        f"evidence-{number}", title, both, period, shapes.PICTURE_WIDTH
    )
    return EvidenceFigure(figure, period, onset_ns)


def _concerns(incident: incident_table.ReportedIncident, parts: Mapping[str, str]) -> bool:
    """True if an incident reaches the node, the rail or the job that the parts of a path name, or if they name none."""
    if "node" in parts:
        victims = {nic.node for nic in incident.victim_nics}
        return parts["node"] in {
            *incident.reach.nodes,
            *victims,
            incident_table.cause_labels(incident.document.cause)[1],
        }
    if "rail" in parts:
        rail = getattr(incident.document.cause, "rail", None)
        return parts["rail"] in {*incident.reach.rails, str(rail)}
    key = (parts.get("tenant"), parts.get("source"), parts.get("workload"))
    return not parts or key in {(job.tenant, job.source, job.workload) for job in incident.jobs}


@dataclass(slots=True)
class IncidentPages:
    """Models of the pages of incidents, from what the API shows to the same reader."""

    api: read_api.ViewApi

    def models(self) -> page_table.PageModels:
        """Return the functions by name of the page."""
        return {
            "incidents": page_table.in_thread(self._incidents),
            "incident": self._incident,
            "runbook": page_table.in_thread(lambda request: read_runbook(request.parts["runbook"])),
        }

    def _incidents(self, request: page_table.PageRequest) -> page_table.PageContent:
        query = request.query
        at_ns = history_pages.parse_moment("at", query.at) if query.at else None

        def is_selected(incident: incident_table.ReportedIncident) -> bool:
            if query.severity not in {"", incident.document.severity}:
                return False
            if at_ns is None:
                return query.state in {"all", incident.state}
            return was_open_at(incident, at_ns)

        found = self.api.listed_incidents.select(
            request.credential, is_selected, request.part, query.sort
        )
        problem = entity_states.diagnosis_problem(found.timestamp_ns, self.api.wall_ns())
        return page_table.PageContent(found, {"at_ns": at_ns, "problem": problem})

    async def at_moment(
        self,
        present: page_table.PageModel,
        request: page_table.PageRequest,
    ) -> msgspec.Struct | page_table.PageContent:
        """Return what is stored of a time in the past; without one the model of the present."""
        if not request.query.at:
            return await present(request)
        at_ns = history_pages.parse_moment("at", request.query.at)
        model = await run_in_thread(self._make_moment, request, at_ns)
        if not model.found and request.page.name in {"node", "rail"}:
            await present(request)  # rejects the name of a node or a rail that is not known
        return model

    def _make_moment(self, request: page_table.PageRequest, at_ns: int) -> MomentModel:
        table, parts, core = self.api.incidents(), request.parts, self.api.core
        visible = incidents_api.visible_incidents(table, request.credential)
        found = [
            each
            for each in visible
            if was_open_at(each, at_ns)
            and ("node" in parts or each.document.explained_by is None)
            and _concerns(each, parts)
        ]
        from_ns, to_ns = at_ns - history_pages.BEFORE_NS, at_ns + history_pages.AFTER_NS
        gaps, events, nodes = [NOT_STORED, AS_OF_NOW], None, dict(core.fleet.nodes)
        if not table.timestamp_ns:
            gaps.append(entity_states.NOT_DIAGNOSED)
        elif table.timestamp_ns < at_ns:
            until = format_timestamp(table.timestamp_ns, "seconds")
            gaps.append(f"incidents are known until {until}")
        if request.page.name in {"overview", "node"} and request.tenant is None:
            stored = list(core.events)
            oldest_ns = min((each.event.wall_ns for each in stored), default=at_ns + 1)
            if oldest_ns > from_ns:
                gaps.append("events before the oldest one that is kept in memory are not stored")
            of_page = [each for each in stored if parts.get("node", each.node) == each.node]
            around = [each for each in of_page if from_ns <= each.event.wall_ns <= to_ns]
            events = self.api.event_writer().newest(around, MAX_TIMELINE)
        rows = documents_of(incident_table.worst_first(found)[:MAX_TIMELINE])
        oldest_ns = self.api.wall_ns() - history_pages.MAX_GROUP_PERIOD_NS
        is_stored = at_ns > oldest_ns or bool(self.api.console.history_url)
        has_curves = parts["node"] in nodes if "node" in parts else bool(parts) and is_stored
        return MomentModel(at_ns, from_ns, to_ns, rows, len(found), events, tuple(gaps), has_curves)

    async def _incident(self, request: page_table.PageRequest) -> page_table.PageContent:
        table, number = self.api.incidents(), request.parts["incident"]
        incident = incidents_api.find_visible(table, number, request.credential)
        if incident is None:
            text = f"unknown incident {number[:40]!r}: expected one of the list of incidents; closed ones are dropped in time"
            raise PageProblemError(HTTPStatus.NOT_FOUND, text)
        join = self.api.link_ends.take()
        return await run_in_thread(self._make_incident, request, table, incident, join)

    def _make_incident(
        self,
        request: page_table.PageRequest,
        table: incident_table.IncidentTable,
        incident: incident_table.ReportedIncident,
        join: Callable[[], links.JoinedLinks],
    ) -> page_table.PageContent:
        document = incident.document
        progress = self.api.listed_incidents.progress_for(request.credential)
        detail = incidents_api.incident_detail(incident, table.timestamp_ns, progress)
        explained = [
            each
            for each in incidents_api.visible_incidents(table, request.credential)
            if each.document.explained_by == document.id
        ]
        cause = document.cause
        end = (cause.node, cause.interface) if isinstance(cause, resources.NicDocument) else None
        victims = document.victims
        devices = [each for each in victims if not isinstance(each, resources.JobDocument)]
        device_count = document.victim_count - len(incident.jobs)
        joined = join().links.values() if end and request.allows("switch_port") else ()
        shown = {
            "devices": devices[:MAX_VICTIMS],
            "device_count": device_count,
            "job_count": len(incident.jobs),
            "devices_text": incident_victims.count_text(devices, device_count),
            "explained": documents_of(explained[:_MAX_SHOWN]),
            "explained_count": len(explained),
            "figures": [
                evidence_figure(curve, number, incident.onset_ns)
                for number, curve in enumerate(detail.curves, start=1)
                if curve.points
            ],
            "port": next((each.port for each in joined if each.nic == end), None),
            "timeline": self._timeline(request, incident),
        }
        return page_table.PageContent(detail, shown)

    def _timeline(
        self, request: page_table.PageRequest, incident: incident_table.ReportedIncident
    ) -> tuple[resources.Event, ...]:
        """Return the events about an incident; other events of its node only to readers of all nodes."""
        document = incident.document
        number, node = document.id, incident_table.cause_labels(document.cause)[1]
        until_ns = parse_timestamp(document.ended) if document.ended else self.api.wall_ns()
        reads_nodes, writer = request.allows("nodes"), self.api.event_writer()
        first_ns = incident.onset_ns - history_pages.BEFORE_NS
        last_ns = until_ns + history_pages.BEFORE_NS

        def is_about(seen_event: SeenEvent) -> bool:
            entity = seen_event.event.entity
            if entity.kind == "incident":
                return entity.key == (number,)
            is_of_node = reads_nodes and node and seen_event.node == node
            return bool(is_of_node) and first_ns <= writer.timestamp_ns(seen_event) <= last_ns

        found = writer.newest(filter(is_about, self.api.core.events), MAX_TIMELINE)
        if not reads_nodes:  # as the cause may be another tenant's
            device = incident_table.cause_labels(document.cause)[2]
            found = tuple(
                msgspec.structs.replace(each, node=node, devices=device, device=None, facts={})
                for each in found
            )
        return found
