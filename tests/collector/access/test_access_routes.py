"""Every route, every role, every kind of credential, against a running collector with TLS."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from makers import FrameSender, gpu_schema
from running_collector import RunningCollector, run_collector, settings_in
from support.audit import verified_records
from support.billing_port import BookedRows
from support.certificates import ClientAuthority, self_signed

from railscope_collector.access.credentials import Role, digest_bytes, digest_token
from railscope_collector.config import CollectorTlsSettings, DiagnosisSettings
from railscope_collector.http.access_control import RequestAuthorizer, make_application
from railscope_collector.http.route_table import ROUTES, Route, TenantScope

NO_COLLECTOR = "node operator finance auditor tenant"
ALL = NO_COLLECTOR + " collector"
EVERYTHING = {  # roles of each route and their responses; repeated here by hand
    ("GET", "/metrics"): ("operator auditor tenant", 200),
    ("GET", "/api/v1/status"): ("operator auditor tenant", 200),
    ("GET", "/api/v1/cluster"): ("operator auditor", 200),
    ("GET", "/api/v1/rails"): ("operator auditor", 200),
    ("GET", "/api/v1/nodes"): ("operator auditor", 200),
    ("GET", "/api/v1/openapi.json"): ("operator finance auditor tenant", 200),
    ("GET", "/api/v1/nodes/n1"): ("operator auditor", 200),
    ("GET", "/api/v1/nodes/n9"): ("operator auditor", 404),
    ("GET", "/api/v1/gpus"): ("operator auditor tenant", 200),
    ("GET", "/api/v1/gpus?tenant=speech"): ("operator auditor", 200),
    ("GET", "/api/v1/switches"): ("operator auditor", 200),
    ("GET", "/api/v1/switches/leaf-07"): ("operator auditor", 404),
    ("GET", "/api/v1/switches/leaf-07/ports/p1"): ("operator auditor", 404),
    ("GET", "/api/v1/links"): ("operator auditor", 200),
    ("GET", "/api/v1/inventory"): ("operator auditor", 200),
    ("GET", "/api/v1/events"): ("operator auditor", 200),
    ("GET", "/api/v1/incidents"): ("operator auditor tenant", 503),  # the diagnosis is off
    ("GET", "/api/v1/incidents/x"): ("operator auditor tenant", 404),
    ("GET", "/api/v1/incidents/x/curves"): (ALL, 404),
    ("GET", "/api/v1/jobs"): ("operator auditor tenant", 200),
    ("GET", "/api/v1/jobs?tenant=speech"): ("operator auditor", 200),
    ("GET", "/api/v1/jobs/vision/slurm/1"): ("operator auditor tenant", 404),
    ("GET", "/api/v1/jobs/speech/slurm/1"): ("operator auditor", 404),
    ("GET", "/api/v1/jobs/vision"): (ALL, 404),
    ("GET", "/api/v1/tenants"): ("operator finance auditor tenant", 200),
    ("GET", "/api/v1/account"): ("operator finance auditor tenant", 200),
    ("GET", "/api/v1/statements/vision/2026-01"): ("finance auditor tenant", 200),
    ("GET", "/api/v1/statements/vision/2026-02"): ("finance auditor tenant", 404),
    ("GET", "/api/v1/statements/vision/2026-1"): ("finance auditor tenant", 400),
    ("GET", "/api/v1/statements/vision/2026-01?format=x"): ("finance auditor tenant", 400),
    ("GET", "/api/v1/statements/speech/2026-01"): ("finance auditor", 200),
    ("GET", "/api/v1/statements/nobody/2026-01"): ("finance auditor", 404),
    ("GET", "/api/v1/exports/2026-01"): ("finance auditor tenant", 200),
    ("GET", "/api/v1/exports/2026-01?tenant=speech"): ("finance auditor", 200),
    ("GET", "/api/v1/exports/2026-01?tenant=vision&tenant=speech"): ("finance auditor", 200),
    ("GET", "/api/v1/audit"): ("auditor tenant", 200),
    ("GET", "/api/v1/audit?from=x"): ("auditor tenant", 400),
    ("GET", "/api/v1/audit?tenant=speech"): ("auditor", 200),
    ("GET", "/api/v1/audit/entries/99999999"): ("auditor tenant", 404),
    ("GET", "/api/v1/audit/entries/x"): ("auditor tenant", 404),
    ("GET", "/api/v1/audit/checkpoint"): (NO_COLLECTOR, 200),
    ("GET", "/api/v1/audit/consistency?old=1"): (NO_COLLECTOR, 200),
    ("GET", "/api/v1/audit/consistency?old=99999999"): (NO_COLLECTOR, 404),
    ("POST", "/v1/frames"): ("node", 400),
    ("POST", "/v1/copies"): ("node", 400),
    ("GET", "/v1/records"): ("collector", 404),  # it is alone
    ("GET", "/v1/checkpoint"): ("node", 200),
    ("GET", "/v1/checkpoint/key"): ("node", 200),
    ("GET", "/v1/checkpoint/consistency"): ("node", 400),
    ("POST", "/v1/checkpoint/cosignature"): ("node", 413),
    # No such route or method; an unauthenticated client does not learn which.
    ("GET", "/v1/frames"): (ALL, 405),
    ("POST", "/metrics"): (ALL, 405),
    ("OPTIONS", "/metrics"): (ALL, 405),
    ("DELETE", "/api/v1/audit"): (ALL, 405),
    ("PUT", "/api/v1/statements/vision/2026-01"): (ALL, 405),
    ("GET", "/api/v1/statements"): ("finance auditor tenant", 200),
    ("GET", "/api/v1/statements?tenant=speech"): ("finance auditor", 200),
    ("GET", "/api/v1/statements/"): (ALL, 404),
    ("GET", "/api/v1/statements/vision"): (ALL, 404),
    ("GET", "/api/v1/tenants/vision"): (ALL, 404),
    ("GET", "/metrics/"): (ALL, 404),
    ("GET", "//metrics"): (ALL, 404),
    ("GET", "/METRICS"): (ALL, 404),
    ("GET", "/-/metrics"): (ALL, 404),
    ("GET", "/-/healthy/"): (ALL, 404),
    ("GET", "/-/healthy/..%2f..%2fmetrics"): (ALL, 404),
    ("GET", "/nothing"): (ALL, 404),
}
OPEN = {("GET", "/-/healthy"): 200, ("GET", "/-/ready"): 200}
_addresses = (f"127.0.{high}.{low}" for high in itertools.count(1) for low in range(1, 250))


@dataclass
class RoutesCollector:
    """A collector with TLS, and the certificates of its clients."""

    one: RunningCollector
    authority: ClientAuthority
    ca_file: Path
    certificates: dict[str, Any]
    contexts: dict[str, ssl.SSLContext] = field(default_factory=dict)

    def tls(self, certificate: str) -> ssl.SSLContext:
        """Return the context of a client with this certificate, or without one."""
        if certificate not in self.contexts:
            self.contexts[certificate] = (
                self.certificates[certificate].context(self.ca_file)
                if certificate
                else ssl.create_default_context(cafile=str(self.ca_file))
            )
        return self.contexts[certificate]

    async def ask(
        self, method: str, path: str, token: str = "", certificate: str = ""
    ) -> tuple[int, str, dict[str, str]]:
        """Send a request from an address without failures so far."""
        async with self.session(certificate) as session:
            return await self.ask_in(session, method, path, token)

    def session(self, certificate: str) -> aiohttp.ClientSession:
        """Return a new session, from an address without failures so far."""
        connector = aiohttp.TCPConnector(
            ssl=self.tls(certificate), local_addr=(next(_addresses), 0)
        )
        return aiohttp.ClientSession(connector=connector)

    async def ask_in(
        self, session: aiohttp.ClientSession, method: str, path: str, token: str = ""
    ) -> tuple[int, str, dict[str, str]]:
        """Send a request in a session."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        url = aiohttp.client.URL(self.one.url + path, encoded=True)
        async with session.request(method, url, headers=headers) as response:
            return response.status, await response.text(), dict(response.headers)


