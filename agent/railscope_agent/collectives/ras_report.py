"""Report of NCCL's RAS subsystem: communicators, their ranks, and dead processes."""

from __future__ import annotations

from typing import Annotated

import msgspec

MAX_RANKS = 1 << 16
"""Maximum number of ranks in one report, over all communicators: an answer of 16 MiB has half as many. Others are left out."""
MAX_COMMUNICATORS, MAX_KINDS, MAX_TEXT = 4096, 16, 64
MAX_EVENTS = 256
Number = Annotated[int, msgspec.Meta(ge=-(1 << 31), lt=1 << 31)]
Text = Annotated[str, msgspec.Meta(max_length=MAX_TEXT)]


class ReportedRank(msgspec.Struct, frozen=True, omit_defaults=True):
    """Rank of a communicator as a report has it; `pid` is the number in the namespace of the process, -1 if unknown.

    `problem` is empty, `starting`, `failed`, `missing` or `dead`; `counts` are collectives launched, by kind.
    """

    rank: int
    host: str = ""
    pid: int = -1
    device: int = -1
    problem: str = ""
    detail: str = ""
    counts: dict[str, int] = {}


class ReportedCommunicator(msgspec.Struct, frozen=True, omit_defaults=True):
    """Communicator with its listed ranks, of `size`."""

    name: str
    size: int
    ranks: list[ReportedRank] = []


class ReportedPeer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A process of the job that is considered dead."""

    host: str
    pid: int
    detail: str = ""


class RasReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """Answer to one query: version of NCCL, and communicators.

    `damaged` counts the communicators that were left out because they are not valid: NCCL 2.28 to 2.29.1 reports
    memory that is not initialized, and null while a communicator starts.
    """

    version: str = ""
    communicators: list[ReportedCommunicator] = []
    damaged: int = 0
