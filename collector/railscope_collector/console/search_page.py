"""Search over nodes, GPUs, jobs, incidents and tenants, each as far as the reader may see it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import msgspec

from railscope_collector.console import page_table
from railscope_collector.http import gpus_api, incidents_api, list_query, read_api

MAX_HITS = 30
"""Hits of each kind."""


class SearchHit(msgspec.Struct, frozen=True):
    """One thing that was found."""

    kind: str
    name: str
    text: str
    path: str


class SearchResults(msgspec.Struct, frozen=True):
    """Everything that contains a text; at most 30 of each kind."""

    text: str
    hits: tuple[SearchHit, ...]


@dataclass(slots=True)
class SearchPage:
    """The page of results, from what the API shows to the same reader."""

    api: read_api.ViewApi

    def models(self) -> page_table.PageModels:
        """Return the functions by name of the page."""
        return {"search": page_table.in_thread(self._find)}

    def _find(self, request: page_table.PageRequest) -> SearchResults:
        text = request.query.q.strip()
        if not text:
            return SearchResults("", ())
        searches = (self._nodes, self._gpus, self._jobs, self._incidents, self._tenants)
        hits = (
            hit for search in searches for hit in islice(search(request, text.lower()), MAX_HITS)
        )
        return SearchResults(text, tuple(hits))

    def _nodes(self, request: page_table.PageRequest, text: str) -> Iterator[SearchHit]:
        for row in self.api.nodes.rows() if request.allows("nodes") else ():
            if text in row.node.lower():
                yield SearchHit("node", row.node, row.state, page_table.page_path("node", row.node))

    def _gpus(self, request: page_table.PageRequest, text: str) -> Iterator[SearchHit]:
        """Yield GPUs by UUID, by PCI address, or as `node gpu 3`."""
        if not request.allows("gpus"):
            return
        gpus, names_of = self.api.gpus.newest(), self.api.core.names_of_gpu
        query = gpus_api.GpusQuery(limit=list_query.MAX_ROWS)
        owned = None
        if request.tenant is not None:
            found = self.api.gpus.select(request.credential, query)
            owned = {(row.node, row.gpu) for row in found.rows}
        for node, _, uuid in gpus.places:
            if owned is not None and (node, uuid) not in owned:
                continue
            names = names_of(node, uuid)
            name = f"{node} GPU {names['index'] or uuid}"
            if any(text in each.lower() for each in (uuid, names["pci_address"], name)):
                has_page = request.allows("gpu")
                path = page_table.page_path("gpu", node, names["index"] or uuid) if has_page else ""
                yield SearchHit("GPU", name, f"{uuid} {names['pci_address']}".strip(), path)

    def _jobs(self, request: page_table.PageRequest, text: str) -> Iterator[SearchHit]:
        jobs = self.api.views().jobs if request.allows("jobs") else None
        for job in incidents_api.visible_jobs(jobs, request.credential) if jobs else ():
            tenant, source, workload = job.key
            if text in f"{tenant}/{workload}".lower():
                has_page = bool(tenant and source)
                path = page_table.page_path("job", *job.key) if has_page else ""
                yield SearchHit("job", workload, f"{tenant or 'no tenant'}, {source}", path)

    def _incidents(self, request: page_table.PageRequest, text: str) -> Iterator[SearchHit]:
        if request.allows("incidents"):
            table = self.api.incidents()
            for each in incidents_api.visible_incidents(table, request.credential):
                document = each.document
                if text in f"{document.id} {document.title}".lower():
                    path = page_table.page_path("incident", document.id)
                    state = "open" if each.is_open else "closed"
                    yield SearchHit("incident", document.title, f"{state} {document.id}", path)

    def _tenants(self, request: page_table.PageRequest, text: str) -> Iterator[SearchHit]:
        if request.allows("tenants"):
            names = {cell.labels[0] for cell in self.api.views().tenant.cells if cell.labels}
            for name in sorted(filter(None, names)):
                if text in name.lower() and request.tenant in {None, name}:
                    yield SearchHit("tenant", name, "", page_table.page_path("tenant", name))
