"""The ledger: revisions of GPU-days, written atomically and read back."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

import msgspec
from sqlalchemy import Connection, MetaData, Row, select

from railscope.timestamps import DAY_NS
from railscope_collector.ledger import day_tiling, head_chain, ledger_queries, row_conversion
from railscope_collector.ledger.database import Database, UnusableLedgerError
from railscope_collector.ledger.schema import claims, entries, overlaps, revisions, shares
from railscope_collector.metering import evidence, units
from railscope_collector.metering.tiling import SlotState, TilingEntry


class Revision(msgspec.Struct, frozen=True):
    """A tiling as stored in the ledger, its hash, and the revision that it supersedes."""

    tiling: day_tiling.DayTiling
    number: int
    supersedes: int | None
    content_root: str


class WrittenRevision(NamedTuple):
    """Revision that contains a tiling; `added` is true if it is new."""

    revision: int
    added: bool


class TimeTotalKey(NamedTuple):
    """Key of a total quantity."""

    tiling: units.Tiling
    tenant: str
    state: SlotState


def accept_any(_: Connection) -> None:
    """Accept a transaction that needs no lease."""


class Ledger:
    """A ledger in a database. All methods block, and raise UnusableLedgerError."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @classmethod
    def open(cls, url: str, tables: MetaData, *, make: bool = True) -> Self:
        """Open the ledger in the database of a URL; `make` creates it if the database is empty."""
        return cls(Database(url, tables, make=make))

    def close(self) -> None:
        """Close all connections."""
        self.database.close()

    def write(self, tiling: day_tiling.DayTiling) -> WrittenRevision:
        """Write one tiling; see `write_days`."""
        return self.write_days([tiling])[0]

    def write_days(
        self,
        tilings: Sequence[day_tiling.DayTiling],
        check: Callable[[Connection], None] = accept_any,
    ) -> list[WrittenRevision]:
        """Write each tiling as the newest revision of its day, unless that revision has the same content.

        All of them or none. Concurrent writers are supported: each revision has a unique number and
        supersedes the previous one. `check` is called first in the transaction, and may end it by an
        error (`railscope_collector.ledger.leases`). Raises TilingError for an incomplete tiling.
        """
        with self.database.transaction(writes=True) as connection:
            check(connection)
            return self.write_days_in(connection, tilings)

    def write_days_in(
        self, connection: Connection, tilings: Sequence[day_tiling.DayTiling]
    ) -> list[WrittenRevision]:
        """Write tilings as `write_days`, within a transaction that writes more."""
        # Before the root is computed: it must be that of the tiling as it is read back.
        tilings = [day_tiling.round_tiling(tiling) for tiling in tilings]
        for tiling in tilings:
            day_tiling.check_tiling(tiling)
        rooted = [(tiling, day_tiling.content_root(tiling)) for tiling in tilings]
        written: dict[int, WrittenRevision] = {}
        # Repeated for a day that another writer wrote first: its revision is read, and superseded or equal.
        while len(written) < len(rooted):
            # Several tilings of one GPU-day are written one after another.
            turn: dict[row_conversion.GpuDay, int] = {}
            for position, (tiling, _) in enumerate(rooted):
                if position not in written:
                    turn.setdefault(row_conversion.GpuDay(tiling.gpu, tiling.day), position)
            written |= _write(
                connection, {position: rooted[position] for position in turn.values()}
            )
        return [written[position] for position in range(len(rooted))]

    def newest(
        self, first_day: int, end_day: int, gpus: Iterable[str] | None = None
    ) -> dict[row_conversion.GpuDay, int]:
        """Return the newest revision's number of each GPU-day of [first, end), for all GPUs or some."""
        with self.database.transaction() as connection:
            return ledger_queries.newest_numbers(connection, range(first_day, end_day), gpus)

    def last_days(self, gpus: Iterable[str]) -> dict[str, int]:
        """Return the last day of each of some GPUs that have one."""
        days: dict[str, int] = {}
        for gpu_group in ledger_queries.split_items(sorted(gpus)):
            with self.database.transaction() as connection:
                for row in connection.execute(ledger_queries.last_days(gpu_group)):
                    days[row.gpu_uuid] = row.day
        return days

    def missing_days(
        self, homes: Mapping[str, Mapping[str, int]], days: range
    ) -> list[row_conversion.GpuDay]:
        """Return the days of GPUs that the ledger does not have; `homes` has since when they were in nodes."""
        with self.database.transaction(is_snapshot=True) as connection:
            return [*ledger_queries.find_missing_days(connection, homes, days)]

    def finalized_day(self) -> int | None:
        """Return the newest day that was computed after its end, for any GPU; None if there is none."""
        day = revisions.c.day
        # A day that was computed before its end is preliminary.
        query = select(day).where(revisions.c.computed_ns >= (day + 1) * DAY_NS)
        with self.database.transaction() as connection:
            return connection.execute(query.order_by(day.desc()).limit(1)).scalar()

    def revisions(self, numbers: Mapping[row_conversion.GpuDay, int]) -> Iterator[Revision]:
        """Yield the revisions with these numbers, by day and GPU.

        Raises UnusableLedgerError for one that is missing or altered.
        """
        for day, gpus in ledger_queries.by_day(numbers):
            with self.database.transaction() as connection:
                rows = {
                    row.head.gpu_uuid: row
                    for row in ledger_queries.read_revisions(connection, day, gpus, numbers)
                }
            for gpu in gpus:
                if gpu not in rows:
                    message = (
                        f"the ledger {self.database.name} lacks revision {numbers[row_conversion.GpuDay(gpu, day)]} of "
                        f"{gpu} on day {day}; fix: restore it from a backup"
                    )
                    raise UnusableLedgerError(message)
                yield self._revision(rows[gpu])

    def select_counted(
        self, numbers: Mapping[row_conversion.GpuDay, int], claims: Collection[str]
    ) -> dict[row_conversion.GpuDay, int]:
        """Return those of some revisions in which a claim of `claims` for a number of GPUs holds the GPU."""
        with self.database.transaction() as connection:
            days = ledger_queries.find_counted_days(connection, numbers, claims)
        return {key: numbers[key] for key in days}

    def clock_suspect(
        self, numbers: Mapping[row_conversion.GpuDay, int]
    ) -> dict[row_conversion.GpuDay, tuple[evidence.ClockDoubt, ...]]:
        """Return the marks of those revisions that are based on evidence received by a suspect clock."""
        with self.database.transaction() as connection:
            marks = dict(ledger_queries.read_marks(connection, numbers))
        try:
            return {key: row_conversion.parse_clock_suspect(mark) for key, mark in marks.items()}
        except ValueError as error:
            raise UnusableLedgerError(self._unreadable("a clock mark", error)) from error

    def entries(self, start_ns: int, end_ns: int, gpu: str | None = None) -> list[TilingEntry]:
        """Return the newest revisions of a window, of all GPUs or of one; entries are clipped to it.

        Ordered by GPU and day, and within a day as metering orders them.
        """
        columns = select(entries, revisions.c.capacity_units)
        query = ledger_queries.restrict_to_window(columns, entries, start_ns, end_ns)
        if gpu is not None:
            query = query.where(entries.c.gpu_uuid == gpu)
        with self.database.transaction() as connection:
            rows = connection.execute(query).all()
        window_entries = []
        for row in sorted(rows, key=lambda row: (row.gpu_uuid, row.day, row.entry)):
            try:
                entry = row_conversion.parse_entry(row, row.capacity_units)
            # A database that was changed by hand may contain anything.
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                entry_name = f"entry {row.entry} of {row.gpu_uuid} on day {row.day}"
                raise UnusableLedgerError(self._unreadable(entry_name, error)) from error
            t0, t1 = max(entry.t0_ns, start_ns), min(entry.t1_ns, end_ns)
            window_entries.append(msgspec.structs.replace(entry, t0_ns=t0, t1_ns=t1))
        return window_entries

    def totals(
        self, start_ns: int, end_ns: int, *, of_gpu: Callable[[str], bool] = lambda _: True
    ) -> dict[TimeTotalKey, units.Units]:
        """Return cap-unit-nanoseconds in a window by tiling, tenant and state, from newest revisions.

        `of_gpu` selects GPUs by name.
        """
        sums: dict[TimeTotalKey, units.Units] = {}
        keys = (entries.c.tiling, entries.c.tenant_id, entries.c.state)
        with self.database.transaction() as connection:
            times = ledger_queries.sum_times(connection, keys, start_ns, end_ns)
        for (gpu, _, tiling, tenant, state), quantity in times.items():
            if not of_gpu(gpu):
                continue
            of = TimeTotalKey(units.Tiling(tiling), tenant, SlotState(state))
            sums[of] = units.exact(sums.get(of, 0) + quantity)
        return sums

    def _revision(self, row: ledger_queries.RevisionRows) -> Revision:
        head = row.head
        revision_name = f"revision {head.revision} of {head.gpu_uuid} on day {head.day}"
        try:
            tiling = row_conversion.parse_tiling(head, row.parts)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise UnusableLedgerError(self._unreadable(revision_name, error)) from error
        # Each read is verified: a changed row must not reach a bill.
        if day_tiling.content_root(tiling) != head.content_root:
            message = (
                f"the ledger {self.database.name} was altered: {revision_name} does not match what was"
                " written; fix: restore it from a backup"
            )
            raise UnusableLedgerError(message)
        return Revision(tiling, head.revision, head.supersedes, head.content_root)

    def _unreadable(self, row_name: str, error: Exception) -> str:
        return (
            f"the ledger {self.database.name} was altered: cannot read {row_name}: {error};"
            " fix: restore it from a backup"
        )


