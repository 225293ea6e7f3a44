"""Route of the list of GPUs with their rails and NICs, worst first, from the newest views.

The list is computed in a thread, once per refresh of the views; a request selects and sorts numbers, and only the
rows of its page become objects.
"""

from __future__ import annotations

import fnmatch
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from http import HTTPStatus
from itertools import chain, islice, pairwise, starmap
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from aiohttp import web

from railscope import claim_terms
from railscope.catalog import METRICS, collector as catalog
from railscope_collector import view_refresh
from railscope_collector.access.credentials import Credential, Role
from railscope_collector.diagnosis import incident_report as report
from railscope_collector.diagnosis.entity_states import NO_DATA, STATES, diagnosis_problem
from railscope_collector.diagnosis.incident_classes import Severity
from railscope_collector.diagnosis.incident_table import IncidentTable, ReportedIncident
from railscope_collector.http import incidents_api, json_responses
from railscope_collector.state.collector_state import CollectorState
from railscope_collector.views import gpu_list
from railscope_collector.workloads.job_roster import JobGpu

MAX_LISTED = 1000
"""GPUs of one response."""
MAX_RAILS = 100
"""Rails of which a response has the number of GPUs."""
_FAILED, _UNKNOWN, _DEGRADED, _ = range(len(STATES))
_NIC_STREAMS = ("link", "nic", "rdma")
_Pattern = Annotated[str, msgspec.Meta(max_length=100)]
_VALUES: Mapping[str, tuple[str, ...]] = {
    "utilization_ratio": ("railscope_gpu_utilization_ratio",),
    "power_watts": ("railscope_gpu_power_watts",),
    "temperature_celsius": ("railscope_gpu_temperature_celsius",),
    "memory_used_bytes": ("railscope_gpu_memory_used_bytes",),
    "memory_size_bytes": ("railscope_gpu_memory_size_bytes",),
    "link_up": ("railscope_network_link_up", "railscope_rdma_port_up"),
    "receive_bytes_per_second": ("railscope_rdma_receive_bytes_total", "railscope_nic_receive_bytes_total"),
    "transmit_bytes_per_second": ("railscope_rdma_transmit_bytes_total", "railscope_nic_transmit_bytes_total"),
}  # fmt: skip
"""Metrics of each value of a row; the first one that is reported counts."""


class GpusQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Query of the list: the part of the list, and patterns such as `gpu-*` without regard to case."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_LISTED)] = 100
    offset: Annotated[int, msgspec.Meta(ge=0, le=10_000_000)] = 0
    state: Literal["", "failed", "degraded", "unknown", "healthy"] = ""
    rail: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] | None = None
    node: _Pattern = ""
    gpu: _Pattern = ""
    """UUID."""
    tenant: _Pattern = ""
    workload: _Pattern = ""


@dataclass
class FleetGpus:
    """All GPUs of one refresh, by node and rail: the rail is -1 for a GPU without one."""

    views: view_refresh.CollectorViews

    @cached_property
    def ages(self) -> dict[str, float]:
        """Age of the newest frame of each node that has one."""
        cells = self.views.node.cells
        return {c.labels[0]: max(c.value, 0.0) for c in cells if c.metric is catalog.NODE_AGE}

    @cached_property
    def fresh(self) -> dict[str, bool]:
        """Nodes by name, and whether they report."""
        cells = self.views.node.cells
        return {c.labels[0]: bool(c.value) for c in cells if c.metric is catalog.NODE_UP}

    @cached_property
    def places(self) -> list[tuple[str, int, str]]:
        """Node, rail and UUID of each GPU, by node."""
        gpus = self.views.gpus.gpus
        return [
            (node, rail, uuid)
            for node in sorted(self.fresh)
            for rail, uuid in sorted(gpus.get(node, {}).items())
        ]

    @cached_property
    def nodes(self) -> dict[str, int]:
        """Number of each node with GPUs."""
        return {
            name: number for number, name in enumerate(dict.fromkeys(p[0] for p in self.places))
        }

    @cached_property
    def node_of(self) -> npt.NDArray[np.intp]:
        """Number of the node of each GPU."""
        return np.array([self.nodes[node] for node, _, _ in self.places], np.intp)

    @cached_property
    def rail_of(self) -> npt.NDArray[np.intp]:
        """Rail of each GPU."""
        return np.array([max(rail, -1) for _, rail, _ in self.places], np.intp)

    @cached_property
    def values(self) -> npt.NDArray[np.float64]:
        """Values by number of the metric and GPU; NaN for none."""
        return self.views.gpus.by_gpu([place[:2] for place in self.places])

    @cached_property
    def verdicts(self) -> npt.NDArray[np.int8]:
        """Position in STATES of the verdict of the agent on each GPU; unknown without a fresh one."""
        codes = METRICS[gpu_list.LISTED_METRICS[0]].states
        verdicts = np.full(len(self.places), _UNKNOWN, np.int8)
        for code, name in codes.items():
            verdicts[self.values[0] == code] = STATES.index(name)
        return verdicts

    @cached_property
    def spans(self) -> dict[str, range]:
        """Positions of the GPUs of each node."""
        ends = np.searchsorted(self.node_of, np.arange(len(self.nodes)), "right").tolist()
        return {
            node: range(*span) for node, span in zip(self.nodes, pairwise([0, *ends]), strict=True)
        }

    def positions_of(self, node: str, about: int | str | None) -> Iterator[int]:
        """Yield the GPU with a UUID, the GPU on a rail, or all GPUs of a node."""
        for position in self.spans.get(node, ()):
            if about is None or about in self.places[position][1:]:
                yield position

    @cached_property
    def holders(self) -> dict[int, list[JobGpu]]:
        """Holdings of the running jobs by position of the GPU."""
        holders = defaultdict(list)
        for job in self.views.jobs.jobs:
            for place in job.places:
                for position in self.positions_of(place.holding.node, place.gpu):
                    holders[position].append(place)
        return dict(holders)

    def value(self, position: int, names: Sequence[str]) -> float | None:
        """Return the first metric of a GPU that has a value."""
        numbers = (float(self.values[gpu_list.LISTED_METRICS.index(n), position]) for n in names)
        return next((number for number in numbers if math.isfinite(number)), None)


