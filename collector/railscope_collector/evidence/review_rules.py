"""Evidence that is pending review: late claims and ends, devices allocated twice, unexpected GPUs, GPUs that move.

It is held and not billed (state `review`). `accept` lets it count as reported, `reject` removes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from itertools import pairwise
from typing import NamedTuple

from railscope.timestamps import DAY_NS, FOREVER_NS
from railscope_collector.evidence.node_intervals import Contacts, FirstContact
from railscope_collector.files.inventory_file import DeviceInventory
from railscope_collector.files.retirements_file import RetiredGpus
from railscope_collector.metering.timeline import TimePiece, append_piece

MAX_GPUS_AT_ONCE = 32
MAX_NEW_GPUS = 64
NEW_NS = 30 * DAY_NS
"""Expected GPUs of a node without an inventory: in total, and new ones within this time."""
BEFORE_CONTACT = "before the first report of the GPU by its node"
LATE_CLAIM = "claim reported late"
ALLOCATED_TWICE = "device allocated twice"
LATE_END = "end of a claim reported late"
UNLISTED = "node not in the inventory"
BEYOND_INVENTORY = "more GPUs than the inventory lists"
TOO_MANY = f"more than {MAX_GPUS_AT_ONCE} GPUs of one node"
TOO_MANY_NEW = f"more than {MAX_NEW_GPUS} new GPUs of one node in 30 days"
MOVED = "GPU of another node, which has not left it"
CONTESTED = "GPU that another node claims as well"
NOT_IN_SERVICE = frozenset({BEFORE_CONTACT, UNLISTED, BEYOND_INVENTORY, TOO_MANY, TOO_MANY_NEW})
"""Reasons for which a GPU is not in service: only its claims are metered, and R2 omits it."""

KEEPS_AUTHORITY = frozenset({"", LATE_END})
"""Reasons for which a part of a claim keeps its authority: a late end frees its time for no other claim."""


class ReviewKind(StrEnum):
    """Kind of evidence that a decision concerns."""

    CLAIM = "claim"
    END = "end"
    GPU = "gpu"


class ReviewSubject(NamedTuple):
    """Subject of a decision: a claim or its end by its id, or a GPU by its UUID; of one node."""

    kind: ReviewKind
    node: str
    name: str

    @property
    def id(self) -> str:
        """Return a short name for commands."""
        return sha256("\0".join(self).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class ReviewDecisions:
    """Decisions of people: true for accepted, false for rejected."""

    by_subject: Mapping[ReviewSubject, bool] = field(default_factory=dict)

    def find(self, kind: ReviewKind, node: str, name: str) -> bool | None:
        """Return the decision about a subject; None if there is none yet."""
        return self.by_subject.get(ReviewSubject(kind, node, name))


@dataclass(frozen=True, slots=True)
class ExpectedGpus:
    """Expected GPUs by administrators' files and decisions."""

    inventory: DeviceInventory = field(default_factory=DeviceInventory)
    """An inventory without rows counts as none."""
    retired: RetiredGpus = field(default_factory=RetiredGpus)
    decisions: ReviewDecisions = field(default_factory=ReviewDecisions)

    def excess(self, gpu: str, node: str, contacts: Contacts) -> list[TimePiece[str]]:
        """Return the periods in which a GPU of a node is pending review, with reasons.

        The GPUs of a node count in the order of their first report, then by PCI address. A retired
        or rejected GPU does not count.
        """
        gpus = contacts.get(node, {})
        # The usual case, without the order of all GPUs of the node.
        if not self.inventory.by_node and len(gpus) <= min(MAX_GPUS_AT_ONCE, MAX_NEW_GPUS):
            return []
        contact_of_gpu = gpus.get(gpu)
        if contact_of_gpu is None or self.decisions.find(ReviewKind.GPU, node, gpu) is not None:
            return []
        before = sorted(
            (contact, other)
            for other, contact in gpus.items()
            if (contact, other) < (contact_of_gpu, gpu)
            and self.decisions.find(ReviewKind.GPU, node, other) is not False
        )
        excess_pieces: list[TimePiece[str]] = []
        for start, end, expected, listed in self._spans(node):
            if reason := self._reason(
                (contact_of_gpu, before), expected, (start, node), listed=listed
            ):
                append_piece(excess_pieces, TimePiece(start, end, reason))
        return excess_pieces

    def _spans(self, node: str) -> Iterator[tuple[int, int, int | None, bool]]:
        """Yield all time, divided where the inventory of the node changes."""
        rows = self.inventory.by_node.get(node, ())
        edges = {-FOREVER_NS, FOREVER_NS, *(e for row in rows for e in (row.start_ns, row.end_ns))}
        cuts = sorted(edges)
        for start, end in pairwise(cuts):
            in_force = [row for row in rows if row.start_ns <= start < row.end_ns]
            listed = bool(in_force) or not self.inventory.by_node
            yield start, end, in_force[-1].gpus if in_force else None, listed

    def _reason(
        self,
        ranked: tuple[FirstContact, list[tuple[FirstContact, str]]],
        expected: int | None,
        place: tuple[int, str],
        *,
        listed: bool,
    ) -> str:
        """Return the reason for which a GPU that comes after others is under review; empty if it is not."""
        contact_of_gpu, before = ranked
        if not listed:
            return UNLISTED
        in_service = [
            earlier_gpu
            for _, earlier_gpu in before
            if not self.retired.find_retirement(
                earlier_gpu, max(contact_of_gpu.received_ns, place[0])
            )
        ]
        if expected is not None:
            return BEYOND_INVENTORY if len(in_service) >= expected else ""
        if len(in_service) >= MAX_GPUS_AT_ONCE:
            return TOO_MANY
        new = sum(
            contact.received_ns > contact_of_gpu.received_ns - NEW_NS for contact, _ in before
        )
        return TOO_MANY_NEW if new >= MAX_NEW_GPUS else ""


