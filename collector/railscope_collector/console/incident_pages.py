"""Incidents as rows of pages; models of the list of incidents, of one incident with its timeline and curves, and of runbooks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import NamedTuple

import msgspec
import numpy as np

from railscope import api as resources, incident_victims
from railscope.service import run_in_thread
from railscope.timestamps import SECOND_NS, parse_timestamp
from railscope_collector.console import (
    curves as shapes,
    page_rendering,
    page_table,
)
from railscope_collector.diagnosis import (
    entity_states,
    evidence_words,
    incident_table,
)
from railscope_collector.fleet.recent_events import SeenEvent
from railscope_collector.http import ResourceError, incidents_api, read_api
from railscope_collector.switches import links

_MAX_SHOWN = 3
MAX_TIMELINE, MAX_VICTIMS = 40, 100
AROUND_NS = 600 * SECOND_NS
"""Time before the onset and after the end of an incident of which events of its node are shown."""


class RunbookModel(msgspec.Struct, frozen=True):
    """One runbook."""

    name: str
    text: str
    """Markdown."""


def read_runbook(name: str) -> page_table.PageContent:
    """Return a runbook. Blocking; raises ResourceError."""
    if name not in page_rendering.RUNBOOK_FILES:
        message = f"unknown runbook {name[:100]!r}: expected one of {', '.join(page_rendering.RUNBOOK_FILES)}"
        raise ResourceError(HTTPStatus.NOT_FOUND, message)
    text = page_rendering.RUNBOOK_FILES[name].read_text()
    titled = text.replace("# ", "# Runbook ", 1)
    html = page_rendering.render_markdown(titled, page_rendering.RUNBOOKS)
    return page_table.PageContent(RunbookModel(name, text), {"html": html})


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


class EvidenceFigure(NamedTuple):
    """Curves of one signal around the onset of an incident."""

    figure: shapes.Figure
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
    figure = shapes.make_figure(f"evidence-{number}", title, both, period, shapes.PICTURE_WIDTH)
    return EvidenceFigure(figure, period, onset_ns)


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

        def is_selected(incident: incident_table.ReportedIncident) -> bool:
            return bool(query.selects(incident))

        found = self.api.listed_incidents.select(
            request.credential, is_selected, request.part, query.sort
        )
        problem = entity_states.diagnosis_problem(found.timestamp_ns, self.api.wall_ns())
        return page_table.PageContent(found, {"problem": problem})

    async def _incident(self, request: page_table.PageRequest) -> page_table.PageContent:
        table, number = self.api.incidents(), request.parts["incident"]
        incident = incidents_api.find_visible(table, number, request.credential)
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
        detail = self.api.listed_incidents.incident_detail(request)
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
        first_ns = incident.onset_ns - AROUND_NS
        last_ns = until_ns + AROUND_NS

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
