"""Claims in force according to the log: they make a claim an assignment, a transfer or a conflict."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice

import msgspec

from railscope.audit.record import Data, Record

ASSIGN, RELEASE, TRANSFER = "tenancy.assign", "tenancy.release", "tenancy.transfer"
CONFLICT = "tenancy.conflict"
SEEN, DONE = "seen", "done"
MAX_CONFLICTS = 8
"""Maximum number of recorded conflicts of one claim with others."""
_SLOTS = re.compile("([0-9]{1,3})-([0-9]{1,3})")


class Holding(msgspec.Struct, frozen=True, array_like=True):
    """A claim in force: its holder, slots and authority."""

    holder: tuple[str, ...]
    """Tenant, and the owner or the commitment to the owner; empty if unknown."""
    level: str
    slots: tuple[int, int]
    exclusive: bool

    @classmethod
    def of(cls, data: Data, commitments: dict[str, str]) -> Holding:
        """Return the holding that the record of an assignment describes."""
        owner = commitments.get("owner") or str(data.get("owner", ""))
        return cls(
            (str(data.get("tenant", "")), owner),
            str(data.get("level", "")),
            slots_of(str(data.get("compute", ""))),
            data.get("exclusive") == "true",
        )

    def disputes(self, other: Holding) -> bool:
        """True if two exclusive claims of equal authority overlap in their slots."""
        both = self.exclusive and other.exclusive and self.level == other.level
        return both and self.slots[0] < other.slots[1] and other.slots[0] < self.slots[1]


def slots_of(text: str) -> tuple[int, int]:
    """Parse `low-high` as numbers; (0, 0), which is no slot, if the text has another form."""
    found = _SLOTS.fullmatch(text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def by(node: str, claim: str) -> str:
    """Return the key of a claim as a node reports it: the same name on another node is another claim."""
    return f"{node}\n{claim}"


class Holdings(msgspec.Struct):
    """Claims in force, by GPU and by node and name (`by`)."""

    gpus: dict[str, dict[str, Holding]] = {}
    conflicts: dict[str, dict[str, set[str]]] = {}
    """Recorded conflicts, by GPU and the later claim: the earlier claims."""

    def of(self, gpu: str, claim: str) -> Holding | None:
        """Return the claim if it is in force."""
        return self.gpus.get(gpu, {}).get(claim)

    def disputed(self, gpu: str, claim: str, wanted: Holding) -> list[str]:
        """Return the other claims of a GPU that dispute the slots of this one and are not recorded yet.

        The number is bounded: otherwise a provider that reports thousands of claims fills the log with
        pairs.
        """
        there, told = self.gpus.get(gpu, {}).items(), self.conflicts.get(gpu, {}).get(claim, ())
        others = (
            name
            for name, held in there
            if name != claim and name not in told and held.disputes(wanted)
        )
        return list(islice(others, max(0, MAX_CONFLICTS - len(told))))

    def part(self, gpus: Iterable[str]) -> Holdings:
        """Return a copy restricted to some GPUs, to apply further records to it tentatively."""
        asked = set(gpus)
        return Holdings(
            {gpu: dict(self.gpus[gpu]) for gpu in asked & self.gpus.keys()},
            {
                gpu: {claim: set(others) for claim, others in self.conflicts[gpu].items()}
                for gpu in asked & self.conflicts.keys()
            },
        )

    def add(self, record: Record) -> None:
        """Apply the next record of the log."""
        told = record.data.get("claim")
        if not isinstance(told, str):
            return
        claim = by(record.obj.node, told)
        if record.type in {ASSIGN, TRANSFER} and record.out == DONE:
            held = self.gpus.setdefault(record.obj.gpu, {})
            held[claim] = Holding.of(record.data, record.pii)
        elif record.type == CONFLICT and "node_before" in record.data:
            other = by(str(record.data["node_before"]), str(record.data.get("claim_before")))
            self.conflicts.setdefault(record.obj.gpu, {}).setdefault(claim, set()).add(other)
        elif record.type == RELEASE:
            self._release(record.obj.gpu, claim)

    def _release(self, gpu: str, claim: str) -> None:
        held = self.gpus.get(gpu, {})
        held.pop(claim, None)
        if not held:
            self.gpus.pop(gpu, None)
        told = self.conflicts.pop(gpu, {})
        left = {one: others - {claim} for one, others in told.items() if one != claim}
        if any(left.values()):
            self.conflicts[gpu] = {one: others for one, others in left.items() if others}
