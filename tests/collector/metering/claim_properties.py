"""Properties of metering: claims and their shares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from itertools import combinations

import model
import msgspec
from histories import LAST, MeteringCase, S
from properties import by_claim
from support.metered import tile

from railscope.claim_terms import GPU_CAPACITY, ClaimAuthority
from railscope.timestamps import FOREVER_NS
from railscope_collector.metering.evidence import Evidence, MeteredClaim, NodeStay
from railscope_collector.metering.tiling import SlotState, TilingEntry
from railscope_collector.metering.units import WHOLE, CapacityRange, Tiling


def claim_time(entries: Iterable[TilingEntry]) -> Counter:
    """Holds of each claim, by tiling."""
    total: Counter = Counter()
    for entry in entries:
        if entry.claim and entry.state is not SlotState.RESERVED:
            total[entry.claim, entry.tiling] += entry.quantity
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
                assert by_claim(tile(both, *window)) == by_claim(tile(alone, *window))


def p19_a_claim_frees_nothing_that_was_held(case: MeteringCase) -> None:
    """Shares of a GPU and of its instances alike; only devices that lie across one another do not exist."""
    both = with_claims(case.evidence, case.extra)
    shared = [claim for claim in both.claims if not claim.exclusive]
    for one, other in combinations(shared, 2):
        if any(_lie_across(one.slots(t), other.slots(t)) for t in Tiling):
            return
    before = tile(case.evidence, case.start, case.end)
    after = tile(both, case.start, case.end)
    for entry in before:
        if not entry.claim or entry.state is SlotState.RESERVED:
            continue
        still = [
            other
            for other in after
            if other.tiling is entry.tiling
            and other.claim
            and other.state is not SlotState.RESERVED
        ]
        kept = sum(
            max(0, min(o.t1_ns, entry.t1_ns) - max(o.t0_ns, entry.t0_ns))
            * max(0, min(o.slot_hi, entry.slot_hi) - max(o.slot_lo, entry.slot_lo))
            for o in still
        )
        assert kept == entry.quantity


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
    found = [
        msgspec.structs.replace(entry, claim=back.get(entry.claim, entry.claim))
        for entry in tile(evidence, case.start, case.end)
    ]
    assert found == tile(case.evidence, case.start, case.end)


def p22_shares_are_exact_in_any_order(case: MeteringCase) -> None:
    """Claims of one rank on a GPU, a part of which a claim of a higher rank may hold."""
    usual = {"authority": ClaimAuthority.SCHEDULER, "review": "", "exclusive": False, "node": "",
             "compute": WHOLE, "memory": WHOLE, "end_ns": FOREVER_NS}  # fmt: skip
    first = {claim.id: claim for claim in case.evidence.claims}.values()
    members = [
        msgspec.structs.replace(claim, **usual, share=claim.share or Fraction(1, 1 + len(claim.id)))
        for claim in first
    ]
    above = msgspec.structs.replace(
        case.extra,
        authority=ClaimAuthority.ADMINISTRATOR,
        review="",
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
            found = claim_time(tile(evidence, *window))
            for each in Tiling:
                left = GPU_CAPACITY - sum(c.slots(each).high - c.slots(each).low for c in higher)
                asked = sum((Fraction(GPU_CAPACITY) * (c.share or 0) for c in members), Fraction(0))
                scale = min(Fraction(1), Fraction(left) / asked) if asked else Fraction(1)
                for claim in members:
                    size = GPU_CAPACITY * (claim.share or 0) * scale
                    assert found[claim.id, each] == size * S


def p23_no_envelope_changes_what_an_administrator_gave(case: MeteringCase) -> None:
    level = min(case.extra.authority, ClaimAuthority.SCHEDULER)
    extra = msgspec.structs.replace(case.extra, authority=level)
    high = {
        claim.id
        for claim in case.evidence.claims
        if claim.authority is ClaimAuthority.ADMINISTRATOR
    }
    before, after = (
        claim_time(tile(evidence, case.start, case.end))
        for evidence in (case.evidence, with_claims(case.evidence, extra))
    )
    for key in before.keys() | after.keys():
        assert key[0] not in high or before[key] == after[key]


def p24_a_claim_under_review_moves_no_other_claims_time(case: MeteringCase) -> None:
    extra = msgspec.structs.replace(case.extra, authority=ClaimAuthority.REVIEW, review="late")
    waiting = {
        claim.id for claim in case.evidence.claims if claim.authority is ClaimAuthority.REVIEW
    }
    entries = tile(with_claims(case.evidence, extra), case.start, case.end)
    before = claim_time(tile(case.evidence, case.start, case.end))
    after = claim_time(entries)
    for key in before.keys() | after.keys():
        assert key[0] in {*waiting, "extra"} or before[key] == after[key]
    outage = {SlotState.DOWN, SlotState.MAINTENANCE}
    assert {e.state for e in entries if e.claim == "extra"} <= {SlotState.REVIEW, *outage}


PROPERTIES = [
    p19_a_claim_changes_no_holder_outside_its_span,
    p19_a_claim_frees_nothing_that_was_held,
    p21_only_the_order_of_ids_matters,
    p22_shares_are_exact_in_any_order,
    p23_no_envelope_changes_what_an_administrator_gave,
    p24_a_claim_under_review_moves_no_other_claims_time,
]
