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
import sqlalchemy as sa
from fact_stores import FILES, HOURS, NOW_NS, TENANTS, begin_days, finalize_marked
from random_cluster import Fact, RandomCluster, arrivals, received_ns
from support.finalizing import FinalizingCollector, content
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
from support.waiting import block_until

from railscope.timestamps import DAY_NS, HOUR_NS
from railscope_collector.evidence.day_facts import DayFacts
from railscope_collector.evidence.fact_store import FactStore
from railscope_collector.evidence.file_versions import FileStore
from railscope_collector.evidence.node_intervals import EvidenceInterval
from railscope_collector.finalization.day_finalizer import MeteringStores
from railscope_collector.finalization.marked_days import finalize_day
from railscope_collector.ledger import day_documents
from railscope_collector.ledger.database import Database
from railscope_collector.ledger.ledger_store import Ledger
from railscope_collector.metering.metered_day import MeteredDay
from railscope_collector.tables import metadata

Stores = Callable[[str], FactStore]


@pytest.fixture
def stores() -> Iterator[Stores]:
    """Fact stores by the URLs of their databases."""
    opened: list[FactStore] = []

    def open_store(url: str) -> FactStore:
        database = Database(url, metadata)
        opened.append(FactStore(database))
        return opened[-1]

    yield open_store
    for store in opened:
        store.database.close()


def write(store: FactStore, facts: Sequence[Fact], now_day: int) -> None:
    quarters = [fact for fact in facts if isinstance(fact, EvidenceInterval)]
    claims = [fact for fact in facts if not isinstance(fact, EvidenceInterval)]
    store.write(quarters, claims, range(now_day))


def finalize(store: FactStore, days: range) -> None:
    """Meter days after all of their facts."""
    begin_days(store, days)
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
        begin_days(store, range(begun, now_day))
        begun = max(begun, now_day)
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
    quarters = [kept.interval for kept in core.evidence.quarters.by_key.values()]
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


def test_a_day_is_metered_with_the_files_that_removed_its_marks(stores: Stores, url: str):
    """Another collector stores a file, with its marks, after this one has read which days are marked."""
    store, days = stores(url), range(DAY, DAY + 1)
    files = FileStore(store.database)
    report = claim_started("GPU-0", "a", 0, source="slurm", owner="acct1")
    node, core = NodeReporter(booted_at=0), temporary_core()
    frames = node.frames(gpus_of("GPU-0"), range(0, 600, 30), events={0: [report]})
    accept(core, [node.record(frames)])
    quarters = [kept.interval for kept in core.evidence.quarters.by_key.values()]
    files.write("tenants", TENANTS, lambda: NOW_NS, days)
    write(store, [*quarters, *core.evidence.unwritten], DAY + 1)
    ((node_day),) = store.marked_days(days)
    FileStore(store.database).write("tenants", TENANTS.replace("red", "blue"), lambda: NOW_NS, days)
    assert files.read_all().tenants
    finalize_day(store, files.read_in, node_day, NOW_NS)
    assert store.marked_days(days) == []
    (day,) = documents(store, days).values()
    assert {part.tenant for piece in day.pieces for part in piece.parts if part.claim} == {"blue"}


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
    quarters = [kept.interval for kept in core.evidence.quarters.by_key.values()]
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
    quarters = [kept.interval for kept in core.evidence.quarters.by_key.values()]
    write(store, [*quarters, *core.evidence.unwritten], DAY + 1)
    finalize(store, range(DAY, DAY + 1))
    (day,) = documents(store, range(DAY, DAY + 1)).values()
    assert day.pieces[0].start_ns == at(8 * HOURS)
    (unmetered,) = day.unmetered
    assert unmetered.reason == "before the first report of the GPU"
    assert unmetered.end_ns - unmetered.start_ns == 3 * HOUR_NS


def test_days_that_can_no_longer_change_are_not_marked(stores: Stores, url: str):
    store, facts = stores(url), silent_node()
    quarters = [fact for fact in facts if isinstance(fact, EvidenceInterval)]
    claims = [fact for fact in facts if not isinstance(fact, EvidenceInterval)]
    store.write(quarters, claims, range(DAY + 1, DAY + 2))
    # And today, which another node may have the GPU on.
    assert store.marked_days(range(DAY - 9, DAY + 9)) == [("n1", DAY + 1), ("n1", DAY + 2)]
    # A collector that was stopped until the day could no longer change.
    store.write((), (), range(DAY + 3, DAY + 4))
    assert store.marked_days(range(DAY - 9, DAY + 9)) == []


