"""Times of the kernel log on the boot clock.

printk stamps records by local_clock() (kernel/printk/printk.c). That clock stands still while the node is
suspended, and NTP does not correct it: after weeks it differs from the boot clock by seconds to minutes
(dmesg(1), --ctime; kubernetes/node-problem-detector#479 has hours).
"""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path

import msgspec

from railscope.timestamps import SECOND_NS
from railscope_agent.host.boot_state import BootState, BootStateFile

TOLERANCE_NS = SECOND_NS
"""A third of the time that may lie between both reports of an Xid (xid_matcher.SAME_NS); a drift of 50 ppm takes five hours for it."""
MAX_STEPS = 1024
"""Steps that are kept: those of 200 days at 50 ppm, and hardly a record of the ring is older."""


class _LogClockStep(msgspec.Struct, frozen=True):
    """Boot clock minus clock of the log, from a time of the log to the next step."""

    since_ns: int
    offset_ns: int


class _SavedSteps(BootState, frozen=True):
    steps: tuple[_LogClockStep, ...]


_EQUAL = (_LogClockStep(0, 0),)


class KernelLogClock:
    """Conversion of the log's times, from the polls between which its records were written.

    A record keeps its time: a step applies to records that were not read before. Records that were in the log
    before its first poll have no earliest time: for them the clocks count as equal.
    """

    def __init__(self) -> None:
        self._file: BootStateFile | None = None
        self._steps: tuple[_LogClockStep, ...] = _EQUAL
        self._read_to_end_ns: int | None = None
        """Time of the last poll that left no record: later records were written after it."""
        self._newest_ns = 0
        """Latest time of the log that was converted: records of several processors are not quite in order."""

    def remember(self, directory: Path, boot_id: str) -> None:
        """Load and store the steps: an agent that starts again gives each record the same time as before."""
        self._file = BootStateFile(directory / "kernel-log-clock.json", boot_id, "log_clock")
        saved = self._file.read(_SavedSteps)
        self._steps = (saved and saved.steps) or _EQUAL
        self._newest_ns = self._steps[-1].since_ns

    def place(self, first_ns: int, last_ns: int, read_ns: int) -> None:
        """Compare the times of the first and last new record of a poll with those of the polls."""
        offset_ns = self._steps[-1].offset_ns
        highest_ns = read_ns - last_ns
        if self._read_to_end_ns is None:
            # Records that an earlier run read are not later than this poll.
            lowest_ns, since_ns = None, read_ns - offset_ns + TOLERANCE_NS
        else:
            lowest_ns, since_ns = self._read_to_end_ns - first_ns, first_ns
        moved_ns = _nearest_offset(offset_ns, lowest_ns, highest_ns)
        if abs(moved_ns - offset_ns) > TOLERANCE_NS:
            step = _LogClockStep(max(since_ns, self._newest_ns + 1), moved_ns)
            self._steps = (*self._steps, step)[-MAX_STEPS:]
            if self._file:
                self._file.write(_SavedSteps(self._file.boot_id, self._steps))
        self._newest_ns = max(self._newest_ns, last_ns)

    def end_poll(self, began_ns: int, *, is_at_end: bool) -> None:
        """Record the start of a poll, and whether it read all records."""
        self._read_to_end_ns = began_ns if is_at_end else None

    def boot_ns(self, stamp_ns: int) -> int:
        """Convert a time of the log."""
        later = bisect_right(self._steps, stamp_ns, key=lambda step: step.since_ns)
        return max(stamp_ns + self._steps[max(later - 1, 0)].offset_ns, 0)


def _nearest_offset(offset_ns: int, lowest_ns: int | None, highest_ns: int) -> int:
    """Return the possible offset nearest to the present one; after a suspend, the middle of the possible ones.

    From the nearest one the next polls move it only in the direction of the drift.
    """
    if lowest_ns is None:
        return min(offset_ns, highest_ns)
    nearest_ns = min(max(offset_ns, lowest_ns), highest_ns)
    is_suspend = abs(nearest_ns - offset_ns) > highest_ns - lowest_ns
    return (lowest_ns + highest_ns) // 2 if is_suspend else nearest_ns
