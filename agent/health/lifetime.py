"""Until when what happened to a GPU no longer matters: its last reset, or the driver's all-clear."""

from __future__ import annotations

from dataclasses import dataclass

from agent.health.facts import SECOND_NS
from railscope.reading import Absent, Reading

SETTLED_NS = 5 * SECOND_NS
"""The driver reports an Xid first, and then makes up its mind on how to recover (Xid 154)."""
_NO_ACTION = 0


@dataclass(slots=True)
class Lifetime:
    """What tells of a reset: the energy counter, which only a reset or a driver load sets back.

    Drivers from 570 on also say themselves whether the GPU needs anything to recover.
    """

    cleared_ns: int = -1
    """Instant of the boot clock up to which all is forgotten."""
    resets: int = 0
    """How often the energy counter has been seen to fall back."""
    energy: int | None = None
    looked_ns: int = -1

    def look(self, now_ns: int, energy: Reading, recovery: Reading, recovery_ns: int) -> None:
        """Take the present readings; those of the recovery action are of an earlier instant.

        What came after the last look was perhaps after the reset, too, and is not forgotten.
        """
        if not isinstance(energy, Absent):
            if self.energy is not None and energy < self.energy:
                self.cleared_ns = max(self.cleared_ns, self.looked_ns)
                self.resets += 1
            self.energy = energy
        if recovery == _NO_ACTION:
            self.cleared_ns = max(self.cleared_ns, recovery_ns - SETTLED_NS)
        self.looked_ns = now_ns
