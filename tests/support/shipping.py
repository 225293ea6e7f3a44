"""A running shipper, on a manual clock."""

from __future__ import annotations

import asyncio
import random
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from aiohttp import web
from support.clock import ManualClock
from support.collector import PATIENCE_SECONDS, FrameId, ScriptedCollector, frames_in, take
from support.reading import ORIGIN

from railscope.catalog import gpu
from railscope.catalog.agent import GAP_EVENT
from railscope.catalog.entities import DROP, GPU
from railscope.frame import Entity, Event, Frame, FrameOrigin, NodeTimestamp, Schema
from railscope.wire import Envelope, RunEnd
from railscope_agent.config import CollectorLink
from railscope_agent.sampling.shipping_stats import ShippingStats
from railscope_agent.shipping.shipper import Shipper

SCHEMA = Schema("gpu", ((gpu.GPU_ENERGY, Entity(GPU, ("GPU-1",))),))
FLUSHING, PAUSED = 1, 2
"""Number of tasks that sleep on the clock: the regular flush, and a pause after a failure."""


def link_to(collector: ScriptedCollector, **changes: object) -> CollectorLink:
    """Return a link to a collector on this node."""
    given: dict[str, object] = {"url": f"http://127.0.0.1:{collector.port}", "token": "secret"}
    return CollectorLink(**(given | changes))  # type: ignore[arg-type]  # as in a settings file


class WatchedStats(ShippingStats):
    """Counters that signal each change, on any thread."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self.loop = asyncio.get_running_loop()
        super().__init__()

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name not in {"changed", "loop"}:
            self.loop.call_soon_threadsafe(self.changed.set)


@dataclass
class RunningShipper:
    """A running shipper, with frames of one stream to feed it."""

    shipper: Shipper
    clock: ManualClock
    stats: WatchedStats
    events: list[Event]
    origin: FrameOrigin
    sent: list[FrameId] = field(default_factory=list)

    async def flush(self, count: int = 1, schema: Schema = SCHEMA) -> None:
        """Publish frames and make an envelope of them."""
        for _ in range(count):
            self.publish(schema)
        self.shipper.flush()

    def publish(self, schema: Schema = SCHEMA, events: tuple[Event, ...] = ()) -> None:
        """Publish the next frame."""
        sequence = len(self.sent) + 1
        now = self.clock.now()
        instant = NodeTimestamp(now.wall_ns, now.boot_ns)
        values = array("q", [sequence] * len(schema.columns))
        frame = Frame(self.origin, schema, sequence, instant, values, b"", events)
        self.shipper.publish(frame)
        self.sent.append((self.origin.node, self.origin.run, schema.stream, sequence))

    async def shipped(self, count: int) -> None:
        """Wait until the collector has acknowledged a number of frames, and the shipper has recorded it."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while self.stats.shipped_frames < count:
                self.stats.changed.clear()
                await self.stats.changed.wait()

    async def failed(self) -> None:
        """Wait until an attempt has failed and the shipper pauses."""
        await self.clock.asleep(PAUSED)

    def retry(self) -> None:
        """Let the pause pass, whatever its length."""
        self.clock.advance(3600)


@asynccontextmanager
async def run_shipper(
    directory: Path,
    link: CollectorLink,
    origin: FrameOrigin = ORIGIN,
    clock: ManualClock | None = None,
) -> AsyncIterator[RunningShipper]:
    """Run a shipper, and stop it as the agent does."""
    clock, stats, events = clock or ManualClock(), WatchedStats(), list[Event]()
    shipper = Shipper(link, origin, clock, directory, stats, events)
    task = asyncio.create_task(shipper.run())
    await clock.asleep(FLUSHING)
    try:
        yield RunningShipper(shipper, clock, stats, events, origin)
    finally:
        task.cancel()
        await asyncio.wait({task}, timeout=PATIENCE_SECONDS)
        assert task.done(), "the shipper does not stop"
        if not task.cancelled():
            task.result()


def waiting(directory: Path) -> int:
    return len(list((directory / "spool").glob("*.envelope")))


def publish_large(run: RunningShipper, size: int) -> None:
    """Publish a frame that needs so many bytes in an envelope with any compression."""
    noise = random.Random(len(run.sent))  # noqa: S311 - nothing secret
    now = run.clock.now()
    entity = Entity(DROP, ("disk",))
    events = []
    for _ in range(0, size, 8000):
        text = "".join(chr(0x4E00 + noise.getrandbits(14)) for _ in range(4000))
        events.append(Event(GAP_EVENT, entity, now.wall_ns, now.boot_ns, {"frames": text}))
    run.publish(events=tuple(events))


@dataclass
class StoringCollector(ScriptedCollector):
    """Acknowledges with positions, if it has a database; `stored` is moved by the test."""

    log: str = "a"
    has_database: bool = True
    position: int = 0
    stored: int = 0
    received: list[tuple[int, FrameId]] = field(default_factory=list)
    """Frames of its present log, with the position of their envelope."""
    ended: list[RunEnd] = field(default_factory=list)
    """Ends of earlier runs, as stated by the agent."""

    async def take(
        self, _: ScriptedCollector, request: web.Request, envelope: Envelope
    ) -> web.Response:
        """Take as the collector does, and add the position to the answer."""
        answer = await take(self, request, envelope)
        if answer.status != 200:
            return answer
        if envelope.ended:
            self.ended.append(envelope.ended)
        if not self.has_database:
            return answer
        self.position += 1
        self.received += [(self.position, frame) for frame in frames_in(envelope)]
        assert isinstance(answer.body, bytes)
        fields = {"log": self.log, "position": self.position, "stored": self.stored}
        return web.json_response(msgspec.json.decode(answer.body) | fields)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        if not self.script:
            self.script.append(self.take)
        return await super().handle(request)

    def lose(self, log: str) -> None:
        """Lose the disk: another log, and nothing was received."""
        self.log, self.position, self.stored = log, 0, 0
        self.taken.clear()
        self.received.clear()
