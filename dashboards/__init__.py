"""Grafana boards, built from the catalog; `python -m dashboards` writes them to `generated/`."""

COLUMNS = 24
"""How wide a board of Grafana is, in the unit that panels have."""
