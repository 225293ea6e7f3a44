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
from railscope_collector.ledger import (
    database,
    day_metering,
    day_tiling,
    ledger_store,
    row_conversion,
)

ENGINE_VERSION = "1"


class MeteringStores(NamedTuple):
    """The open database: its ledger and its evidence."""

    ledger: ledger_store.Ledger
    store: evidence_store.EvidenceStore
    check: Callable[[Connection], None] = ledger_store.accept_any
    """Called in each transaction that writes days: the check of a lease."""


class DayWrites(NamedTuple):
    """Result of writing days."""

    days: list[WrittenDay]
    rejected: dict[row_conversion.GpuDay, str]
    """Days that could not be metered or written, and the problem of each."""


def write_days(
    stores: MeteringStores,
    homes: GpuNodes,
    jobs: Sequence[DueDays],
    counted: Mapping[row_conversion.GpuDay, int],
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
    computed = day_metering.MeteringComputation(ENGINE_VERSION, now_ns)
    tilings: list[day_tiling.DayTiling] = []
    rejected: dict[row_conversion.GpuDay, str] = {}
    for job in jobs:
        try:
            metered = loaded[job.gpu]().assemble(job.gpu, files).meter()
            tilings += [metered.day(day, computed) for day in job.days]
        except Exception as fault:  # noqa: BLE001 - all other GPUs continue
            days = [row_conversion.GpuDay(job.gpu, day) for day in job.days]
            rejected |= dict.fromkeys(days, f"{type(fault).__name__}: {fault}")
    written = list(_write_each(ledger, tilings, check, rejected))
    new = {
        row_conversion.GpuDay(tiling.gpu, tiling.day): account_sums.DaySums.from_tiling(tiling)
        for tiling, _ in written
    }
    old = {
        # Without a revision in the account: the one before a new revision, or the same one if nothing was written.
        day: counted.get(day, revision.revision - revision.added)
        for day, (_, revision) in zip(new, written, strict=True)
    }
    before = read_sums(ledger, old)
    found = [
        WrittenDay(*day, revision.revision, sums, before.get(day, NO_SUMS))
        for (day, sums), (_, revision) in zip(new.items(), written, strict=True)
    ]
    return DayWrites(found, rejected)


def _write_each(
    ledger: ledger_store.Ledger,
    tilings: Sequence[day_tiling.DayTiling],
    check: Callable[[Connection], None],
    rejected: dict[row_conversion.GpuDay, str],
) -> Iterator[tuple[day_tiling.DayTiling, ledger_store.WrittenRevision]]:
    """Write all; if one is rejected, write each separately, so that one GPU does not block the others."""
    try:
        yield from zip(tilings, ledger.write_days(tilings, check), strict=True)
    except (day_tiling.TilingError, database.RejectedValueError):
        for tiling in tilings:
            try:
                yield tiling, ledger.write_days([tiling], check)[0]
            except (day_tiling.TilingError, database.RejectedValueError) as error:
                rejected[row_conversion.GpuDay(tiling.gpu, tiling.day)] = str(error)
