"""Time before a period that no closing has billed, and the opening date that excludes some of it."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, func, select

from collector.billing import records, tables
from collector.billing.closed import Closing, ClosingError
from collector.billing.completeness import spelled_days
from collector.billing.stored import Opening
from collector.ledger import heads
from collector.ledger.database import Database
from collector.ledger.queries import within
from collector.ledger.rows import GpuDay
from collector.ledger.schema import entries
from collector.metering.instants import DAY_NS, Period, spelled
from collector.metering.periods import name_of
from collector.metering.tiling import State
from collector.metering.units import Tiling
from railscope.audit.record import Actor

NEVER_BILLED = frozenset({
    State.IDLE, State.STRANDED, State.SYSTEM, State.MAINTENANCE, State.DOWN, State.UNKNOWN
})  # fmt: skip
"""States that never need a bill or a decision; time in any other state is billable or undecided."""


def opening(database: Database) -> Opening | None:
    """The newest opening date; None if all time is billed."""
    table = tables.openings
    query = select(table).order_by(table.c.opening.desc()).limit(1)
    with database.transaction() as connection:
        row = connection.execute(query).first()
    if row is None:
        return None
    return Opening(row.opening_ns, row.reason, row.recorded_ns, row.recorded_by)


def set_opening(
    connection: Connection, closings: Sequence[Closing], found: Opening, actor: Actor
) -> None:
    """Exclude all time before an instant from bills. Raises ClosingError.

    The instant is the start of a UTC day and not after the start of the first closed period.
    """
    if found.opening_ns % DAY_NS:
        message = f"opening date: {spelled(found.opening_ns)}: expected the start of a UTC day"
        raise ClosingError(message)
    first_ns = min((one.period.start_ns for one in closings), default=found.opening_ns)
    if found.opening_ns > first_ns:
        message = (
            f"opening date: {spelled(found.opening_ns)}: expected at most {spelled(first_ns)}, "
            "the start of the first closed period"
        )
        raise ClosingError(message)
    table = tables.openings
    count = connection.execute(select(func.count()).select_from(table)).scalar_one()
    row = {"opening": count + 1, **found._asdict()}
    connection.execute(table.insert(), [row])
    stored = heads.read_back(connection, "opening", count + 1)
    records.opened(connection, stored, found, actor)
    heads.append(connection, [stored], found.recorded_ns)


def unclosed(
    database: Database, period: Period, closings: Sequence[Closing], opened: Opening | None
) -> list[GpuDay]:
    """GPU-days before a period with billable or undecided time that no closing covers.

    Closed periods are consecutive, so these are days before the first of them.
    """
    first_ns = min([period.start_ns, *(one.period.start_ns for one in closings)])
    since_ns = opened.opening_ns if opened else 0
    if since_ns >= first_ns:
        return []
    days = select(entries.c.gpu_uuid, entries.c.day).distinct()
    days = within(days, since_ns, first_ns).where(
        entries.c.tiling == Tiling.COMPUTE, entries.c.state.not_in(NEVER_BILLED)
    )
    with database.transaction() as connection:
        return sorted(GpuDay(*row) for row in connection.execute(days))


def check_earlier(
    database: Database, period: Period, closings: Sequence[Closing], opened: Opening | None
) -> None:
    """Raise ClosingError if a period begins before the opening date or leaves out earlier time."""
    name = name_of(period)
    if opened and period.start_ns < opened.opening_ns:
        message = (
            f"cannot close {name}: it begins before the opening date: expected a period from "
            f"{spelled(opened.opening_ns)[:10]} on"
        )
        raise ClosingError(message)
    days = unclosed(database, period, closings, opened)
    if not days:
        return
    first = spelled(min(one.day for one in days) * DAY_NS)
    until_ns = min([period.start_ns, *(one.period.start_ns for one in closings)])
    fix = "" if closings else f"close the period from {first[:10]} on first, or "
    message = (
        f"cannot close {name}: earlier days are not closed and have billable or undecided time: "
        f"{spelled_days(days)}; fix: {fix}exclude them with `railscope bill opening "
        f"{spelled(until_ns)[:10]} --reason TEXT`"
    )
    raise ClosingError(message)
