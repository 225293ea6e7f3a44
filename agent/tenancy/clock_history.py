"""Offset between the wall clock and the boot clock of a node, as it was at each time of this boot.

Slurm and people give times of the wall clock. Where that clock was stepped since, the offset of that
time, and not today's, says when it was on the boot clock, which nothing steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

import msgspec

from agent.tenancy.held import BootTime
from railscope.frame import Instant

STEP_NS = 20_000_000
"""A smaller difference is the time between the reads of the two clocks."""
MAX_OFFSETS = 128
"""Steps of one boot that are kept; the oldest go."""


class Offset(msgspec.Struct, frozen=True):
    """Wall clock minus boot clock, from an instant of the boot clock to the next one."""

    since_boot_ns: int
    offset_ns: int


class ClockOffsets(msgspec.Struct, frozen=True):
    """Offsets of one boot, kept over restarts of the agent."""

    boot_id: str
    offsets: tuple[Offset, ...]


class ClockHistory:
    """Converts times of the wall clock to times of the boot clock."""

    def __init__(self, boot_id: str = "", kept: ClockOffsets | None = None) -> None:
        self.boot_id = boot_id
        self.changed = False
        """True if there is a step that is not kept yet."""
        self._now_ns = 0
        self._offsets = kept.offsets if kept and kept.boot_id == boot_id else ()

    @property
    def kept(self) -> ClockOffsets:
        """The offsets to keep."""
        return ClockOffsets(self.boot_id, self._offsets)

    def observe(self, now: Instant) -> None:
        """Record the offset of this moment where the wall clock was stepped."""
        offset_ns = now.wall_ns - now.boot_ns
        self._now_ns = max(self._now_ns, now.boot_ns)
        if self._offsets and abs(offset_ns - self._offsets[-1].offset_ns) <= STEP_NS:
            return
        since_ns = now.boot_ns if self._offsets else 0
        self._offsets = (*self._offsets, Offset(since_ns, offset_ns))[-MAX_OFFSETS:]
        self.changed = True

    def at(self, wall_ns: int) -> BootTime | None:
        """When the wall clock showed a time; None for a time before this boot.

        Where it showed the time twice the later instant counts, where a step left the time out that
        step, and where it has not shown the time yet the offset of now.
        """
        spans = list(self._spans())
        shown = [span for span in spans if span[0] <= wall_ns - span[2] < span[1]]
        if shown:
            return self._at(wall_ns - shown[-1][2])
        passed = [span for span in spans if wall_ns - span[2] >= span[0]]
        if not passed:
            return None
        _, until_ns, offset_ns = passed[-1]
        is_last = passed[-1] is spans[-1]
        return self._at(wall_ns - offset_ns if is_last else until_ns)

    def now(self, now: Instant) -> BootTime | None:
        """An instant on the boot clock; None before the boot is known."""
        return self._at(now.boot_ns)

    def _at(self, boot_ns: int) -> BootTime | None:
        return BootTime(self.boot_id, boot_ns) if self.boot_id else None

    def _spans(self) -> Iterator[tuple[int, int, int]]:
        """From when to when on the boot clock each offset was in force; the last to the present."""
        ends: Iterable[Offset | None] = (*self._offsets, None)
        for one, following in pairwise(ends):
            if one is not None:
                until_ns = following.since_boot_ns if following else self._now_ns + 1
                yield one.since_boot_ns, until_ns, one.offset_ns
