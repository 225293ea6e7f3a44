"""Number of examples of a property test."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

DEFAULT = 50
"""Examples of a property in a full run; the profile `thorough` sets more."""
_THOROUGH_FACTOR = 25
_THOROUGH_FACTOR_OF_FEWER = 10


def few_examples(count: int) -> settings:
    """The same `count` examples in every run; with the profile `thorough` many random ones.

    For properties that run a whole simulated node.
    """
    is_thorough = _is_thorough()
    return settings(
        deadline=None,
        max_examples=count * (_THOROUGH_FACTOR if is_thorough else 1),
        derandomize=not is_thorough,
        suppress_health_check=list(HealthCheck),
    )


def fewer(count: int) -> settings:
    """This number in a full run, and ten times as many in the thorough one: each example is slow."""
    return settings(max_examples=count * (_THOROUGH_FACTOR_OF_FEWER if _is_thorough() else 1))


def _is_thorough() -> bool:
    return settings().max_examples > DEFAULT
