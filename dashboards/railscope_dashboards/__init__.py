"""Grafana dashboards, built from the catalog; `python -m railscope_dashboards` writes them to `generated/`."""

COLUMNS = 24
"""Width of a Grafana dashboard, in the unit of panel widths."""
CONSOLE_URL = "http://localhost:9470"
"""Address of the web console in the generated files; docs/dashboards.md documents how to replace it."""
