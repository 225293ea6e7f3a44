"""Slurm's own notations, for the agent that sees jobs run and the collector that reads the books.

Every module here is a parser: text in, frozen values out. What is not in the format that a parser
knows is a `FormatError`, never a guess.

    hostlist    lists of nodes
    gres        generic resources: what a job holds on a node, and counts over all of its nodes
    job         a job, and what its printed forms have in common
    scontrol    jobs as `scontrol show job` and `squeue` tell them
    sacct       jobs as the accounting tells them
"""

from __future__ import annotations


class FormatError(ValueError):
    """Something that is not in the format its parser knows; the message says what and where."""
