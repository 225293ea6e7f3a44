"""Every route, every role, every kind of credential, against a running collector with TLS."""

from __future__ import annotations

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
from support.waiting import wait_until

from railscope_collector.access.credentials import Role, digest_bytes, digest_token
from railscope_collector.config import CollectorTlsSettings, DiagnosisSettings
from railscope_collector.http.resources import ROUTES

PARTS = {
    "node": "n1", "switch": "leaf-07", "port": "p1", "incident": "x", "tenant": "vision", "source": "slurm",
    "workload": "1", "period": "2026-01", "index": "0",
}  # fmt: skip
CLOSED = {(route.method, route.path.format_map(PARTS)): route for route in ROUTES if not route.open}
"""The roles of each route are in `tests/console/answers/roles.txt`."""
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
        (Role.TENANT, "tenants.vision", "board"),
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

        async def is_ready() -> bool:
            return (await found.ask("GET", "/-/ready"))[0] == 200

        await wait_until(is_ready, "the collector is ready")
        await wait_until(lambda: running.collector.trail.log.signed.size, "the log is signed")
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


async def test_a_certificate_gets_what_a_token_of_its_role_gets(tmp_path: Path) -> None:
    async with site(tmp_path) as running:
        found = []
        for role, certificate in itertools.product(Role, (True, False)):
            # One connection for all routes: those of other requests have no part in the response.
            async with running.session(str(role) if certificate else "") as session:
                ask = partial(running.ask_in, session, token="" if certificate else TOKENS[role])
                for (method, path), route in CLOSED.items():
                    status, text, headers = await ask(method, path)
                    assert (status == 403) is (not route.admits(role)), (method, path, text)
                    assert headers["Cache-Control"] == "no-store"
                    assert headers["Vary"].split(", ")[0] == "Authorization"
                    if role is Role.TENANT:
                        assert "speech" not in text_without_own_paths(path, text), (method, path)
                    if method == "GET":
                        assert (await ask("HEAD", path))[:2] == (status, "")
                    found.append((role, method, path, status))
    assert len({*found}) * 2 == len(found), "the same by token"


BAD = (
    {}, {"token": "wrong"}, {"certificate": "unlisted"}, {"certificate": "revoked"},
    {"token": "wrong", "certificate": "auditor"}, {"token": "ended-auditor"},
)  # fmt: skip


async def test_every_route_is_closed_to_invalid_credentials(tmp_path: Path) -> None:
    async with site(tmp_path) as running:
        answers = set()
        for (method, path), shown in itertools.product(CLOSED, BAD):
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
    found = list(verified_records(tmp_path / "state"))
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


async def test_with_open_reading_an_anonymous_request_is_an_operator_and_no_more(
    tmp_path: Path,
) -> None:
    settings = settings_in(tmp_path, allow_anonymous_read=True)
    async with run_collector(settings) as running:
        async with aiohttp.ClientSession() as session:
            for (method, path), route in CLOSED.items():
                url = aiohttp.client.URL(running.url + path, encoded=True)
                async with session.request(method, url) as answer:
                    may = route.admits(Role.OPERATOR)
                    assert (answer.status not in {401, 429}) is may, (method, path)
        assert (await running.get("/metrics", token="wrong"))[0] in {401, 429}  # noqa: S106 - a test's token
    denied = [r for r in verified_records(tmp_path / "state") if r.type == "access.denied"]
    assert {(r.actor.kind, r.actor.auth) for r in denied} == {("unknown", ""), ("unknown", "token")}
