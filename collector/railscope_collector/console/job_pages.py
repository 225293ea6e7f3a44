"""Model of the page of one job with its GPUs, step, stragglers and incidents."""

from __future__ import annotations

from dataclasses import dataclass

from railscope import api as resources
from railscope_collector.console import incident_pages, page_table
from railscope_collector.http import event_list, read_api
from railscope_collector.workloads import job_roster

_MAX_INCIDENTS, _MAX_EVENTS = 10, 20


@dataclass(slots=True)
class JobPages:
    """Model of the page of a job, from what the API shows to the same reader."""

    api: read_api.ViewApi

    def models(self) -> page_table.PageModels:
        """Return the functions by name of the page."""
        return {"job": page_table.in_thread(self._job)}

    def _job(self, request: page_table.PageRequest) -> page_table.PageContent:
        _, job = self.api.jobs_api.find(request.parts)
        states = self.api.jobs_api.states(request.credential)
        document = self.api.jobs_api.job_detail(request)
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
