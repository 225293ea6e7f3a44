"""Who holds which part of a GPU at an instant, and as which job.

Whose it is follows from metering: the word of the highest level counts. Where that word names no
job (an administrator gave a server to a tenant), the job is what a scheduler says that runs there;
and where nobody says, it goes by what was given: the name of the node, or the UUID of the GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from collector.account.tally import HELD
from collector.metering.evidence import Claim, Level
from collector.metering.tiling import Entry
from collector.metering.units import Tiling

SCHEDULERS = frozenset({"slurm", "kubernetes"})
_BY_HAND = frozenset({"command", "file"})
"""Sources whose workloads may name a scheduler's: `slurm:123` is Slurm's 123."""


class JobKey(NamedTuple):
    """What makes it the same job on all nodes."""

    tenant: str
    source: str
    workload: str


class Holding(NamedTuple):
    """A job holds so many of the 840 parts of a GPU's compute, in a node, since an instant."""

    job: JobKey
    node: str
    units: int
    start_ns: int


def holdings(
    gpu: str, entries: Iterable[Entry], claims: Iterable[Claim], instant_ns: int
) -> tuple[Holding, ...]:
    """What is held of a GPU; `entries` are those of the instant, `claims` with the ends they have."""
    present = [claim for claim in claims if claim.start_ns <= instant_ns < claim.end_ns]
    by_id = {claim.id: claim for claim in present}
    named = [claim for claim in present if claim.workload and claim.level > Level.PROCESS]
    found: dict[JobKey, Holding] = {}
    for entry in entries:
        claim = by_id.get(entry.claim)
        if entry.tiling is not Tiling.COMPUTE or entry.state not in HELD or claim is None:
            continue
        for low, high, naming in _named(entry, claim, named):
            start_ns = max(naming.start_ns, claim.start_ns)
            job = _job(gpu, entry.tenant, naming)
            before = found.get(job, Holding(job, entry.node, 0, start_ns))
            units, start_ns = before.units + high - low, min(before.start_ns, start_ns)
            found[job] = Holding(job, entry.node, units, start_ns)
    return tuple(found[job] for job in sorted(found))


def _named(entry: Entry, claim: Claim, named: Iterable[Claim]) -> Iterator[tuple[int, int, Claim]]:
    """The slots of an entry, by the claims that name the job on them."""
    if claim.workload:
        yield entry.slot_lo, entry.slot_hi, claim
        return
    cuts = {entry.slot_lo, entry.slot_hi}
    cuts |= {e for c in named for e in c.compute if entry.slot_lo < e < entry.slot_hi}
    for low, high in pairwise(sorted(cuts)):
        within = [c for c in named if c.compute.low <= low and high <= c.compute.high]
        yield low, high, max(within, default=claim)


def _job(gpu: str, tenant: str, claim: Claim) -> JobKey:
    source, workload = claim.source, claim.workload or claim.node or gpu
    scheduler, colon, name = workload.partition(":")
    if source in _BY_HAND and colon and scheduler in SCHEDULERS:
        source, workload = scheduler, name
    return JobKey(tenant, source, workload)
