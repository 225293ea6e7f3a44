"""Parsers of what jobs record about their collectives, and the comparison of their ranks.

Jobs write these files and answers: every module accepts any bytes, has bounds, and raises `CollectiveFormatError` for input of another
form. None reads files.

    pickled_literals  pickles that consist of literals, read without the opcodes that run code
    flight_recorder   dumps of PyTorch's flight recorder, as pickle or JSON
    rank_verdicts     ranks of a process group that are late, mismatched or stuck
    inspector         logs of NCCL Inspector
    inspector_metrics  its metrics files
    communicator_totals  calls of a communicator by kind and size, and the order in which its ranks arrive
    ras_answers       answers of NCCL's RAS subsystem, as JSON or text
    ras_verdicts      ranks of a communicator that are late, mismatched, missing or dead
"""

from __future__ import annotations

from railscope import RailscopeError


class CollectiveFormatError(RailscopeError, ValueError):
    """Input is not in the format of its source, or exceeds a bound."""
