"""Claims reported by nodes, with their tenants, divided where a part of them is pending review."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from collector.evidence.claim_events import (
    MAX_LEVEL,
    WIRE_CAPACITY,
    Ended,
    Told,
    first_reports,
    is_gpu,
)
from collector.evidence.contacts import (
    TOLERANCE_NS,
    Contacts,
    NodeReceipts,
    floor_ns,
    node_floor_ns,
)
from collector.evidence.ends import Ends, Gap, freed_of, gaps_of
from collector.evidence.places import Presence
from collector.evidence.review import (
    KEEPS_RANK,
    LATE_END,
    Expectation,
    Part,
    Subject,
    What,
    overlaid,
    parts,
)
from collector.files.tenants_file import Tenants
from collector.metering.evidence import Claim, Level, Stay
from collector.metering.timeline import Piece, without
from collector.metering.units import FOREVER_NS, GPU_CAPACITY, Slots
from railscope.shares import parse_share

MAX_BEFORE_NS = 62 * 86_400_000_000_000
"""Maximum time that a claim under review holds before the first contact with its GPU."""


class Reported(NamedTuple):
    """The facts about one GPU that claims depend on."""

    gpu: str
    told: Sequence[Told]
    ended: Sequence[Ended]
    presences: Sequence[Presence]
    contacts: Contacts
    disputed: Mapping[str, Sequence[Piece[str]]] = {}
    """By node, when claims are under review because several nodes report the GPU."""


class ClaimPart(NamedTuple):
    """A part of a claim for metering; `subject` is what a person decides about, if it is under review."""

    claim: Claim
    subject: Subject
    contact_ns: int
    """Before it, the part is metered although the GPU is not in service."""


def node_claims(
    facts: Reported,
    ends: Ends,
    tenants: Tenants,
    expected: Expectation,
    reserved: Iterable[str] = (),
) -> list[ClaimPart]:
    """Return claims with their ends and tenants, divided at each change of the owner's tenant.

    Each part has a unique name, which is none of `reserved`: equal names are one claim with one
    end, and a node must not be able to end the claim of another node by its choice of an id.
    """
    gaps = gaps_of(facts.told, facts.presences)
    freed = freed_of(facts.told, facts.ended, facts.presences, ends)
    excess: dict[str, list[Piece[str]]] = {}
    names = Names(reserved)
    found: list[ClaimPart] = []
    firsts = sorted((one, key) for key, one in first_reports(facts.told).items())
    for one, key in firsts:
        if one.node not in excess:
            more = expected.excess(facts.gpu, one.node, facts.contacts)
            excess[one.node] = _with_disputed(more, facts.disputed.get(one.node, ()))
        end = (ends.get(key, FOREVER_NS), freed.get(key, FOREVER_NS))
        cut = _interrupted(_cut(facts, one, end, expected), one, gaps.get(key, ()), expected)
        waits = Subject(What.GPU, one.node, facts.gpu)
        pieces = _pieces(one, names, list(overlaid(cut, excess[one.node], waits)), tenants)
        contact_ns = _contact_ns(facts, one.node)
        found += (ClaimPart(claim, subject, contact_ns) for claim, subject in pieces)
    return found


def _with_disputed(
    excess: Sequence[Piece[str]], disputed: Iterable[Piece[str]]
) -> list[Piece[str]]:
    """Return the times of review for either reason, in order; `excess` prevails where both apply."""
    spans = [(start, end) for start, end, _ in excess]
    return sorted([*excess, *(left for one in disputed for left in without(one, spans))])


class Names:
    """Unique names of claims on one GPU."""

    def __init__(self, reserved: Iterable[str] = ()) -> None:
        self._taken = set(reserved)

    def free(self, name: str, node: str) -> str:
        """Return an unused name: `name`, with the node appended as often as necessary."""
        while name in self._taken:
            name = f"{name}@{node}"
        self._taken.add(name)
        return name


def _contact_ns(facts: Reported, node: str) -> int:
    if not is_gpu(facts.gpu):  # a claim without a device: that of the first GPU of the node
        return node_floor_ns(facts.contacts, node)
    heard = [p.heard_ns for p in facts.presences if p.node == node]
    return floor_ns(facts.contacts, facts.gpu, node, heard)


def _cut(facts: Reported, one: Told, end: tuple[int, int], expected: Expectation) -> Iterator[Part]:
    """Yield the parts of one claim that remain after people's decisions."""
    end_ns, freed_ns = end
    decided = expected.decisions.of(What.END, one.node, one.id)
    if decided is not None:
        end_ns, freed_ns = min(end_ns, freed_ns) if decided else end_ns, FOREVER_NS
    if one.level <= Level.PROCESS:
        freed_ns = FOREVER_NS  # it is never billed: no decision is needed, the horizon applies
    contact_ns = _contact_ns(facts, one.node)
    trusted_ns = max(one.start_ns, one.trusted_from_ns)
    subject = Subject(What.CLAIM, one.node, one.id)
    start_ns = max(one.start_ns, contact_ns - MAX_BEFORE_NS)
    for part in parts(subject, (start_ns, end_ns), (contact_ns, trusted_ns), freed_ns):
        verdict = expected.decisions.of(What.CLAIM, one.node, one.id)
        if not part.reason or part.subject != subject or verdict is None:
            yield part
        elif verdict:
            yield part._replace(reason="")


