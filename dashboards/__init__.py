"""Grafana dashboards, built from the catalog; `python -m dashboards` writes them to `generated/`."""

COLUMNS = 24
"""Width of a Grafana dashboard, in the unit of panel widths."""
