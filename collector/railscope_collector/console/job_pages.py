"""Models of the list of running jobs, and of one job with its GPUs, step, stragglers and incidents."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus

import msgspec

from railscope import api as resources
from railscope.service import run_in_thread
from railscope_collector.console import PageProblemError, incident_pages, page_table
from railscope_collector.http import event_list, incidents_api, list_query, read_api
from railscope_collector.workloads import job_roster, job_view

_MAX_INCIDENTS, _MAX_EVENTS = 10, 20
UNKNOWN_CLAIMS = "the jobs are not known: the claims of GPUs cannot be determined"


@dataclass(slots=True)
class JobPages:
    """Models of the pages of jobs, from what the API shows to the same reader."""

    api: read_api.ViewApi

    def models(self) -> page_table.PageModels:
        """Return the functions by name of the page."""
        return {"jobs": page_table.in_thread(self._jobs), "job": self._job}

    def _jobs(self, request: page_table.PageRequest) -> page_table.PageContent:
        view, query, api = self.api.views().jobs, request.query, self.api.jobs_api
        states = api.states(request.credential)
        found = [
            job
            for job in incidents_api.visible_jobs(view, request.credential)
            if query.name.lower() in f"{job.key.tenant}/{job.key.workload}".lower()
        ]
        found.sort(key=lambda job: (job.key not in states.touching, -len(job.places), job.key))
        if query.sort:  # by a field of the row, which is made for all of them then
            listed = api.list_of(view, found, request.credential, len(found))
            rows = list_query.sort_rows(listed.rows, query.sort)[request.part]
            listed = msgspec.structs.replace(listed, rows=tuple(rows))
        else:
            listed = api.list_of(view, found[request.part], request.credential, len(found))
        problem = "" if view.timestamp_ns else UNKNOWN_CLAIMS
        return page_table.PageContent(listed, {"problem": problem})

    async def _job(self, request: page_table.PageRequest) -> page_table.PageContent:
        view, job = self.api.jobs_api.find(request.parts)
        if job is None:
            raise PageProblemError(HTTPStatus.NOT_FOUND, incidents_api.UNKNOWN_JOB)
        return await run_in_thread(self._make_job, request, view, job)

    def _make_job(
        self,
        request: page_table.PageRequest,
        view: job_view.RunningJobs,
        job: job_roster.RunningJob,
    ) -> page_table.PageContent:
        states = self.api.jobs_api.states(request.credential)
        document = self.api.jobs_api.job_document(view, job, states)
        urgent = states.touching.get(job.key, ())[:_MAX_INCIDENTS]
        shown = {
            "places": document.places[request.part],
            "open_incidents": incident_pages.documents_of(urgent),
            "events": self._rank_events(job),
        }
        return page_table.PageContent(document, shown)

    def _rank_events(self, job: job_roster.RunningJob) -> tuple[resources.Event, ...]:
        """Return the events of its nodes about its collectives, whose holder is the one of its claim."""
        core, holder = self.api.core, job.key._asdict()
        nodes = {place.holding.node for place in job.places}
        events = [
            each
            for each in core.events
            if each.node in nodes
            and each.event.name.startswith(event_list.OF_COLLECTIVES)
            and all(each.event.facts.get(name, "") == text for name, text in holder.items())
        ]
        return self.api.event_writer().newest(events, _MAX_EVENTS)