def _interrupted(
    found: Iterable[Part], one: Told, gaps: Iterable[Gap], expected: Expectation
) -> Iterator[Part]:
    """Yield the parts without the gaps; time that a boot reported late would free is under review too."""
    waits = Subject(What.END, one.node, one.id)
    is_billed = one.level > Level.PROCESS
    verdict = expected.decisions.of(*waits) if is_billed else False
    for gap in gaps:
        late = Piece(gap.first_ns, min(gap.believed_ns, gap.until_ns), LATE_END)
        if verdict is None and late.start_ns < late.end_ns:
            found = list(overlaid(found, [late], waits))
        start_ns = gap.first_ns if verdict else gap.believed_ns
        if start_ns < gap.until_ns:
            free = [(start_ns, gap.until_ns)]
            found = [
                part._replace(start_ns=start, end_ns=end)
                for part in found
                for start, end, _ in without(Piece(part.start_ns, part.end_ns, part), free)
            ]
    yield from found


def _pieces(
    one: Told, names: Names, cut: Sequence[Part], tenants: Tenants
) -> Iterator[tuple[Claim, Subject]]:
    """Yield the parts by tenant; consecutive parts without a review are joined."""
    joined: list[Part] = []
    for part in cut:
        if joined and not (joined[-1].reason or part.reason) and joined[-1].end_ns == part.start_ns:
            joined[-1] = joined[-1]._replace(end_ns=part.end_ns)
        else:
            joined.append(part)
    if not joined:
        return
    end_ns = joined[-1].end_ns
    own = [Piece(one.start_ns, end_ns, one.tenant)]
    owners = own if one.tenant else tenants.pieces(one.source, one.owner, one.start_ns, end_ns)
    name = names.free(one.id, one.node)
    for since, until, tenant in owners:
        base = name if since == one.start_ns else names.free(f"{name}#{since}", one.node)
        is_named = False
        for part in joined:
            start, end = max(since, part.start_ns), min(until, part.end_ns)
            if start >= end or (part.reason and one.level <= Level.PROCESS):
                continue
            is_first = not (part.reason or is_named)
            is_named |= is_first
            own_name = base if is_first else names.free(f"{base}#{start}", one.node)
            claim = _claim(one, own_name, tenant, part.reason)
            held = replace(claim, start_ns=since, end_ns=end)
            yield held if start == since else replace(held, from_ns=start), part.subject


def reported_id(name: str, known: Container[str]) -> str:
    """Return the id in `known` that a part of a claim was reported with; empty if there is none."""
    while name and name not in known:
        name = name[: max(name.rfind("#"), name.rfind("@"), 0)]
    return name


