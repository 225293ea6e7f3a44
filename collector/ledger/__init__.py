"""The metering ledger: results of metering, in an append-only database.

`day_metering` computes days of one GPU (`day_tiling`) from its evidence; `ledger_store` writes and
reads them. `schema` has the tables, the triggers that keep them append-only, and the migration;
`head_chain` the hash chain over the rows; `audit_outbox` the records for the audit log, written with
the change. All calls block; the caller makes them in a separate thread.

`LedgerError` is the base for a database that is unavailable, altered or not a ledger. `TilingError` and
`OutboxError` (rejected data) and `StoppedError` (the ledger is read-only) are separate: callers must not
treat them as an unavailable database, which is retried.
"""
