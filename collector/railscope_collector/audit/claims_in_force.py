"""Claims in force according to the records of the audit log, and their conflicts in slots."""

from __future__ import annotations

from itertools import islice

import msgspec

from railscope import claim_terms
from railscope.audit import record

ASSIGN, RELEASE, TRANSFER = "tenancy.assign", "tenancy.release", "tenancy.transfer"
CONFLICT = "tenancy.conflict"
OBSERVED, DONE = "seen", "done"
MAX_CONFLICTS = 8
"""Maximum number of recorded conflicts of one claim with others."""


class ClaimInForce(msgspec.Struct, frozen=True, array_like=True):
    """A claim in force: its holder, slots and authority."""

    holder: tuple[str, ...]
    """Tenant, and the owner or the commitment to the owner; empty if unknown."""
    level: str
    slots: tuple[int, int]
    exclusive: bool

    @classmethod
    def from_record(cls, data: record.RecordData, commitments: dict[str, str]) -> ClaimInForce:
        """Return the holding that the record of an assignment describes."""
        owner = commitments.get("owner") or str(data.get("owner", ""))
        return cls(
            (str(data.get("tenant", "")), owner),
            str(data.get("level", "")),
            slots_or_none(str(data.get("compute", ""))),
            data.get("exclusive") == "true",
        )

    def conflicts_with(self, other: ClaimInForce) -> bool:
        """True if two exclusive claims of equal authority overlap in their slots."""
        same_authority = self.exclusive and other.exclusive and self.level == other.level
        return same_authority and self.slots[0] < other.slots[1] and other.slots[0] < self.slots[1]


def slots_or_none(text: str) -> tuple[int, int]:
    """Parse a range of slots; (0, 0), an empty range, if it is invalid."""
    try:
        return claim_terms.parse_slots(text)
    except claim_terms.SlotsError:
        return 0, 0


def claim_key(node: str, claim: str) -> str:
    """Return the key of a claim as a node reports it: the same name on another node is another claim."""
    return f"{node}\n{claim}"


class ClaimsInForce(msgspec.Struct):
    """Claims in force, by GPU and by node and name (`claim_key`)."""

    gpus: dict[str, dict[str, ClaimInForce]] = {}
    conflicts: dict[str, dict[str, set[str]]] = {}
    """Recorded conflicts, by GPU and the later claim: the earlier claims."""

    def find_conflicts(self, gpu: str, claim: str, new_claim: ClaimInForce) -> list[str]:
        """Return the other claims of a GPU that conflict with this one in slots and are not recorded yet.

        The number is bounded: otherwise a provider that reports thousands of claims fills the log with
        pairs.
        """
        claims, conflicting = (
            self.gpus.get(gpu, {}).items(),
            self.conflicts.get(gpu, {}).get(claim, ()),
        )
        found = (
            name
            for name, other in claims
            if name != claim and name not in conflicting and other.conflicts_with(new_claim)
        )
        return list(islice(found, max(0, MAX_CONFLICTS - len(conflicting))))

    def add(self, new: record.AuditRecord) -> None:
        """Apply the next record of the log."""
        claim_id = new.data.get("claim")
        if not isinstance(claim_id, str):
            return
        claim = claim_key(new.obj.node, claim_id)
        if new.type in {ASSIGN, TRANSFER} and new.out == DONE:
            claims = self.gpus.setdefault(new.obj.gpu, {})
            claims[claim] = ClaimInForce.from_record(new.data, new.pii)
        elif new.type == CONFLICT and "node_before" in new.data:
            other = claim_key(str(new.data["node_before"]), str(new.data.get("claim_before")))
            self.conflicts.setdefault(new.obj.gpu, {}).setdefault(claim, set()).add(other)
        elif new.type == RELEASE:
            self._release(new.obj.gpu, claim)

    def _release(self, gpu: str, claim: str) -> None:
        claims = self.gpus.get(gpu, {})
        claims.pop(claim, None)
        if not claims:
            self.gpus.pop(gpu, None)
        conflicts = self.conflicts.pop(gpu, {})
        left = {
            name: other_claims - {claim}
            for name, other_claims in conflicts.items()
            if name != claim
        }
        if any(left.values()):
            self.conflicts[gpu] = {
                name: other_claims for name, other_claims in left.items() if other_claims
            }
