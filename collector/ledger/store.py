"""The ledger: revisions of GPU-days, written whole and read back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple, Self

import msgspec
from sqlalchemy import Connection, Row, Select, and_, case, false, func, select, true
from sqlalchemy.dialects import postgresql, sqlite

from collector.ledger.database import Database, LedgerError
from collector.ledger.schema import entries, revisions
from collector.ledger.tiling import DAY_NS, DayTiling, check, content_root, in_order
from collector.metering.evidence import Witness
from collector.metering.tiling import Entry, State
from collector.metering.units import Tiling


class Revision(msgspec.Struct, frozen=True):
    """A tiling as it lies in the ledger, and which revision it took the place of."""

    tiling: DayTiling
    number: int
    supersedes: int | None


class Written(NamedTuple):
    """The revision that holds a tiling, and whether it is new."""

    revision: int
    added: bool


class Total(NamedTuple):
    """What a quantity is of."""

    tiling: Tiling
    tenant: str
    state: State


class GpuDay(NamedTuple):
    """What a quantity is of."""

    gpu: str
    day: int
    tiling: Tiling


class Ledger:
    """A ledger in a database. All methods block, and raise LedgerError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @classmethod
    def open(cls, url: str) -> Self:
        """The ledger in the database of a URL; made there if the database is empty."""
        return cls(Database(url))

    def close(self) -> None:
        """Close all connections."""
        self._database.close()

    def write(self, tiling: DayTiling) -> Written:
        """Write a tiling as the newest revision of its day, unless it is the newest one already.

        Several may write at once: each revision has one number and supersedes the one before.
        Raises TilingError for what is not a complete tiling.
        """
        check(tiling)
        root = content_root(tiling.entries)
        with self._database.transaction(writes=True) as connection:
            while True:
                newest = connection.execute(_newest_of(tiling.gpu, tiling.day)).first()
                if newest and newest.content_root == root:
                    return Written(newest.revision, added=False)
                before = newest.revision if newest else None
                if _add_revision(connection, tiling, root, before):
                    break
            number = (before or 0) + 1
            key = {"gpu_uuid": tiling.gpu, "day": tiling.day, "revision": number}
            rows = [
                {**key, "entry": position, **_columns(entry)}
                for position, entry in enumerate(in_order(tiling.entries))
            ]
            if rows:
                connection.execute(entries.insert(), rows)
        return Written(number, added=True)

    def revision(self, gpu: str, day: int, number: int | None = None) -> Revision | None:
        """The newest revision of a day, or the one of a number; None if there is none.

        Raises LedgerError also where its entries are not those that were written.
        """
        query = _newest_of(gpu, day)
        if number is not None:
            query = query.where(revisions.c.revision == number)
        with self._database.transaction() as connection:
            head = connection.execute(query).first()
            if head is None:
                return None
            rows = connection.execute(
                select(entries)
                .where(entries.c.gpu_uuid == gpu, entries.c.day == day)
                .where(entries.c.revision == head.revision)
                .order_by(entries.c.entry)
            ).all()
        found = tuple(_entry(row) for row in rows)
        if content_root(found) != head.content_root:
            message = (
                f"the ledger {self._database.name} was altered: revision {head.revision} of {gpu} "
                f"on day {day} is not what was written. Restore it from a backup"
            )
            raise LedgerError(message)
        tiling = DayTiling(
            gpu, day, found, head.evidence_root, head.engine_version, head.computed_ns
        )
        return Revision(tiling, head.revision, head.supersedes)

    def entries(self, start_ns: int, end_ns: int, gpu: str | None = None) -> list[Entry]:
        """The newest revisions of a window, of all GPUs or of one; entries are cut off at its ends.

        By GPU and day, and within it in order.
        """
        query = _within(select(entries), start_ns, end_ns)
        if gpu is not None:
            query = query.where(entries.c.gpu_uuid == gpu)
        with self._database.transaction() as connection:
            rows = connection.execute(query).all()
        found = []
        for row in sorted(rows, key=lambda row: (row.gpu_uuid, row.day, row.entry)):
            entry = _entry(row)
            t0, t1 = max(entry.t0_ns, start_ns), min(entry.t1_ns, end_ns)
            found.append(msgspec.structs.replace(entry, t0_ns=t0, t1_ns=t1))
        return found

    def totals(self, start_ns: int, end_ns: int) -> dict[Total, int]:
        """Cap-unit-nanoseconds in a window by tiling, tenant and state, from newest revisions."""
        found: Counter[Total] = Counter()
        keys = (entries.c.tiling, entries.c.tenant_id, entries.c.state)
        for row in self._sums(keys, start_ns, end_ns):
            of = Total(Tiling(row.tiling), row.tenant_id, State(row.state))
            found[of] += int(row.quantity)
        return dict(found)

    def gpu_days(self, first_day: int, end_day: int) -> dict[GpuDay, int]:
        """Cap-unit-nanoseconds of each GPU on each day of [first, end), from newest revisions."""
        sums = self._sums((entries.c.tiling,), first_day * DAY_NS, end_day * DAY_NS)
        return {
            GpuDay(row.gpu_uuid, row.day, Tiling(row.tiling)): int(row.quantity) for row in sums
        }

    def _sums(self, keys: Iterable[Any], start_ns: int, end_ns: int) -> list[Row[Any]]:
        """Sums by GPU-day and keys: each is within 64 bits, which SQLite's sums are limited to."""
        groups = (entries.c.gpu_uuid, entries.c.day, *keys)
        t0 = case((entries.c.t0_ns < start_ns, start_ns), else_=entries.c.t0_ns)
        t1 = case((entries.c.t1_ns > end_ns, end_ns), else_=entries.c.t1_ns)
        quantity = func.sum((entries.c.slot_hi - entries.c.slot_lo) * (t1 - t0)).label("quantity")
        query = _within(select(*groups, quantity), start_ns, end_ns).group_by(*groups)
        with self._database.transaction() as connection:
            return list(connection.execute(query).all())


