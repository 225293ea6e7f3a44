"""Input of rating: one stretch in which one resource was in one state.

States and witnesses are those of the metering ledger. A GPU has `GPU_CAPACITY` units of capacity; a
share of a GPU is an exact fraction of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from collector.metering.evidence import Witness
from collector.metering.instants import spelled
from collector.metering.tiling import State
from collector.metering.units import GPU_CAPACITY, Units
from railscope.reading import Absent, Reading

HELD = frozenset({State.OBSERVED, State.INFERRED})
WITH_TENANT = HELD | {State.RESERVED}
UNSEEN = frozenset({State.INFERRED, State.UNKNOWN})


@dataclass(frozen=True, slots=True)
class Usage:
    """One stretch [start, end) of one resource: a GPU, a MIG instance or a replica, by its id.

    `capacity_units` is its share of a GPU. `claim` is the claim that held it, `claim_start_ns` the
    start of that claim. `silence_ns` is the length of the observation gap that contains the
    stretch, as far as the ledger has it: a lower bound. Energy is the counter's difference over the
    stretch, in millijoules, or the reason for its absence. Raises ValueError for an empty stretch,
    more than a GPU, held time without a claim, and any number that is not an integer. Usage without
    a tenant or SKU is accepted; rating leaves it undecided.
    """

    tenant: str
    resource: str
    sku: str
    start_ns: int
    end_ns: int
    capacity_units: Units
    state: State
    witness: Witness = Witness.NONE
    claim: str = ""
    claim_start_ns: int = 0
    energy_millijoules: Reading = Absent.UNSUPPORTED
    mig_profile: str = ""
    instance_units: Units = 0
    """Capacity of its MIG instance, of which it may hold a share; 0 if the ledger does not state it."""
    silence_ns: int = 0
    reason: str = ""
    """Reason why a person has to decide, in state `review`."""
    claim_end_ns: int | None = None
    """End of its claim, `FOREVER_NS` if it is open; None: the claim ends with its last usage."""
    counted_on: str = ""
    """Node of the claim, if the claim is for a number of GPUs; empty if it names its devices."""

    def __post_init__(self) -> None:
        wrong = self._wrong()
        if wrong:
            message = f"usage of {self.resource or 'no resource'}: {wrong}"
            raise ValueError(message)

    def _wrong(self) -> str:
        numbers = [self.start_ns, self.end_ns, self.claim_start_ns]
        energy = self.energy_millijoules
        if any(type(n) is not int for n in numbers) or type(energy) not in (int, Absent):
            return "instants and energy are integers"
        if type(self.capacity_units) not in (int, Fraction):
            return "capacity is an integer or an exact fraction"
        claimed = bool(self.claim) and self.claim_start_ns <= self.start_ns
        units = self.capacity_units
        checks = {
            "it does not end after its start": self.start_ns >= self.end_ns,
            f"{units} of {GPU_CAPACITY} units": not 0 < units <= GPU_CAPACITY,
            "negative energy": isinstance(energy, int) and energy < 0,
            f"{self.state} time without a claim that began by then": self.state in HELD
            and not claimed,
        }
        return next((wrong for wrong, is_so in checks.items() if is_so), "")

    @property
    def instances(self) -> Fraction:
        """Share of its MIG instance that it holds; 1 if the ledger does not state the instance's size."""
        held = Fraction(self.capacity_units)
        return min(held / self.instance_units, Fraction(1)) if self.instance_units else Fraction(1)

    @property
    def duration_ns(self) -> int:
        """Duration in nanoseconds."""
        return self.end_ns - self.start_ns

    def __str__(self) -> str:
        profile = f" {self.mig_profile}" if self.mig_profile else ""
        claim = f", claim {self.claim}" if self.claim else ""
        span = f"{spelled(self.start_ns)} to {spelled(self.end_ns)}"
        return f"{self.tenant}, {self.sku}{profile}, {self.resource}{claim}, {span}"
