"""Observed time of a GPU: between two samples of one boot at most `GAP_NS` apart.

Samples are given as stretches and not individually, so the cost of a GPU-day depends on its gaps.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from collector.metering.evidence import Stretch
from collector.metering.timeline import Piece
from collector.metering.units import FOREVER_NS

GAP_NS = 30_000_000_000
QUARANTINE_NS = 60_000_000_000


def stretches(boot: str, instants_ns: NDArray[np.int64], uncertainty_ns: int = 0) -> list[Stretch]:
    """Return the stretches of the samples of one boot, which may be in any order."""
    instants = np.unique(instants_ns)
    if not len(instants):
        return []
    breaks = np.flatnonzero(np.diff(instants) > GAP_NS)
    firsts = instants[np.concatenate(([0], breaks + 1))].tolist()
    lasts = instants[np.concatenate((breaks, [len(instants) - 1]))].tolist()
    return [
        Stretch(boot, first, last, uncertainty_ns)
        for first, last in zip(firsts, lasts, strict=True)
    ]


def joined(parts: Iterable[Stretch]) -> list[Stretch]:
    """Join stretches of one boot that overlap or are at most a gap apart.

    The timestamps of a node with a clock error above one minute are not usable; its samples are
    omitted.
    """
    found: list[Stretch] = []
    for part in sorted(part for part in parts if abs(part.skew_ns) <= QUARANTINE_NS):
        last = found[-1] if found else None
        if last and last.boot == part.boot and part.first_ns <= last.last_ns + GAP_NS:
            found[-1] = Stretch(
                last.boot,
                last.first_ns,
                max(last.last_ns, part.last_ns),
                max(last.uncertainty_ns, part.uncertainty_ns),
            )
        else:
            found.append(part)
    return found


def silences(parts: Iterable[Stretch], boundaries_ns: Sequence[int]) -> list[Piece[int]]:
    """Return, for all time, the length of the gap that contains it; 0 where the GPU was observed.

    A gap lasts from one sample to the next; one without a start or an end is `FOREVER_NS`. An edge
    that is within the clock's uncertainty of a boundary (of a claim, in order) is moved there, so
    that no short gap remains between the claim and its first sample.
    """
    seen = sorted(
        (
            _snapped(stretch.first_ns, stretch.uncertainty_ns, boundaries_ns),
            _snapped(stretch.last_ns, stretch.uncertainty_ns, boundaries_ns),
        )
        for stretch in joined(parts)
    )
    found: list[Piece[int]] = []
    now = -FOREVER_NS
    for first, last in seen:
        if now < first:
            silence = first - now if found else FOREVER_NS
            found.append(Piece(now, first, silence))
        start = max(now, first)
        if start < last:
            found.append(Piece(start, last, 0))
        now = max(now, last)
    found.append(Piece(now, FOREVER_NS, FOREVER_NS))
    return found


def _snapped(edge_ns: int, uncertainty_ns: int, boundaries_ns: Sequence[int]) -> int:
    """Return the nearest boundary within the uncertainty, or the edge itself."""
    if not uncertainty_ns:
        return edge_ns
    at = bisect_left(boundaries_ns, edge_ns)
    near = boundaries_ns[max(at - 1, 0) : at + 1]
    nearest = min(near, key=lambda boundary: abs(boundary - edge_ns), default=edge_ns)
    return nearest if abs(nearest - edge_ns) <= uncertainty_ns else edge_ns
