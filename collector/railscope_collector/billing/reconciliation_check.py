"""One exact comparison of quantities that must be equal, without tolerance."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class ReconciliationCheck:
    """A computed sum, its expected value, and the number of parts compared.

    `where` names the part with the largest difference. With a `bound`, the found value is reported
    against it and equality is not required. Without `parts`, nothing was compared, and `absence` is the reason.
    """

    rule: str
    title: str
    found: Fraction
    expected: Fraction
    parts: int = 1
    place: str = ""
    bound: Fraction | None = None
    absence: str = ""

    @property
    def difference(self) -> Fraction:
        """Found minus expected; always zero for a check with a bound."""
        return Fraction(0) if self.bound is not None else self.found - self.expected

    @property
    def passes(self) -> bool:
        """True if there is no difference."""
        return self.difference == 0

    @property
    def is_within_bound(self) -> bool:
        """True if a reported value is within its bound."""
        return self.bound is None or self.found <= self.bound


def worst_check(
    rule: str, title: str, pairs: Iterable[tuple[str, Fraction | int, Fraction | int]]
) -> ReconciliationCheck:
    """Combine many named comparisons into one: that of the largest difference."""
    worst = ReconciliationCheck(rule, title, Fraction(0), Fraction(0))
    parts = 0
    for place, actual, expected in pairs:
        parts += 1
        check = ReconciliationCheck(rule, title, Fraction(actual), Fraction(expected), place=place)
        if abs(check.difference) > abs(worst.difference):
            worst = check
    return ReconciliationCheck(rule, title, worst.found, worst.expected, parts, worst.place)
