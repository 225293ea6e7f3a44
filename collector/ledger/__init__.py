"""The metering ledger: results of metering, in an append-only database.

    day_tiling       unit of a write: everything about one GPU on one UTC day
    day_metering     such days, computed from the evidence of a GPU
    schema           tables, the triggers that keep them append-only, and migration
    head_chain       hash chain over the rows, recorded in the audit log
    audit_outbox     records for the audit log, written with the change
    database         SQLite or PostgreSQL, opened by URL; its location and readiness
    ledger_queries   queries of the tables
    row_conversion   conversion of results to rows, and back
    ledger_store     the ledger: writing and reading

`collector.tables` has all tables of the same database, including those of other packages. All calls block;
the caller makes them in a separate thread.

`LedgerError` is the base for a database that is unavailable, altered or not a ledger. `TilingError` and
`OutboxError` (rejected data) and `StoppedError` (the ledger is read-only) are separate: callers must not
treat them as an unavailable database, which is retried.
"""