def _is_same(head: Row[Any], tiling: day_tiling.DayTiling, root: str) -> bool:
    """True if a revision has this content, in any capacity units."""
    if head.content_root == root or head.capacity_units == tiling.capacity_units:
        return bool(head.content_root == root)
    # The units follow from the finest share: an equal tiling may have been written with other ones.
    return bool(head.content_root == day_tiling.revision_root(tiling, head.capacity_units))


def _write(
    connection: Connection, rooted: Mapping[int, tuple[day_tiling.DayTiling, str]]
) -> dict[int, WrittenRevision]:
    """Write tilings of different GPU-days; those that another writer has written first are omitted."""
    keys = {
        position: row_conversion.GpuDay(tiling.gpu, tiling.day)
        for position, (tiling, _) in rooted.items()
    }
    present = ledger_queries.newest_heads(connection, keys.values())
    written: dict[int, WrittenRevision] = {}
    fresh: dict[int, int | None] = {}
    # In the same order for all writers, to prevent deadlocks.
    for position in sorted(keys, key=keys.__getitem__):
        head = present.get(keys[position])
        if head is not None and _is_same(head, *rooted[position]):
            written[position] = WrittenRevision(head.revision, added=False)
        else:
            fresh[position] = head.revision if head is not None else None
    if not fresh:
        return written
    rows = [
        row_conversion.revision_row(*rooted[position], before) for position, before in fresh.items()
    ]
    # Revisions first: for those that another writer added, no parts may be inserted.
    added = ledger_queries.add_revisions(connection, rows)
    positions = {
        position: (before or 0) + 1 for position, before in fresh.items() if keys[position] in added
    }
    parts: dict[int, dict[str, list[row_conversion.RowValues]]] = {
        position: {} for position in positions
    }
    tables = (
        (entries, row_conversion.entry_rows),
        (shares, row_conversion.share_rows),
        (claims, row_conversion.claim_rows),
        (overlaps, row_conversion.overlap_rows),
    )
    for table, rows_of in tables:
        for position, number in positions.items():
            parts[position][table.name] = list(rows_of(rooted[position][0], number))
        if part_rows := [row for position in positions for row in parts[position][table.name]]:
            connection.execute(table.insert(), part_rows)
    added_rows = {
        row_conversion.GpuDay(tiling.gpu, tiling.day): row
        for (tiling, _), row in zip((rooted[position] for position in fresh), rows, strict=True)
    }
    items = [
        head_chain.hash_row("revision", added_rows[keys[position]], parts[position])
        for position in positions
    ]
    recorded_ns = max((rooted[position][0].computed_ns for position in positions), default=0)
    # Last, as it locks: other writers wait only for the commit.
    head_chain.append_head(connection, items, recorded_ns)
    return written | {
        position: WrittenRevision(number, added=True) for position, number in positions.items()
    }
