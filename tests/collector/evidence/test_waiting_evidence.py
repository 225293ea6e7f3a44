"""Evidence that waits on disk while the database is away: memory stays small, and nothing is lost."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from ledger_days import LATER, a_day, ledger_hours
from structlog.testing import capture_logs
from support.disk import enlarge, memory_directory, small_file_system
from support.examples import fewer_examples
from support.finalizing import FinalizingCollector, content
from support.story import DAY, NodeReporter, accept, at

from railscope_collector.config import IngestLimits
from railscope_collector.evidence.node_intervals import EvidenceInterval, encode_interval
from railscope_collector.evidence.waiting_evidence import WaitingEvidence, compare_files
from railscope_collector.framelog.state_manifest import StateFiles, accept_loss
from railscope_collector.state.state_checkpointer import StateCheckpointer
from tests.failover.database_pair import DatabaseServer, server_identity

MINUTE, QUARTER, HOUR = 60, 900, 3600


class WaitingCollector(FinalizingCollector):
    """A collector of a shared database with four intervals in memory."""

    limits = IngestLimits(pending_evidence_intervals=4)

    def begin(self, *, is_incomplete: bool = False) -> WaitingCollector:
        checkpointer = StateCheckpointer(self.directory, self.core)
        checkpointer.waiting = self.waiting
        checkpointer.begin_positions(is_incomplete=is_incomplete)
        return self

    def restart_from_disk(self) -> None:
        """Restart as after an interruption, with all checks of the files."""
        self.state_files = StateFiles(self.directory)
        self.state_files.open()
        self.restart(self.checkpoint())
        self.begin(is_incomplete=bool(self.state_files.damage))

    def acknowledge(self, node: str = "n1") -> tuple[int, int]:
        """Return the position of an acknowledgement, and that up to which all is stored."""
        fields = self.core.evidence.intervals.unstored.acknowledge(node)
        return int(fields["position"]), int(fields["stored"])

    @property
    def in_memory(self) -> int:
        return self.core.evidence.intervals.counts.total()

    @property
    def on_disk(self) -> int:
        return self.core.evidence.intervals.on_disk.total()

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


@pytest.mark.parametrize("is_bound", [pytest.param(True, marks=pytest.mark.thorough), False])
async def test_the_ledger_is_complete_after_restarts_with_a_full_disk_and_without_a_database(
    tmp_path: Path, database: DatabaseServer, *, is_bound: bool
):
    """The disk, or its bound, is full before the database responds; a collector continues in this state."""
    undisturbed = FinalizingCollector(tmp_path / "two", f"sqlite:///{tmp_path / 'ledger'}")
    accept(undisturbed.core, a_day(NodeReporter()))
    await undisturbed.round(LATER)
    kibibytes = 4096 if is_bound else 64
    with small_file_system(tmp_path / "small", kibibytes) as directory:
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
                accept(site.core, arrived)
                del envelopes[: len(arrived)]
                assert not await site.attempt(now)
                if now % (6 * HOUR) == 0:
                    # without any space a collector serves what it has, and does not begin
                    kibibytes += 8
                    enlarge(directory, kibibytes)
                    site.restart(site.checkpoint())
                    site.begin()
        events = {line["event"] for line in logs}
        assert ("waiting_evidence_share_used" if is_bound else "evidence_move_failed") in events
        assert site.on_disk > 10, "what was written before stays"
        assert site.in_memory > 10, "the rest is in memory"
        assert site.acknowledge()[1] <= position
        assert not site.waiting.damaged
        database.start()
        database.execute("UPDATE collector_lease SET expires_at = NULL", "ledger")
        accept(site.core, envelopes)
        await site.round(LATER)
        assert (site.on_disk, site.waiting.sizes) == (0, {})
        await site.round(LATER + HOUR, everything=True)
        last, stored = site.acknowledge()
        assert stored >= last - 1
        assert content(site.stores.ledger, range(DAY, DAY + 1)) == content(
            undisturbed.stores.ledger, range(DAY, DAY + 1)
        )
        assert ledger_hours(site) == ledger_hours(undisturbed)
        for each in (site, undisturbed):
            each.finalizer.close()


def damage_file(path: Path) -> bytes:
    """Change the last byte of a file; return its content before."""
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    return whole


def remove_file(path: Path) -> bytes:
    """Delete a file; return its content."""
    whole = path.read_bytes()
    path.unlink()
    return whole


@pytest.mark.parametrize("break_file", [damage_file, remove_file])
async def test_agents_send_again_what_a_lost_file_contained(
    tmp_path: Path, url: str, break_file: Callable[[Path], bytes]
):
    """The next start reports the file, and the frames that they send again are not duplicates."""
    undisturbed = FinalizingCollector(tmp_path / "two", f"sqlite:///{tmp_path / 'ledger'}")
    accept(undisturbed.core, a_day(NodeReporter()))
    await undisturbed.round(LATER)
    site = WaitingCollector(tmp_path / "one", url).begin()
    site.waiting.state_files = StateFiles(site.directory)
    envelopes = a_day(NodeReporter())
    accept(site.core, envelopes)
    site.now = LATER
    await site.finalizer.move_to_disk()
    (name,) = site.waiting.sizes
    break_file(site.directory / "waiting" / name)
    assert any(
        line.startswith(f"waiting/{name}: ") for line in accept_loss(site.directory, compare_files)
    )
    site.restart_from_disk()
    assert site.state_files
    assert f"waiting/{name}" in site.state_files.damage
    accept(site.core, envelopes)
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


@given(
    st.lists(st.tuples(st.sampled_from(["n1", "n2"]), st.integers(0, 1 << 40)), min_size=1),
    st.data(),
)
@fewer_examples(20)
def test_files_return_what_was_written(found: list[tuple[str, int]], data: st.DataObject):
    """No change of any byte of a file is accepted."""
    intervals = [EvidenceInterval(node, "boot-1", number, 0, 1) for node, number in found]
    with tempfile.TemporaryDirectory() as name:
        files = WaitingEvidence(Path(name), IngestLimits())
        nodes = [node for node, _ in found]
        files.write(nodes, [encode_interval(each) for each in intervals], 2)
        again = WaitingEvidence(Path(name), IngestLimits())
        assert again.open() == Counter(nodes)
        (file,) = again.sizes
        path = Path(name) / file
        assert again.size_bytes == files.size_bytes == path.stat().st_size
        assert again.read(file) == intervals
        raw = path.read_bytes()
        at_byte = data.draw(st.integers(0, len(raw) - 1))
        changed = raw[at_byte] ^ data.draw(st.integers(1, 255))
        for broken in (raw[:at_byte], raw[:at_byte] + bytes([changed]) + raw[at_byte + 1 :]):
            path.write_bytes(broken)
            assert again.read(file) is None
            damaged = WaitingEvidence(Path(name), IngestLimits())
            assert not damaged.open()
            assert list(damaged.damaged) == [file]
        path.write_bytes(raw)
        assert again.read(file) == intervals
        assert not again.damaged
        again.delete(file)
        assert not WaitingEvidence(Path(name), IngestLimits()).open()
