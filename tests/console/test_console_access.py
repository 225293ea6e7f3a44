"""Every page for every role; sign-in, sessions, cookies, and their records."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest
from console_site import TOKENS, browser, console, tokens_text
from running_collector import run_collector, settings_in
from support.audit import verified_records
from support.certificates import ClientAuthority, self_signed

from railscope_collector.access.authentication import (
    MAX_SESSIONS,
    MAX_SESSIONS_PER_KEY,
    SESSION_IDLE_SECONDS,
    SESSION_SECONDS,
    BrowserSessions,
)
from railscope_collector.access.credentials import CredentialKey, Role, digest_token
from railscope_collector.config import CollectorTlsSettings
from railscope_collector.console.page_shell import SECURITY_HEADERS
from railscope_collector.console.page_table import local_target


def check_headers(headers: Any) -> None:
    assert {name: headers.get(name) for name in SECURITY_HEADERS} == dict(SECURITY_HEADERS)
    assert headers["Cache-Control"] == "no-store"


async def test_without_a_credential_a_browser_is_sent_to_the_sign_in(tmp_path: Path) -> None:
    async with console(tmp_path) as running, browser(running.url) as reader:
        for path, target in {
            "/": "/sign-in",
            "/nodes?state=bad": "/sign-in?next=%2Fnodes%3Fstate%3Dbad",
            "/nothing": "/sign-in",
        }.items():
            answer = await reader.get(path)
            assert (answer.status, answer.headers["Location"]) == (303, target)
            check_headers(answer.headers)
            answer = await reader.get(path, Accept="*/*")
            assert (answer.status, "error" in answer.text) == (401, True)
        assert (await reader.get("/api/v1/pages/")).status == 401
        followed = await reader.get("/nodes?state=bad", Sec_Fetch_Site="cross-site")
        assert (followed.status, "url=/nodes?state=bad" in followed.text) == (200, True)


async def test_every_page_states_that_a_trial_is_in_force(tmp_path: Path) -> None:
    (tmp_path / "trial.token").write_text("0123456789abcdef" * 2)
    trial = {"trial_token_file": str(tmp_path / "trial.token")}
    banner = "Trial: all agents share one token"
    async with console(tmp_path, **trial) as running, browser(running.url) as reader:
        assert (await reader.sign_in(f"{'0123456789abcdef' * 2}/n1")).status == 403
        assert banner in (await reader.get("/sign-in")).text
        await reader.sign_in(TOKENS[Role.AUDITOR])
        for path in ("/", "/nodes", "/nodes/n1", "/jobs", "/audit", "/nothing"):
            page = await reader.get(path)
            assert page.text.count(banner) == 1, path
        assert banner not in (await reader.get("/nodes?fragment=1")).text


async def test_a_session_reads_and_never_reports(tmp_path: Path) -> None:
    async with console(tmp_path) as running, browser(running.url) as reader:
        answer = await reader.sign_in(TOKENS[Role.OPERATOR], "/nodes?page=1")
        assert (answer.status, answer.headers["Location"]) == (303, "/nodes?page=1")
        cookie = answer.headers["Set-Cookie"]
        assert cookie.startswith("railscope=")
        assert {"HttpOnly", "Path=/", "SameSite=Strict"} <= set(cookie.split("; "))
        assert "Max-Age" not in cookie
        assert TOKENS[Role.OPERATOR] not in cookie
        assert (await reader.get("/api/v1/nodes")).status == 200
        assert (await reader.post("/v1/frames", {}, Sec_Fetch_Site="same-origin")).status == 401
        page = await reader.get("/nodes")
        assert "reader (operator)" in page.text
        out = await reader.post("/sign-out", {}, Sec_Fetch_Site="same-origin")
        assert (out.status, out.headers["Location"]) == (303, "/sign-in")
        assert reader.cookies() == {}
        assert (await reader.get("/nodes", Cookie=cookie.partition(";")[0])).status == 303
    recorded = [r for r in verified_records(tmp_path / "state") if "console" in r.data]
    assert [(r.type, r.data["console"], r.actor.id, r.out) for r in recorded] == [
        ("access.login", "sign_in", "operator/reader", "done"),
        ("access.login", "sign_out", "operator/reader", "done"),
    ]


async def test_with_tls_the_cookie_is_secure_and_a_certificate_needs_no_sign_in(
    tmp_path: Path,
) -> None:
    server, key = self_signed(tmp_path / "server")
    authority = ClientAuthority(tmp_path / "authority")
    client = authority.client("reader", "railscope:operator/certified")
    tls = CollectorTlsSettings(
        certificate_file=str(server), key_file=str(key), client_ca_file=str(authority.file)
    )
    plain = ssl.create_default_context(cafile=str(server))
    settings = settings_in(tmp_path, tls=tls)
    (tmp_path / "tokens.toml").write_text(tokens_text())
    async with run_collector(settings) as running:
        async with browser(running.url, plain) as reader:
            answer = await reader.sign_in(TOKENS[Role.OPERATOR])
            cookie = answer.headers["Set-Cookie"]
            assert cookie.startswith("__Host-railscope=")
            assert {"Secure", "HttpOnly", "Path=/", "SameSite=Strict"} <= set(cookie.split("; "))
            assert (await reader.get("/nodes")).status == 200
            value = cookie.partition(";")[0].partition("=")[2]
        async with browser(running.url, plain) as other:
            assert (await other.get("/nodes", Cookie=f"railscope={value}")).status == 303
            assert (await other.get("/nodes", Cookie=f"__Host-railscope={value}")).status == 200
        async with browser(running.url, client.context(server)) as certified:
            page = await certified.get("/nodes")
            assert (page.status, "certified (operator)" in page.text) == (200, True)


DENIED = {
    "wrong": ({"token": "wrong"}, {"Sec-Fetch-Site": "same-origin"}, 403, "unknown token"),
    "empty": ({}, {"Sec-Fetch-Site": "same-origin"}, 403, "unknown token"),
    "node": ({"token": TOKENS[Role.NODE]}, {"Sec-Fetch-Site": "same-origin"}, 403, "no pages"),
    "other site": (
        {"token": TOKENS[Role.OPERATOR]}, {"Sec-Fetch-Site": "cross-site"}, 403, "another site",
    ),
    "other origin": (
        {"token": TOKENS[Role.OPERATOR]}, {"Origin": "http://evil.example"}, 403, "another site",
    ),
    "proxy": (
        {"token": TOKENS[Role.OPERATOR]},
        {"Sec-Fetch-Site": "same-origin", "X-Forwarded-For": "10.0.0.1"}, 403, "needs TLS",
    ),
    "other name": (
        {"token": TOKENS[Role.OPERATOR]},
        {"Sec-Fetch-Site": "same-origin", "Host": "collector.example"}, 403, "needs TLS",
    ),
    "too long": (
        {"token": TOKENS[Role.OPERATOR], "x": "y" * 9000}, {"Sec-Fetch-Site": "same-origin"},
        403, "unknown token",
    ),
}  # fmt: skip


async def test_a_denied_sign_in_states_the_reason_and_is_recorded(tmp_path: Path) -> None:
    async with console(tmp_path) as running, browser(running.url) as reader:
        for name, (form, headers, status, text) in DENIED.items():
            answer = await reader.post("/sign-in", form, **headers)
            assert (answer.status, text in answer.text) == (status, True), name
            assert "Set-Cookie" not in answer.headers
            check_headers(answer.headers)
        for _ in range(30):
            answer = await reader.sign_in("wrong")
        assert (answer.status, "too many" in answer.text) == (429, True)
        assert (await reader.sign_in(TOKENS[Role.OPERATOR])).status == 303, (
            "a valid one is accepted"
        )
    denied = [r for r in verified_records(tmp_path / "state") if r.data.get("path") == "/sign-in"]
    assert {r.data["reason"] for r in denied} == {
        "unknown token", "role", "sign-in from another site", "sign-in without TLS",
    }  # fmt: skip
    assert TOKENS[Role.OPERATOR] not in str(denied)


async def test_the_first_page_after_the_sign_in_is_one_that_the_role_may_read(
    tmp_path: Path,
) -> None:
    async with console(tmp_path) as running:
        paths = {
            Role.OPERATOR: "/", Role.AUDITOR: "/audit", Role.TENANT: "/tenants/vision", Role.FINANCE: "/billing",
        }  # fmt: skip
        await running.collector.trail.log.sign()
        for role, path in paths.items():
            async with browser(running.url) as reader:
                answer = await reader.sign_in(TOKENS[role], "//evil.example/")
                assert answer.headers["Location"] == path
                page = await reader.get(path)
                assert page.status == 200
                assert f'class="brand" href="{path}"' in page.text
                assert f'<a href="{path}">To the first page</a>' in (await reader.get("/no")).text


@pytest.mark.parametrize(
    "text",
    ["", "nodes", "//evil.example", "https://evil.example/nodes", "/\\evil.example", "/sign-out",
     "/nodes\n", "javascript:alert(1)", "/v1/frames", "/nodes/../v1", "http://[", "/nodes?x=é"],
)  # fmt: skip
def test_a_target_is_the_path_of_a_page_only(text: str) -> None:
    assert local_target(text) == ""


def test_sessions_are_bounded_and_end() -> None:
    now = [0.0]
    sessions = BrowserSessions(lambda: now[0])
    keys = [CredentialKey("token", digest_token(str(n))) for n in range(MAX_SESSIONS)]
    own = [sessions.open(keys[0]) for _ in range(MAX_SESSIONS_PER_KEY + 1)]
    assert [sessions.find(value) for value in own] == [None] + [keys[0]] * MAX_SESSIONS_PER_KEY
    for key in keys[1:]:
        sessions.open(key)
    assert len(sessions) == MAX_SESSIONS
    value = sessions.open(keys[1])
    now[0] += SESSION_IDLE_SECONDS - 1
    assert sessions.find(value) == keys[1]
    now[0] += SESSION_IDLE_SECONDS
    assert sessions.find(value) is None
    value = sessions.open(keys[1])
    for _ in range(int(SESSION_SECONDS / SESSION_IDLE_SECONDS) * 2 - 1):
        now[0] += SESSION_IDLE_SECONDS / 2
        assert sessions.find(value) == keys[1]
    now[0] += SESSION_IDLE_SECONDS / 2
    assert sessions.find(value) is None
    assert sessions.find("") is None
    assert sessions.close(value) is None
