"""Unusual paths, methods and headers against the real server: no access, and no failure."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from collections.abc import Iterator
from http.client import BadStatusLine, HTTPResponse
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st
from running_collector import settings_in, write_audit_log
from support.billing_port import BookedRows

from railscope.audit.record import RecordActor
from railscope.catalog import account as account_catalog, collector as catalog
from railscope.claim_terms import GPU_CAPACITY
from railscope_collector.access.credentials import digest_token
from railscope_collector.account.account_sums import GpuTimeAccount, TimeKey
from railscope_collector.fleet.view_cells import View, ViewCell
from railscope_collector.http import web_server
from railscope_collector.ledger.record_draft import RecordDraft
from railscope_collector.metering.slot_state import SlotState
from railscope_collector.service import Collector
from railscope_collector.view_refresh import CollectorViews

SECRET, OWN = 312_345_678, 387_654_321
"""Numbers of another tenant and of the cluster, and of the requesting tenant."""
PATHS = (
    "/", "/-/healthy", "/-/ready", "/metrics", "/v1/frames", "/api/v1/cluster", "/api/v1/rails",
    "/api/v1/nodes", "/api/v1/nodes/n1", "/api/v1/gpus", "/api/v1/switches", "/api/v1/links", "/api/v1/events", "/api/v1/tenants", "/api/v1/account",
    "/api/v1/statements", "/api/v1/statements/speech/2026-01", "/api/v1/statements/vision/2026-01",
    "/api/v1/exports/2026-01", "/api/v1/exports/2026-01?tenant=speech", "/api/v1/audit",
    "/api/v1/audit/entries/0", "/api/v1/audit/checkpoint", "/api/v1/audit/consistency",
)  # fmt: skip
DRAFTS = [
    RecordDraft(
        "tenancy.assign",
        RecordActor("scheduler", "slurm"),
        1,
        "done",
        data={"tenant": tenant, "n": number},
    )
    for tenant, number in (("speech", SECRET), ("vision", OWN))
]
OPEN_PAGES = (b"<!doctype html>", b"healthy\n", b"ready\n")
METHODS = ("GET", "HEAD", "POST", "OPTIONS", "PUT", "DELETE", "TRACE", "get", "X")


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A server in a thread of its own."""
    directory = tmp_path_factory.mktemp("collector")
    ready, listening = threading.Event(), []
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        collector = collector_in(directory)
        collector.live.account = collector.refresher.views.account  # as after the first round
        collector.log.directory.mkdir(parents=True)  # readiness writes to it
        await write_audit_log(collector, DRAFTS)
        server = web_server.WebServer(collector.application, collector.connections)
        listening.append((await server.start("127.0.0.1:0", None))[1])
        stop.append(asyncio.Event())
        ready.set()
        await stop[0].wait()
        await server.close()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    stop: list[asyncio.Event] = []
    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert ready.wait(60)
    yield listening[0]
    loop.call_soon_threadsafe(stop[0].set)
    thread.join()
    loop.close()


def collector_in(directory: Path) -> Collector:
    made = settings_in(directory)
    (directory / "tokens.toml").write_text(
        f'[operators]\no = "{digest_token("operator")}"\n[tenants.vision]\nv = "{digest_token("tenant")}"\n'
        f'[nodes]\nn1 = "{digest_token("node")}"\n'
    )
    booked = {("speech", "2026-01"): [("gpu", SECRET)], ("vision", "2026-01"): [("gpu", OWN)]}
    collector = Collector(made, billing=BookedRows(booked))
    times = {"speech": SECRET, "vision": OWN}
    sums = {
        TimeKey(1, SlotState.OBSERVED, tenant): ns * GPU_CAPACITY for tenant, ns in times.items()
    }
    cells = [
        ViewCell(account_catalog.TENANT_GPU_TIME, (tenant, "observed"), ns)
        for tenant, ns in times.items()
    ]
    other = (ViewCell(catalog.NODE_AGE, ("n1",), SECRET), ViewCell(catalog.NODES, (), SECRET))
    collector.refresher.views = CollectorViews(
        1,
        View("cluster", 1, other[1:]),
        View("rail", 1),
        View("tenant", 1, tuple(cells)),
        View("node", 1, other[:1]),
        GpuTimeAccount(1, 1, SECRET * GPU_CAPACITY, sums),
    )
    collector.refresher.max_age_seconds = 1e10  # answers use them, however old they are
    return collector


def ask(port: int, request: bytes, method: str = "GET") -> tuple[int, bytes]:
    """Send bytes and read one answer: its status, and its body; 0 if it is not HTTP."""
    with socket.create_connection(("127.0.0.1", port), 20) as one:
        one.sendall(request)
        answer = HTTPResponse(one, method=method)
        try:
            answer.begin()
        except BadStatusLine as line:
            return 0, str(line).encode()
        return answer.status, answer.read()


