"""Noise that is smooth in time, and random rounding of amounts to whole numbers."""

from __future__ import annotations

import math
import random


class Drift:
    """Mean-reverting noise around zero with standard deviation one and a correlation time."""

    def __init__(self, dice: random.Random, memory_seconds: float) -> None:
        self._dice = dice
        self._memory_seconds = memory_seconds
        self.value = dice.gauss(0.0, 1.0)

    def advance(self, seconds: float) -> float:
        """Advance by some time and return the noise after it."""
        kept = math.exp(-seconds / self._memory_seconds)
        fresh = math.sqrt(1.0 - kept * kept)
        self.value = kept * self.value + fresh * self._dice.gauss(0.0, 1.0)
        return self.value


def whole(amount: float, dice: random.Random) -> int:
    """Round an amount randomly to a whole number with this mean; zero stays zero."""
    return int(amount + dice.random())
