"""Parsers of what jobs record about their collectives, and the comparison of their ranks.

Jobs write these files and answers: every module accepts any bytes, has bounds, and raises `CollectiveFormatError` for input of another
form. None reads files.

    pickled_literals  pickles that consist of literals, read without the opcodes that run code
    flight_recorder   dumps of PyTorch's flight recorder, as pickle or JSON
    rank_verdicts     ranks of a process group that are late, mismatched or stuck
    inspector         logs of NCCL Inspector
    communicator_totals  calls of a communicator by kind and size, and the order in which its ranks arrive
    ras_answers       answers of NCCL's RAS subsystem
    ras_verdicts      ranks of a communicator that are late, mismatched, missing or dead
"""

from __future__ import annotations

from railscope import RailscopeError

COMPARED_KINDS = frozenset(
    (
        *("AllReduce", "AllGather", "ReduceScatter", "AlltoAll", "AllToAll"),
        *(
            "all_reduce",
            "all_reduce_barrier",
            "allreduce_coalesced",
            "all_gather",
            "_all_gather_base",
        ),
        *("all_gather_into_tensor_coalesced", "reduce_scatter", "_reduce_scatter_base"),
        *("reduce_scatter_tensor_coalesced", "all_to_all", "barrier"),
    )
)
"""Collectives that no rank can leave before all have arrived: NCCL's names (AllToAll: RCCL's), then PyTorch's.

In all others some ranks are done early, or wait, by design: the root of a broadcast, the leaves of a reduction, the
neighbours in a pipeline. So ranks are compared in these only, and not in one that a newer NCCL or PyTorch may have.
"""


class CollectiveFormatError(RailscopeError, ValueError):
    """Input is not in the format of its source, or exceeds a bound."""
