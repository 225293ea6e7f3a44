"""Jobs that hold a GPU at a time, from metering.

The tenant follows from metering: the claim with the highest authority counts. If that claim names
no job (an administrator assigned a node to a tenant), the job is the one that a scheduler reports
there; without such a report it is named after the assigned resource: the node, or the UUID of the
GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from railscope.claim_terms import ClaimAuthority
from railscope_collector.metering import holders
from railscope_collector.metering.evidence import MeteredClaim
from railscope_collector.metering.units import CapacityRange, Units, exact
from railscope_collector.workloads.job_roster import JobHolding, JobKey

SLURM, KUBERNETES = "slurm", "kubernetes"
SCHEDULERS = frozenset({SLURM, KUBERNETES})
_BY_HAND = frozenset({"command", "file"})
"""Sources with workloads that may name a scheduler's: `slurm:123` is Slurm's 123."""


def find_holdings(
    gpu: str,
    node: str,
    present: Sequence[MeteredClaim],
    held: Iterable[tuple[CapacityRange, MeteredClaim]],
) -> tuple[JobHolding, ...]:
    """Return the holdings of a GPU in a node, by the claims in force and the slots that they hold.

    A claim counts from its start, even if the GPU was first reported later.
    """
    named = [
        claim for claim in present if claim.workload and claim.authority > ClaimAuthority.PROCESS
    ]
    found: dict[JobKey, JobHolding] = {}
    for slots, claim in held:
        for low, high, naming in _find_named_claims(slots, claim, named):
            # The job holds it only while both claims are in force.
            start_ns = max(naming.start_ns, claim.start_ns)
            job = _job(gpu, claim.tenant, naming)
            before = found.get(job, JobHolding(job, node, 0, start_ns))
            units, start_ns = exact(before.units + high - low), min(before.start_ns, start_ns)
            found[job] = JobHolding(job, node, units, start_ns)
    return tuple(found[job] for job in sorted(found))


def _find_named_claims(
    slots: CapacityRange, claim: MeteredClaim, named: Iterable[MeteredClaim]
) -> Iterator[tuple[Units, Units, MeteredClaim]]:
    """Yield parts of held slots, with the claims that name the job on them."""
    if claim.workload:
        yield slots.low, slots.high, claim
        return
    # The claims that name jobs may cover parts of the slots.
    cuts = {slots.low, slots.high}
    cuts |= {e for c in named for e in c.compute if slots.low < e < slots.high}
    for low, high in pairwise(sorted(cuts)):
        within = [c for c in named if c.compute.low <= low and high <= c.compute.high]
        yield low, high, max(within, key=holders.claim_order, default=claim)


def _job(gpu: str, tenant: str, claim: MeteredClaim) -> JobKey:
    source, workload = claim.source, claim.workload or claim.node or gpu
    scheduler, colon, name = workload.partition(":")
    if source in _BY_HAND and colon and scheduler in SCHEDULERS:
        source, workload = scheduler, name
    return JobKey(tenant, source, workload)
