"""What is wrong with the evidence and belongs into the audit log, once, whoever finds it."""

from __future__ import annotations

from hashlib import sha256
from typing import NamedTuple

import msgspec

from collector.ledger.draft import Draft
from railscope.audit.record import Actor, Data, Subject


class Trouble(NamedTuple):
    """Something about the evidence that an auditor should know: what, about what, and how."""

    kind: str
    """conflict, counter_reset, quarantine, seen_twice, retired_seen, refused_claim, rank_lowered,
    unplaced_excess, two_machines, too_many_gpus, too_many_spans."""
    gpu: str
    node: str
    instant_ns: int
    facts: dict[str, str]

    @property
    def id(self) -> str:
        """Equal for equal troubles: two collectors and every restart find the same ones."""
        facts = list(self._replace(instant_ns=0) if self.kind in _ONCE else self)
        content = msgspec.json.encode(facts, order="deterministic")
        return f"evidence/{sha256(content).hexdigest()[:40]}"

    def draft(self) -> Draft:
        """As it is recorded."""
        kind = _TYPES.get(self.kind, "evidence.quarantine")
        data: Data = {"what": self.kind, **self.facts}
        subject = Subject(node=self.node, gpu=self.gpu)
        actor = Actor("collector", "metering")
        return Draft(kind, actor, self.instant_ns, "seen", subject, data)


_ONCE = {"rank_lowered", "two_machines", "too_many_gpus", "too_many_spans"}
"""Recorded once, whenever it happens again."""
_TYPES = {"conflict": "tenancy.conflict", "counter_reset": "evidence.counter_reset"}
"""What is neither is evidence that was not believed."""
