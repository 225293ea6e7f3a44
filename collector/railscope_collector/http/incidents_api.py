"""Routes of incidents and of running jobs with their states: the lists, one incident with its curves, one job with its GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus

import msgspec
from aiohttp import web

from railscope import api, service
from railscope.api.status import rank
from railscope_collector.access.credentials import Credential, Role
from railscope_collector.diagnosis import entity_states
from railscope_collector.diagnosis.incident_classes import CLASSES, Severity
from railscope_collector.diagnosis.incident_table import (
    IncidentTable,
    ReportedIncident,
    worst_first,
)
from railscope_collector.fleet.fleet import NamesOfGpu
from railscope_collector.http import list_query
from railscope_collector.http.json_responses import json_error, json_response, tagged_response
from railscope_collector.http.route_table import RouteHandlers
from railscope_collector.workloads.job_roster import JobKey, RunningJob
from railscope_collector.workloads.job_view import RunningJobs

MAX_LISTED = 200
"""Incidents of one response, the most urgent ones."""
_ALL = "all"
FILTERS = {
    "state": ("open", "closed", _ALL),
    "class": (*CLASSES, _ALL),
    "severity": (*Severity, _ALL),
}
"""Values of the query; without any, all."""


@dataclass(slots=True)
class IncidentsApi:
    """Handlers that use the latest table. A tenant reads the incidents that touch its jobs."""

    table: Callable[[], IncidentTable]
    progress: Callable[[], api.DiagnosisProgress] = api.DiagnosisProgress

    def handlers(self) -> RouteHandlers:
        """Return the handlers by route name."""
        return {"incidents": self._list, "incident": self._incident}

    async def _list(self, request: web.Request, credential: Credential) -> web.Response:
        table = self.table()
        if not table.timestamp_ns:
            return json_error(HTTPStatus.SERVICE_UNAVAILABLE, NOT_DIAGNOSED)
        selected = {}
        for name, values in FILTERS.items():
            selected[name] = set(request.query.getall(name, [_ALL]))
            for unknown in sorted(selected[name] - set(values)):
                text = f"unknown {name} {unknown[:40]!r}: expected one of {', '.join(values)}"
                return json_error(HTTPStatus.BAD_REQUEST, text)

        def is_selected(incident: ReportedIncident) -> bool:
            document = incident.document
            of_incident = incident.state, document.incident_class, document.severity
            return all(
                each in chosen or _ALL in chosen
                for each, chosen in zip(of_incident, selected.values(), strict=True)
            )

        progress = self.progress_for(credential)
        chosen = [sorted(values) for values in selected.values()]
        # While it is not evaluated, its age changes: every 10 seconds, as the incidents otherwise.
        age, restarts = int((progress.age_seconds or 0) // 10), progress.restarts
        version = table.timestamp_ns, age, progress.running, restarts, credential.tenant, chosen
        make = partial(self.select, credential, is_selected, slice(MAX_LISTED))
        return await tagged_response(request, make, *version)

    def select(
        self,
        credential: Credential,
        is_selected: Callable[[ReportedIncident], bool],
        part: slice,
        sort: str = "",
    ) -> api.IncidentList:
        """Return a part of the selected incidents, the most urgent one first, or sorted by a field of the document. Blocking."""
        table = self.table()
        visible = visible_incidents(table, credential)
        found = worst_first(each for each in visible if is_selected(each))
        documents = list_query.sort_rows((each.document for each in found), sort)
        rows, offset = documents[part], part.start or 0
        counts = Counter(each.document.severity if each.is_open else "closed" for each in visible)
        return api.IncidentList(
            table.timestamp_ns,
            tuple(rows),
            self.progress_for(credential),
            len(found),
            offset,
            max(len(found) - offset - len(rows), 0),
            dict(counts),
        )

    def progress_for(self, credential: Credential) -> api.DiagnosisProgress:
        """Return how current the incidents are; without the reason of a restart for a tenant, as it may name files."""
        progress = self.progress()
        if credential.role is Role.TENANT:
            return msgspec.structs.replace(progress, problem="")
        return progress

    async def _incident(self, request: web.Request, credential: Credential) -> web.Response:
        table, number = self.table(), request.match_info["incident"]
        visible = find_visible(table, number, credential)
        if visible is None:
            text = f"unknown incident {number[:40]!r}: expected an `id` of /api/v1/incidents"
            return json_error(HTTPStatus.NOT_FOUND, text)
        progress = self.progress_for(credential)
        return json_response(
            await service.run_in_thread(incident_detail, visible, table.timestamp_ns, progress)
        )


def incident_detail(
    incident: ReportedIncident, timestamp_ns: int, progress: api.DiagnosisProgress
) -> api.IncidentDetail:
    """Return an incident with its curves."""
    return api.IncidentDetail(
        **{name: getattr(incident.document, name) for name in incident.document.__struct_fields__},
        timestamp_ns=timestamp_ns,
        diagnosis=progress,
        curves=incident.curves,
    )


def visible_incidents(table: IncidentTable, credential: Credential) -> list[ReportedIncident]:
    """Return what a reader may see of the incidents, newest first."""
    if credential.role is Role.TENANT:
        return [*table.of_tenant(credential.tenant)][::-1]
    return [*reversed(table.incidents)]


def find_visible(
    table: IncidentTable, number: str, credential: Credential
) -> ReportedIncident | None:
    """Return what a reader may see of an incident; None if there is no such incident for the reader."""
    if credential.role is Role.TENANT:
        return next(table.of_tenant(credential.tenant, number), None)
    return table.find(number)


NOT_DIAGNOSED = "nothing has been diagnosed yet"
UNKNOWN_JOB = "unknown job: expected one that holds GPUs now"


def visible_jobs(
    view: RunningJobs, credential: Credential, tenants: Collection[str] = ()
) -> list[RunningJob]:
    """Return the jobs that a reader may see, of some tenants; of all if none is named."""
    if credential.role is Role.TENANT:
        tenants = {credential.tenant}
    return [job for job in view.jobs if not tenants or job.key.tenant in tenants]


@dataclass(slots=True)
class JobsApi:
    """Handlers that use the latest view and incidents. `names_of` returns the names of a GPU of a node."""

    jobs: Callable[[], RunningJobs]
    names_of: NamesOfGpu
    wall_ns: Callable[[], int]
    incidents: Callable[[], IncidentTable] = IncidentTable

    def handlers(self) -> RouteHandlers:
        """Return the handlers by route name."""
        return {"jobs": self._list, "job": self._job}

    async def _list(self, request: web.Request, credential: Credential) -> web.Response:
        view, tenants = self.jobs(), set(request.query.getall("tenant", []))
        times = view.timestamp_ns, self.incidents().timestamp_ns
        stale = entity_states.view_problem(view.timestamp_ns, self.wall_ns())

        def make() -> api.JobList:
            jobs = visible_jobs(view, credential, tenants)
            found = self.list_of(view, jobs, credential, len(jobs))
            rows = sorted(found.rows, key=lambda row: rank(row.state))
            return msgspec.structs.replace(found, rows=tuple(rows))

        version = *times, stale, credential.tenant, sorted(tenants)
        return await tagged_response(request, make, *version)

    def list_of(
        self, view: RunningJobs, jobs: Iterable[RunningJob], credential: Credential, found: int
    ) -> api.JobList:
        """Return the list of some jobs. Blocking."""
        states, is_tenant = self.states(credential), credential.role is Role.TENANT
        rows = tuple(self.row(view, job, states) for job in jobs)
        suppressed = 0 if is_tenant else view.suppressed
        return api.JobList(view.timestamp_ns, rows, suppressed, found)

    async def _job(self, request: web.Request, credential: Credential) -> web.Response:
        view, job = self.find(request.match_info)
        if job is None:
            return json_error(HTTPStatus.NOT_FOUND, UNKNOWN_JOB)
        states = self.states(credential)
        return json_response(await service.run_in_thread(self.job_document, view, job, states))

    def find(self, named: Mapping[str, str]) -> tuple[RunningJobs, RunningJob | None]:
        """Return the view and the running job that the parts of a path name; None if there is none."""
        view = self.jobs()
        key = JobKey(named["tenant"], named["source"], named["workload"])
        return view, next((job for job in view.jobs if job.key == key), None)

    def states(self, credential: Credential) -> entity_states.JobStates:
        """Return the states of jobs by the incidents that a reader may see."""
        table, at_ns = self.incidents(), self.jobs().timestamp_ns
        problem = entity_states.view_problem(at_ns, self.wall_ns())
        problem = problem or entity_states.diagnosis_problem(table.timestamp_ns, at_ns)
        visible = visible_incidents(table, credential)
        return entity_states.JobStates.from_incidents(visible, problem)

    def row(self, view: RunningJobs, job: RunningJob, states: entity_states.JobStates) -> api.Job:
        """Return a job with its step and its state."""
        step, row = self.incidents().steps.get(job.key), view.to_job(job, self.names_of)
        return states.decide(msgspec.structs.replace(row, step=step))

    def job_document(
        self, view: RunningJobs, job: RunningJob, states: entity_states.JobStates
    ) -> api.Job:
        """Return a job with its GPUs and their readings."""
        return msgspec.structs.replace(
            self.row(view, job, states),
            timestamp_ns=view.timestamp_ns,
            places=view.places_of(job, self.names_of),
        )
