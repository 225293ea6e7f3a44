"""Resource of the list of GPUs with their rails and NICs, worst first, from the newest views.

The list is computed in a thread, once per refresh of the views; a request selects and sorts numbers, and only the
rows of its page become objects.
"""

from __future__ import annotations

import fnmatch
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from http import HTTPStatus
from itertools import islice, pairwise
from typing import Annotated, Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from railscope import api, claim_terms
from railscope.api.status import worst
from railscope.catalog import METRICS, collector as catalog, gpu_health
from railscope.catalog.declare import Metric
from railscope_collector import view_refresh
from railscope_collector.access.credentials import ANYONE, Credential, Role
from railscope_collector.diagnosis import entity_states
from railscope_collector.diagnosis.entity_states import STATES
from railscope_collector.diagnosis.incident_table import IncidentTable
from railscope_collector.fleet.minute_window import WINDOW_NS
from railscope_collector.http import ResourceError, incidents_api, list_query
from railscope_collector.http.resource_server import ResourceRequest
from railscope_collector.state.collector_state import CollectorState
from railscope_collector.views import gpu_list
from railscope_collector.workloads.job_roster import JobGpu

MAX_RAILS = 100
"""Rails of which a response has the number of GPUs."""
_FAILED, _UNKNOWN, _, _HEALTHY = range(len(STATES))
_VERDICTS = [entity_states.GpuVerdict(state) for state in STATES]
_UNLISTED = -(1 << 20)
"""First key of failed GPUs that the node does not list; those without a rail have keys nearer to zero."""
USES = ("claimed", "unclaimed", "idle", "unknown")
"""Uses of a GPU; that of a GPU on a stale node is unknown, as it is without a claim while claims are not known."""
_NIC_STREAMS = ("link", "nic", "rdma")
_Marks = Mapping[str, entity_states.NodeMarks]
_States: TypeAlias = npt.NDArray[np.int8]
"""State of each GPU, or of its NICs, as a position in STATES."""
_Pattern = list_query.SearchText
VALUES: Mapping[str, tuple[str, ...]] = {
    "utilization_ratio": ("railscope_gpu_utilization_ratio",),
    "power_watts": ("railscope_gpu_power_watts",),
    "temperature_celsius": ("railscope_gpu_temperature_celsius",),
    "memory_used_bytes": ("railscope_gpu_memory_used_bytes",),
    "memory_size_bytes": ("railscope_gpu_memory_size_bytes",),
    "link_up": ("railscope_network_link_up", "railscope_rdma_port_up"),
    "receive_bytes_per_second": ("railscope_rdma_receive_bytes_total", "railscope_nic_receive_bytes_total"),
    "transmit_bytes_per_second": ("railscope_rdma_transmit_bytes_total", "railscope_nic_transmit_bytes_total"),
    "paused_ratio": ("railscope_nic_receive_pfc_pause_seconds_total", "railscope_nic_receive_global_pause_seconds_total"),
    "pausing_ratio": ("railscope_nic_transmit_pfc_pause_seconds_total", "railscope_nic_transmit_global_pause_seconds_total"),
    "thermal_throttle_ratio": ("railscope_gpu_throttle_seconds_total",),
    "unclaimed_processes": ("railscope_gpu_unclaimed_processes",),
}  # fmt: skip
"""Metrics of each value of a row: the first one that is reported counts, or the largest of shares of time."""


