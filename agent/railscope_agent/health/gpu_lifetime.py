"""Resets of a GPU, which clear the faults that earlier Xids report."""

from __future__ import annotations

from dataclasses import dataclass

from railscope.reading import Absent, Reading
from railscope.timestamps import SECOND_NS
from railscope_agent.host.boot_state import BootState
from railscope_agent.streams.xid_matcher import ActionableXid

SETTLED_NS = 5 * SECOND_NS
"""The driver reports an Xid first, and determines the recovery action later (Xid 154)."""
_NO_RECOVERY_ACTION = 0


@dataclass(slots=True)
class GpuLifetime:
    """Evidence of a reset: the energy counter, which only a reset or a driver load sets back.

    The kernel log keeps an Xid until the next boot, whatever was done about it. Drivers from 570 on also
    report whether the GPU needs a recovery action; with earlier ones, only an agent that observed its
    counters decrease can detect a reset.
    """

    cleared_ns: int = -1
    """Time on the boot clock up to which all events of the GPU are cleared."""
    reset_ns: int = -1
    """Time up to which a reset cleared events, of a switch too: a recovery action is of the GPU alone."""
    resets: int = 0
    """Number of observed decreases of the energy counter."""
    energy: int | None = None
    polled_ns: int = -1
    answered_ns: int = -1
    """Time of the last reading that proves that the driver has started the GPU."""

    def observe(self, now_ns: int, energy: Reading, recovery: Reading, recovery_ns: int) -> None:
        """Process the present readings; the recovery action was read at an earlier time.

        Events after the previous poll may be later than the reset and are not cleared.
        """
        if not isinstance(energy, Absent):
            if self.energy is not None and energy < self.energy:
                self.reset_ns = self.polled_ns
                self.cleared_ns = max(self.cleared_ns, self.reset_ns)
                self.resets += 1
            self.energy = energy
        if recovery == _NO_RECOVERY_ACTION:
            # An Xid of the last seconds may be one whose recovery action is not determined yet.
            self.cleared_ns = max(self.cleared_ns, recovery_ns - SETTLED_NS)
        self.polled_ns = now_ns

    def has_cleared(self, reported: ActionableXid) -> bool:
        """True if the event no longer counts against the GPU."""
        until_ns = self.reset_ns if reported.is_of_switch else self.cleared_ns
        return reported.boot_ns <= until_ns


class SavedLifetimes(BootState, frozen=True):
    """Content of the state file: a few hundred bytes per GPU."""

    gpus: dict[str, GpuLifetime]
