"""One comparison of a reconciliation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class Check:
    """What was added up, what it should be, and how many parts were compared.

    `where` names the part that differs most. With a `bound`, what was found is reported against it
    and nothing has to be equal.
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
        """Zero, or something is wrong; of what is only reported, zero."""
        return Fraction(0) if self.bound is not None else self.found - self.expected

    @property
    def passes(self) -> bool:
        """Whether there is no difference."""
        return self.difference == 0

    @property
    def within(self) -> bool:
        """Whether what is reported is within its bound."""
        return self.bound is None or self.found <= self.bound


def worst(
    rule: str, what: str, pairs: Iterable[tuple[str, Fraction | int, Fraction | int]]
) -> Check:
    """Many comparisons as one: that of the largest difference. Each has a name of its own."""
    most = Check(rule, what, Fraction(0), Fraction(0))
    parts = 0
    for where, found, expected in pairs:
        parts += 1
        check = Check(rule, what, Fraction(found), Fraction(expected), where=where)
        if abs(check.difference) > abs(most.difference):
            most = check
    return Check(rule, what, most.found, most.expected, parts, most.where)
