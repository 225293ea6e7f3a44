"""Shipping as a property: whatever fails, each frame is stored, and nothing is lost but what a killed agent had in memory."""

from __future__ import annotations

import asyncio
import shutil
from array import array
from collections import defaultdict
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web
from hypothesis import given, strategies as st
from structlog.testing import capture_logs
from support.collector import PATIENCE_SECONDS, FrameId, take_and_vanish
from support.reading import ORIGIN
from support.shipping import RunningShipper, StoringCollector, link_to, run_shipper

from railscope.catalog.agent import GAP_EVENT
from railscope.catalog.entities import DROP
from railscope.frame import Entity, Event, Frame, FrameOrigin, NodeTimestamp, Schema
from railscope.timestamps import SECOND_NS
from railscope_agent.shipping import envelope_limits as limits
from railscope_agent.shipping.collector_logs import FIRST_PAUSE_NS


class Outages:
    """An agent with two collectors that share a database."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.number = directory, 0
        self.collectors = [StoringCollector(log="a"), StoringCollector(log="b")]
        self.database: set[FrameId] = set()
        self.acknowledged: set[FrameId] = set()
        """Frames that no step may lose."""
        self.stack = AsyncExitStack()
        self.run: RunningShipper

    async def start(self) -> None:
        """Start the next run of the agent."""
        self.number += 1
        urls = tuple(f"http://127.0.0.1:{each.port}" for each in self.collectors)
        link = link_to(self.collectors[0], url="", urls=urls, max_failures=2)
        origin = FrameOrigin("node-1", f"run-{self.number}", "boot-1")
        directory = self.directory / str(self.number)
        self.run = await self.stack.enter_async_context(run_shipper(directory, link, origin))

    async def frames(self) -> None:
        """Make an envelope; the agent may send it now, or later."""
        await self.run.flush(2)
        self.acknowledged |= set(self.run.sent)

    async def wait(self) -> None:
        """Let the agent send what it has."""
        self.run.retry()
        await asyncio.sleep(0.002)

    async def refuse(self) -> None:
        """The first collector cannot store frames for two requests."""
        self.collectors[0].script.extend(web.json_response({}, status=503) for _ in range(2))

    async def vanish(self) -> None:
        """The second collector receives a request, and its answer is lost."""
        self.collectors[1].script.append(take_and_vanish)

    async def drain(self) -> None:
        """The first collector sends the agent to the second one."""
        content = {"error": "draining", "draining": True}
        self.collectors[0].script.append(web.json_response(content, status=503))

    async def store(self) -> None:
        """Store what both collectors have received."""
        for each in self.collectors:
            self.database |= {frame for _, frame in each.received}
            each.stored = each.position

    async def lose(self) -> None:
        """The first collector loses its disk."""
        self.collectors[0].lose(f"{self.collectors[0].log}+")

    async def restart(self) -> None:
        """End the agent as the service manager does; its next run has the state directory."""
        await self.stack.aclose()
        shutil.copytree(self.directory / str(self.number), self.directory / str(self.number + 1))
        await self.start()

    async def kill(self) -> None:
        """Continue with the state directory as it was; frames in memory only are lost."""
        copied = self.directory / str(self.number + 1)
        shutil.copytree(self.directory / str(self.number), copied)
        on_disk = len(list((copied / "spool").glob("*.envelope")))
        received = {frame for each in self.collectors for _, frame in each.received}
        in_memory = self.run.stats.spool_envelopes + self.run.stats.unstored_envelopes - on_disk
        unsent = [frame for frame in self.run.sent if frame not in received]
        self.acknowledged -= set(unsent if in_memory > 0 else ())
        for each in self.collectors:
            each.script.extend(web.json_response({}, status=503) for _ in range(50))
        await self.stack.aclose()
        for each in self.collectors:
            each.script.clear()
        await self.start()

    async def settle(self) -> None:
        """Let all that waits be stored; a further envelope reveals a lost disk."""
        for each in self.collectors:
            each.script.clear()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not self.acknowledged <= self.database:
                if not self.run.stats.spool_envelopes:
                    await self.run.flush()
                await self.wait()
                await self.store()


STEPS = (
    "frames",
    "frames",
    "wait",
    "refuse",
    "vanish",
    "drain",
    "store",
    "lose",
    "restart",
    "kill",
)


@given(st.lists(st.sampled_from(STEPS), min_size=6, max_size=16))
def test_every_frame_is_stored_whatever_fails(tmp_path_factory: Any, steps: list[str]) -> None:
    async def play() -> None:
        outages = Outages(tmp_path_factory.mktemp("agent"))
        async with AsyncExitStack() as servers:
            for each in outages.collectors:
                await servers.enter_async_context(each.serving())
            await outages.start()
            try:
                for step in steps:
                    await getattr(outages, step)()
                await outages.settle()
                assert sum(outages.run.stats.dropped_frames.values()) == 0
            finally:
                await outages.stack.aclose()

    with capture_logs():
        asyncio.run(play())


@dataclass
class BalancedCollectors(StoringCollector):
    """Collectors behind a load balancer, which forwards each request to the next one."""

    by_log: defaultdict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    positions: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    present: str = "ab"

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        self.log = self.present[(self.present.find(self.log) + 1) % len(self.present)]
        self.taken, self.position = self.by_log[self.log], self.positions[self.log]
        answer = await super().handle(request)
        self.positions[self.log] = self.position
        return answer


async def test_a_load_balancer_causes_no_endless_resending(tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with (
            BalancedCollectors().serving() as collector,
            run_shipper(tmp_path, link_to(collector)) as run,
        ):
            assert isinstance(collector, BalancedCollectors)

            async def send(count: int) -> None:
                for _ in range(count):
                    await run.flush()
                    await run.shipped(len(run.sent))
                    await run.shipper.wait_until_sent()

            await send(10)
            known = sum(collector.positions.values())
            await send(10)
            assert sum(collector.positions.values()) == known + 10, "each is sent once"
            assert {frame for taken in collector.by_log.values() for frame in taken} == set(
                run.sent
            )
            collector.present = "b"  # a is lost
            run.clock.advance(FIRST_PAUSE_NS // SECOND_NS + 1)
            await run.clock.asleep(1)
            await send(2)
            assert set(collector.by_log["b"]) == set(run.sent), "the other one gets the rest"
    assert [entry["logs"] for entry in logs if entry["event"] == "several_collectors_found"] == [2]


SHAPES = st.tuples(st.sampled_from([0, 10, 200_000]), st.sampled_from([0, 1, 1500]))
"""Columns and events of a frame."""


@given(st.lists(SHAPES, min_size=5, max_size=30))
def test_an_envelope_is_within_the_limits_of_a_collector(shapes: list[tuple[int, int]]) -> None:
    event = Event(GAP_EVENT, Entity(DROP, ("disk",)), 1, 1)
    at = NodeTimestamp(1, 1)
    frames = [
        Frame(
            ORIGIN, Schema("gpu", ()), 1, at, array("q", bytes(8 * size)), events=(event,) * count
        )
        for size, count in shapes
    ]
    groups = list(limits.split_into_envelopes(frames))
    assert [frame for group in groups for frame in group] == frames
    for group in groups:
        assert sum(8 * len(frame.values) for frame in group) <= limits.MAX_BYTES
        assert sum(len(frame.events) for frame in group) <= limits.MAX_EVENTS
