"""Observed time of a GPU: spans of samples, and the gaps between them.

A GPU is observed between two samples of one boot that are at most `GAP_NS` apart. Samples are
given as spans and not individually, so the cost of a GPU-day depends on its gaps.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

import msgspec

from railscope.timestamps import FOREVER_NS, SECOND_NS
from railscope_collector.metering import timeline


class BootSampleSpan(msgspec.Struct, frozen=True, order=True, gc=False):
    """Samples of one boot, from the first to the last, with no two neighbours further apart than a gap.

    A single sample is a span too. The clock was right to within `uncertainty_ns`. `skew_ns` is
    the difference between the node's clock and the collector's.
    """

    boot: str
    first_ns: int
    last_ns: int
    uncertainty_ns: int = 0
    skew_ns: int = 0


GAP_NS = 30_000_000_000
QUARANTINE_NS = 60 * SECOND_NS
"""Clock error of a node above which its samples do not count; its claims do (docs/metering.md)."""


def join_sample_spans(parts: Iterable[BootSampleSpan]) -> list[BootSampleSpan]:
    """Join spans of one boot that overlap or are at most a gap apart.

    The timestamps of a node with a clock error above one minute are not usable; its samples are
    omitted.
    """
    joined: list[BootSampleSpan] = []
    for part in sorted(part for part in parts if abs(part.skew_ns) <= QUARANTINE_NS):
        last = joined[-1] if joined else None
        if last and last.boot == part.boot and part.first_ns <= last.last_ns + GAP_NS:
            joined[-1] = BootSampleSpan(
                last.boot,
                last.first_ns,
                max(last.last_ns, part.last_ns),
                max(last.uncertainty_ns, part.uncertainty_ns),
            )
        else:
            joined.append(part)
    return joined


def observation_gaps(
    parts: Iterable[BootSampleSpan], boundaries_ns: Sequence[int]
) -> list[timeline.TimePiece[int]]:
    """Return, for all time, the length of the gap that contains it; 0 where the GPU was observed.

    A gap lasts from one sample to the next; one without a start or an end is `FOREVER_NS`. An edge
    that is within the clock's uncertainty of a boundary (of a claim, in order) is moved there, so
    that no short gap remains between the claim and its first sample.
    """
    edges = sorted(
        (
            _snap_to_boundary(span.first_ns, span.uncertainty_ns, boundaries_ns),
            _snap_to_boundary(span.last_ns, span.uncertainty_ns, boundaries_ns),
        )
        for span in join_sample_spans(parts)
    )
    gaps: list[timeline.TimePiece[int]] = []
    now = -FOREVER_NS
    # Spans of different boots may overlap, if two hosts report under one name: each edge is clipped to the time not yet
    # covered.
    for first, last in edges:
        if now < first:
            gap_ns = first - now if gaps else FOREVER_NS
            gaps.append(timeline.TimePiece(now, first, gap_ns))
        start = max(now, first)
        if start < last:
            gaps.append(timeline.TimePiece(start, last, 0))
        now = max(now, last)
    gaps.append(timeline.TimePiece(now, FOREVER_NS, FOREVER_NS))
    return gaps


def _snap_to_boundary(edge_ns: int, uncertainty_ns: int, boundaries_ns: Sequence[int]) -> int:
    """Return the nearest boundary within the uncertainty, or the edge itself."""
    if not uncertainty_ns:
        return edge_ns
    at = bisect_left(boundaries_ns, edge_ns)
    near = boundaries_ns[max(at - 1, 0) : at + 1]
    nearest = min(near, key=lambda boundary: abs(boundary - edge_ns), default=edge_ns)
    return nearest if abs(nearest - edge_ns) <= uncertainty_ns else edge_ns
