"""Writing of usage evidence to the database, and finalizing of ledger days."""
