"""HTTP: the table of routes, the gate before it, every handler, and ingest."""
