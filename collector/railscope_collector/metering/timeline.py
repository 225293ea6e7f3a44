"""Timelines: disjoint pieces of time in order, each with a value. Time without a value is omitted."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from operator import attrgetter
from typing import Any, Generic, NamedTuple, Protocol, TypeVar


class SupportsOrdering(Protocol):
    """Value that can be compared with values of its type."""

    def __lt__(self, other: Any, /) -> bool:
        """True if the other one prevails."""


T = TypeVar("T")
PrecedenceT = TypeVar("PrecedenceT", bound=SupportsOrdering)


class TimePiece(NamedTuple, Generic[T]):
    """A value in [start, end)."""

    start_ns: int
    end_ns: int
    value: T


_END = attrgetter("end_ns")
_VALUE = attrgetter("value")


def resolve_overlaps(candidates: Iterable[TimePiece[PrecedenceT]]) -> list[TimePiece[PrecedenceT]]:
    """Return the greatest of the values in force at every time; candidates may overlap."""
    # By rank and not by value in the heap: values may be equal, and are compared once.
    ranked = sorted((c for c in candidates if c.start_ns < c.end_ns), key=_VALUE, reverse=True)
    # In descending order: the next one to begin is taken from the end.
    waiting = sorted(range(len(ranked)), key=lambda rank: -ranked[rank].start_ns)
    in_force: list[int] = []
    resolved: list[TimePiece[PrecedenceT]] = []
    now = 0
    while waiting or in_force:
        if not in_force:
            now = ranked[waiting[-1]].start_ns
        while waiting and ranked[waiting[-1]].start_ns <= now:
            heappush(in_force, waiting.pop())
        first = ranked[in_force[0]]
        # Expired ones are removed when they are reached: a heap cannot remove from its middle.
        if first.end_ns <= now:
            heappop(in_force)
            continue
        until = min(first.end_ns, ranked[waiting[-1]].start_ns) if waiting else first.end_ns
        append_piece(resolved, TimePiece(now, until, first.value))
        now = until
    return resolved


def append_piece(timeline: list[TimePiece[T]], piece: TimePiece[T]) -> None:
    """Append a piece; join it with the last one if it continues its value."""
    if timeline and timeline[-1].end_ns == piece.start_ns and timeline[-1].value == piece.value:
        piece = TimePiece(timeline.pop().start_ns, piece.end_ns, piece.value)
    timeline.append(piece)


def subtract_spans(piece: TimePiece[T], taken: Iterable[tuple[int, int]]) -> Iterator[TimePiece[T]]:
    """Yield the remainder of a piece without some spans [start, end), which may overlap."""
    now = piece.start_ns
    for start, end in sorted(taken):
        if now < start and now < piece.end_ns:
            yield TimePiece(now, min(start, piece.end_ns), piece.value)
        now = max(now, end)
    if now < piece.end_ns:
        yield TimePiece(now, piece.end_ns, piece.value)


def align_timelines(
    timelines: Sequence[Sequence[TimePiece[Any]]], start_ns: int, end_ns: int
) -> Iterator[TimePiece[tuple[Any, ...]]]:
    """Align several timelines over [start, end), divided wherever one changes; None for a missing value."""
    positions = [bisect_right(timeline, start_ns, key=_END) for timeline in timelines]
    now = start_ns
    while now < end_ns:
        until = end_ns
        values: list[Any] = []
        for number, timeline in enumerate(timelines):
            while positions[number] < len(timeline) and timeline[positions[number]].end_ns <= now:
                positions[number] += 1
            value = None
            if positions[number] < len(timeline):
                piece = timeline[positions[number]]
                if piece.start_ns <= now:
                    value = piece.value
                    until = min(until, piece.end_ns)
                else:
                    until = min(until, piece.start_ns)
            values.append(value)
        yield TimePiece(now, until, tuple(values))
        now = until