def test_claims_on_a_gpu_out_of_service_are_listed_as_not_metered(stores: Stores, url: str):
    store, days = stores(url), range(DAY, DAY + 1)
    files = FileStore(store.database)
    node, core = NodeReporter(booted_at=0), temporary_core()
    events = {
        0: [claim_started("GPU-0", "a", 0, tenant="red")],
        570: [claim_ended("GPU-0", "a", 570)],
    }
    frames = node.frames(gpus_of("GPU-0"), range(0, 600, 30), events=events)
    accept(core, [node.record(frames)])
    quarters = [kept.interval for kept in core.evidence.quarters.by_key.values()]
    write(store, [*quarters, *core.evidence.unwritten], DAY + 1)
    files.write(
        "inventory",
        "node,gpus,rdma_ports,from,to\nn9,1,,2026-01-01T00:00:00Z,\n",
        lambda: NOW_NS,
        days,
    )
    begin_days(store, days)
    finalize_day(store, files.read_in, ("n1", DAY), NOW_NS)
    (day,) = documents(store, days).values()
    early, unserved = day.unmetered
    assert (day.pieces, early.reason) == ((), "before the first report of the GPU")
    assert (unserved.tenant, unserved.end_ns) == ("red", at(570))
    assert unserved.reason == "the GPU is retired, or its node is not in the inventory"


class PausingFacts(FactStore):
    """Facts of GPU-0, while it is slow, are read so slowly that the server ends the transaction."""

    is_slow = True

    def read_day(self, connection, gpus: Sequence[str], day: int) -> DayFacts:
        found = super().read_day(connection, gpus, day)
        if self.is_slow and (day, list(gpus)) == (DAY, ["GPU-0"]):
            pid = connection.execute(sa.text("SELECT pg_backend_pid()")).scalar()
            limit = "SET LOCAL idle_in_transaction_session_timeout = '1ms'"
            connection.execute(sa.text(limit))

            def has_ended() -> bool:
                with self.database.transaction() as other:
                    query = sa.text("SELECT 1 FROM pg_stat_activity WHERE pid = :pid")
                    return other.execute(query, {"pid": pid}).first() is None

            block_until(has_ended, "the server has ended the transaction")
        return found


class PausingCollector(FinalizingCollector):
    def _open(self) -> MeteringStores:
        self.facts = PausingFacts(Database(self.url, metadata))
        database = self.facts.database
        return MeteringStores(Ledger(database), self.facts, FileStore(database))


async def test_a_day_that_takes_too_long_to_meter_stops_no_other(tmp_path: Path, server):
    site, days = PausingCollector(tmp_path / "state", server.database()), range(DAY, DAY + 1)
    for name, gpu in (("n1", "GPU-0"), ("n2", "GPU-1")):
        node = NodeReporter(name, f"boot of {name}", booted_at=0)
        accept(site.core, [node.record(node.frames(gpus_of(gpu), range(0, 600, 30)))])
    now = DAY_SECONDS + 2 * HOURS
    await site.round(now, everything=True)
    assert {gpu for gpu, _ in content(site.stores.ledger, days)} == {"GPU-1"}
    assert site.finalizer.rejected_days.keys() == {("n1", DAY)}
    assert site.live.account, "it has the other days"
    site.facts.is_slow = False
    finalize_marked(site.facts, FILES, days, NOW_NS)  # as another collector does
    await site.round(now + 60)
    assert site.finalizer.rejected_days == {}
    assert {gpu for gpu, _ in content(site.stores.ledger, days)} == {"GPU-0", "GPU-1"}
    site.close()