TOKENS = {role: f"token-of-{role}" for role in Role}


def tokens_text(revoked: str) -> str:
    ended = "until = 2026-01-01T00:00:00Z }"
    lines = []
    for role, place, name in (
        (Role.NODE, "nodes", "n1"), (Role.OPERATOR, "operators", "board"),
        (Role.FINANCE, "finance", "bills"), (Role.AUDITOR, "auditors", "audit"),
        (Role.TENANT, "tenants.vision", "board"), (Role.COLLECTOR, "collectors", "others"),
    ):  # fmt: skip
        old = f'{{ token = "{digest_token("ended-" + role)}", {ended}'
        lines += [f"[{place}]", f'{name} = ["{digest_token(TOKENS[role])}", {old}]']
    lines += [
        "[tenants.speech]",
        f'board = "{digest_token("token-of-speech")}"',
        "[revoked]",
        f'certificates = ["{revoked}"]',
    ]
    return "\n".join(lines) + "\n"


@contextlib.asynccontextmanager
async def site(directory: Path) -> AsyncIterator[RoutesCollector]:
    """A collector with a node, two tenants and their invoices."""
    server, key = self_signed(directory / "server")
    authority = ClientAuthority(directory / "authority")
    names = {role: f"railscope:{role}/n1" for role in Role} | {
        Role.TENANT: "railscope:tenant/vision/board"
    }
    made = {str(role): authority.client(f"client-{role}", uri) for role, uri in names.items()} | {
        "revoked": authority.client("revoked", "railscope:auditor/old"),
        "unlisted": authority.client("unlisted"),
        "ended": authority.client("ended", "railscope:auditor/ended", days=-1),
        "foreign": ClientAuthority(directory / "foreign").client("foreign", "railscope:auditor/x"),
    }
    tls = CollectorTlsSettings(
        certificate_file=str(server), key_file=str(key), client_ca_file=str(authority.file)
    )
    (directory / "claims.csv").write_text("tenant,holds,from,to\nvision,n1,2020-01-01T00:00:00Z,\n")
    settings = settings_in(
        directory,
        tls=tls,
        claims_file=str(directory / "claims.csv"),
        diagnosis=DiagnosisSettings(enabled=False),
    )
    (directory / "tokens.toml").write_text(tokens_text(digest_bytes(made["revoked"].der)))
    async with run_collector(settings, billing=BOOKED) as running:
        found = RoutesCollector(running, authority, server, made)
        sender = FrameSender()
        frames = sender.frames(gpu_schema("n1"), [[50, 60, 1000, 2000, 10, 20]], at=0)
        body = sender.body(frames, schemas=True)
        client = made["node"].context(server)
        connector = aiohttp.TCPConnector(ssl=client)
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.post(
                running.url + "/v1/frames", data=body, headers=sender.sent(2).to_headers()
            ) as r,
        ):
            assert r.status == 200, await r.text()
        async with asyncio.timeout(60):
            while (await found.ask("GET", "/-/ready"))[0] != 200:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.05)
            while running.collector.trail.log.signed.size == 0:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.01)
        yield found


