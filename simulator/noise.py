"""Noise that is smooth in time, and the passage from amounts to whole things."""

from __future__ import annotations

import math
import random


class Drift:
    """Noise that wanders around zero with standard deviation one and forgets with time."""

    def __init__(self, dice: random.Random, memory_seconds: float) -> None:
        self._dice = dice
        self._memory_seconds = memory_seconds
        self.value = dice.gauss(0.0, 1.0)

    def advance(self, seconds: float) -> float:
        """Let some time pass; the noise after it."""
        kept = math.exp(-seconds / self._memory_seconds)
        fresh = math.sqrt(1.0 - kept * kept)
        self.value = kept * self.value + fresh * self._dice.gauss(0.0, 1.0)
        return self.value


def whole(amount: float, dice: random.Random) -> int:
    """Draw a whole number of things: on average the amount, and none of nothing."""
    return int(amount + dice.random())
