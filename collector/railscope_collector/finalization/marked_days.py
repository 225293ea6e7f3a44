"""Metering of a day of a node that facts have marked, and its writing to the ledger as documents."""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa

from railscope_collector.evidence import day_metering, fact_store
from railscope_collector.evidence.file_versions import AdministratorInputs
from railscope_collector.evidence.usage_facts import UsageFacts
from railscope_collector.ledger import day_documents, row_days
from railscope_collector.ledger.ledger_store import Ledger

_DAYS_AT_ONCE = 7


def mark_missing(facts: UsageFacts, ledger: Ledger, days: range) -> None:
    """Mark the nodes of GPU-days that the ledger does not have: a day that is over needs no fact to be metered.

    Blocks; raises UnusableLedgerError.
    """
    # In parts: after a start these are the GPU-days of two months.
    for first in range(days.start, days.stop, _DAYS_AT_ONCE):
        few = range(first, min(first + _DAYS_AT_ONCE, days.stop))
        facts.facts.mark_gpus(facts.gpu_days(few) - ledger.final_days(few))


def finalize_day(
    store: fact_store.FactStore,
    read_files: Callable[[sa.Connection], AdministratorInputs],
    node_day: tuple[str, int],
    now_ns: int,
) -> list[day_documents.WrittenRevision] | None:
    """Meter a marked day of a node, and write the documents that differ; return the revisions that contain it.

    One transaction, without a lease: the collector that has the lock reads all facts that were committed, and one that is
    paused loses its transaction. None if another collector has the lock. Blocks; raises UnusableLedgerError,
    MeteredDayError.
    """
    node, day = node_day
    with store.database.transaction(writes=True) as connection:
        if not day_documents.try_lock_days(connection):
            return None
        # First: a mark that is committed after facts and files are read stays for the next round.
        fact_store.clear_marks(connection, node, day)
        files = read_files(connection)
        gpus = fact_store.gpus_on(connection, node, day)
        found = store.read_day(connection, gpus, day)
        meter, metered = day_metering.DayMeter.of_facts(day, found, files), []
        # No fact states which GPUs the collectors of 0.3.0 assumed for a claim: metered again, its time would be credited.
        for gpu in sorted({*gpus} - row_days.find_counted(connection, day, gpus)):
            metered.append(meter.meter(gpu))
            # Of a GPU with many shared claims this takes seconds: the server ends a transaction that pauses for a minute.
            connection.execute(sa.select(1))
        return day_documents.write_days(connection, metered, now_ns)
