"""Pages with curves: a GPU and its NIC on one time axis, a node, a rail, a job.

Curves come from a server with history. Without one, those of GPUs and nodes come from the frame log. The period is in the URL,
`from` and `to`, as RFC 3339 or Unix milliseconds; without them it is the last 15 minutes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import NamedTuple

import msgspec
import numpy as np

from railscope import api as resources, timestamps
from railscope.device_names import DeviceKey, Names, choose_most_complete
from railscope.service import run_in_thread
from railscope.timestamps import SECOND_NS
from railscope_collector.console import (
    curves,
    device_figures,
    group_curves,
    history_server,
    node_history,
    page_table,
    stored_frames,
)
from railscope_collector.diagnosis import entity_states
from railscope_collector.http import ResourceError
from railscope_collector.http.read_api import ViewApi
from railscope_collector.http.read_pool import ReadPool
from railscope_collector.workloads.job_roster import JobKey

MINUTE_NS = 60 * SECOND_NS
USUAL_PERIOD_NS = 15 * MINUTE_NS
MIN_PERIOD_NS = 10 * SECOND_NS
MAX_SERVER_PERIOD_NS = 31 * timestamps.DAY_NS
# 2000-01-01: seconds since 1970, taken for milliseconds, are before it.
OLDEST_NS = 946_684_800 * SECOND_NS
SERVER_FAILED = "the server with history cannot be read now"
"""Reason for tenants: it has no address."""
NO_SERVER = (
    "rails and jobs have curves if the setting console.history_url names a server with history"
)
ServerHistory = Callable[
    [Sequence[history_server.CurveQuery], curves.TimeRange],
    Awaitable[Mapping[str, curves.HistoryCurve]],
]
"""Reads the curves of queries; raises ResourceError with the reason."""


class ShownPeriod(msgspec.Struct, frozen=True):
    """The period of a page."""

    from_ns: int
    to_ns: int
    is_live: bool
    """True if the page shows the present and moves with it."""

    @property
    def range(self) -> curves.TimeRange:
        """The period as a range of times."""
        return curves.TimeRange(self.from_ns, self.to_ns)


class CurvesModel(msgspec.Struct, frozen=True):
    """Figures over one period."""

    period: ShownPeriod
    source: str
    """Origin of the values."""
    problem: str
    """Reason why older values are missing; empty for none."""
    figures: tuple[curves.Figure, ...]
    gaps: str
    """Reasons for the gaps of all figures."""

    @classmethod
    def of(
        cls, period: ShownPeriod, source: str, problem: str, shown: tuple[curves.Figure, ...]
    ) -> CurvesModel:
        """Return figures with the reasons for their gaps."""
        gaps = curves.gaps_text(curve for figure in shown for curve in figure.curves)
        return cls(period, source, problem, shown, gaps)


class GpuPageModel(msgspec.Struct, frozen=True):
    """A GPU and its NIC on one time axis."""

    gpu: resources.Gpu
    nics: tuple[Mapping[str, str], ...]
    """Names of the NICs on the same rail."""
    history: CurvesModel


class NodeHistoryModel(msgspec.Struct, frozen=True):
    """Processors, memory, GPUs and NICs of a node on one time axis."""

    node: str
    history: CurvesModel


class GroupPageModel(msgspec.Struct, frozen=True):
    """Sums and extremes of a rail or of a job over one period."""

    group: str
    """Name of the rail or of the job."""
    history: CurvesModel


def parse_time(name: str, text: str) -> int:
    """Parse a time of a query. Raises ResourceError."""
    try:
        time_ns = (
            int(text) * 1_000_000
            if text.isascii() and text.isdigit()
            else timestamps.parse_timestamp(text)
        )
    except (ValueError, OverflowError):
        time_ns = -1
    if not OLDEST_NS <= time_ns < timestamps.FOREVER_NS // 2:
        message = f"invalid {name} {text!r}: expected a time such as 2026-11-22T19:00:00Z, or Unix milliseconds"
        raise ResourceError(HTTPStatus.BAD_REQUEST, message)
    return time_ns


def shown_period(query: page_table.HistoryQuery, now_ns: int, max_ns: int) -> ShownPeriod:
    """Return the period of a query; the end is not after the present. Raises ResourceError."""
    named = {"from": query.from_, "to": query.to}
    times = {name: parse_time(name, text) for name, text in named.items() if text}
    to_ns = times.get("to", max(now_ns, times.get("from", 0) + MIN_PERIOD_NS))
    from_ns = times.get("from", to_ns - USUAL_PERIOD_NS)
    if from_ns >= now_ns:
        message = "invalid period: expected one that has begun"
        raise ResourceError(HTTPStatus.BAD_REQUEST, message)
    to_ns = min(to_ns, max(now_ns, from_ns + MIN_PERIOD_NS))
    if not MIN_PERIOD_NS <= to_ns - from_ns <= max_ns:
        longest = f"{max_ns // (60 * MINUTE_NS)} hours"
        message = f"invalid period: expected 10 seconds to {longest}, and from before to"
        raise ResourceError(HTTPStatus.BAD_REQUEST, message)
    return ShownPeriod(from_ns, to_ns, not times)


class ShownDevices(NamedTuple):
    """Devices of a node, by the device that curves name: their keys in frames, and the values of the labels of their metrics."""

    keys: node_history.DeviceKeys
    labels: history_server.DeviceLabels

    @classmethod
    def of(cls, devices: Mapping[str, Mapping[DeviceKey, Names]]) -> ShownDevices:
        """Return devices with their names by key."""
        labels = {
            device: {
                label: sorted({each[name] for each in named.values() if each.get(name)})
                for label, name in _LABELS.items()
            }
            for device, named in devices.items()
        }
        return cls({device: frozenset(named) for device, named in devices.items()}, labels)


_LABELS = {"gpu": "uuid", "interface": "interface", "device": "device"}
"""Names of devices by the label of their metrics."""


def _nics(names: Mapping[DeviceKey, Names], rail: str) -> dict[DeviceKey, Names]:
    return {
        key: each for key, each in names.items() if each["kind"] == "nic" and each["rail"] == rail
    }


@dataclass(frozen=True, slots=True)
class HistoryPages:
    """Models of the pages with curves."""

    api: ViewApi
    frames: stored_frames.StoredFrames
    reading: ReadPool
    server: ServerHistory | None = None
    """Reads curves of a server with history; None without one."""

    @classmethod
    def from_api(cls, api: ViewApi, reading: ReadPool) -> HistoryPages:
        """Return the pages of a collector, with the frame log that its API has the size of. Raises SettingsError."""
        frames = stored_frames.StoredFrames.from_directory(
            api.metrics.log.directory, api.core.schemas.read
        )
        server = history_server.HistoryServer(api.console) if api.console.history_url else None
        return cls(api, frames, reading, server.read if server else None)

    def models(self) -> page_table.PageModels:
        """Return the functions by name of the page."""
        return {
            "gpu": self._gpu,
            "node_history": self._node,
            "rail_history": self._rail,
            "job_history": self._job,
        }

    async def _read_server(
        self,
        request: page_table.PageRequest,
        queries: Sequence[history_server.CurveQuery],
        period: ShownPeriod,
    ) -> Mapping[str, curves.HistoryCurve]:
        """Return the curves of queries. Raises ResourceError with the reason for none."""
        if self.server is None:
            raise ResourceError(HTTPStatus.NOT_FOUND, NO_SERVER)
        try:
            with self.reading.permit(request.credential):
                return await self.server(queries, period.range)
        except ResourceError as error:
            text = error.text if request.tenant is None else SERVER_FAILED
            raise ResourceError(error.status, text) from None

    # Rails and jobs ---------------------------------------------------------------------------

    async def _rail(self, request: page_table.PageRequest) -> GroupPageModel:
        return await self._group(request, request.parts["rail"], group_curves.RAIL_FIGURES)

    async def _job(self, request: page_table.PageRequest) -> GroupPageModel:
        parts = request.parts
        key = JobKey(parts["tenant"], parts["source"], parts["workload"])
        return await self._group(request, key, group_curves.JOB_FIGURES)

    async def _group(
        self,
        request: page_table.PageRequest,
        key: group_curves.GroupKey,
        shown: curves.FigureTitles,
    ) -> GroupPageModel:
        """Return the curves of a rail or a job, or the reason for none. Raises ResourceError."""
        period = shown_period(request.query, self.api.wall_ns(), MAX_SERVER_PERIOD_NS)
        found, problem = dict[str, curves.HistoryCurve](), ""
        try:
            found |= await self._read_server(request, group_curves.queries(key, shown), period)
        except ResourceError as error:
            problem = error.text
        name = key if isinstance(key, str) else key.workload
        # One without a value may never have existed: it has no page then.
        if not any(np.isfinite(curve.values).any() for curve in found.values()):
            exists = await self.reading.read(request.credential, lambda: self._exists(key))
            if not exists:
                message = f"no history of {name[:100]!r}: expected a rail, or a job that runs"
                raise ResourceError(HTTPStatus.NOT_FOUND, message)
        width = request.query.width
        models = await run_in_thread(curves.make_figures, shown, found, period.range, width)
        return GroupPageModel(name, CurvesModel.of(period, history_server.SOURCE, problem, models))

    def _exists(self, key: group_curves.GroupKey) -> bool:
        """True for a rail with devices, and for a job that runs. Blocking."""
        if isinstance(key, str):
            return any(str(each.rail) == key for each in self.api.nodes.rail_list().rails)
        return any(job.key == key for job in self.api.views().jobs.jobs)

    # Devices of a node ------------------------------------------------------------------------

    async def _gpu(self, request: page_table.PageRequest) -> page_table.PageContent:
        node, index = request.parts["node"], request.parts["index"]
        names = self._names_of(node)
        named = self._find_gpu(node, index, names)
        rails = {uuid: rail for rail, uuid in self.api.core.gpus_by_rail(node).items()}
        rail = rails.get(named["uuid"])
        nics = {} if rail is None else _nics(names, str(rail))
        gpus = {key: each for key, each in names.items() if each.get("uuid") == named["uuid"]}
        figures = [*device_figures.GPU_FIGURES, *(device_figures.NIC_FIGURES if nics else ())]
        devices = ShownDevices.of({"gpu": gpus, "nic": nics})
        history = await self._device_curves(request, devices, figures)
        listed = await run_in_thread(self.api.gpus.of_node, node)
        identity = named["uuid"], named["index"], named["pci_address"], rail, node
        unknown = resources.Gpu(*identity, entity_states.UNKNOWN)
        gpu = next((each for each in listed if each.gpu == named["uuid"]), unknown)
        incidents = map(self.api.incidents().find, (*gpu.incidents, *gpu.victim_of))
        shown = {"incidents": [each.document for each in incidents if each]}
        by_name = {each["interface"] or each["device"]: dict(each) for each in nics.values()}
        on_rail = tuple(by_name[name] for name in sorted(by_name))
        return page_table.PageContent(GpuPageModel(gpu, on_rail, history), shown)

    async def _node(self, request: page_table.PageRequest) -> NodeHistoryModel:
        node = request.parts["node"]
        names = self._names_of(node)
        nics = {key: each for key, each in names.items() if each["kind"] == "nic"}
        rails = sorted({int(each["rail"]) for each in nics.values() if each["rail"].isdecimal()})
        devices = ShownDevices.of(
            {
                "node": {(): {}},
                "gpu": {key: each for key, each in names.items() if each["kind"] == "gpu"},
                "nic": nics,
                **{f"rail {rail}": _nics(names, str(rail)) for rail in rails},
            }
        )
        figures = device_figures.node_figures(rails)
        return NodeHistoryModel(node, await self._device_curves(request, devices, figures))

    async def _device_curves(
        self,
        request: page_table.PageRequest,
        devices: ShownDevices,
        figures: Iterable[device_figures.NamedFigure],
    ) -> CurvesModel:
        """Return the curves of devices of a node: those of the server, else those of the frame log. Raises ResourceError."""
        max_ns = MAX_SERVER_PERIOD_NS if self.server else node_history.MAX_PERIOD_NS
        period = shown_period(request.query, self.api.wall_ns(), max_ns)
        node, figures = request.parts["node"], list(figures)
        found: Mapping[str, curves.HistoryCurve] = {}
        source, problem = history_server.SOURCE, ""
        try:
            queries = history_server.device_queries(figures, node, devices.labels)
            found = await self._read_server(request, queries, period)
        except ResourceError as error:
            problem = error.text if self.server else ""
            if period.to_ns - period.from_ns <= node_history.MAX_PERIOD_NS:
                source = node_history.SOURCE
                read = await self.reading.read(
                    request.credential,
                    lambda: node_history.read_curves(
                        self.frames, node, devices.keys, figures, period.range
                    ),
                )
                found, problem = read.curves, problem or read.missing(period.from_ns)
        titles = {
            each.name: (each.title, [curve.name for curve in each.curves]) for each in figures
        }
        models = await self.reading.read(
            request.credential,
            lambda: curves.make_figures(titles, found, period.range, request.query.width),
        )
        return CurvesModel.of(period, source, problem, models)

    def _names_of(self, node: str) -> dict[DeviceKey, Names]:
        """Return the names of the devices of a node. Raises ResourceError."""
        fleet_node = self.api.core.fleet.nodes.get(node)
        if fleet_node is None:
            message = f"unknown node {node!r}: expected one that has reported"
            raise ResourceError(HTTPStatus.NOT_FOUND, message)
        names: dict[DeviceKey, Names] = {}
        for row in list(fleet_node.rows.values()):
            for key, of_key in row.schema.device_names.items():
                names[key] = choose_most_complete([of_key, names.get(key, of_key)]) or of_key
        return names

    def _find_gpu(self, node: str, index: str, names: Mapping[DeviceKey, Names]) -> Names:
        """Return the names of the GPU with an index or UUID. Raises ResourceError."""
        gpus = [each for each in names.values() if each["kind"] == "gpu"]
        chosen = [each for each in gpus if index in {each["index"], each["uuid"]}]
        if not chosen and not any(each["index"] for each in gpus):  # without indices: by rail
            rail = int(index) if index.isdecimal() else -1
            by_rail = self.api.core.gpus_by_rail(node).get(rail)
            chosen = [each for each in gpus if each["uuid"] == by_rail]
        gpu = choose_most_complete(chosen)
        if gpu is None:
            message = f"unknown GPU {index!r} of {node}: expected an index or UUID that it reports"
            raise ResourceError(HTTPStatus.NOT_FOUND, message)
        return gpu
