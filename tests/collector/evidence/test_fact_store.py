"""Days from stored facts: neither the order of their arrival nor the times of metering change the ledger."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path
from random import Random

import pytest
from random_cluster import Fact, RandomCluster, arrivals, received_ns
from support.story import (
    DAY,
    DAY_SECONDS,
    NodeReporter,
    accept,
    at,
    claim_ended,
    claim_started,
    gpus_of,
    temporary_core,
)

from railscope.timestamps import DAY_NS, HOUR_NS
from railscope_collector.evidence import fact_store
from railscope_collector.evidence.day_facts import DayFacts
from railscope_collector.evidence.fact_store import FactStore
from railscope_collector.evidence.gpu_evidence import AdministratorInputs
from railscope_collector.evidence.node_intervals import EvidenceInterval
from railscope_collector.files import tenants_file
from railscope_collector.finalization.marked_days import finalize_marked
from railscope_collector.ledger import day_documents
from railscope_collector.ledger.database import Database
from railscope_collector.metering.metered_day import MeteredDay
from railscope_collector.tables import metadata

TENANTS = """tenant,source,owner,from,to
red,slurm,acct1,2026-01-01T00:00:00Z,
blue,slurm,acct2,2026-01-01T00:00:00Z,
green,slurm,acct2,2026-09-05T10:00:00Z,
"""
FILES = AdministratorInputs(tenants=tenants_file.parse_tenants(TENANTS))
HOURS = 3600
NOW_NS = at(30 * DAY_SECONDS)
Stores = Callable[[str], FactStore]


@pytest.fixture
def stores() -> Iterator[Stores]:
    """Fact stores by the URLs of their databases."""
    opened: list[FactStore] = []
    creating = threading.Lock()

    def open_store(url: str) -> FactStore:
        database = Database(url, metadata)
        with creating, database.transaction(writes=True) as connection:
            fact_store.metadata.create_all(connection)
        opened.append(FactStore(database))
        return opened[-1]

    yield open_store
    for store in opened:
        store.database.close()


def write(store: FactStore, facts: Sequence[Fact], now_day: int) -> None:
    quarters = [fact for fact in facts if isinstance(fact, EvidenceInterval)]
    claims = [fact for fact in facts if not isinstance(fact, EvidenceInterval)]
    store.write(quarters, claims, now_day)


def finalize(store: FactStore, days: range) -> None:
    """Meter days after all of their facts."""
    for day in days:
        store.begin_day(day)
    finalize_marked(store, FILES, days, NOW_NS)


def documents(store: FactStore, days: range) -> dict[tuple[str, int], MeteredDay]:
    with store.database.transaction() as connection:
        numbers = day_documents.newest_numbers(connection, days)
        found = list(day_documents.read_revisions(connection, numbers))
        totals = day_documents.read_totals(connection, days)
    sums: Counter = Counter()
    for revision in found:
        for key, quantity in day_documents.sum_day(revision.day).items():
            sums[revision.day.day, key] += quantity
    assert {key: q for key, q in totals.items() if q} == {key: q for key, q in sums.items() if q}
    return {revision.key: revision.day for revision in found}


def metered_at_once(
    stores: Stores, directory: Path, facts: Sequence[Fact], days: range
) -> dict[tuple[str, int], MeteredDay]:
    store = stores(f"sqlite:///{directory / 'whole.db'}")
    write(store, facts, days.stop)
    finalize(store, days)
    found = documents(store, days)
    assert any(part.claim for day in found.values() for piece in day.pieces for part in piece.parts)
    return found


SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(1, 20))]


@pytest.mark.parametrize("seed", SEEDS)
def test_days_metered_while_facts_arrive_late_are_those_of_all_facts_at_once(
    stores: Stores, tmp_path: Path, seed: int
):
    cluster = RandomCluster(seed)
    facts, days = cluster.facts(), range(DAY, DAY + cluster.days)
    expected = metered_at_once(stores, tmp_path, facts, days)
    store, begun = stores(f"sqlite:///{tmp_path / 'late.db'}"), DAY
    stored = arrivals(facts, Random(seed))  # noqa: S311 - a seed of a test
    for hour, arrived in groupby(stored, key=lambda each: each[0] // HOUR_NS):
        now_day = hour * HOUR_NS // DAY_NS
        write(store, [fact for _, fact in arrived], now_day)
        while begun < now_day:
            store.begin_day(begun)
            begun += 1
        finalize_marked(store, FILES, range(DAY, min(begun, days.stop)), NOW_NS)
    finalize(store, days)
    assert documents(store, days) == expected


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(s, marks=pytest.mark.thorough) for s in (2, 3))]
)
def test_two_collectors_that_store_and_meter_at_once_write_the_days_of_all_facts(
    stores: Stores, tmp_path: Path, server, seed: int
):
    cluster, random = RandomCluster(seed), Random(seed)  # noqa: S311 - a seed of a test
    facts, days = cluster.facts(), range(DAY, DAY + cluster.days)
    expected = metered_at_once(stores, tmp_path, facts, days)
    url = server.database()
    facts.sort(key=received_ns)
    parts = [facts[first : first + 40] for first in range(0, len(facts), 40)]
    # Some batches reach both collectors, as an agent sends again what was not acknowledged.
    receivers = [random.choice([(0,), (1,), (0, 1)]) for _ in parts]
    is_stored = threading.Event()

    def store_all(collector: int) -> None:
        store = stores(url)
        for part, of in zip(parts, receivers, strict=True):
            if collector in of:
                write(store, part, days.stop)

    def meter_all() -> None:
        store = stores(url)
        while not is_stored.is_set():
            finalize_marked(store, FILES, days, NOW_NS)

    with ThreadPoolExecutor(4) as pool:
        metering = [pool.submit(meter_all) for _ in range(2)]
        storing = [pool.submit(store_all, collector) for collector in range(2)]
        try:
            for work in storing:
                work.result()
        finally:
            is_stored.set()
        for work in metering:
            work.result()
    store = stores(url)
    finalize(store, days)
    assert documents(store, days) == expected


def silent_node() -> list[Fact]:
    """A GPU with a claim, of a node that reports at 1:00, at 22:00, and on the next day at 3:13."""
    node, core = NodeReporter(booted_at=0), temporary_core()
    claim = claim_started("GPU-0", "a", HOURS, tenant="red")
    for begin in (HOURS, 22 * HOURS, 98_000, 110_000):
        events = {begin: [claim]} if begin == HOURS else None
        frames = node.frames(gpus_of("GPU-0"), range(begin, begin + 600, 30), events=events)
        accept(core, [node.record(frames)])
    quarters = [kept.interval for kept in core.evidence.intervals.by_key.values()]
    return [*quarters, *core.evidence.unwritten]


def is_before_silence(fact: Fact) -> bool:
    return isinstance(fact, EvidenceInterval) and at(20 * HOURS) < fact.start_ns < at(DAY_SECONDS)


def test_a_late_quarter_before_a_silence_changes_the_day_after_it(
    stores: Stores, tmp_path: Path, url: str
):
    facts, days = silent_node(), range(DAY, DAY + 2)
    expected = metered_at_once(stores, tmp_path, facts, days)
    store = stores(url)
    write(store, [fact for fact in facts if not is_before_silence(fact)], days.stop)
    finalize(store, days)
    assert documents(store, days) != expected
    write(store, [fact for fact in facts if is_before_silence(fact)], days.stop)
    finalize_marked(store, FILES, days, NOW_NS)
    assert documents(store, days) == expected


def test_a_fact_that_is_stored_while_its_day_is_metered_changes_the_day_in_the_next_round(
    stores: Stores, tmp_path: Path, server
):
    facts, days = silent_node(), range(DAY, DAY + 2)
    expected = metered_at_once(stores, tmp_path, facts, days)
    url = server.database()
    other, late = stores(url), [fact for fact in facts if is_before_silence(fact)]

    class Metering(FactStore):
        def read_day(self, connection, gpus: Sequence[str], day: int) -> DayFacts:
            found = super().read_day(connection, gpus, day)
            write(other, late, days.stop)
            return found

    write(other, [fact for fact in facts if not is_before_silence(fact)], days.stop)
    finalize(Metering(other.database), days)
    finalize_marked(other, FILES, days, NOW_NS)
    assert documents(other, days) == expected


def test_a_gpu_that_two_nodes_list_stays_in_the_first_and_the_claim_of_the_other_is_not_metered(
    stores: Stores, url: str
):
    core = temporary_core()
    for name, begin, claim in (("n1", 0, "a"), ("n2", 2 * HOURS, "b")):
        node = NodeReporter(name, f"boot of {name}", booted_at=0)
        events = {begin: [claim_started("GPU-0", claim, begin, tenant=claim)]}
        frames = node.frames(gpus_of("GPU-0"), range(begin, 4 * HOURS, 30), events=events)
        for at_once in range(0, len(frames), 20):
            accept(core, [node.record(frames[at_once : at_once + 20])])
    store = stores(url)
    quarters = [kept.interval for kept in core.evidence.intervals.by_key.values()]
    write(store, [*quarters, *core.evidence.unwritten], DAY + 1)
    finalize(store, range(DAY, DAY + 1))
    (day,) = documents(store, range(DAY, DAY + 1)).values()
    assert {piece.node for piece in day.pieces} == {"n1"}
    assert {part.tenant for piece in day.pieces for part in piece.parts if part.claim} == {"a"}
    (unmetered,) = (each for each in day.unmetered if each.tenant == "b")
    assert unmetered.reason == "the GPU is in another node"
    assert unmetered.end_ns - unmetered.start_ns == 22 * HOUR_NS


def test_a_claim_from_before_the_first_report_of_its_gpu_is_listed_as_not_metered(
    stores: Stores, url: str
):
    node, core = NodeReporter(booted_at=0), temporary_core()
    events = {
        8 * HOURS: [claim_started("GPU-0", "a", 5 * HOURS, tenant="red")],
        9 * HOURS: [claim_ended("GPU-0", "a", 9 * HOURS)],
    }
    frames = node.frames(gpus_of("GPU-0"), range(8 * HOURS, 10 * HOURS, 30), events=events)
    accept(core, [node.record(frames[first : first + 2]) for first in range(0, len(frames), 2)])
    store = stores(url)
    quarters = [kept.interval for kept in core.evidence.intervals.by_key.values()]
    write(store, [*quarters, *core.evidence.unwritten], DAY + 1)
    finalize(store, range(DAY, DAY + 1))
    (day,) = documents(store, range(DAY, DAY + 1)).values()
    assert day.pieces[0].start_ns == at(8 * HOURS)
    (unmetered,) = day.unmetered
    assert unmetered.reason == "before the first report of the GPU"
    assert unmetered.end_ns - unmetered.start_ns == 3 * HOUR_NS
