"""Metering of the evidence of a GPU, day by day, in the form of ledger days."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from typing import NamedTuple, TypeAlias

from msgspec.structs import replace

from railscope.claim_terms import GPU_CAPACITY
from railscope.timestamps import DAY_NS, FOREVER_NS
from railscope_collector.ledger.day_tiling import DayTiling, HeldClaim, MeasuredShare, evidence_root
from railscope_collector.metering import (
    amount_shares,
    counter_increments,
    holders,
    slot_owners,
    timeline,
    units,
)
from railscope_collector.metering.evidence import ClockDoubt, Evidence, MeteredClaim
from railscope_collector.metering.overlaps import Overlap, find_overlaps, requested_size
from railscope_collector.metering.tiling import GpuTimeline


class MeteringComputation(NamedTuple):
    """Version of the metering engine, and time of the computation."""

    engine_version: str
    timestamp_ns: int


SkuHistory: TypeAlias = Sequence[tuple[int, str]]
"""Models of a GPU, each with the timestamp from which it was reported, in order."""


@dataclass(frozen=True, slots=True)
class MeteredGpu:
    """One GPU over all time: state that is computed once and shared by its days."""

    evidence: Evidence
    skus: SkuHistory
    _root: str
    _timeline: GpuTimeline
    _owners: slot_owners.SlotOwners
    _counted: Mapping[counter_increments.CountedQuantity, counter_increments.CounterIncrements]
    _claims: Mapping[str, HeldClaim]
    """Claims without their ends, by id."""
    _in_force: Sequence[timeline.TimePiece[MeteredClaim]]
    _overlaps: Sequence[Overlap]
    _doubts: Sequence[timeline.TimePiece[ClockDoubt]] = ()
    _open_claims: Collection[str] = ()

    @classmethod
    def compute(  # noqa: PLR0913, PLR0917 - all evidence of a GPU
        cls,
        evidence: Evidence,
        counted: Mapping[counter_increments.CountedQuantity, counter_increments.CounterIncrements],
        skus: SkuHistory = (),
        profiles: Mapping[str, str] | None = None,
        open_claims: Collection[str] = (),
        doubts: Sequence[timeline.TimePiece[ClockDoubt]] = (),
    ) -> MeteredGpu:
        """Compute the state from evidence and counters; `profiles` are the MIG profiles of claims.

        A claim has one end, its own: it is open while its GPU is away from its node, and may hold it again.
        `open_claims` have not ended: their end in the evidence is the latest time at which they were observed.
        `doubts` is the time of evidence that was received while the collector's clock was suspect.
        """
        in_force = holders.claims_in_force(evidence)
        claims: dict[str, HeldClaim] = {}
        for claim in evidence.claims:
            before = claims.get(claim.id)
            # The earliest report: the ledger has one start for each claim.
            start_ns = min(claim.start_ns, before.start_ns) if before else claim.start_ns
            profile = (profiles or {}).get(claim.id, "")
            claims[claim.id] = HeldClaim(
                claim.id,
                start_ns,
                profile,
                None,
                int(claim.authority),
                instance=_instance(claim) if profile else "",
            )
        return cls(
            evidence,
            skus,
            evidence_root(evidence),
            GpuTimeline.compute(evidence),
            slot_owners.find_owners(evidence),
            counted,
            claims,
            in_force,
            find_overlaps(evidence),
            doubts,
            open_claims,
        )

    def day(self, day: int, computed: MeteringComputation) -> DayTiling:
        """Return the result of one UTC day, counted from the epoch."""
        start_ns, end_ns = day * DAY_NS, (day + 1) * DAY_NS
        entries = tuple(self._timeline.entries(start_ns, end_ns))
        present = [
            (max(stay.start_ns, start_ns), min(stay.end_ns, end_ns))
            for stay in holders.resolve_stays(self.evidence)
            if stay.start_ns < end_ns and start_ns < stay.end_ns
        ]
        moved = tuple(
            sorted(overlap for span in present for overlap in _clip_overlaps(self._overlaps, *span))
        )
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
        return DayTiling(
            gpu=self.evidence.gpu,
            day=day,
            entries=entries,
            evidence_root=self._root,
            engine_version=computed.engine_version,
            computed_ns=computed.timestamp_ns,
            # A GPU whose model was first reported later has that model for earlier days as well.
            sku=next(chain(reversed(earlier), (sku for _, sku in self.skus)), ""),
            shares=tuple(
                MeasuredShare(measure, share)
                for measure, counted in sorted(self._counted.items())
                for share in amount_shares.attribute_shares(self._owners, counted, start_ns, end_ns)
            ),
            claims=tuple(
                replace(
                    self._claims[claim],
                    # An end after the day is not recorded: it may change, and the day would need another revision.
                    end_ns=ended_ns if ended_ns <= end_ns else None,
                    requested=requested.get(claim, ("", "")),
                )
                for claim in sorted(named & self._claims.keys())
                for ended_ns, _ in (ends.get(claim, (FOREVER_NS, 0)),)
            ),
            overlaps=moved,
            clock_suspect=tuple(
                sorted(
                    {
                        doubt
                        for first_ns, last_ns, doubt in self._doubts
                        if first_ns < end_ns and start_ns <= last_ns
                    }
                )
            ),
        )

    def _claim_ends(self) -> dict[str, tuple[int, int]]:
        """Return the end of each claim, `FOREVER_NS` if it is open, and the end of its time on this GPU."""
        ends: dict[str, tuple[int, int]] = {}
        for _, until_ns, claim in self._in_force:
            _, before_ns = ends.get(claim.id, (0, until_ns))
            end_ns = FOREVER_NS if claim.id in self._open_claims else claim.end_ns
            ends[claim.id] = end_ns, max(until_ns, before_ns)
        return ends


def _instance(claim: MeteredClaim) -> str:
    """Return the compute fraction of the claim's MIG instance; empty if its position is unknown."""
    # A shared claim on the whole GPU with a profile: its instance was not found.
    if claim.compute == units.WHOLE and not claim.exclusive and claim.share is None:
        return ""
    return str(Fraction(claim.compute.high - claim.compute.low) / GPU_CAPACITY)


