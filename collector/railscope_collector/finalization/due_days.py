"""Days of GPUs that are to be written, and their groups, which limit the days per step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from railscope.timestamps import DAY_NS
from railscope_collector.evidence import claim_events, evidence_tables
from railscope_collector.ledger.day_documents import GpuDay

GPUS_AT_ONCE = 64
GpuNodes = Mapping[str, Mapping[str, int]]
"""Nodes of each GPU, and since when it was in them."""


class DueDays(NamedTuple):
    """Days of a GPU that are to be written."""

    gpu: str
    days: tuple[int, ...]


def group_by_nodes(jobs: Sequence[Any], homes: GpuNodes) -> Iterator[list[Any]]:
    """Group jobs of GPUs that share nodes, so that a node's evidence is read once."""
    together: dict[tuple[str, ...], list[Any]] = {}
    for job in jobs:
        together.setdefault(tuple(sorted(homes[job.gpu])), []).append(job)
    waiting: list[Any] = []
    for group in together.values():
        waiting += group
        if len(waiting) >= GPUS_AT_ONCE:
            yield waiting
            waiting = []
    if waiting:
        yield waiting


_DAYS_AT_ONCE = 2
"""All evidence of some nodes on these days is in memory while they are written."""


def find_due(
    homes: GpuNodes,
    finalized: Mapping[str, int],
    window: range,
    changes: Iterable[evidence_tables.EvidenceChange],
    rejected: Iterable[GpuDay] = (),
) -> list[DueDays]:
    """Return the days of each GPU that are to be written, new or revised, or again after they were rejected.

    `finalized` has the last day of each GPU that is in the ledger. The window ends with the first day
    that is not over; changes of days before its start are too late.
    """
    again: dict[str, list[int]] = {}
    for gpu, day in rejected:
        again.setdefault(gpu, []).append(day)
    about: dict[tuple[str, str], list[evidence_tables.EvidenceChange]] = {}
    for change in changes:
        about.setdefault((change.node, change.gpu), []).append(change)
    due = []
    for gpu in sorted(homes):
        since_day = min(homes[gpu].values()) // DAY_NS
        next_day = finalized.get(gpu, since_day - 1) + 1
        # A GPU without ledger days begins with the day on which it was first seen.
        days = {*range(max(next_day, since_day), window.stop), *again.get(gpu, ())}
        keys = [("", gpu), ("", "")]
        for node in homes[gpu]:
            keys += [(node, ""), ("", claim_events.unplaced_key(node))]
        for change in (change for key in keys for change in about.get(key, ())):
            first = max(
                (change.start_ns - evidence_tables.CONTEXT_NS) // DAY_NS, since_day, window.start
            )
            # Up to the last day in the ledger: later ones are due anyway.
            last = min((change.end_ns + evidence_tables.CONTEXT_NS) // DAY_NS, next_day - 1)
            days.update(range(first, last + 1))
        if days:
            due.append(DueDays(gpu, tuple(sorted(days))))
    return due


def group_due(jobs: Sequence[DueDays], homes: GpuNodes) -> Iterator[list[DueDays]]:
    """Divide jobs into groups of a few days, the oldest first."""
    parts: dict[int, list[DueDays]] = {}
    for job in jobs:
        for number, days in groupby(job.days, key=lambda day: day // _DAYS_AT_ONCE):
            parts.setdefault(number, []).append(DueDays(job.gpu, tuple(days)))
    for _, gpu_days in sorted(parts.items()):
        yield from group_by_nodes(gpu_days, homes)
