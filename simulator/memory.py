"""Errors of a GPU's memory, and their repair."""

from __future__ import annotations

import random
from dataclasses import dataclass

from simulator.conditions import GpuConditions

BAD_ADDRESS = 0x0000_0012_BAC1_C3E0
"""Bad memory address of a GPU with an error."""

PAGE_BYTES = 4096


@dataclass(slots=True)
class MemoryErrors:
    """Errors since driver load and for life; rows, or pages of older GPUs, that wait for a reset."""

    corrected: int
    corrected_for_life: int
    uncorrected: int = 0
    uncorrected_for_life: int = 0
    correctable_rows: int = 0
    uncorrectable_rows: int = 0

    @classmethod
    def usual(cls, dice: random.Random) -> MemoryErrors:
        """Return a few corrected errors, as on every GPU."""
        corrected = dice.choice((0, 0, 0, 1, 2))
        return cls(corrected, corrected + dice.randrange(20))

    @property
    def pending(self) -> bool:
        """True if any row or page waits for a reset."""
        return self.correctable_rows + self.uncorrectable_rows > 0

    def advance(self, conditions: GpuConditions) -> None:
        """Add the errors of a span."""
        self.corrected += conditions.corrected_errors
        self.corrected_for_life += conditions.corrected_errors
        self.uncorrected += conditions.uncorrected_errors
        self.uncorrected_for_life += conditions.uncorrected_errors
        self.correctable_rows = conditions.correctable_rows
        self.uncorrectable_rows = conditions.uncorrectable_rows

    def reload(self) -> None:
        """Reset the counters, as after a driver load."""
        self.corrected = self.uncorrected = 0
