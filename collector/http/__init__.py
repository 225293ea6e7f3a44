"""HTTP: the table of routes, access control, all handlers, and ingest."""
