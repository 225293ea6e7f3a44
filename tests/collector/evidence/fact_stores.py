"""Stores of facts, facts of a GPU, and the days metered from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from random_cluster import Fact
from support.story import (
    DAY_SECONDS,
    NodeReporter,
    accept,
    at,
    claim_started,
    gpus_of,
    temporary_core,
)

from railscope_collector.evidence.fact_store import FactStore
from railscope_collector.evidence.fact_tables import read_places
from railscope_collector.evidence.file_versions import AdministratorInputs
from railscope_collector.evidence.node_intervals import EvidenceInterval
from railscope_collector.files import tenants_file
from railscope_collector.finalization.marked_days import finalize_day
from railscope_collector.ledger.database import Database
from railscope_collector.tables import metadata

TENANTS = "tenant,source,owner,from,to\nred,slurm,acct1,2026-01-01T00:00:00Z,\n"
FILES = AdministratorInputs(tenants=tenants_file.parse_tenants(TENANTS))
HOURS = 3600
NOW_NS = at(30 * DAY_SECONDS)


@contextmanager
def opened(url: str) -> Iterator[FactStore]:
    database = Database(url, metadata)
    yield FactStore(database)
    database.close()


def write(store: FactStore, facts: Sequence[Fact], now_day: int) -> None:
    quarters = [fact for fact in facts if isinstance(fact, EvidenceInterval)]
    store.write(quarters, [fact for fact in facts if fact not in quarters], range(now_day))


def finalize_marked(
    store: FactStore, files: AdministratorInputs, days: range, now_ns: int
) -> int | None:
    """Meter all marked days; return the number of new revisions, None if another collector meters."""
    added = 0
    for node_day in store.marked_days(days):
        written = finalize_day(store, lambda _: files, node_day, now_ns)
        if written is None:
            return None
        added += sum(each.added for each in written)
    return added


def begin_days(store: FactStore, days: range) -> None:
    """Mark days that are over, of all GPUs."""
    with store.database.transaction() as connection:
        gpus = read_places(connection)
    store.mark_gpus((gpu, day) for gpu in gpus for day in days)


def finalize(store: FactStore, days: range, now_ns: int = NOW_NS) -> None:
    begin_days(store, days)
    finalize_marked(store, FILES, days, now_ns)


def report_gpu(seconds: Sequence[int], claim_at: int = 0) -> list[Fact]:
    """A GPU with a claim, of a node that reports for 10 minutes at each of some times."""
    node, core = NodeReporter(booted_at=0), temporary_core()
    claim = claim_started("GPU-0", "a", claim_at, tenant="red")
    for begin in seconds:
        events = {begin: [claim]} if begin == seconds[0] else None
        frames = node.frames(gpus_of("GPU-0"), range(begin, begin + 600, 30), events=events)
        accept(core, [node.record(frames)])
    quarters = [kept.interval for kept in core.evidence.quarters.by_key.values()]
    return [*quarters, *core.evidence.unwritten]
