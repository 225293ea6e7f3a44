"""Who uses a GPU that nobody whose they could be was given.

It is told at the second list of processes that has it: between the look at processes and that at
claims one may end. Where a place that would know cannot be asked, nothing is said of its processes.
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
    """The first list that had it, and for how long before nobody looked."""

    seen: Instant
    uncertainty_ns: int


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of those who may be on a GPU.

    `silent` are the places that could not be asked, `jobs` those of Slurm by their SLUID; `in_force` is
    use without a claim that was told before, and be it by the agent before this one.
    """

    claims: Collection[Held]
    silent: Collection[str]
    jobs: Mapping[str, str]
    system: Collection[str]
    in_force: Collection[Held]
    boot_id: str = ""


@dataclass(slots=True)
class Unclaimed:
    """What is used without a claim, since which list of processes."""

    _first: dict[Key, First] = field(default_factory=dict)
    _listed: dict[str, int] = field(default_factory=dict)
    """When the processes of each GPU were listed last (boot clock)."""

    def look(self, uses: Uses, known: Known) -> tuple[tuple[Use, ...], tuple[Held, ...]]:
        """All use without a claim, and what of it was seen before."""
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
        """It began after the list before, and not before its first process did."""
        now_ns = use.seen.boot_ns
        bounds = [now_ns - self._listed.get(use.device.gpu, 0), now_ns - use.begun_boot_ns]
        return First(use.seen, min(bound for bound in bounds if bound >= 0))


def covers(claim: Held, use: Use, jobs: Mapping[str, str]) -> bool:
    """Whether processes may be those of whoever holds a claim."""
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
