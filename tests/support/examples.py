"""How many examples a property gets."""

from __future__ import annotations

from hypothesis import settings

_EVERY_RUN = 100


def fewer(most: int) -> settings:
    """So many in a run of everything, and ten times as many in the thorough one: each takes its time."""
    return settings(max_examples=most * settings().max_examples // _EVERY_RUN)