class GpusQuery(list_query.PartQuery, frozen=True):
    """Query of the list: the part of the list, and patterns such as `gpu-*` without regard to case."""

    state: Literal["", "failed", "degraded", "unknown", "healthy"] = ""
    use: Literal["", "claimed", "unclaimed", "idle", "unknown"] = ""
    sort: Literal[
        "",
        "node",
        "utilization_ratio",
        "power_watts",
        "temperature_celsius",
        "receive_bytes_per_second",
        "pausing_ratio",
    ] = ""
    """Order in place of worst first: by node and rail, or by a reading, the highest first."""
    rail: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] | None = None
    name: _Pattern = ""
    """Part of the name of the node."""
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
    def node_values(self) -> dict[str, dict[Metric, float]]:
        """Values of each node, by metric."""
        values: dict[str, dict[Metric, float]] = defaultdict(dict)
        for cell in self.views.node.cells:
            values[cell.labels[0]][cell.metric] = cell.value
        return {name: found for name, found in values.items() if catalog.NODE_UP in found}

    @cached_property
    def fresh(self) -> dict[str, bool]:
        """Nodes by name, and whether they report."""
        return {name: bool(found[catalog.NODE_UP]) for name, found in self.node_values.items()}

    def age(self, node: str) -> float | None:
        """Return the age of the newest frame of a node; None if it has none."""
        age = self.node_values[node].get(catalog.NODE_AGE)
        return None if age is None else max(age, 0.0)

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
    def is_fresh(self) -> npt.NDArray[np.bool_]:
        """True for each GPU whose node reports."""
        return np.array([self.fresh[node] for node in self.nodes], np.bool_)[self.node_of]

    @cached_property
    def uses(self) -> npt.NDArray[np.intp]:
        """Position in USES of the use of each GPU."""
        unclaimed = self.values[gpu_list.LISTED_METRICS.index("railscope_gpu_unclaimed_processes")]
        jobs = self.views.jobs
        rest = "idle" if jobs.timestamp_ns and not jobs.suppressed else "unknown"
        uses = np.where(unclaimed > 0, USES.index("unclaimed"), USES.index(rest))
        uses[np.isnan(unclaimed)] = USES.index("unknown")
        uses[list(self.holders)] = USES.index("claimed")
        uses[~self.is_fresh] = USES.index("unknown")
        return uses

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
        # Those without a rail have no reading in the list of GPUs.
        for node, uuids in self.views.failed_gpus.items():
            for uuid in uuids:
                verdicts[list(self.positions_of(node, uuid))] = _FAILED
        return verdicts

    def node_rows(self, core: CollectorState) -> Iterator[tuple[api.Node, entity_states.Verdicts]]:
        """Yield the nodes before their states are decided, with the verdicts on their GPUs. Blocking."""
        nodes, codes = dict(core.fleet.nodes), self.verdicts.tolist()
        for name, values in self.node_values.items():
            node = nodes.get(name)
            row = api.Node(
                name,
                gpus=len(self.spans.get(name, ())),
                agent_version=node.agent_version if node else "",
                streams=tuple(sorted(node.rows)) if node else (),
                reporting=float(self.fresh[name]),
                age_seconds=self.age(name),
                clock_offset_seconds=values.get(catalog.NODE_CLOCK_OFFSET),
            )
            yield row, self._verdicts_of(core, name, codes)

    def _verdicts_of(
        self, core: CollectorState, node: str, codes: Sequence[int]
    ) -> entity_states.Verdicts:
        found, listed = dict[int, entity_states.GpuVerdict](), set[str]()
        for position in self.spans.get(node, ()):
            _, rail, uuid = self.places[position]
            listed.add(uuid)
            found[rail] = verdict = _VERDICTS[codes[position]]
            if verdict.is_ill:
                name = f"GPU {core.names_of_gpu(node, uuid)['index'] or uuid}"
                fault = gpu_health.reason_text(next(iter(self.reasons_of(node, rail)), ""))
                found[rail] = verdict._replace(name=name, fault=fault)
        # An agent may report the verdict on a GPU before the GPU itself.
        failed = self.views.failed_gpus.get(node, {})
        for number, uuid in enumerate(sorted(failed.keys() - listed)):
            found[_UNLISTED - number] = _VERDICTS[_FAILED]._replace(name=failed[uuid])
        return found

    def reasons_of(self, node: str, rail: int) -> list[str]:
        """Return the reasons of the verdict on a GPU, causes first."""
        return gpu_health.by_cause(self.views.gpus.reasons.get((node, rail), ()))

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

    def is_shared(self, position: int, tenant: str) -> bool:
        """True if the readings of a GPU show what others do on it, or did in the minute of the readings."""
        from_ns = self.views.timestamp_ns - WINDOW_NS
        return any(
            not each.is_alone or each.holding.start_ns > from_ns
            for each in self.holders.get(position, ())
            if each.holding.job.tenant == tenant
        )

    @cached_property
    def readings(self) -> dict[str, npt.NDArray[np.float64]]:
        """Values of all GPUs by their name in a row; NaN for none."""
        found = {}
        for name, metrics in VALUES.items():
            values = [self.values[gpu_list.LISTED_METRICS.index(each)] for each in metrics]
            # A port uses PFC or link-wide pause, and counts 0 of the other one.
            adds_parts = METRICS[metrics[0]].adds_parts
            found[name] = reduce(_first_known if adds_parts else np.fmax, values)
        return found

    def value(self, position: int, name: str) -> float | None:
        """Return a value of a GPU."""
        number = float(self.readings[name][position])
        return number if math.isfinite(number) else None


