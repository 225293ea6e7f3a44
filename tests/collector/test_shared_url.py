"""Collectors behind one URL: exactly the frames that none of them received are missing, at each of them."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import aiohttp
from aiohttp import web
from hypothesis import given, strategies as st
from makers import FrameSender
from msgspec.structs import replace
from running_collector import RunningCollector, run_collector
from support.clock import ManualClock
from support.collector import PATIENCE_SECONDS
from support.examples import fewer_examples
from support.postgresql import PostgreSQL
from support.shipping import FLUSHING, RunningShipper, run_shipper
from test_cluster_head import settings_of
from test_delivered_frames import frames_of, missing_at

from railscope.frame import FrameOrigin
from railscope.timestamps import SECOND_NS
from railscope_agent.config import CollectorLink
from railscope_agent.shipping.delivered_frames import (
    STATEMENT_NS,
    DeliveredFrames,
    StatementSchedule,
)
from railscope_collector.config import MeteringSettings
from railscope_collector.framelog.received_frames import ReceivedFrames

COLLECTORS = ("a", "b", "c")


@dataclass
class LoadBalancer:
    """Forwards each request to the next collector."""

    present: list[RunningCollector]
    forwarded: Iterator[int] = field(default_factory=count)

    async def handle(self, request: web.Request) -> web.Response:
        """Forward one request."""
        target = self.present[next(self.forwarded) % len(self.present)]
        names = ("Content-Type", "Authorization", "Railscope-Sent", "Railscope-Receipt")
        headers = {name: value for name, value in request.headers.items() if name in names}
        async with (
            aiohttp.ClientSession() as session,
            session.post(
                target.url + request.path, data=await request.read(), headers=headers
            ) as answer,
        ):
            kept = {k: v for k, v in answer.headers.items() if k.startswith("Railscope-")}
            kept["Content-Type"] = answer.headers["Content-Type"]
            return web.Response(status=answer.status, body=await answer.read(), headers=kept)


@asynccontextmanager
async def balanced(present: Sequence[RunningCollector]) -> AsyncIterator[CollectorLink]:
    """Run a load balancer in front of collectors; yields the link to it."""
    app = web.Application(client_max_size=1 << 24)
    app.router.add_post("/{path:.*}", LoadBalancer([*present]).handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        port = runner.addresses[0][1]
        yield CollectorLink(url=f"http://127.0.0.1:{port}", token="token-n1")  # noqa: S106 - of a test
    finally:
        await runner.cleanup()


@asynccontextmanager
async def collectors(
    directory: Path, url: str, clock: ManualClock, names: str, **limits: int
) -> AsyncIterator[list[RunningCollector]]:
    """Collectors of one database on a clock that the test moves; they store evidence when the test calls for it."""

    def prepare(one: RunningCollector) -> None:
        one.collector.clock.wall_ns = lambda: clock.now().wall_ns
        one.collector.clock.boot_ns = lambda: clock.now().boot_ns

    async with AsyncExitStack() as stack:
        running = []
        for name in names:
            settings = settings_of(directory, name, url)
            settings = replace(
                settings,
                metering=MeteringSettings(period_seconds=3600),
                limits=replace(settings.limits, **limits),
            )
            running.append(await stack.enter_async_context(run_collector(settings, prepare)))
        yield running


async def send(run: RunningShipper, number: int) -> None:
    """Send a number of envelopes, ten seconds apart."""
    for _ in range(number):
        run.clock.advance(10)
        await run.flush()
        await run.shipper.wait_until_sent()


async def store(run: RunningShipper, present: Sequence[RunningCollector]) -> None:
    """Store all evidence; the agent learns it from further responses, and states it to all after a minute."""
    for each in present:
        await each.collector.finalizer.round(everything=True)
    await send(run, 2 * len(present))
    run.clock.advance(STATEMENT_NS // SECOND_NS)
    await send(run, 2)


async def missing(present: Sequence[RunningCollector]) -> list[int]:
    return [await missing_at(each) for each in present]


async def test_only_lost_frames_are_missing_behind_a_load_balancer(
    tmp_path: Path, server: PostgreSQL
) -> None:
    """Three collectors take turns; a frame that the agent loses is missing at each of them, and no other."""
    clock, url = ManualClock(), server.database()
    origin = FrameOrigin("n1", "run-1", "boot-1")
    async with (
        collectors(tmp_path, url, clock, "abc") as present,
        balanced(present) as link,
    ):
        async with run_shipper(tmp_path / "agent", link, origin, clock) as run:
            for _ in range(12):
                await send(run, 1)
                assert await missing(present) == [0, 0, 0]
            received = [each.collector.core.received for each in present]
            assert all(each.collector.core.counts.frames > 2 for each in present)
            assert all(each.sizes["n1"] > 2 for each in received), "the others have what is between"
            await store(run, present)
            assert await missing(present) == [0, 0, 0]
            assert run.stats.unstored_envelopes < 12
            run.sent.append(("n1", "run-1", "gpu", len(run.sent) + 1))  # lost before it was spooled
            await send(run, 4)
            await store(run, present)
            assert await missing(present) == [1, 1, 1], "it is in no collector"
            assert all(each.sizes["n1"] < 15 for each in received), "stored frames close gaps"
            assert sum(run.stats.dropped_frames.values()) == 0
        async with run_shipper(
            tmp_path / "agent", link, FrameOrigin("n1", "run-2", "boot-1"), clock
        ) as run:
            await send(run, 6)
            await store(run, present)
            await store(run, present)
            assert await missing(present) == [1, 1, 1], "also after a restart of the agent"
            assert not any(each.is_shared("n1", "run-1") for each in received)
    server.drop(url)


async def test_too_many_gaps_of_a_shared_run_are_temporary(
    tmp_path: Path, server: PostgreSQL
) -> None:
    """The agent keeps what a collector does not accept until the others have stored the frames between."""
    clock, url = ManualClock(), server.database()
    origin = FrameOrigin("n1", "run-1", "boot-1")

    async def until(condition: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not condition():
                if clock.sleepers > FLUSHING:  # it waits to try again, and no request is under way
                    clock.advance(10)
                await asyncio.sleep(0.01)

    async with (
        collectors(tmp_path, url, clock, "ab", gaps_per_stream=3) as present,
        balanced(present) as link,
        run_shipper(tmp_path / "agent", link, origin, clock) as run,
    ):
        await send(run, 8)
        for _ in range(4):
            await run.flush()
        await until(lambda: run.stats.failures)
        assert any("evidence" in each.collector.core.counts.rejected for each in present)
        for each in present:
            await each.collector.finalizer.round(everything=True)
        await until(lambda: run.stats.shipped_frames == len(run.sent))
        assert sum(run.stats.dropped_frames.values()) == 0
        await store(run, present)
        assert await missing(present) == [0, 0]
    server.drop(url)


@fewer_examples(60)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("send"), st.sampled_from([*COLLECTORS, "lost"]), st.integers(1, 3)),
            st.tuples(st.just("store"), st.sampled_from(COLLECTORS), st.just(0)),
        ),
        max_size=20,
    )
)
def test_exactly_the_lost_frames_are_missing_once_all_is_decided(
    steps: list[tuple[str, str, int]],
) -> None:
    """Collectors store in any order; until a frame is decided it is not missing, and no stored one ever is."""
    with tempfile.TemporaryDirectory() as name:
        sender, delivered = FrameSender(), DeliveredFrames(Path(name))
        received = {collector: ReceivedFrames() for collector in COLLECTORS}
        spooled: dict[int, tuple[str, bytes]] = {}
        lost, own = set[int](), {collector: set[int]() for collector in COLLECTORS}
        numbers, last = count(1), 0

        def state() -> None:
            oldest = min(spooled, default=1 << 30)
            stated = delivered.of_shared_url("run-1", oldest, is_previous_decided=True)
            for each in received.values():
                each.record_delivered("n1", stated)

        for kind, target, frame_count in [*steps, *[("store", each, 0) for each in COLLECTORS]]:
            if kind == "send":
                frames = frames_of(sender, frame_count)
                sequences = {frame.sequence for frame in frames}
                last = max(sequences)
                if target == "lost":
                    lost |= sequences
                    continue
                spooled[next(numbers)] = target, sender.body(frames)
                state()
                received[target].add("n1", "run-1", "gpu", min(sequences), last, 1)
                own[target] |= sequences
                state()
            else:
                for number in [n for n, (taker, _) in spooled.items() if taker == target]:
                    delivered.add("url", spooled.pop(number)[1], number)
                state()
            for collector in COLLECTORS:
                first = min(own[collector], default=last)
                assert received[collector].count_missing() <= len(
                    {sequence for sequence in lost if first < sequence < last}
                )
        sent = set(range(1, last + 1)) - lost
        for collector in COLLECTORS:
            if own[collector]:
                between = range(min(own[collector]), max(sent) + 1)
                assert received[collector].count_missing() == len(lost & set(between))


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("ab"), st.integers(0, 40)), max_size=40))
def test_statements_are_repeated_only_while_a_collector_needs_one(
    responses: list[tuple[bool, str, int]],
) -> None:
    """No envelope is delayed by more than two statements for each collector, whichever of them responds."""
    schedule, boot_ns, logs = StatementSchedule(), 0, frozenset("ab")
    for has_changed, name, seconds in responses:
        boot_ns += seconds * SECOND_NS
        if has_changed:
            schedule.record_change()
        schedule.record_envelope(name)
        statements = 0
        while schedule.is_due(logs, boot_ns):
            schedule.record_statement(name)  # the other one never responds
            statements += 1
            assert statements <= 2 * len(logs)
    for name in "ab":
        schedule.record_envelope(name)
    for name in "ab":
        schedule.record_statement(name)
    schedule.is_due(logs, boot_ns)
    for name in "ab":
        schedule.record_statement(name)
    assert not schedule.is_due(logs, boot_ns), "all have it"
