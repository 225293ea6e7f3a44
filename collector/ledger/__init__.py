"""The metering ledger: what metering found, in a database that is only ever added to.

    tiling     what is written at once: everything about one GPU on one UTC day
    metered    such days from the evidence of a GPU
    schema     tables, and the triggers that keep them append-only
    tables     all tables of the same database, also those of other parts
    database   SQLite or PostgreSQL, opened by URL
    queries    what is asked of the tables
    rows       rows from what was found, and back
    store      the ledger: writing and reading
    reconcile  whether the ledger holds all the time there was

All calls block; the caller makes them in a thread of its own.
"""
