"""Evidence that waits on disk while the database is away: memory stays small, and nothing is lost."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from threading import Event

import pytest
import sqlalchemy as sa
from hypothesis import given, strategies as st
from ledger_days import LATER, a_day, ledger_hours
from structlog.testing import capture_logs
from support.disk import enlarge, memory_directory, small_file_system
from support.examples import fewer_examples
from support.finalizing import FinalizingCollector, content
from support.story import DAY, NodeReporter, accept, at, gpus_of

from railscope.service import run_in_thread
from railscope_collector.config import IngestLimits
from railscope_collector.evidence.evidence_memory import IntervalInMemory
from railscope_collector.evidence.evidence_store import EvidenceStore
from railscope_collector.evidence.evidence_tables import evidence_intervals
from railscope_collector.evidence.node_intervals import EvidenceInterval, encode_interval
from railscope_collector.evidence.waiting_evidence import WaitingEvidence, compare_files
from railscope_collector.finalization.day_writes import MeteringStores
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
        found.kill()


async def test_the_ledger_is_complete_after_a_long_outage_and_a_restart(
    tmp_path: Path, database: DatabaseServer
):
    """The database is away for 19 hours, and memory holds one; a restart reads a checkpoint of the outage."""
    undisturbed = FinalizingCollector(tmp_path / "two", f"sqlite:///{tmp_path / 'ledger'}")
    accept(undisturbed.core, a_day(NodeReporter()))
    await undisturbed.round(LATER)
    site = WaitingCollector(tmp_path / "one", database.url("ledger")).begin()
    envelopes, first = a_day(NodeReporter()), 0
    end = LATER
    for now in range(0, end, QUARTER):
        arrived = [each for each in envelopes if each[0].received_wall_ns < at(now)]
        accept(site.core, arrived)
        del envelopes[: len(arrived)]
        position, stored = site.acknowledge()
        if now == 2 * HOUR:
            database.kill()
            first = position
        is_away = 2 * HOUR <= now < 21 * HOUR
        if now == 21 * HOUR:
            assert site.on_disk > 70
            database.start()
        assert await site.attempt(now) != is_away
        assert not is_away or stored <= first
        assert site.in_memory <= 4
        if now == 12 * HOUR:
            site.restart(site.checkpoint())
            site.begin()
            assert site.on_disk > 30
    database.execute("UPDATE collector_lease SET expires_at = NULL", "ledger")  # of the first start
    await site.round(end)
    assert (site.on_disk, site.waiting.sizes) == (0, {})
    position, _ = site.acknowledge()
    await site.round(end + HOUR, everything=True)
    assert site.acknowledge()[1] >= position
    assert content(site.stores.ledger, range(DAY, DAY + 1)) == content(
        undisturbed.stores.ledger, range(DAY, DAY + 1)
    )
    assert ledger_hours(site) == ledger_hours(undisturbed)
    for each in (site, undisturbed):
        each.finalizer.close()


@pytest.mark.parametrize("is_bound", [True, False])
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


class PausedStore(EvidenceStore):
    """A store whose writes wait for an event."""

    started, resumed = Event(), Event()

    def write(self, *args: object) -> None:
        self.started.set()
        assert self.resumed.wait(60)
        super().write(*args)  # type: ignore[arg-type]


class PausedCollector(WaitingCollector):
    """A collector whose commits hang."""

    def _open(self) -> MeteringStores:
        stores = super()._open()
        self.paused = PausedStore(stores.ledger.database)
        return MeteringStores(stores.ledger, self.paused)


async def test_evidence_is_moved_to_disk_while_a_commit_hangs(tmp_path: Path, url: str):
    """Intervals that are being written stay in memory, and so does all that is added to them."""
    site = PausedCollector(tmp_path / "one", url).begin()
    node = NodeReporter()
    accept(site.core, node.envelopes_of(gpus_of("GPU-0"), range(0, QUARTER, 30)))
    site.now = 2 * QUARTER
    writing = asyncio.create_task(site.finalizer.attempt())
    assert await run_in_thread(PausedStore.started.wait, 60)
    accept(site.core, node.envelopes_of(gpus_of("GPU-0"), range(2 * QUARTER, 20 * QUARTER, 30)))
    site.now = 21 * QUARTER
    await site.finalizer.move_to_disk()
    assert site.in_memory <= 2, "those that are being written"
    assert site.on_disk >= 17
    position, stored = site.acknowledge()
    PausedStore.resumed.set()
    assert await writing
    assert stored < position
    await site.round(21 * QUARTER, everything=True)
    assert (site.in_memory, site.on_disk) == (0, 0)
    assert site.acknowledge()[1] >= position
    assert site.finalizer.counts.intervals == 21
    site.finalizer.close()


class InterruptedFiles(WaitingEvidence):
    """Files that call a function while they are written."""

    before: Callable[[], None] = staticmethod(lambda: None)

    def write(self, *args: object) -> list[bool]:
        self.before()
        return super().write(*args)  # type: ignore[arg-type]


async def test_what_is_added_during_a_move_stays_in_memory(tmp_path: Path, url: str):
    site = WaitingCollector(tmp_path / "one", url).begin()
    files = InterruptedFiles(tmp_path / "files", site.limits)
    site.finalizer.waiting = site.finalizer._writer.waiting = files  # noqa: SLF001 - in place of its own
    node = NodeReporter()
    frames = node.frames(gpus_of("GPU-0"), range(0, 6 * QUARTER, 30))
    accept(site.core, [node.record([frame]) for frame in frames if frame is not frames[3]])
    late = node.record([frames[3]], sent=6 * QUARTER)
    files.before = lambda: accept(site.core, [late])
    site.now = 6 * QUARTER + MINUTE
    await site.finalizer.move_to_disk()
    assert site.in_memory == 2, "the one that was added to, and one that was added to recently"
    position, stored = site.acknowledge()
    assert stored < position
    await site.round(8 * QUARTER, everything=True)
    assert (site.in_memory, site.on_disk, files.sizes) == (0, 0, {})
    assert site.acknowledge()[1] >= position
    site.finalizer.close()


async def test_a_search_of_a_large_table_lets_other_tasks_run(tmp_path: Path):
    """None of 20,000 intervals may be moved, because the database rejects them."""
    site = WaitingCollector(tmp_path / "one", f"sqlite:///{tmp_path / 'ledger'}")
    count, turns = 20_000, 0
    intervals = [
        IntervalInMemory(EvidenceInterval(f"n{number}", "boot-1", 0, 0, 0))
        for number in range(count)
    ]
    intervals += [IntervalInMemory(EvidenceInterval("n0", "boot-1", n, 0, 0)) for n in range(1, 4)]
    site.core.evidence.intervals.restore(intervals)
    site.finalizer.rejected.update(interval.key for interval in intervals)

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    site.now, competing, began = 10 * QUARTER, asyncio.create_task(other()), time.thread_time()
    await site.finalizer.move_to_disk()
    competing.cancel()
    assert time.thread_time() - began < 2, "its time is proportional to the intervals"
    assert turns >= count // 500
    assert site.in_memory == count + 3


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


def rename_nodes(path: Path) -> bytes:
    """Replace the name of a node by another one; return the content before."""
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"n1", b"n2"))
    assert path.read_bytes() != whole
    return whole


@pytest.mark.parametrize("break_file", [damage_file, remove_file, rename_nodes])
async def test_a_file_that_cannot_be_read_delays_no_other(
    tmp_path: Path, url: str, break_file: Callable[[Path], bytes]
):
    """It is reported once, its nodes keep their frames, and it is written once it is restored."""
    site = WaitingCollector(tmp_path / "one", url).begin()
    states = site.waiting.state_files = StateFiles(site.directory)
    for number, node in enumerate(("n1", "n3")):
        accept(
            site.core, NodeReporter(node).envelopes_of(gpus_of(f"GPU-{node}"), range(0, 7200, 30))
        )
        site.now = 10 * QUARTER
        await site.finalizer.move_to_disk()
        assert len(site.waiting.sizes) == number + 1
    positions = {node: site.acknowledge(node)[0] for node in ("n1", "n3")}
    first = site.directory / "waiting" / next(iter(site.waiting.sizes))
    whole = break_file(first)
    with capture_logs() as logs:
        for _ in range(2):
            assert await site.attempt(site.now)
    lines = [line for line in logs if line["log_level"] == "error"]
    assert [(line["event"], line["file"]) for line in lines] == [
        ("waiting_evidence_damaged", first.name)
    ]
    assert list(states.damage) == [f"waiting/{first.name}"]
    assert site.acknowledge("n1")[1] < positions["n1"]
    assert site.acknowledge("n3")[1] >= positions["n3"]
    assert list(site.waiting.sizes) == [first.name]
    first.write_bytes(whole)
    assert await site.attempt(site.now)
    assert (site.on_disk, states.damage) == (0, {})
    assert site.acknowledge("n1")[1] >= positions["n1"]
    site.finalizer.close()


class FullDisk(StateFiles):
    """Files of a disk on which the manifest of some names is the last file that fits."""

    full_from: Container[str] = ()

    def record_evidence(self, name: str, size: int) -> None:
        super().record_evidence(name, size)
        if name in self.full_from:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


async def test_a_move_that_fails_leaves_nothing_for_each_attempt(tmp_path: Path, url: str):
    """The evidence stays in memory, and is moved once there is space."""
    site = WaitingCollector(tmp_path / "one", url).begin()
    site.state_files = site.waiting.state_files = files = FullDisk(site.directory)
    files.full_from = [f"{number:010}.evidence" for number in range(9)]
    accept(site.core, NodeReporter().envelopes_of(gpus_of("GPU-0"), range(0, 7200, 30)))
    site.now = 10 * QUARTER
    for _ in range(3):
        await site.finalizer.move_to_disk()
    assert (site.in_memory, site.on_disk, site.waiting.size_bytes) == (9, 0, 0)
    assert len(list(site.waiting.directory.iterdir())) == 1
    files.full_from = ()
    await site.finalizer.move_to_disk()
    assert (site.in_memory, site.on_disk) == (0, 9)
    assert len(list(site.waiting.directory.iterdir())) == 1
    site.finalizer.close()


@pytest.mark.parametrize("is_full", [False, True])
async def test_an_interval_on_disk_that_the_database_rejects_delays_no_other(
    tmp_path: Path, url: str, *, is_full: bool
):
    """It stays alone in its file, counts once, and is written once it is accepted."""
    site = WaitingCollector(tmp_path / "one", url).begin()
    site.state_files = site.waiting.state_files = files = FullDisk(site.directory)
    await site.round(-100)
    nodes = [f"n{number}" for number in range(7)]
    for node in nodes:
        accept(site.core, NodeReporter(node).envelopes_of(gpus_of(f"G-{node}"), range(0, 3600, 30)))
    positions = {node: site.acknowledge(node)[0] for node in nodes}
    site.now = 10 * QUARTER
    await site.finalizer.move_to_disk()
    (name,) = site.waiting.sizes
    assert set(site.waiting.nodes[name]) == set(nodes)
    files.full_from = {name} if is_full else ()
    site.reject(evidence_intervals, "node", "n3")
    with capture_logs() as logs:
        for _ in range(2):
            assert await site.attempt(site.now)
    rejected = [line for line in logs if line["event"] == "evidence_rejected"]
    failures = [line for line in logs if line["event"] == "waiting_evidence_replacement_failed"]
    assert {line["node"] for line in rejected} == {"n3"}
    assert len(failures) == is_full
    assert len(site.finalizer.rejected) == len(rejected) == site.on_disk == 5
    late = {node for node in nodes if site.acknowledge(node)[1] < positions[node]}
    assert late == {"n3"}
    found = WaitingEvidence(site.waiting.directory, site.limits, StateFiles(site.directory))
    assert found.state_files
    found.state_files.open()
    assert set(found.open()) == (set(nodes) if is_full else {"n3"})
    assert not found.damaged
    files.full_from = ()
    site.permit(evidence_intervals, "node")
    site.restart(site.checkpoint())
    site.begin()
    await site.round(site.now)
    assert (site.on_disk, site.waiting.sizes, site.finalizer.rejected) == (0, {}, set())
    assert site.acknowledge("n3")[1] >= positions["n3"]
    with site.stores.ledger.database.transaction() as connection:
        stored = Counter(connection.execute(sa.select(evidence_intervals.c.node)).scalars())
    assert stored == dict.fromkeys(nodes, 5)
    site.finalizer.close()


@pytest.mark.parametrize("break_file", [damage_file, remove_file, rename_nodes])
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


class ReadOnlyFiles(WaitingEvidence):
    """Files of a file system that permits no deletion for a time."""

    is_read_only = True

    def delete(self, name: str) -> None:
        if self.is_read_only:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), name)
        super().delete(name)


async def test_a_file_that_cannot_be_deleted_is_stored(tmp_path: Path, url: str):
    """Its deletion is attempted again in each round, and delays nothing else."""
    site = WaitingCollector(tmp_path / "one", url).begin()
    files = ReadOnlyFiles(tmp_path / "files", site.limits)
    site.finalizer.waiting = site.finalizer._writer.waiting = files  # noqa: SLF001 - in place of its own
    accept(site.core, NodeReporter().envelopes_of(gpus_of("GPU-0"), range(0, 8 * QUARTER, 30)))
    site.now = 10 * QUARTER
    await site.finalizer.move_to_disk()
    position, _ = site.acknowledge()
    with capture_logs() as logs:
        for _ in range(2):
            assert await site.attempt(site.now)
    assert [line["event"] for line in logs if line["log_level"] == "error"] == [
        "waiting_evidence_deletion_failed"
    ]
    assert (site.on_disk, len(files.sizes)) == (0, 1)
    assert site.acknowledge()[1] >= position
    assert site.finalizer.counts.intervals == 9
    files.is_read_only = False
    assert await site.attempt(site.now)
    assert not files.sizes
    site.finalizer.close()


async def test_beyond_its_share_of_the_disk_evidence_of_a_node_stays_in_memory(
    tmp_path: Path, url: str
):
    """Its agent then keeps its frames; see `test_frames_stay_with_the_agent_that_has_its_share_of_waiting_evidence`.

    The other node is not affected, before and after.
    """
    site = WaitingCollector(tmp_path / "one", url).begin()
    site.waiting.limits = IngestLimits(pending_evidence_intervals=8, waiting_evidence_bytes=60_000)
    usual, filling = NodeReporter("n1"), NodeReporter("n2")
    for quarter in range(12):
        seconds = range(quarter * QUARTER, (quarter + 1) * QUARTER, 30)
        accept(site.core, usual.envelopes_of(gpus_of("GPU-0"), seconds))
        names = [f"GPU-{number:02}" for number in range(1, 65)]
        accept(site.core, filling.envelopes_of(gpus_of(*names), seconds))
    site.now = 14 * QUARTER
    intervals = site.core.evidence.intervals
    with capture_logs() as logs:
        for _ in range(2):
            await site.finalizer.move_to_disk()
    (line,) = [line for line in logs if line["log_level"] == "warning"]
    assert (line["event"], line["node"]) == ("waiting_evidence_share_used", "n2")
    assert intervals.counts["n2"] > intervals.share_of_node(8), "its frames are rejected"
    assert intervals.counts["n1"] == 0
    assert site.waiting.size_bytes < 60_000
    await site.round(site.now)
    assert (site.in_memory, site.on_disk, site.waiting.full) == (0, 0, set())
    site.finalizer.close()


async def test_beyond_the_bound_on_disk_all_evidence_stays_in_memory(tmp_path: Path, url: str):
    """The bound was lowered after files were written."""
    site = WaitingCollector(tmp_path / "one", url)
    for node in ("n1", "n2"):
        reports = NodeReporter(node).envelopes_of(gpus_of(f"GPU-{node}"), range(0, 7200, 30))
        accept(site.core, reports)
        site.now = 10 * QUARTER
        with capture_logs() as logs:
            for _ in range(2):
                await site.finalizer.move_to_disk()
        limit = site.waiting.size_bytes + 100
        site.waiting.limits = IngestLimits(
            pending_evidence_intervals=4, waiting_evidence_bytes=limit
        )
    (line,) = [line for line in logs if line["event"] == "evidence_move_failed"]
    assert "limits.waiting_evidence_bytes" in line["problem"]
    assert (site.in_memory, site.on_disk) == (9, 9)
    await site.round(site.now)
    assert (site.in_memory, site.on_disk) == (0, 0)
    site.finalizer.close()


@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from(["n1", "n2", "n3"]), st.binary(max_size=3000))),
        max_size=8,
    ),
    st.integers(500, 20_000),
)
@fewer_examples(50)
def test_a_node_has_its_share_of_the_disk_whatever_others_write(
    groups: list[list[tuple[str, bytes]]], max_bytes: int
):
    """The same intervals fit as if it had a third of the disk alone; all files are within the bound."""
    with tempfile.TemporaryDirectory() as name:
        limits = IngestLimits(waiting_evidence_bytes=max_bytes)
        files = WaitingEvidence(Path(name) / "all", limits)
        alone = {
            node: WaitingEvidence(
                Path(name) / node, IngestLimits(waiting_evidence_bytes=max_bytes // 3)
            )
            for node in ("n1", "n2", "n3")
        }
        for group in groups:
            fits = files.write([node for node, _ in group], [each for _, each in group], 3)
            for node, own in alone.items():
                contents = [each for name_, each in group if name_ == node]
                expected = own.write([node] * len(contents), contents, 1)
                assert expected == [
                    fit for fit, (name_, _) in zip(fits, group, strict=True) if name_ == node
                ]
            assert files.size_bytes <= max_bytes
        restored = WaitingEvidence(Path(name) / "all", limits)
        restored.open()
        assert restored._used == files._used  # noqa: SLF001 - the shares after a restart
        for file in list(files.sizes):
            files.delete(file)
        assert not files._used  # noqa: SLF001 - all shares are free


@given(
    st.lists(st.tuples(st.sampled_from(["n1", "n2"]), st.integers(0, 1 << 40)), min_size=1),
    st.data(),
)
@fewer_examples(50)
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


WRITER = """
import os, sys
from pathlib import Path
from railscope_collector.config import IngestLimits
from railscope_collector.evidence.waiting_evidence import WaitingEvidence
waiting = WaitingEvidence(Path(sys.argv[1]), IngestLimits())
waiting.open()
while True:
    waiting.write(["n1"], [os.urandom(16 << 20)], 1)
