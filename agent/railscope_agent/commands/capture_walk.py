"""Reads of a recorded node at several times of its capture, for readings that depend on earlier ones."""

from __future__ import annotations

from bisect import bisect_right

from railscope.capture import Capture
from railscope_agent.host import recorded_clock, recorded_host
from railscope_agent.service import Agent

MAX_READS = 12


class CaptureWalk:
    """A recorded node that is read several times, the last time at the end of the capture."""

    def __init__(self, capture: Capture) -> None:
        self._clock = recorded_clock.RecordedClock(capture.about)
        self._offsets = find_read_offsets(capture)
        self.host = recorded_host.RecordedHost(capture, self._clock, lambda: self._clock.offset_ns)

    def go_to_end(self) -> None:
        """Advance to the end of the capture without earlier reads."""
        self._clock.go_to(self._offsets[-1])

    async def read(self, agent: Agent) -> None:
        """Have an agent of this host read all sources at each offset."""
        for offset_ns in self._offsets:
            self._clock.go_to(offset_ns)
            await agent.once()


def find_read_offsets(capture: Capture) -> list[int]:
    """Return the offsets of at most `MAX_READS` moments, evenly spread, and the end of the capture."""
    end_ns = capture.about.duration_ns
    offsets = sorted({moment.offset_ns for moment in capture.moments})
    targets_ns = (end_ns * step // (MAX_READS - 1) for step in range(MAX_READS - 1))
    # The last moment until each target: the state of the node at that time.
    places = (bisect_right(offsets, at_ns) - 1 for at_ns in targets_ns)
    return sorted({*(offsets[place] for place in places if place >= 0), end_ns})
