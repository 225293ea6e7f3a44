"""The web console: server-rendered pages, their history and their curves."""
