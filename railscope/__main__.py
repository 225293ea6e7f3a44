"""`python -m railscope` is the same program as `railscope`."""

from railscope.cli import main

main()
