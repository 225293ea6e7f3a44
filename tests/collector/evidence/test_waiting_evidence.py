"""Evidence that waits on disk while the database is away: memory stays small, and nothing is lost."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from ledger_days import LATER, a_day, ledger_hours
from structlog.testing import capture_logs
from support.disk import memory_directory, small_file_system
from support.examples import fewer_examples
from support.finalizing import FinalizingCollector, content
from support.story import DAY, NodeReporter, accept, at

from railscope_collector.config import IngestLimits
from railscope_collector.evidence.claim_events import ReportedEnd
from railscope_collector.evidence.node_intervals import EvidenceInterval
from railscope_collector.evidence.waiting_evidence import (
    EncodedFact,
    Fact,
    WaitingEvidence,
)
from railscope_collector.state_store import StateStore
from tests.failover.database_pair import DatabaseServer, server_identity

MINUTE, QUARTER, HOUR = 60, 900, 3600


class WaitingCollector(FinalizingCollector):
    """A collector of a shared database with four intervals in memory."""

    limits = IngestLimits(pending_evidence_intervals=4)

    def begin(self, *, is_incomplete: bool = False) -> WaitingCollector:
        if self.waiting.lost:
            self.core.evidence.claims.nodes.clear()
        self.begin_positions(is_incomplete=is_incomplete or bool(self.waiting.lost))
        self.waiting.begin()
        return self

    def acknowledge(self) -> tuple[int, int]:
        """Return the position of an acknowledgement, and that up to which all is stored."""
        fields = self.reader.acknowledge("n1")
        return int(fields["position"]), int(fields["stored"])

    @property
    def in_memory(self) -> int:
        return self.core.evidence.quarters.counts.total()

    @property
    def on_disk(self) -> int:
        return self.waiting.quarters

    async def attempt(self, now: float) -> bool:
        """Run one round and move what is beyond the bound; true if the round succeeded."""
        self.now = now
        succeeded = await self.finalizer.attempt()
        await self.finalizer.move_to_disk()
        return succeeded


@pytest.fixture
def database() -> Iterator[DatabaseServer]:
    """A server that may be stopped."""
    identity = server_identity()
    with tempfile.TemporaryDirectory(prefix="postgresql-", dir=memory_directory()) as name:
        if identity:
            os.chown(name, identity["user"], identity["group"])
        found = DatabaseServer(Path(name), {"fsync": "off"})
        found.initialize()
        found.start()
        found.execute("CREATE DATABASE ledger")
        yield found
        found.stop()  # with all of its processes, before its files are deleted


def fill(path: Path) -> None:
    """Write a file until no space is left."""
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while file.write(bytes(1024)):
            pass


@pytest.mark.parametrize("is_bound", [pytest.param(True, marks=pytest.mark.thorough), False])
async def test_the_ledger_is_complete_after_restarts_with_a_full_disk_and_without_a_database(
    tmp_path: Path, database: DatabaseServer, *, is_bound: bool
):
    """The disk, or its bound, is full before the database responds; a collector continues in this state."""
    undisturbed = FinalizingCollector(tmp_path / "two", f"sqlite:///{tmp_path / 'ledger'}")
    accept(undisturbed.core, a_day(NodeReporter()))
    await undisturbed.round(LATER)
    with small_file_system(tmp_path / "small", 4096) as directory:
        site = WaitingCollector(directory / "one", database.url("ledger")).begin()
        site.limits = IngestLimits(
            pending_evidence_intervals=4, waiting_evidence_bytes=20_000 if is_bound else 1 << 30
        )
        site.waiting.limits = site.limits
        envelopes = a_day(NodeReporter())
        await site.round(-100)
        position, _ = site.acknowledge()
        database.kill()
        with capture_logs() as logs:
            for now in range(0, LATER, QUARTER):
                arrived = [each for each in envelopes if each[0].received_wall_ns < at(now)]
                site.receive(arrived)
                del envelopes[: len(arrived)]
                assert not await site.attempt(now)
                if now % (6 * HOUR) == 0:
                    # without any space a collector serves what it has, and does not begin
                    (directory / "other").unlink(missing_ok=True)
                    site.restart(site.checkpoint())
                    site.begin()
                    if now > LATER // 3 and not is_bound:
                        fill(directory / "other")
        events = {line["event"] for line in logs}
        assert ("waiting_evidence_share_used" if is_bound else "evidence_move_failed") in events
        assert site.on_disk > 10, "what was written before stays"
        assert site.in_memory > 10, "the rest is in memory"
        assert site.acknowledge()[1] <= position
        assert not site.waiting.lost
        (directory / "other").unlink(missing_ok=True)
        database.start()
        site.receive(envelopes)
        await site.round(LATER)
        assert (site.on_disk, site.waiting.size_bytes) == (0, 0)
        await site.round(LATER + HOUR, everything=True)
        last, stored = site.acknowledge()
        assert stored >= last - 1
        assert content(site.stores.ledger, range(DAY, DAY + 1)) == content(
            undisturbed.stores.ledger, range(DAY, DAY + 1)
        )
        assert ledger_hours(site) == ledger_hours(undisturbed)
        for each in (site, undisturbed):
            each.close()


async def test_agents_send_again_what_a_damaged_row_contained(tmp_path: Path, url: str):
    """The next start reports it, and the frames that they send again are not duplicates."""
    undisturbed = FinalizingCollector(tmp_path / "two", f"sqlite:///{tmp_path / 'ledger'}")
    accept(undisturbed.core, a_day(NodeReporter()))
    await undisturbed.round(LATER)
    site = WaitingCollector(tmp_path / "one", url).begin()
    envelopes = a_day(NodeReporter())
    site.receive(envelopes)
    site.now = LATER
    await site.finalizer.move_to_disk()
    assert site.on_disk > 10
    damage_row(site.store, data_bit=1)
    site.restart(site.checkpoint())
    site.begin()
    assert site.waiting.lost.startswith("1 damaged")
    site.receive(envelopes)
    assert site.core.counts.duplicates == 0
    await site.round(LATER, everything=True)
    for each in (site, undisturbed):
        await each.round(LATER + HOUR, everything=True)
    assert ledger_hours(site) == ledger_hours(undisturbed)
    assert content(site.stores.ledger, range(DAY, DAY + 1)) == content(
        undisturbed.stores.ledger, range(DAY, DAY + 1)
    )
    for each in (site, undisturbed):
        each.finalizer.close()


def damage_row(store: StateStore, data_bit: int) -> None:
    """Change a bit of the content of the first interval on disk."""
    ((number, content),) = store.read("SELECT number, content FROM waiting_evidence LIMIT 1")
    at_byte, bit = divmod(data_bit % (8 * len(content)), 8)
    changed = content[:at_byte] + bytes([content[at_byte] ^ 1 << bit]) + content[at_byte + 1 :]
    with store.transaction() as connection:
        query = "UPDATE waiting_evidence SET content = ? WHERE number = ?"
        connection.execute(query, (changed, number))


@given(
    st.lists(
        st.tuples(st.sampled_from(["n1", "n2"]), st.integers(0, 1 << 40), st.booleans()), min_size=1
    ),
    st.integers(0, 1 << 30),
)
@fewer_examples(20)
def test_the_table_returns_what_was_written(
    found: list[tuple[str, int, bool]], data_bit: int
) -> None:
    """No change of any bit of a fact is accepted."""
    facts: list[Fact] = [
        ReportedEnd(number, "GPU-1", node, "job")
        if is_end
        else EvidenceInterval(node, "boot-1", number, 0, 1)
        for node, number, is_end in found
    ]
    lowest: dict[str, int] = {}
    for position, (node, _, _) in enumerate(found, 1):
        lowest.setdefault(node, position)
    with tempfile.TemporaryDirectory() as name:
        store = StateStore(Path(name))
        store.open()
        rows = opened(store)
        rows.write([encoded(fact, position) for position, fact in enumerate(facts, 1)], 2)
        again = opened(store)
        assert again.first == rows.first == lowest
        assert again.quarters == rows.quarters == sum(not is_end for _, _, is_end in found)
        assert again.size_bytes == rows.size_bytes > 0
        assert [row.fact for row in again.read(0)] == facts
        damage_row(store, data_bit)
        for _ in range(2):  # a start that is killed leaves it
            damaged = opened(store)
            assert damaged.lost.startswith("1 damaged row")
        damaged.begin()
        again = opened(store)
        assert not again.lost
        assert [row.fact for row in again.read(0)] == facts[1:]
        again.delete([row.number for row in again.read(0)])
        assert (again.size_bytes, again.first, again.quarters) == (0, {}, 0)
        store.close()


def opened(store: StateStore) -> WaitingEvidence:
    """Return the facts on disk."""
    found = WaitingEvidence(store, IngestLimits())
    found.open()
    return found


def encoded(fact: Fact, position: int) -> EncodedFact:
    """Return a fact as it is written."""
    if isinstance(fact, EvidenceInterval):
        return EncodedFact.of_quarter(fact, position)
    return EncodedFact.of_claim(fact, position)
