"""Notifications of incidents to a webhook: what is sent, when, and what happens if it fails."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from structlog.testing import capture_logs
from support.incidents import incident

from railscope.settings import SettingsError
from railscope.timestamps import SECOND_NS
from railscope_collector.config import ClusterSettings, CollectorSettings, DiagnosisSettings
from railscope_collector.diagnosis.incident_table import IncidentTable, ReportedIncident
from railscope_collector.sinks.incident_webhook import IncidentWebhook


@dataclass
class Receiver:
    """An HTTP server that answers with a status, and the notifications that it received."""

    status: int = 200
    notifications: list[dict[str, Any]] = field(default_factory=list)
    authorizations: list[str | None] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    on_request: Callable[[], object] = lambda: None

    async def handle(self, request: web.Request) -> web.Response:
        self.on_request()
        self.authorizations.append(request.headers.get("Authorization"))
        self.keys += request.query.getall("key", [])
        if self.status == 200:
            self.notifications.append(await request.json())
        return web.Response(status=self.status, headers={"Location": "/elsewhere"})

    @property
    def states(self) -> list[tuple[str, str]]:
        """Identity and status of each notification."""
        return [(each["groupLabels"]["incident"], each["status"]) for each in self.notifications]


@dataclass
class Pair:
    """A receiver, and a webhook with the table that it sends."""

    receiver: Receiver
    webhook: IncidentWebhook
    session: aiohttp.ClientSession
    table: IncidentTable = field(default_factory=lambda: IncidentTable(SECOND_NS))

    async def send(self, *incidents: ReportedIncident) -> bool:
        self.table = replace(self.table, incidents=incidents)
        return await self.webhook.deliver(self.session)


def collector_settings(**settings: Any) -> CollectorSettings:
    return CollectorSettings(diagnosis=DiagnosisSettings(**settings))


@contextlib.asynccontextmanager
async def connected(
    advertised_url: str = "", query: str = "", **settings: Any
) -> AsyncIterator[Pair]:
    receiver = Receiver()
    app = web.Application()
    app.router.add_post("/hook", receiver.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook{query}"
    diagnosis = DiagnosisSettings(webhook_url=url, **settings)
    try:
        async with aiohttp.ClientSession() as session:
            cluster = ClusterSettings(advertised_url=advertised_url)
            found, delivered = CollectorSettings(diagnosis=diagnosis, cluster=cluster), {}
            webhook = IncidentWebhook(found, lambda: pair.table, lambda: delivered)
            pair = Pair(receiver, webhook, session)
            yield pair
    finally:
        await runner.cleanup()


async def test_an_incident_is_sent_once_and_again_when_it_has_ended() -> None:
    async with connected() as pair:
        assert await pair.send(incident("a"))
        assert await pair.send(incident("a", confidence=0.9))
        ended = incident("a", ended="2026-01-01T01:00:00Z")
        assert await pair.send(ended)
        assert await pair.send(ended)
    assert pair.receiver.states == [("a", "firing"), ("a", "resolved")]
    first, last = (each["alerts"][0] for each in pair.receiver.notifications)
    assert first["labels"] == {
        "alertname": "RailscopeIncident", "incident": "a", "class": "slow_receiver", "severity": "warning",
        "kind": "nic", "node": "n1", "device": "eth3", "rail": "3",
    }  # fmt: skip
    assert first["startsAt"] == last["startsAt"] == "2026-01-01T00:00:00Z"
    assert (first["endsAt"], last["endsAt"]) == ("0001-01-01T00:00:00Z", "2026-01-01T01:00:00Z")
    assert first["annotations"]["action"] == "drain the node"
    assert first["annotations"]["description"] == (
        "A NIC is slow. Likely (80 %); nothing else affected; 7.0 s of GPU time lost"
    )


@pytest.mark.parametrize("url", ["", "https://collector:9470/"])
async def test_a_notification_links_to_runbook_incident_and_collector(url: str) -> None:
    async with connected(advertised_url=url) as pair:
        await pair.send(incident("a"))
    (sent,) = pair.receiver.notifications
    (alert,) = sent["alerts"]
    base = url.rstrip("/")
    page, runbook = f"{base}/incidents/a", f"{base}/runbooks/RailscopeIncident#slow_receiver"
    links = [alert["annotations"].get(name) for name in ("console_url", "runbook_url")]
    assert [*links, alert.get("generatorURL")] == ([page, runbook, page] if url else [None] * 3)
    assert sent["externalURL"] == base


async def test_an_incident_that_another_explains_is_resolved() -> None:
    async with connected() as pair:
        await pair.send(incident("a"))
        await pair.send(incident("a", explained_by="b"), incident("b", severity="critical"))
    assert pair.receiver.states == [("a", "firing"), ("b", "firing"), ("a", "resolved")]
    assert pair.receiver.notifications[2]["alerts"][0]["endsAt"] == "1970-01-01T00:00:01Z"


async def test_an_incident_whose_severity_rises_is_sent_again() -> None:
    async with connected() as pair:
        for severity in ("warning", "critical", "critical"):
            await pair.send(incident("a", severity=severity))
        await pair.send(incident("a", severity="critical", ended="2026-01-01T01:00:00Z"))
    assert pair.receiver.states == [("a", "firing"), ("a", "firing"), ("a", "resolved")]
    sent = [each["commonLabels"]["severity"] for each in pair.receiver.notifications]
    assert sent == ["warning", "critical", "critical"]


async def test_what_was_never_sent_is_not_resolved() -> None:
    async with connected(webhook_min_severity="critical") as pair:
        await pair.send(incident("a"), incident("b", ended="2026-01-01T01:00:00Z"))
        assert pair.receiver.states == []
        await pair.send(incident("a", severity="critical"))
    assert pair.receiver.states == [("a", "firing")]


@pytest.mark.parametrize("status", [302, 503])
async def test_a_notification_that_was_not_accepted_is_sent_again(status: int) -> None:
    async with connected() as pair:
        pair.receiver.status = status
        assert not await pair.send(incident("a"), incident("b"))
        assert pair.webhook.failures == 2
        pair.receiver.status = 200
        assert await pair.send(incident("a"), incident("b"))
    assert pair.receiver.states == [("a", "firing"), ("b", "firing")]


async def test_a_failure_is_logged_without_the_query_of_the_url() -> None:
    """The key of a receiver may be in the query: it is sent, and not logged."""
    async with connected(query="?key=hunter2") as pair:
        pair.receiver.status = 503
        with capture_logs() as logs:
            assert not await pair.send(incident("a"))
    assert [each["problem"] for each in logs] == ["status 503: expected 2xx"]
    assert (pair.receiver.keys, "hunter2" in str(logs)) == (["hunter2"], False)


async def test_critical_incidents_are_sent_first_and_older_ones_before_newer_ones() -> None:
    async with connected() as pair:
        await pair.send(incident("a"), incident("b"), incident("c", severity="critical"))
    assert [name for name, _ in pair.receiver.states] == ["c", "a", "b"]


async def test_what_is_no_longer_true_is_not_sent() -> None:
    async with connected() as pair:
        pair.receiver.on_request = lambda: setattr(pair, "table", IncidentTable(SECOND_NS))
        assert await pair.send(incident("a"), incident("b"))
    assert pair.receiver.states == [("a", "firing")]


async def test_an_incident_whose_state_was_lost_is_resolved() -> None:
    async with connected() as pair:
        assert await pair.send(incident("a"), incident("b", ended="2026-01-01T01:00:00Z"))
        pair.table = IncidentTable()
        assert await pair.webhook.deliver(pair.session), "nothing is known before an evaluation"
        pair.table, pair.receiver.status = IncidentTable(2 * SECOND_NS), 503
        assert not await pair.send()
        pair.receiver.status = 200
        assert await pair.send()
        assert await pair.send()
    assert pair.receiver.states == [("a", "firing"), ("a", "resolved")]
    first, last = (each["alerts"][0] for each in pair.receiver.notifications)
    assert first["fingerprint"] == last["fingerprint"] == "a"
    assert (last["status"], last["endsAt"]) == ("resolved", "1970-01-01T00:00:02Z")
    assert last["startsAt"] == "0001-01-01T00:00:00Z", "it is not known"


async def test_the_token_is_sent(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    async with (
        connected(webhook_token_file=str(tmp_path / "token")) as pair,
        aiohttp.ClientSession(headers=pair.webhook.headers) as session,
    ):
        pair.table = replace(pair.table, incidents=(incident("a"),))
        await pair.webhook.deliver(session)
    assert pair.receiver.authorizations == ["Bearer secret"]


@pytest.mark.parametrize("url", ["ftp://host/", "//host", "host:80", "http://"])
def test_an_invalid_url_is_rejected(url: str) -> None:
    with pytest.raises(SettingsError, match="expected http://HOST/PATH"):
        IncidentWebhook(collector_settings(webhook_url=url), IncidentTable, dict)


def test_a_missing_token_file_is_rejected(tmp_path: Path) -> None:
    settings = collector_settings(webhook_token_file=str(tmp_path / "none"))
    with pytest.raises(SettingsError, match="webhook_token_file"):
        IncidentWebhook(settings, IncidentTable, dict)