@st.composite
def spelled(draw: st.DrawFn) -> bytes:
    """A path, as an intruder might write it."""
    path = draw(st.sampled_from(PATHS))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(path) - 1))
        trick = draw(
            st.sampled_from(
                [
                    "encode",
                    "twice",
                    "upper",
                    "slash",
                    "dot",
                    "dots",
                    "end",
                    "cut",
                    "query",
                    "absolute",
                    "null",
                    "raw",
                    "semicolon",
                ]
            )
        )
        path = {
            "encode": f"{path[:at]}%{ord(path[at]):02x}{path[at + 1 :]}",
            "twice": f"{path[:at]}%25{ord(path[at]):02X}{path[at + 1 :]}",
            "upper": path[:at] + path[at].upper() + path[at + 1 :],
            "slash": f"{path[:at]}/{path[at:]}",
            "dot": f"{path[:at]}/./{path[at:]}",
            "dots": f"/-/healthy/..{path}",
            "end": f"{path}/",
            "cut": path[: at + 1],
            "query": f"{path}?tenant=vision&tenant=speech&format=json&from=0&limit=-1&old=1e3",
            "absolute": f"http://127.0.0.1{path}",
            "null": f"{path[:at]}%00{path[at:]}",
            "raw": path[:at] + draw(st.text(max_size=2)) + path[at:],
            "semicolon": f"{path[:at]};{path[at:]}",
        }[trick]
    return path.encode(errors="surrogatepass").replace(b"\r", b"").replace(b"\n", b"")


headers = st.sampled_from(
    [
        b"Authorization: Bearer wrong", b"authorization:Bearer wrong", b"Authorization: ",
        b"Authorization: Bearer \xff\xfe", b"Authorization: Basic dGVuYW50Og==",
        b"Accept: \xff", b"Accept: application/openmetrics-text;q=x", b"Accept-Encoding: gzip;q=x",
        b"X-Forwarded-For: 127.0.0.1", b"X-Original-URL: /metrics", b"X-HTTP-Method-Override: GET",
        b"Expect: 100-continue", b"Expect: x", b"Transfer-Encoding: chunked", b"Content-Length: 5",
        b"Content-Length: x", b"Content-Encoding: gzip", b"Upgrade: websocket", b"Range: bytes=0-",
        b"X-Railscope-Sent: \xff", b"Cookie: \x01", b"Host: other", b"A" * 9000 + b": b",
    ]
)  # fmt: skip


def request_of(method: str, path: bytes, more: list[bytes], version: bytes = b"1.1") -> bytes:
    head = [method.encode() + b" " + path + b" HTTP/" + version, b"Host: x", b"Connection: close"]
    return b"\r\n".join([*head, *more, b"", b""])


FUZZ = settings(
    max_examples=max(100, settings().max_examples),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@FUZZ
@given(
    st.sampled_from(METHODS),
    spelled(),
    st.lists(headers, max_size=3),
    st.sampled_from([b"1.0", b"1.1"]),
)
@example("GET", b"/metrics", [], b"1.1")
@example("GET", b"*", [], b"1.1")
def test_no_route_serves_an_invalid_credential(
    port: int, method: str, path: bytes, more: list[bytes], version: bytes
) -> None:
    status, answer = ask(port, request_of(method, path, more, version), method)
    assert status < 500, answer
    assert str(SECRET).encode() not in answer
    assert str(OWN).encode() not in answer
    if status == 200:
        _, page = ask(port, request_of("GET", path, more, version))
        assert page.startswith(OPEN_PAGES), page
    else:
        assert status in {400, 401, 417, 429}, answer


@FUZZ
@given(st.sampled_from(METHODS), spelled(), st.lists(headers, max_size=2))
@example("GET", b"/api/v1/statements/speech/2026-01", [])
@example("GET", b"/api/v1/exports/2026-01", [])
def test_a_tenant_gets_nothing_of_others_by_any_spelling(
    port: int, method: str, path: bytes, more: list[bytes]
) -> None:
    given_ = [b"Authorization: Bearer tenant", *more]
    status, answer = ask(port, request_of(method, path, given_), method)
    assert status < 500, answer
    assert str(SECRET).encode() not in answer
    # Bytes that are not HTTP are quoted in the response to their sender.
    assert status == 400 or b"speech" not in answer, answer


@FUZZ
@given(st.binary(max_size=200))
def test_noise_is_not_a_request(port: int, noise: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), 20) as one:
        one.sendall(noise + b"\r\n\r\n")
        one.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: one.recv(1 << 16), b""))
    statuses = {int(found) for found in re.findall(rb"^HTTP/1\.[01] (\d{3})", answer, re.MULTILINE)}
    assert statuses <= {400, 401, 405, 417, 429}, answer


def test_two_requests_of_one_connection_are_two_askers(port: int) -> None:
    statuses, pages = [], []
    with socket.create_connection(("127.0.0.1", port), 20) as one:
        for shown in (
            b"Authorization: Bearer operator\r\n",
            b"Authorization: Bearer tenant\r\n",
            b"",
        ):
            one.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n" + shown + b"\r\n")
            answer = HTTPResponse(one)
            answer.begin()
            statuses.append(answer.status)
            pages.append(answer.read())
    assert statuses[:2] == [200, 200]
    assert statuses[2] in {401, 429}
    assert [str(SECRET).encode() in page for page in pages] == [True, False, False]
    assert [str(OWN).encode() in page for page in pages] == [True, True, False]
