"""In which node a GPU was, and when it was observed there.

Two nodes may say that they have a GPU at the same time. The one that was heard of with it first is
believed, whatever times the other one gives to its frames; of the other's samples those count that
are further than a gap from all of the first's. Samples from before a node was first heard with a GPU do not
count.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec

from collector.evidence.chunk import Span, add_spans
from collector.evidence.contacts import NO_CONTACTS, Contacts, floor_ns
from collector.metering.evidence import Stay, Stretch
from collector.metering.observation import GAP_NS
from collector.metering.units import FOREVER_NS


class Presence(msgspec.Struct, array_like=True):
    """A GPU in one boot of one node: since when that was heard of, and the samples."""

    node: str
    boot: str
    heard_ns: int
    spans: list[Span] = []
    believed_ns: int = 0
    """The instant from which the boot is believed to have begun; 0: from its first sample."""


class Places(msgspec.Struct, frozen=True):
    """Where a GPU was and when it was observed; and which nodes were not believed."""

    stays: tuple[Stay, ...]
    stretches: tuple[Stretch, ...]
    refused: tuple[tuple[str, str], ...] = ()
    """Two nodes: the one that stands, and the one that said it had the GPU at the same time."""


def places(
    presences: Iterable[Presence], gpu: str = "", contacts: Contacts = NO_CONTACTS
) -> Places:
    """What the presences of one GPU come to."""
    believed: list[Presence] = []
    refused: set[tuple[str, str]] = set()
    joined = _joined(presences)
    floors = {
        node: floor_ns(contacts, gpu, node, (p.heard_ns for p in joined if p.node == node))
        for node in {presence.node for presence in joined}
    }
    for presence in sorted(joined, key=lambda p: (p.heard_ns, p.node, p.boot)):
        spans = _since(floors[presence.node], presence.spans)
        for other in believed:
            if other.node != presence.node:
                kept = _without(spans, other.spans)
                if kept != spans:
                    refused.add((other.node, presence.node))
                spans = kept
        if spans:
            believed.append(Presence(presence.node, presence.boot, presence.heard_ns, spans))
    stretches = tuple(
        Stretch(p.boot, span.first_ns, span.last_ns, span.uncertainty_ns, span.skew_ns)
        for p in believed
        for span in p.spans
    )
    return Places(_stays(believed), stretches, tuple(sorted(refused)))


def _joined(presences: Iterable[Presence]) -> list[Presence]:
    found: dict[tuple[str, str], Presence] = {}
    for one in presences:
        key = (one.node, one.boot)
        if key not in found:
            found[key] = Presence(one.node, one.boot, one.heard_ns, [])
        found[key].heard_ns = min(found[key].heard_ns, one.heard_ns)
        add_spans(found[key].spans, one.spans)
    return list(found.values())


def _since(floor_ns: int, spans: Sequence[Span]) -> list[Span]:
    """Samples from an instant on."""
    return [
        span if span.first_ns >= floor_ns else msgspec.structs.replace(span, first_ns=floor_ns)
        for span in spans
        if span.last_ns >= floor_ns
    ]


def _without(spans: Sequence[Span], taken: Sequence[Span]) -> list[Span]:
    """Samples that lie further than a gap from others; both in order. Linear in their number."""
    blocked: list[tuple[int, int]] = []
    for other in taken:
        low, high = other.first_ns - GAP_NS, other.last_ns + GAP_NS
        if blocked and low <= blocked[-1][1] + 1:
            blocked[-1] = blocked[-1][0], max(high, blocked[-1][1])
        else:
            blocked.append((low, high))
    left: list[Span] = []
    for span in spans:
        first_ns = span.first_ns
        at = bisect_left(blocked, first_ns, key=_high)
        while at < len(blocked) and blocked[at][0] <= span.last_ns:
            low, high = blocked[at]
            if first_ns < low:
                left.append(msgspec.structs.replace(span, first_ns=first_ns, last_ns=low - 1))
            first_ns = high + 1
            at += 1
        if first_ns == span.first_ns:
            left.append(span)
        elif first_ns <= span.last_ns:
            left.append(msgspec.structs.replace(span, first_ns=first_ns))
    return left


def _high(span: tuple[int, int]) -> int:
    return span[1]


def _stays(believed: Iterable[Presence]) -> tuple[Stay, ...]:
    """A GPU stays in a node until it is seen in another one."""
    seen = sorted((span.first_ns, p.node) for p in believed for span in p.spans)
    if not seen:
        return ()
    moves = [seen[0], *(after for before, after in pairwise(seen) if before[1] != after[1])]
    ends = [*(start for start, _ in moves[1:]), FOREVER_NS]
    return tuple(Stay(start, node, end) for (start, node), end in zip(moves, ends, strict=True))