def _touching(
    gpus: FleetGpus, incidents: Iterable[ReportedIncident]
) -> dict[int, dict[str, tuple[int, ReportedIncident]]]:
    """Return the open incidents, except those of severity info, by GPU and id, each with the state that it means for the GPU."""
    touching: dict[int, dict[str, tuple[int, ReportedIncident]]] = defaultdict(dict)
    for incident in incidents:
        document = incident.document
        if not incident.is_open or document.severity == Severity.INFO:
            continue
        is_critical = incident.is_root and document.severity == Severity.CRITICAL
        # An incident about missing data shows nothing about the device.
        caused = _FAILED if is_critical and document.incident_class not in NO_DATA else _DEGRADED
        victims = ((nic.node, nic.rail) for nic in incident.victim_nics if nic.rail is not None)
        for state, places in ((caused, _places_of(document.cause)), (_DEGRADED, victims)):
            for position in chain.from_iterable(starmap(gpus.positions_of, places)):
                touching[position].setdefault(document.id, (state, incident))
    return touching


def _places_of(cause: report.EntityDocument) -> Iterator[tuple[str, int | str | None]]:
    match cause:
        case report.GpuDocument(node=node, uuid=uuid):
            yield node, uuid
        case report.NicDocument(node=node, rail=int(rail)):
            yield node, rail
        case report.NodeDocument(node=node):
            yield node, None
        case report.RackDocument(nodes=nodes):
            yield from ((node, None) for node in nodes)


@dataclass(slots=True)
class GpusApi:
    """Handler of the list; a tenant reads the GPUs that its jobs hold."""

    core: CollectorState
    views: Callable[[], view_refresh.CollectorViews]
    incidents: Callable[[], IncidentTable]
    _newest: FleetGpus = field(default_factory=lambda: FleetGpus(view_refresh.CollectorViews()))

    async def list(self, request: web.Request, credential: Credential) -> web.Response:
        """Return a part of the list."""
        views, table = self.views(), self.incidents()
        if not views.timestamp_ns:
            text = "the views have not been computed yet"
            return json_responses.json_error(HTTPStatus.SERVICE_UNAVAILABLE, text)
        try:
            query = msgspec.convert(dict(request.query), GpusQuery, strict=False)
        except msgspec.ValidationError as error:
            text = f"invalid query: {str(error)[:200]}"
            return json_responses.json_error(HTTPStatus.BAD_REQUEST, text)
        # One list for all requests of a refresh: it is computed on first use, and each part once.
        if self._newest.views is not views:
            self._newest = FleetGpus(views)
        make = partial(self.content, self._newest, table, credential, query)
        version = (views.timestamp_ns, table.timestamp_ns, credential.tenant, query)
        return await json_responses.tagged_response(request, make, *version)

    def content(
        self, gpus: FleetGpus, table: IncidentTable, credential: Credential, query: GpusQuery
    ) -> dict[str, Any]:
        """Return the part of the list that a query selects. Blocking."""
        touching = _touching(gpus, incidents_api.visible_incidents(table, credential))
        states = gpus.verdicts.copy()
        problem = diagnosis_problem(table.timestamp_ns, gpus.views.timestamp_ns)
        for position, found in touching.items():
            if not problem and gpus.fresh[gpus.places[position][0]]:
                states[position] = min(states[position], *(state for state, _ in found.values()))
        if problem:
            # A failure that the agent reported stays true, with or without a diagnosis.
            states[states != _FAILED] = _UNKNOWN
        owner = credential.tenant if credential.role is Role.TENANT else None
        chosen = np.flatnonzero(_selected(gpus, states, query, owner))
        # Stable, so that equal states keep the order by node and rail on each page.
        order = chosen[np.argsort(states[chosen], kind="stable")]
        part = order[query.offset : query.offset + query.limit].tolist()
        nics = _NicNames(self.core)
        counts = np.bincount(states[chosen], minlength=len(STATES)).tolist()
        return {
            "view": "gpus",
            "timestamp_ns": gpus.views.timestamp_ns,
            "diagnosis_ns": table.timestamp_ns,
            "problem": problem,
            "found": len(order),
            "states": dict(zip(STATES, counts, strict=True)),
            "rails": _count_by_rail(gpus.rail_of[chosen], states[chosen]),
            "offset": query.offset,
            "rows": [
                self._row(gpus, position, owner, [e for _, e in touching[position].values()])
                | {"state": STATES[states[position]]}
                | {"nics": nics.on_rail(*gpus.places[position][:2])}
                for position in part
            ],
        }

    def _row(
        self,
        gpus: FleetGpus,
        position: int,
        owner: str | None,
        incidents: Sequence[ReportedIncident],
    ) -> dict[str, Any]:
        node, rail, uuid = gpus.places[position]
        holders = gpus.holders.get(position, [])
        holders = [each for each in holders if owner in {None, each.holding.job.tenant}]
        names = self.core.names_of_gpu(node, uuid)
        reasons = [*gpus.views.gpus.reasons.get((node, rail), ())]
        reasons += [each.document.title for each in incidents]
        if not gpus.fresh[node]:
            reasons.insert(0, "no frame is received")
        elif rail < 0:
            reasons.append("the rail of the GPU is not known")
        elif gpus.verdicts[position] == _UNKNOWN:
            reasons.append("the agent has no verdict on the GPU")
        values = {name: gpus.value(position, metrics) for name, metrics in _VALUES.items()}
        # A reading of a shared GPU shows what other tenants do.
        if owner is not None and not all(each.is_alone for each in holders):
            values = dict.fromkeys(values)
            reasons.append("readings are those of several jobs that share the GPU")
        return {
            "node": node,
            "gpu": uuid,
            "index": names["index"],
            "pci_address": names["pci_address"],
            "rail": rail if rail >= 0 else None,
            "health": STATES[gpus.verdicts[position]],
            "reasons": reasons,
            "incidents": [each.document.id for each in incidents],
            "age_seconds": gpus.ages.get(node),
            **values,
            "link_up": None if values["link_up"] is None else bool(values["link_up"]),
            "holders": [
                each.holding.job._asdict()
                | {"held_ratio": float(each.holding.units / claim_terms.GPU_CAPACITY)}
                for each in holders
            ],
        }


