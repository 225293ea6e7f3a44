"""Whether the ledger holds all the time there was: the differences, of which there should be none.

`inventory` says when each GPU was in a node: disjoint intervals [start, end) in nanoseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from collector.ledger.store import Ledger, Tiled
from collector.ledger.tiling import DAY_NS
from collector.metering.units import GPU_CAPACITY, Tiling

Inventory = Mapping[str, Sequence[tuple[int, int]]]


class Difference(NamedTuple):
    """Cap-unit-nanoseconds in the ledger and in the inventory, which should be equal.

    `of` is a GPU-day in one tiling, or a tiling of the whole cluster.
    """

    of: Tiled | Tiling
    ledger: int
    inventory: int


def gpu_days(
    ledger: Ledger, inventory: Inventory, first_day: int, end_day: int
) -> list[Difference]:
    """GPU-days of [first, end) whose states do not add up to the time that the GPU was in a node.

    Days that the ledger lacks are among them, and days of GPUs that the inventory does not know.
    """
    found = ledger.tiled(first_day, end_day)
    expected = {
        Tiled(gpu, day, tiling): GPU_CAPACITY * _within(stays, day * DAY_NS, (day + 1) * DAY_NS)
        for gpu, stays in inventory.items()
        for day in range(first_day, end_day)
        for tiling in Tiling
    }
    pairs = (
        Difference(key, found.get(key, 0), expected.get(key, 0))
        for key in sorted(found.keys() | expected.keys())
    )
    return [pair for pair in pairs if pair.ledger != pair.inventory]


def cluster(ledger: Ledger, inventory: Inventory, start_ns: int, end_ns: int) -> list[Difference]:
    """Tilings whose sum over the cluster in a window is not that of the inventory."""
    sums = dict.fromkeys(Tiling, 0)
    for total, quantity in ledger.totals(start_ns, end_ns).items():
        sums[total.tiling] += quantity
    gpu_ns = sum(_within(stays, start_ns, end_ns) for stays in inventory.values())
    pairs = (Difference(tiling, found, GPU_CAPACITY * gpu_ns) for tiling, found in sums.items())
    return [pair for pair in pairs if pair.ledger != pair.inventory]


def _within(stays: Iterable[tuple[int, int]], start_ns: int, end_ns: int) -> int:
    """How much of [start, end) the intervals cover."""
    return sum(max(0, min(end, end_ns) - max(start, start_ns)) for start, end in stays)
