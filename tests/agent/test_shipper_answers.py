"""Answers of a collector, of a proxy and of a stranger: which are repeated, dropped, and reported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web
from structlog.testing import capture_logs
from support.collector import ScriptedCollector, Step, take
from support.reading import ORIGIN
from support.shipping import link_to, run_shipper, waiting

from railscope.catalog.agent import GAP_EVENT
from railscope.wire import Envelope
from railscope_agent.config import CollectorLink

# Answers that mean: later -------------------------------------------------------------------------

JSON_ERROR = {"error": "because"}


def error(status: int) -> Callable[[], web.Response]:
    """Return an error answer of a collector."""
    return lambda: web.json_response(JSON_ERROR, status=status)


def other(body: bytes, status: int = 200) -> Callable[[], web.Response]:
    """Return an answer of another kind of server."""
    return lambda: web.Response(body=body, status=status)


NOT_THE_COLLECTOR = "fix: check that collector.url is the base URL of a collector"
LATER: dict[str, tuple[Callable[[], web.Response], str]] = {
    "401": (error(401), "compare collector.token_file"),
    "403": (error(403), "check node and collector.token_file"),
    "404": (error(404), "check that collector.url"),
    "405": (error(405), "check that collector.url"),
    "426": (error(426), "update the older of agent and collector"),
    "429": (error(429), "busy"),
    "503": (error(503), "cannot store frames now"),
    "500": (error(500), NOT_THE_COLLECTOR),
    "409 without schemas": (error(409), "status 409 (because)"),
    "409 with nonsense": (other(b'{"unknown_schemas":["zz"]}', 409), "status 409"),
    "200 of a web page": (other(b"<html>"), NOT_THE_COLLECTOR),
    "200 of another service": (other(b'{"status":"ok"}'), NOT_THE_COLLECTOR),
    "200 that is no text": (other(b'{"error":"\xff"}'), NOT_THE_COLLECTOR),
    "200 nested too deeply": (other(b'{"x":' + b"[" * 100_000), NOT_THE_COLLECTOR),
    "204": (other(b"", 204), NOT_THE_COLLECTOR),
    "413 of a proxy": (other(b"<html>", 413), "status 413"),
}


@pytest.mark.parametrize("case", LATER)
async def test_an_answer_that_means_later_loses_nothing(tmp_path: Path, case: str) -> None:
    make, expected = LATER[case]
    with capture_logs() as logs:
        async with ScriptedCollector().serving() as collector:
            collector.script.extend(make() for _ in range(3))
            async with run_shipper(tmp_path, link_to(collector)) as run:
                await run.flush(2)
                for failures in (1, 2, 3):
                    await run.failed()
                    assert (run.stats.failures, waiting(tmp_path)) == (failures, 1)
                    run.retry()
                await run.shipped(2)
            assert (collector.taken, collector.duplicates) == (run.sent, [])
            assert sum(run.stats.dropped_frames.values()) == 0
    problems = [entry["problem"] for entry in logs if entry["event"] == "collector_unreachable"]
    assert len(problems) == 1, "logged once, not at every try"
    assert expected in problems[0]
    assert f"127.0.0.1:{collector.port}" in problems[0]
    assert [e["event"] for e in logs].count("collector_connected") == 1


async def test_a_redirect_is_not_followed(tmp_path: Path) -> None:
    """The token is for the collector, not for the target of a redirect."""
    async with (
        ScriptedCollector().serving() as elsewhere,
        ScriptedCollector().serving() as collector,
    ):
        target = f"http://127.0.0.1:{elsewhere.port}/v1/frames"
        collector.script.append(web.Response(status=307, headers={"Location": target}))
        async with run_shipper(tmp_path, link_to(collector)) as run:
            await run.flush()
            await run.failed()
            run.retry()
            await run.shipped(1)
        assert elsewhere.requests == []


async def test_retry_after_is_kept(tmp_path: Path) -> None:
    async with ScriptedCollector().serving() as collector:
        busy = web.json_response(JSON_ERROR, status=429, headers={"Retry-After": "20"})
        collector.script.append(busy)
        async with run_shipper(tmp_path, link_to(collector)) as run:
            await run.flush()
            await run.failed()
            run.clock.advance(15.9)
            assert len(collector.requests) == 1, "at least 80 % of what was asked for"
            run.clock.advance(8.2)
            await run.shipped(1)


@pytest.mark.parametrize("asked", ["86400", "Fri, 31 Dec 2100 23:59:59 GMT", "-1", "soon"])
async def test_retry_after_is_bounded_by_the_settings(tmp_path: Path, asked: str) -> None:
    async with ScriptedCollector().serving() as collector:
        headers = {"Retry-After": asked}
        collector.script.append(web.json_response(JSON_ERROR, status=503, headers=headers))
        async with run_shipper(tmp_path, link_to(collector, max_retry_seconds=10.0)) as run:
            await run.flush()
            await run.failed()
            run.clock.advance(12.1)
            await run.shipped(1)


async def test_pauses_grow_and_stay_bounded(tmp_path: Path) -> None:
    async with ScriptedCollector().serving() as collector:
        collector.script.extend(web.json_response(JSON_ERROR, status=503) for _ in range(7))
        async with run_shipper(tmp_path, link_to(collector, max_retry_seconds=4.0)) as run:
            await run.flush()
            for pause in (0.5, 1, 2, 4, 4, 4):
                await run.failed()
                tries = len(collector.requests)
                run.clock.advance(pause * 0.79)
                assert len(collector.requests) == tries
                run.clock.advance(pause * 0.42)
                await collector.asked(tries + 1)
            await run.failed()
            run.retry()
            await run.shipped(1)


# Answers that mean: never -------------------------------------------------------------------------


@pytest.mark.parametrize("status", [400, 413, 422])
async def test_a_permanently_rejected_batch_is_dropped_counted_and_reported(
    tmp_path: Path, status: int
) -> None:
    with capture_logs() as logs:
        async with ScriptedCollector().serving() as collector:
            collector.script.append(web.json_response(JSON_ERROR, status=status))
            async with run_shipper(tmp_path, link_to(collector)) as run:
                await run.flush(3)
                await collector.asked(1)
                await run.flush(2)
                await run.shipped(2)
            assert collector.taken == run.sent[3:]
            assert run.stats.dropped_frames["rejected"] == 3
            assert run.stats.shipped_frames == 2
            (event,) = run.events
            assert (event.event_class, event.entity.key) == (GAP_EVENT, ("rejected",))
            assert event.facts == {"frames": "3", "envelopes": "1"}
    (refused,) = [entry for entry in logs if entry["event"] == "frames_rejected"]
    assert refused["frames"] == 3
    assert f": status {status}: because" in refused["problem"]


# Envelopes of a former name ------------------------------------------------------------------------

FORMER = replace(ORIGIN, node="former-name", run="run-0")


def deny(credential_node: str, accepted_node: str) -> Step:
    """Return the answer of a collector that accepts one node only, and states the node of the credential."""

    async def answer(
        self: ScriptedCollector, request: web.Request, envelope: Envelope
    ) -> web.Response:
        if envelope.node == accepted_node:
            return await take(self, request, envelope)
        content = {"error": "of another node", "credential_node": credential_node}
        return web.json_response(content, status=403)

    return answer


async def spool_former(directory: Path) -> None:
    """Spool three envelopes under the former name of the node."""
    link = CollectorLink(url="http://127.0.0.1:1", token="secret")  # noqa: S106 - no secret
    async with run_shipper(directory, link, FORMER) as run:
        for _ in range(3):
            await run.flush(2)
    assert waiting(directory) == 3


async def test_envelopes_of_a_former_name_are_dropped_with_one_report(tmp_path: Path) -> None:
    """Those of the present name, behind them, are delivered."""
    await spool_former(tmp_path)
    with capture_logs() as logs:
        async with ScriptedCollector().serving() as collector:
            collector.script.extend([deny(ORIGIN.node, ORIGIN.node)] * 9)
            async with run_shipper(tmp_path, link_to(collector)) as run:
                await run.flush(4)
                await run.shipped(4)
            assert (collector.taken, waiting(tmp_path)) == (run.sent, 0)
            assert run.stats.dropped_frames["rejected"] == sum(run.stats.dropped_frames.values())
            assert run.stats.dropped_frames["rejected"] == 6
            (event,) = run.events
            assert event.facts == {"frames": "6", "envelopes": "3"}
    assert [e["event"] for e in logs].count("spool_rejected") == 1
    assert [e["frames"] for e in logs if e["event"] == "frames_lost"] == [6]
    (problem,) = (e["problem"] for e in logs if e["event"] == "spool_rejected")
    assert f"expected those of '{ORIGIN.node}', as in the credential" in problem


KEPT = {
    "credential of another node": (deny("other-name", ""), True),
    "credential of the former name": (deny(FORMER.node, ""), True),
    "no node in a collector's answer": (deny("", ""), True),
    "no mark of a collector": (deny(ORIGIN.node, ""), False),
}


@pytest.mark.parametrize("case", KEPT)
async def test_other_denials_drop_nothing_of_a_former_name(tmp_path: Path, case: str) -> None:
    step, marks = KEPT[case]
    await spool_former(tmp_path)
    async with ScriptedCollector(marks=marks).serving() as collector:
        collector.script.extend([step] * 2)
        async with run_shipper(tmp_path, link_to(collector)) as run:
            await run.flush(2)
            for _ in range(2):
                await run.failed()
                assert (waiting(tmp_path), sum(run.stats.dropped_frames.values())) == (4, 0)
                run.retry()
            collector.marks = True
            await run.shipped(8)


async def test_a_denied_envelope_of_the_present_name_is_kept(tmp_path: Path) -> None:
    async with ScriptedCollector().serving() as collector:
        collector.script.extend([deny(ORIGIN.node, "")] * 2)
        async with run_shipper(tmp_path, link_to(collector)) as run:
            await run.flush(2)
            for _ in range(2):
                await run.failed()
                assert (waiting(tmp_path), sum(run.stats.dropped_frames.values())) == (1, 0)
                run.retry()
            await run.shipped(2)


DECISIONS_OF_A_STRANGER = {
    "200": (200, {"accepted_frames": 2, "duplicate_frames": 0}),
    "400": (400, {"error": "bad request"}),
    "409": (409, {"unknown_schemas": ["00" * 16]}),
    "413": (413, {"error": "too large"}),
    "422": (422, {"error": "unprocessable"}),
}


@pytest.mark.parametrize("case", DECISIONS_OF_A_STRANGER)
async def test_a_decision_without_the_mark_of_a_collector_changes_nothing(
    tmp_path: Path, case: str
) -> None:
    status, content = DECISIONS_OF_A_STRANGER[case]
    with capture_logs() as logs:
        async with ScriptedCollector(marks=False).serving() as collector:
            collector.script.extend(web.json_response(content, status=status) for _ in range(3))
            async with run_shipper(tmp_path, link_to(collector)) as run:
                await run.flush(2)
                for failures in (1, 2, 3):
                    await run.failed()
                    assert (run.stats.failures, waiting(tmp_path)) == (failures, 1)
                    run.retry()
                collector.marks = True
                await run.shipped(2)
            assert (collector.taken, sum(run.stats.dropped_frames.values())) == (run.sent, 0)
    problems = {entry["problem"] for entry in logs if entry["event"] == "collector_unreachable"}
    url = f"http://127.0.0.1:{collector.port}/v1/frames"
    assert {text.partition(":")[0] for text in problems} >= {"unexpected response from http"}
    assert any(
        text.startswith(f"unexpected response from {url}: status {status}") for text in problems
    )
