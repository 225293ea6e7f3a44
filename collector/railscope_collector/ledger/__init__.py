"""The metering ledger: results of metering, in an append-only database.

`day_metering` computes days of one GPU from its evidence; `day_documents` has their documents and totals, which
`ledger_store` writes and reads; `row_days` reads the days of releases up to 0.3. `schema` has the triggers that keep
tables append-only, and the tables of these days;
`head_chain` the hash chain over the rows; `audit_outbox` the records for the audit log, written with
the change. All calls block; the caller makes them in a separate thread.
"""

from __future__ import annotations


class LedgerError(Exception):
    """Base of the errors of the ledger.

    Callers retry after an `UnusableLedgerError` (unavailable, altered, or not a ledger). They must not
    retry rejected data (`MeteredDayError`, `OutboxError`) or a ledger that is read-only (`OlderLedgerError`).
    """
