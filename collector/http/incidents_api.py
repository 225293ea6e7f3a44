"""Routes of incidents: the list, and one incident with the curves of its evidence."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import msgspec
from aiohttp import web

from collector.access.credentials import Credential, Role
from collector.diagnosis.evidence_curves import EvidenceCurve
from collector.diagnosis.incident_classes import CLASSES, Severity
from collector.diagnosis.incident_table import IncidentTable, ReportedIncident
from collector.http.access_control import RouteHandlers, json_error, json_response
from railscope import service

MAX_LISTED = 200
"""Incidents of one response, newest first."""
_FILTERS = {"state": ("open", "closed"), "class": tuple(CLASSES), "severity": tuple(Severity)}
"""Values of the query; without any, all."""


@dataclass(slots=True)
class IncidentsApi:
    """Handlers that use the latest table. A tenant reads the incidents that touch its jobs."""

    table: Callable[[], IncidentTable]

    def handlers(self) -> RouteHandlers:
        """Return the handlers by route name."""
        return {"incidents": self._list, "incident": self._incident}

    async def _list(self, request: web.Request, credential: Credential) -> web.Response:
        table = self.table()
        if not table.timestamp_ns:
            return json_error(HTTPStatus.SERVICE_UNAVAILABLE, "nothing has been diagnosed yet")
        selected = {}
        for name, values in _FILTERS.items():
            selected[name] = set(request.query.getall(name, values))
            for unknown in sorted(selected[name] - set(values)):
                text = f"unknown {name} {unknown[:40]!r}: expected one of {', '.join(values)}"
                return json_error(HTTPStatus.BAD_REQUEST, text)
        found = [
            visible.document
            for visible in visible_incidents(table, credential)
            if ("open" if visible.is_open else "closed") in selected["state"]
            and visible.document.incident_class in selected["class"]
            and visible.document.severity in selected["severity"]
        ]
        content = {
            "view": "incidents",
            "timestamp_ns": table.timestamp_ns,
            "suppressed": max(len(found) - MAX_LISTED, 0),
            "rows": found[:MAX_LISTED],
        }
        return json_response(await service.run_in_thread(msgspec.to_builtins, content))

    async def _incident(self, request: web.Request, credential: Credential) -> web.Response:
        table, number = self.table(), request.match_info["incident"]
        visible = find_visible(table, number, credential)
        if visible is None:
            text = f"unknown incident {number[:40]!r}: expected an `id` of /api/v1/incidents"
            return json_error(HTTPStatus.NOT_FOUND, text)
        content = msgspec.to_builtins(visible.document)
        content["timestamp_ns"] = table.timestamp_ns
        content["curves"] = await service.run_in_thread(
            lambda: [_curve_json(curve) for curve in visible.curves]
        )
        return json_response(content)


def visible_incidents(table: IncidentTable, credential: Credential) -> list[ReportedIncident]:
    """Return what a reader may see of the incidents, newest first."""
    visible = (_visible(incident, credential) for incident in reversed(table.incidents))
    return [incident for incident in visible if incident is not None]


def find_visible(
    table: IncidentTable, number: str, credential: Credential
) -> ReportedIncident | None:
    """Return what a reader may see of an incident; None if there is no such incident for the reader."""
    incident = table.find(number)
    return _visible(incident, credential) if incident else None


def _visible(incident: ReportedIncident, credential: Credential) -> ReportedIncident | None:
    """Return what a reader may see of an incident; None for nothing."""
    if credential.role is Role.TENANT:
        return incident.of_tenant(credential.tenant)
    return incident


def _curve_json(curve: EvidenceCurve) -> dict[str, Any]:
    """Return a curve; null is a value that is not known."""
    return {
        "signal": curve.signal,
        "unit": curve.unit,
        "points": [
            {
                "timestamp_ns": point.timestamp_ns,
                "value": _finite(point.value),
                "peers": _finite(point.peers),
            }
            for point in curve.points
        ],
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
