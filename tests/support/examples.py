"""How many examples a property gets."""

from __future__ import annotations

from hypothesis import settings

_EVERY_RUN = 100


def fewer(most: int) -> settings:
    """So many in a run of everything, and all of them in the thorough one: each takes its time."""
    wanted = settings().max_examples
    return settings(max_examples=min(most, wanted) if wanted <= _EVERY_RUN else wanted)
