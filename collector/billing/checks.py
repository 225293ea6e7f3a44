"""One comparison of a reconciliation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class Check:
    """A computed sum, its expected value, and the number of parts compared.

    `where` names the part with the largest difference. With a `bound`, the found value is reported
    against it and equality is not required.
    """

    rule: str
    what: str
    found: Fraction
    expected: Fraction
    parts: int = 1
    where: str = ""
    bound: Fraction | None = None

    @property
    def difference(self) -> Fraction:
        """Found minus expected; always zero for a check with a bound."""
        return Fraction(0) if self.bound is not None else self.found - self.expected

    @property
    def passes(self) -> bool:
        """True if there is no difference."""
        return self.difference == 0

    @property
    def within(self) -> bool:
        """True if a reported value is within its bound."""
        return self.bound is None or self.found <= self.bound


def worst(
    rule: str, what: str, pairs: Iterable[tuple[str, Fraction | int, Fraction | int]]
) -> Check:
    """Combine many named comparisons into one: that of the largest difference."""
    most = Check(rule, what, Fraction(0), Fraction(0))
    parts = 0
    for where, found, expected in pairs:
        parts += 1
        check = Check(rule, what, Fraction(found), Fraction(expected), where=where)
        if abs(check.difference) > abs(most.difference):
            most = check
    return Check(rule, what, most.found, most.expected, parts, most.where)
