"""Series of reads that the thread of burst sampling times by itself, on the clock of this machine."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from support.nic_burst import CountingNic
from support.reading import ORIGIN
from support.sampling import PATIENCE_SECONDS
from support.waiting import wait_until

from railscope.frame import Frame
from railscope_agent.host.live_clock import LiveClock
from railscope_agent.sampling.sampler import Sampler
from railscope_agent.sampling.source import Source
from railscope_agent.sampling.status import OK, SourceState
from railscope_agent.sources.nic_burst import NicBurstSource

STATISTICS = "ethtool.statistics(ens1)"


@dataclass
class LiveSampler:
    """A sampler of one NIC, and of further sources, on the live clock."""

    nic: CountingNic = field(default_factory=CountingNic)
    frames: list[Frame] = field(default_factory=list)
    others: list[Source] = field(default_factory=list)
    """Further sources."""

    def __post_init__(self) -> None:
        self.nic.host.clock = LiveClock()  # type: ignore[assignment] # time passes by itself
        sources = [NicBurstSource(0.05), *self.others]
        self.sampler = Sampler(self.nic.host, ORIGIN, sources, self.frames.append)

    @property
    def status(self) -> SourceState:
        """State of the source."""
        return self.sampler.statuses["nic_burst"]

    def of(self, name: str) -> list[Frame]:
        """Return the frames of one source."""
        return [frame for frame in self.frames if frame.schema.stream == name]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run it."""
        task = asyncio.create_task(self.sampler.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task}, timeout=PATIENCE_SECONDS)
            assert task.done(), "the sampler does not stop"


async def test_a_call_that_hangs_in_a_series_is_left_to_its_thread() -> None:
    live, released = LiveSampler(), threading.Event()
    answer = live.nic.host.calls[STATISTICS]

    def hang() -> Any:
        assert released.wait(PATIENCE_SECONDS), "the test forgot to release the call"
        return answer

    async with live.running():
        await wait_until(lambda: len(live.frames) > 1, "frames arrive")
        live.nic.host.calls[STATISTICS] = hang
        await wait_until(lambda: live.sampler.hung.by_device, "the call hangs")
        assert list(live.sampler.hung.by_device) == ["net/ens1"]
        count = len(live.frames)
        await wait_until(lambda: len(live.frames) > count, "more frames arrive")
        assert live.frames[-1].reasons, "the values of the NIC are absent"
        live.nic.host.calls[STATISTICS] = answer
        released.set()
        await wait_until(
            lambda: live.status.state == OK and not live.sampler.hung.by_device, "the call is over"
        )
