"""Shipping: for any answer of the collector, every frame arrives once or is counted as lost."""

from __future__ import annotations

import asyncio
import shutil
import threading
from pathlib import Path

import pytest
from aiohttp import web
from structlog.testing import capture_logs
from support.collector import PATIENCE_SECONDS, ScriptedCollector, Step, hang, take, take_and_vanish
from support.reading import ORIGIN
from support.shipping import SCHEMA, PassingClock, link_to, run_shipper, waiting

from railscope.catalog import gpu
from railscope.catalog.entities import GPU
from railscope.frame import Entity, FrameOrigin, Schema
from railscope.wire import SENT_HEADER, Envelope, SentAt, schema_identity
from railscope_agent.shipping.envelope_delivery import MAX_SCHEMA_SENDINGS

OTHER = Schema("gpu", ((gpu.GPU_POWER, Entity(GPU, ("GPU-1",))),))


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


async def test_an_envelope_contains_the_reads_that_are_due_with_it(tmp_path: Path) -> None:
    seconds = 3 * PATIENCE_SECONDS
    async with ScriptedCollector().serving() as collector:
        link = link_to(collector, push_seconds=seconds)
        async with run_shipper(tmp_path, link, clock=PassingClock()) as run:
            run.publish()
            run.clock.advance(seconds)
            assert collector.requests == []
            run.publish()
            await asyncio.sleep(0)
            run.publish()  # the next frame of the same round
            await run.shipped(3)
        assert len(collector.requests) == 3, "one envelope, and its schema"


async def test_an_envelope_does_not_wait_for_reads_that_are_late(tmp_path: Path) -> None:
    async with ScriptedCollector().serving() as collector:
        link = link_to(collector, push_seconds=0.02)
        async with run_shipper(tmp_path, link, clock=PassingClock()) as run:
            run.publish()
            run.clock.advance(0.02)
            await run.shipped(1)


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


class HeldRequest:
    """A request that is accepted once it is released."""

    def __init__(self) -> None:
        self.arrived, self.release = asyncio.Event(), asyncio.Event()

    async def answer(
        self, one: ScriptedCollector, request: web.Request, sent: Envelope
    ) -> web.Response:
        """Wait, then accept."""
        self.arrived.set()
        await self.release.wait()
        answer: web.Response = await take(one, request, sent)
        return answer


async def test_an_acknowledged_envelope_is_not_written_to_the_disk(tmp_path: Path) -> None:
    seen: list[int] = []

    async def count(one: ScriptedCollector, request: web.Request, sent: Envelope) -> web.Response:
        seen.append(waiting(tmp_path))
        return await take(one, request, sent)

    async with ScriptedCollector().serving() as collector:
        async with run_shipper(tmp_path, link_to(collector)) as run:
            collector.script.extend([count] * 5)
            for total in (1, 2, 3):
                await run.flush()
                await run.shipped(total)
        assert seen == [1, 1, 1, 0, 0], "until the first acknowledgement, with its schema"
        assert (collector.taken, collector.duplicates) == (run.sent, [])


async def test_an_envelope_that_waits_for_its_acknowledgement_is_spooled(tmp_path: Path) -> None:
    held = HeldRequest()
    async with ScriptedCollector().serving() as collector:
        async with run_shipper(tmp_path, link_to(collector)) as run:
            await run.flush()
            await run.shipped(1)
            collector.script.append(held.answer)
            await run.flush(2)
            async with asyncio.timeout(PATIENCE_SECONDS):
                while waiting(tmp_path) == 0:
                    run.stats.changed.clear()
                    await run.stats.changed.wait()
            await run.flush(3)
            assert waiting(tmp_path) == 2, "later ones follow it"
            held.release.set()
            await run.shipped(6)
            assert waiting(tmp_path) == 0
        assert (collector.taken, collector.duplicates) == (run.sent, [])


async def test_an_envelope_is_spooled_when_a_later_one_follows(tmp_path: Path) -> None:
    """A run has no gap: no envelope is on the disk while an earlier one is only in memory."""
    held = HeldRequest()
    async with ScriptedCollector().serving() as collector:
        async with run_shipper(tmp_path, link_to(collector)) as run:
            await run.flush()
            await run.shipped(1)
            collector.script.append(held.answer)
            await run.flush(1)
            await held.arrived.wait()
            await run.flush(1)
            assert waiting(tmp_path) == 2
            held.release.set()
            await run.shipped(3)
        assert (collector.taken, collector.duplicates) == (run.sent, [])


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


async def test_a_connection_closed_while_idle_is_not_a_failure(tmp_path: Path) -> None:
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


async def test_requested_schemas_are_sent_first(tmp_path: Path) -> None:
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
    """Frames spooled by one run and shipped by the next, to a collector without schemas of either."""
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
            for sendings in range(MAX_SCHEMA_SENDINGS + 1):
                collector.script.extend([take] * sendings)
                collector.script.append(web.json_response(wanted, status=409))
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


async def test_the_stop_does_not_read_the_token_again(tmp_path: Path) -> None:
    """An agent stops, or reads its settings again, after its token file was replaced by one of another name."""
    token = tmp_path / "token"
    token.write_text("secret\n")
    async with ScriptedCollector().serving() as collector:
        link = link_to(collector, token_file=str(token))
        async with run_shipper(tmp_path, link) as run:
            run.publish()
            token.unlink()
        assert (collector.taken, waiting(tmp_path)) == (run.sent, 0)


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

            collector.script.extend([take, take, take_and_hold])  # requests schemas, receives them
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
        script: dict[str, web.Response | Step] = {
            "refusing": web.json_response({}, status=503),
            "hanging": hang,
        }
        collector.script.append(script[answer])
        async with run_shipper(tmp_path, link_to(collector, timeout_seconds=0.1)) as run:
            run.publish()
        assert (waiting(tmp_path), collector.taken) == (1, [])
        async with run_shipper(tmp_path, link_to(collector)) as again:
            await again.shipped(1)
        assert (collector.taken, again.stats.shipped_frames) == (run.sent, 1)


async def test_undelivered_frames_are_bounded(tmp_path: Path) -> None:
    collector = ScriptedCollector()
    async with collector.serving():
        link = link_to(collector)
    async with run_shipper(tmp_path, link) as run:
        for _ in range(20_001):
            run.publish()
        assert run.stats.dropped_frames["disk"] == 1
        assert [event.entity.key for event in run.events] == [("disk",)]
