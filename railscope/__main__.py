"""`python -m railscope`: alias of `railscope`."""

from railscope.cli import main

main()
