"""What metering makes of the evidence of a GPU, day by day, as it is written to the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from collector.ledger.tiling import DAY_NS, DayTiling, HeldClaim, MeasuredShare, evidence_root
from collector.metering.evidence import Evidence
from collector.metering.measures import Increments, Measure, Owners, owners, shares
from collector.metering.tiling import GpuTimeline


class Computed(NamedTuple):
    """By which version of metering, and when."""

    engine_version: str
    instant_ns: int


@dataclass(frozen=True, slots=True)
class MeteredGpu:
    """One GPU over all time: what is known of it, worked out once; its days are cheap."""

    evidence: Evidence
    sku: str
    _root: str
    _timeline: GpuTimeline
    _owners: list[Owners]
    _counted: Mapping[Measure, Increments]
    _claims: Mapping[str, HeldClaim]

    @classmethod
    def of(
        cls,
        evidence: Evidence,
        counted: Mapping[Measure, Increments],
        sku: str = "",
        profiles: Mapping[str, str] | None = None,
    ) -> MeteredGpu:
        """What evidence and counters say of a GPU; `profiles` are the MIG profiles of claims."""
        began: dict[str, int] = {}
        for claim in evidence.claims:
            began[claim.id] = min(claim.start_ns, began.get(claim.id, claim.start_ns))
        known = {
            claim: HeldClaim(claim, start_ns, (profiles or {}).get(claim, ""))
            for claim, start_ns in began.items()
        }
        timeline, root = GpuTimeline.of(evidence), evidence_root(evidence)
        return cls(evidence, sku, root, timeline, owners(evidence), counted, known)

    def day(self, day: int, computed: Computed) -> DayTiling:
        """One UTC day of it, counted from the epoch."""
        start_ns, end_ns = day * DAY_NS, (day + 1) * DAY_NS
        entries = tuple(self._timeline.entries(start_ns, end_ns))
        held = {entry.claim for entry in entries}
        return DayTiling(
            gpu=self.evidence.gpu,
            day=day,
            entries=entries,
            evidence_root=self._root,
            engine_version=computed.engine_version,
            computed_ns=computed.instant_ns,
            sku=self.sku,
            shares=tuple(
                MeasuredShare(measure, share)
                for measure, counted in sorted(self._counted.items())
                for share in shares(self._owners, counted, start_ns, end_ns)
            ),
            claims=tuple(self._claims[claim] for claim in sorted(held & self._claims.keys())),
        )
