"""Input of rating: intervals in which one resource was in one state.

States and node evidence are those of the metering ledger. A GPU has `GPU_CAPACITY` units of capacity; a
share of a GPU is an exact fraction of them. Usages of one resource in sequence give the length of
observation gaps, and overlaps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby
from operator import attrgetter

from railscope.claim_terms import GPU_CAPACITY
from railscope.reading import Absent, Reading
from railscope.timestamps import format_timestamp
from railscope_collector.billing import BillingError
from railscope_collector.metering import evidence, slot_state
from railscope_collector.metering.units import Units

WITH_TENANT = frozenset((*slot_state.HELD_STATES, slot_state.SlotState.RESERVED))
UNSEEN = frozenset({slot_state.SlotState.INFERRED, slot_state.SlotState.UNKNOWN})


@dataclass(frozen=True, slots=True)
class Usage:
    """One interval [start, end) of one resource: a GPU, a MIG instance or a replica, by its id.

    `capacity_units` is its share of a GPU. `claim` is the claim that held it, `claim_start_ns` the
    start of that claim. `gap_ns` is the length of the observation gap that contains the
    interval, as far as the ledger has it: a lower bound. Energy is the counter's difference over the
    interval, in millijoules, or the reason for its absence. Raises ValueError for an empty interval,
    more than a GPU, held time without a claim, and any number that is not an integer. Usage without
    a tenant or SKU is accepted; rating leaves it undecided.
    """

    tenant: str
    resource: str
    sku: str
    start_ns: int
    end_ns: int
    capacity_units: Units
    state: slot_state.SlotState
    node_evidence: evidence.NodeEvidence = evidence.NodeEvidence.NONE
    claim: str = ""
    claim_start_ns: int = 0
    energy_millijoules: Reading = Absent.UNSUPPORTED
    mig_profile: str = ""
    instance_units: Units = 0
    """Capacity of its MIG instance, of which it may hold a share; 0 if the ledger does not state it."""
    gap_ns: int = 0
    reason: str = ""
    """Reason why a person has to decide, in state `review`."""
    claim_end_ns: int | None = None
    """End of its claim, `FOREVER_NS` if it is open; None: the claim ends with its last usage."""

    def __post_init__(self) -> None:
        wrong = self._find_problem()
        if wrong:
            message = f"invalid usage of {self.resource or 'no resource'}: {wrong}"
            raise ValueError(message)

    def _find_problem(self) -> str:
        numbers = [self.start_ns, self.end_ns, self.claim_start_ns]
        energy = self.energy_millijoules
        # `type` and not `isinstance`: True is an int in Python.
        if any(type(n) is not int for n in numbers) or type(energy) not in (int, Absent):
            return "expected integers as times and energy"
        if type(self.capacity_units) not in (int, Fraction):
            return "expected an integer or an exact fraction as capacity"
        claimed = bool(self.claim) and self.claim_start_ns <= self.start_ns
        units = self.capacity_units
        checks = {
            "expected an end after the start": self.start_ns >= self.end_ns,
            f"{units} units: expected more than 0 and at most {GPU_CAPACITY}": not 0
            < units
            <= GPU_CAPACITY,
            "energy: expected 0 or more": isinstance(energy, int) and energy < 0,
            f"{self.state} time: expected a claim that starts by then": self.state
            in slot_state.HELD_STATES
            and not claimed,
        }
        return next((wrong for wrong, is_so in checks.items() if is_so), "")

    @property
    def instances(self) -> Fraction:
        """Share of its MIG instance that it holds; 1 if the ledger does not state the instance's size."""
        capacity = Fraction(self.capacity_units)
        return (
            min(capacity / self.instance_units, Fraction(1)) if self.instance_units else Fraction(1)
        )

    @property
    def duration_ns(self) -> int:
        """Duration in nanoseconds."""
        return self.end_ns - self.start_ns

    def __str__(self) -> str:
        profile = f" {self.mig_profile}" if self.mig_profile else ""
        claim = f", claim {self.claim}" if self.claim else ""
        span = f"{format_timestamp(self.start_ns)} to {format_timestamp(self.end_ns)}"
        return f"{self.tenant}, {self.sku}{profile}, {self.resource}{claim}, {span}"


_RESOURCE = attrgetter("resource")


class DoubleUsageError(BillingError, ValueError):
    """Time that would be billed twice; the message contains the resource and the usage."""


def gap_lengths(ordered: Sequence[Usage]) -> list[int]:
    """For every usage, the length of the observation gap that contains it; zero if observed.

    A gap extends over claims and days as long as the resource is not observed. Usages are in order
    of resource and start.
    """
    lengths = [0] * len(ordered)
    run: list[int] = []
    until_ns = 0
    for position, usage in enumerate(ordered):
        if usage.state not in UNSEEN:
            continue
        if run and (usage.resource != ordered[run[0]].resource or usage.start_ns > until_ns):
            _set_lengths(lengths, run, until_ns - ordered[run[0]].start_ns)
            run = []
        until_ns = max(until_ns, usage.end_ns) if run else usage.end_ns
        run.append(position)
    if run:
        _set_lengths(lengths, run, until_ns - ordered[run[0]].start_ns)
    return lengths


def _set_lengths(lengths: list[int], run: Sequence[int], length_ns: int) -> None:
    for at in run:
        lengths[at] = length_ns


def reject_double_usage(ordered: Sequence[Usage]) -> None:
    """Reject a claim that uses one resource twice at once, and a resource used beyond one GPU.

    Slots of one resource that one claim holds together are one usage with their capacity added.
    Usages are in order of resource and start. Raises DoubleUsageError.
    """
    for _, group in groupby(ordered, key=_RESOURCE):
        running: list[Usage] = []
        for usage in group:
            if usage.state not in WITH_TENANT:
                continue
            running = [other for other in running if other.end_ns > usage.start_ns]
            running.append(usage)
            claims = {(other.tenant, other.claim) for other in running}
            units = sum(other.capacity_units for other in running)
            if len(claims) < len(running) or units > GPU_CAPACITY:
                message = f"usage overlaps: {usage}: expected each GPU share to be billed once"
                raise DoubleUsageError(message)
