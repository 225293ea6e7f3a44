"""Two GPUs of job lists, and the GPU-hours of imported lists in a ledger."""

from __future__ import annotations

from fractions import Fraction

from railscope_collector.ledger.ledger_store import Ledger
from railscope_collector.metering.slot_state import SlotState

S = 1_000_000_000
HOUR = 3600 * S
GPU_1, GPU_2 = "00000000:01:00.0", "00000000:02:00.0"


def tenant_hours(ledger: Ledger) -> dict[str, int]:
    """Return the GPU-hours of each tenant."""
    hours: dict[str, int] = {}
    for tenant, held_ns in held_time(ledger).items():
        hours[tenant] = int(held_ns) // HOUR
    return hours


def held_time(ledger: Ledger) -> dict[str, Fraction]:
    """Return the GPU-nanoseconds that each tenant holds."""
    found: dict[str, Fraction] = {}
    for (_, of), quantity in ledger.totals(range(30_000)).items():
        if of.name in {SlotState.OBSERVED.value, SlotState.INFERRED.value} and quantity:
            found[of.tenant] = found.get(of.tenant, Fraction(0)) + quantity
    return found
