"""Bounded parsing of numbers in text from people, schedulers and nodes.

Python computes `Fraction("1e999999999")` in one call that no signal interrupts, and `int()` rejects more
than 4300 digits with an error of its own. Numeric text from outside the program is parsed here.
"""

from __future__ import annotations

import re
from fractions import Fraction

MAX_DIGITS = 15
"""Digits of a decimal number before its point."""
MAX_PLACES = 9
"""Digits after the point."""
_MAX_SHOWN = 60
_DECIMAL = re.compile(rf"-?[0-9]{{1,{MAX_DIGITS}}}(?:\.[0-9]{{1,{MAX_PLACES}}})?")


class NumberError(ValueError):
    """A text that is not a number within its bounds; the message states the expected form."""


def parse_decimal(text: str, *, minimum: int | None = None) -> Fraction:
    """Parse `12`, `-3` or `12.50` exactly. Raises NumberError."""
    found = Fraction(text) if _DECIMAL.fullmatch(text) else None
    if found is None or (minimum is not None and found < minimum):
        least = "" if minimum is None else f", at least {minimum}"
        message = (
            f"{shown(text)}: expected a decimal number such as 12.50{least}, with at most "
            f"{MAX_DIGITS} digits before the point and {MAX_PLACES} after it"
        )
        raise NumberError(message)
    return found


def parse_whole(text: str, limit: int) -> int:
    """Parse ASCII digits as a number from 0 to less than `limit`. Raises NumberError.

    Leading zeros are valid, up to the number of digits of the limit.
    """
    digits = text.isascii() and text.isdecimal() and len(text) <= 2 * len(str(limit))
    if not digits or int(text) >= limit:
        message = f"{shown(text)} is no whole number below {limit}"
        raise NumberError(message)
    return int(text)


def shown(text: str) -> str:
    """Format a text for a message, quoted and with a length limit."""
    return repr(text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}...")
