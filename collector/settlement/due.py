"""Days of GPUs that are due to be written to the ledger, and their number per step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from collector.evidence.changes import Change
from collector.evidence.claim_events import unplaced_in
from collector.evidence.queries import CONTEXT_NS
from collector.ledger.tiling import DAY_NS
from collector.settlement.days import Homes, Job, groups

_DAYS_AT_ONCE = 2
"""All evidence of some nodes on these days is in memory while they are written."""


def due_days(
    homes: Homes, settled: Mapping[str, int], window: range, changes: Iterable[Change]
) -> list[Job]:
    """Return the days of each GPU that are to be written, new or revised.

    `settled` has the last day of each GPU that is in the ledger. The window ends with the first day
    that is not over; changes of days before its start are too late.
    """
    about: dict[tuple[str, str], list[Change]] = {}
    for change in changes:
        about.setdefault((change.node, change.gpu), []).append(change)
    found = []
    for gpu in sorted(homes):
        since_day = min(homes[gpu].values()) // DAY_NS
        next_day = settled.get(gpu, since_day - 1) + 1
        days = set(range(max(next_day, since_day), window.stop))
        keys = [("", gpu), ("", "")]
        for node in homes[gpu]:
            keys += [(node, ""), ("", unplaced_in(node))]
        for change in (change for key in keys for change in about.get(key, ())):
            first = max((change.start_ns - CONTEXT_NS) // DAY_NS, since_day, window.start)
            last = min((change.end_ns + CONTEXT_NS) // DAY_NS, next_day - 1)
            days.update(range(first, last + 1))
        if days:
            found.append(Job(gpu, tuple(sorted(days))))
    return found


def windows(jobs: Sequence[Job], homes: Homes) -> Iterator[list[Job]]:
    """Divide jobs into groups of a few days, the oldest first."""
    parts: dict[int, list[Job]] = {}
    for job in jobs:
        for number, days in groupby(job.days, key=lambda day: day // _DAYS_AT_ONCE):
            parts.setdefault(number, []).append(Job(job.gpu, tuple(days)))
    for _, some in sorted(parts.items()):
        yield from groups(some, homes)
