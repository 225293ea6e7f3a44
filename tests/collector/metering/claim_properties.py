"""Properties of metering: claims and their shares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from itertools import combinations

import model
import msgspec
from histories import LAST, MeteringCase, S
from properties import by_claim, divide
from support.gpu_evidence import Evidence, NodeStay

from railscope.claim_terms import GPU_CAPACITY, ClaimAuthority
from railscope.timestamps import FOREVER_NS
from railscope_collector.metering.evidence import MeteredClaim
from railscope_collector.metering.metered_day import DayPiece
from railscope_collector.metering.slot_state import SlotState
from railscope_collector.metering.units import WHOLE, CapacityRange


def claim_time(pieces: Iterable[DayPiece]) -> Counter:
    """Quantity that each claim holds."""
    total: Counter = Counter()
    for piece in pieces:
        for part in piece.parts:
            if part.claim and part.state is not SlotState.RESERVED:
                total[part.claim] += part.size * (piece.end_ns - piece.start_ns)
    return total


def with_claims(evidence: Evidence, *claims: MeteredClaim) -> Evidence:
    return msgspec.structs.replace(evidence, claims=(*evidence.claims, *claims))


def without_claim(evidence: Evidence, name: str) -> Evidence:
    left = tuple(claim for claim in evidence.claims if claim.id != name)
    return msgspec.structs.replace(evidence, claims=left)


def p19_a_claim_changes_no_holder_outside_its_span(case: MeteringCase) -> None:
    both = with_claims(case.evidence, case.extra)
    for one in {claim.id: claim for claim in model.ended(both)}.values():
        alone = without_claim(both, one.id)
        for start, end in ((case.start, one.start_ns), (one.end_ns, case.end)):
            window = max(start, case.start), min(end, case.end)
            if window[0] < window[1]:
                assert by_claim(divide(both, *window)) == by_claim(divide(alone, *window))


def p19_a_claim_frees_nothing_that_was_held(case: MeteringCase) -> None:
    """Shares of a GPU and of its instances alike; only devices that lie across one another do not exist."""
    both = with_claims(case.evidence, case.extra)
    devices = {claim.compute for claim in both.claims}
    if any(_lie_across(one, other) for one, other in combinations(devices, 2)):
        return
    before, after = (
        sum(claim_time(divide(evidence, case.start, case.end)).values())
        for evidence in (case.evidence, both)
    )
    assert before <= after


def _lie_across(one: CapacityRange, other: CapacityRange) -> bool:
    """True if two devices have slots in common and neither lies within the other."""
    within = (max(one.low, other.low), min(one.high, other.high)) in {one, other}
    return model.meet(one, other) and not within


def p21_only_the_order_of_ids_matters(case: MeteringCase) -> None:
    lowest_first: list[str] = []
    for name in {claim.id for claim in case.evidence.claims}:
        later = (at for at, o in enumerate(lowest_first) if model.id_before(name, o))
        lowest_first.insert(next(later, len(lowest_first)), name)
    renamed = {name: f"j{at + 8}" for at, name in enumerate(lowest_first)}
    back = {new: old for old, new in renamed.items()}
    claims = tuple(
        msgspec.structs.replace(claim, id=renamed[claim.id]) for claim in case.evidence.claims
    )
    releases = tuple(
        msgspec.structs.replace(release, claim=renamed.get(release.claim, release.claim))
        for release in case.evidence.releases
    )
    evidence = msgspec.structs.replace(case.evidence, claims=claims, releases=releases)
    found = Counter({
        (back.get(claim, claim), *rest): quantity
        for (*rest, claim), quantity in by_claim(divide(evidence, case.start, case.end)).items()
    })  # fmt: skip
    assert found == Counter({
        (claim, *rest): quantity
        for (*rest, claim), quantity in by_claim(divide(case.evidence, case.start, case.end)).items()
    })  # fmt: skip


def p22_shares_are_exact_in_any_order(case: MeteringCase) -> None:
    """Claims of one rank on a GPU, a part of which a claim of a higher rank may hold."""
    usual = {"authority": ClaimAuthority.SCHEDULER, "exclusive": False, "node": "",
             "compute": WHOLE, "end_ns": FOREVER_NS}  # fmt: skip
    first = {claim.id: claim for claim in case.evidence.claims}.values()
    members = [
        msgspec.structs.replace(claim, **usual, share=claim.share or Fraction(1, 1 + len(claim.id)))
        for claim in first
    ]
    above = msgspec.structs.replace(
        case.extra,
        authority=ClaimAuthority.ADMINISTRATOR,
        exclusive=True,
        share=None,
        start_ns=0,
        end_ns=FOREVER_NS,
        node="",
    )
    starts = [claim.start_ns for claim in members]
    case.random.shuffle(starts)
    mixed = [
        msgspec.structs.replace(claim, start_ns=start)
        for claim, start in zip(members, starts, strict=True)
    ]
    window = (LAST * S, (LAST + 1) * S)
    for higher in ((), (above,)):
        for claims in (members, mixed):
            evidence = Evidence("GPU-1", (NodeStay(0, "n1"),), (*claims, *higher))
            found = claim_time(divide(evidence, *window))
            left = GPU_CAPACITY - sum(c.compute.high - c.compute.low for c in higher)
            asked = sum((Fraction(GPU_CAPACITY) * (c.share or 0) for c in members), Fraction(0))
            scale = min(Fraction(1), Fraction(left) / asked) if asked else Fraction(1)
            for claim in members:
                size = GPU_CAPACITY * (claim.share or 0) * scale
                assert found[claim.id] == size * S


def p23_no_envelope_changes_what_an_administrator_gave(case: MeteringCase) -> None:
    level = min(case.extra.authority, ClaimAuthority.SCHEDULER)
    extra = msgspec.structs.replace(case.extra, authority=level)
    high = {
        claim.id
        for claim in case.evidence.claims
        if claim.authority is ClaimAuthority.ADMINISTRATOR
    }
    before, after = (
        claim_time(divide(evidence, case.start, case.end))
        for evidence in (case.evidence, with_claims(case.evidence, extra))
    )
    for key in before.keys() | after.keys():
        assert key not in high or before[key] == after[key]


PROPERTIES = [
    p19_a_claim_changes_no_holder_outside_its_span,
    p19_a_claim_frees_nothing_that_was_held,
    p21_only_the_order_of_ids_matters,
    p22_shares_are_exact_in_any_order,
    p23_no_envelope_changes_what_an_administrator_gave,
]
