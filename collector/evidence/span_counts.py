"""Stretches of samples that are kept in memory, by node and GPU, and their bounds.

A node decides how its samples lie apart. Each that is further than a gap from the others is a stretch
of its own, which stays in memory until its day is in the ledger.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from collector.evidence.chunk import Span
from collector.evidence.places import Presence
from collector.metering.observation import GAP_NS

MAX_OF_A_GPU = 4096
"""Per GPU in one node: more than a sample every 31 s of a whole day makes."""
MAX_OF_A_NODE = 65_536
"""About 10 MB; a node of 8 GPUs reaches the bound of its GPUs first."""


def new_spans(known: Sequence[Span], more: Sequence[Span]) -> int:
    """At most how many stretches the samples of a boot grow by."""
    last = known[-1] if known else None
    goes_on = (
        last is not None
        and last.skew_ns == more[0].skew_ns
        and last.first_ns <= more[0].first_ns <= last.last_ns + GAP_NS
    )
    return len(more) - goes_on


@dataclass(slots=True)
class SpanCounts:
    """How many there are."""

    by_gpu: dict[str, Counter[str]] = field(default_factory=dict)
    """By GPU and node: what one node reports of a GPU takes nothing from another."""
    by_node: Counter[str] = field(default_factory=Counter)

    def beyond(self, node: str, gpu: str, new: int) -> str:
        """The reason why so many more are not kept; empty where they are."""
        if not new:
            return ""
        if self.by_gpu.get(gpu, _NONE)[node] + new > MAX_OF_A_GPU:
            return f"more than {MAX_OF_A_GPU} stretches of samples of a GPU wait for the ledger"
        if self.by_node[node] + new > MAX_OF_A_NODE:
            return f"more than {MAX_OF_A_NODE} stretches of samples of one node wait for the ledger"
        return ""

    def add(self, node: str, gpu: str, more: int) -> None:
        """Count some of a node's GPU; fewer where samples joined stretches."""
        self.by_gpu.setdefault(gpu, Counter())[node] += more
        self.by_node[node] += more

    def count(
        self, gpu: str, presences: Iterable[Presence], silent: Mapping[str, Sequence[Span]]
    ) -> None:
        """Count all of a GPU again; `silent` has its stretches without a value, by node."""
        self.by_node.subtract(self.by_gpu.pop(gpu, _NONE))
        for presence in presences:
            self.add(presence.node, gpu, len(presence.spans))
        for node, spans in silent.items():
            self.add(node, gpu, len(spans))


_NONE: Counter[str] = Counter()
