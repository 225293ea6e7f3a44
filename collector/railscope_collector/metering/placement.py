"""Placement of claims for a number of GPUs of a node that do not name the devices.

Each claim is assigned to assumed devices at each time. After the placed claims of a time, whole
GPUs take GPUs without a placed claim of the same or a higher authority: first those that another
provider names for the same workload, then free ones, of these first the one held just before on that
day (UTC). So the placement of a day depends on nothing before it.
Fractions take the remainders, split if needed. Precedence decides which claims fit; the order of the GPUs
determines positions. Claims that do not fit are excess. The time of each tenant is the same for every
placement that fits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from railscope.claim_terms import GPU_CAPACITY, ClaimAuthority
from railscope.timestamps import DAY_NS, FOREVER_NS
from railscope_collector.metering import evidence, holders


class UnplacedClaim(msgspec.Struct, frozen=True, order=True, gc=False):
    """A claim for `count` GPUs of a node, or for a share of each, without their devices."""

    authority: ClaimAuthority
    start_ns: int
    id: str
    tenant: str
    end_ns: int = FOREVER_NS
    workload: str = ""
    node: str = ""
    count: int = 1
    share: Fraction = Fraction(1)
    system: bool = False
    source: str = ""
    review: str = ""
    """Reason for its pending review; its authority is then REVIEW, except for a late end."""
    from_ns: int = -FOREVER_NS
    """Time from which it is in force, if that is later than its start, which decides its precedence."""
    reported_id: str = ""
    """The id of the claim that it is a part of, which decides its precedence; empty for `id`."""

    @property
    def begins_ns(self) -> int:
        """Start of the time in force."""
        return max(self.start_ns, self.from_ns)


class PlacementGpu(NamedTuple):
    """A GPU of a node: its time in the node, and its placed claims with their actual ends."""

    gpu: str
    stays: Sequence[tuple[int, int]]
    claims: Sequence[evidence.MeteredClaim]


class ClaimExcess(NamedTuple):
    """The part of a claim that does not fit into its node, in GPUs."""

    claim: str
    tenant: str
    start_ns: int
    end_ns: int
    amount: Fraction
    authority: ClaimAuthority = ClaimAuthority.SCHEDULER


class Placement(NamedTuple):
    """The placed claims of each GPU, and the excess."""

    claims: dict[str, list[evidence.MeteredClaim]]
    excess: list[ClaimExcess]


class _PlacedHolder(NamedTuple):
    """The properties of a placed claim that placement reads: claims that are equal in these are joined."""

    authority: ClaimAuthority
    workload: str
    """Workload in the form that job lists are compared by."""
    source: str
    size: Fraction
    """The part of the GPU that it requests."""


class _GrantedShare(NamedTuple):
    """The part of one GPU that a claim gets; a share of 1 is the whole GPU."""

    claim: UnplacedClaim
    share: Fraction
    assumed: bool


@dataclass(slots=True)
class _GpuOccupancy:
    """A GPU at a time: its holders, and its remainder for an authority."""

    gpu: str
    claims: list[_PlacedHolder]
    parts: list[_GrantedShare] = field(default_factory=list)
    before: frozenset[UnplacedClaim] = frozenset()
    """Counts in force that held it in the previous span."""

    def is_open(self, authority: ClaimAuthority) -> bool:
        """True if a claim of this authority for a whole GPU may take it."""
        return not self.parts and all(claim.authority < authority for claim in self.claims)

    def remainder(self, authority: ClaimAuthority) -> Fraction:
        """Return the remainder after claims of the same or a higher authority, and after previous counts."""
        placed = sum(
            (claim.size for claim in self.claims if claim.authority >= authority), Fraction(0)
        )
        return max(Fraction(1) - placed - sum(part.share for part in self.parts), Fraction(0))


def place_counts(gpus: Sequence[PlacementGpu], unplaced: Iterable[UnplacedClaim]) -> Placement:
    """Place the counts of a node on its GPUs, which are in the order in which positions are given.

    A GPU that a claim of another source already holds for the same workload, with the same or a
    higher authority, is one of the number. A count is one claim on all GPUs that it holds, with its own
    start and end. Claims under review take the remainder after all others, so a late report moves no
    other claim: neither by its holds nor by the times at which parts of it begin or end.
    """
    counts = list(unplaced)
    counting = [
        gpu._replace(
            claims=[claim for claim in gpu.claims if claim.authority > ClaimAuthority.REVIEW]
        )
        for gpu in gpus
    ]
    placed = _place_in_order(
        counting, [count for count in counts if count.authority > ClaimAuthority.REVIEW]
    )
    occupied_gpus = [
        gpu._replace(claims=[*gpu.claims, *map(_to_placed_claim, placed.claims.get(gpu.gpu, ()))])
        for gpu in gpus
    ]
    late = _place_in_order(
        occupied_gpus, [count for count in counts if count.authority is ClaimAuthority.REVIEW]
    )
    claims = {
        gpu: sorted([*placed.claims.get(gpu, ()), *late.claims.get(gpu, ())])
        for gpu in placed.claims.keys() | late.claims.keys()
    }
    return Placement(claims, sorted([*placed.excess, *late.excess]))


def _to_placed_claim(claim: evidence.MeteredClaim) -> evidence.MeteredClaim:
    """Return a placed count as a claim for the placement of those under review.

    It holds the GPU, and names it for no workload.
    """
    return replace(claim, start_ns=claim.begins_ns, end_ns=claim.ceases_ns, workload="")


def _place_in_order(gpus: Sequence[PlacementGpu], unplaced: Iterable[UnplacedClaim]) -> Placement:
    """Place counts; each time of a day continues the previous one, so that a claim stays where it is."""
    pieces = _join_parts(unplaced)
    counts = sorted(pieces, key=_precedence, reverse=True)
    runs: dict[tuple[str, _GrantedShare], list[tuple[int, int]]] = {}
    over: dict[tuple[UnplacedClaim, Fraction], list[tuple[int, int]]] = {}
    granted: dict[str, list[_GrantedShare]] = {}
    until_ns = -FOREVER_NS
    for start_ns, end_ns, present_gpus, in_force in _divide_time(gpus, counts):
        # At midnight nothing is continued, so that the placement of a day can be computed without the days before.
        if start_ns == until_ns and start_ns % DAY_NS:
            lasting = frozenset(in_force)
            for gpu_ in present_gpus:
                gpu_.before = lasting.intersection(part.claim for part in granted.get(gpu_.gpu, ()))
        excess = _fill(present_gpus, in_force)
        granted, until_ns = {gpu_.gpu: gpu_.parts for gpu_ in present_gpus}, end_ns
        for gpu_ in present_gpus:
            for part in gpu_.parts:
                _append_span(runs.setdefault((gpu_.gpu, part), []), start_ns, end_ns)
        for claim, amount in excess:
            _append_span(over.setdefault((claim, amount), []), start_ns, end_ns)
    claims: dict[str, list[evidence.MeteredClaim]] = {}
    for (gpu, part), spans in runs.items():
        for piece, within in _split_spans(spans, pieces[part.claim]):
            claims.setdefault(gpu, []).extend(_build_claims(part._replace(claim=piece), within))
    excess_claims = [
        ClaimExcess(piece.id, piece.tenant, start, end, amount, piece.authority)
        for (claim, amount), spans in over.items()
        for piece, within in _split_spans(spans, pieces[claim])
        for start, end in within
    ]
    return Placement(
        {gpu: sorted(gpu_claims) for gpu, gpu_claims in claims.items()}, sorted(excess_claims)
    )


def _join_parts(counts: Iterable[UnplacedClaim]) -> dict[UnplacedClaim, list[UnplacedClaim]]:
    """Return claims to place with their parts: a claim stays where consecutive parts follow each other."""
    joined_counts: dict[UnplacedClaim, list[UnplacedClaim]] = {}
    last: dict[UnplacedClaim, UnplacedClaim] = {}
    for count in sorted(set(counts), key=lambda part: (part.begins_ns, part.end_ns, part)):
        own_id = count.reported_id or count.id
        whole = replace(count, id=own_id, review="", from_ns=-FOREVER_NS, end_ns=FOREVER_NS)
        before = last.pop(whole, None)
        if before is not None and before.end_ns == count.begins_ns:
            joined, parts = (
                replace(before, end_ns=count.end_ns),
                [*joined_counts.pop(before), count],
            )
        else:
            joined, parts = replace(count, id=own_id), [count]
        joined_counts[joined], last[whole] = parts, joined
    return joined_counts


def _split_spans(
    spans: Iterable[tuple[int, int]], pieces: Iterable[UnplacedClaim]
) -> Iterator[tuple[UnplacedClaim, list[tuple[int, int]]]]:
    """Yield each piece of a claim with the spans in which it is in force."""
    all_spans = list(spans)
    for piece in pieces:
        cut = [(max(a, piece.begins_ns), min(b, piece.end_ns)) for a, b in all_spans]
        yield piece, [(start, end) for start, end in cut if start < end]


_HoldStart = tuple[int, "_PlacedHolder | UnplacedClaim | None"]
"""Subject of a start or end: a stay (None) or a placed claim of a GPU by its index, or a count (-1)."""


def _divide_time(
    gpus: Sequence[PlacementGpu], counts: Sequence[UnplacedClaim]
) -> Iterator[tuple[int, int, list[_GpuOccupancy], list[UnplacedClaim]]]:
    """Yield spans in which nothing changes and a count is in force: the GPUs present, and the counts.

    A span that contains a midnight is divided at the first one: further ones change nothing.
    Nothing changes if the subject that begins is equal to the one that ends, such as the next part
    of a claim.
    """
    edges: dict[int, Counter[_HoldStart]] = {}
    for item, start_ns, end_ns in _spans(gpus, counts):
        if start_ns < end_ns:
            edges.setdefault(start_ns, Counter())[item] += 1
            edges.setdefault(end_ns, Counter())[item] -= 1
    now: Counter[_HoldStart] = Counter()
    times = sorted(time_ns for time_ns, changes in edges.items() if any(changes.values()))
    midnights = {time_ns - time_ns % DAY_NS + DAY_NS for time_ns in times[:-1]}
    within = (midnight_ns for midnight_ns in midnights if midnight_ns < times[-1])
    for time_ns, until_ns in pairwise(sorted({*times, *within})):
        for begun, change in edges.get(time_ns, {}).items():
            now[begun] += change
            if not now[begun]:
                del now[begun]
        in_force = [count for count in counts if (-1, count) in now]
        if in_force:
            holders_by_gpu: dict[int, list[_PlacedHolder]] = {}
            for (place, holder), number in now.items():
                if isinstance(holder, _PlacedHolder):
                    holders_by_gpu.setdefault(place, []).extend([holder] * number)
            yield (
                time_ns,
                until_ns,
                [
                    _GpuOccupancy(gpu.gpu, holders_by_gpu.get(place, []))
                    for place, gpu in enumerate(gpus)
                    if (place, None) in now
                ],
                in_force,
            )


def _spans(
    gpus: Sequence[PlacementGpu], counts: Sequence[UnplacedClaim]
) -> Iterator[tuple[_HoldStart, int, int]]:
    """Yield all stays, placed claims and counts with their start and end."""
    for place, gpu in enumerate(gpus):
        yield from (((place, None), start_ns, end_ns) for start_ns, end_ns in gpu.stays)
        for claim in set(gpu.claims):
            holder = _PlacedHolder(
                claim.authority,
                evidence.job_id(claim.workload),
                claim.source,
                _requested_part(claim),
            )
            yield (place, holder), claim.start_ns, claim.end_ns
    yield from (((-1, count), count.begins_ns, count.end_ns) for count in counts)


def _fill(
    gpus: list[_GpuOccupancy], counts: Sequence[UnplacedClaim]
) -> list[tuple[UnplacedClaim, Fraction]]:
    """Assign parts of GPUs to counts, in descending precedence; return the excess."""
    excess: list[tuple[UnplacedClaim, Fraction]] = []
    for count in counts:
        if count.share == 1:
            missing = _take_whole(gpus, count)
            if missing:
                excess.append((count, Fraction(missing)))
    # Fractions after all whole GPUs: a small share must not make a GPU unusable for a whole one.
    for count in counts:
        if count.share != 1:
            left = _take_parts(gpus, count)
            if left:
                excess.append((count, left))
    return excess


def _take_whole(gpus: list[_GpuOccupancy], count: UnplacedClaim) -> int:
    """Assign whole GPUs; all GPUs of the node are certain. Return the number of missing GPUs."""
    missing_count = max(count.count - sum(_has_already(gpu, count) for gpu in gpus), 0)
    # The claim names no GPU but needs all of them: nothing was chosen.
    if count.count == len(gpus) and all(gpu.is_open(count.authority) for gpu in gpus):
        for gpu in gpus:
            gpu.parts.append(_GrantedShare(count, Fraction(1), assumed=False))
        return 0
    open_gpus = [gpu for gpu in gpus if gpu.is_open(count.authority)]
    open_gpus.sort(key=lambda gpu: _preference(gpu, count))
    for gpu in open_gpus[:missing_count]:
        gpu.parts.append(
            _GrantedShare(count, Fraction(1), assumed=not _is_reported_by_provider(gpu, count))
        )
    return max(missing_count - len(open_gpus), 0)


def _take_parts(gpus: list[_GpuOccupancy], count: UnplacedClaim) -> Fraction:
    """Assign fractions: one share of each GPU, then any remainder. Return the missing part."""
    need = max(count.count - sum(_has_already(gpu, count) for gpu in gpus), 0) * count.share
    taken: dict[str, Fraction] = {}
    preferred = sorted(gpus, key=lambda gpu: _preference(gpu, count))
    # A pod gets its share of one GPU where that fits. What is left over is divided, as no GPU has room for it.
    for max_part in (count.share, Fraction(1)):
        for gpu in preferred:
            before = taken.get(gpu.gpu, Fraction(0))
            part = min(need, gpu.remainder(count.authority) - before, max_part)
            if part > 0:
                taken[gpu.gpu] = before + part
                need -= part
    for gpu in gpus:
        if gpu.gpu in taken:
            gpu.parts.append(_GrantedShare(count, taken[gpu.gpu], assumed=True))
    return need


def _preference(gpu: _GpuOccupancy, count: UnplacedClaim) -> tuple[bool, bool, int]:
    """Sort key of the GPUs for a count, with the least change to the previous holders."""
    is_whole = count.share == 1
    # A GPU held by another count in force comes last: taking it would move that one.
    precedence = 0 if count in gpu.before else 2 if gpu.before and is_whole else 1
    return not _is_reported_by_provider(gpu, count), is_whole and bool(gpu.claims), precedence


def _is_reported_by_provider(gpu: _GpuOccupancy, count: UnplacedClaim) -> bool:
    """True if another provider reports this GPU for the workload."""
    return any(_is_same_workload(claim, count) for claim in gpu.claims)


def _has_already(gpu: _GpuOccupancy, count: UnplacedClaim) -> bool:
    """True if a prevailing claim of another source has the GPU for the workload.

    A source that names some GPUs of a workload counts only the others.
    """
    return any(
        claim.authority >= count.authority
        and claim.source != count.source
        and _is_same_workload(claim, count)
        and (count.share != 1 or claim.size == 1)
        for claim in gpu.claims
    )


def _is_same_workload(claim: _PlacedHolder, count: UnplacedClaim) -> bool:
    """True if both are for one job, as job lists are compared with the ledger."""
    return bool(count.workload) and claim.workload == evidence.job_id(count.workload)


def _requested_part(claim: evidence.MeteredClaim) -> Fraction:
    """Return the part of a GPU that a placed claim requests.

    A shared claim without a fraction counts as its whole device.
    """
    size = Fraction(claim.compute.high - claim.compute.low, GPU_CAPACITY)
    return size if claim.share is None else size * claim.share


def _build_claims(
    part: _GrantedShare, spans: Sequence[tuple[int, int]]
) -> Iterator[evidence.MeteredClaim]:
    count = part.claim
    for start_ns, end_ns in spans:
        yield evidence.MeteredClaim(
            authority=count.authority,
            start_ns=count.start_ns,
            # A suffix: the provider's own id may also name a GPU, and one id may not be two claims on it.
            id=f"{count.id}/count",
            tenant=count.tenant,
            end_ns=count.end_ns,
            workload=count.workload,
            node=count.node,
            exclusive=count.share == 1,
            system=count.system,
            source=count.source,
            review=count.review,
            share=None if count.share == 1 else part.share,
            assumed=part.assumed,
            counted=True,
            # Absent where it is the own start: equal claims must be equal facts, however the time was divided.
            from_ns=-FOREVER_NS if start_ns == count.start_ns else start_ns,
            until_ns=FOREVER_NS if end_ns == count.end_ns else end_ns,
        )


def _append_span(spans: list[tuple[int, int]], start_ns: int, end_ns: int) -> None:
    if spans and spans[-1][1] == start_ns:
        spans[-1] = (spans[-1][0], end_ns)
    else:
        spans.append((start_ns, end_ns))


def _precedence(claim: UnplacedClaim) -> tuple[Any, ...]:
    """Sort key: higher authority, later start, larger id (digit runs as numbers), larger source."""
    return (
        claim.authority,
        claim.start_ns,
        holders.natural_sort_key(claim.id),
        claim.id,
        claim.source,
    )
