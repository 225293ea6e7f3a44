"""Ledger sums of GPUs that a collector begins to account for.

A year of ten thousand GPUs is millions of GPU-days: they are added up in the database, some GPUs at a
time; of single days only the revisions are loaded, and only for days that may change. All calls block,
and raise UnusableLedgerError.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection

from railscope_collector.account import account_sums
from railscope_collector.ledger import head_chain, ledger_queries, ledger_store, row_conversion
from railscope_collector.metering import amount_shares, counter_increments, units
from railscope_collector.metering.tiling import SlotState

_SUMMED_GPUS_AT_ONCE = 64
"""Their time in 24 hours fits in 64 bits, the limit of SQLite's sums."""


def read_finalized(
    ledger: ledger_store.Ledger, gpus: Collection[str], since_day: int
) -> account_sums.FinalizedGpus:
    """Return the ledger's sums of these GPUs; days from `since_day` on may still change."""
    finalized = account_sums.FinalizedGpus({}, {}, {}, {}, [], {})
    for gpu_group in ledger_queries.split_items(sorted(gpus), _SUMMED_GPUS_AT_ONCE):
        with ledger.database.transaction(is_snapshot=True) as connection:
            _read_finalized_group(finalized, connection, gpu_group, since_day)
    return finalized


def _read_finalized_group(
    finalized: account_sums.FinalizedGpus,
    connection: Connection,
    gpus: Collection[str],
    since_day: int,
) -> None:
    sums, amounts, days, numbers, clock_suspect, heads = finalized
    # In the snapshot of the sums: later heads are added to them, and none twice.
    head = head_chain.newest_head(connection)
    heads |= dict.fromkeys(gpus, head.n if head else 0)
    times = ledger_queries.finalized_time(connection, gpus)
    for (day, state, tenant), quantity in times.items():
        key = account_sums.TimeKey(account_sums.month_start(day), SlotState(state), tenant)
        sums[key] = units.exact(sums.get(key, 0) + quantity)
    for share in connection.execute(ledger_queries.finalized_amounts(gpus)):
        amount_key = account_sums.AmountKey(
            counter_increments.CountedQuantity(share.measure),
            amount_shares.AmountAttribution(share.use),
            share.tenant_id,
        )
        amount = ledger_queries.HALF * int(share.high) + int(share.low)
        amounts[amount_key] = amounts.get(amount_key, 0) + amount
    for gpu in connection.execute(ledger_queries.last_days(gpus)):
        days[gpu.gpu_uuid] = gpu.day
    for text in connection.execute(ledger_queries.finalized_marks(gpus)).scalars():
        clock_suspect += row_conversion.parse_clock_suspect(text)
    last_day = max(days.values(), default=since_day)
    numbers |= ledger_queries.newest_numbers(connection, range(since_day, last_day + 1), gpus)