def _first_known(
    first: npt.NDArray[np.float64], second: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    return np.where(np.isnan(first), second, first)


@dataclass(slots=True)
class GpusApi:
    """Function of the list; a tenant reads the GPUs that its jobs hold."""

    core: CollectorState
    views: Callable[[], view_refresh.CollectorViews]
    incidents: Callable[[], IncidentTable]
    wall_ns: Callable[[], int]
    _newest: FleetGpus = field(default_factory=lambda: FleetGpus(view_refresh.CollectorViews()))

    def newest(self) -> FleetGpus:
        """Return all GPUs of the newest views: one list for all requests of a refresh, computed on first use."""
        views, found = self.views(), self._newest
        if found.views is not views:
            found = self._newest = FleetGpus(views)
        return found

    def gpu_list(self, request: ResourceRequest) -> api.GpuList:
        """Return the part of the list that a query selects. Blocking; raises ResourceError before the first views."""
        if not self.newest().views.timestamp_ns:
            raise ResourceError(HTTPStatus.SERVICE_UNAVAILABLE, view_refresh.NOT_COMPUTED)
        return self.select(request.credential, request.query)

    def select(self, credential: Credential, query: GpusQuery) -> api.GpuList:
        """Return the part of the list that a query selects. Blocking."""
        gpus, table = self.newest(), self.incidents()
        marks, states, problem = _decide(gpus, table, credential, self.wall_ns())
        nic_states = _nic_states(gpus, marks, is_known=not problem)
        owner = credential.tenant if credential.role is Role.TENANT else None
        chosen = np.flatnonzero(_selected(gpus, states, query, owner))
        # Stable, so that equal states keep the order by node and rail on each page.
        keys = _sort_keys(gpus, states, nic_states, query.sort, owner)
        order = chosen[np.argsort(keys[chosen], kind="stable")]
        part = order[query.offset : query.offset + query.limit].tolist()
        rows = self._rows(gpus, marks, (states, nic_states), owner, part)
        counts = np.bincount(states[chosen], minlength=len(STATES)).tolist()
        uses = np.bincount(gpus.uses[chosen], minlength=len(USES)).tolist()
        return api.GpuList(
            gpus.views.timestamp_ns,
            tuple(rows),
            found=len(order),
            offset=query.offset,
            states=dict(zip(STATES, counts, strict=True)),
            use=dict(zip(USES, uses, strict=True)),
            rails=tuple(_count_by_rail(gpus.rail_of[chosen], states[chosen])),
            problem=problem,
            diagnosis_ns=table.timestamp_ns,
        )

    def of_node(self, node: str) -> tuple[api.Gpu, ...]:
        """Return the GPUs of a node by rail, for readers of all nodes. Blocking."""
        gpus = self.newest()
        marks, states, problem = _decide(gpus, self.incidents(), ANYONE, self.wall_ns())
        nic_states = _nic_states(gpus, marks, is_known=not problem)
        rows = self._rows(gpus, marks, (states, nic_states), None, gpus.spans.get(node, ()))
        return tuple(sorted(rows, key=lambda each: (each.rail is None, each.rail or 0, each.gpu)))

    def _rows(
        self,
        gpus: FleetGpus,
        marks: _Marks,
        states: tuple[_States, _States],
        owner: str | None,
        positions: Iterable[int],
    ) -> Iterator[api.Gpu]:
        nics = _NicNames(self.core)
        for position in positions:
            node, rail, _ = gpus.places[position]
            cell = marks.get(node, entity_states.NodeMarks()).cell(rail)
            state, nic_state = (STATES[each[position]] for each in states)
            yield self._gpu(
                gpus, position, owner, cell, (state, nic_state), nics.on_rail(node, rail)
            )

    def _gpu(  # noqa: PLR0913, PLR0917 - the facts about one GPU
        self,
        gpus: FleetGpus,
        position: int,
        owner: str | None,
        cell: entity_states.CellMarks,
        states: tuple[str, str],
        nics: Sequence[str],
    ) -> api.Gpu:
        node, rail, uuid = gpus.places[position]
        state, nic_state = states
        verdict = STATES[gpus.verdicts[position]]
        holders = gpus.holders.get(position, [])
        holders = [each for each in holders if owner in {None, each.holding.job.tenant}]
        names = self.core.names_of_gpu(node, uuid)
        reasons, of_nic = (
            [each.reason(is_fresh=gpus.fresh[node]) for each in incidents.values()]
            for incidents in (cell.of_gpu, cell.of_nic)
        )
        if worst(cell.gpu, verdict) == verdict:
            reasons = [*gpus.reasons_of(node, rail), *reasons]
        else:
            reasons += gpus.reasons_of(node, rail)
        if not gpus.fresh[node]:
            reasons.insert(0, "no frame is received")
        elif rail < 0:
            reasons.append("the rail of the GPU is not known")
        elif verdict == entity_states.UNKNOWN:
            reasons.append("the agent has no verdict on the GPU")
        reasons += of_nic
        values = {name: gpus.value(position, name) for name in VALUES}
        if owner is not None and gpus.is_shared(position, owner):
            values = dict.fromkeys(values)
            reasons.append(
                "readings are those of several jobs that share the GPU, or held it within a minute"
            )
        link_up, unclaimed = values.pop("link_up"), values.pop("unclaimed_processes")
        if link_up == 0:
            nic_state = "down"
        elif not nics and nic_state in {entity_states.UNKNOWN, entity_states.HEALTHY}:
            nic_state = ""
        return api.Gpu(
            uuid,
            names["index"],
            names["pci_address"],
            rail if rail >= 0 else None,
            node,
            state,
            nics=tuple(nics),
            nic_state=nic_state,
            health=verdict,
            reason=gpu_health.reason_text(next(iter(reasons), "")),
            use=USES[gpus.uses[position]],
            reasons=tuple(reasons),
            incidents=(*cell.of_gpu, *cell.of_nic),
            victim_of=tuple(cell.victim_of),
            age_seconds=gpus.age(node),
            link_up=None if link_up is None else bool(link_up),
            unclaimed_processes=None if unclaimed is None else round(unclaimed),
            holders=tuple(
                api.Holder(*each.holding.job, float(each.holding.units / claim_terms.GPU_CAPACITY))
                for each in holders
            ),
            **values,
        )


def _decide(
    gpus: FleetGpus, table: IncidentTable, credential: Credential, now_ns: int
) -> tuple[_Marks, npt.NDArray[np.int8], str]:
    """Return the marks of all nodes, the state of each GPU as its position in STATES, and why states are not known."""
    visible = incidents_api.visible_incidents(table, credential)
    marks = entity_states.marks_of(visible, gpus.views.gpus.gpus)
    if stale := entity_states.view_problem(gpus.views.timestamp_ns, now_ns):
        return marks, np.full_like(gpus.verdicts, _UNKNOWN), stale
    problem = entity_states.diagnosis_problem(table.timestamp_ns, gpus.views.timestamp_ns)
    states = gpus.verdicts.copy()
    if problem:
        states[states != _FAILED] = _UNKNOWN
    states[~gpus.is_fresh] = _UNKNOWN
    for node, of_node in marks.items():
        for position in gpus.spans.get(node, ()):
            state = entity_states.device_state(
                of_node.cell(gpus.places[position][1]).gpu,
                STATES[gpus.verdicts[position]],
                is_fresh=gpus.fresh[node],
                is_known=not problem,
            )
            states[position] = STATES.index(state)
    return marks, states, problem


def _nic_states(gpus: FleetGpus, marks: _Marks, *, is_known: bool) -> _States:
    """Return the state of the NICs on the rail of each GPU as its position in STATES."""
    states = np.full(len(gpus.places), _HEALTHY if is_known else _UNKNOWN, np.int8)
    states[~gpus.is_fresh] = _UNKNOWN
    for node, of_node in marks.items() if is_known else ():
        for position in gpus.spans.get(node, ()) if gpus.fresh.get(node) else ():
            states[position] = STATES.index(of_node.cell(gpus.places[position][1]).nic)
    return states


def _sort_keys(
    gpus: FleetGpus, states: _States, nic_states: _States, sort: str, owner: str | None
) -> npt.NDArray[np.float64]:
    """Return a key of each GPU that sorts in ascending order; GPUs without a reading for the reader are the last ones."""
    if sort == "node":
        return np.arange(len(states), dtype=np.float64)
    if not sort:
        both = np.minimum(states, nic_states).astype(np.float64)
        return both * len(STATES) + states
    keys = gpus.readings[sort].copy()
    if owner is not None:
        keys[[position for position in gpus.holders if gpus.is_shared(position, owner)]] = np.nan
    return -keys


def _selected(
    gpus: FleetGpus, states: npt.NDArray[np.int8], query: GpusQuery, owner: str | None
) -> npt.NDArray[np.bool_]:
    """Return for each GPU whether the query and the scope of the reader select it."""
    selected = np.ones(len(gpus.places), np.bool_)
    if query.state:
        selected &= states == STATES.index(query.state)
    if query.use:
        selected &= gpus.uses == USES.index(query.use)
    if query.rail is not None:
        selected &= gpus.rail_of == query.rail
    if query.node or query.name:
        is_named = [
            _matches(node, query.node or "*") and query.name.lower() in node.lower()
            for node in gpus.nodes
        ]
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
                for names in rows[stream].schema.device_names.values() if stream in rows else ():
                    if names["kind"] == "nic" and names.get("rail"):
                        found[names["rail"]].add(names["interface"] or names["device"])
            self._nodes[node] = {name: sorted(filter(None, nics)) for name, nics in found.items()}
        return self._nodes[node].get(str(rail), [])
