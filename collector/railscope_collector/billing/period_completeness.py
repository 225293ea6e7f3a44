"""Completeness of a period: GPU-days missing or not final, and earlier time that is unbilled.

Time before a period that no closing has billed prevents its closing; the opening date excludes some
of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from railscope.timestamps import DAY_NS, format_timestamp
from railscope_collector.billing import billing_store, closing_record, period_rating
from railscope_collector.evidence.usage_facts import UsageFacts
from railscope_collector.jobs.imported_lists import ImportedList, is_listed_gpu, uncovered_days
from railscope_collector.ledger import day_documents
from railscope_collector.ledger.day_documents import GpuDay
from railscope_collector.metering import slot_state, units

_MAX_DAY_RANGES = 8


_JOB_LIST = "job list "
"""Begins what stands for the GPU in days without a list of a source."""


class MissingDays(NamedTuple):
    """GPU-days that are missing in the ledger, and those of agents recorded before the day was over.

    `uncovered` has the days without a list of a source of job lists.
    """

    missing: tuple[GpuDay, ...]
    provisional: tuple[GpuDay, ...]
    uncovered: tuple[GpuDay, ...] = ()

    def __str__(self) -> str:
        parts = []
        if absent := (*self.missing, *self.uncovered):
            parts.append(f"missing in the ledger: {format_days(absent)}")
        if self.provisional:
            parts.append(f"not final in the ledger: {format_days(self.provisional)}")
        return "; ".join(parts)

    @property
    def all(self) -> tuple[GpuDay, ...]:
        """All days, sorted."""
        return tuple(sorted({*self.missing, *self.provisional, *self.uncovered}))

    @property
    def fix(self) -> str:
        """The remedies. The collector finalizes days of agents later; an administrator imports each list."""
        fixes = []
        if self.missing or self.provisional:
            fixes.append("wait for the GPU-days")
        if self.uncovered:
            sources = sorted({key.gpu.removeprefix(_JOB_LIST) for key in self.uncovered})
            lists = (
                f"list of {sources[0]}" if len(sources) == 1 else f"lists of {', '.join(sources)}"
            )
            fixes.append(f"import the {lists} again, made after the period ended")
        return " and ".join(fixes)


def find_missing_days(
    period: units.Period,
    sources: Mapping[GpuDay, period_rating.SourceRevision],
    facts: UsageFacts | None = None,
    imported: Sequence[ImportedList] = (),
) -> MissingDays:
    """GPU-days that are missing or not final in a period.

    A GPU is expected on every day on which it is in service by the facts; without facts, on every day from its first
    one in the ledger on. A day that later facts changed is not final until it is metered again. GPUs of job lists
    are expected only on the days of lists that name them; each source of lists is expected to have a list for every
    day from its first one on.
    """
    days = period_rating.period_days(period)
    changed: set[GpuDay] = set()
    if facts is None:
        expected = _expected_by_ledger(sources, days)
    else:
        expected, changed = facts.gpu_days(days), facts.unfinished(days)
    missing = expected - sources.keys()
    uncovered = [
        GpuDay(f"{_JOB_LIST}{source}", day) for source, day in uncovered_days(imported, days)
    ]
    early = [
        key
        for key, source in sources.items()
        # A day of an agent that was recorded before its end lacks its last hours. A day of job lists
        # is written again only if a later list changes it: `uncovered` has the lists made too early.
        if key.day in days
        and source.recorded_ns < (key.day + 1) * DAY_NS
        and not is_listed_gpu(key.gpu)
    ]
    provisional = {*early, *(changed & sources.keys())}
    return MissingDays(tuple(sorted(missing)), tuple(sorted(provisional)), tuple(sorted(uncovered)))


def _expected_by_ledger(
    sources: Mapping[GpuDay, period_rating.SourceRevision], days: range
) -> set[GpuDay]:
    first: dict[str, int] = {}
    for key in sources:
        if key.day < days.stop and not is_listed_gpu(key.gpu):
            first[key.gpu] = min(key.day, first.get(key.gpu, key.day))
    return {
        GpuDay(gpu, day)
        for gpu, since in first.items()
        for day in range(max(since, days.start), days.stop)
    }


def format_days(days: Iterable[GpuDay]) -> str:
    """Format some GPU-days, consecutive days as one range, with the number of those left out."""
    ordered = sorted(set(days))
    rows: list[tuple[str, int, int]] = []
    for key in ordered:
        if rows and rows[-1][0] == key.gpu and rows[-1][2] == key.day - 1:
            rows[-1] = (key.gpu, rows[-1][1], key.day)
        else:
            rows.append((key.gpu, key.day, key.day))
    shown = ", ".join(
        f"{gpu} {_format_day_range(first, last)}" for gpu, first, last in rows[:_MAX_DAY_RANGES]
    )
    rest = sum(last - first + 1 for _, first, last in rows[_MAX_DAY_RANGES:])
    more = f" and {rest:,} more" if rest else ""
    return f"{len(ordered):,} GPU-{'day' if len(ordered) == 1 else 'days'} ({shown}{more})"


def _format_day_range(first: int, last: int) -> str:
    start, end = (format_timestamp(day * DAY_NS)[:10] for day in (first, last))
    return f"on {start}" if first == last else f"from {start} to {end}"


_BILLABLE = frozenset(slot_state.SlotState) - {
    slot_state.SlotState.IDLE,
    slot_state.SlotState.STRANDED,
    slot_state.SlotState.SYSTEM,
    slot_state.SlotState.MAINTENANCE,
    slot_state.SlotState.DOWN,
    slot_state.SlotState.UNKNOWN,
}
"""States of time that is billable or undecided."""


def find_unclosed_days(
    store: billing_store.BillingStore,
    period: units.Period,
    closings: Sequence[closing_record.PeriodClosing],
) -> list[GpuDay]:
    """GPU-days before a period with billable or undecided time that no closing covers.

    Closed periods are consecutive, so these are days before the first of them.
    """
    first_ns = min([period.start_ns, *(closing.period.start_ns for closing in closings)])
    opened = store.opening()
    since_ns = opened.opening_ns if opened else 0
    if since_ns >= first_ns:
        return []
    span = range(since_ns // DAY_NS, -(-first_ns // DAY_NS))
    with store.database.transaction() as connection:
        totals = day_documents.read_totals(connection, span)
        days = {
            day for (day, total), quantity in totals.items() if quantity and total.name in _BILLABLE
        }
        numbers: dict[GpuDay, int] = {}
        for day in sorted(days):
            numbers |= day_documents.newest_numbers(connection, range(day, day + 1))
        return [
            revision.key
            for revision in day_documents.read_revisions(connection, numbers)
            if any(
                part.state in _BILLABLE
                for piece in revision.day.pieces
                for part in piece.parts
                if piece.start_ns < first_ns and since_ns < piece.end_ns
            )
        ]


def check_earlier(
    store: billing_store.BillingStore,
    period: units.Period,
    closings: Sequence[closing_record.PeriodClosing],
) -> None:
    """Raise ClosingError if a period begins before the opening date or leaves out earlier time."""
    name, opened = units.period_name(period), store.opening()
    if opened and period.start_ns < opened.opening_ns:
        message = (
            f"cannot close {name}: it begins before the opening date: expected a period from "
            f"{format_timestamp(opened.opening_ns)[:10]} on"
        )
        raise closing_record.ClosingError(message)
    days = find_unclosed_days(store, period, closings)
    if not days:
        return
    first = format_timestamp(min(gpu_day.day for gpu_day in days) * DAY_NS)
    until_ns = min([period.start_ns, *(closing.period.start_ns for closing in closings)])
    fix = "" if closings else f"close the period from {first[:10]} on first, or "
    message = (
        f"cannot close {name}: earlier days are not closed and have billable or undecided time: "
        f"{format_days(days)}; fix: {fix}exclude them with `railscope bill opening "
        f"{format_timestamp(until_ns)[:10]} --reason TEXT`"
    )
    raise closing_record.ClosingError(message)
