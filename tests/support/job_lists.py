"""Two GPUs of job lists, and the GPU-hours of imported lists in a ledger."""

from __future__ import annotations

from railscope.claim_terms import GPU_CAPACITY
from railscope.timestamps import FOREVER_NS
from railscope_collector.ledger.ledger_store import Ledger
from railscope_collector.metering.tiling import SlotState
from railscope_collector.metering.units import Tiling

S = 1_000_000_000
HOUR = 3600 * S
GPU_1, GPU_2 = "00000000:01:00.0", "00000000:02:00.0"


def tenant_hours(ledger: Ledger) -> dict[str, int]:
    """Return the GPU-hours of each tenant."""
    totals = ledger.totals(0, FOREVER_NS).items()
    return {
        of.tenant: quantity // GPU_CAPACITY // HOUR
        for of, quantity in totals
        if of.tiling is Tiling.COMPUTE and of.state in (SlotState.OBSERVED, SlotState.INFERRED)
    }