def test_the_facts_of_a_day_have_neither_claims_that_ended_before_nor_their_ends(
    stores: Stores, url: str
):
    store, core, node = stores(url), temporary_core(), NodeReporter(booted_at=0)
    events = {
        2 * HOURS: [
            claim_ended("GPU-0", "a", HOURS + 60),
            claim_started("GPU-0", "a", HOURS, tenant="red"),
            claim_started("GPU-0", "b", HOURS, tenant="red"),
        ],
        DAY_SECONDS + HOURS: [claim_ended("GPU-0", "b", DAY_SECONDS + HOURS)],
    }
    frames = node.frames(gpus_of("GPU-0"), range(0, 2 * DAY_SECONDS, HOURS), events=events)
    accept(core, [node.record([frame]) for frame in frames])
    quarters = [kept.interval for kept in core.evidence.quarters.by_key.values()]
    write(store, [*quarters, *core.evidence.unwritten], DAY + 2)
    for day, names in ((DAY, {"a", "b"}), (DAY + 1, {"b"}), (DAY + 2, set())):
        with store.database.transaction() as connection:
            found = store.read_day(connection, ["GPU-0"], day)
        assert {claim.id for claim in found.claims["GPU-0"]} == names
        assert {name for _, _, name in found.ends} == names


def listings(*reports: tuple[str, int]) -> list[EvidenceInterval]:
    """GPU-0 for 10 minutes at each of some times, of nodes that were booted at the beginning."""
    core = temporary_core()
    for name, begin in reports:
        node = NodeReporter(name, f"boot of {name}", f"run {begin}", booted_at=0)
        frames = node.frames(gpus_of("GPU-0"), range(begin, begin + 600, 30))
        accept(core, [node.record(frames)])
    quarters = [kept.interval for kept in core.evidence.quarters.by_key.values()]
    return sorted(quarters, key=lambda quarter: quarter.start_ns)


def contested(store: FactStore) -> list[tuple[int, str]]:
    with store.database.transaction() as connection:
        found = store.read_day(connection, ["GPU-0"], DAY)
    return [(each.since_ns, each.value) for each in found.contested.get("GPU-0", ())]


def test_a_late_quarter_removes_no_contest_of_another_node(
    stores: Stores, tmp_path: Path, url: str
):
    held = [("n1", begin) for begin in range(0, 5 * HOURS, 1800)]
    facts = listings(*held, ("n2", 5400), ("n2", 2 * HOURS), ("n3", 3 * HOURS))
    at_once, store = stores(f"sqlite:///{tmp_path / 'whole.db'}"), stores(url)
    write(at_once, facts, DAY + 1)
    assert [node for _, node in contested(at_once)] == ["n2", "n3"]
    late = next(fact for fact in facts if fact.node == "n2")
    write(store, [fact for fact in facts if fact is not late], DAY + 1)
    write(store, [late], DAY + 1)
    assert contested(store) == contested(at_once)


def test_a_contest_ends_when_the_gpu_moves_and_may_begin_again(stores: Stores, url: str):
    # The second node lists the GPU before and after the first one is silent for an hour.
    facts = listings(("n1", 0), ("n2", 1800), ("n2", 3 * HOURS), ("n1", 3 * HOURS + 900))
    store = stores(url)
    write(store, facts[:3], DAY + 1)
    assert contested(store) == []
    write(store, facts[3:], DAY + 1)
    assert [node for _, node in contested(store)] == ["n1"]


def test_a_late_quarter_of_the_old_node_changes_a_move_that_began_before_it(
    stores: Stores, tmp_path: Path, url: str
):
    moved = [("n2", begin) for begin in range(2 * HOURS + 600, 5 * HOURS, 600)]
    facts = listings(("n1", 0), ("n1", 2 * HOURS), ("n1", 9100), *moved)
    late = [fact for fact in facts if fact.node == "n1"][-1]
    found = []
    for url_of_store, first in ((f"sqlite:///{tmp_path / 'whole.db'}", facts), (url, [])):
        store = stores(url_of_store)
        write(store, first or [fact for fact in facts if fact is not late], DAY + 1)
        write(store, [late], DAY + 1)
        with store.database.transaction() as connection:
            found.append(store.read_day(connection, ["GPU-0"], DAY).nodes["GPU-0"])
    assert found[0] == found[1]
    assert [each.value for each in found[0]] == ["n1", "n2"]
    assert found[0][1].since_ns > late.start_ns
