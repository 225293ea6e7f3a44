"""One exact comparison of quantities that must be equal, without tolerance."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from railscope.api.billing import Comparison
from railscope_collector.billing.charges import format_decimal

_PERCENT_PLACES = 3


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

    @property
    def row(self) -> Comparison:
        """The comparison as text, for the terminal, the console and the API."""
        if self.absence:
            return Comparison(self.rule, self.title, self.parts, "", "", "", self.absence, None)
        passes = self.passes and self.is_within_bound
        if self.bound is None:
            words = f"worst: {self.place}" if self.place else "DIFFERS"
            numbers = (str(self.found), str(self.expected), str(self.difference))
            result = "ok" if passes else words
        else:
            found, bound = _percent(self.found), _percent(self.bound)
            numbers = (found, f"≤ {bound}", "")
            result = f"{found}, {'within' if passes else 'ABOVE'} {bound}"
        return Comparison(self.rule, self.title, self.parts, *numbers, result, passes)


def _percent(share: Fraction) -> str:
    return f"{format_decimal(100 * share, _PERCENT_PLACES)} %"


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