def _slots(slots: tuple[int, int]) -> Slots:
    """Convert slots of the wire format to the units of metering."""
    return Slots(*(edge * GPU_CAPACITY // WIRE_CAPACITY for edge in slots))


def _claim(one: Told, name: str, tenant: str, review: str) -> Claim:
    return Claim(
        level=Level.REVIEW if review not in KEEPS_RANK else min(one.level, MAX_LEVEL),
        start_ns=one.start_ns,
        id=name,
        tenant=tenant,
        workload=one.workload,
        node=one.node,
        compute=_slots(one.compute),
        memory=_slots(one.memory),
        exclusive=one.exclusive,
        system=one.system,
        source=one.source,
        share=parse_share(one.share) if one.share else None,
        review=review,
    )


def in_service(
    gpu: str,
    stays: Iterable[Stay],
    excess: Mapping[str, Sequence[Piece[str]]],
    expected: Expectation,
) -> tuple[Stay, ...]:
    """Return the stays of a GPU without the time that it was under review or rejected."""
    found: list[Stay] = []
    for stay in stays:
        if expected.decisions.of(What.GPU, stay.node, gpu) is False:
            continue
        waits = [(piece.start_ns, piece.end_ns) for piece in excess.get(stay.node, ())]
        for start, end, _ in without(Piece(stay.start_ns, stay.end_ns, stay), waits):
            found.append(Stay(start, stay.node, end))
    return tuple(found)


def extended(
    found: Iterable[ClaimPart], stays: Sequence[Stay], served: Sequence[Stay], home: str
) -> tuple[Stay, ...]:
    """Return the time outside of service that claims hold nevertheless: only claims are metered in it.

    It is the time before first contact with `home`, the node that reported the GPU first, and the
    time in which a GPU is under review in the node that it is in.
    """
    first_ns = min((stay.start_ns for stay in stays), default=FOREVER_NS)
    spans = [(stay.start_ns, stay.end_ns) for stay in served]
    extra: set[Stay] = set()
    for part in found:
        claim = part.claim
        if claim.level == Level.PROCESS:
            continue
        places = [(s.start_ns, s.end_ns) for s in stays if s.node == claim.node and claim.review]
        if claim.node == home:
            places.append((-FOREVER_NS, min(first_ns, part.contact_ns)))
        for start, end in places:
            low, high = max(start, claim.begins_ns), min(end, claim.end_ns)
            if low < high:
                left = without(Piece(low, high, claim.node), spans)
                extra.update(Stay(a, node, b) for a, b, node in left)
    return tuple(sorted(extra))


def cut_to(claim: Claim, served: Iterable[Stay]) -> Iterator[Claim]:
    """Yield an administrator's claim, limited to the time in service."""
    is_first = True
    for stay in sorted(served):
        start, end = max(claim.start_ns, stay.start_ns), min(claim.end_ns, stay.end_ns)
        if start < end:
            name = claim.id if is_first else f"{claim.id}#{start}"
            yield replace(claim, id=name, from_ns=start, end_ns=end)
            is_first = False


def early_claims(
    facts: Iterable[Told | Ended], receipts: Mapping[str, NodeReceipts]
) -> dict[tuple[str, str], int]:
    """Return the start of claims that began before first contact with their GPU, by GPU and node."""
    found: dict[tuple[str, str], int] = {}
    for one in facts:
        node = receipts.get(one.node)
        if node is None or not isinstance(one, Told) or one.level <= Level.PROCESS:
            continue
        for gpu in (one.gpu,) if is_gpu(one.gpu) else node.gpus:
            contact = node.gpus.get(gpu)
            contact_ns = contact.heard_ns - TOLERANCE_NS if contact else one.start_ns
            if one.start_ns < contact_ns:
                start_ns = max(one.start_ns, contact_ns - MAX_BEFORE_NS)
                found[gpu, one.node] = min(start_ns, found.get((gpu, one.node), start_ns))
    return found
