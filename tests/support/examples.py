"""Number of examples of a property test."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

_DEFAULT_EXAMPLES = 100
"""Examples that hypothesis tries unless a profile sets more."""
_THOROUGH_FACTOR = 25


def few_examples(count: int) -> settings:
    """The same `count` examples in every run; with the profile `thorough` many random ones.

    For properties that run a whole simulated node.
    """
    is_thorough = settings().max_examples > _DEFAULT_EXAMPLES
    return settings(
        deadline=None,
        max_examples=count * (_THOROUGH_FACTOR if is_thorough else 1),
        derandomize=not is_thorough,
        suppress_health_check=list(HealthCheck),
    )


def fewer(most: int) -> settings:
    """This number in a full run, and ten times as many in the thorough one: each example is slow."""
    return settings(max_examples=most * settings().max_examples // _DEFAULT_EXAMPLES)
