"""History from a Prometheus-compatible server, by its HTTP API: curves of the devices of nodes, of rails and of jobs.

The names of devices are those of the catalog, as agents expose them, with the label `node`; those of rails and jobs are
roll-ups, as the collector exposes them. Above a minute for each value, the smallest and the largest value of each step are
requested. Tenants read the curves of their own jobs only.
"""

from __future__ import annotations

import asyncio
import math
import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import NamedTuple, TypeAlias

import aiohttp
import msgspec
import numpy as np

from railscope import settings as settings_files
from railscope.catalog import METRICS
from railscope.http_responses import read_body
from railscope.timestamps import SECOND_NS
from railscope.tls_contexts import client_tls
from railscope.untrusted_text import printable
from railscope_collector.config import ConsoleSettings
from railscope_collector.console import curves, device_figures, node_history
from railscope_collector.http import ResourceError

SOURCE = "the server with history"
MAX_POINTS = 480
MIN_STEP_SECONDS, RATE_SECONDS = 15, 120
MAX_PLAIN_STEP_SECONDS = 60
"""Seconds between two values above which extremes are requested."""
MAX_QUERIES = 4
"""Concurrent queries of one page."""
MAX_RESPONSE_BYTES = 4 << 20
_FAILURES = (aiohttp.ClientError, OSError, msgspec.MsgspecError, ValueError)
_Values: TypeAlias = tuple[curves.Times, curves.Floats]


class _Series(msgspec.Struct):
    values: list[tuple[float, str]] = []


class _Matrix(msgspec.Struct):
    result: list[_Series] = []


class _Answer(msgspec.Struct):
    status: str
    data: _Matrix | None = None
    error: str = ""


