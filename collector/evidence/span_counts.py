"""Spans of samples in memory, by node and GPU, and their bounds.

A node determines the distances between its samples. Each sample that is further than a gap from the
others is a separate span, which stays in memory until its day is in the ledger.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from collector.evidence.chunk import Span
from collector.evidence.places import Presence
from collector.metering.observation import GAP_NS

MAX_OF_A_GPU = 4096
"""Per GPU in one node: more than the samples of a whole day at 31 s each."""
MAX_OF_A_NODE = 65_536
"""About 10 MB; a node of 8 GPUs reaches the bound of its GPUs first."""


def new_spans(known: Sequence[Span], more: Sequence[Span]) -> int:
    """Return the maximum number of spans that the samples of a boot add."""
    last = known[-1] if known else None
    goes_on = (
        last is not None
        and last.skew_ns == more[0].skew_ns
        and last.first_ns <= more[0].first_ns <= last.last_ns + GAP_NS
    )
    return len(more) - goes_on


@dataclass(slots=True)
class SpanCounts:
    """Numbers of spans."""

    by_gpu: dict[str, Counter[str]] = field(default_factory=dict)
    """By GPU and node: reports of one node about a GPU do not use up the bound of another."""
    by_node: Counter[str] = field(default_factory=Counter)

    def beyond(self, node: str, gpu: str, new: int) -> str:
        """Return the reason for which `new` more spans are rejected; empty if they are accepted."""
        if not new:
            return ""
        if self.by_gpu.get(gpu, _NONE)[node] + new > MAX_OF_A_GPU:
            return f"more than {MAX_OF_A_GPU} stretches of samples of a GPU wait for the ledger"
        if self.by_node[node] + new > MAX_OF_A_NODE:
            return f"more than {MAX_OF_A_NODE} stretches of samples of one node wait for the ledger"
        return ""

    def add(self, node: str, gpu: str, more: int) -> None:
        """Count spans of a node's GPU; negative where samples joined spans."""
        self.by_gpu.setdefault(gpu, Counter())[node] += more
        self.by_node[node] += more

    def count(
        self, gpu: str, presences: Iterable[Presence], silent: Mapping[str, Sequence[Span]]
    ) -> None:
        """Count all spans of a GPU again; `silent` has its spans without a value, by node."""
        self.by_node.subtract(self.by_gpu.pop(gpu, _NONE))
        for presence in presences:
            self.add(presence.node, gpu, len(presence.spans))
        for node, spans in silent.items():
            self.add(node, gpu, len(spans))


_NONE: Counter[str] = Counter()
