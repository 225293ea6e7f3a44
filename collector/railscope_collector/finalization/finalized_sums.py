"""Ledger sums with which the account of a collector begins. All calls block, and raise UnusableLedgerError."""

from __future__ import annotations

from railscope.claim_terms import GPU_CAPACITY
from railscope.timestamps import FOREVER_NS
from railscope_collector.account import account_sums
from railscope_collector.ledger import day_documents, head_chain, ledger_store
from railscope_collector.metering import amount_shares, counter_increments, units
from railscope_collector.metering.tiling import SlotState

_STATES = frozenset(state.value for state in SlotState)


def read_finalized(ledger: ledger_store.Ledger, since_day: int) -> account_sums.FinalizedGpus:
    """Return the ledger's sums; days from `since_day` on may still change."""
    sums: account_sums.TimeSums = {}
    amounts: account_sums.AmountTotals = {}
    with ledger.database.transaction(is_snapshot=True) as connection:
        # In the snapshot of the sums: later heads are added to them, and none twice.
        head = head_chain.newest_head(connection)
        totals = day_documents.read_totals(connection, range(FOREVER_NS))
        numbers = day_documents.newest_numbers(connection, range(since_day, FOREVER_NS))
        days = ledger_store.last_days(connection)
    for (day, total), quantity in totals.items():
        if total.name in _STATES:
            key = account_sums.TimeKey(
                account_sums.month_start(day), SlotState(total.name), total.tenant
            )
            sums[key] = units.exact(sums.get(key, 0) + quantity * GPU_CAPACITY)
            continue
        measure, _, reason = total.name.partition("/")
        amount_key = account_sums.AmountKey(
            counter_increments.CountedQuantity(measure),
            amount_shares.AmountAttribution(reason or "attributed"),
            total.tenant,
        )
        amounts[amount_key] = amounts.get(amount_key, 0) + int(quantity)
    return account_sums.FinalizedGpus(sums, amounts, days, numbers, head.n if head else 0)
