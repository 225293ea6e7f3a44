"""Parsers of Slurm's formats, for the agent's view of running jobs and the collector's accounting import.

Every module here is a parser: text in, frozen values out. Input that is not in the expected format raises
`FormatError`; parsers never guess.

  hostlist    lists of nodes
  gres        generic resources: allocation of a job on a node, and counts over all of its nodes
  job         a job, and the common elements of its printed forms
  scontrol    jobs in the output of `scontrol show job` and `squeue`
  sacct       jobs in the accounting output
"""

from __future__ import annotations


class FormatError(ValueError):
    """Input that is not in the format of its parser; the message states the defect and its position."""
