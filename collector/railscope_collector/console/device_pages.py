"""Pages of a node, of the list of GPUs, of one rail, and of one job with its GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus

from railscope import api as resources
from railscope.service import run_in_thread
from railscope_collector.console import incident_pages, page_table
from railscope_collector.diagnosis import entity_states
from railscope_collector.diagnosis.incident_table import worst_first
from railscope_collector.http import ResourceError, event_list, gpus_api, read_api
from railscope_collector.switches import link_ends
from railscope_collector.workloads import job_roster

_MAX_EVENTS, _MAX_INCIDENTS, _MAX_ROLLUPS = 20, 10, 200
_CLOCK = "railscope_gpu_clock_hertz"


def absence(detail: resources.NodeDetail, gpu: resources.Gpu, name: str) -> str:
    """Return why a reading of a GPU or of the NICs on its rail is absent."""
    metrics = gpus_api.VALUES[name]
    is_reported = False
    for stream in detail.streams.values():
        for reading in stream.readings:
            device = reading.device
            is_here = device.get("uuid") == gpu.gpu or (
                device.get("kind") == "nic" and device.get("rail") == str(gpu.rail)
            )
            if is_here and reading.metric in metrics:
                if reading.absent:
                    return reading.absent
                is_reported = True
    return "no rate yet" if is_reported else "not reported"


def sm_clock(detail: resources.NodeDetail, gpu: resources.Gpu) -> float | None:
    """Return the clock of the multiprocessors of a GPU."""
    readings = (each for stream in detail.streams.values() for each in stream.readings)
    return next(
        (
            each.value
            for each in readings
            if each.metric == _CLOCK and each.entity == (gpu.gpu, "sm")
        ),
        None,
    )


@dataclass(slots=True)
class DevicePages:
    """Pages of nodes, GPUs, rails and jobs."""

    api: read_api.ViewApi

    def models(self) -> page_table.PageModels:
        """Return the functions by name of the page."""
        return {
            "node": self._node,
            "gpus": page_table.in_thread(self._gpus),
            "rail": page_table.in_thread(self._rail),
            "job": page_table.in_thread(self._job),
        }

    async def _node(self, request: page_table.PageRequest) -> page_table.PageContent:
        name = request.parts["node"]
        detail = await self.api.nodes.node_detail(name)
        join = self.api.link_ends.take()

        def make() -> page_table.PageContent:
            core, table = self.api.core, self.api.incidents()
            links = join().links.values()
            numbers = (*detail.incidents, *detail.victim_of)
            found = [each for each in map(table.find, numbers) if each]
            urgent = worst_first(found)[:_MAX_INCIDENTS]
            events = [each for each in core.events if each.node == name]
            ports: dict[str, link_ends.Port] = {
                link.nic[1]: link.port for link in links if link.nic[0] == name
            }
            is_fresh = self.api.gpus.newest().fresh.get(name)
            shown = {
                "absence": absence if is_fresh else lambda *_: "stale",
                "sm_clock": sm_clock,
                "ports": ports,
                "incidents": incident_pages.documents_of(urgent),
                "events": self.api.event_writer().newest(events, _MAX_EVENTS),
            }
            return page_table.PageContent(detail, shown)

        return await run_in_thread(make)

    def _gpus(self, request: page_table.PageRequest) -> resources.GpuList:
        return self.api.gpus.select(request.credential, request.query)

    def _rail(self, request: page_table.PageRequest) -> page_table.PageContent:
        text, listed = request.parts["rail"], self.api.nodes.rail_list()
        rail = next((each for each in listed.rails if str(each.rail) == text), None)
        if rail is None:
            message = f"unknown rail {text[:20]!r}: expected one with a GPU or a NIC"
            raise ResourceError(HTTPStatus.NOT_FOUND, message)
        part = request.query
        query = gpus_api.GpusQuery(limit=part.limit, offset=part.offset, rail=rail.rail)
        table, gpus = self.api.incidents(), self.api.gpus.select(request.credential, query)
        rails = {uuid: number for _, number, uuid in self.api.gpus.newest().places}
        touching = [
            each
            for each in table.incidents
            if each.is_root
            and (text in each.reach.rails or _rail_of(each.document.cause, rails) == rail.rail)
        ]
        urgent = worst_first(touching)[:_MAX_INCIDENTS]
        rollups = tuple(each for each in listed.rows if each.labels.get("rail") == text)
        detail = resources.RailDetail(
            listed.timestamp_ns, rail, gpus, rollups=rollups[:_MAX_ROLLUPS]
        )
        nodes = () if gpus.found else tuple(self._without_gpus(rail.rail))
        shown = {
            "incidents": incident_pages.documents_of(urgent),
            "nodes": nodes[: page_table.PAGE_ROWS],
        }
        return page_table.PageContent(detail, shown)

    def _without_gpus(self, rail: int) -> Iterator[resources.Node]:
        """Yield the nodes of a rail on which there are only NICs, worst first."""
        none = entity_states.LETTERS[""]
        for row in self.api.nodes.rows():
            if row.rails[rail : rail + 1] not in {"", none}:
                yield row

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


def _rail_of(cause: resources.EntityDocument, rails: Mapping[str, int]) -> int | None:
    """Return the rail of a NIC, a leaf or a GPU; `rails` are those of the GPUs by UUID."""
    if isinstance(cause, resources.GpuDocument):
        return rails.get(cause.uuid)
    rail: int | None = getattr(cause, "rail", None)
    return rail
