"""How a core is looked at: states and energy of a GPU, and what went wrong."""

from __future__ import annotations

from support.story import DAY, SECOND, at, known_of

from collector.account.amounts import counted_in
from collector.evidence.assemble import Files
from collector.metering.measures import Measure
from collector.metering.tiling import tile
from collector.metering.units import Tiling
from collector.state.core import Core

ALICE = {"tenant": "alice"}


def states(core: Core, second: int, name: str = "GPU-0", files: Files | None = None):
    """Compute entries of a GPU from second 0 on, as (state, tenant, from, to) with whole seconds."""
    found = tile(known_of(core, name, files).evidence, at(-10_000), at(second))
    return [
        (e.state.value, e.tenant, (e.t0_ns - at(0)) / SECOND, (e.t1_ns - at(0)) / SECOND)
        for e in found
        if e.tiling is Tiling.COMPUTE and (e.slot_lo, e.slot_hi) == (0, 840)
    ]


def energy(core: Core, name: str = "GPU-0", files: Files | None = None):
    """Energy by use and tenant, in millijoules."""
    days = counted_in(known_of(core, name, files), at(-10_000), at(100_000))
    return {
        (whose.use.value, whose.tenant): amount
        for totals in days.values()
        for whose, amount in totals.items()
        if whose.measure is Measure.ENERGY and amount
    }


def troubles(core: Core) -> list:
    """What goes wrong from now on."""
    found: list = []
    core.evidence.listeners.append(found.append)
    return found


def stamp(second: int) -> str:
    """A second of the story as files spell it."""
    hours, rest = divmod(second, 3600)
    assert DAY == 20_700
    return f"2026-09-04T{hours:02}:{rest // 60:02}:{rest % 60:02}Z"
