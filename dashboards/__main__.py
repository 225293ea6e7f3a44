"""Run `python -m dashboards`."""

from dashboards.build import main

main()