def quoted(text: str) -> str:
    """Return a text as a string of PromQL."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


class CurveQuery(NamedTuple):
    """A curve, and its query in PromQL."""

    name: str
    label: str
    unit: str
    text: str


DeviceLabels: TypeAlias = Mapping[str, Mapping[str, Sequence[str]]]
"""Values of the labels of metrics, by the device that curves name; the node itself has none."""


def device_queries(
    figures: Sequence[device_figures.NamedFigure], node: str, labels: DeviceLabels
) -> list[CurveQuery]:
    """Return the queries of curves of devices of a node."""
    return [
        CurveQuery(curve.name, curve.label, figure.unit, _device_query(curve, node, labels))
        for figure in figures
        for curve in figure.curves
    ]


def _device_query(curve: device_figures.NamedCurve, node: str, labels: DeviceLabels) -> str:
    found = []
    for source in curve.sources:
        about = METRICS[source.metric].about
        count = len(about.outermost.labels)
        matchers = [f"node={quoted(node)}"]
        if count:
            label = about.labels[0]
            values = "|".join(map(re.escape, labels[curve.device].get(label, ())))
            matchers.append(f"{label}=~{quoted(values)}")
        if source.parts:
            parts = "|".join(re.escape(part).replace(r"\*", ".*") for part in source.parts)
            matchers.append(f"{about.labels[count]}=~{quoted(parts)}")
        selector = f"{source.metric}{{{','.join(matchers)}}}"
        value = f"rate({selector}[{RATE_SECONDS}s])" if source.is_counter else selector
        combine = "avg" if curve.combine == "mean" else curve.combine
        limit = METRICS[source.metric].max_per_second
        value = f"clamp_max({value}, {limit:g})" if math.isfinite(limit) else value
        found.append(f"{combine}({value})")
    if curve.takes_largest:
        # Two results without labels would be duplicates: each gets one of its own.
        numbered = (
            f'label_replace({each}, "source", "{number}", "", "")'
            for number, each in enumerate(found)
        )
        return f"max({' or '.join(numbered)})"
    return " or ".join(found)


@dataclass(slots=True)
class HistoryServer:
    """Client of the server. Raises SettingsError for settings that cannot work."""

    settings: ConsoleSettings
    headers: dict[str, str] = field(default_factory=dict)
    _tls: ssl.SSLContext | bool = True

    def __post_init__(self) -> None:
        """Check the URL, and read token and CA."""
        url, token_file = self.settings.history_url, self.settings.history_token_file
        settings_files.check_http_url("console.history_url", url)
        if token_file:
            token = settings_files.read_named_file(
                "console.history_token_file", token_file, "ascii"
            )
            self.headers = {"Authorization": f"Bearer {token}"}
        self._tls = client_tls("console.history_ca_file", self.settings.history_ca_file)

    async def read(
        self, queries: Sequence[CurveQuery], period: curves.TimeRange
    ) -> Mapping[str, curves.HistoryCurve]:
        """Return the curves of queries by name. Raises ResourceError with the reason."""
        try:
            async with asyncio.timeout(self.settings.history_timeout_seconds):
                found = await self._read_all([query.text for query in queries], period)
        except _FAILURES as error:
            problem = printable(str(error))[:200] or type(error).__name__
            message = f"reading the server with history failed: {problem}"
            raise ResourceError(HTTPStatus.BAD_GATEWAY, message) from None
        return {
            query.name: curves.HistoryCurve(*query[:3], *_with_gaps(times_ns, values, period))
            for query, (times_ns, values) in zip(queries, found, strict=True)
        }

    async def _read_all(self, queries: Sequence[str], period: curves.TimeRange) -> list[_Values]:
        """Return the values of all queries. The first failure ends the others at their turns: none is cancelled."""
        turns, errors = asyncio.Semaphore(MAX_QUERIES), list[Exception]()
        timeout = aiohttp.ClientTimeout(total=self.settings.history_timeout_seconds)
        async with aiohttp.ClientSession(headers=self.headers, timeout=timeout) as session:

            async def read(query: str) -> _Values | None:
                async with turns:
                    try:
                        return None if errors else await self._curve(session, query, period)
                    except _FAILURES as error:
                        errors.append(error)
                        return None

            found = await asyncio.gather(*map(read, queries))
        if errors:
            raise errors[0]
        return [values for values in found if values is not None]

    async def _curve(
        self,
        session: aiohttp.ClientSession,
        query: str,
        period: curves.TimeRange,
    ) -> _Values:
        """Return the values of a query; of long steps the smallest and the largest one."""
        seconds = (period.to_ns - period.from_ns) / SECOND_NS
        step = max(-int(-seconds // MAX_POINTS), MIN_STEP_SECONDS)
        if step <= MAX_PLAIN_STEP_SECONDS:
            return await self._values(session, query, period, step)
        window = f"[{step}s:{MAX_PLAIN_STEP_SECONDS}s]"
        low = await self._values(session, f"min_over_time(({query}){window})", period, step)
        high = await self._values(session, f"max_over_time(({query}){window})", period, step)
        times_ns = np.concatenate([low[0] - step * SECOND_NS // 2, high[0]])
        order = np.argsort(times_ns, kind="stable")
        return times_ns[order], np.concatenate([low[1], high[1]])[order]

    async def _values(
        self,
        session: aiohttp.ClientSession,
        query: str,
        period: curves.TimeRange,
        step: int,
    ) -> _Values:
        url = f"{self.settings.history_url.rstrip('/')}/api/v1/query_range"
        form = {
            "query": query,
            "start": f"{period.from_ns / SECOND_NS:.3f}",
            "end": f"{period.to_ns / SECOND_NS:.3f}",
            "step": str(step),
        }
        # By POST: queries may be longer than a URL. No redirects: the token is for this server only.
        async with session.post(url, data=form, ssl=self._tls, allow_redirects=False) as response:
            content = await read_body(response, MAX_RESPONSE_BYTES)
            try:
                answer = msgspec.json.decode(content, type=_Answer)
            except msgspec.MsgspecError:
                answer = _Answer("", error="expected the JSON of Prometheus's API")
            if response.status != HTTPStatus.OK or answer.status != "success":
                message = f"status {response.status}: {answer.error}"
                raise ValueError(message)
        # One series: each query combines all of its series.
        values = [
            each for series in (answer.data or _Matrix()).result[:1] for each in series.values
        ]
        times = np.array([time for time, _ in values[: 2 * MAX_POINTS]], np.float64)
        numbers = np.array([float(text) for _, text in values[: 2 * MAX_POINTS]], np.float64)
        # Through milliseconds: nanoseconds since 1970 exceed the 53 bits of a float.
        return (times * 1000).astype(np.int64) * (SECOND_NS // 1000), numbers


def _with_gaps(
    times_ns: curves.Times, values: curves.Floats, period: curves.TimeRange
) -> tuple[curves.Times, curves.Floats, tuple[curves.CurveGap, ...]]:
    codes = np.where(np.isfinite(values), 0, node_history.NO_SERVER_VALUE).astype(np.uint8)
    gap = curves.CurveGap(*period, node_history.REASONS[node_history.NO_SERVER_VALUE])
    missing = node_history.NO_SERVER_VALUE
    values = np.where(np.isfinite(values), values, np.nan)
    found = node_history.with_gaps(times_ns, values, codes, period, [gap], missing)
    return found[0], found[1], tuple(found[2])
