"""Settlement: writing evidence to the database, and finalizing ledger days."""
