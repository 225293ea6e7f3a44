"""Live copies: the second collector gets every frame as well, without an effect on the first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given, strategies as st
from structlog.testing import capture_logs
from support.clock import ManualClock
from support.collector import PATIENCE_SECONDS, ScriptedCollector, hang
from support.reading import ORIGIN
from support.shipping import FLUSHING, RunningShipper, link_to, run_shipper, waiting

from railscope.settings import SettingsError, load
from railscope.wire import PRIMARY_FAILING, PRIMARY_HEADER
from railscope_agent.config import PREFIX, AgentSettings, CollectorLink
from railscope_agent.sampling.shipping_stats import ShippingStats
from railscope_agent.shipping.collector_choice import LATE_SECONDS, CollectorFailover
from railscope_agent.shipping.collector_link import CollectorLinkError
from railscope_agent.shipping.collector_order import collector_links
from railscope_agent.shipping.envelope_delivery import EnvelopeDelivery
from railscope_agent.shipping.live_copies import MAX_COPIES, MAX_COPY_BYTES, LiveCopies

DOWN = {"error": "no"}


def pair(first: ScriptedCollector, second: ScriptedCollector, **more: object) -> CollectorLink:
    urls = [f"http://127.0.0.1:{one.port}" for one in (first, second)]
    return link_to(first, url="", urls=urls, order="listed", send_to=2, **more)


@asynccontextmanager
async def running(
    directory: Path, **more: object
) -> AsyncIterator[tuple[ScriptedCollector, ScriptedCollector, RunningShipper]]:
    """Two collectors and a shipper."""
    async with (
        ScriptedCollector().serving() as first,
        ScriptedCollector().serving() as second,
        run_shipper(directory, pair(first, second, **more)) as run,
    ):
        yield first, second, run


async def finished_copies(run: RunningShipper, copies: int) -> None:
    """Wait until copies of a number of frames were sent or dropped."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while run.stats.copied_frames + run.stats.dropped_copies < copies:
            run.stats.changed.clear()
            await run.stats.changed.wait()


def primaries(one: ScriptedCollector) -> list[str]:
    """State of the primary collector in each request for a copy, without those for schemas."""
    return [request.headers.get(PRIMARY_HEADER, "") for request in one.copy_requests]


async def test_the_second_collector_gets_every_frame_as_a_copy(tmp_path: Path) -> None:
    async with ScriptedCollector().serving() as first, ScriptedCollector().serving() as second:
        async with run_shipper(tmp_path, pair(first, second)) as run:
            for _ in range(5):
                await run.flush(2)
                await run.shipped(len(run.sent))
                await finished_copies(run, len(run.sent))
        assert first.taken == second.copied == run.sent
        assert (second.taken, second.requests, first.copied) == ([], [], [])
        assert (run.stats.copied_frames, run.stats.dropped_copies) == (10, 0)
        assert set(primaries(second)) == {""}
        assert waiting(tmp_path) == 0


async def test_a_second_collector_that_fails_costs_only_copies(tmp_path: Path) -> None:
    async with ScriptedCollector().serving() as first, ScriptedCollector().serving() as second:
        with capture_logs() as logs:
            async with run_shipper(tmp_path, pair(first, second)) as run:
                second.copy_script += [web.json_response(DOWN, status=503) for _ in range(2)]
                await run.flush()
                await run.clock.asleep(FLUSHING + 1)  # the pause after a failed copy
                for _ in range(2 * MAX_COPIES):
                    await run.flush()
                    await run.shipped(len(run.sent))
                assert run.stats.dropped_copies == MAX_COPIES + 1, "the oldest"
                run.clock.advance(1)
                await run.clock.asleep(FLUSHING + 1)
                run.clock.advance(60)
                await second.has_copied(MAX_COPIES)
                assert second.copied == run.sent[-MAX_COPIES:]
        assert run.stats.failures == 0
        assert run.stats.dropped_frames == dict.fromkeys(run.stats.dropped_frames, 0)
        assert first.taken == run.sent
        assert first.duplicates == []
    assert [entry["event"] for entry in logs].count("live_copy_failed") == 1


async def test_a_second_collector_that_hangs_delays_nothing(tmp_path: Path) -> None:
    async with ScriptedCollector().serving() as first, ScriptedCollector().serving() as second:
        second.copy_script.append(hang)
        async with run_shipper(tmp_path, pair(first, second)) as run:
            for _ in range(3 * MAX_COPIES):
                await run.flush()
                await run.shipped(len(run.sent))
            assert run.stats.dropped_copies == 2 * MAX_COPIES - 1
            assert run.stats.copied_frames == 0


