"""Batches of a node with a few metrics, for tests of the fleet state."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st
from support.batches import batch_of
from support.schemas import known_schema

from railscope.catalog import gpu, host, nic
from railscope.catalog.declare import Metric
from railscope.catalog.entities import CPU_MODE, GPU, GPU_CLOCK, NIC, NIC_PRIORITY
from railscope.frame import Entity, Schema
from railscope_collector.fleet.fleet import NodeUpdate
from railscope_collector.fleet.names import KnownSchema

SECOND = 1_000_000_000
GPUS = [Entity(GPU, (f"GPU-{i}",), {"rail": str(i)} if i < 2 else {}) for i in range(3)]
NICS = [Entity(NIC, (f"ens{i}",), {"rail": str(i)}) for i in range(2)]
COLUMNS: list[tuple[Metric, Entity]] = [
    *((gpu.GPU_POWER, g) for g in GPUS),
    *((gpu.GPU_CLOCK_SPEED, g.child(GPU_CLOCK, clock)) for g in GPUS for clock in ("sm", "memory")),
    *((gpu.GPU_ENERGY, g) for g in GPUS),
    *((nic.PFC_RECEIVED_TIME, c.child(NIC_PRIORITY, str(p))) for c in NICS for p in (0, 3)),
    *((host.CPU_TIME, Entity(CPU_MODE, (mode,))) for mode in ("user", "idle")),
]
ORDER = Schema.ordered(COLUMNS)
SCHEMA = Schema("test", tuple(COLUMNS[i] for i in ORDER), tuple(NICS))
KNOWN = known_schema(SCHEMA)
LAYOUT = KNOWN.layout
WIDTH = len(COLUMNS)
value = st.integers(0, 10**6)
row = st.lists(value, min_size=WIDTH, max_size=WIDTH)
codes = st.lists(st.sampled_from([0, 0, 0, 4]), min_size=WIDTH, max_size=WIDTH)


def update(  # noqa: PLR0913 - parameters of the cases
    name: str,
    schema: KnownSchema,
    first: list[int],
    last: list[int],
    *,
    run: str = "r",
    boot_id: str = "b",
    first_boot_ns: int = SECOND,
    last_boot_ns: int = 3 * SECOND,
    first_reasons: Sequence[int] = (),
    reasons: Sequence[int] = (),
    timestamp_ns: int = 100 * SECOND,
) -> NodeUpdate:
    """A batch of two rows; of one, where both are of one instant."""
    whole = [0] * len(last)
    codes = [list(first_reasons) or whole, list(reasons) or whole]
    at = 1 if first_boot_ns == last_boot_ns else 0
    batch = batch_of(
        [first, last][at:],
        boot_ns=[first_boot_ns, last_boot_ns][at:],
        stream=schema.layout.stream,
        reasons=codes[at:] if any(map(any, codes)) else (),
    )
    return NodeUpdate(name, run, boot_id, schema, batch, timestamp_ns)


def make_row(power: int, energy: int) -> list[int]:
    numbers = [0] * WIDTH
    for position, (metric, _) in enumerate(SCHEMA.columns):
        numbers[position] = (
            power if metric is gpu.GPU_POWER else energy if metric is gpu.GPU_ENERGY else 0
        )
    return numbers
