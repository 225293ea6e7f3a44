"""Reading a capture through to its end at once, for readings that depend on earlier ones."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from agent.host.recorded import RecordedHost
from agent.service import Agent
from railscope.capture import About, Capture
from railscope.frame import Instant

MAX_LOOKS = 12


@dataclass(slots=True)
class WalkClock:
    """Clock of the recorded node; it advances only when a caller sleeps."""

    about: About
    offset_ns: int = 0
    """Offset into the capture."""

    def now(self) -> Instant:
        """Return wall and boot clock of the recorded node."""
        wall_ns = self.about.started_wall_ns + self.offset_ns
        return Instant(wall_ns, self.about.started_boot_ns + self.offset_ns)

    async def sleep_until(self, boot_ns: int) -> None:
        """Advance to a time without waiting."""
        self.go_to(boot_ns - self.about.started_boot_ns)

    def go_to(self, offset_ns: int) -> None:
        """Advance to an offset; never back."""
        self.offset_ns = max(self.offset_ns, offset_ns)


class Walk:
    """A recorded node that is read several times, the last time at the end of the capture."""

    def __init__(self, capture: Capture) -> None:
        self._clock = WalkClock(capture.about)
        self._looks = looks(capture)
        self.host = RecordedHost(capture, self._clock, lambda: self._clock.offset_ns)

    def go_to_end(self) -> None:
        """Advance to the end of the capture without earlier reads."""
        self._clock.go_to(self._looks[-1])

    async def read(self, agent: Agent) -> None:
        """Have an agent of this host read all sources at each offset."""
        for offset_ns in self._looks:
            self._clock.go_to(offset_ns)
            await agent.once()


def looks(capture: Capture) -> list[int]:
    """Return the offsets of at most `MAX_LOOKS` moments, evenly spread, and the end of the capture."""
    end_ns = capture.about.duration_ns
    offsets = sorted({moment.offset_ns for moment in capture.moments})
    wanted = (end_ns * step // (MAX_LOOKS - 1) for step in range(MAX_LOOKS - 1))
    places = (bisect_right(offsets, at_ns) - 1 for at_ns in wanted)
    return sorted({*(offsets[place] for place in places if place >= 0), end_ns})
