"""Metering of GPU-days from the evidence, and their writing to the ledger.

All calls that read or write the database block, and raise UnusableLedgerError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import Connection

from railscope.timestamps import DAY_NS
from railscope_collector.account import account_sums
from railscope_collector.evidence import evidence_store
from railscope_collector.finalization.accounted_days import NO_SUMS, WrittenDay, read_sums
from railscope_collector.finalization.due_days import DueDays, GpuNodes
from railscope_collector.ledger import database, ledger_store
from railscope_collector.ledger.day_documents import GpuDay, WrittenRevision
from railscope_collector.metering.metered_day import MeteredDay, MeteredDayError


class MeteringStores(NamedTuple):
    """The open database: its ledger and its evidence."""

    ledger: ledger_store.Ledger
    store: evidence_store.EvidenceStore
    check: Callable[[Connection], None] = ledger_store.accept_any
    """Called in each transaction that writes days: the check of a lease."""


class DayWrites(NamedTuple):
    """Result of writing days."""

    days: list[WrittenDay]
    rejected: dict[GpuDay, str]
    """Days that could not be metered or written, and the problem of each."""


def write_days(
    stores: MeteringStores,
    homes: GpuNodes,
    jobs: Sequence[DueDays],
    counted: Mapping[GpuDay, int],
    now_ns: int,
) -> DayWrites:
    """Meter days of GPUs and write them; `counted` has the revisions that were last read.

    A day that cannot be metered or written does not prevent the others. Raises LostLeaseError.
    """
    ledger, store, check = stores
    files = store.files()
    start_ns = min(job.days[0] for job in jobs) * DAY_NS
    end_ns = (max(job.days[-1] for job in jobs) + 1) * DAY_NS
    gpus = [job.gpu for job in jobs]
    loaded = store.load_each(gpus, {gpu: set(homes[gpu]) for gpu in gpus}, start_ns, end_ns)
    days: list[MeteredDay] = []
    rejected: dict[GpuDay, str] = {}
    for job in jobs:
        try:
            metered = loaded[job.gpu]().assemble(job.gpu, files).meter()
            days += [metered.day(day) for day in job.days]
        except Exception as fault:  # noqa: BLE001 - all other GPUs continue
            failed = [GpuDay(job.gpu, day) for day in job.days]
            rejected |= dict.fromkeys(failed, f"{type(fault).__name__}: {fault}")
    written = list(_write_each(ledger, days, (now_ns, check), rejected))
    new = {GpuDay(day.gpu, day.day): account_sums.DaySums.from_day(day) for day, _ in written}
    old = {
        # Without a revision in the account: the one before a new revision, or the same one if nothing was written.
        key: counted.get(key, revision.revision - revision.added)
        for key, (_, revision) in zip(new, written, strict=True)
    }
    before = read_sums(ledger, old)
    found = [
        WrittenDay(*key, revision.revision, sums, before.get(key, NO_SUMS))
        for (key, sums), (_, revision) in zip(new.items(), written, strict=True)
    ]
    return DayWrites(found, rejected)


def _write_each(
    ledger: ledger_store.Ledger,
    days: Sequence[MeteredDay],
    context: tuple[int, Callable[[Connection], None]],
    rejected: dict[GpuDay, str],
) -> Iterator[tuple[MeteredDay, WrittenRevision]]:
    """Write all; if one is rejected, write each separately, so that one GPU does not block the others."""
    try:
        yield from zip(days, ledger.write_days(days, *context), strict=True)
    except (MeteredDayError, database.RejectedValueError):
        for day in days:
            try:
                yield day, ledger.write_days([day], *context)[0]
            except (MeteredDayError, database.RejectedValueError) as error:
                rejected[GpuDay(day.gpu, day.day)] = str(error)
