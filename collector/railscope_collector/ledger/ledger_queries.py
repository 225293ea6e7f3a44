"""Queries of the ledger's tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Connection, Row, Select, Table, and_, case, false, func, select, true

from railscope.timestamps import DAY_NS
from railscope_collector.ledger import day_tiling, row_conversion
from railscope_collector.ledger.schema import (
    claims,
    entries,
    insert_new,
    overlaps,
    revisions,
    shares,
)
from railscope_collector.metering.units import Tiling, Units, exact

PARTS: dict[str, Table] = {
    "entries": entries,
    "shares": shares,
    "claims": claims,
    "overlaps": overlaps,
}
_ORDER = {
    "entries": entries.c.entry,
    "shares": shares.c.share,
    "claims": claims.c.claim_id,
    "overlaps": overlaps.c.overlap,
}
_MAX_AT_ONCE = 500
HALF = 1 << 32
"""Amounts of many days are summed by their upper and lower half: each sum is within 64 bits."""

T = TypeVar("T")


class RevisionRows(NamedTuple):
    """The rows of one revision."""

    head: Row[Any]
    parts: Mapping[str, Sequence[Row[Any]]]


def split_items(items: Iterable[T], size: int = _MAX_AT_ONCE) -> Iterator[list[T]]:
    """Split items into lists as long as one statement may contain."""
    rest = list(items)
    while rest:
        yield rest[:size]
        rest = rest[size:]


def by_day(keys: Iterable[row_conversion.GpuDay]) -> Iterator[tuple[int, list[str]]]:
    """Yield days in order with some of their GPUs in order: the scope of one statement."""
    days: dict[int, list[str]] = defaultdict(list)
    for key in keys:
        days[key.day].append(key.gpu)
    for day in sorted(days):
        for gpus in split_items(sorted(days[day])):
            yield day, gpus


def newest_heads(
    connection: Connection, keys: Iterable[row_conversion.GpuDay]
) -> dict[row_conversion.GpuDay, Row[Any]]:
    """Return the newest revision of each GPU-day that has one."""
    heads: dict[row_conversion.GpuDay, Row[Any]] = {}
    # By day and in groups: a statement may have a limited number of parameters.
    for day, gpus in by_day(keys):
        newest = _select_newest(revisions.c.day == day, revisions.c.gpu_uuid.in_(gpus))
        query = select(revisions).join_from(revisions, newest, _match_newest(newest))
        for row in connection.execute(query):
            heads[row_conversion.GpuDay(row.gpu_uuid, row.day)] = row
    return heads


def newest_numbers(
    connection: Connection, days: range, gpus: Iterable[str] | None
) -> dict[row_conversion.GpuDay, int]:
    """Return the number of the newest revision of each GPU-day, for all GPUs or some."""
    conditions = [revisions.c.day >= days.start, revisions.c.day < days.stop]
    if gpus is None:
        newest = [_select_newest(*conditions)]
    else:
        newest = [
            _select_newest(*conditions, revisions.c.gpu_uuid.in_(gpu_group))
            for gpu_group in split_items(sorted(gpus))
        ]
    rows = [row for each in newest for row in connection.execute(select(each))]
    return {row_conversion.GpuDay(row.gpu_uuid, row.day): row.revision for row in rows}


def add_revisions(
    connection: Connection, rows: Sequence[row_conversion.RowValues]
) -> set[row_conversion.GpuDay]:
    """Insert revisions; return their GPU-days, except those of numbers that another writer has inserted."""
    returning = insert_new(connection, revisions).returning(revisions.c.gpu_uuid, revisions.c.day)
    return {row_conversion.GpuDay(*row) for row in connection.execute(returning, rows)}


def read_revisions(
    connection: Connection,
    day: int,
    gpus: Sequence[str],
    numbers: Mapping[row_conversion.GpuDay, int],
) -> Iterator[RevisionRows]:
    """Yield the rows of the revisions with these numbers; missing ones are omitted."""

    def select_rows(table: Table, *order: Any) -> list[Row[Any]]:
        query = select(table).where(table.c.day == day, table.c.gpu_uuid.in_(gpus))
        rows = connection.execute(query.order_by(table.c.gpu_uuid, *order)).all()
        # Filtered here: most days have one revision of each GPU.
        return [
            row for row in rows if numbers[row_conversion.GpuDay(row.gpu_uuid, day)] == row.revision
        ]

    parts: dict[str, dict[str, list[Row[Any]]]] = {
        gpu: {name: [] for name in PARTS} for gpu in gpus
    }
    for name, table in PARTS.items():
        for row in select_rows(table, _ORDER[name]):
            parts[row.gpu_uuid][name].append(row)
    for head in select_rows(revisions):
        yield RevisionRows(head, parts[head.gpu_uuid])


def find_counted_days(
    connection: Connection, numbers: Mapping[row_conversion.GpuDay, int], claims: Collection[str]
) -> set[row_conversion.GpuDay]:
    """Return the GPU-days on which an entry of these revisions belongs to a counted claim of `claims`."""
    counted_days: set[row_conversion.GpuDay] = set()
    columns = (entries.c.gpu_uuid, entries.c.revision, entries.c.claim_id)
    for day, gpus in by_day(numbers):
        conditions = (entries.c.day == day, entries.c.gpu_uuid.in_(gpus), entries.c.placement != "")
        query = select(*columns).distinct().where(*conditions)
        for gpu, revision, claim in connection.execute(query):
            key = row_conversion.GpuDay(gpu, day)
            if claim in claims and numbers[key] == revision:
                counted_days.add(key)
    return counted_days


def restrict_to_window(query: Select[Any], table: Table, start_ns: int, end_ns: int) -> Select[Any]:
    """Restrict a query to entries or overlaps of newest revisions that intersect a window."""
    newest, conditions = _window(table, start_ns, end_ns)
    joined = query.join_from(table, newest, _match_newest(newest, table))
    return joined.join(revisions, _match_newest(table, revisions)).where(*conditions)


def _window(table: Table, start_ns: int, end_ns: int) -> tuple[Any, Sequence[Any]]:
    """Return the newest revisions of a window, and the conditions for rows that intersect it."""
    newest = _select_newest(
        revisions.c.day >= start_ns // DAY_NS, revisions.c.day * DAY_NS < end_ns
    )
    # With an empty window, the two conditions on times would still match rows that contain its start.
    is_window = true() if start_ns < end_ns else false()
    return newest, (table.c.t0_ns < end_ns, table.c.t1_ns > start_ns, is_window)


def sum_times(
    connection: Connection, keys: Sequence[Any], start_ns: int, end_ns: int
) -> dict[tuple[Any, ...], Units]:
    """Return the cap-unit-nanoseconds of a window by GPU, day and keys, from newest revisions."""
    t0 = case((entries.c.t0_ns < start_ns, start_ns), else_=entries.c.t0_ns)
    t1 = case((entries.c.t1_ns > end_ns, end_ns), else_=entries.c.t1_ns)
    newest, conditions = _window(entries, start_ns, end_ns)
    groups = (entries.c.gpu_uuid, entries.c.day, *keys)
    return read_quantities(connection, groups, t1 - t0, newest, conditions)


def finalized_time(connection: Connection, gpus: Collection[str]) -> dict[tuple[Any, ...], Units]:
    """Return the compute time of some GPUs by day, state and tenant, from newest revisions."""
    newest = _select_newest(revisions.c.gpu_uuid.in_(gpus))
    keys = (entries.c.day, entries.c.state, entries.c.tenant_id)
    length = entries.c.t1_ns - entries.c.t0_ns
    return read_quantities(
        connection, keys, length, newest, [entries.c.tiling == Tiling.COMPUTE.value]
    )


def read_quantities(
    connection: Connection, keys: Sequence[Any], length: Any, newest: Any, conditions: Iterable[Any]
) -> dict[tuple[Any, ...], Units]:
    """Return sizes times lengths of entries by keys, in cap-unit-nanoseconds; `newest` selects revisions.

    The database sums each GPU-day of at most `CAPACITY_UNITS`, which is within 64 bits; entries of finer
    units, and everything beyond a GPU-day, are summed here.
    """
    size = entries.c.slot_hi - entries.c.slot_lo
    units = revisions.c.capacity_units
    of_gpu_day = (entries.c.gpu_uuid, entries.c.day)

    def rows(*columns: Any) -> Select[Any]:
        query = select(*columns).join_from(entries, revisions, _match_newest(entries, revisions))
        if newest is not None:
            query = query.join(newest, _match_newest(newest, entries))
        return query.where(*conditions)

    summed = rows(*keys, units, func.sum(size * length)).where(units <= day_tiling.CAPACITY_UNITS)
    sums: dict[tuple[Any, ...], Units] = defaultdict(int)
    for *key, of, total in connection.execute(summed.group_by(*keys, *of_gpu_day, units)):
        sums[tuple(key)] += day_tiling.from_revision_units(int(total), of)
    single = rows(*keys, units, size, length).where(units > day_tiling.CAPACITY_UNITS)
    for *key, of, high_low, span in connection.execute(single):
        sums[tuple(key)] += day_tiling.from_revision_units(int(high_low) * int(span), of)
    return {key: exact(quantity) for key, quantity in sums.items()}


def finalized_amounts(gpus: Collection[str]) -> Select[Any]:
    """Select the counted amounts of some GPUs by measure, use and tenant: `high` times HALF, and `low`."""
    newest = _select_newest(revisions.c.gpu_uuid.in_(gpus))
    keys = (shares.c.measure, shares.c.use, shares.c.tenant_id)
    high = func.sum(shares.c.amount // HALF).label("high")
    low = func.sum(shares.c.amount % HALF).label("low")
    query = select(*keys, high, low).join_from(shares, newest, _match_newest(newest, shares))
    return query.group_by(*keys)


def finalized_marks(gpus: Collection[str]) -> Select[Any]:
    """Select the marks (`clock_suspect`) of all marked days of some GPUs, from newest revisions."""
    newest = _select_newest(revisions.c.gpu_uuid.in_(gpus))
    query = select(revisions.c.clock_suspect).join_from(revisions, newest, _match_newest(newest))
    return query.where(revisions.c.clock_suspect.is_not(None))


def read_marks(
    connection: Connection, numbers: Mapping[row_conversion.GpuDay, int]
) -> Iterator[tuple[row_conversion.GpuDay, str]]:
    """Yield those of some revisions that have a mark (`clock_suspect`), and the mark."""
    for day, gpus in by_day(numbers):
        query = select(revisions.c.gpu_uuid, revisions.c.revision, revisions.c.clock_suspect).where(
            revisions.c.day == day,
            revisions.c.gpu_uuid.in_(gpus),
            revisions.c.clock_suspect.is_not(None),
        )
        for gpu, revision, mark in connection.execute(query):
            key = row_conversion.GpuDay(gpu, day)
            if numbers[key] == revision:
                yield key, mark


def find_missing_days(
    connection: Connection, homes: Mapping[str, Mapping[str, int]], days: range
) -> Iterator[row_conversion.GpuDay]:
    """Yield the days of GPUs that are not in the ledger, though the GPU was in a node on an earlier day or that day.

    `homes` has the nodes of each GPU, and since when it was in them. One day is in memory at a time.
    """
    since_days = {gpu: min(nodes.values()) // DAY_NS for gpu, nodes in homes.items()}
    for day in days:
        query = select(revisions.c.gpu_uuid).where(revisions.c.day == day)
        missing = since_days.keys() - set(connection.execute(query).scalars())
        for gpu in sorted(missing):
            if since_days[gpu] <= day:
                yield row_conversion.GpuDay(gpu, day)


def last_days(gpus: Collection[str]) -> Select[Any]:
    """Select the last day in the ledger of each of some GPUs."""
    query = select(revisions.c.gpu_uuid, func.max(revisions.c.day).label("day"))
    return query.where(revisions.c.gpu_uuid.in_(gpus)).group_by(revisions.c.gpu_uuid)


def _select_newest(*conditions: Any) -> Any:
    """Return the newest revision of each GPU-day that satisfies the conditions, as a subquery."""
    key = (revisions.c.gpu_uuid, revisions.c.day)
    query = select(*key, func.max(revisions.c.revision).label("revision"))
    return query.where(*conditions).group_by(*key).subquery()


def _match_newest(newest: Any, table: Any = revisions) -> Any:
    return and_(*(table.c[name] == newest.c[name] for name in ("gpu_uuid", "day", "revision")))
