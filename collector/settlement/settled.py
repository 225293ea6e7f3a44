"""Ledger sums of GPUs that a collector begins to account for. Blocks, raises LedgerError.

A year of ten thousand GPUs is millions of GPU-days. They are added up in the database, some GPUs at
a time; of single days only the revisions are loaded, and only for days that may change.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from collector.account.amounts import Totals, Whose
from collector.account.tally import Key, Sums, month_of
from collector.ledger import queries
from collector.ledger.rows import GpuDay, clock_suspect_of
from collector.ledger.store import Ledger
from collector.metering.evidence import ClockDoubt
from collector.metering.measures import Measure, Use
from collector.metering.tiling import State
from collector.metering.units import exact

_GPUS_AT_ONCE = 64
"""Their time in 24 hours fits in 64 bits, the limit of SQLite's sums."""


class SettledGpus(NamedTuple):
    """The ledger's sums by month of some GPUs, and the last finalized day of each."""

    sums: Sums
    amounts: Totals
    days: dict[str, int]
    numbers: dict[GpuDay, int]
    """The newest revision of each day that may still change."""
    clock_suspect: list[ClockDoubt]
    """The marks of all days, repeated once per day."""


def settled(ledger: Ledger, gpus: Collection[str], since_day: int) -> SettledGpus:
    """Return the ledger's sums of these GPUs; days from `since_day` on may still change."""
    found = SettledGpus({}, {}, {}, {}, [])
    for some in queries.chunks(sorted(gpus), _GPUS_AT_ONCE):
        _add(found, ledger, some, since_day)
    return found


def _add(found: SettledGpus, ledger: Ledger, gpus: Collection[str], since_day: int) -> None:
    sums, amounts, days, numbers, clock_suspect = found
    with ledger.database.transaction() as connection:
        for (day, state, tenant), quantity in queries.settled_time(connection, gpus).items():
            key = Key(month_of(day), State(state), tenant)
            sums[key] = exact(sums.get(key, 0) + quantity)
        for share in connection.execute(queries.settled_amounts(gpus)):
            whose = Whose(Measure(share.measure), Use(share.use), share.tenant_id)
            amount = queries.HALF * int(share.high) + int(share.low)
            amounts[whose] = amounts.get(whose, 0) + amount
        for gpu in connection.execute(queries.last_days(gpus)):
            days[gpu.gpu_uuid] = gpu.day
        for text in connection.execute(queries.settled_marks(gpus)).scalars():
            clock_suspect += clock_suspect_of(text)
        last_day = max(days.values(), default=since_day)
        numbers |= queries.newest_numbers(connection, range(since_day, last_day + 1), gpus)
