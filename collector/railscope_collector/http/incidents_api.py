"""Resources of incidents and of running jobs with their states: the lists, one incident with its curves, one job with its GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Literal

import msgspec

from railscope import api
from railscope.api.status import rank
from railscope_collector.access.credentials import Credential, Role
from railscope_collector.diagnosis import entity_states
from railscope_collector.diagnosis.incident_classes import CLASSES
from railscope_collector.diagnosis.incident_table import (
    IncidentTable,
    ReportedIncident,
    worst_first,
)
from railscope_collector.fleet.fleet import NamesOfGpu
from railscope_collector.http import ResourceError, list_query
from railscope_collector.http.resource_server import ResourceRequest
from railscope_collector.workloads.job_roster import JobKey, RunningJob
from railscope_collector.workloads.job_view import RunningJobs

MAX_LISTED = 200
"""Incidents of one response, the most urgent ones."""
_ALL = "all"
IncidentState = Literal["open", "closed", "all"]
_Severity = Literal["info", "warning", "critical", "all"]
_Class = Literal[(*CLASSES, "all")]  # type: ignore[valid-type]  # one list of the classes


class IncidentsQuery(msgspec.Struct, frozen=True):
    """Query of the list of incidents: several values of one parameter select any, no value or `all` selects all."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_LISTED)] = MAX_LISTED
    offset: list_query.Offset = 0
    state: tuple[IncidentState, ...] = ()
    incident_class: tuple[_Class, ...] = msgspec.field(name="class", default=())
    severity: tuple[_Severity, ...] = ()
    sort: Literal["", "onset", "victim_count", "lost_gpu_time_seconds", "title"] = ""
    """Order in place of the most urgent first."""

    def selects(self, incident: ReportedIncident) -> bool:
        """True if an incident has one of the values of each parameter."""
        document = incident.document
        chosen = (
            (self.state, incident.state),
            (self.incident_class, document.incident_class),
            (self.severity, document.severity),
        )
        return all(not values or _ALL in values or value in values for values, value in chosen)


@dataclass(slots=True)
class IncidentsApi:
    """Functions that use the latest table. A tenant reads the incidents that touch its jobs."""

    table: Callable[[], IncidentTable]
    progress: Callable[[], api.DiagnosisProgress] = api.DiagnosisProgress

    def incident_list(self, request: ResourceRequest) -> api.IncidentList:
        """Return the part of the incidents that a query selects. Blocking; raises ResourceError before the first evaluation."""
        if not self.table().timestamp_ns:
            raise ResourceError(HTTPStatus.SERVICE_UNAVAILABLE, NOT_DIAGNOSED)
        query = request.query
        return self.select(request.credential, query.selects, request.part, query.sort)

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

    def progress_version(self) -> tuple[object, ...]:
        """Return what changes with the progress: while nothing is evaluated, the age of the incidents every 10 seconds."""
        progress = self.progress()
        return int((progress.age_seconds or 0) // 10), progress.running, progress.restarts

    def incident_detail(self, request: ResourceRequest) -> api.IncidentDetail:
        """Return an incident with its curves. Raises ResourceError."""
        table = self.table()
        incident = find_visible(table, request.parts["incident"], request.credential)
        document = incident.document
        return api.IncidentDetail(
            **{name: getattr(document, name) for name in document.__struct_fields__},
            timestamp_ns=table.timestamp_ns,
            diagnosis=self.progress_for(request.credential),
            curves=incident.curves,
        )


def visible_incidents(table: IncidentTable, credential: Credential) -> list[ReportedIncident]:
    """Return what a reader may see of the incidents, newest first."""
    if credential.role is Role.TENANT:
        return [*table.of_tenant(credential.tenant)][::-1]
    return [*reversed(table.incidents)]


def find_visible(table: IncidentTable, number: str, credential: Credential) -> ReportedIncident:
    """Return what a reader may see of an incident. Raises ResourceError if there is no such incident for the reader."""
    if credential.role is Role.TENANT:
        found = next(table.of_tenant(credential.tenant, number), None)
    else:
        found = table.find(number)
    if found is None:
        text = f"unknown incident {number[:40]!r}: expected one of the list of incidents; closed ones are dropped in time"
        raise ResourceError(HTTPStatus.NOT_FOUND, text)
    return found


NOT_DIAGNOSED = "nothing has been diagnosed yet"
UNKNOWN_JOB = "unknown job: expected one that holds GPUs now"


def visible_jobs(
    view: RunningJobs, credential: Credential, tenants: Collection[str] = ()
) -> list[RunningJob]:
    """Return the jobs that a reader may see, of some tenants; of all if none is named."""
    if credential.role is Role.TENANT:
        tenants = {credential.tenant}
    return [job for job in view.jobs if not tenants or job.key.tenant in tenants]


class JobsQuery(list_query.WholeQuery, frozen=True):
    """Query of the list of jobs: those of any of some tenants."""

    tenant: tuple[list_query.SearchText, ...] = ()
    name: list_query.SearchText = ""
    """Part of the tenant and the name, without regard to case."""
    sort: Literal["", "workload", "tenant", "start_ns", "gpus", "nodes", "stale_gpus"] = ""
    """Order in place of worst first."""


@dataclass(slots=True)
class JobsApi:
    """Functions that use the latest view and incidents. `names_of` returns the names of a GPU of a node."""

    jobs: Callable[[], RunningJobs]
    names_of: NamesOfGpu
    wall_ns: Callable[[], int]
    incidents: Callable[[], IncidentTable] = IncidentTable

    def job_list(self, request: ResourceRequest) -> api.JobList:
        """Return the part of the running jobs that a query selects, worst first and then the largest. Blocking."""
        view, query = self.jobs(), request.query
        jobs = [
            job
            for job in visible_jobs(view, request.credential, query.tenant)
            if not query.name
            or query.name.lower() in f"{job.key.tenant}/{job.key.workload}".lower()
        ]
        states = self.states(request.credential)

        def urgency(job: RunningJob) -> tuple[int, int, JobKey]:
            return (
                rank(states.state_of(job.key, view.stale_gpus[job.key])),
                -len(job.places),
                job.key,
            )

        jobs.sort(key=urgency)
        # Rows are made for a part only, unless they are sorted by one of their fields.
        if query.sort:
            made = (self.row(view, job, states) for job in jobs)
            rows = list_query.sort_rows(made, query.sort)[request.part]
        else:
            rows = [self.row(view, job, states) for job in jobs[request.part]]
        suppressed = 0 if request.tenant is not None else view.suppressed
        return api.JobList(
            view.timestamp_ns, tuple(rows), suppressed, len(jobs), request.part.start or 0
        )

    def find(self, named: Mapping[str, str]) -> tuple[RunningJobs, RunningJob]:
        """Return the view and the running job that the parts of a path name. Raises ResourceError."""
        view = self.jobs()
        key = JobKey(named["tenant"], named["source"], named["workload"])
        found = next((job for job in view.jobs if job.key == key), None)
        if found is None:
            raise ResourceError(HTTPStatus.NOT_FOUND, UNKNOWN_JOB)
        return view, found

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

    def job_detail(self, request: ResourceRequest) -> api.Job:
        """Return a job with its GPUs and their readings. Blocking; raises ResourceError."""
        view, job = self.find(request.parts)
        states = self.states(request.credential)
        return msgspec.structs.replace(
            self.row(view, job, states),
            timestamp_ns=view.timestamp_ns,
            places=view.places_of(job, self.names_of),
        )
