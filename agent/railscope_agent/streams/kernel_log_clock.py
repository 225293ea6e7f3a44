"""Times of the kernel log on the boot clock.

printk stamps records by local_clock() (kernel/printk/printk.c). That clock stands still while the node is
suspended, and NTP does not correct it: after weeks it differs from the boot clock by seconds to minutes
(dmesg(1), --ctime; kubernetes/node-problem-detector#479 has hours).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class KernelLogClock:
    """Offset between both clocks, from the polls between which records were written.

    Records that were in the log before its first poll have no such bounds: for them the clocks count as equal.
    """

    _offset_ns: int = 0
    """Boot clock minus the clock of the log."""
    _read_to_end_ns: int | None = None
    """Time of the last poll that left no record: later records were written after it."""

    def boot_ns(self, stamp_ns: int, read_ns: int) -> int:
        """Return the time of a record that was read at `read_ns`; the offset changes as little as possible."""
        boot_ns = stamp_ns + self._offset_ns
        boot_ns = min(max(boot_ns, self._read_to_end_ns or 0), read_ns)
        if self._read_to_end_ns is not None:
            self._offset_ns = boot_ns - stamp_ns
        return boot_ns

    def end_poll(self, began_ns: int, *, is_at_end: bool) -> None:
        """Record the start of a poll, and whether it read all records."""
        self._read_to_end_ns = began_ns if is_at_end else None
