"""The metering ledger: results of metering, in an append-only database.

    tiling     unit of a write: everything about one GPU on one UTC day
    metered    such days, computed from the evidence of a GPU
    schema     tables, and the triggers that keep them append-only
    heads      hash chain over the rows, recorded in the audit log
    outbox     records for the audit log, written with the change
    database   SQLite or PostgreSQL, opened by URL
    queries    queries of the tables
    rows       conversion of results to rows, and back
    store      the ledger: writing and reading

`collector.tables` has all tables of the same database, including those of other packages. All calls block;
the caller makes them in a separate thread.
"""
