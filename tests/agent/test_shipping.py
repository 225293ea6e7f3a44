"""Shipping as a property: whatever fails, each frame is stored, and nothing is lost but what a killed agent had in memory."""

from __future__ import annotations

import asyncio
import shutil
from array import array
from contextlib import AsyncExitStack
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
from railscope_agent.shipping import envelope_limits as limits


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
