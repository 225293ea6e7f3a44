"""Claims of a node without a device, placed on its GPUs: the same for live accounts and ledger days.

A placement concerns all GPUs of a node, so the evidence of one of them depends on the claims and stays of
the others. Where a node has no such claim nothing of that is looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from msgspec.structs import replace

from collector.evidence.assemble import Facts, Files, counts_of, evidence_of
from collector.evidence.ends import ends_of
from collector.evidence.places import Places
from collector.evidence.told import unplaced_in
from collector.metering.evidence import Claim, Evidence
from collector.metering.holders import claims_in_force, stays
from collector.metering.placement import Excess, NodeGpu, Placement, place


class NodeFacts(Protocol):
    """Facts of GPUs, and the GPUs that were in a node."""

    @property
    def version(self) -> int:
        """Another number after any change."""
        ...

    def facts(self, gpu: str) -> Facts:
        """What is known of a GPU, or of what `unplaced_in` names."""
        ...

    def gpus_in(self, node: str) -> Iterable[str]:
        """The GPUs that were ever seen in a node."""
        ...

    def has_unplaced(self, node: str) -> bool:
        """True if there is a claim of the node without a device."""
        ...


@dataclass(slots=True)
class Placer:
    """Evidence with the placed claims of nodes; each node is placed once for all of its GPUs."""

    source: NodeFacts
    files: Files
    _version: int = -1
    _placed: dict[str, Placement] = field(default_factory=dict)
    _evidence: dict[str, tuple[Evidence, Places]] = field(default_factory=dict)

    def evidence(self, gpu: str) -> tuple[Evidence, Places]:
        """Evidence of a GPU, with the claims that its nodes have without naming it."""
        if self._version != self.source.version:
            self._version = self.source.version
            self._placed.clear()
            self._evidence.clear()
        own, where = self._own(gpu)
        nodes = {stay.node for stay in own.stays}
        extra = [
            claim
            for node in sorted(nodes)
            if self.source.has_unplaced(node)
            for claim in self._placement(node).claims.get(gpu, ())
        ]
        if not extra:
            return own, where
        return replace(own, claims=tuple(sorted({*own.claims, *extra}))), where

    def excess(self, node: str) -> Sequence[Excess]:
        """What of the node's claims does not fit into it."""
        return self._placement(node).excess if self.source.has_unplaced(node) else ()

    def _own(self, gpu: str) -> tuple[Evidence, Places]:
        if gpu not in self._evidence:
            self._evidence[gpu] = evidence_of(self.source.facts(gpu), self.files)
        return self._evidence[gpu]

    def _placement(self, node: str) -> Placement:
        found = self._placed.get(node)
        if found is None:
            gpus = sorted(set(self.source.gpus_in(node)))
            there = [self._own(gpu)[0] for gpu in gpus]
            facts = self.source.facts(unplaced_in(node))
            presences = [
                p for gpu in gpus for p in self.source.facts(gpu).presences if p.node == node
            ]
            ends = ends_of(facts.told, facts.ended, presences)
            counts = counts_of(facts, ends, self.files.tenants, self.files.decisions)
            found = self._placed[node] = place(
                [NodeGpu(one.gpu, list(_spans(one, node)), list(_placed(one))) for one in there],
                counts,
            )
        return found


def _spans(evidence: Evidence, node: str) -> Iterator[tuple[int, int]]:
    """When a GPU is in a node, in service."""
    return ((s.start_ns, s.end_ns) for s in stays(evidence) if s.value.node == node)


def _placed(evidence: Evidence) -> Iterator[Claim]:
    """The placed claims of a GPU, each for the time that it is in force there."""
    for start_ns, end_ns, claim in claims_in_force(evidence):
        yield replace(claim, start_ns=start_ns, end_ns=end_ns)


def by_node(homes: Mapping[str, Iterable[str]]) -> dict[str, set[str]]:
    """The GPUs of each node."""
    found: dict[str, set[str]] = {}
    for gpu, nodes in homes.items():
        for node in nodes:
            found.setdefault(node, set()).add(gpu)
    return found
