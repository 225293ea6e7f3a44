"""Settlement: evidence to the database, and ledger days that can be finalized."""
