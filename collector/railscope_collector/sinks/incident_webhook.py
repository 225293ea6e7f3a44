"""Notifications of incidents, as a webhook receives them from Alertmanager (payload of version 4).

What is sent follows from the table of incidents and from the state of each that was delivered last: a notification that
failed is sent again, also after a restart, and one that is no longer true is not sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, NamedTuple

import aiohttp
import structlog

from railscope import figures
from railscope.api import IncidentDocument
from railscope.catalog.incidents import WEBHOOK_FAILURES
from railscope.incident_victims import affected_text
from railscope.settings import check_http_url, read_named_file, shown_url
from railscope.timestamps import format_timestamp
from railscope.untrusted_text import printable
from railscope_collector.config import CollectorSettings
from railscope_collector.diagnosis.evidence_words import dated_text
from railscope_collector.diagnosis.incident_classes import INCIDENT_RUNBOOK, Severity
from railscope_collector.diagnosis.incident_report import entity_text
from railscope_collector.diagnosis.incident_table import (
    IncidentTable,
    ReportedIncident,
    cause_labels,
)
from railscope_collector.fleet.view_cells import ViewCell
from railscope_collector.live_diagnosis.diagnosis_service import RESOLVED

log = structlog.get_logger(__name__)

PERIOD_SECONDS, MAX_PERIOD_SECONDS = 5.0, 30.0
"""Seconds between two rounds: they double as long as a notification fails. All incidents wait for the next round, a new
critical one too.
"""
TIMEOUT_SECONDS = 10.0
FIRING = "firing"
_NO_TIME = "0001-01-01T00:00:00Z"
"""Time that Alertmanager sends for the end of an alert that lasts; here also for a start that is not known."""
_LABELS = ("kind", "node", "device", "rail")
_MAX_LISTED = 3
"""Values, and jobs, in the text of a notification."""
_RANKS = {str(severity): rank for rank, severity in enumerate(Severity)}


class DueNotification(NamedTuple):
    """State of an incident that the receiver does not have."""

    number: str
    status: str
    incident: ReportedIncident | None = None
    """None if the diagnosis no longer knows it: it dropped the incident after its end, or its state was lost."""

    @property
    def rank(self) -> int:
        """Rank of the severity; -1 of an incident that is not known."""
        return _RANKS[self.incident.document.severity] if self.incident else -1

    @property
    def state(self) -> str:
        """State to record. The severity is a part of it, so that a higher one is sent again."""
        if self.incident and self.status == FIRING:
            return f"{FIRING} {self.incident.document.severity}"
        return self.status


@dataclass(slots=True)
class IncidentWebhook:
    """Sends the opening, each higher severity and the end of each incident to a URL."""

    settings: CollectorSettings
    table: Callable[[], IncidentTable]
    delivered: Callable[[], MutableMapping[str, str]]
    """Returns the last state that the receiver accepted, by incident: `resolved`, or `firing` with the severity."""
    failures: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    """Headers of each request."""
    _problem: str = ""

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
        """Send until cancelled; return immediately if no URL is configured."""
        if not self.settings.diagnosis.webhook_url:
            return
        timeout, seconds = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS), PERIOD_SECONDS
        async with aiohttp.ClientSession(headers=self.headers, timeout=timeout) as session:
            while True:
                await asyncio.sleep(seconds)
                is_accepted = await self.deliver(session)
                seconds = PERIOD_SECONDS if is_accepted else min(2 * seconds, MAX_PERIOD_SECONDS)

    async def deliver(self, session: aiohttp.ClientSession) -> bool:
        """Send each notification that is due once; return True if the receiver accepted all of them.

        The most severe incidents are first, of these the oldest ones.
        """
        attempted, failures = set[str](), self.failures
        # Computed again after each attempt: the table changes while one waits for the receiver.
        while due := [each for each in self._due() if each.number not in attempted]:
            first = max(due, key=lambda each: each.rank)
            attempted.add(first.number)
            problem = await self._post(session, first)
            # After the receiver has accepted it: a crash before repeats the notification rather than losing it.
            if not problem and first.incident:
                self.delivered()[first.number] = first.state
            elif not problem:
                self.delivered().pop(first.number, None)
            else:
                self.failures += 1
            if problem and problem != self._problem:
                url = shown_url(self.settings.diagnosis.webhook_url)
                log.warning("incident_notification_failed", url=url, problem=problem)
            self._problem = problem
        return self.failures == failures

    def _due(self) -> Iterator[DueNotification]:
        """Yield states that differ from the delivered ones; an incident is resolved only after its opening."""
        table, delivered = self.table(), self.delivered()
        if not table.timestamp_ns:  # nothing has been evaluated
            return
        min_rank = _RANKS[self.settings.diagnosis.webhook_min_severity]
        for incident in table.incidents:
            number, before = incident.document.id, delivered.get(incident.document.id, "")
            due = DueNotification(number, FIRING, incident)
            if not incident.is_root or due.rank < min_rank:
                due = due._replace(status=RESOLVED)
            if due.state != before and (due.status == FIRING or before.startswith(FIRING)):
                yield due
        known = {incident.document.id for incident in table.incidents} | table.unread
        for number in sorted(delivered.keys() - known):
            if delivered[number].startswith(FIRING):
                yield DueNotification(number, RESOLVED)

    async def _post(self, session: aiohttp.ClientSession, due: DueNotification) -> str:
        """Send a notification; return the problem, empty if it was accepted."""
        collector_url = self.settings.cluster.advertised_url.rstrip("/")
        content = notification(due, format_timestamp(self.table().timestamp_ns), collector_url)
        url = self.settings.diagnosis.webhook_url
        try:
            # Without redirects: the token must not be sent to another host.
            async with session.post(url, json=content, allow_redirects=False) as response:
                is_accepted = HTTPStatus.OK <= response.status < HTTPStatus.MULTIPLE_CHOICES
                return "" if is_accepted else f"status {response.status}: expected 2xx"
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return f"{type(error).__name__}: {_request_problem(error)}"


def _request_problem(error: Exception) -> str:
    """Return why a request failed, without its URL, whose query may contain a credential."""
    if isinstance(error, aiohttp.ClientResponseError):
        return f"{error.status} {printable(error.message)}".strip()
    return printable(str(error)) or type(error).__name__


def notification(due: DueNotification, now: str, collector_url: str) -> dict[str, Any]:
    """Return a payload of one alert; an incident that another explains is resolved now.

    Without the URL of the collector there are no links.
    """
    labels = {"alertname": INCIDENT_RUNBOOK, "incident": due.number}
    page_url = f"{collector_url}/incidents/{due.number}"
    if due.incident:
        document = due.incident.document
        cause = dict(zip(_LABELS, cause_labels(document.cause), strict=True))
        labels |= {"class": document.incident_class, "severity": document.severity}
        labels |= {name: value for name, value in cause.items() if value}
        annotations = {
            "summary": document.title,
            "description": _description(document),
            "action": document.action,
        }
        if collector_url:
            annotations["runbook_url"] = collector_url + document.runbook
            annotations["console_url"] = page_url
        start, end = document.onset, document.ended or now
    else:
        text = "The diagnosis no longer knows the incident. If it lasts, it is opened again."
        annotations, start, end = {"summary": text}, _NO_TIME, now
    alert: dict[str, Any] = {
        "labels": labels,
        "annotations": annotations,
        "status": due.status,
        "startsAt": start,
        "endsAt": _NO_TIME if due.status == FIRING else end,
        "fingerprint": due.number,
    }
    if collector_url:
        alert["generatorURL"] = page_url
    return {
        "version": "4",
        "groupKey": f"railscope/incident/{due.number}",
        "truncatedAlerts": 0,
        "status": due.status,
        "receiver": "railscope",
        "groupLabels": {"incident": due.number},
        "commonLabels": labels,
        "commonAnnotations": annotations,
        "externalURL": collector_url,
        "alerts": [alert],
    }


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
