"""Results of metering and of the ledger in the forms that tests compare."""

from __future__ import annotations

from sqlalchemy import Connection, select

from railscope.claim_terms import GPU_CAPACITY
from railscope_collector.ledger.audit_outbox import placed_rows
from railscope_collector.ledger.day_documents import GpuDay, Revision, WrittenRevision
from railscope_collector.ledger.ledger_store import Ledger
from railscope_collector.metering.metered_day import MeteredDay
from railscope_collector.metering.units import CapacityRange, Units


def replica(index: int, of: int) -> CapacityRange:
    """Return the slots of replica `index` of a GPU that is shared by `of`."""
    return CapacityRange(GPU_CAPACITY * index // of, GPU_CAPACITY * (index + 1) // of)


def revision_of(ledger: Ledger, gpu: str, day: int, number: int | None = None) -> Revision | None:
    """Return the newest revision of a day, or the one of a number; None if there is none."""
    key = GpuDay(gpu, day)
    newest = ledger.newest(day, day + 1, [gpu]).get(key, 0)
    if max(number or 1, 1) > newest:
        return None
    return next(ledger.revisions({key: number or newest}))


def write_day(ledger: Ledger, day: MeteredDay) -> WrittenRevision:
    """Write one day, when it is over."""
    return ledger.write_days([day], day.end_ns)[0]


def sizes_of_day(ledger: Ledger, day: int) -> dict[str, Units]:
    """Return cap-unit-nanoseconds of each GPU on a day, from newest revisions."""
    return {
        revision.day.gpu: sum(
            part.size * (piece.end_ns - piece.start_ns)
            for piece in revision.day.pieces
            for part in piece.parts
        )
        for revision in ledger.revisions(ledger.newest(day, day + 1))
    }


def record_number(connection: Connection, id_: str) -> int | None:
    """Return the number of an outbox row's record in the audit log; None if it is not recorded yet."""
    query = select(placed_rows.c.leaf).where(placed_rows.c.id == id_)
    return connection.execute(query).scalar_one_or_none()
