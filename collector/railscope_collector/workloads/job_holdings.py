"""Jobs that hold a GPU at a time, from metering.

The tenant follows from metering: the claim with the highest authority counts. If that claim names
no job (an administrator assigned a node to a tenant), the job is the one that a scheduler reports
there; without such a report it is named after the assigned resource: the node, or the UUID of the
GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

from railscope.claim_terms import ClaimAuthority
from railscope_collector.metering import holders, tiling
from railscope_collector.metering.evidence import Evidence, MeteredClaim
from railscope_collector.metering.units import Tiling, Units, exact
from railscope_collector.workloads.job_roster import JobHolding, JobKey

SLURM, KUBERNETES = "slurm", "kubernetes"
SCHEDULERS = frozenset({SLURM, KUBERNETES})
_BY_HAND = frozenset({"command", "file"})
"""Sources with workloads that may name a scheduler's: `slurm:123` is Slurm's 123."""


def find_holdings(
    evidence: Evidence, entries: Iterable[tiling.TilingEntry], timestamp_ns: int
) -> tuple[JobHolding, ...]:
    """Return the holdings of a GPU; `entries` are those of the timestamp.

    A claim counts from its start, even if the GPU was first reported later.
    """
    present = [
        claim
        for start_ns, end_ns, claim in holders.claims_in_force(evidence)
        if start_ns <= timestamp_ns < end_ns
    ]
    by_id = {claim.id: claim for claim in present}
    starts = {claim.id: claim.start_ns for claim in evidence.claims}
    named = [
        claim for claim in present if claim.workload and claim.authority > ClaimAuthority.PROCESS
    ]
    holdings_by_job: dict[JobKey, JobHolding] = {}
    for entry in entries:
        claim = by_id.get(entry.claim)
        if (
            entry.tiling is not Tiling.COMPUTE
            or entry.state not in tiling.HELD_STATES
            or claim is None
        ):
            continue
        for low, high, naming in _find_named_claims(entry, claim, named):
            # The job holds it only while both claims are in force.
            start_ns = max(starts[naming.id], starts[claim.id])
            job = _job(evidence.gpu, entry.tenant, naming)
            before = holdings_by_job.get(job, JobHolding(job, entry.node, 0, start_ns))
            units, start_ns = exact(before.units + high - low), min(before.start_ns, start_ns)
            holdings_by_job[job] = JobHolding(job, entry.node, units, start_ns)
    return tuple(holdings_by_job[job] for job in sorted(holdings_by_job))


def _find_named_claims(
    entry: tiling.TilingEntry, claim: MeteredClaim, named: Iterable[MeteredClaim]
) -> Iterator[tuple[Units, Units, MeteredClaim]]:
    """Yield the slots of an entry, with the claims that name the job on them."""
    if claim.workload:
        yield entry.slot_lo, entry.slot_hi, claim
        return
    # The claims that name jobs may cover parts of the entry.
    cuts = {entry.slot_lo, entry.slot_hi}
    cuts |= {e for c in named for e in c.compute if entry.slot_lo < e < entry.slot_hi}
    for low, high in pairwise(sorted(cuts)):
        within = [c for c in named if c.compute.low <= low and high <= c.compute.high]
        yield low, high, max(within, key=holders.claim_order, default=claim)


def _job(gpu: str, tenant: str, claim: MeteredClaim) -> JobKey:
    source, workload = claim.source, claim.workload or claim.node or gpu
    scheduler, colon, name = workload.partition(":")
    if source in _BY_HAND and colon and scheduler in SCHEDULERS:
        source, workload = scheduler, name
    return JobKey(tenant, source, workload)
