"""Times of the kernel log on the boot clock.

printk stamps records by local_clock() (kernel/printk/printk.c). That clock stands still while the node is
suspended, and NTP does not correct it: after weeks it differs from the boot clock by seconds to minutes
(dmesg(1), --ctime; kubernetes/node-problem-detector#479 has hours).
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from railscope_agent.host.boot_state import BootState, BootStateFile

MAX_STEPS = 128
"""Steps that are kept: a drift of 50 ppm takes some hours for one, a suspend is one."""


class _LogClockStep(msgspec.Struct, frozen=True):
    """Boot clock minus clock of the log, from a time of the log to the next step."""

    since_ns: int
    offset_ns: int


class _SavedSteps(BootState, frozen=True):
    steps: tuple[_LogClockStep, ...]


class LogClockFile:
    """Saves the steps of a boot: an agent that starts again gives each record the same time as before. Blocking."""

    def __init__(self, path: Path, boot_id: str) -> None:
        self._file = BootStateFile(path, boot_id, "log_clock")

    def load(self) -> tuple[_LogClockStep, ...]:
        """Return the saved steps."""
        saved = self._file.read(_SavedSteps)
        return saved.steps[-MAX_STEPS:] if saved else ()

    def save(self, steps: tuple[_LogClockStep, ...]) -> None:
        """Save the steps."""
        self._file.write(_SavedSteps(self._file.boot_id, steps))


class KernelLogClock:
    """Conversion of the log's times, from the polls between which its records were written.

    Records that were in the log before its first poll have no earliest time: for them the clocks count as equal.
    """

    def __init__(self) -> None:
        self._memory: LogClockFile | None = None
        self._steps: tuple[_LogClockStep, ...] = ()
        self._read_to_end_ns: int | None = None
        """Time of the last poll that left no record: later records were written after it."""

    def remember(self, memory: LogClockFile) -> None:
        """Load the steps from before a restart, and store them from now on."""
        self._memory, self._steps = memory, memory.load()

    def place(self, first_ns: int, last_ns: int, read_ns: int) -> None:
        """Compare the times of the first and last new record of a poll with those of the polls."""
        highest_ns = read_ns - last_ns
        earliest_ns = self._read_to_end_ns
        lowest_ns = None if earliest_ns is None else earliest_ns - first_ns
        if self._offset_ns(last_ns) <= highest_ns and (
            lowest_ns is None or lowest_ns <= self._offset_ns(first_ns)
        ):
            return
        # In the middle of what is possible: the next step is due after half a poll's time of drift.
        offset_ns = (
            highest_ns if lowest_ns is None else (min(lowest_ns, highest_ns) + highest_ns) // 2
        )
        self._steps = (*self._steps, _LogClockStep(first_ns, offset_ns))[-MAX_STEPS:]
        if self._memory:
            self._memory.save(self._steps)

    def end_poll(self, began_ns: int, *, is_at_end: bool) -> None:
        """Record the start of a poll, and whether it read all records."""
        self._read_to_end_ns = began_ns if is_at_end else None

    def boot_ns(self, stamp_ns: int) -> int:
        """Convert a time of the log."""
        return max(stamp_ns + self._offset_ns(stamp_ns), 0)

    def _offset_ns(self, stamp_ns: int) -> int:
        steps = (step.offset_ns for step in reversed(self._steps) if step.since_ns <= stamp_ns)
        return next(steps, 0)
