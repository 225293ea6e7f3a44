"""Documents of GPU-days in the ledger, their revisions, and their totals.

A document is what a person reads, what is hashed, and what a bill is computed from. `ledger_total` has the exact
sums of the newest revisions by day, tenant and state; it changes with each revision, in its transaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from fractions import Fraction
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa

from railscope.claim_terms import GPU_CAPACITY
from railscope_collector.ledger import LedgerError, schema
from railscope_collector.metering.gpu_day import GpuDay, decode_day, encode_day
from railscope_collector.metering.tiling import SlotState

_AT_ONCE = 500

ledger_days = sa.Table(
    "ledger_day",
    schema.metadata,
    *schema.key_texts("gpu"),
    *schema.key_numbers("day", "revision"),
    *schema.texts("root"),
    sa.Column("content", sa.LargeBinary, nullable=False),
    sa.Index("ledger_day_day", "day"),
)
"""`root` is the SHA-256 of the content."""
totals = sa.Table(
    "ledger_total",
    schema.metadata,
    *schema.key_numbers("day"),
    *schema.key_texts("tenant", "state"),
    sa.Column("gpu_ns", sa.Text, nullable=False),
)
"""`gpu_ns` is an exact fraction of GPU-nanoseconds."""
schema.make_append_only(ledger_days)


class ChangedDocumentError(LedgerError, ValueError):
    """A document that does not match its hash."""


class DayRevision(NamedTuple):
    """A GPU-day as stored, the number of its revision, and its hash."""

    day: GpuDay
    number: int
    root: str


class TotalKey(NamedTuple):
    """Key of a total."""

    tenant: str
    state: SlotState


def sum_states(day: GpuDay) -> Counter[TotalKey]:
    """Return the exact GPU-nanoseconds of a day by tenant and state."""
    sums: Counter[TotalKey] = Counter()
    for piece in day.pieces:
        for part in piece.parts:
            quantity = Fraction(part.size) * (piece.end_ns - piece.start_ns) / GPU_CAPACITY
            sums[TotalKey(part.tenant, part.state)] += quantity  # type: ignore[assignment]
    return sums


def write_day(connection: sa.Connection, day: GpuDay) -> bool:
    """Write a day as a new revision; true if it was written.

    It is not if the newest revision is equal, or there is none and the GPU was in no node. Raises GpuDayError.
    """
    day.check()
    content = encode_day(day)
    root = sha256(content).hexdigest()
    before = _newest_row(connection, day.gpu, day.day)
    if before.root == root if before else not day.pieces:
        return False
    number = before.revision + 1 if before else 1
    row = {"gpu": day.gpu, "day": day.day, "revision": number, "root": root, "content": content}
    connection.execute(ledger_days.insert().values(row))
    changed = sum_states(day)
    if before:
        changed.subtract(sum_states(parse_row(before).day))
    for key, quantity in changed.items():
        _add_total(connection, day.day, key, Fraction(quantity))
    return True


def _add_total(connection: sa.Connection, day: int, key: TotalKey, quantity: Fraction) -> None:
    is_total = sa.and_(
        totals.c.day == day, totals.c.tenant == key.tenant, totals.c.state == key.state.value
    )
    known = connection.execute(sa.select(totals.c.gpu_ns).where(is_total)).scalar()
    if known is None:
        row = {"day": day, "tenant": key.tenant, "state": key.state.value}
        connection.execute(totals.insert().values(row | {"gpu_ns": str(quantity)}))
    elif quantity:
        sum_ns = str(Fraction(known) + quantity)
        connection.execute(totals.update().where(is_total).values(gpu_ns=sum_ns))


def _newest_row(connection: sa.Connection, gpu: str, day: int) -> sa.Row[Any] | None:
    is_day = sa.and_(ledger_days.c.gpu == gpu, ledger_days.c.day == day)
    newest_first = ledger_days.c.revision.desc()
    query = sa.select(ledger_days).where(is_day).order_by(newest_first).limit(1)
    return connection.execute(query).first()


def parse_row(row: sa.Row[Any]) -> DayRevision:
    """Return the revision of a row. Raises ChangedDocumentError: a changed document must not reach a bill."""
    name = f"revision {row.revision} of {row.gpu} on day {row.day}"
    content = bytes(row.content)
    if sha256(content).hexdigest() != row.root:
        message = (
            f"the ledger was altered: {name} does not match its hash; fix: restore it from a backup"
        )
        raise ChangedDocumentError(message)
    try:
        day = decode_day(content)
    except (msgspec.MsgspecError, ValueError) as error:
        message = (
            f"the ledger was altered: cannot read {name}: {error}; fix: restore it from a backup"
        )
        raise ChangedDocumentError(message) from error
    return DayRevision(day, row.revision, row.root)


def newest_numbers(
    connection: sa.Connection, days: range, gpus: Collection[str] | None = None
) -> dict[tuple[str, int], int]:
    """Return the number of the newest revision of each GPU-day, of all GPUs or some."""
    key = (ledger_days.c.gpu, ledger_days.c.day)
    newest = sa.func.max(ledger_days.c.revision).label("revision")
    query = sa.select(*key, newest).where(
        ledger_days.c.day >= days.start, ledger_days.c.day < days.stop
    )
    found = connection.execute(query.group_by(*key))
    return {(row.gpu, row.day): row.revision for row in found if gpus is None or row.gpu in gpus}


def read_revisions(
    connection: sa.Connection, numbers: Mapping[tuple[str, int], int]
) -> Iterator[DayRevision]:
    """Yield revisions by their numbers, by day and GPU. Raises ChangedDocumentError for an altered or missing one."""
    keys = sorted((day, gpu, number) for (gpu, day), number in numbers.items())
    for at in range(0, len(keys), _AT_ONCE):
        few = keys[at : at + _AT_ONCE]
        key = sa.tuple_(ledger_days.c.day, ledger_days.c.gpu, ledger_days.c.revision)
        query = sa.select(ledger_days).where(key.in_(few))
        rows = {(row.day, row.gpu, row.revision): row for row in connection.execute(query)}
        for day, gpu, number in few:
            if (day, gpu, number) not in rows:
                message = f"the ledger lacks revision {number} of {gpu} on day {day}; fix: restore it from a backup"
                raise ChangedDocumentError(message)
            yield parse_row(rows[day, gpu, number])


def read_totals(connection: sa.Connection, days: range) -> dict[tuple[int, TotalKey], Fraction]:
    """Return the exact GPU-nanoseconds of days by tenant and state."""
    query = sa.select(totals).where(totals.c.day >= days.start, totals.c.day < days.stop)
    return {
        (row.day, TotalKey(row.tenant, SlotState(row.state))): Fraction(row.gpu_ns)
        for row in connection.execute(query)
    }


def newest_days(connection: sa.Connection, days: range) -> Sequence[DayRevision]:
    """Return the newest revision of each GPU-day, by day and GPU. Raises ChangedDocumentError."""
    return list(read_revisions(connection, newest_numbers(connection, days)))
