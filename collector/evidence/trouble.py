"""Problems of the evidence that are recorded in the audit log, once, whichever collector finds them."""

from __future__ import annotations

from hashlib import sha256
from typing import NamedTuple

import msgspec

from collector.ledger.draft import Draft
from railscope.audit.record import Actor, Data, Subject


class Trouble(NamedTuple):
    """Problem of the evidence for auditors: its kind, subject, time and details."""

    kind: str
    """One of the following.

    conflict, counter_reset, quarantine, seen_twice, retired_seen, rejected_claim, rank_lowered,
    unplaced_excess, identity_conflict, too_many_gpus, too_many_spans.
    """
    gpu: str
    node: str
    instant_ns: int
    facts: dict[str, str]

    @property
    def id(self) -> str:
        """Id of its audit record, equal for equal troubles of other collectors and after a restart."""
        facts = list(self._replace(instant_ns=0) if self.kind in _ONCE else self)
        content = msgspec.json.encode(facts, order="deterministic")
        return f"evidence/{sha256(content).hexdigest()[:40]}"

    def draft(self) -> Draft:
        """Return its audit record."""
        kind = _TYPES.get(self.kind, "evidence.quarantine")
        data: Data = {"what": self.kind, **self.facts}
        subject = Subject(node=self.node, gpu=self.gpu)
        actor = Actor("collector", "metering")
        return Draft(kind, actor, self.instant_ns, "seen", subject, data)


_ONCE = {"rank_lowered", "identity_conflict", "too_many_gpus", "too_many_spans"}
"""Recorded once, even if it happens again."""
_TYPES = {"conflict": "tenancy.conflict", "counter_reset": "evidence.counter_reset"}
"""Other kinds are evidence that was not used."""
