"""Metering of the days of nodes that facts have marked, and their writing to the ledger as documents."""

from __future__ import annotations

from railscope_collector.evidence.day_metering import meter_day
from railscope_collector.evidence.fact_store import FactStore, clear_marks, gpus_on
from railscope_collector.evidence.gpu_evidence import AdministratorInputs
from railscope_collector.ledger import day_documents


def finalize_marked(
    store: FactStore, files: AdministratorInputs, days: range, now_ns: int
) -> int | None:
    """Meter the marked days of a window, and write those that differ; return the number of new revisions.

    Each node and day is one transaction, without a lease: the collector that has the lock reads all facts that were
    committed, and one that is paused loses its transaction. None if another collector has the lock. Blocks; raises
    UnusableLedgerError.
    """
    added = 0
    for node, day in store.marked_days(days):
        with store.database.transaction(writes=True) as connection:
            if not day_documents.try_lock_days(connection):
                return None
            # First: a mark that is committed after the facts are read stays for the next round.
            clear_marks(connection, node, day)
            gpus = gpus_on(connection, node, day)
            found = store.read_day(connection, gpus, day)
            metered = [meter_day(gpu, day, found, files) for gpu in gpus]
            written = day_documents.write_days(connection, metered, now_ns)
            added += sum(revision.added for revision in written)
    return added
