"""The ledger: revisions of GPU-days, written atomically and read back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from typing import Self

import sqlalchemy as sa

from railscope.timestamps import DAY_NS
from railscope_collector.ledger import day_documents, schema
from railscope_collector.ledger.database import Database, UnusableLedgerError
from railscope_collector.ledger.day_documents import GpuDay, Revision, TotalKey, WrittenRevision
from railscope_collector.metering.metered_day import MeteredDay


def accept_any(_: sa.Connection) -> None:
    """Accept a transaction that needs no lease."""


class Ledger:
    """A ledger in a database. All methods block, and raise UnusableLedgerError."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @classmethod
    def open(cls, url: str, tables: sa.MetaData, *, make: bool = True) -> Self:
        """Open the ledger in the database of a URL; `make` creates it if the database is empty."""
        return cls(Database(url, tables, make=make))

    def close(self) -> None:
        """Close all connections."""
        self.database.close()

    def write_days(
        self,
        days: Sequence[MeteredDay],
        recorded_ns: int,
        check: Callable[[sa.Connection], None] = accept_any,
    ) -> list[WrittenRevision]:
        """Write each day as the newest revision, unless that revision has the same content.

        All of them or none. `check` is called first in the transaction, and may end it by an error
        (`railscope_collector.ledger.leases`). Raises MeteredDayError for a day that does not add up.
        """
        with self._transaction(writes=True) as connection:
            check(connection)
            day_documents.lock_days(connection)
            return day_documents.write_days(connection, days, recorded_ns)

    def newest(
        self, first_day: int, end_day: int, gpus: Iterable[str] | None = None
    ) -> dict[GpuDay, int]:
        """Return the newest revision's number of each GPU-day of [first, end), for all GPUs or some."""
        named = None if gpus is None else list(gpus)
        with self._transaction() as connection:
            return day_documents.newest_numbers(connection, range(first_day, end_day), named)

    def has_days_before(self, day: int) -> bool:
        """True if the ledger has an earlier GPU-day."""
        with self._transaction() as connection:
            return any(
                connection.execute(sa.select(of.c.day).where(of.c.day < day).limit(1)).first()
                for of in (day_documents.ledger_days, schema.revisions)
            )

    def final_days(self, days: range) -> set[GpuDay]:
        """Return the GPU-days with a revision that was recorded after their end; another one is preliminary."""
        documents, rows = day_documents.ledger_days.c, schema.revisions.c
        found: set[GpuDay] = set()
        with self._transaction() as connection:
            for gpu, day, recorded_ns in (
                (documents.gpu, documents.day, documents.recorded_ns),
                (rows.gpu_uuid, rows.day, rows.computed_ns),
            ):
                is_final = sa.and_(
                    day >= days.start, day < days.stop, recorded_ns >= (day + 1) * DAY_NS
                )
                found.update(
                    GpuDay(*row) for row in connection.execute(sa.select(gpu, day).where(is_final))
                )
        return found

    def finalized_day(self) -> int | None:
        """Return the newest day that was recorded after its end, for any GPU; None if there is none."""
        # A day that was recorded before its end is preliminary.
        tables = (
            (day_documents.ledger_days.c.day, day_documents.ledger_days.c.recorded_ns),
            (schema.revisions.c.day, schema.revisions.c.computed_ns),
        )
        with self._transaction() as connection:
            found = [
                connection.execute(
                    sa.select(day)
                    .where(recorded_ns >= (day + 1) * DAY_NS)
                    .order_by(day.desc())
                    .limit(1)
                ).scalar()
                for day, recorded_ns in tables
            ]
        return max((day for day in found if day is not None), default=None)

    def revisions(self, numbers: Mapping[GpuDay, int]) -> Iterator[Revision]:
        """Yield the revisions with these numbers, by day and GPU.

        Raises UnusableLedgerError for one that is missing or altered.
        """
        for day, gpus in day_documents.group_by_day(numbers):
            few = {GpuDay(gpu, day): numbers[GpuDay(gpu, day)] for gpu in gpus}
            with self._transaction() as connection:
                found = list(day_documents.read_revisions(connection, few))
            yield from found

    def totals(self, days: range) -> dict[tuple[int, TotalKey], Fraction]:
        """Return the exact totals of days."""
        with self._transaction() as connection:
            return day_documents.read_totals(connection, days)

    @contextmanager
    def _transaction(self, *, writes: bool = False) -> Iterator[sa.Connection]:
        try:
            with self.database.transaction(writes=writes) as connection:
                yield connection
        except day_documents.AlteredDayError as error:
            message = str(error).replace("the ledger", f"the ledger {self.database.name}", 1)
            raise UnusableLedgerError(message) from error
