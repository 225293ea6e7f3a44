"""Grafana boards, built from the catalog; `python -m dashboards` writes them to `generated/`."""
