"""History of the offset between the wall clock and the boot clock of a node, at each time of this boot.

Slurm and people specify wall clock times. If that clock was stepped since, the offset
at that time, not the current one, converts them to the boot clock, which is never stepped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

import msgspec

from railscope.frame import NodeTimestamp

STEP_NS = 20_000_000
"""Smaller differences are the time between the reads of the two clocks."""
MAX_OFFSETS = 128
"""Maximum number of steps kept per boot; the oldest are dropped."""


class BootTime(msgspec.Struct, frozen=True):
    """Time on the boot clock of one boot."""

    boot_id: str
    boot_ns: int


class ClockOffset(msgspec.Struct, frozen=True):
    """Wall clock minus boot clock, from a time of the boot clock to the next offset."""

    since_boot_ns: int
    offset_ns: int


class ClockOffsets(msgspec.Struct, frozen=True):
    """Offsets of one boot, saved across restarts of the agent."""

    boot_id: str
    offsets: tuple[ClockOffset, ...]


class ClockHistory:
    """Conversion of wall clock times to boot clock times."""

    def __init__(self, boot_id: str = "", saved: ClockOffsets | None = None) -> None:
        self.boot_id = boot_id
        self.changed = False
        """True if there is a step that is not saved yet."""
        self._now_ns = 0
        self._offsets = saved.offsets if saved and saved.boot_id == boot_id else ()

    @property
    def state(self) -> ClockOffsets:
        """Offsets to save."""
        return ClockOffsets(self.boot_id, self._offsets)

    def observe(self, now: NodeTimestamp) -> None:
        """Record the current offset if the wall clock was stepped."""
        offset_ns = now.wall_ns - now.boot_ns
        self._now_ns = max(self._now_ns, now.boot_ns)
        if self._offsets and abs(offset_ns - self._offsets[-1].offset_ns) <= STEP_NS:
            return
        # The first offset counts from boot: nothing is known about steps before the agent started.
        since_ns = now.boot_ns if self._offsets else 0
        self._offsets = (*self._offsets, ClockOffset(since_ns, offset_ns))[-MAX_OFFSETS:]
        self.changed = True

    def convert_wall_time(self, wall_ns: int) -> BootTime | None:
        """Convert a wall clock time; None if it is before this boot.

        A time that the wall clock showed twice becomes the later one, a time that a step skipped becomes
        that of the step, and a time in the future is converted with the current offset.
        """
        spans = list(self._spans())
        shown = [span for span in spans if span[0] <= wall_ns - span[2] < span[1]]
        if shown:
            return self._boot_time(wall_ns - shown[-1][2])
        passed = [span for span in spans if wall_ns - span[2] >= span[0]]
        if not passed:
            return None
        _, until_ns, offset_ns = passed[-1]
        is_last = passed[-1] is spans[-1]
        return self._boot_time(wall_ns - offset_ns if is_last else until_ns)

    def now(self, now: NodeTimestamp) -> BootTime | None:
        """Return the current time on the boot clock; None if the boot id is not known yet."""
        return self._boot_time(now.boot_ns)

    def _boot_time(self, boot_ns: int) -> BootTime | None:
        return BootTime(self.boot_id, boot_ns) if self.boot_id else None

    def _spans(self) -> Iterator[tuple[int, int, int]]:
        """Yield start and end of each offset on the boot clock, and the offset; the last ends now."""
        ends: Iterable[ClockOffset | None] = (*self._offsets, None)
        for offset, following in pairwise(ends):
            if offset is not None:
                until_ns = following.since_boot_ns if following else self._now_ns + 1
                yield offset.since_boot_ns, until_ns, offset.offset_ns
