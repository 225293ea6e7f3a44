"""Metrics endpoint: /metrics and /metrics/dcgm in both text formats, health, readiness, list of paths."""

from __future__ import annotations

import hmac
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from http import HTTPStatus
from urllib.parse import parse_qs

from railscope import __version__
from railscope.catalog import SUBJECTS, agent as catalog, entities
from railscope.catalog.declare import MetricDetail
from railscope.exposition import EVERYTHING, Exposition, MetricSelection, TextFormat
from railscope.frame import Entity, Frame, Schema
from railscope.http_server import HttpServerRequest, HttpServerResponse
from railscope.settings import SettingsError
from railscope.timestamps import SECOND_NS
from railscope_agent import config, endpoint
from railscope_agent.sampling.status import STARTING, SourceState

# Probes of Kubernetes and load balancers have no token; these pages contain no readings.
_OPEN_PATHS = {"/-/healthy", "/-/ready"}
_MAX_PARAMETERS, _MAX_QUOTED = 100, 64
_OFF = "off"
MAX_OTHER_SELECTIONS = 2
"""Cached selections beside the configured one."""
UNUSED_NS = 5 * 60 * SECOND_NS
"""Time after which the cache drops a selection that is not requested."""


class _QueryError(endpoint.EndpointError, ValueError):
    """An invalid query of a scrape; the message states what was expected."""


def configured_selection(settings: config.MetricsSettings) -> MetricSelection:
    """Return the selection of the settings. Raises SettingsError for an unknown group."""
    if unknown := settings.groups.keys() - SUBJECTS.keys():
        raise SettingsError(_format_invalid("metrics.groups", min(unknown), sorted(SUBJECTS)))
    groups = tuple(
        (name, None if detail == _OFF else MetricDetail(detail))
        for name, detail in sorted(settings.groups.items())
    )
    return MetricSelection(MetricDetail(settings.detail), groups)


def _format_invalid(name: str, value: str, expected: Iterable[str]) -> str:
    return f"invalid {name}: {value[:_MAX_QUOTED]!r}: expected one of {', '.join(expected)}"


def query_selection(
    query: str, configured: MetricSelection, sources: Iterable[str]
) -> MetricSelection:
    """Return the selection of a scrape: `detail`, and repeated `collect[]` and `exclude[]`.

    A detail replaces that of the settings and of all groups; groups that are off stay off. Other parameters
    are ignored, as Prometheus' own scrapers expect. Raises ValueError.
    """
    if not query:
        return configured
    try:
        parameters = parse_qs(query, max_num_fields=_MAX_PARAMETERS)
    except ValueError as error:
        message = f"invalid query: expected at most {_MAX_PARAMETERS} parameters"
        raise _QueryError(message) from error
    names = SUBJECTS.keys() | set(sources)
    chosen = {}
    for parameter in ("collect[]", "exclude[]"):
        chosen[parameter] = frozenset(parameters.get(parameter, ()))
        if unknown := chosen[parameter] - names:
            raise _QueryError(_format_invalid(parameter, min(unknown), sorted(names)))
    collected, excluded = chosen.values()
    if not (detail := parameters.get("detail", [""])[-1]):
        return replace(configured, collected=collected, excluded=excluded)
    if detail not in set(MetricDetail):
        raise _QueryError(_format_invalid("detail", detail, MetricDetail))
    off = tuple(group for group in configured.group_details if group[1] is None)
    return MetricSelection(MetricDetail(detail), off, collected, excluded)


class ExpositionCache:
    """Expositions of the selections that are requested repeatedly.

    Templates and rendered lines of a selection take several MiB. The cache retains those of the configured
    selection, and of a few others for some minutes after a request.
    """

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self.configured = EVERYTHING
        """Selection of scrapes that specify none."""
        self._now_ns = now_ns
        self.cached: dict[MetricSelection, tuple[Exposition, int]] = {}

    def exposition(self, selection: MetricSelection) -> Exposition:
        """Return the exposition of a selection, a new one if none is cached."""
        # Removed and added again, which moves it to the end: the table is in order of use.
        cached = self.cached.pop(selection, None)
        exposition = cached[0] if cached else Exposition(selection)
        self.cached[selection] = exposition, self._now_ns()
        self.drop_unused()
        return exposition

    def drop_unused(self) -> None:
        """Drop selections that were not requested for some minutes, and the least recent beyond the bound."""
        oldest_ns = self._now_ns() - UNUSED_NS
        unconfigured = [chosen for chosen in self.cached if chosen != self.configured]
        for position, chosen in enumerate(reversed(unconfigured)):
            if position >= MAX_OTHER_SELECTIONS or self.cached[chosen][1] < oldest_ns:
                del self.cached[chosen]

    def clear(self) -> None:
        """Drop all expositions."""
        self.cached.clear()