def _clip_overlaps(overlaps: Iterable[Overlap], start_ns: int, end_ns: int) -> Iterator[Overlap]:
    """Yield the part of each overlap within a window."""
    for overlap in overlaps:
        start, end = max(overlap.start_ns, start_ns), min(overlap.end_ns, end_ns)
        if start < end:
            yield replace(overlap, start_ns=start, end_ns=end)


def _requested_amounts(
    claims: Iterable[timeline.TimePiece[MeteredClaim]], present: Sequence[tuple[int, int]]
) -> dict[str, tuple[str, str]]:
    """Return each claim's requested amount while the GPU was present, in GPU-ns by tiling, as text."""
    amounts: dict[str, list[Fraction | None]] = {}
    first_ns, last_ns = (present[0][0], present[-1][1]) if present else (0, 0)
    for start_ns, end_ns, claim in claims:
        # Most claims of a GPU are of other days: they are excluded before the sum over all stays.
        if end_ns <= first_ns or last_ns <= start_ns:
            continue
        length = sum(max(min(end_ns, end) - max(start_ns, start), 0) for start, end in present)
        if length <= 0:
            continue
        sums = amounts.setdefault(claim.id, [None, None])
        for column, tiling in enumerate(units.Tiling):
            size = requested_size(claim, claim.slots(tiling))
            if size is not None:
                sums[column] = (sums[column] or Fraction(0)) + Fraction(
                    size
                ) * length / GPU_CAPACITY
    texts = {
        name: ["" if value is None else str(value) for value in amounts[name]] for name in amounts
    }
    return {name: (compute, memory) for name, (compute, memory) in texts.items()}
