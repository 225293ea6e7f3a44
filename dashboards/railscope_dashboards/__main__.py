"""Run `python -m railscope_dashboards`."""

from railscope_dashboards.build import main

main()