class ReviewedPart(NamedTuple):
    """Part of a claim, with the reason for its review; empty if it is not under review."""

    start_ns: int
    end_ns: int
    reason: str
    subject: ReviewSubject


def divide_claim(
    claim: ReviewSubject,
    span: tuple[int, int],
    contact_and_trust: tuple[int, int],
    freed_ns: int,
    reason: str = "",
) -> Iterator[ReviewedPart]:
    """Divide a claim where it begins to be trusted and where its late end frees it.

    `contact_and_trust` are the times of first contact and of the trusted report; from `freed_ns` on the
    claim continues only because its end was reported late, if the claim itself is trusted. `reason` is that of a
    review of the whole claim.
    """
    start, end = span
    contact_ns, trusted_ns = contact_and_trust
    waits = ReviewSubject(ReviewKind.END, claim.node, claim.name)
    cuts = (
        (start, min(contact_ns, freed_ns, end), BEFORE_CONTACT, claim),
        (max(start, contact_ns), min(trusted_ns, freed_ns, end), LATE_CLAIM, claim),
        (max(start, contact_ns, trusted_ns), min(freed_ns, end), reason, claim),
        (max(start, contact_ns, trusted_ns, freed_ns), end, LATE_END, waits),
    )
    yield from (ReviewedPart(*cut) for cut in cuts if cut[0] < cut[1])


def divide_at_reviews(
    parts: Iterable[ReviewedPart], excess: Iterable[TimePiece[str]], gpu: ReviewSubject
) -> Iterator[ReviewedPart]:
    """Yield the parts, divided at reviews of the whole GPU."""
    pieces = list(excess)
    for part in parts:
        now = part.start_ns
        for start, end, reason in pieces:
            low, high = max(now, start), min(part.end_ns, end)
            if low >= high:
                continue
            if now < low:
                yield part._replace(start_ns=now, end_ns=low)
            yield ReviewedPart(low, high, reason, gpu)
            now = high
        if now < part.end_ns:
            yield part._replace(start_ns=now)
