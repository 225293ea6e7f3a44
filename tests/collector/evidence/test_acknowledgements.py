"""Positions of acknowledgements: stored only once the database has every fact of the envelope."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.finalizing import FinalizingCollector
from support.story import (
    DAY_SECONDS,
    Envelopes,
    NodeReporter,
    accept,
    claim_ended,
    claim_started,
    gpus_of,
    host,
)

from railscope_collector.evidence.evidence_memory import UnstoredFacts
from railscope_collector.evidence.evidence_store import EvidenceStore
from railscope_collector.evidence.node_intervals import Contacts
from railscope_collector.finalization.day_writes import MeteringStores
from railscope_collector.ledger.database import UnusableLedgerError
from railscope_collector.state.state_checkpointer import IDENTITY, StateCheckpointer

QUARTER = 900


class SharingCollector(FinalizingCollector):
    """A collector of a shared database, with its state directory."""

    def begin(self, *, is_incomplete: bool = False) -> SharingCollector:
        """Begin positions, as a start of the collector does after it has read its state."""
        checkpointer = StateCheckpointer(self.directory, self.core)
        checkpointer.begin_positions(is_incomplete=is_incomplete)
        return self

    @property
    def unstored(self) -> UnstoredFacts:
        return self.core.evidence.intervals.unstored

    def receive(self, envelopes: Envelopes, node: str = "n1") -> int:
        """Accept envelopes and return the position of the last acknowledgement."""
        accept(self.core, envelopes)
        return int(self.unstored.acknowledge(node)["position"])

    def stored(self, node: str = "n1") -> int:
        return int(self.unstored.acknowledge(node)["stored"])


@pytest.fixture
def shared(tmp_path: Path, url: str) -> Iterator[SharingCollector]:
    found = SharingCollector(tmp_path / "one", url).begin()
    yield found
    found.finalizer.close()


async def test_an_interval_is_stored_once_the_database_has_it(shared: SharingCollector):
    node = NodeReporter()
    first = shared.receive(node.envelopes_of(gpus_of("GPU-0"), range(0, 300, 30)))
    await shared.round(310)
    assert shared.stored() < first, "it is still growing"
    later = shared.receive(node.envelopes_of(gpus_of("GPU-0"), range(1800, 2100, 30)))
    await shared.round(1000)
    assert first <= shared.stored() < later, "the second one is still growing"
    await shared.round(2200)
    assert shared.stored() >= later


async def test_nodes_do_not_wait_for_each_other(shared: SharingCollector):
    one = shared.receive(NodeReporter("n1").envelopes_of(gpus_of("GPU-0"), range(0, 300, 30)))
    two = shared.receive(
        NodeReporter("n2").envelopes_of(gpus_of("GPU-1"), range(300, 600, 30)), "n2"
    )
    await shared.round(400)
    assert shared.stored("n1") >= one
    assert shared.stored("n2") < two


@pytest.mark.parametrize(
    "event", [claim_started("GPU-0", "job", 400), claim_ended("GPU-0", "job", 400)]
)
async def test_claims_and_ends_are_stored_with_the_next_round(
    shared: SharingCollector, event: object
):
    """They do not wait for an interval to end, but the interval of their envelope does."""
    node = NodeReporter()
    shared.receive(node.envelopes_of(gpus_of("GPU-0"), range(0, 300, 30)))
    await shared.round(400, everything=True)
    envelopes = node.envelopes_of(host(), [410], events={410: [event]})  # type: ignore[dict-item]
    claim = shared.receive(envelopes)
    facts = list(shared.core.evidence.unwritten)
    assert len(facts) == 1
    waiting = shared.unstored._waiting["n1"]  # noqa: SLF001 - reads its internal state
    assert facts[0] in waiting
    await shared.round(411)
    assert facts[0] not in waiting
    assert shared.stored() < claim
    await shared.round(500)
    assert shared.stored() >= claim


class WatchedStore(EvidenceStore):
    """Calls a function before each write, as of another thread, and one after each write of contacts."""

    before: Callable[[], None] = staticmethod(lambda: None)
    after_contacts: Callable[[Contacts], None] = staticmethod(lambda _: None)

    def write(self, *args: object) -> None:
        self.before()
        super().write(*args)  # type: ignore[arg-type]

    def write_contacts(self, found: Contacts) -> None:
        self.before()
        super().write_contacts(found)
        self.after_contacts(found)


class WatchedCollector(SharingCollector):
    """A collector whose writes are watched."""

    watched: WatchedStore

    def _open(self) -> MeteringStores:
        stores = super()._open()
        self.watched = WatchedStore(stores.ledger.database)
        return MeteringStores(stores.ledger, self.watched)


@pytest.fixture
def watched(tmp_path: Path, url: str) -> Iterator[WatchedCollector]:
    found = WatchedCollector(tmp_path / "one", url)
    found.begin()
    yield found
    found.finalizer.close()


async def test_what_is_being_written_is_not_stored(watched: WatchedCollector):
    """Neither is what was added meanwhile, after the write."""
    node = NodeReporter()
    position = watched.receive(node.envelopes_of(gpus_of("GPU-0"), range(0, 300, 30)))
    await watched.round(301)
    seen: list[int] = []
    more = node.envelopes_of(gpus_of("GPU-0"), range(300, 600, 30))
    added: list[int] = []

    def before() -> None:
        seen.append(watched.stored())
        if not added:
            added.append(watched.receive(more))

    watched.watched.before = before
    await watched.round(400)
    assert seen
    assert max(seen) < position
    assert position <= watched.stored() < added[0]
    watched.watched.before = lambda: None
    await watched.round(700)
    assert watched.stored() >= added[0]


async def test_a_write_that_fails_stores_nothing(watched: WatchedCollector):
    node = NodeReporter()
    events = {30: [claim_started("GPU-0", "job", 20)]}
    await watched.round(-1000)
    position = watched.receive(node.envelopes_of(gpus_of("GPU-0"), range(0, 60, 30), events=events))

    def fail() -> None:
        message = "the connection was closed"
        raise UnusableLedgerError(message)

    watched.watched.before = fail
    later = watched.receive(node.envelopes_of(gpus_of("GPU-0"), range(60, 120, 30)))
    assert not await watched.finalizer.attempt()
    watched.now = 1000
    assert not await watched.finalizer.attempt()
    assert watched.stored() < position
    watched.watched.before = lambda: None
    await watched.round(1000)
    assert watched.stored() >= later


async def test_contacts_of_a_write_that_ended_without_an_answer_are_written_again(
    watched: WatchedCollector,
):
    """They are in the database, but its standby may not have them."""
    await watched.round(-1000)
    position = watched.receive(NodeReporter().envelopes_of(gpus_of("GPU-0"), range(0, 300, 30)))
    written: list[Contacts] = []

    def lose_first_answer(found: Contacts) -> None:
        written.append(found)
        if len(written) == 1:
            message = "the connection was closed"
            raise UnusableLedgerError(message)

    watched.watched.after_contacts = lose_first_answer
    watched.now = 1000
    assert not await watched.finalizer.attempt()
    assert watched.stored() < position
    await watched.round(1000)
    assert watched.stored() >= position
    assert [found.keys() for found in written] == [{"n1"}, set()]


async def test_first_contacts_wait_for_their_own_write(watched: WatchedCollector):
    """The interval of a new GPU may be written before the contact: then the envelope is not stored."""
    node = NodeReporter()
    watched.receive(node.envelopes_of(gpus_of("GPU-0"), range(0, 300, 30)))
    await watched.round(301)
    position = 0

    def before() -> None:
        nonlocal position
        new = NodeReporter(run="run-2")
        position = position or watched.receive(new.envelopes_of(gpus_of("GPU-9"), range(0, 60, 30)))

    watched.watched.before = before
    await watched.round(400, everything=True)
    watched.watched.before = lambda: None
    await watched.finalizer._writer.write_evidence(watched.stores.store, None)  # noqa: SLF001 - no contacts
    assert not watched.core.evidence.intervals.by_key
    assert watched.stored() < position
    await watched.round(500)
    assert watched.stored() >= position


async def test_positions_of_earlier_starts_are_stored_once_all_that_was_read_is(
    shared: SharingCollector,
):
    node = NodeReporter()
    log = shared.unstored.log
    first = shared.receive(node.envelopes_of(gpus_of("GPU-0"), range(0, 300, 30)))
    checkpoint = shared.checkpoint()
    shared.restart(checkpoint)
    shared.begin()
    assert shared.unstored.log == log
    assert shared.stored() < first
    second = shared.receive(node.envelopes_of(gpus_of("GPU-0"), range(1800, 2100, 30)))
    assert second > first
    assert shared.stored() < first
    await shared.round(1000)
    assert first <= shared.stored() < second
    await shared.round(2200)
    assert shared.stored() >= second


@pytest.mark.parametrize("loss", ["incomplete", "deleted", "damaged"])
def test_an_incomplete_state_has_another_identity(shared: SharingCollector, loss: str):
    log = shared.unstored.log
    file = shared.directory / IDENTITY
    if loss == "deleted":
        file.unlink()
    elif loss == "damaged":
        file.write_bytes(b"{")
    shared.restart()
    shared.begin(is_incomplete=loss == "incomplete")
    assert shared.unstored.log != log


def test_nothing_is_recorded_for_an_embedded_database(tmp_path: Path, url: str):
    site = FinalizingCollector(tmp_path / "one", url)
    accept(site.core, NodeReporter().envelopes_of(gpus_of("GPU-0"), range(0, DAY_SECONDS, 3600)))
    unstored = site.core.evidence.intervals.unstored
    assert unstored == UnstoredFacts()
    assert unstored.acknowledge("n1") == {}
