"""Defective implementations of metering, each of which must violate a property."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

import claim_properties
import msgspec
import numpy as np
import properties
from histories import S
from properties import MeteringImplementation
from support.metered import tile

from railscope.claim_terms import GPU_CAPACITY, ClaimAuthority
from railscope.timestamps import FOREVER_NS
from railscope_collector.metering.amount_shares import AmountShare, attribute_shares
from railscope_collector.metering.counter_increments import (
    CounterIncrements,
    CounterReadings,
    compute_increments,
)
from railscope_collector.metering.evidence import Evidence, MeteredClaim, NodeEvidence
from railscope_collector.metering.holders import claims_in_force
from railscope_collector.metering.overlaps import Overlap, find_overlaps
from railscope_collector.metering.slot_owners import SlotOwners, find_owners
from railscope_collector.metering.tiling import SlotState, TilingEntry


def dropped_last_interval(evidence: Evidence, start: int, end: int) -> list[TilingEntry]:
    """Forget facts that are still open when the window ends."""
    return [entry for entry in tile(evidence, start, end) if entry.t1_ns < end]


def arrival_order(evidence: Evidence, start: int, end: int) -> list[TilingEntry]:
    """A claim that arrives ends all that arrived before, wherever it begins."""
    arrived: list[MeteredClaim] = []
    for claim in evidence.claims:
        arrived = [
            msgspec.structs.replace(before, end_ns=min(before.end_ns, claim.start_ns))
            if before.start_ns < claim.end_ns
            else before
            for before in arrived
        ]
        arrived.append(claim)
    return tile(msgspec.structs.replace(evidence, claims=tuple(arrived)), start, end)


def counted_twice(evidence: Evidence, start: int, end: int) -> list[TilingEntry]:
    """Every claim has its slots, even if others have them."""
    claims = {piece.value for piece in claims_in_force(evidence)}
    alone = [tile(msgspec.structs.replace(evidence, claims=()), start, end)]
    alone += [
        [
            entry
            for entry in tile(msgspec.structs.replace(evidence, claims=(claim,)), start, end)
            if entry.claim == claim.id
        ]
        for claim in claims
    ]
    free = [entry for entry in tile(evidence, start, end) if not entry.tenant]
    return [*free, *(entry for entries in alone[1:] for entry in entries)]


def silent_agent_loses_holder(evidence: Evidence, start: int, end: int) -> list[TilingEntry]:
    """Unobserved time has no holder."""
    lost = {"state": SlotState.UNKNOWN, "node_evidence": None, "gap_ns": 0}
    lost |= {"tenant": "", "workload": "", "claim": ""}
    return [
        msgspec.structs.replace(entry, **lost) if entry.state is SlotState.INFERRED else entry
        for entry in tile(evidence, start, end)
    ]


def clamped_reset(runs: Iterable[CounterReadings]) -> CounterIncrements:
    """A counter that fell has counted nothing."""
    right = compute_increments(runs)
    return msgspec.structs.replace(right, amounts=np.where(right.same, right.amounts, 0))


def negative_reset(runs: Iterable[CounterReadings]) -> CounterIncrements:
    """A counter that fell gives back what it counted."""
    right = compute_increments(runs)
    return msgspec.structs.replace(
        right, amounts=np.where(right.same, right.amounts, -right.amounts)
    )


def restart_attributed(runs: Iterable[CounterReadings]) -> CounterIncrements:
    """The holder of the GPU pays for the whole counter after a restart."""
    right = compute_increments(runs)
    return msgspec.structs.replace(right, same=np.ones_like(right.same))


def handover_guessed(evidence: Evidence) -> SlotOwners:
    """Use over a handover belongs to the earlier holder."""
    right = find_owners(evidence)
    return msgspec.structs.replace(right, ends_ns=np.full_like(right.ends_ns, FOREVER_NS))


def parts_rounded_one_by_one(
    owned: SlotOwners, counted: CounterIncrements, start: int, end: int
) -> list[AmountShare]:
    """Each part of a GPU has its share rounded for itself."""
    large = msgspec.structs.replace(counted, amounts=counted.amounts * GPU_CAPACITY)
    found = (
        msgspec.structs.replace(share, amount=share.amount // GPU_CAPACITY)
        for share in attribute_shares(owned, large, start, end)
    )
    return [share for share in found if share.amount]


def counted_before_it_was_read(runs: Iterable[CounterReadings]) -> CounterIncrements:
    """An increment counts in the window that its earlier reading lies in."""
    right = compute_increments(runs)
    return msgspec.structs.replace(right, ends_ns=right.starts_ns)


def stretched_grace(evidence: Evidence, start: int, end: int) -> list[TilingEntry]:
    """The last sample before a gap vouches for the time after it."""
    longer = tuple(
        msgspec.structs.replace(span, last_ns=span.last_ns + 30 * S)
        for span in evidence.sample_spans
    )
    return tile(msgspec.structs.replace(evidence, sample_spans=longer), start, end)


def bridged_boots(evidence: Evidence, start: int, end: int) -> list[TilingEntry]:
    """A restart between two samples goes unnoticed."""
    one = tuple(msgspec.structs.replace(span, boot="a") for span in evidence.sample_spans)
    return tile(msgspec.structs.replace(evidence, sample_spans=one), start, end)


def ignored_release(evidence: Evidence, start: int, end: int) -> list[TilingEntry]:
    """A claim lasts as long as was planned."""
    return tile(msgspec.structs.replace(evidence, releases=()), start, end)


def clipped_samples(evidence: Evidence, start: int, end: int) -> list[TilingEntry]:
    """Samples outside the window are ignored."""
    inside = tuple(s for s in evidence.sample_spans if start <= s.first_ns < end)
    return tile(msgspec.structs.replace(evidence, sample_spans=inside), start, end)


def ignored_level(evidence: Evidence, start: int, end: int) -> list[TilingEntry]:
    """The latest claim holds, whatever its authority."""
    highest = max((claim.authority for claim in evidence.claims), default=None)
    review = "late" if highest is ClaimAuthority.REVIEW else ""
    same = tuple(
        msgspec.structs.replace(claim, authority=highest, review=review)
        for claim in evidence.claims
    )
    return tile(msgspec.structs.replace(evidence, claims=same), start, end)


def whole_gpu_memory(evidence: Evidence, start: int, end: int) -> list[TilingEntry]:
    """Memory is assigned like compute."""
    alike = tuple(msgspec.structs.replace(c, memory=c.compute) for c in evidence.claims)
    return tile(msgspec.structs.replace(evidence, claims=alike), start, end)


def billed_maintenance(evidence: Evidence, start: int, end: int) -> list[TilingEntry]:
    """The holder of a GPU pays for its outages."""
    inferred = {"state": SlotState.INFERRED, "node_evidence": NodeEvidence.NONE, "gap_ns": 1}
    outage = {SlotState.MAINTENANCE, SlotState.DOWN}
    return [
        msgspec.structs.replace(entry, **inferred)
        if entry.state in outage and entry.tenant
        else entry
        for entry in tile(evidence, start, end)
    ]


def no_overlaps(_: Evidence) -> list[Overlap]:
    """Time that a claim requested and did not hold is not recorded."""
    return []


def changed(evidence: Evidence, *claims: MeteredClaim) -> Evidence:
    return msgspec.structs.replace(evidence, claims=claims)


def later_ends_earlier(evidence: Evidence, start: int, end: int) -> list[TilingEntry]:
    """A claim that begins ends the earlier ones of its rank on its slots."""
    claims = evidence.claims
    return tile(
        changed(
            evidence,
            *(
                msgspec.structs.replace(
                    claim,
                    end_ns=min(
                        [claim.end_ns]
                        + [
                            other.start_ns
                            for other in claims
                            if other.authority == claim.authority
                            and other.start_ns > claim.start_ns
                            if other.compute == claim.compute
                        ]
                    ),
                )
                for claim in claims
            ),
        ),
        start,
        end,
    )


def ids_as_text(evidence: Evidence, start: int, end: int) -> list[TilingEntry]:
    """Of two claims that begin together, the id that is later as text holds: 9 is after 10."""
    names = sorted({claim.id for claim in evidence.claims})
    place = {name: f"{at:03}" for at, name in enumerate(names)}
    claims = (msgspec.structs.replace(claim, id=place[claim.id]) for claim in evidence.claims)
    releases = tuple(
        msgspec.structs.replace(release, claim=place.get(release.claim, "none"))
        for release in evidence.releases
    )
    renamed = msgspec.structs.replace(changed(evidence, *claims), releases=releases)
    return [
        msgspec.structs.replace(entry, claim=names[int(entry.claim)])
        if entry.claim.isdigit()
        else entry
        for entry in tile(renamed, start, end)
    ]


def ids_as_text_in_overlaps(evidence: Evidence) -> list[Overlap]:
    """The same order of ids where overlaps are found."""
    names = sorted({claim.id for claim in evidence.claims})
    place = {name: f"{at:03}" for at, name in enumerate(names)}
    claims = (msgspec.structs.replace(claim, id=place[claim.id]) for claim in evidence.claims)
    return [
        msgspec.structs.replace(
            overlap, claim=names[int(overlap.claim)], other=names[int(overlap.other)]
        )
        for overlap in find_overlaps(changed(evidence, *claims))
    ]


def start_of_the_stay(evidence: Evidence, start: int, end: int) -> list[TilingEntry]:
    """A claim on a node begins when the GPU comes, also for its precedence."""
    claims = (
        msgspec.structs.replace(piece.value, start_ns=piece.start_ns, end_ns=piece.end_ns)
        for piece in claims_in_force(evidence)
    )
    return tile(msgspec.structs.replace(changed(evidence, *claims), releases=()), start, end)


def last_share_takes_the_gpu(evidence: Evidence, start: int, end: int) -> list[TilingEntry]:
    """The last of the claims that share a GPU has all that is left of it."""
    last = max(claim.start_ns for claim in evidence.claims) if evidence.claims else 0
    claims = (
        msgspec.structs.replace(claim, share=None) if claim.start_ns == last else claim
        for claim in evidence.claims
    )
    return tile(changed(evidence, *claims), start, end)


def share_of_each_floored(evidence: Evidence, start: int, end: int) -> list[TilingEntry]:
    """A share is so many whole units of the GPU."""
    claims = (
        claim
        if claim.share is None
        else msgspec.structs.replace(claim, share=Fraction(max(1, int(claim.share * 840)), 840))
        for claim in evidence.claims
    )
    return tile(changed(evidence, *claims), start, end)


def shares_one_after_another(evidence: Evidence, start: int, end: int) -> list[TilingEntry]:
    """Shares that exceed the GPU are served in order: the last has nothing, and no one a part."""
    left: dict[str, Fraction] = {}
    claims = []
    for claim in sorted(evidence.claims, key=lambda claim: claim.start_ns, reverse=True):
        share = claim.share
        if share is not None:
            share = min(share, 1 - sum(left.values(), Fraction(0)))
            left[claim.id] = share
        if share is None or share > 0:
            claims.append(msgspec.structs.replace(claim, share=share))
    return tile(changed(evidence, *claims), start, end)


def ignored_review(evidence: Evidence, start: int, end: int) -> list[TilingEntry]:
    """Claims under review count like those that a scheduler reports."""
    claims = (
        msgspec.structs.replace(claim, authority=ClaimAuthority.SCHEDULER, review="")
        if claim.review
        else claim
        for claim in evidence.claims
    )
    return tile(changed(evidence, *claims), start, end)


def review_attributed(evidence: Evidence) -> SlotOwners:
    """Use under review belongs to the claim."""
    claims = (
        msgspec.structs.replace(claim, authority=ClaimAuthority.PROCESS, review="")
        if claim.review
        else claim
        for claim in evidence.claims
    )
    return find_owners(changed(evidence, *claims))


MUTANTS = {
    "usage under review attributed": (
        MeteringImplementation(owners=review_attributed),
        properties.p12_amounts_add_up_to_the_counter,
    ),
    "overlap without a record": (
        MeteringImplementation(overlaps=no_overlaps),
        claim_properties.p20_requested_is_held_and_moved,
    ),
    "later start ends the earlier claim": (
        MeteringImplementation(tile=later_ends_earlier),
        claim_properties.p19_a_claim_changes_no_holder_outside_its_span,
    ),
    "ids as text": (
        MeteringImplementation(tile=ids_as_text),
        claim_properties.p21_only_the_order_of_ids_matters,
    ),
    "ids as text in overlaps": (
        MeteringImplementation(overlaps=ids_as_text_in_overlaps),
        claim_properties.p21_only_the_order_of_ids_matters,
    ),
    "start of the stay": (
        MeteringImplementation(tile=start_of_the_stay),
        properties.p13_handover_has_one_holder_at_every_instant,
    ),
    "last share takes the GPU": (
        MeteringImplementation(tile=last_share_takes_the_gpu),
        claim_properties.p22_shares_are_exact_in_any_order,
    ),
    "share of each floored": (
        MeteringImplementation(tile=share_of_each_floored),
        claim_properties.p22_shares_are_exact_in_any_order,
    ),
    "shares one after another": (
        MeteringImplementation(tile=shares_one_after_another),
        claim_properties.p22_shares_are_exact_in_any_order,
    ),
    "administrator overridden": (
        MeteringImplementation(tile=ignored_level),
        claim_properties.p23_no_envelope_changes_what_an_administrator_gave,
    ),
    "review ignored": (
        MeteringImplementation(tile=ignored_review),
        claim_properties.p24_a_claim_under_review_moves_no_other_claims_time,
    ),
    "slot counted twice, requested": (
        MeteringImplementation(tile=counted_twice),
        claim_properties.p20_requested_is_held_and_moved,
    ),
    "dropped last interval": (
        MeteringImplementation(tile=dropped_last_interval),
        properties.p1_quantities_add_up_to_capacity,
    ),
    "arrival-order processing": (
        MeteringImplementation(tile=arrival_order),
        properties.p2_order_and_repetition_change_nothing,
    ),
    "slot counted twice": (
        MeteringImplementation(tile=counted_twice),
        properties.p7_slots_have_one_tenant,
    ),
    "silent agent loses holder": (
        MeteringImplementation(tile=silent_agent_loses_holder),
        properties.p5_samples_never_move_time_between_tenants,
    ),
    "clamped energy reset": (
        MeteringImplementation(increments=clamped_reset),
        properties.p12_amounts_add_up_to_the_counter,
    ),
    "energy: expected 0 or more": (
        MeteringImplementation(increments=negative_reset),
        properties.p12_amounts_add_up_to_the_counter,
    ),
    "restart attributed": (
        MeteringImplementation(increments=restart_attributed),
        properties.p12_amounts_add_up_to_the_counter,
    ),
    "handover guessed": (
        MeteringImplementation(owners=handover_guessed),
        properties.p12_amounts_add_up_to_the_counter,
    ),
    "parts rounded one by one": (
        MeteringImplementation(divide=parts_rounded_one_by_one),
        properties.p12_amounts_add_up_to_the_counter,
    ),
    "counted before it was read": (
        MeteringImplementation(increments=counted_before_it_was_read),
        properties.p12_amounts_add_up_to_the_counter,
    ),
    "grace stretched over a gap": (
        MeteringImplementation(tile=stretched_grace),
        properties.p6_nothing_is_seen_within_a_gap,
    ),
    "restart bridged": (
        MeteringImplementation(tile=bridged_boots),
        properties.p6_nothing_is_seen_within_a_gap,
    ),
    "ignored release": (
        MeteringImplementation(tile=ignored_release),
        properties.p3_pointwise_oracle,
    ),
    "samples clipped to the window": (
        MeteringImplementation(tile=clipped_samples),
        properties.p4_windows_add_up,
    ),
    "level ignored": (MeteringImplementation(tile=ignored_level), properties.p3_pointwise_oracle),
    "memory tiled like compute": (
        MeteringImplementation(tile=whole_gpu_memory),
        properties.p13_handover_has_one_holder_at_every_instant,
    ),
    "maintenance billed": (
        MeteringImplementation(tile=billed_maintenance),
        properties.p3_pointwise_oracle,
    ),
}
"""Every mutant, with a property that must find it."""
