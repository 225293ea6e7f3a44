"""Holders of the parts of a GPU at a time, as jobs.

The tenant follows from metering: the claim with the highest authority counts. If that claim names
no job (an administrator assigned a node to a tenant), the job is the one that a scheduler reports
there; without such a report it is named after the assigned resource: the node, or the UUID of the
GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from collector.metering.evidence import Claim, Evidence, Level
from collector.metering.holders import claims_in_force, precedence
from collector.metering.tiling import HELD, Entry
from collector.metering.units import Tiling, Units, exact
from railscope.settings import SettingsError

KUBERNETES = "kubernetes"
SCHEDULERS = frozenset({"slurm", KUBERNETES})
_BY_HAND = frozenset({"command", "file"})
"""Sources with workloads that may name a scheduler's: `slurm:123` is Slurm's 123."""
NO_PODS = re.compile(r"(?!)")
"""A pattern that joins no pods."""


class JobKey(NamedTuple):
    """Identity of a job across nodes."""

    tenant: str
    source: str
    workload: str


class Holding(NamedTuple):
    """Share of a GPU's compute (of 840 units) that a job holds in a node, since a timestamp."""

    job: JobKey
    node: str
    units: Units
    start_ns: int


def holdings(evidence: Evidence, entries: Iterable[Entry], instant_ns: int) -> tuple[Holding, ...]:
    """Return the holdings of a GPU; `entries` are those of the timestamp.

    A claim counts from its start, even if the GPU was first reported later.
    """
    present = [
        claim
        for start_ns, end_ns, claim in claims_in_force(evidence)
        if start_ns <= instant_ns < end_ns
    ]
    by_id = {claim.id: claim for claim in present}
    starts = {claim.id: claim.start_ns for claim in evidence.claims}
    named = [claim for claim in present if claim.workload and claim.level > Level.PROCESS]
    found: dict[JobKey, Holding] = {}
    for entry in entries:
        claim = by_id.get(entry.claim)
        if entry.tiling is not Tiling.COMPUTE or entry.state not in HELD or claim is None:
            continue
        for low, high, naming in _named(entry, claim, named):
            start_ns = max(starts[naming.id], starts[claim.id])
            job = _job(evidence.gpu, entry.tenant, naming)
            before = found.get(job, Holding(job, entry.node, 0, start_ns))
            units, start_ns = exact(before.units + high - low), min(before.start_ns, start_ns)
            found[job] = Holding(job, entry.node, units, start_ns)
    return tuple(found[job] for job in sorted(found))


def _named(
    entry: Entry, claim: Claim, named: Iterable[Claim]
) -> Iterator[tuple[Units, Units, Claim]]:
    """Yield the slots of an entry, with the claims that name the job on them."""
    if claim.workload:
        yield entry.slot_lo, entry.slot_hi, claim
        return
    cuts = {entry.slot_lo, entry.slot_hi}
    cuts |= {e for c in named for e in c.compute if entry.slot_lo < e < entry.slot_hi}
    for low, high in pairwise(sorted(cuts)):
        within = [c for c in named if c.compute.low <= low and high <= c.compute.high]
        yield low, high, max(within, key=precedence, default=claim)


def _job(gpu: str, tenant: str, claim: Claim) -> JobKey:
    source, workload = claim.source, claim.workload or claim.node or gpu
    scheduler, colon, name = workload.partition(":")
    if source in _BY_HAND and colon and scheduler in SCHEDULERS:
        source, workload = scheduler, name
    return JobKey(tenant, source, workload)


def together(found: tuple[Holding, ...], pods: re.Pattern[str]) -> tuple[Holding, ...]:
    """Join holdings of pods of one job: their names differ only outside the group `job`.

    The kubelet names pods and not their owners; controllers derive the names of pods from that of
    the job (kubeflow/trainer v1: pkg/core/job.go, GenGeneralName).
    """
    jobs: dict[JobKey, Holding] = {}
    for holding in found:
        tenant, source, workload = holding.job
        namespace, slash, pod = workload.partition("/")
        match = pods.fullmatch(pod) if slash and source == KUBERNETES else None
        job = JobKey(tenant, source, f"{namespace}/{match['job']}") if match else holding.job
        before = jobs.get(job, holding._replace(units=0))
        start_ns = min(before.start_ns, holding.start_ns)
        jobs[job] = Holding(job, holding.node, before.units + holding.units, start_ns)
    return tuple(jobs[job] for job in sorted(jobs))


def pattern_of(setting: str) -> re.Pattern[str]:
    """Compile the pattern of a setting. Raises SettingsError if it is invalid, or has no group `job`."""
    try:
        pattern = re.compile(setting) if setting else NO_PODS
    except re.error as error:
        message = f"pod_jobs is no regular expression: {error}"
        raise SettingsError(message) from error
    if setting and "job" not in pattern.groupindex:
        message = "pod_jobs needs a group (?P<job>...)"
        raise SettingsError(message)
    return pattern
