"""Pages with curves: a GPU and its NIC on one time axis, by a server with history, or else by the frame log.

The period is in the URL: `from` and `to`, or `at` for the minutes around a moment, as RFC 3339 or Unix milliseconds; without
them the last 15 minutes. A moment that is no longer stored is reported with its reason.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus

import msgspec
import numpy as np

from railscope import api as resources, figures, timestamps
from railscope.device_names import DeviceKey, Names, choose_most_complete
from railscope.service import run_in_thread
from railscope.timestamps import SECOND_NS
from railscope_collector.console import (
    PageProblemError,
    curves,
    device_figures,
    group_curves,
    history_server,
    node_history,
    page_table,
    stored_frames,
)
from railscope_collector.diagnosis import entity_states
from railscope_collector.diagnosis.incident_table import IncidentTable
from railscope_collector.http.read_api import ViewApi
from railscope_collector.http.read_pool import ReadPool
from railscope_collector.state.collector_state import CollectorState
from railscope_collector.workloads.job_roster import JobKey

MINUTE_NS = 60 * SECOND_NS
USUAL_PERIOD_NS = 15 * MINUTE_NS
BEFORE_NS, AFTER_NS = 10 * MINUTE_NS, 5 * MINUTE_NS
"""Minutes around a moment."""
LIVE_STEP_NS = 10 * SECOND_NS
"""Period of the refresh of a page that shows the present."""
MIN_PERIOD_NS = 10 * SECOND_NS
MAX_SERVER_PERIOD_NS = 31 * timestamps.DAY_NS
# 2000-01-01: seconds since 1970, taken for milliseconds, are before it.
OLDEST_NS = 946_684_800 * SECOND_NS
MAX_MODELS = 16


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


class FigureRow(msgspec.Struct, frozen=True):
    """Smallest and largest value of each curve of a figure in one part of the period, in words."""

    from_ns: int
    cells: tuple[str, ...]


class FigureModel(msgspec.Struct, frozen=True):
    """A figure: its curves, thinned to the width of a picture, the captions and the table."""

    name: str
    title: str
    unit: str
    symbol: str
    """The unit as it follows a number; empty for a ratio."""
    curves: tuple[curves.ThinnedCurve, ...]
    captions: tuple[str, ...]
    rows: tuple[FigureRow, ...]


class CurvesModel(msgspec.Struct, frozen=True):
    """Figures over one period."""

    period: ShownPeriod
    source: str
    """Origin of the values."""
    problem: str
    """Reason why older values are missing; empty for none."""
    figures: tuple[FigureModel, ...]
    gaps: str
    """Reasons for the gaps of all figures."""

    @classmethod
    def of(
        cls, period: ShownPeriod, source: str, problem: str, shown: tuple[FigureModel, ...]
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
    has_server: bool = False
    """True if a server has what the collector no longer keeps."""


SERVER_FAILED = "the server with history cannot be read now"
"""Reason for tenants: it has no address."""
NO_SERVER = "curves of a job need a server with history: ask the operator of the cluster"
SHARED_GPUS = "the job shares its GPUs, whose readings are not its own"
MAX_GROUP_PERIOD_NS = timestamps.HOUR_NS


ServerHistory = Callable[
    [Sequence[history_server.CurveQuery], curves.TimeRange],
    Awaitable[Mapping[str, curves.HistoryCurve]],
]
"""Reads the curves of queries; raises PageProblemError with the reason."""


def parse_moment(name: str, text: str) -> int:
    """Parse a time of a query. Raises PageProblemError."""
    try:
        moment_ns = (
            int(text) * 1_000_000
            if text.isascii() and text.isdigit()
            else timestamps.parse_timestamp(text)
        )
    except (ValueError, OverflowError):
        moment_ns = -1
    if not OLDEST_NS <= moment_ns < timestamps.FOREVER_NS // 2:
        message = f"invalid {name} {text!r}: expected a time such as 2026-11-22T19:00:00Z, or Unix milliseconds"
        raise PageProblemError(HTTPStatus.BAD_REQUEST, message)
    return moment_ns


def shown_period(query: page_table.HistoryQuery, now_ns: int, max_ns: int) -> ShownPeriod:
    """Return the period of a query; the end is not after the present. Raises PageProblemError."""
    # Rounded down: readers of the present share one period, and its model.
    present_ns = now_ns // LIVE_STEP_NS * LIVE_STEP_NS
    named = {"from": query.from_, "to": query.to, "at": query.at}
    moments = {name: parse_moment(name, text) for name, text in named.items() if text}
    if "at" in moments and len(moments) > 1:
        message = "invalid period: expected either at, or from and to"
        raise PageProblemError(HTTPStatus.BAD_REQUEST, message)
    if "at" in moments:
        from_ns, to_ns = moments["at"] - BEFORE_NS, moments["at"] + AFTER_NS
    else:
        to_ns = moments.get("to", max(present_ns, moments.get("from", 0) + MIN_PERIOD_NS))
        from_ns = moments.get("from", to_ns - USUAL_PERIOD_NS)
    if from_ns >= now_ns:
        message = "invalid period: expected one that has begun"
        raise PageProblemError(HTTPStatus.BAD_REQUEST, message)
    to_ns = min(to_ns, max(present_ns, from_ns + MIN_PERIOD_NS))
    if not MIN_PERIOD_NS <= to_ns - from_ns <= max_ns:
        longest = f"{max_ns // (60 * MINUTE_NS)} hours"
        message = f"invalid period: expected 10 seconds to {longest}, and from before to"
        raise PageProblemError(HTTPStatus.BAD_REQUEST, message)
    return ShownPeriod(from_ns, to_ns, not moments)


def figure_model(
    name: str,
    title: str,
    shown: Sequence[curves.HistoryCurve],
    period: curves.TimeRange,
    width: int,
) -> FigureModel:
    """Return a figure of curves of one unit."""
    unit = shown[0].unit
    tables = [curves.table_rows(curve, period) for curve in shown]
    rows = [
        FigureRow(parts[0].from_ns, tuple(_cell(part, unit) for part in parts))
        for parts in zip(*tables, strict=True)
    ]
    documents = tuple(curves.thin_curve(curve, period, width) for curve in shown)
    captions = tuple(curves.caption(curve) for curve in shown)
    return FigureModel(name, title, unit, figures.symbol_of(unit), documents, captions, tuple(rows))


def figure_models(
    figures: Sequence[device_figures.NamedFigure],
    found: Mapping[str, curves.HistoryCurve],
    period: curves.TimeRange,
    width: int,
) -> tuple[FigureModel, ...]:
    """Return figures of the curves that were found; a figure without any is left out."""
    shown = {
        figure: [found[curve.name] for curve in figure.curves if curve.name in found]
        for figure in figures
    }
    return tuple(
        figure_model(figure.name, figure.title, of_figure, period, width)
        for figure, of_figure in shown.items()
        if of_figure
    )


def _cell(row: curves.TableRow, unit: str) -> str:
    if row.minimum != row.minimum:
        return "unknown"
    low, high = (figures.quantity(value, unit) for value in (row.minimum, row.maximum))
    return low if low == high else f"{low} to {high}"


def _missing_period(oldest_ns: int, period: ShownPeriod) -> str:
    """Return the part of a period that the frame log lacks, by its oldest record; empty for none."""
    if 0 < oldest_ns <= period.from_ns:
        return ""
    if not oldest_ns:
        return "no frame of this period is stored"
    return f"stored since {timestamps.utc_text(oldest_ns)}"


@dataclass(slots=True)
class HistoryPages:
    """Models of the pages with curves."""

    core: CollectorState
    frames: stored_frames.StoredFrames
    reading: ReadPool
    wall_ns: Callable[[], int]
    find_members: Callable[[group_curves.GroupKey], group_curves.GroupMembers] = lambda _: {}
    """Returns the devices of a rail or a job; none of one that does not exist now. Blocking: it reads all nodes."""
    gpus_of: Callable[[str], Sequence[resources.Gpu]] = lambda _: ()
    """Returns the GPUs of a node with their states. Blocking."""
    incidents: Callable[[], IncidentTable] = IncidentTable
    server: ServerHistory | None = None
    """Reads curves of a server with history; None without one."""
    _models: OrderedDict[tuple[object, ...], CurvesModel] = field(default_factory=OrderedDict)
    """The newest ones of periods, which all readers of a period share."""

    @classmethod
    def from_api(cls, api: ViewApi, reading: ReadPool) -> HistoryPages:
        """Return the pages of a collector, with the frame log that its API has the size of."""
        directory = api.metrics.log.directory
        frames = stored_frames.StoredFrames.from_directory(directory, api.core.schemas.read)
        has_server = bool(api.console.history_url)
        return cls(
            api.core,
            frames,
            reading,
            api.wall_ns,
            partial(group_curves.find_members, api),
            api.gpus.of_node,
            api.incidents,
            history_server.HistoryServer(api.console).read if has_server else None,
        )

    def models(self) -> page_table.PageModels:
        """Return the functions by name of the page."""
        return {
            "gpu": self._gpu,
            "node_history": self._node,
            "rail_history": self._rail,
            "job_history": self._job,
        }

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
        figures: group_curves.GroupFigures,
    ) -> GroupPageModel:
        """Return the curves of a rail or a job: those of the server, else of some nodes. Raises PageProblemError."""
        max_ns = MAX_SERVER_PERIOD_NS if self.server else MAX_GROUP_PERIOD_NS
        period, width = shown_period(request.query, self.wall_ns(), max_ns), request.query.width
        name, problem = key if isinstance(key, str) else key.workload, ""
        if self.server:
            try:
                with self.reading.permit(request.credential):
                    found = await self.server(group_curves.queries(key, figures), period.range)
            except PageProblemError as error:
                problem = error.text if request.tenant is None else SERVER_FAILED
            else:
                # One without a value may never have existed: it has no page then.
                if not any(np.isfinite(curve.values).any() for curve in found.values()):
                    await self._find_nodes(request, key)
                named = group_curves.named_figures(figures)
                models = await run_in_thread(figure_models, named, found, period.range, width)
                shown = CurvesModel.of(period, history_server.SOURCE, "", models)
                return GroupPageModel(name, shown, has_server=True)
        nodes, count = await self._find_nodes(request, key, problem)
        if period.to_ns - period.from_ns > MAX_GROUP_PERIOD_NS:
            raise PageProblemError(HTTPStatus.BAD_GATEWAY, problem)
        if request.tenant is not None:
            # The frame log has readings of devices, and other tenants may have held or shared these before.
            shown = CurvesModel.of(period, history_server.SOURCE, problem or NO_SERVER, ())
            return GroupPageModel(name, shown, self.server is not None)
        source = f"the frame log of the collector, {len(nodes)} of {count} nodes"
        if isinstance(key, JobKey) and not any(k for each in nodes for k in each.keys.values()):
            problem = problem or SHARED_GPUS
        members = ((each.node, each.since_ns, *each.keys.values()) for each in nodes)
        cached = (key, *members, period.range, width)
        model = self._models.get(cached)
        if model is None:

            def read() -> tuple[FigureModel, ...]:
                named, found = group_curves.read_nodes(self.frames, nodes, period.range)
                return figure_models(named, found, period.range, width)

            models = await self.reading.read(request.credential, read)
            model = CurvesModel.of(period, source, problem, models)
            self._keep(cached, model)
        shown = msgspec.structs.replace(model, period=period, problem=problem)
        return GroupPageModel(name, shown, self.server is not None)

    async def _find_nodes(
        self, request: page_table.PageRequest, key: group_curves.GroupKey, problem: str = ""
    ) -> tuple[list[group_curves.GroupNode], int]:
        """Return the first nodes of a rail or a job with their devices there, and the number of all. Raises PageProblemError."""
        members = await self.reading.read(request.credential, lambda: self.find_members(key))
        if not members:
            if problem:
                raise PageProblemError(HTTPStatus.BAD_GATEWAY, problem)
            name = key if isinstance(key, str) else key.workload
            message = f"no history of {name[:100]!r}: expected a rail, or a job that runs"
            raise PageProblemError(HTTPStatus.NOT_FOUND, message)
        chosen = list(members.items())[: group_curves.MAX_NODES]
        nodes = [group_curves.group_node(node, self._names_of(node), of) for node, of in chosen]
        return nodes, len(members)

    def _keep(self, key: tuple[object, ...], model: CurvesModel) -> None:
        self._models[key] = model
        if len(self._models) > MAX_MODELS:
            self._models.popitem(last=False)

    async def _gpu(self, request: page_table.PageRequest) -> page_table.PageContent:
        node, index = request.parts["node"], request.parts["index"]
        pair = self.find_pair(node, index)
        figures = [*device_figures.GPU_FIGURES, *(device_figures.NIC_FIGURES if pair.nics else ())]
        history = await self._device_curves(request, pair, figures)
        nics = tuple(map(dict, pair.nics))
        uuid, names = pair.gpu["uuid"], (pair.gpu["index"], pair.gpu["pci_address"])
        listed = await run_in_thread(self.gpus_of, node)
        unknown = resources.Gpu(uuid, *names, pair.rail, node, entity_states.UNKNOWN)
        gpu = next((each for each in listed if each.gpu == uuid), unknown)
        numbers = (*gpu.incidents, *gpu.victim_of)
        found = [each for each in map(self.incidents().find, numbers) if each]
        shown = {"incidents": [each.document for each in found]}
        return page_table.PageContent(GpuPageModel(gpu, nics, history), shown)

    async def _node(self, request: page_table.PageRequest) -> NodeHistoryModel:
        node = request.parts["node"]
        names = self._names_of(node)
        nics = [(key, each["rail"]) for key, each in names.items() if each["kind"] == "nic"]
        rails = sorted({int(rail) for _, rail in nics if rail.isdecimal()})
        keys = {
            "node": frozenset[DeviceKey]({()}),
            "gpu": frozenset(key for key, each in names.items() if each["kind"] == "gpu"),
            "nic": frozenset(key for key, _ in nics),
            **{f"rail {n}": frozenset(k for k, rail in nics if rail == str(n)) for n in rails},
        }
        of_nics = [each for each in names.values() if each["kind"] == "nic"]
        uuids = [each["uuid"] for each in names.values() if each["kind"] == "gpu"]
        labels = {
            "gpu": {"gpu": sorted(set(uuids))},
            "nic": node_history.nic_labels(of_nics),
            **{
                f"rail {n}": node_history.nic_labels(
                    each for each in of_nics if each["rail"] == str(n)
                )
                for n in rails
            },
        }
        devices = node_history.PairDevices({}, (), None, keys, labels)
        figures = device_figures.node_figures(rails)
        return NodeHistoryModel(node, await self._device_curves(request, devices, figures))

    async def _device_curves(
        self,
        request: page_table.PageRequest,
        devices: node_history.PairDevices,
        figures: Sequence[device_figures.NamedFigure],
    ) -> CurvesModel:
        """Return the curves of devices of a node, read once for all readers of a period."""
        max_ns = MAX_SERVER_PERIOD_NS if self.server else node_history.MAX_PERIOD_NS
        period, width = shown_period(request.query, self.wall_ns(), max_ns), request.query.width
        key = (*request.parts.values(), period.range, width, *devices.keys.values())
        model = self._models.get(key)
        if model is None:
            model = await self._curves(request, devices, figures, period)
            # A failure of the server is not kept: the next reader may have more.
            if not self.server or not model.problem:
                self._keep(key, model)
        # The same times may be those of the present for one reader, and chosen by another one.
        return msgspec.structs.replace(model, period=period)

    async def _curves(
        self,
        request: page_table.PageRequest,
        devices: node_history.PairDevices,
        figures: Sequence[device_figures.NamedFigure],
        period: ShownPeriod,
    ) -> CurvesModel:
        node, width = request.parts["node"], request.query.width
        found: Mapping[str, curves.HistoryCurve] = {}
        source, problem = history_server.SOURCE, ""
        if self.server:
            queries = history_server.device_queries(figures, node, devices.labels)
            try:
                found = await self.server(queries, period.range)
            except PageProblemError as error:
                problem = error.text
        if not self.server or problem:
            source = "the frame log of the collector"
            if period.to_ns - period.from_ns <= node_history.MAX_PERIOD_NS:
                read = await self.reading.read(
                    request.credential,
                    lambda: node_history.read_curves(
                        self.frames, node, devices.keys, figures, period.range
                    ),
                )
                found, problem = read.curves, problem or _missing_period(read.oldest_ns, period)
        models = await self.reading.read(
            request.credential, lambda: figure_models(figures, found, period.range, width)
        )
        return CurvesModel.of(period, source, problem, models)

    def _names_of(self, node: str) -> dict[DeviceKey, Names]:
        """Return the names of the devices of a node. Raises PageProblemError."""
        fleet_node = self.core.fleet.nodes.get(node)
        if fleet_node is None:
            message = f"unknown node {node!r}: expected one that has reported"
            raise PageProblemError(HTTPStatus.NOT_FOUND, message)
        names: dict[DeviceKey, Names] = {}
        for row in list(fleet_node.rows.values()):
            schema = self.core.schemas.get(row.schema)
            for key, of_key in schema.names.items() if schema else ():
                names[key] = choose_most_complete([of_key, names.get(key, of_key)]) or of_key
        return names

    def find_pair(self, node: str, index: str) -> node_history.PairDevices:
        """Return the GPU with an index or UUID, and the NICs on its rail. Raises PageProblemError."""
        names = self._names_of(node)
        gpus = [each for each in names.values() if each["kind"] == "gpu"]
        chosen = [each for each in gpus if index in {each["index"], each["uuid"]}]
        rails = {uuid: rail for rail, uuid in self.core.gpus_by_rail(node).items()}
        by_rail = self.core.gpus_by_rail(node).get(int(index) if index.isdecimal() else -1)
        if not chosen and not any(each["index"] for each in gpus):  # without indices: by rail
            chosen = [each for each in gpus if each["uuid"] == by_rail]
        gpu = choose_most_complete(chosen)
        if gpu is None:
            message = f"unknown GPU {index!r} of {node}: expected an index or UUID that it reports"
            raise PageProblemError(HTTPStatus.NOT_FOUND, message)
        rail = rails.get(gpu["uuid"], -1)
        on_rail = {
            key: each
            for key, each in names.items()
            if each["kind"] == "nic" and rail >= 0 and each["rail"] == str(rail)
        }
        nics = {each["interface"] or each["device"]: each for each in on_rail.values()}
        keys: node_history.DeviceKeys = {
            "gpu": frozenset(key for key, each in names.items() if each.get("uuid") == gpu["uuid"]),
            "nic": frozenset(on_rail),
        }
        shown = tuple(nics[name] for name in sorted(nics))
        labels = {"gpu": {"gpu": [gpu["uuid"]]}, "nic": node_history.nic_labels(shown)}
        return node_history.PairDevices(gpu, shown, rail if rail >= 0 else None, keys, labels)