def _newest_of(gpu: str, day: int) -> Select[Any]:
    """The revisions of a day, the newest first."""
    return (
        select(revisions)
        .where(revisions.c.gpu_uuid == gpu, revisions.c.day == day)
        .order_by(revisions.c.revision.desc())
        .limit(1)
    )


def _within(query: Select[Any], start_ns: int, end_ns: int) -> Select[Any]:
    """Entries of newest revisions that have time in a window."""
    newest = (
        select(
            revisions.c.gpu_uuid, revisions.c.day, func.max(revisions.c.revision).label("revision")
        )
        .where(revisions.c.day >= start_ns // DAY_NS, revisions.c.day * DAY_NS < end_ns)
        .group_by(revisions.c.gpu_uuid, revisions.c.day)
        .subquery()
    )
    same = and_(
        entries.c.gpu_uuid == newest.c.gpu_uuid,
        entries.c.day == newest.c.day,
        entries.c.revision == newest.c.revision,
    )
    return query.join_from(entries, newest, same).where(
        entries.c.t0_ns < end_ns,
        entries.c.t1_ns > start_ns,
        true() if start_ns < end_ns else false(),
    )


def _add_revision(connection: Connection, tiling: DayTiling, root: str, before: int | None) -> bool:
    """Take the next number; false if another writer was quicker."""
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    values = {
        "gpu_uuid": tiling.gpu,
        "day": tiling.day,
        "revision": (before or 0) + 1,
        "supersedes": before,
        "content_root": root,
        "evidence_root": tiling.evidence_root,
        "engine_version": tiling.engine_version,
        "computed_ns": tiling.computed_ns,
    }
    key = [revisions.c.gpu_uuid, revisions.c.day, revisions.c.revision]
    statement = dialect.insert(revisions).values(values).on_conflict_do_nothing(index_elements=key)
    return connection.execute(statement.returning(revisions.c.revision)).first() is not None


def _columns(entry: Entry) -> dict[str, object]:
    """The columns of an entry; `_entry` is the way back."""
    return {
        "tiling": entry.tiling.value,
        "slot_lo": entry.slot_lo,
        "slot_hi": entry.slot_hi,
        "t0_ns": entry.t0_ns,
        "t1_ns": entry.t1_ns,
        "node": entry.node,
        "state": entry.state.value,
        "witness": None if entry.witness is None else entry.witness.name.lower(),
        "silence_ns": entry.silence_ns,
        "tenant_id": entry.tenant,
        "workload_id": entry.workload,
        "claim_id": entry.claim,
        "layout_id": entry.layout,
        "qty_capns": entry.quantity,
    }


def _entry(row: Row[Any]) -> Entry:
    return Entry(
        gpu=row.gpu_uuid,
        tiling=Tiling(row.tiling),
        t0_ns=row.t0_ns,
        slot_lo=row.slot_lo,
        slot_hi=row.slot_hi,
        t1_ns=row.t1_ns,
        node=row.node,
        state=State(row.state),
        witness=None if row.witness is None else Witness[row.witness.upper()],
        silence_ns=row.silence_ns,
        tenant=row.tenant_id,
        workload=row.workload_id,
        claim=row.claim_id,
        layout=row.layout_id,
    )
