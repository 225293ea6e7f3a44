"""Queries of a core: states and energy of a GPU, and reported problems."""

from __future__ import annotations

from support.metered import tile
from support.story import DAY, SECOND, at, known_of

from railscope_collector.account.account_sums import count_amounts
from railscope_collector.evidence.gpu_evidence import AdministratorInputs
from railscope_collector.metering.counter_increments import CountedQuantity
from railscope_collector.metering.units import Tiling
from railscope_collector.state.collector_state import CollectorState

ALICE = {"tenant": "alice"}


def compute_states(
    core: CollectorState, second: int, name: str = "GPU-0", files: AdministratorInputs | None = None
):
    """Compute entries of a GPU from second 0 on, as (state, tenant, from, to) with whole seconds."""
    found = tile(known_of(core, name, files).evidence, at(-10_000), at(second))
    return [
        (e.state.value, e.tenant, (e.t0_ns - at(0)) / SECOND, (e.t1_ns - at(0)) / SECOND)
        for e in found
        if e.tiling is Tiling.COMPUTE and (e.slot_lo, e.slot_hi) == (0, 840)
    ]


def tenant_energy(
    core: CollectorState, name: str = "GPU-0", files: AdministratorInputs | None = None
):
    """Energy by use and tenant, in millijoules."""
    days = count_amounts(known_of(core, name, files), at(-10_000), at(100_000))
    return {
        (whose.use.value, whose.tenant): amount
        for totals in days.values()
        for whose, amount in totals.items()
        if whose.measure is CountedQuantity.ENERGY and amount
    }


def new_problems(core: CollectorState) -> list:
    """Problems reported from now on."""
    found: list = []
    core.evidence.problems.listeners.append(found.append)
    return found


def story_time(second: int) -> str:
    """A second of the story as files spell it."""
    hours, rest = divmod(second, 3600)
    assert DAY == 20_700
    return f"2026-09-04T{hours:02}:{rest // 60:02}:{rest % 60:02}Z"
