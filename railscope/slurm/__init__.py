"""Parsers of Slurm's formats, for the agent's view of running jobs and the collector's accounting import.

Every module here is a parser: text in, frozen values out. Input that is not in the expected format raises
`SlurmFormatError`; parsers never guess.

  notation    lists of nodes, generic resources, job IDs and times in Slurm's notation
  sacct       jobs in the accounting output
"""

from __future__ import annotations

from railscope import RailscopeError


class SlurmFormatError(RailscopeError, ValueError):
    """Input that is not in the format of its parser; the message states the defect and its position."""