def _selected(
    gpus: FleetGpus, states: npt.NDArray[np.int8], query: GpusQuery, owner: str | None
) -> npt.NDArray[np.bool_]:
    """Return for each GPU whether the query and the scope of the reader select it."""
    selected = np.ones(len(gpus.places), np.bool_)
    if query.state:
        selected &= states == STATES.index(query.state)
    if query.rail is not None:
        selected &= gpus.rail_of == query.rail
    if query.node:
        is_named = [_matches(node, query.node) for node in gpus.nodes]
        selected &= np.array(is_named, np.bool_)[gpus.node_of]
    if query.gpu:
        selected &= np.array([_matches(uuid, query.gpu) for *_, uuid in gpus.places], np.bool_)
    if owner is not None or query.tenant or query.workload:
        is_held = np.zeros(len(gpus.places), np.bool_)
        for position, holders in gpus.holders.items():
            is_held[position] = any(
                owner in {None, key.tenant}
                and _matches(key.tenant, query.tenant or "*")
                and _matches(key.workload, query.workload or "*")
                for key in (each.holding.job for each in holders)
            )
        selected &= is_held
    return selected


def _count_by_rail(
    rails: npt.NDArray[np.intp], states: npt.NDArray[np.int8]
) -> list[dict[str, int]]:
    """Return the number of GPUs of each rail by state."""
    found, number_of = np.unique(rails, return_inverse=True)
    counts = np.bincount(number_of * len(STATES) + states, minlength=len(found) * len(STATES))
    rows = zip(found.tolist(), counts.reshape(-1, len(STATES)).tolist(), strict=True)
    return [
        {"rail": rail, **dict(zip(STATES, row, strict=True))}
        for rail, row in islice(rows, MAX_RAILS)
        if rail >= 0
    ]


def _matches(text: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(text.lower(), pattern.lower())


@dataclass(slots=True)
class _NicNames:
    """Names of the NICs of nodes by rail, each node read once."""

    core: CollectorState
    _nodes: dict[str, dict[str, list[str]]] = field(default_factory=dict)

    def on_rail(self, node: str, rail: int) -> list[str]:
        """Return the interfaces, or the RDMA devices without one, on a rail of a node."""
        if node not in self._nodes:
            found: dict[str, set[str]] = defaultdict(set)
            fleet_node = self.core.fleet.nodes.get(node)
            rows = dict(fleet_node.rows) if fleet_node else {}
            for stream in _NIC_STREAMS:
                schema = self.core.schemas.get(rows[stream].schema) if stream in rows else None
                for names in schema.names.values() if schema else ():
                    if names["kind"] == "nic" and names.get("rail"):
                        found[names["rail"]].add(names["interface"] or names["device"])
            self._nodes[node] = {name: sorted(filter(None, nics)) for name, nics in found.items()}
        return self._nodes[node].get(str(rail), [])
