"""Time up to which events of a GPU no longer count: its last reset, or the driver's all-clear."""

from __future__ import annotations

from dataclasses import dataclass

from agent.health.facts import SECOND_NS
from railscope.reading import Absent, Reading

SETTLED_NS = 5 * SECOND_NS
"""The driver reports an Xid first, and determines the recovery action later (Xid 154)."""
_NO_ACTION = 0


@dataclass(slots=True)
class Lifetime:
    """Evidence of a reset: the energy counter, which only a reset or a driver load sets back.

    Drivers from 570 on also report whether the GPU needs a recovery action.
    """

    cleared_ns: int = -1
    """Time on the boot clock up to which all events are cleared."""
    resets: int = 0
    """Number of observed decreases of the energy counter."""
    energy: int | None = None
    looked_ns: int = -1

    def look(self, now_ns: int, energy: Reading, recovery: Reading, recovery_ns: int) -> None:
        """Process the present readings; the recovery action was read at an earlier time.

        Events after the previous poll may be later than the reset and are not cleared.
        """
        if not isinstance(energy, Absent):
            if self.energy is not None and energy < self.energy:
                self.cleared_ns = max(self.cleared_ns, self.looked_ns)
                self.resets += 1
            self.energy = energy
        if recovery == _NO_ACTION:
            self.cleared_ns = max(self.cleared_ns, recovery_ns - SETTLED_NS)
        self.looked_ns = now_ns