"""


def kill_while_writing(directory: Path) -> None:
    """Kill a writer once it has begun with a file; it may have finished just before."""
    with subprocess.Popen([sys.executable, "-P", "-c", WRITER, str(directory)]) as writer:
        while not list(directory.glob("*.partial")):
            assert writer.poll() is None
        writer.kill()


def test_unfinished_files_of_a_killed_writer_are_deleted_at_the_start(tmp_path: Path) -> None:
    for _ in range(50):
        kill_while_writing(tmp_path)
        if unfinished := set(tmp_path.glob("*.partial")):
            break
    assert unfinished
    other = [tmp_path / "notes.partial", tmp_path / "0000000001.evidence.copy.partial"]
    for path in other:
        path.write_bytes(b"x")
    (link := tmp_path / "0000000001.evidence.0123abcd.partial").symlink_to(other[0])
    (directory := tmp_path / "0000000002.evidence.0123abcd.partial").mkdir()
    finished = set(tmp_path.glob("*.evidence"))
    WaitingEvidence(tmp_path, IngestLimits()).open()
    assert set(tmp_path.iterdir()) == {*finished, *other, link, directory}


async def test_other_tasks_run_while_due_intervals_are_selected(site: FinalizingCollector) -> None:
    await site.round(0)
    for number in range(2000):
        key = ("n1", "boot-1", number)
        interval = EvidenceInterval(*key, at(0), at(1))
        in_memory = IntervalInMemory(interval, touched_ns=at(10), since_ns=at(10))
        site.core.evidence.intervals.by_key[key] = in_memory
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_turns())
    await site.finalizer._writer.write_evidence(site.stores.store, at(0))  # noqa: SLF001 - none is due
    counting.cancel()
    assert turns >= 4
