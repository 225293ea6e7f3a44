"""Claims in force according to the records of the audit log, with their holders."""

from __future__ import annotations

import msgspec

from railscope.audit import record

ASSIGN, RELEASE, TRANSFER = "tenancy.assign", "tenancy.release", "tenancy.transfer"
OBSERVED, DONE = "seen", "done"


class ClaimInForce(msgspec.Struct, frozen=True, array_like=True):
    """A claim in force."""

    holder: tuple[str, ...]
    """Tenant, and the owner or the commitment to the owner; empty if unknown."""

    @classmethod
    def from_record(cls, data: record.RecordData, commitments: dict[str, str]) -> ClaimInForce:
        """Return the holding that the record of an assignment describes."""
        owner = commitments.get("owner") or str(data.get("owner", ""))
        return cls((str(data.get("tenant", "")), owner))


def claim_key(node: str, claim: str) -> str:
    """Return the key of a claim as a node reports it: the same name on another node is another claim."""
    return f"{node}\n{claim}"


class ClaimsInForce(msgspec.Struct):
    """Claims in force, by GPU and by node and name (`claim_key`)."""

    gpus: dict[str, dict[str, ClaimInForce]] = {}

    def add(self, new: record.AuditRecord) -> None:
        """Apply the next record of the log."""
        claim_id = new.data.get("claim")
        if not isinstance(claim_id, str):
            return
        claim = claim_key(new.obj.node, claim_id)
        if new.type in {ASSIGN, TRANSFER} and new.out == DONE:
            claims = self.gpus.setdefault(new.obj.gpu, {})
            claims[claim] = ClaimInForce.from_record(new.data, new.pii)
        elif new.type == RELEASE:
            claims = self.gpus.get(new.obj.gpu, {})
            claims.pop(claim, None)
            if not claims:
                self.gpus.pop(new.obj.gpu, None)
