"""The metering ledger: results of metering, in an append-only database.

`day_metering` computes days of one GPU (`day_tiling`) from its evidence; `ledger_store` writes and
reads them. `schema` has the tables, the triggers that keep them append-only, and the migration;
`head_chain` the hash chain over the rows; `audit_outbox` the records for the audit log, written with
the change. All calls block; the caller makes them in a separate thread.
"""

from __future__ import annotations


class LedgerError(Exception):
    """Base of the errors of the ledger.

    Callers retry after an `UnusableLedgerError` (unavailable, altered, or not a ledger). They must not
    retry rejected data (`TilingError`, `OutboxError`) or a ledger that is read-only (`OlderLedgerError`).
    """
