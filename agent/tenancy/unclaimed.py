"""Use of GPUs without a claim.

Unclaimed use is reported from the second process list that contains it, because a claim may end between the
poll of processes and the poll of claims. If a provider cannot be read, its processes are not reported.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from agent.tenancy.held import COMMAND, FILE, BootTime, Held, Level
from agent.tenancy.processes import Use, Uses
from railscope.frame import Instant

Key = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class First:
    """First process list with an unclaimed use, and the uncertainty of its start."""

    seen: Instant
    uncertainty_ns: int


@dataclass(frozen=True, slots=True)
class Known:
    """Claims and other facts that process owners are compared with.

    `silent` contains the providers that could not be read, `jobs` the Slurm job ids by SLUID. `in_force` is
    unclaimed use that was reported before, possibly by an earlier run of the agent.
    """

    claims: Collection[Held]
    silent: Collection[str]
    jobs: Mapping[str, str]
    system: Collection[str]
    in_force: Collection[Held]
    boot_id: str = ""


@dataclass(slots=True)
class Unclaimed:
    """Unclaimed use, with the process list that it was first seen in."""

    _first: dict[Key, First] = field(default_factory=dict)
    _listed: dict[str, int] = field(default_factory=dict)
    """Time of the last process list of each GPU (boot clock)."""

    def look(self, uses: Uses, known: Known) -> tuple[tuple[Use, ...], tuple[Held, ...]]:
        """Return all unclaimed use, and the part of it that an earlier list also contained."""
        free = tuple(
            use
            for use in uses.uses
            if use.whose.source not in known.silent
            and not any(covers(claim, use, known.jobs) for claim in known.claims)
        )
        keys = {_key(use) for use in free}
        self._first = {
            key: first
            for key, first in self._first.items()
            if key in keys or key[2] in uses.unread or key[0] in known.silent
        }
        for use in free:
            if _key(use) not in self._first:
                self._first[_key(use)] = self._begun(use)
        self._listed |= {gpu: at.boot_ns for gpu, at in uses.listed.items()}
        before = {held.key[:4] for held in known.in_force}
        told = tuple(
            _held(use, self._first[_key(use)], known)
            for use in free
            if self._first[_key(use)].seen.boot_ns != use.seen.boot_ns or _key(use) in before
        )
        return free, told

    def _begun(self, use: Use) -> First:
        """Return the start: after the list before, and not before the start of its first process."""
        now_ns = use.seen.boot_ns
        bounds = [now_ns - self._listed.get(use.device.gpu, 0), now_ns - use.begun_boot_ns]
        return First(use.seen, min(bound for bound in bounds if bound >= 0))


def covers(claim: Held, use: Use, jobs: Mapping[str, str]) -> bool:
    """True if processes may belong to the holder of a claim."""
    if claim.gpu != use.device.gpu or not claim.compute.overlaps(use.device.compute):
        return False
    source, workload = claim.workload_of
    whose = use.whose
    if whose.is_anyones or source in {COMMAND, FILE}:
        return True
    if source != whose.source:
        return False
    if not whose.is_named:
        return jobs.get(whose.workload, workload) == workload
    return workload == whose.workload


def _held(use: Use, first: First, known: Known) -> Held:
    return Held(
        source=use.whose.source,
        level=Level.PROCESS,
        workload=use.whose.workload,
        owner=use.whose.owner,
        gpu=use.device.gpu,
        device=use.device.id,
        compute=use.device.compute,
        memory=use.device.memory,
        exclusive=False,
        system=bool({use.whose.workload, use.whose.owner} & set(known.system)),
        profile=use.device.profile,
        pids=tuple(sorted(use.pids)),
        start_ns=first.seen.wall_ns,
        start_boot=BootTime(known.boot_id, first.seen.boot_ns),
        uncertainty_ns=first.uncertainty_ns,
    )


def _key(use: Use) -> Key:
    return use.whose.source, use.whose.workload, use.device.gpu, use.device.id