BOOKED = BookedRows({("vision", "2026-01"): [("gpu", 7)], ("speech", "2026-01"): [("gpu", 11)]})


def text_without_own_paths(path: str, text: str) -> str:
    """A response without the paths that the tenant itself has requested and that were recorded."""
    if not text.startswith("{") or path.partition("?")[0] != "/api/v1/audit":
        return text
    page = json.loads(text)
    for entry in page.get("entries", []):
        entry["record"]["data"].pop("path", None)
    return json.dumps(page)


async def test_every_route_for_every_role_by_token_and_by_certificate(tmp_path: Path) -> None:
    async with site(tmp_path) as running:
        for role, certificate in itertools.product(Role, (True, False)):
            # One connection for all routes: those of other requests have no part in the response.
            async with running.session(str(role) if certificate else "") as session:
                ask = partial(running.ask_in, session, token="" if certificate else TOKENS[role])
                for (method, path), (roles, status) in EVERYTHING.items():
                    expected = status if role in roles.split() else 403
                    found, text, headers = await ask(method, path)
                    assert found == expected, (method, path, role, certificate, text)
                    assert headers["Cache-Control"] == "no-store"
                    assert headers["Vary"].split(", ")[0] == "Authorization"
                    if role is Role.TENANT:
                        assert "speech" not in text_without_own_paths(path, text), (method, path)
                    if method == "GET":
                        head, nothing, _ = await ask("HEAD", path)
                        assert (head, nothing) == (expected, ""), (path, role)
        (found, _, _) = await running.ask("GET", "/metrics", token=TOKENS[Role.NODE])
        assert found == 403


BAD = (
    {}, {"token": "wrong"}, {"certificate": "unlisted"}, {"certificate": "revoked"},
    {"token": "wrong", "certificate": "auditor"}, *({"token": f"ended-{role}"} for role in Role),
)  # fmt: skip


async def test_every_route_is_closed_to_invalid_credentials(tmp_path: Path) -> None:
    async with site(tmp_path) as running:
        answers = set()
        for (method, path), shown in itertools.product(EVERYTHING, BAD):
            status, text, headers = await running.ask(method, path, **shown)
            assert status == 401, (method, path, shown)
            assert headers["WWW-Authenticate"].startswith('Bearer realm="railscope"')
            assert headers["Cache-Control"] == "no-store"
            answers.add(text)
        assert len(answers) == 1, "nobody learns from the text what there is"
        for (method, path), status in OPEN.items():
            for shown in ({}, {"token": "wrong"}, {"certificate": "revoked"}):
                assert (await running.ask(method, path, **shown))[0] == status
        for certificate in ("ended", "foreign"):
            with pytest.raises(aiohttp.ClientError):
                await running.ask("GET", "/-/healthy", certificate=certificate)


