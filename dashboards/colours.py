"""The thresholds at which a number changes its colour, and the texts and colours of states."""

from __future__ import annotations

from collections.abc import Mapping

from dashboards.panels import Steps

NONE_IS_GOOD: Steps = ((None, "green"), (1, "red"))
ANY_IS_BAD: Steps = ((None, "green"), (1e-9, "red"))
ALL_IS_GOOD: Steps = ((None, "red"), (1, "green"))
PAUSE: Steps = ((None, "green"), (0.05, "orange"), (0.5, "red"))
STALL: Steps = ((None, "green"), (0.3, "orange"))
HOT: Steps = ((None, "green"), (80, "orange"), (90, "red"))
OLD: Steps = ((None, "green"), (60, "orange"), (300, "red"))
BELOW_OTHERS: Steps = ((None, "red"), (-0.2, "orange"), (-0.05, "green"), (0.2, "orange"))
BEHIND_OTHERS: Steps = ((None, "green"), (0.05, "orange"), (0.2, "red"))
FULL: Steps = ((None, "green"), (0.8, "orange"), (1, "red"))

HEALTH: Mapping[int, tuple[str, str]] = {
    0: ("healthy", "green"),
    1: ("degraded", "orange"),
    2: ("unknown", "purple"),
    3: ("failed", "red"),
}
"""Text and colour of each health state of a GPU by number; unknown is worse than degraded."""

COUNTED_AS: Mapping[str, str] = {
    "observed": "green",
    "inferred": "light-green",
    "idle": "blue",
    "reserved": "light-blue",
    "system": "dark-blue",
    "maintenance": "yellow",
    "stranded": "orange",
    "unclaimed": "red",
    "down": "dark-red",
    "unknown": "purple",
}
"""Colour of each state of GPU time: held is green, free or set aside is blue."""
