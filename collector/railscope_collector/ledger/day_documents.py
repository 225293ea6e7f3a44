"""Documents of GPU-days in the ledger, their revisions, and their totals.

A document is what a person reads, what is hashed, and what a bill is computed from. `ledger_total` has the exact
sums of the newest revisions by day and tenant; it changes with each revision, in its transaction. Days of releases up
to 0.3 are rows of slots (`railscope_collector.ledger.row_days`), and converted when they are read.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from hashlib import sha256
from typing import Any, NamedTuple, TypeVar

import msgspec
import sqlalchemy as sa

from railscope.claim_terms import GPU_CAPACITY
from railscope_collector.ledger import LedgerError, head_chain, row_days, schema, transactions
from railscope_collector.metering.metered_day import MeteredDay, decode_day, encode_day

T = TypeVar("T")
KIND = "ledger day"
"""Kind of the rows in heads."""
_AT_ONCE = 500
_LOCK = 0x7261_696C_6461_7973  # "raildays" in ASCII

ledger_days = sa.Table(
    "ledger_day",
    schema.metadata,
    *schema.key_texts("gpu"),
    *schema.key_numbers("day", "revision"),
    *schema.texts("root", "content"),
    sa.Column("recorded_ns", sa.BigInteger, nullable=False),
    sa.Index("ledger_day_day", "day"),
)
"""`content` is JSON, `root` its SHA-256."""
totals = sa.Table(
    "ledger_total",
    schema.metadata,
    *schema.key_numbers("day"),
    *schema.key_texts("tenant", "name"),
    *schema.texts("quantity"),
)
"""`name` is a state, with GPU-nanoseconds as an exact fraction, or a counted measure and why it has no tenant."""
schema.make_append_only(ledger_days)
schema.cover_table(KIND, ledger_days)


class AlteredDayError(LedgerError, ValueError):
    """A revision that is missing, or does not match its hash; the message names it."""


class GpuDay(NamedTuple):
    """A GPU on a UTC day, counted from the epoch."""

    gpu: str
    day: int


class Revision(NamedTuple):
    """A GPU-day as stored, the number of its revision, its hash, and when it was recorded."""

    day: MeteredDay
    number: int
    root: str
    recorded_ns: int
    is_former: bool = False
    """True if release 0.3 or an earlier one wrote it, by its own rules for gaps and amounts."""

    @property
    def key(self) -> GpuDay:
        """Return the GPU and the day."""
        return GpuDay(self.day.gpu, self.day.day)


class WrittenRevision(NamedTuple):
    """Revision that contains a day; `added` is true if it is new."""

    revision: int
    added: bool


class TotalKey(NamedTuple):
    """Key of a total of a day: a tenant and a name (see `totals`)."""

    tenant: str
    name: str


def split_items(items: Iterable[T], size: int = _AT_ONCE) -> Iterator[list[T]]:
    """Split items into lists as long as one statement may contain."""
    rest = list(items)
    while rest:
        yield rest[:size]
        rest = rest[size:]


def group_by_day(keys: Iterable[GpuDay]) -> Iterator[tuple[int, list[str]]]:
    """Yield days in order with some of their GPUs in order: the scope of one statement."""
    days: dict[int, list[str]] = defaultdict(list)
    for key in keys:
        days[key.day].append(key.gpu)
    for day in sorted(days):
        for gpus in split_items(sorted(days[day])):
            yield day, gpus


# Writing -----------------------------------------------------------------------------------------


def lock_days(connection: sa.Connection) -> None:
    """Wait for other transactions that write days, and exclude them until this one ends."""
    transactions.lock(connection, _LOCK)


def try_lock_days(connection: sa.Connection) -> bool:
    """Exclude other transactions that write days, unless one of them is running; true if this one may write."""
    transactions.limit_idle_time(connection)
    if connection.dialect.name != "postgresql":
        return True  # a transaction that writes is the only one
    return bool(connection.execute(sa.select(sa.func.pg_try_advisory_xact_lock(_LOCK))).scalar())


def write_days(
    connection: sa.Connection, days: Sequence[MeteredDay], recorded_ns: int
) -> list[WrittenRevision]:
    """Write each day as the newest revision, unless that revision is equal; the transaction has locked days.

    A GPU that was in no node, and that no claim names, has no first revision; its number is 0 then. Raises MeteredDayError.
    """
    for day in days:
        day.check()
    written: list[WrittenRevision] = []
    items: list[head_chain.HashedRow] = []
    changed: dict[int, Counter[TotalKey]] = defaultdict(Counter)
    before = _read_newest(connection, [GpuDay(day.gpu, day.day) for day in days])
    for day in days:
        key = GpuDay(day.gpu, day.day)
        last = before.get(key)
        if last.day == day if last else not (day.pieces or day.unmetered):
            written.append(WrittenRevision(last.number if last else 0, added=False))
            continue
        content = encode_day(day)
        root = sha256(content).hexdigest()
        revision = Revision(day, last.number + 1 if last else 1, root, recorded_ns)
        row = {
            "gpu": day.gpu,
            "day": day.day,
            "revision": revision.number,
            "root": root,
            "content": content.decode(),
            "recorded_ns": recorded_ns,
        }
        connection.execute(ledger_days.insert().values(row))
        items.append(head_chain.hash_row(KIND, row, {}))
        changed[day.day].update(sum_day(day))
        if last:
            changed[day.day].subtract(sum_day(last.day))
        before[key] = revision
        written.append(WrittenRevision(revision.number, added=True))
    for number, sums in sorted(changed.items()):
        for total, quantity in sorted(sums.items()):
            _add_total(connection, number, total, Fraction(quantity))
    # Last, as it locks: other writers wait only for the commit.
    head_chain.append_head(connection, items, recorded_ns)
    return written


def _read_newest(connection: sa.Connection, keys: Sequence[GpuDay]) -> dict[GpuDay, Revision]:
    numbers: dict[GpuDay, int] = {}
    for day, gpus in group_by_day(keys):
        numbers |= newest_numbers(connection, range(day, day + 1), gpus)
    return {revision.key: revision for revision in read_revisions(connection, numbers)}


def _add_total(connection: sa.Connection, day: int, key: TotalKey, quantity: Fraction) -> None:
    if not quantity:
        return
    is_total = sa.and_(
        totals.c.day == day, totals.c.tenant == key.tenant, totals.c.name == key.name
    )
    known = connection.execute(sa.select(totals.c.quantity).where(is_total)).scalar()
    if known is None:
        row = {"day": day, "tenant": key.tenant, "name": key.name, "quantity": str(quantity)}
        connection.execute(totals.insert().values(row))
    else:
        total = str(Fraction(known) + quantity)
        connection.execute(totals.update().where(is_total).values(quantity=total))


def sum_day(day: MeteredDay) -> dict[TotalKey, Fraction]:
    """Return the exact sums of a day: GPU-nanoseconds by state, and counted amounts, by tenant."""
    sums: dict[TotalKey, Fraction] = defaultdict(Fraction)
    for piece in day.pieces:
        for part in piece.parts:
            quantity = Fraction(part.size * (piece.end_ns - piece.start_ns), GPU_CAPACITY)
            sums[TotalKey(part.tenant, part.state.value)] += quantity
    for each in day.amounts:
        name = f"{each.measure.value}/{each.reason}" if each.reason else each.measure.value
        sums[TotalKey(each.tenant, name)] += each.amount
    return {key: quantity for key, quantity in sums.items() if quantity}


def add_row_totals(connection: sa.Connection) -> None:
    """Add the totals of the days of earlier releases, once, to a database without totals."""
    sums: dict[tuple[int, str, str], Fraction] = defaultdict(Fraction)
    for day, tenant, name, quantity in row_days.read_sums(connection):
        sums[day, tenant, name] += quantity
    rows = [
        {"day": day, "tenant": tenant, "name": name, "quantity": str(quantity)}
        for (day, tenant, name), quantity in sorted(sums.items())
        if quantity
    ]
    for few in split_items(rows):
        connection.execute(totals.insert(), few)


# Reading -----------------------------------------------------------------------------------------


def newest_numbers(
    connection: sa.Connection, days: range, gpus: Collection[str] | None = None
) -> dict[GpuDay, int]:
    """Return the number of the newest revision of each GPU-day, of all GPUs or some."""
    found = {
        GpuDay(*key): number
        for key, number in row_days.newest_numbers(connection, days, gpus).items()
    }
    key = (ledger_days.c.gpu, ledger_days.c.day)
    newest = sa.func.max(ledger_days.c.revision).label("revision")
    within = (ledger_days.c.day >= days.start, ledger_days.c.day < days.stop)
    query = sa.select(*key, newest).where(*within).group_by(*key)
    groups = [None] if gpus is None else split_items(sorted(gpus))
    for group in groups:
        some = query if group is None else query.where(ledger_days.c.gpu.in_(group))
        # Revisions continue those of rows: a document is always newer.
        found |= {GpuDay(row.gpu, row.day): row.revision for row in connection.execute(some)}
    return found


def read_revisions(connection: sa.Connection, numbers: Mapping[GpuDay, int]) -> Iterator[Revision]:
    """Yield revisions by their numbers, by day and GPU. Raises AlteredDayError for an altered or missing one."""
    for day, gpus in group_by_day(numbers):
        query = sa.select(ledger_days).where(ledger_days.c.day == day, ledger_days.c.gpu.in_(gpus))
        found = {
            row.gpu: _parse_row(row)
            for row in connection.execute(query)
            if row.revision == numbers[GpuDay(row.gpu, day)]
        }
        rest = {(gpu, day): numbers[GpuDay(gpu, day)] for gpu in gpus if gpu not in found}
        try:
            for old in row_days.read_revisions(connection, rest) if rest else ():
                found[old.day.gpu] = Revision(*old, is_former=True)
        except ValueError as error:
            message = f"the ledger was altered: {error}; fix: restore it from a backup"
            raise AlteredDayError(message) from error
        for gpu in gpus:
            if gpu not in found:
                message = (
                    f"the ledger lacks revision {numbers[GpuDay(gpu, day)]} of {gpu} on day {day};"
                    " fix: restore it from a backup"
                )
                raise AlteredDayError(message)
            yield found[gpu]


def _parse_row(row: sa.Row[Any]) -> Revision:
    """Return the revision of a row. Raises AlteredDayError: a changed document must not reach a bill."""
    name = f"revision {row.revision} of {row.gpu} on day {row.day}"
    try:
        content = row.content.encode()
        if sha256(content).hexdigest() != row.root:
            message = (
                f"the ledger was altered: {name} does not match what was written; fix: restore it"
                " from a backup"
            )
            raise AlteredDayError(message)
        day = decode_day(content)
    # A database that was changed by hand may contain anything.
    except (AttributeError, msgspec.MsgspecError, UnicodeError) as error:
        message = (
            f"the ledger was altered: cannot read {name}: {error}; fix: restore it from a backup"
        )
        raise AlteredDayError(message) from error
    return Revision(day, row.revision, row.root, row.recorded_ns)


def read_totals(connection: sa.Connection, days: range) -> dict[tuple[int, TotalKey], Fraction]:
    """Return the totals of days."""
    query = sa.select(totals).where(totals.c.day >= days.start, totals.c.day < days.stop)
    return {
        (row.day, TotalKey(row.tenant, row.name)): Fraction(row.quantity)
        for row in connection.execute(query)
    }
