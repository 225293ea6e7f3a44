"""Runs the queries of a dashboard on a Prometheus: variables and queries are filled in as in Grafana."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import aiohttp
import numpy as np
from numpy.typing import NDArray

from railscope.http_responses import read_body
from railscope_dashboards import COLUMNS, DashboardsError

Values = Mapping[str, str]
Numbers = NDArray[np.float64]

_ROUND_SECONDS = (1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1200, 1800, 3600, 7200, 10_800)
_SCRAPES_OF_A_RATE = 4
_NATURAL_ORDER = 7
"""VariableSort of the Grafana schema: ascending, numbers in a text by their value."""
TIMEOUT_SECONDS, MAX_ANSWER_BYTES = 120.0, 256 << 20


class PrometheusError(DashboardsError, RuntimeError):
    """A Prometheus is unreachable or rejects a query, or a selected value is not offered."""


@dataclass(frozen=True, slots=True)
class QueryWindow:
    """The time range of a dashboard, in seconds since 1970, and the scrape interval of its data."""

    start: float
    end: float
    scrape_seconds: float = 15.0

    def grid(self, points: int) -> Numbers:
        """Return the timestamps of a curve: about `points`, never closer than scrapes, at whole steps."""
        shortest = max((self.end - self.start) / points, self.scrape_seconds)
        fitting = [step for step in _ROUND_SECONDS if step >= shortest]
        step = float(fitting[0] if fitting else shortest)
        first = np.ceil(self.start / step)
        times = np.arange(first, np.floor(self.end / step) + 1) * step
        return times if len(times) else np.array([self.end])

    def rate_interval(self, step_seconds: float = 0.0) -> str:
        """$__rate_interval: long enough for a rate, whatever the step and the scrape times."""
        shortest = _SCRAPES_OF_A_RATE * self.scrape_seconds
        return f"{max(step_seconds + self.scrape_seconds, shortest):g}s"


@dataclass(frozen=True, slots=True)
class ResultSeries:
    """Result of a query for one label set: one number per timestamp, NaN if absent."""

    labels: Mapping[str, str]
    values: Numbers


@dataclass(frozen=True, slots=True)
class QueryResult:
    """Result of a query at some timestamps, in seconds since 1970; an instant query has one."""

    times: Numbers
    series: tuple[ResultSeries, ...]


def fill_variables(text: str, values: Values) -> str:
    """Replace the variables of a text, $name or ${name}, by values."""
    return re.sub(
        r"\$(?:(\w+)|\{(\w+)\})", lambda name: values.get(name[1] or name[2], name[0]), text
    )


class Prometheus:
    """The API of a Prometheus, or of a compatible server; a context manager."""

    def __init__(
        self,
        url: str,
        *,
        max_at_once: int = 4,
        timeout_seconds: float = TIMEOUT_SECONDS,
        max_bytes: int = MAX_ANSWER_BYTES,
    ) -> None:
        self.url = url
        self._api = url.rstrip("/") + "/api/v1/"
        self._max_at_once = max_at_once
        self._timeout_seconds, self._max_bytes = timeout_seconds, max_bytes

    async def __aenter__(self) -> Self:
        """Open connections as needed."""
        connector = aiohttp.TCPConnector(limit=self._max_at_once)
        timeout = aiohttp.ClientTimeout(total=self._timeout_seconds)
        self._session = aiohttp.ClientSession(connector=connector, timeout=timeout)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the connections."""
        await self._session.close()

    async def get(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer. Raises PrometheusError if there is none."""
        try:
            async with self._session.get(self._api + path, params=parameters) as response:
                answer = json.loads(await read_body(response, self._max_bytes))
        except (aiohttp.ClientError, OSError) as error:
            message = f"no response from {self._api}: {error or type(error).__name__}"
            raise PrometheusError(message) from error
        except ValueError as error:
            message = (
                f"unexpected response from {self._api}{path}: expected the JSON of "
                "the API of Prometheus"
            )
            raise PrometheusError(message) from error
        if answer.get("status") != "success":
            message = f"{self._api}{path} rejected {parameters}: {answer.get('error', 'no reason')}"
            raise PrometheusError(message)
        return answer["data"]

    async def query_instant(self, expression: str, at: float) -> QueryResult:
        """Evaluate an expression at one timestamp."""
        data = await self.get("query", query=expression, time=str(at))
        if data["resultType"] == "scalar":
            data["result"] = [{"metric": {}, "value": data["result"]}]
        series = (
            ResultSeries(result["metric"], np.array([float(result["value"][1])]))
            for result in data["result"]
        )
        return QueryResult(np.array([at]), tuple(series))

    async def query_range(self, expression: str, times: Numbers) -> QueryResult:
        """Evaluate an expression at evenly spaced timestamps."""
        step = float(times[1] - times[0]) if len(times) > 1 else 1.0
        data = await self.get(
            "query_range", query=expression, start=str(times[0]), end=str(times[-1]), step=str(step)
        )
        series = []
        for result in data["result"]:
            values = np.full(len(times), np.nan)
            for timestamp, value in result["values"]:
                values[round((float(timestamp) - times[0]) / step)] = float(value)
            series.append(ResultSeries(result["metric"], values))
        return QueryResult(times, tuple(series))

    async def offered_values(self, variable: Mapping[str, Any], made: Values) -> list[str]:
        """Return the values that a variable may take, after earlier choices; All is a separate value."""
        if variable["type"] == "datasource":
            return [""]
        if variable.get("includeAll"):
            return [variable["allValue"]]
        match = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"])
        if match is None:
            message = (
                f"variable {variable['name']}: unsupported query "
                f"{variable['query']}: expected label_values()"
            )
            raise PrometheusError(message)
        values: list[str] = await self.get(
            f"label/{match[2]}/values", **{"match[]": fill_variables(match[1], made)}
        )
        ordered = sorted(values, key=_natural) if variable["sort"] == _NATURAL_ORDER else values
        return ordered[:1] if variable.get("hide") else ordered

    async def choices(
        self, variables: Sequence[Mapping[str, Any]], made: Values | None = None
    ) -> AsyncIterator[Values]:
        """Yield every combination of values of a dashboard's variables, as Grafana would offer them.

        A hidden variable without any value is empty.
        """
        made = made or {}
        if not variables:
            yield made
            return
        variable, *rest = variables
        offered = await self.offered_values(variable, made)
        for value in offered or ([""] if variable.get("hide") else []):
            async for choice in self.choices(rest, {**made, variable["name"]: value}):
                yield choice

    async def choose_values(
        self, variables: Sequence[Mapping[str, Any]], requested: Values
    ) -> Values:
        """Select the requested values of a dashboard's variables, and the first offered value of the others.

        A variable with multiple selection takes all of its values; one without any value is left
        empty. Raises PrometheusError if a requested value is not offered.
        """
        made: dict[str, str] = {}
        for variable in variables:
            name, offered = variable["name"], await self.offered_values(variable, made)
            first = offered[0] if offered else ""
            made[name] = first if variable.get("includeAll") else requested.get(name, first)
            if offered and made[name] not in offered:
                message = f"unknown {name} {made[name]}: expected {', '.join(offered)}"
                raise PrometheusError(message)
        return made


@dataclass(frozen=True, slots=True)
class DashboardResults:
    """Query results of a dashboard, with the selected values of its variables."""

    window: QueryWindow
    choices: Values
    panels: Mapping[int, tuple[QueryResult, ...]]
    """Results of the targets of each panel, by panel id."""
    marks: tuple[QueryResult, ...]
    """Results of the annotations, in the order of the dashboard."""


async def query_dashboard(
    prometheus: Prometheus,
    dashboard: Mapping[str, Any],
    window: QueryWindow,
    requested: Values,
    points: int,
) -> DashboardResults:
    """Run all queries of a dashboard; its curves have about `points` points across the dashboard."""
    choices = await prometheus.choose_values(dashboard["templating"]["list"], requested)

    async def run_query(target: Mapping[str, Any], max_points: int) -> QueryResult:
        times = window.grid(max_points)
        step = float(times[1] - times[0]) if len(times) > 1 else 0.0
        is_instant = target.get("instant", False)
        interval = window.rate_interval(0.0 if is_instant else step)
        expression = fill_variables(target["expr"], {**choices, "__rate_interval": interval})
        if is_instant:
            return await prometheus.query_instant(expression, window.end)
        return await prometheus.query_range(expression, times)

    async def panel_answers(panel: Mapping[str, Any]) -> tuple[QueryResult, ...]:
        wide = round(points * panel["gridPos"]["w"] / COLUMNS)
        max_points = max(min(wide, panel.get("maxDataPoints", wide)), 1)
        return tuple(
            await asyncio.gather(*(run_query(each, max_points) for each in panel["targets"]))
        )

    panels = [panel for panel in dashboard["panels"] if "targets" in panel]
    answers = await asyncio.gather(*map(panel_answers, panels))
    marks = await asyncio.gather(
        *(run_query(each, points) for each in dashboard["annotations"]["list"])
    )
    by_number = {panel["id"]: each for panel, each in zip(panels, answers, strict=True)}
    return DashboardResults(window, choices, by_number, tuple(marks))


def _natural(text: str) -> list[tuple[int, str]]:
    """Sort key that orders the numbers in texts by their value."""
    return [
        (int(part), "") if part.isdigit() else (-1, part) for part in re.findall(r"\d+|\D+", text)
    ]
