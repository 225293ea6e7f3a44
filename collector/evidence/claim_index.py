"""Claims in memory by node and id, and the maximum number of claims of one node.

The index finds earlier reports of a claim without a scan of all claims, and enforces the bounds of
a node: above one, its claims are rejected and counted, and those of other nodes are not affected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from collector.evidence.claim_events import Ended, Told, is_gpu

MAX_IN_FORCE = 1024
"""Claims of one node without an end, including ends received before their claims."""
MAX_IN_FORCE_ON_GPU = 128
"""Of these, on one GPU: an eighth, as the cost of metering shares grows with the square of their number."""
MAX_REMEMBERED = 65_536
"""Claims of one node, including those that ended and are not in the ledger yet."""
MAX_REPORTS = 16
"""Different reports of one claim, and as many of its end."""
Claim: TypeAlias = tuple[str, str, str]
"""GPU, node and id."""


def claim_of(fact: Told | Ended) -> Claim:
    """Return the key of the claim of a fact."""
    return fact.gpu, fact.node, fact.id


@dataclass(slots=True)
class _Reports:
    starts: list[Told] = field(default_factory=list)
    ends: list[Ended] = field(default_factory=list)

    @property
    def in_force(self) -> bool:
        return not (self.starts and self.ends)


@dataclass(slots=True)
class _Node:
    claims: int = 0
    in_force: int = 0
    in_force_on_gpu: Counter[str] = field(default_factory=Counter)

    def count(self, claim: Claim, in_force: int) -> None:
        """Add or subtract claims in force."""
        self.in_force += in_force
        self.in_force_on_gpu[claim[0]] += in_force
        if not self.in_force_on_gpu[claim[0]]:
            del self.in_force_on_gpu[claim[0]]


@dataclass(slots=True)
class ClaimIndex:
    """All claims in memory."""

    _claims: dict[Claim, _Reports] = field(default_factory=dict)
    _nodes: dict[str, _Node] = field(default_factory=dict)

    def starts(self, fact: Told) -> list[Told]:
        """Return the earlier reports of the claim."""
        found = self._claims.get(claim_of(fact))
        return found.starts if found else []

    def ends(self, fact: Ended) -> list[Ended]:
        """Return the earlier reports of the claim's end."""
        found = self._claims.get(claim_of(fact))
        return found.ends if found else []

    def beyond(self, fact: Told | Ended) -> str:
        """Return the reason for which a node's fact is rejected; empty if it is accepted."""
        found, node = self._claims.get(claim_of(fact)), self._nodes.get(fact.node, _Node())
        if found is None:
            if node.in_force >= MAX_IN_FORCE:
                return f"the node has {MAX_IN_FORCE} claims in force"
            if is_gpu(fact.gpu) and node.in_force_on_gpu[fact.gpu] >= MAX_IN_FORCE_ON_GPU:
                return f"the node has {MAX_IN_FORCE_ON_GPU} claims in force on the GPU"
            if node.claims >= MAX_REMEMBERED:
                return f"the node has {MAX_REMEMBERED} claims that are not in the ledger yet"
        elif len(found.starts if isinstance(fact, Told) else found.ends) >= MAX_REPORTS:
            return f"the claim has {MAX_REPORTS} different reports"
        return ""

    def add(self, fact: Told | Ended) -> None:
        """Add a new fact."""
        node = self._nodes.setdefault(fact.node, _Node())
        found = self._claims.get(claim_of(fact))
        if found is None:
            found = self._claims[claim_of(fact)] = _Reports()
            node.claims += 1
        else:
            node.count(claim_of(fact), -found.in_force)
        if isinstance(fact, Told):
            found.starts.append(fact)
        else:
            found.ends.append(fact)
        node.count(claim_of(fact), found.in_force)

    def remove(self, claims: Iterable[Claim]) -> None:
        """Remove claims."""
        for claim in claims:
            found = self._claims.pop(claim, None)
            if found is None:
                continue
            node = self._nodes[claim[1]]
            node.claims -= 1
            node.count(claim, -found.in_force)
            if not node.claims:
                del self._nodes[claim[1]]

    def restart(self, facts: Iterable[Told | Ended]) -> None:
        """Replace the content by these facts."""
        self._claims.clear()
        self._nodes.clear()
        for fact in facts:
            self.add(fact)