async def test_a_collector_of_an_earlier_version_is_named_with_the_fix(tmp_path: Path) -> None:
    async with ScriptedCollector().serving() as first, ScriptedCollector().serving() as second:
        with capture_logs() as logs:
            async with run_shipper(tmp_path, pair(first, second)) as run:
                second.copy_script.append(web.json_response({}, status=404))
                await run.flush()
                await run.clock.asleep(FLUSHING + 1)
    (problem,) = (entry["problem"] for entry in logs if entry["event"] == "live_copy_failed")
    assert "/v1/copies failed: status 404: no live copies" in problem
    assert "fix: update the collector, or set collector.send_to = 1" in problem


async def test_neither_answer_acknowledges_the_other_request(tmp_path: Path) -> None:
    async with running(tmp_path) as (first, second, run):
        first.script.append(web.json_response({"copied_frames": 1}))
        second.copy_script.append(web.json_response({"accepted_frames": 1}))
        await run.flush()
        await run.clock.asleep(FLUSHING + 2)
        assert (run.stats.shipped_frames, run.stats.copied_frames) == (0, 0)
        run.retry()
        await run.shipped(1)
        await finished_copies(run, 1)


async def test_the_second_collector_becomes_the_first_and_gets_what_waits(tmp_path: Path) -> None:
    async with running(tmp_path, max_failures=2) as (first, second, run):
        await run.flush()
        await run.shipped(1)
        await finished_copies(run, 1)
        first.script += [web.json_response(DOWN, status=500) for _ in range(2)]
        await run.flush()
        await finished_copies(run, 2)
        await run.failed()
        await run.flush()
        await finished_copies(run, 3)
        assert primaries(second)[-1] == PRIMARY_FAILING, "a copy is shown before the change"
        first.copy_script += [web.json_response(DOWN, status=503)]
        run.retry()
        await run.shipped(3)
        assert second.taken == run.sent[1:]
        assert second.duplicates == []
        await run.flush()
        await run.shipped(4)
        run.retry()
        await first.has_copied(1)
        assert first.copied == run.sent[3:]
        assert second.copied == run.sent[:3]
        assert primaries(first)[-1] == ""


async def test_a_copy_is_shown_while_the_first_collector_does_not_respond(tmp_path: Path) -> None:
    async with running(tmp_path) as (first, second, run):
        has_begun = asyncio.Event()

        async def begin(*given: Any) -> web.Response:
            has_begun.set()
            return await hang(*given)

        first.script.append(begin)
        await run.flush()
        await finished_copies(run, 1)
        assert set(primaries(second)) == {""}
        async with asyncio.timeout(PATIENCE_SECONDS):
            await has_begun.wait()
        run.clock.advance(LATE_SECONDS + 1)
        await run.clock.asleep(FLUSHING)
        await run.flush()
        await finished_copies(run, 2)
        assert primaries(second)[-1] == PRIMARY_FAILING


URLS = ["http://a:1", "http://b:1"]


@pytest.mark.parametrize(
    ("link", "problem"),
    [
        (CollectorLink(url="http://a", send_to=2), "expected at most the number of collectors, 1"),
        (CollectorLink(urls=URLS[:1], send_to=2), "fix: list another one in collector.urls"),
    ],
)
def test_more_collectors_than_there_are_are_rejected(link: CollectorLink, problem: str) -> None:
    with pytest.raises(CollectorLinkError, match=r"invalid collector\.send_to 2: ") as raised:
        collector_links(link, "n1")
    assert problem in str(raised.value)


@pytest.mark.parametrize("value", ["0", "3", "true"])
def test_a_number_other_than_one_or_two_is_rejected(tmp_path: Path, value: str) -> None:
    file = tmp_path / "agent.toml"
    file.write_text(f"[collector]\nurls = {URLS}\nsend_to = {value}\n")
    with pytest.raises(SettingsError, match="invalid send_to"):
        load(AgentSettings, file=file, environment={}, prefix=PREFIX)


@given(st.lists(st.lists(st.integers(0, MAX_COPY_BYTES // 2), max_size=12), max_size=6))
def test_the_newest_envelopes_wait_within_bounds(flushes: list[list[int]]) -> None:
    clock, stats, link = ManualClock(), ShippingStats(), CollectorLink(urls=URLS, send_to=2)
    failover = CollectorFailover(link, "n1", clock, stats)
    copies = LiveCopies(failover, EnvelopeDelivery(ORIGIN, clock, lambda _: None), stats)
    given: list[tuple[bytes, int]] = []
    for sizes in flushes:
        packed = [(bytes(size), 1) for size in sizes]
        given += packed
        copies.put(packed)
        waiting = [*copies._waiting]  # noqa: SLF001 - nothing else shows them
        assert waiting == given[len(given) - len(waiting) :]
        assert stats.dropped_copies + len(waiting) == len(given)
        assert len(waiting) <= MAX_COPIES
        assert sum(len(body) for body, _ in waiting) <= MAX_COPY_BYTES
