"""Notifications of incidents, as a webhook receives them from Alertmanager (payload of version 4).

What is sent follows from the table of incidents and from the state of each that was delivered last: a notification that
failed is sent again, also after a restart, and one that is no longer true is not sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import aiohttp
import structlog

from railscope import figures
from railscope.api import IncidentDocument
from railscope.catalog.incidents import WEBHOOK_FAILURES
from railscope.incident_victims import affected_text
from railscope.settings import check_http_url, read_named_file, shown_url
from railscope.timestamps import format_timestamp
from railscope_collector.config import CollectorSettings
from railscope_collector.diagnosis.evidence_words import dated_text
from railscope_collector.diagnosis.incident_classes import INCIDENT_RUNBOOK, Severity
from railscope_collector.diagnosis.incident_report import (
    entity_text,
)
from railscope_collector.diagnosis.incident_table import (
    IncidentTable,
    ReportedIncident,
    cause_labels,
)
from railscope_collector.fleet.view_cells import ViewCell
from railscope_collector.live_diagnosis.diagnosis_service import RESOLVED
from railscope_collector.sinks import request_problem

log = structlog.get_logger(__name__)

PERIOD_SECONDS, MAX_PERIOD_SECONDS = 5.0, 300.0
TIMEOUT_SECONDS = 10.0
FIRING = "firing"
_NO_TIME = "0001-01-01T00:00:00Z"
"""Time that Alertmanager sends for the end of an alert that lasts; here also for a start that is not known."""
_LABELS = ("kind", "node", "device", "rail")
_MAX_LISTED = 3
"""Values, and jobs, in the text of a notification."""


@dataclass(slots=True)
class IncidentWebhook:
    """Sends the opening, each higher severity and the end of each incident to a URL."""

    settings: CollectorSettings
    table: Callable[[], IncidentTable]
    delivered: Callable[[], MutableMapping[str, str]]
    """Returns the state of which the receiver was notified, by incident: `resolved`, or `firing` with the severity."""
    timeout_seconds: float = TIMEOUT_SECONDS
    period_seconds: float = PERIOD_SECONDS
    failures: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    """Headers of each request."""
    _problem: str = ""
    _failed: set[str] = field(default_factory=set)
    """Incidents whose last notification failed."""

    def __post_init__(self) -> None:
        """Read the token. Raises SettingsError."""
        url, file = self.settings.diagnosis.webhook_url, self.settings.diagnosis.webhook_token_file
        if url:
            check_http_url("diagnosis.webhook_url", url)
        if file:
            token = read_named_file("diagnosis.webhook_token_file", file, "ascii")
            self.headers = {"Authorization": f"Bearer {token}"}

    def cells(self) -> Iterator[ViewCell]:
        """Yield the number of notifications that failed."""
        yield ViewCell(WEBHOOK_FAILURES, (), self.failures)

    async def run(self) -> None:
        """Send until cancelled; return immediately if no URL is configured.

        What failed is sent again after a growing delay, which delays no other notification.
        """
        if not self.settings.diagnosis.webhook_url:
            return
        timeout = aiohttp.ClientTimeout(total=self.timeout_seconds)
        async with aiohttp.ClientSession(headers=self.headers, timeout=timeout) as session:
            delay_seconds, waited_seconds = self.period_seconds, 0.0
            while True:
                await asyncio.sleep(self.period_seconds)
                waited_seconds += self.period_seconds
                is_repeated = waited_seconds >= delay_seconds
                # New incidents are sent in each period; only those that failed wait for the longer delay.
                await self.deliver(session, () if is_repeated else self._failed)
                if not self._failed:
                    delay_seconds, waited_seconds = self.period_seconds, 0.0
                elif is_repeated:
                    delay_seconds = min(2 * delay_seconds, MAX_PERIOD_SECONDS)
                    waited_seconds = 0.0

    async def deliver(self, session: aiohttp.ClientSession, held_ids: Iterable[str] = ()) -> bool:
        """Send what the receiver has not been notified of, except held incidents; return True if it accepted everything.

        The most severe incidents are first, of these the oldest ones: a new critical one waits for one attempt at most.
        """
        attempted = set(held_ids)
        self._failed = set(attempted)
        while due := [each for each in self._due() if each[0].document.id not in attempted]:
            # Computed again after each attempt: the table changes while one waits for the receiver.
            incident, status = max(due, key=_severity)
            attempted.add(incident.document.id)
            # After the receiver has accepted it: a crash before repeats the notification rather than losing it.
            if await self._send(session, notification(incident, status, *self._context())):
                self.delivered()[incident.document.id] = _state(incident, status)
        for number in sorted(self._forgotten() - attempted):
            if await self._send(session, end_of_forgotten(number, *self._context())):
                self.delivered().pop(number, None)
        return not self._failed

    def _context(self) -> tuple[str, str]:
        """Return the time of the table, and the URL of the collector."""
        url = self.settings.cluster.advertised_url.rstrip("/")
        return format_timestamp(self.table().timestamp_ns), url

    async def _send(self, session: aiohttp.ClientSession, content: Mapping[str, Any]) -> bool:
        """Send a notification; a failure is counted, and logged if it is another one than before."""
        problem = await self._post(session, content)
        if problem:
            self._failed.add(content["groupLabels"]["incident"])
            self.failures += 1
            if problem != self._problem:
                url = shown_url(self.settings.diagnosis.webhook_url)
                log.warning("incident_notification_failed", url=url, problem=problem)
        self._problem = problem
        return not problem

    def _forgotten(self) -> set[str]:
        """Return the incidents that the receiver takes for open, and the diagnosis no longer knows.

        It dropped them after their end, or its state was lost.
        """
        table, delivered = self.table(), self.delivered()
        if not table.timestamp_ns:  # nothing has been evaluated
            return set()
        known = {incident.document.id for incident in table.incidents} | table.unread
        return {name for name in delivered.keys() - known if delivered[name].startswith(FIRING)}

    def _due(self) -> Iterator[tuple[ReportedIncident, str]]:
        """Yield incidents whose state differs from the delivered one; a resolved one only after its opening."""
        order, delivered = list(Severity), self.delivered()
        threshold = order.index(Severity(self.settings.diagnosis.webhook_min_severity))
        for incident in self.table().incidents:
            before = delivered.get(incident.document.id, "")
            was_firing = before.startswith(FIRING)
            is_sent = order.index(Severity(incident.document.severity)) >= threshold
            status = FIRING if incident.is_root and is_sent else RESOLVED
            if _state(incident, status) != before and (status == FIRING or was_firing):
                yield incident, status

    async def _post(self, session: aiohttp.ClientSession, content: Mapping[str, Any]) -> str:
        """Send a notification; return the problem, empty if it was accepted."""
        url = self.settings.diagnosis.webhook_url
        try:
            # Without redirects: the token must not be sent to another host.
            async with session.post(url, json=content, allow_redirects=False) as response:
                accepted = HTTPStatus.OK <= response.status < HTTPStatus.MULTIPLE_CHOICES
                return "" if accepted else f"status {response.status}: expected 2xx"
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return f"{type(error).__name__}: {request_problem(error)}"


def _state(incident: ReportedIncident, status: str) -> str:
    """Return the state that the receiver gets: one with a higher severity differs, so it is sent again."""
    return f"{status} {incident.document.severity}" if status == FIRING else status


def _severity(due: tuple[ReportedIncident, str]) -> int:
    return list(Severity).index(Severity(due[0].document.severity))


def end_of_forgotten(number: str, now: str, collector_url: str) -> dict[str, Any]:
    """Return the payload for the end of an incident of which only its identity is known."""
    return _payload(
        {"alertname": INCIDENT_RUNBOOK, "incident": number},
        {"summary": "The diagnosis no longer knows the incident. If it lasts, it is opened again."},
        {"status": RESOLVED, "startsAt": _NO_TIME, "endsAt": now},
        collector_url,
    )


def notification(
    incident: ReportedIncident, status: str, now: str, collector_url: str
) -> dict[str, Any]:
    """Return the payload for one incident; one that another explains is resolved now.

    Without the URL of the collector there are no links.
    """
    document = incident.document
    cause = dict(zip(_LABELS, cause_labels(document.cause), strict=True))
    labels = {
        "alertname": INCIDENT_RUNBOOK,
        "incident": document.id,
        "class": document.incident_class,
        "severity": document.severity,
        **{name: value for name, value in cause.items() if value},
    }
    annotations = {
        "summary": document.title,
        "description": _description(document),
        "action": document.action,
    }
    if collector_url:
        annotations |= {
            "runbook_url": collector_url + document.runbook,
            "console_url": _page_url(collector_url, document.id),
        }
    times = {
        "status": status,
        "startsAt": document.onset,
        "endsAt": _NO_TIME if status == FIRING else document.ended or now,
    }
    return _payload(labels, annotations, times, collector_url)


def _payload(
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    times: Mapping[str, str],
    collector_url: str,
) -> dict[str, Any]:
    """Return a payload of one alert; `times` are its status, start and end."""
    number = labels["incident"]
    alert: dict[str, Any] = {
        "labels": labels,
        "annotations": annotations,
        **times,
        "fingerprint": number,
    }
    if collector_url:
        alert["generatorURL"] = _page_url(collector_url, number)
    return {
        "version": "4",
        "groupKey": f"railscope/incident/{number}",
        "truncatedAlerts": 0,
        "status": times["status"],
        "receiver": "railscope",
        "groupLabels": {"incident": number},
        "commonLabels": labels,
        "commonAnnotations": annotations,
        "externalURL": collector_url,
        "alerts": [alert],
    }


def _page_url(collector_url: str, number: str) -> str:
    return f"{collector_url}/incidents/{number}"


def _description(document: IncidentDocument) -> str:
    """Return evidence, effect and cost in one line; the cost is not known at the opening."""
    lost = document.lost_gpu_time_seconds
    parts = [
        f"{document.text} {figures.likelihood(document.confidence).capitalize()}",
        *map(dated_text, document.evidence[:_MAX_LISTED]),
        f"{affected_text(document) or 'nothing else'} affected",
        *map(entity_text, document.jobs[:_MAX_LISTED]),
        *([f"{figures.duration(lost)} of GPU time lost"] if lost else []),
    ]
    return "; ".join(parts)
