"""Spans of simulated time, in nanoseconds since the start of the simulation."""

from __future__ import annotations

from dataclasses import dataclass

NS_PER_US = 1_000
NS_PER_SECOND = 1_000_000_000


def seconds(amount: float) -> int:
    """Convert seconds to nanoseconds."""
    return round(amount * NS_PER_SECOND)


@dataclass(frozen=True, slots=True)
class Span:
    """The time after `start_ns`, up to and including `end_ns`."""

    start_ns: int
    end_ns: int

    @property
    def length_ns(self) -> int:
        """Length of the span."""
        return self.end_ns - self.start_ns

    @property
    def seconds(self) -> float:
        """Length of the span, in seconds."""
        return self.length_ns / NS_PER_SECOND

    def passes(self, instant_ns: int) -> bool:
        """True if a timestamp is within the span."""
        return self.start_ns < instant_ns <= self.end_ns

    def share_in(self, other: Span) -> float:
        """Share of this span that is within another one."""
        common_ns = min(self.end_ns, other.end_ns) - max(self.start_ns, other.start_ns)
        return max(common_ns, 0) / self.length_ns

    def share_after(self, instant_ns: int) -> float:
        """Share of this span after a timestamp."""
        return self.share_in(Span(instant_ns, max(self.end_ns, instant_ns)))

    def share_recurring(self, first: Span, period_ns: int) -> float:
        """Share of this span within a span that recurs with a period from `first` on."""

        def covered_until(instant_ns: int) -> int:
            rounds, rest_ns = divmod(max(instant_ns - first.start_ns, 0), period_ns)
            return rounds * first.length_ns + min(rest_ns, first.length_ns)

        return (covered_until(self.end_ns) - covered_until(self.start_ns)) / self.length_ns

    def count_recurring(self, first_ns: int, period_ns: int) -> int:
        """Number of the timestamps `first_ns`, `first_ns + period_ns`, ... within this span."""

        def passed_until(instant_ns: int) -> int:
            return max((instant_ns - first_ns) // period_ns + 1, 0)

        return passed_until(self.end_ns) - passed_until(self.start_ns)
