"""Shipping: for any answer of the collector, every frame arrives once or is counted as lost."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from aiohttp import web
from structlog.testing import capture_logs
from support.collector import ScriptedCollector, Step, hang, take, take_and_vanish
from support.reading import ORIGIN
from support.shipping import SCHEMA, link_to, run_shipper

from railscope.catalog import gpu
from railscope.catalog.agent import GAP_EVENT
from railscope.catalog.entities import GPU
from railscope.frame import Entity, FrameOrigin, Schema
from railscope.wire import SENT_HEADER, Envelope, SentAt, schema_identity

OTHER = Schema("gpu", ((gpu.GPU_POWER, Entity(GPU, ("GPU-1",))),))


def waiting(directory: Path) -> int:
    return len(list((directory / "spool").glob("*.envelope")))


async def test_frames_arrive_in_order_and_leave_the_spool(tmp_path: Path) -> None:
    async with ScriptedCollector().serving() as collector:
        async with run_shipper(tmp_path, link_to(collector)) as run:
            for count in (1, 5, 3):
                await run.flush(count)
            await run.shipped(9)
        assert collector.taken == run.sent
        assert collector.duplicates == []
        assert (run.stats.shipped_frames, run.stats.failures) == (9, 0)
        assert (run.stats.spool_envelopes, run.stats.spool_bytes, waiting(tmp_path)) == (0, 0, 0)


async def test_an_envelope_is_made_every_period(tmp_path: Path) -> None:
    async with ScriptedCollector().serving() as collector:
        async with run_shipper(tmp_path, link_to(collector, push_seconds=2.0)) as run:
            run.publish()
            run.clock.advance(1.9)
            run.publish()
            assert collector.requests == []
            run.clock.advance(0.1)
            await run.shipped(2)
        assert len(collector.requests) == 3, "one envelope, and its schema"


async def test_a_request_contains_node_time_and_content(tmp_path: Path) -> None:
    async with ScriptedCollector().serving() as collector:
        async with run_shipper(tmp_path, link_to(collector)) as run:
            await run.flush()
            await run.shipped(1)
        headers = collector.requests[-1].headers
        assert headers["Authorization"] == "Bearer secret"
        assert headers["Content-Type"] == "application/vnd.railscope.frames"
        clocks = SentAt.from_timestamp(run.clock.now(), ORIGIN.boot_id)
        assert SentAt.from_header(headers[SENT_HEADER]) == clocks


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


# Connections --------------------------------------------------------------------------------------


async def test_a_collector_that_is_not_there_yet(tmp_path: Path) -> None:
    collector = ScriptedCollector()
    async with collector.serving():
        link = link_to(collector)
    with capture_logs() as logs:
        async with run_shipper(tmp_path, link) as run:
            await run.flush(2)
            await run.failed()
            await run.flush(1)
            async with collector.serving():
                run.retry()
                await run.shipped(3)
                assert (collector.taken, collector.duplicates) == (run.sent, [])
    problem = next(e["problem"] for e in logs if e["event"] == "collector_unreachable")
    assert f"cannot connect to {link.url}/v1/frames: connection refused" in problem


async def test_a_collector_that_hangs_is_given_up_after_the_timeout(tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with ScriptedCollector().serving() as collector:
            collector.script.append(hang)
            async with run_shipper(tmp_path, link_to(collector, timeout_seconds=0.5)) as run:
                await run.flush()
                await run.failed()
                run.retry()
                await run.shipped(1)
    assert "collector.timeout_seconds" in next(e["problem"] for e in logs if "problem" in e)


async def test_a_lost_acknowledgement_sends_again_and_counts_once(tmp_path: Path) -> None:
    async with ScriptedCollector().serving() as collector:
        async with run_shipper(tmp_path, link_to(collector)) as run:
            await run.flush()
            await run.shipped(1)
            collector.script.append(take_and_vanish)
            await run.flush(2)
            await run.shipped(3)
            await run.flush(1)
            await run.shipped(4)
        assert collector.taken == run.sent
        assert collector.duplicates == run.sent[1:3]
        assert run.stats.shipped_frames == 4


async def test_a_connection_closed_while_idle_is_no_failure(tmp_path: Path) -> None:
    collector = ScriptedCollector()
    async with collector.serving():
        link = link_to(collector)
        async with run_shipper(tmp_path, link) as run:
            await run.flush()
            await run.shipped(1)
            transport = collector.requests[-1].transport
            assert transport is not None
            transport.close()
            await run.flush()
            await run.shipped(2)
            assert (run.stats.failures, collector.duplicates) == (0, [])


# Schemas ------------------------------------------------------------------------------------------


async def test_schemas_go_ahead_when_they_are_asked_for(tmp_path: Path) -> None:
    async with ScriptedCollector().serving() as collector:
        async with run_shipper(tmp_path, link_to(collector)) as run:
            await run.flush(2)
            await run.shipped(2)
            assert len(collector.requests) == 3, "the frames, the schema, the frames again"
            await run.flush(1)
            await run.flush(1, OTHER)
            await run.shipped(4)
        assert collector.schemas == {schema_identity(SCHEMA), schema_identity(OTHER)}
        assert (collector.taken, collector.duplicates) == (run.sent, [])


async def test_a_collector_that_lost_a_schema_receives_it_again(tmp_path: Path) -> None:
    async with ScriptedCollector().serving() as collector:
        async with run_shipper(tmp_path, link_to(collector)) as run:
            await run.flush()
            await run.shipped(1)
            collector.schemas.clear()
            await run.flush()
            await run.shipped(2)
        assert collector.schemas == {schema_identity(SCHEMA)}


async def test_schemas_outlive_the_agent(tmp_path: Path) -> None:
    """Spooled by one run and shipped by the next, to a collector that knows neither."""
    absent = ScriptedCollector()
    async with absent.serving():
        link = link_to(absent)
    async with run_shipper(tmp_path, link) as first:
        await first.flush(2)
        await first.failed()
    async with absent.serving() as collector:
        async with run_shipper(tmp_path, link, FrameOrigin("node-1", "run-2", "boot-1")) as second:
            await second.flush(1, OTHER)
            await second.shipped(3)
        assert collector.duplicates == []
        assert collector.taken == first.sent + second.sent


async def test_frames_whose_schema_is_lost_are_given_up_and_counted(tmp_path: Path) -> None:
    absent = ScriptedCollector()
    async with absent.serving():
        link = link_to(absent)
    async with run_shipper(tmp_path, link) as first:
        await first.flush(2)
        await first.failed()
    shutil.rmtree(tmp_path / "schemas")
    async with absent.serving() as collector:
        async with run_shipper(tmp_path, link, FrameOrigin("node-1", "run-2", "boot-1")) as second:
            await second.flush(1, OTHER)
            await second.shipped(1)
        assert collector.taken == second.sent
        assert second.stats.dropped_frames["rejected"] == 2


async def test_a_collector_that_keeps_asking_is_reported(tmp_path: Path) -> None:
    wanted = {"unknown_schemas": [schema_identity(SCHEMA).hex()]}
    with capture_logs() as logs:
        async with ScriptedCollector().serving() as collector:
            forgetful = (
                web.json_response(wanted, status=409),
                take,
                web.json_response(wanted, status=409),
            )
            collector.script.extend(forgetful)
            async with run_shipper(tmp_path, link_to(collector)) as run:
                await run.flush()
                await run.failed()
                run.retry()
                await run.shipped(1)
    problem = next(e["problem"] for e in logs if e["event"] == "collector_unreachable")
    assert "for schemas that were sent" in problem


# Stopping -----------------------------------------------------------------------------------------


async def test_pending_frames_are_sent_at_the_stop(tmp_path: Path) -> None:
    async with ScriptedCollector().serving() as collector:
        async with run_shipper(tmp_path, link_to(collector)) as run:
            run.publish()
            run.publish()
        assert collector.taken == run.sent
        assert waiting(tmp_path) == 0


async def test_envelopes_acknowledged_at_the_stop_are_counted(tmp_path: Path) -> None:
    """The spool removes the envelope after its waiter was cancelled."""
    holding, released = threading.Event(), threading.Event()

    def hold() -> None:
        holding.set()
        released.wait()

    async with ScriptedCollector().serving() as collector:
        async with run_shipper(tmp_path, link_to(collector)) as run:
            disk = run.shipper._disk  # noqa: SLF001 - to hold its thread up

            async def take_and_hold(
                one: ScriptedCollector, request: web.Request, sent: Envelope
            ) -> web.Response:
                disk.submit(hold)
                return await take(one, request, sent)

            collector.script.extend([take, take, take_and_hold])  # asks for schemas, has them
            await run.flush(2)
            while not holding.is_set() or disk._jobs.empty():  # noqa: ASYNC110, SLF001
                await asyncio.sleep(0)
            asyncio.get_running_loop().call_soon(released.set)
        assert collector.taken == run.sent
        assert collector.duplicates == []
        assert (run.stats.shipped_frames, waiting(tmp_path)) == (2, 0)


@pytest.mark.parametrize("answer", ["refusing", "hanging"])
async def test_frames_unsent_at_the_stop_wait_for_the_next_run(tmp_path: Path, answer: str) -> None:
    async with ScriptedCollector().serving() as collector:
        script: dict[str, web.Response | Step] = {"refusing": error(503)(), "hanging": hang}
        collector.script.append(script[answer])
        async with run_shipper(tmp_path, link_to(collector, timeout_seconds=0.1)) as run:
            run.publish()
        assert (waiting(tmp_path), collector.taken) == (1, [])
        async with run_shipper(tmp_path, link_to(collector)) as again:
            await again.shipped(1)
        assert (collector.taken, again.stats.shipped_frames) == (run.sent, 1)


async def test_frames_that_no_one_takes_are_bounded(tmp_path: Path) -> None:
    collector = ScriptedCollector()
    async with collector.serving():
        link = link_to(collector)
    async with run_shipper(tmp_path, link) as run:
        for _ in range(20_001):
            run.publish()
        assert run.stats.dropped_frames["disk"] == 1
        assert [event.entity.key for event in run.events] == [("disk",)]
