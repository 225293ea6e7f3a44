"""Who holds what according to the log itself: what makes a claim an assignment, a transfer, a conflict."""

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
"""Of one claim with others that are recorded."""
_SLOTS = re.compile("([0-9]{1,3})-([0-9]{1,3})")


class Holding(msgspec.Struct, frozen=True, array_like=True):
    """A claim in force: who has it, on which slots, by whose word."""

    holder: tuple[str, ...]
    """Tenant, owner and the commitment to the owner, as far as they are known."""
    level: str
    slots: tuple[int, int]
    exclusive: bool

    @classmethod
    def of(cls, data: Data, commitments: dict[str, str]) -> Holding:
        """What a record of an assignment says."""
        owner = commitments.get("owner") or str(data.get("owner", ""))
        return cls(
            (str(data.get("tenant", "")), owner),
            str(data.get("level", "")),
            slots_of(str(data.get("compute", ""))),
            data.get("exclusive") == "true",
        )

    def disputes(self, other: Holding) -> bool:
        """Whether two claims of equal level want the same slots for themselves."""
        both = self.exclusive and other.exclusive and self.level == other.level
        return both and self.slots[0] < other.slots[1] and other.slots[0] < self.slots[1]


def slots_of(text: str) -> tuple[int, int]:
    """`low-high` as numbers; no slot at all where it is something else."""
    found = _SLOTS.fullmatch(text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def by(node: str, claim: str) -> str:
    """A claim by the word of a node: another's of the same name is another claim."""
    return f"{node}\n{claim}"


class Holdings(msgspec.Struct):
    """Claims in force, by GPU and by the node's word (`by`)."""

    gpus: dict[str, dict[str, Holding]] = {}
    conflicts: dict[str, dict[str, set[str]]] = {}
    """Disputes that were recorded, by GPU and the later claim: the earlier ones."""

    def of(self, gpu: str, claim: str) -> Holding | None:
        """The claim, where it is in force."""
        return self.gpus.get(gpu, {}).get(claim)

    def disputed(self, gpu: str, claim: str, wanted: Holding) -> list[str]:
        """Other claims of a GPU that dispute what this one wants, unless that was recorded.

        Of many the first few: or else who tells claims by the thousand fills the log with pairs.
        """
        there, told = self.gpus.get(gpu, {}).items(), self.conflicts.get(gpu, {}).get(claim, ())
        others = (
            name
            for name, held in there
            if name != claim and name not in told and held.disputes(wanted)
        )
        return list(islice(others, max(0, MAX_CONFLICTS - len(told))))

    def part(self, gpus: Iterable[str]) -> Holdings:
        """A copy, of some GPUs only, to try on it what comes next."""
        asked = set(gpus)
        return Holdings(
            {gpu: dict(self.gpus[gpu]) for gpu in asked & self.gpus.keys()},
            {
                gpu: {claim: set(others) for claim, others in self.conflicts[gpu].items()}
                for gpu in asked & self.conflicts.keys()
            },
        )

    def add(self, record: Record) -> None:
        """Follow the log, record by record."""
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
