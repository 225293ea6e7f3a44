"""Models of the list of running jobs, and of one job with its GPUs, step, stragglers and incidents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import msgspec

from railscope import api as resources
from railscope.service import run_in_thread
from railscope_collector.console import PageProblemError, incident_pages, page_table, recent_events
from railscope_collector.http import incidents_api, read_api
from railscope_collector.workloads import job_roster, job_view

_MAX_INCIDENTS, _MAX_EVENTS = 10, 20
_COPIED = (
    "tenant", "source", "workload", "start_ns", "gpus", "nodes", "stale_gpus", "shared_gpus",
    "state", "reason", "incidents",
)  # fmt: skip
UNKNOWN_CLAIMS = "the jobs are not known: the claims of GPUs cannot be determined"


class JobRow(msgspec.Struct, frozen=True):
    """One running job in a list."""

    tenant: str
    source: str
    workload: str
    start_ns: int
    gpus: float
    nodes: int
    stale_gpus: int
    """GPUs of nodes without fresh data."""
    shared_gpus: int
    step_seconds: float | None
    jitter_seconds: float | None
    exchange_share: float | None
    straggler: str
    """The GPU that is furthest behind, by activity or clock, in words; or the reason for none."""
    incidents: tuple[str, ...]
    """The first open incidents that touch the job, by identity."""
    state: str
    reason: str
    """Reason of the state, in words; empty for `healthy`."""


class JobsModel(msgspec.Struct, frozen=True):
    """One page of the list of running jobs: touched ones first, then the largest."""

    timestamp_ns: int
    query: page_table.JobsQuery
    rows: tuple[JobRow, ...]
    found: int
    pages: int
    suppressed: int | None
    """Jobs beyond the largest number that is reported; null for a tenant."""
    problem: str
    """Reason why jobs are not known; empty if they are."""


class JobModel(msgspec.Struct, frozen=True):
    """One running job, and a page of its GPUs."""

    timestamp_ns: int
    row: JobRow
    rollups: tuple[dict[str, Any], ...]
    stragglers: tuple[dict[str, Any], ...]
    places: tuple[dict[str, Any], ...]
    place_count: int
    page: int
    pages: int
    incidents: tuple[resources.IncidentDocument, ...]
    events: tuple[recent_events.EventRow, ...]
    """Newest events about the ranks of its collectives."""


def job_row(document: Mapping[str, Any]) -> JobRow:
    """Return the row of a job from its document in the API."""
    step = document["step"] or {}
    return JobRow(
        **{name: document[name] for name in _COPIED},
        step_seconds=step.get("period_seconds"),
        jitter_seconds=step.get("jitter_seconds"),
        exchange_share=step.get("exchange_share"),
        straggler=straggler_text(document["stragglers"]),
    )


def straggler_text(stragglers: list[dict[str, Any]]) -> str:
    """Return the straggler with the largest deviation in words, or the reason for none."""
    known_stragglers = [each for each in stragglers if "deviation_ratio" in each]
    if not known_stragglers:
        reasons = [each["unknown"] for each in stragglers if "unknown" in each]
        return f"none: {reasons[0]}" if reasons else "none"
    worst = min(known_stragglers, key=lambda each: each["deviation_ratio"])
    name = worst["index"] or worst["gpu"]
    return f"{worst['node']} GPU {name}: {worst['measure']} {worst['deviation_ratio']:+.1%}"


@dataclass(slots=True)
class JobPages:
    """Models of the pages of jobs, from what the API shows to the same reader."""

    api: read_api.ViewApi

    def models(self) -> page_table.PageModels:
        """Return the functions by name of the page."""
        return {"jobs": self._jobs, "job": self._job}

    async def _jobs(self, request: page_table.PageRequest) -> JobsModel:
        return await run_in_thread(self._make_jobs, request)

    def _make_jobs(self, request: page_table.PageRequest) -> JobsModel:
        view, query, api = self.api.views().jobs, request.query, self.api.jobs_api
        states = api.states(request.credential)
        found = [
            job
            for job in incidents_api.visible_jobs(view, request.credential)
            if query.name.lower() in f"{job.key.tenant}/{job.key.workload}".lower()
        ]
        found.sort(key=lambda job: (job.key not in states.touching, -len(job.places), job.key))
        shown, pages = page_table.split_page(found, query.page)
        return JobsModel(
            timestamp_ns=view.timestamp_ns,
            query=query,
            rows=tuple(job_row(api.row(view, job, states)) for job in shown),
            found=len(found),
            pages=pages,
            suppressed=view.suppressed if request.tenant is None else None,
            problem="" if view.timestamp_ns else UNKNOWN_CLAIMS,
        )

    async def _job(self, request: page_table.PageRequest) -> JobModel:
        view, job = self.api.jobs_api.find(request.parts)
        if job is None:
            raise PageProblemError(HTTPStatus.NOT_FOUND, incidents_api.UNKNOWN_JOB)
        return await run_in_thread(self._make_job, request, view, job)

    def _make_job(
        self,
        request: page_table.PageRequest,
        view: job_view.RunningJobs,
        job: job_roster.RunningJob,
    ) -> JobModel:
        states = self.api.jobs_api.states(request.credential)
        document = self.api.jobs_api.job_document(view, job, states)
        places, pages = page_table.split_page(document["places"], request.query.page)
        urgent = incidents_api.worst_first(states.touching.get(job.key, ()))[:_MAX_INCIDENTS]
        return JobModel(
            timestamp_ns=view.timestamp_ns,
            row=job_row(document),
            rollups=tuple(document["rollups"]),
            stragglers=tuple(document["stragglers"]),
            places=places,
            place_count=len(document["places"]),
            page=request.query.page,
            pages=pages,
            incidents=incident_pages.documents_of(urgent),
            events=tuple(self._rank_events(job)),
        )

    def _rank_events(self, job: job_roster.RunningJob) -> list[recent_events.EventRow]:
        """Return the events of its nodes about its collectives, whose holder is the one of its claim."""
        core, holder = self.api.core, job.key._asdict()
        nodes = {place.holding.node for place in job.places}
        events = [
            each
            for each in core.events
            if each.node in nodes
            and each.event.name.startswith(recent_events.OF_COLLECTIVES)
            and all(each.event.facts.get(name, "") == text for name, text in holder.items())
        ]
        return recent_events.event_rows(events, dict(core.fleet.nodes), core.names_of, _MAX_EVENTS)
