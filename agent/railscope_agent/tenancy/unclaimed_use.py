"""Use of GPUs without a claim.

Unclaimed use is reported from the second process list that contains it, because a claim may end
between the poll of processes and the poll of claims. If a provider cannot be read, its processes
are not reported.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import msgspec

from railscope.claim_terms import ClaimAuthority
from railscope.frame import NodeTimestamp
from railscope_agent.tenancy.claims import COMMAND_PROVIDER, NodeClaim
from railscope_agent.tenancy.clock_history import BootTime
from railscope_agent.tenancy.gpu_processes import DeviceUse, DeviceUses

UseKey = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class FirstListedUse:
    """First process list with an unclaimed use, and the uncertainty of its start."""

    listed_at: NodeTimestamp
    uncertainty_ns: int


@dataclass(frozen=True, slots=True)
class ClaimContext:
    """Claims and other facts that process owners are compared with.

    `jobs` contains the Slurm job ids by SLUID. `in_force` is unclaimed use that was reported before,
    possibly by an earlier run of the agent.
    """

    claims: Collection[NodeClaim]
    unreadable_providers: Collection[str]
    jobs: Mapping[str, str]
    system: Collection[str]
    in_force: Collection[NodeClaim]
    boot_id: str = ""


@dataclass(slots=True)
class UnclaimedUseDetector:
    """Unclaimed use, with the process list that it was first seen in."""

    _first: dict[UseKey, FirstListedUse] = field(default_factory=dict)
    _listed: dict[str, int] = field(default_factory=dict)
    """Time of the last process list of each GPU (boot clock)."""

    def update(
        self, uses: DeviceUses, context: ClaimContext
    ) -> tuple[tuple[DeviceUse, ...], tuple[NodeClaim, ...]]:
        """Return all unclaimed use, and the part of it that an earlier list also contained."""
        free = tuple(
            use
            for use in uses.uses
            if use.owner.source not in context.unreadable_providers
            and not any(can_account_for(claim, use, context.jobs) for claim in context.claims)
        )
        keys = {_use_key(use) for use in free}
        self._first = {
            key: first
            for key, first in self._first.items()
            # A list that could not be read is no end of the use.
            if key in keys or key[2] in uses.absences or key[0] in context.unreadable_providers
        }
        for use in free:
            if _use_key(use) not in self._first:
                self._first[_use_key(use)] = self._first_listed_use(use)
        # After the new uses, which began after the list before this one.
        self._listed |= {gpu: timestamp.boot_ns for gpu, timestamp in uses.listed.items()}
        before = {claim.key[:4] for claim in context.in_force}
        unclaimed = tuple(
            msgspec.structs.replace(
                claim_of_use(use, ClaimAuthority.PROCESS, context.system),
                start_ns=first.listed_at.wall_ns,
                start_boot=BootTime(context.boot_id, first.listed_at.boot_ns),
                uncertainty_ns=first.uncertainty_ns,
            )
            for use in free
            if (first := self._first[_use_key(use)]).listed_at.boot_ns != use.listed_at.boot_ns
            # Reported by the run before a restart: it has been in two lists already.
            or _use_key(use) in before
        )
        return free, unclaimed

    def _first_listed_use(self, use: DeviceUse) -> FirstListedUse:
        """Return the start: after the previous list, and no earlier than the start of its first process."""
        now_ns = use.listed_at.boot_ns
        # A process may have begun long before it used the GPU, or the list may be old: the smaller bound is
        # the better one.
        bounds = [now_ns - self._listed.get(use.device.gpu, 0), now_ns - use.begun_boot_ns]
        return FirstListedUse(use.listed_at, min(bound for bound in bounds if bound >= 0))


def can_account_for(claim: NodeClaim, use: DeviceUse, jobs: Mapping[str, str]) -> bool:
    """True if processes may belong to the holder of a claim."""
    if claim.gpu != use.device.gpu or not claim.compute.overlaps(use.device.compute):
        return False
    source, workload = claim.owning_workload
    owner = use.owner
    # Claims by people name tenants, not workloads: any process may be theirs.
    if owner.is_shared_or_hidden or source == COMMAND_PROVIDER:
        return True
    if owner.is_server and not claim.exclusive:
        return True
    if source != owner.source:
        return False
    if not owner.is_named:
        # A SLUID that cannot be resolved may be this job.
        return jobs.get(owner.workload, workload) == workload
    return workload == owner.workload


def claim_of_use(use: DeviceUse, authority: ClaimAuthority, system: Collection[str]) -> NodeClaim:
    """Return the use of a device as a claim without a start; `system` are the system owners."""
    owner = use.owner
    return NodeClaim(
        source=owner.source,
        authority=authority,
        workload=owner.workload,
        owner=owner.owner,
        gpu="",
        exclusive=False,
        system=owner.workload in system or owner.owner in system,
        pids=tuple(sorted(use.pids)),
    ).claim_on_device(use.device)


def _use_key(use: DeviceUse) -> UseKey:
    return use.owner.source, use.owner.workload, use.device.gpu, use.device.id
