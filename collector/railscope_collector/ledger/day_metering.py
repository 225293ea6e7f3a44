"""Metering of the evidence of a GPU, day by day, in the form of ledger days."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from typing import TypeAlias

from msgspec.structs import replace

from railscope.timestamps import DAY_NS, FOREVER_NS
from railscope_collector.ledger.row_days import join_amounts, join_parts
from railscope_collector.metering import (
    counter_increments,
    holders,
    slot_owners,
    timeline,
    units,
)
from railscope_collector.metering.amount_shares import AmountAttribution, attribute_shares
from railscope_collector.metering.evidence import Evidence, MeteredClaim, NodeEvidence
from railscope_collector.metering.metered_day import (
    CountedAmount,
    DayClaim,
    DayPart,
    DayPiece,
    MeteredDay,
)
from railscope_collector.metering.tiling import GpuTimeline, TilingEntry

SkuHistory: TypeAlias = Sequence[tuple[int, str]]
"""Models of a GPU, each with the timestamp from which it was reported, in order."""


@dataclass(frozen=True, slots=True)
class MeteredGpu:
    """One GPU over all time: state that is computed once and shared by its days."""

    evidence: Evidence
    skus: SkuHistory
    source: str
    _timeline: GpuTimeline
    _owners: slot_owners.SlotOwners
    _counted: Mapping[counter_increments.CountedQuantity, counter_increments.CounterIncrements]
    _claims: Mapping[str, DayClaim]
    """Claims without their ends, by id."""
    _in_force: Sequence[timeline.TimePiece[MeteredClaim]]
    _open_claims: Collection[str] = ()

    @classmethod
    def compute(  # noqa: PLR0913, PLR0917 - all evidence of a GPU
        cls,
        evidence: Evidence,
        counted: Mapping[counter_increments.CountedQuantity, counter_increments.CounterIncrements],
        skus: SkuHistory = (),
        profiles: Mapping[str, str] | None = None,
        open_claims: Collection[str] = (),
        source: str = "",
    ) -> MeteredGpu:
        """Compute the state from evidence and counters; `profiles` are the MIG profiles of claims.

        A claim has one end, its own: it is open while its GPU is away from its node, and may hold it again.
        `open_claims` have not ended: their end in the evidence is the latest time at which they were observed.
        `source` is that of the days.
        """
        claims: dict[str, DayClaim] = {}
        for claim in evidence.claims:
            before = claims.get(claim.id)
            # The earliest report: the ledger has one start for each claim.
            start_ns = min(claim.start_ns, before.start_ns) if before else claim.start_ns
            profile = (profiles or {}).get(claim.id, "")
            instance = _instance(claim) if profile else 0
            claims[claim.id] = DayClaim(
                claim.id, start_ns, None, profile, instance, counted=claim.counted
            )
        return cls(
            evidence,
            skus,
            source,
            GpuTimeline.compute(evidence, (units.Tiling.COMPUTE,)),
            slot_owners.find_owners(evidence),
            counted,
            claims,
            holders.claims_in_force(evidence),
            open_claims,
        )

    def day(self, day: int) -> MeteredDay:
        """Return the result of one UTC day, counted from the epoch."""
        start_ns, end_ns = day * DAY_NS, (day + 1) * DAY_NS
        entries = self._timeline.entries(start_ns, end_ns)
        present = [
            (max(stay.start_ns, start_ns), min(stay.end_ns, end_ns))
            for stay in holders.resolve_stays(self.evidence)
            if stay.start_ns < end_ns and start_ns < stay.end_ns
        ]
        requested = _requested_amounts(self._in_force, present)
        named = {entry.claim for entry in entries} | requested.keys()
        # A claim for a number of GPUs may end on a day on which it holds none of this GPU: its end is recorded all the
        # same.
        counted = (claim for claim in self.evidence.claims if claim.counted)
        named |= {claim.id for claim in counted if start_ns < claim.end_ns <= end_ns}
        ends = self._claim_ends()
        # Likewise a claim that ends while its GPU is in another node.
        named |= {
            claim
            for claim, (ended_ns, until_ns) in ends.items()
            if start_ns < ended_ns <= end_ns and until_ns < ended_ns
        }
        earlier = [sku for since_ns, sku in self.skus if since_ns < end_ns]
        return MeteredDay(
            gpu=self.evidence.gpu,
            day=day,
            # A GPU whose model was first reported later has that model for earlier days as well.
            sku=next(chain(reversed(earlier), (sku for _, sku in self.skus)), ""),
            pieces=join_entries(entries),
            amounts=tuple(
                join_amounts(
                    CountedAmount(
                        measure,
                        share.amount,
                        share.tenant,
                        share.claim,
                        "" if share.use is AmountAttribution.ATTRIBUTED else share.use.value,
                        share.t0_ns,
                        share.t1_ns,
                    )
                    for measure, counted in self._counted.items()
                    for share in attribute_shares(self._owners, counted, start_ns, end_ns)
                )
            ),
            claims=tuple(
                replace(
                    self._claims[claim],
                    # An end after the day is not recorded: it may change, and the day would need another revision.
                    end_ns=ended_ns if ended_ns <= end_ns else None,
                    requested=requested.get(claim, 0),
                )
                for claim in sorted(named & self._claims.keys())
                for ended_ns, _ in (ends.get(claim, (FOREVER_NS, 0)),)
            ),
            source=self.source,
        )

    def _claim_ends(self) -> dict[str, tuple[int, int]]:
        """Return the end of each claim, `FOREVER_NS` if it is open, and the end of its time on this GPU."""
        ends: dict[str, tuple[int, int]] = {}
        for _, until_ns, claim in self._in_force:
            _, before_ns = ends.get(claim.id, (0, until_ns))
            end_ns = FOREVER_NS if claim.id in self._open_claims else claim.end_ns
            ends[claim.id] = end_ns, max(until_ns, before_ns)
        return ends


def join_entries(entries: Iterable[TilingEntry]) -> tuple[DayPiece, ...]:
    """Return the pieces of the entries of one GPU."""
    return join_parts(
        (
            entry.t0_ns,
            entry.t1_ns,
            entry.node,
            DayPart(
                units.exact(entry.slot_hi - entry.slot_lo),
                entry.state,
                entry.tenant,
                entry.workload,
                entry.claim,
                entry.gap_ns,
                entry.node_evidence or NodeEvidence.NONE,
                entry.reason,
            ),
        )
        for entry in entries
        if entry.tiling is units.Tiling.COMPUTE
    )


def _instance(claim: MeteredClaim) -> units.Units:
    """Return the compute size of the claim's MIG instance; 0 if its position is unknown."""
    # A shared claim on the whole GPU with a profile: its instance was not found.
    if claim.compute == units.WHOLE and not claim.exclusive and claim.share is None:
        return 0
    return units.exact(claim.compute.high - claim.compute.low)


def _requested_amounts(
    claims: Iterable[timeline.TimePiece[MeteredClaim]], present: Sequence[tuple[int, int]]
) -> dict[str, units.Units]:
    """Return each claim's requested size times time while the GPU was present."""
    amounts: dict[str, units.Units] = {}
    first_ns, last_ns = (present[0][0], present[-1][1]) if present else (0, 0)
    for start_ns, end_ns, claim in claims:
        # Most claims of a GPU are of other days: they are excluded before the sum over all stays.
        if end_ns <= first_ns or last_ns <= start_ns:
            continue
        length = sum(max(min(end_ns, end) - max(start_ns, start), 0) for start, end in present)
        if length <= 0:
            continue
        size = Fraction(claim.compute.high - claim.compute.low)
        share = 1 if claim.exclusive else claim.share or 0
        amounts[claim.id] = units.exact(amounts.get(claim.id, 0) + size * share * length)
    return amounts
