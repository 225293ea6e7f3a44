"""A capture walked through to its end, at once: what compares readings needs those of before."""

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
    """The clock of the recorded machine, which stands at a look. Whoever sleeps moves it on."""

    about: About
    offset_ns: int = 0
    """How far into the capture it is."""

    def now(self) -> Instant:
        """Wall and boot clock of the recorded machine."""
        wall_ns = self.about.started_wall_ns + self.offset_ns
        return Instant(wall_ns, self.about.started_boot_ns + self.offset_ns)

    async def sleep_until(self, boot_ns: int) -> None:
        """Be at an instant, without waiting for it."""
        self.go_to(boot_ns - self.about.started_boot_ns)

    def go_to(self, offset_ns: int) -> None:
        """Go on to an offset; never back."""
        self.offset_ns = max(self.offset_ns, offset_ns)


class Walk:
    """A recorded machine that is looked at some times, the last time at the capture's end."""

    def __init__(self, capture: Capture) -> None:
        self._clock = WalkClock(capture.about)
        self._looks = looks(capture)
        self.host = RecordedHost(capture, self._clock, lambda: self._clock.offset_ns)

    def go_to_end(self) -> None:
        """Stand at the capture's end, without a look before it."""
        self._clock.go_to(self._looks[-1])

    async def read(self, agent: Agent) -> None:
        """Have an agent of this host read everything at each look."""
        for offset_ns in self._looks:
            self._clock.go_to(offset_ns)
            await agent.once()


def looks(capture: Capture) -> list[int]:
    """Offsets of at most `MAX_LOOKS` moments spread evenly over a capture, and its end."""
    end_ns = capture.about.duration_ns
    offsets = sorted({moment.offset_ns for moment in capture.moments})
    wanted = (end_ns * step // (MAX_LOOKS - 1) for step in range(MAX_LOOKS - 1))
    places = (bisect_right(offsets, at_ns) - 1 for at_ns in wanted)
    return sorted({*(offsets[place] for place in places if place >= 0), end_ns})