async def test_a_tenant_cannot_find_out_if_another_exists(tmp_path: Path) -> None:
    async with site(tmp_path) as running:
        answers = []
        for other in ("speech", "nobody", "Vision", "vision%20", "vision%2f", "%76ision%00"):
            path = f"/api/v1/statements/{other}/2026-01"
            status, text, headers = await running.ask("GET", path, token=TOKENS[Role.TENANT])
            answers.append((status, text, {k: v for k, v in headers.items() if k != "Date"}))
        assert all(answer == answers[0] for answer in answers)
        assert answers[0][0] == 403
        path = "/api/v1/statements/%76isio%6E/2026-01"
        assert (await running.ask("GET", path, token=TOKENS[Role.TENANT]))[0] == 200
    found = list(verified_records(tmp_path / "state" / "audit"))
    crossed = [record for record in found if record.type == "access.cross_tenant"]
    assert len(crossed) == 6
    assert {(r.actor.id, r.data["tenant"], r.out) for r in crossed} == {
        ("tenant/vision/board", "vision", "denied")
    }
    assert {(r.actor.auth, r.actor.id) for r in found if r.type == "access.denied"} == {
        ("token", "tenant/vision/board")
    }
    denied = {r.data["path"] for r in found if r.type == "access.denied"}
    assert denied >= {"/api/v1/statements/speech/2026-01", "/api/v1/statements/nobody/2026-01"}


async def test_a_node_reports_for_itself_only(tmp_path: Path) -> None:
    async with site(tmp_path) as running:
        sender = FrameSender("n2")
        frames = sender.frames(gpu_schema("n2"), [[50, 60, 1000, 2000, 10, 20]], at=0)
        connector = aiohttp.TCPConnector(ssl=running.certificates["node"].context(running.ca_file))
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.post(
                running.one.url + "/v1/frames",
                data=sender.body(frames, schemas=True),
                headers=sender.sent(2).to_headers(),
            ) as response,
        ):
            assert response.status == 403
            assert "expected 'n1', as in the credential" in await response.text()


async def test_with_open_reading_an_anonymous_request_is_an_operator_and_no_more(
    tmp_path: Path,
) -> None:
    settings = settings_in(tmp_path, allow_anonymous_read=True)
    async with run_collector(settings) as running:
        async with aiohttp.ClientSession() as session:
            for (method, path), (roles, _) in EVERYTHING.items():
                url = aiohttp.client.URL(running.url + path, encoded=True)
                async with session.request(method, url) as answer:
                    may = "operator" in roles.split()
                    assert (answer.status not in {401, 429}) is may, (method, path)
        assert (await running.get("/metrics", token="wrong"))[0] in {401, 429}  # noqa: S106 - a test's token
    denied = [
        r for r in verified_records(tmp_path / "state" / "audit") if r.type == "access.denied"
    ]
    assert {(r.actor.kind, r.actor.auth) for r in denied} == {("unknown", ""), ("unknown", "token")}


# The table ----------------------------------------------------------------------------------------


def test_no_route_is_without_roles_and_all_are_in_the_test() -> None:
    def shape(path: str) -> str:
        return path.partition("?")[0]

    walked = {(method, shape(path)) for method, path in (*EVERYTHING, *OPEN)}
    for route in ROUTES:
        assert route.roles, route
        path = route.path.format(
            node="n1",
            tenant="vision",
            period="2026-01",
            index="x",
            port="p1",
            source="slurm",
            workload="1",
            incident="x",
            switch="leaf-07",
        )
        if route.name == "audit_entry":
            path = "/api/v1/audit/entries/x"
        assert (route.method, path) in walked
        named = "{tenant}" in route.path
        assert named is (route.tenants is TenantScope.NAMED)
    assert {route.name for route in ROUTES if route.open} == {"healthy", "ready"}
    assert len({route.name for route in ROUTES}) == len(list(ROUTES))


def test_a_route_without_a_handler_and_a_handler_without_a_route_are_rejected() -> None:
    route = Route("one", "/one", frozenset({Role.AUDITOR}))
    for handlers, routes in (({}, [route]), ({"one": None, "two": None}, [route])):
        with pytest.raises(ValueError, match="routes without a handler"):
            make_application(RequestAuthorizer(None, None), handlers, 1, routes)  # type: ignore[arg-type]
