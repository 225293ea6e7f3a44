"""Exact fractions of a device in claims: `n/d` in lowest terms, 0 < n/d <= 1."""

from __future__ import annotations

import re
from fractions import Fraction

MAX_DENOMINATOR = 1 << 30
"""Covers 1/840, millionths, and sums of percents and of MiB of a device. Sums of many fractions keep
small denominators."""
MAX_COUNT = 1024
"""Maximum GPUs of one claim that names none of them."""
_RATIO = re.compile(r"([0-9]{1,12})/([0-9]{1,12})")
_PERCENT = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,6})?)\s?%")


class ShareError(ValueError):
    """A text that is not a share of a device; the message states the expected form."""


def parse_share(text: str) -> Fraction:
    """Parse a fraction such as `3/8`. Raises ShareError."""
    found = _RATIO.fullmatch(text)
    if found is None or not int(found[2]):
        raise _invalid(text)
    return _checked(text, Fraction(int(found[1]), int(found[2])))


def parse_written_share(text: str) -> Fraction:
    """Parse a fraction in human notation: `3/8`, or `37.5%`. Raises ShareError."""
    percent = _PERCENT.fullmatch(text.strip())
    if percent is None:
        return parse_share(text.strip())
    return _checked(text, Fraction(percent[1]) / 100)


def share_text(share: Fraction) -> str:
    """Format the fraction as `n/d`."""
    return f"{share.numerator}/{share.denominator}"


def checked_share(share: Fraction) -> Fraction:
    """Return the same fraction. Raises ShareError if it is not a valid share of a claim."""
    return _checked(share_text(share), share)


def _checked(text: str, share: Fraction) -> Fraction:
    if not 0 < share <= 1 or share.denominator > MAX_DENOMINATOR:
        raise _invalid(text)
    return share


def _invalid(text: str) -> ShareError:
    return ShareError(
        f"invalid share {text[:50]!r}: expected a fraction such as 3/8, above 0 and at most 1, "
        f"with a denominator of at most {MAX_DENOMINATOR}"
    )
