"""Number of examples of a property test, and strategies that several tests share."""

from __future__ import annotations

import unicodedata

from hypothesis import HealthCheck, settings, strategies as st

DEFAULT = 10
"""Examples of a property in a full run; the profile `thorough` sets more."""
_THOROUGH_FACTOR = 25
_THOROUGH_FACTOR_OF_FEWER = 10
_SHARE, _SHARE_OF_FEWER = 5, 10


# Built rather than filtered: of all characters too few are printable for `filter(str.isprintable)`.
PRINTABLE_CHARACTERS = st.characters(exclude_categories=["C", "Z"])


def names(max_size: int) -> st.SearchStrategy[str]:
    """Names of holders, tenants and devices: printable text in Unicode NFC, not all spaces."""
    text = st.text(PRINTABLE_CHARACTERS | st.just(" "), max_size=max_size - 1)
    return st.builds("{}{}".format, text, PRINTABLE_CHARACTERS).map(
        lambda name: unicodedata.normalize("NFC", name)
    )


def few_examples(count: int) -> settings:
    """A fifth of `count` examples, and many with the profile `thorough`, for a property of a simulated node."""
    return settings(
        max_examples=count * _THOROUGH_FACTOR if _is_thorough() else -(-count // _SHARE),
        suppress_health_check=list(HealthCheck),
    )


def fewer_examples(count: int) -> settings:
    """A tenth of `count` examples, and ten times `count` with the profile `thorough`: each is slow."""
    return settings(
        max_examples=(
            count * _THOROUGH_FACTOR_OF_FEWER if _is_thorough() else -(-count // _SHARE_OF_FEWER)
        )
    )


def _is_thorough() -> bool:
    return settings().max_examples > DEFAULT