class MetricsEndpoint:
    """Serves the latest readings, except those that are stale."""

    def __init__(
        self,
        node: str,
        statuses: Callable[[], Iterable[SourceState]],
        now_ns: Callable[[], int],
        token: str,
    ) -> None:
        self._node = node
        self.expositions = ExpositionCache(now_ns)
        self._statuses = statuses
        self._now_ns = now_ns
        self.token = token
        self._api: Callable[..., bytes] | None = None
        self._dcgm: Callable[[Iterable[Frame], TextFormat], str] | None = None

    def respond(self, request: HttpServerRequest) -> HttpServerResponse:
        """Respond to a request."""
        self.expositions.drop_unused()
        shown = request.headers.get("authorization", "").removeprefix("Bearer ")
        # A comparison that ends at the first difference would reveal the token by its duration.
        may_read = hmac.compare_digest(shown.encode(), self.token.encode())
        if self.token and request.path not in _OPEN_PATHS and not may_read:
            text = "401: missing or wrong token: expected the agent's metrics_token as bearer token"
            rejection = HttpServerResponse.text(text, HTTPStatus.UNAUTHORIZED)
            return replace(rejection, headers={"WWW-Authenticate": "Bearer"})
        answers = {
            "/metrics": self._metrics,
            "/metrics/dcgm": self._dcgm_metrics,
            "/-/healthy": lambda _: HttpServerResponse.text("healthy"),
            "/-/ready": self._ready,
            "/api/v1/gpus": self._document,
            "/api/v1/status": self._document,
        }
        if request.path == "/":
            paths = "\n".join(answers)
            return HttpServerResponse.text(
                f"Railscope agent {__version__} on {self._node}\n{paths}"
            )
        answer = answers.get(request.path)
        if answer is None:
            text = f"404: unknown path: expected one of {', '.join(answers)}"
            return HttpServerResponse.text(text, HTTPStatus.NOT_FOUND)
        return answer(request)

    def fresh_frames(self) -> list[Frame]:
        """Return the frames that are not stale, in the order of the sources."""
        now_ns = self._now_ns()
        frames = (status.fresh_frame(now_ns) for status in self._statuses())
        return [frame for frame in frames if frame]

    def _metrics(self, request: HttpServerRequest) -> HttpServerResponse:
        try:
            sources = (status.source.name for status in self._statuses())
            selection = query_selection(request.query, self.expositions.configured, sources)
        except _QueryError as error:
            return HttpServerResponse.text(f"400: {error}", HTTPStatus.BAD_REQUEST)
        return _exposition_response(request, lambda form: self.text(form, selection))

    def text(self, text_format: TextFormat, selection: MetricSelection | None = None) -> str:
        """Render the exposition of a selection, by default the configured one."""
        chosen = selection or self.expositions.configured
        frames = self.fresh_frames()
        return self.expositions.exposition(chosen).render(
            [*frames, *_read_times(frames)], text_format
        )

    def _dcgm_metrics(self, request: HttpServerRequest) -> HttpServerResponse:
        if request.query:
            text = (
                f"400: invalid query: {request.query[:_MAX_QUOTED]!r}: expected no parameters on /metrics/dcgm;"
                " fix: select metrics on /metrics, or by metric_relabel_configs of Prometheus"
            )
            return HttpServerResponse.text(text, HTTPStatus.BAD_REQUEST)
        return _exposition_response(request, self.dcgm_text)

    def dcgm_text(self, text_format: TextFormat) -> str:
        """Render the exposition under the names of dcgm-exporter."""
        if self._dcgm is None:
            from railscope_agent.endpoint.dcgm import DcgmExposition  # noqa: PLC0415 - rarely needed

            self._dcgm = DcgmExposition(self._node).render
        return self._dcgm(self.fresh_frames(), text_format)

    def _document(self, request: HttpServerRequest) -> HttpServerResponse:
        """Return a document of the API, for `railscope ... --agent`."""
        if self._api is None:
            from railscope_agent.endpoint.node_api import NodeApi  # noqa: PLC0415 - rarely needed

            self._api = NodeApi(self._node).document
        body = self._api(request.path, list(self._statuses()), self._now_ns())
        return HttpServerResponse(body, "application/json")

    def forget(self) -> None:
        """Drop cached exposition state; the next scrape builds it again."""
        self.expositions.clear()
        self._dcgm = None

    def _ready(self, _: HttpServerRequest) -> HttpServerResponse:
        waiting = [s.source.name for s in self._statuses() if s.state == STARTING]
        if waiting:
            text = f"waiting for {', '.join(waiting)}"
            return HttpServerResponse.text(text, HTTPStatus.SERVICE_UNAVAILABLE)
        return HttpServerResponse.text("ready")


def _read_times(frames: Sequence[Frame]) -> Iterator[Frame]:
    """Yield a frame with the times of these frames.

    No source can read them: a frame may be replaced between the read of that source and a scrape.
    """
    if not frames:
        return
    last = frames[-1]
    times = array("q", [frame.timestamp.wall_ns for frame in frames])
    schema = _times_schema(tuple(frame.schema.stream for frame in frames))
    yield Frame(last.origin, schema, 0, last.timestamp, times)


@lru_cache(maxsize=4)
def _times_schema(sources: tuple[str, ...]) -> Schema:
    columns = [(catalog.SOURCE_READ_AT, Entity(entities.SOURCE, (name,))) for name in sources]
    return Schema("agent", tuple(columns))


def _exposition_response(
    request: HttpServerRequest, text: Callable[[TextFormat], str]
) -> HttpServerResponse:
    text_format = TextFormat.negotiate(request.headers.get("accept", ""))
    return HttpServerResponse(text(text_format).encode(), text_format.value)
