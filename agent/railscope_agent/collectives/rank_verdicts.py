"""Ranks of a process group that are late, mismatched or stuck, from what each of them recorded.

The collective that counts is the incomplete one with the lowest sequence number. A rank that has not entered it is late if
its own record is so young that it shows this: other ranks had waited for `min_wait_ns` when it was made. Records are made one
after the other, and a healthy job has short waits all the time. A rank without a record, or with one that is
too old, is unknown, never healthy. In a collective that some ranks leave early by design, no rank is late.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import IntEnum

from railscope_agent.collectives import COMPARED_KINDS, flight_recorder as recorder

SAME_SHAPE = frozenset(
    (
        "all_reduce",
        "allreduce_coalesced",
        "broadcast",
        "reduce",
        "_all_gather_base",
        "_reduce_scatter_base",
    )
)
"""Collectives whose inputs have the same shape on all ranks."""


class RankState(IntEnum):
    """State of a rank in its group, as of its record."""

    UNKNOWN = 0
    RUNNING = 1
    WAITING = 2
    LATE = 3
    MISMATCHED = 4
    STUCK = 5


@dataclass(frozen=True, slots=True)
class RankRecord:
    """Group as a rank recorded it, and the time of the record on the wall clock."""

    group: recorder.RecordedGroup
    recorded_ns: int


@dataclass(frozen=True, slots=True)
class RankVerdict:
    """State of a rank, the collective in question, and how long the first rank had waited in it.

    `collective` of a late rank is the one that it has not entered, as another rank recorded it; `last` is the one that the
    rank itself entered last. `peers` are the ranks that wait in it.
    """

    state: RankState
    collective: recorder.RecordedCollective | None = None
    last: recorder.RecordedCollective | None = None
    waited_ns: int = 0
    peers: tuple[int, ...] = ()


NO_RECORD = RankVerdict(RankState.UNKNOWN)
WHOLE_JOB = "0"
"""Name of the group of all ranks (torch.distributed.init_process_group)."""


def compare_ranks(
    records: Mapping[int, RankRecord], members: Collection[int], min_wait_ns: int
) -> dict[int, RankVerdict]:
    """Return the verdict about each rank of a group; `members` are all of its ranks that are known."""
    usable = {
        r: record for r, record in records.items() if record.group.enqueued != recorder.UNKNOWN
    }
    # Ranks that a record has but the group does not list are kept: the list may be cut or missing.
    verdicts = dict.fromkeys(sorted({*members, *records}), NO_RECORD)
    # The lowest one: a rank that waits there cannot have reached later ones, whose waits follow from it.
    first = min(
        (c.sequence for r in usable.values() if (c := r.group.first_incomplete)), default=None
    )
    if first is None:
        return verdicts | {rank: _verdict(RankState.RUNNING, r) for rank, r in usable.items()}
    waiting = {
        rank: collective
        for rank, record in usable.items()
        if record.group.completed < first and (collective := record.group.find_collective(first))
    }
    if not waiting:
        return verdicts
    starts = [c.created_ns for c in waiting.values() if c.created_ns]
    earliest_ns = min(starts, default=0)
    # Each wait ends with the rank's own record: what happened after it is unknown.
    waits = {r: max(usable[r].recorded_ns - c.created_ns, 0) for r, c in waiting.items()}
    is_long = bool(earliest_ns) and max(waits.values()) >= min_wait_ns
    odd = _mismatched(usable, first)
    # A statement that all ranks are in the collective requires the records of all, also of those on other
    # nodes.
    has_all = bool(members) and {*members} <= usable.keys()
    is_entered = all(record.group.enqueued >= first for record in usable.values())
    peers = tuple(sorted(waiting))
    sample = next(iter(waiting.values()))
    kinds = {collective.name for collective in waiting.values()} - {""}
    is_compared = bool(kinds) and kinds <= COMPARED_KINDS
    for rank, record in usable.items():
        entered = waiting.get(rank)
        if rank in odd:
            state = RankState.MISMATCHED
        elif entered:
            is_stuck = has_all and is_entered and not odd
            state = RankState.STUCK if is_stuck else RankState.WAITING
            state = state if is_long else RankState.RUNNING
        elif record.group.enqueued >= first or not is_long:
            state = RankState.RUNNING
        elif record.recorded_ns - earliest_ns >= min_wait_ns:
            state = RankState.LATE if is_compared else RankState.RUNNING
        else:
            state = RankState.UNKNOWN  # its record is older than the wait of the others
        if state is RankState.RUNNING:
            verdicts[rank] = _verdict(state, record)
            continue
        waited_ns = waits[rank] if entered else max(record.recorded_ns - earliest_ns, 0)
        verdicts[rank] = _verdict(
            state,
            record,
            collective=entered or record.group.find_collective(first) or sample,
            waited_ns=waited_ns,
            peers=tuple(peer for peer in peers if peer != rank),
        )
    return verdicts


def _verdict(
    state: RankState,
    record: RankRecord,
    *,
    collective: recorder.RecordedCollective | None = None,
    waited_ns: int = 0,
    peers: tuple[int, ...] = (),
) -> RankVerdict:
    last = record.group.collectives[-1] if record.group.collectives else None
    return RankVerdict(state, collective, last, waited_ns, peers)


def _mismatched(records: Mapping[int, RankRecord], sequence: int) -> set[int]:
    """Return the ranks whose collective differs from that of most ranks; all of them if there is no majority."""
    entered = {
        r: c
        for r, record in records.items()
        if (c := record.group.find_collective(sequence)) and c.kind  # one without a kind is damaged
    }
    signatures = {rank: _signature(collective) for rank, collective in entered.items()}
    counts = Counter(signatures.values()).most_common()
    if len(counts) < 2:  # noqa: PLR2004 - all are equal
        return set()
    has_majority = counts[0][1] > counts[1][1]
    return {r for r, s in signatures.items() if not has_majority or s != counts[0][0]}


def _signature(collective: recorder.RecordedCollective) -> tuple[str, ...]:
    if collective.name not in SAME_SHAPE:
        return (collective.name,)
    return collective.name, collective.shapes, collective.types
