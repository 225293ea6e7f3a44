"""Old entries move to an archive: every step may be interrupted, and no record is lost or replaced."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from hashlib import sha256
from itertools import count
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, strategies as st
from support import s3_server
from support.audit import KEY, NOON_NS, append_drafts, audit_log, draft, running_log
from support.examples import fewer_examples

from collector.archive_stores import (
    MAX_FILE_BYTES,
    ArchiveError,
    ArchiveStore,
    DirectoryStore,
    open_archive_store,
)
from collector.audit.directory_check import LogVerificationError, VerifyOutcome
from collector.audit.entry_retention import EntryRetention, find_newest_ns, open_entry_archive
from collector.audit.housekeeping_files import CosignedCheckpoint
from collector.audit.log_writer import AuditLog
from collector.audit.tiles import (
    ArchivedEntriesError,
    MissingEntriesError,
    Tiles,
    check_proof,
    encode_bundle,
    make_proof,
)
from collector.audit.verification import PeriodicVerification, VerifiedLog, verify_log
from collector.clock import CollectorClock
from collector.config import ArchiveSettings, AuditSettings, CollectorSettings
from collector.http.audit_api import (
    MAX_ARCHIVE_READS,
    EntrySelection,
    IndexBehindError,
    SignedEntries,
)
from collector.ledger.audit_outbox import RecordDraft, build_record
from railscope.audit.merkle import leaf_hash
from railscope.audit.record import (
    AuditRecord,
    RecordData,
    RecordSource,
    RecordSubject,
    decode_audit_record,
)
from railscope.audit.signed_note import SecretKey, add_cosignature, key_name, witness_key
from railscope.cli import root
from railscope.service import run_in_thread
from railscope.settings import SettingsError
from railscope.timestamps import DAY_NS, SECOND_NS

KEEP_DAYS = 30
LATER_NS = NOON_NS + 31 * DAY_NS
STEPS = ("created", "compared", "recorded", "signed", "deleted")


class KilledError(Exception):
    """The collector was killed."""


def interrupt_after(step: str, times: int = 1) -> Callable[[str], None]:
    """Return a function that raises KilledError at the given occurrence of a step."""
    seen = count(1)

    def check(done: str) -> None:
        if done == step and next(seen) == times:
            raise KilledError(step)

    return check


def store_in(directory: Path) -> DirectoryStore:
    (directory / "archive").mkdir(exist_ok=True)
    return DirectoryStore(directory / "archive")


def open_log(directory: Path, boot: str = "b0", store: ArchiveStore | None = None) -> AuditLog:
    log = audit_log(directory / "log", boot=boot)
    log.archive = store or store_in(directory)
    return log


def retention_of(log: AuditLog, now_ns: int = LATER_NS) -> EntryRetention:
    return EntryRetention(log, KEEP_DAYS, 3600.0, wall_ns=lambda: now_ns)


@asynccontextmanager
async def archiving(
    directory: Path, records: int = 0, boot: str = "b0", store: ArchiveStore | None = None
) -> AsyncIterator[EntryRetention]:
    """Run a log with some more signed records, and its retention."""
    async with running_log(open_log(directory, boot, store)) as log:
        await append_drafts(log, range(log.size, log.size + records))
        await log.sign()
        yield retention_of(log)


def write_archived(
    directory: Path, records: int = 600, boot: str = "b0", now_ns: int = LATER_NS
) -> None:
    """Write a log and archive what is due."""

    async def writing() -> None:
        async with archiving(directory, records, boot) as retention:
            retention.wall_ns = lambda: now_ns
            assert not await retention.attempt()
            assert retention.problem == ""

    asyncio.run(writing())


def full_tiles(directory: Path) -> list[str]:
    """Return the full tiles of entries in the directory of a log."""
    tiles = directory / "log" / "tile" / "entries"
    return sorted(path.name for path in tiles.iterdir() if path.is_file())


def archived_files(directory: Path) -> list[Path]:
    return sorted(path for path in (directory / "archive").rglob("*") if path.is_file())


def verified(directory: Path) -> VerifiedLog:
    return verify_log(directory / "log", KEY.public, archive=store_in(directory))


def outcome(directory: Path, *, with_archive: bool = True) -> tuple[VerifyOutcome, str]:
    try:
        store = store_in(directory) if with_archive else None
        found = verify_log(directory / "log", KEY.public, archive=store)
    except LogVerificationError as error:
        return error.outcome, str(error)
    return (VerifyOutcome.UNCHECKED if found.unchecked else VerifyOutcome.CONSISTENT), ""


def numbers_of(directory: Path) -> list[object]:
    """The number in each record of a verified log, read from the directory and the archive."""
    found = verified(directory)
    assert (found.unchecked, found.unsigned, found.findings) == (0, 0, ())
    tiles = Tiles(directory / "log", found.checkpoint.tree.size, store_in(directory))
    records = [decode_audit_record(raw) for raw in tiles.records_from(0)]
    assert [record.seq for record in records] == list(range(tiles.size))
    return [record.data["number"] for record in records if "number" in record.data]


def archive_records(directory: Path) -> list[AuditRecord]:
    size = verified(directory).checkpoint.tree.size
    raws = Tiles(directory / "log", size, store_in(directory)).records_from(0)
    records = (decode_audit_record(raw) for raw in raws)
    return [record for record in records if record.type == "log.archive"]


def test_old_entries_are_archived_recorded_and_deleted(tmp_path: Path) -> None:
    write_archived(tmp_path)
    assert full_tiles(tmp_path) == []
    first, second = archived_files(tmp_path)
    genesis = leaf_hash(Tiles(tmp_path / "log", 601, store_in(tmp_path)).record(0)).hex()
    assert {first.parent, second.parent} == {tmp_path / "archive" / "audit" / genesis}
    (record,) = archive_records(tmp_path)
    assert record.data == {
        "first": 0,
        "records": 512,
        "sha256": sha256(first.read_bytes() + second.read_bytes()).hexdigest(),
        "archive": str(tmp_path / "archive"),
    }
    assert numbers_of(tmp_path) == list(range(600))


def test_later_rounds_continue_also_in_another_process(tmp_path: Path) -> None:
    write_archived(tmp_path)
    write_archived(tmp_path, 300, "b1", LATER_NS + 31 * DAY_NS)
    assert full_tiles(tmp_path) == []
    ranges = [(each.data["first"], each.data["records"]) for each in archive_records(tmp_path)]
    assert ranges == [(0, 512), (512, 256)]
    assert numbers_of(tmp_path) == [*range(600), *range(601, 901)]


async def test_a_round_has_a_limit_and_states_that_more_is_due(tmp_path: Path) -> None:
    async with archiving(tmp_path, 1100) as retention:
        retention.max_bundles = 3
        assert await retention.attempt()
        assert retention.archived == 768
        assert not await retention.attempt()
        assert retention.archived == 1024


async def test_entries_that_are_not_old_or_not_signed_or_not_cosigned_stay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with archiving(tmp_path, 300) as retention:
        log = retention.audit
        await append_drafts(log, range(300, 600))
        retention.wall_ns = lambda: NOON_NS + 511 + KEEP_DAYS * DAY_NS
        assert log.signed.size == 300
        retention.required_witnesses = lambda: 2
        note = log.publisher.note
        log.witnesses.put("n1", CosignedCheckpoint(note, "key"))
        assert not await retention.attempt()
        assert not await retention.attempt()
        assert (retention.archived, retention.is_waiting) == (0, True), "one of two witnesses"
        assert capsys.readouterr().out.count("audit_archive_postponed") == 1
        log.witnesses.put("n2", CosignedCheckpoint(note, "key"))
        await retention.attempt()
        assert retention.archived == 256, "the second tile is not signed"
        await log.sign()
        await retention.attempt()
        assert retention.archived == 256, "the second tile is not cosigned"
        retention.required_witnesses = lambda: 0
        retention.wall_ns = lambda: NOON_NS + 510 + KEEP_DAYS * DAY_NS
        await retention.attempt()
        assert retention.archived == 256, "the newest record of the second tile is not old"
        retention.wall_ns = lambda: NOON_NS + 511 + KEEP_DAYS * DAY_NS
        await retention.attempt()
        assert retention.archived == 512


def test_the_clock_of_an_agent_does_not_delay_archiving() -> None:
    source = RecordSource("agent", "n1", "run", 0)
    records = [build_record(draft(number, source=source), source, number) for number in range(2)]
    records[0].data["received_ns"] = str(NOON_NS - 5)
    assert find_newest_ns(iter(records), NOON_NS) == NOON_NS - 5
    own = [build_record(draft(at), RecordSource("collector", "c", "b", 0), 0) for at in (-9, 9)]
    assert find_newest_ns(iter(own), NOON_NS) == NOON_NS - 9, "a time in the future is no time"
    assert find_newest_ns(iter(own[1:]), NOON_NS) == NOON_NS


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("step", STEPS)
def test_a_round_interrupted_after_any_step_is_continued(
    tmp_path: Path, step: str, times: int
) -> None:
    async def interrupted() -> None:
        async with archiving(tmp_path, 600) as retention:
            retention.after_step = interrupt_after(step, times)
            await retention.attempt()
            assert ("KilledError" in retention.problem) == (
                times == 1 or step not in {"recorded", "signed"}
            )
            # What is on the disk at this point is what a killed collector leaves behind.
            shutil.copytree(tmp_path / "log", tmp_path / "killed" / "log")
            shutil.copytree(tmp_path / "archive", tmp_path / "killed" / "archive")
            retention.after_step = lambda _step: None
            assert not await retention.attempt(), "the same process continues, too"
            assert (retention.archived, retention.problem) == (512, "")

    asyncio.run(interrupted())
    assert numbers_of(tmp_path) == list(range(600))
    assert len(archive_records(tmp_path)) == 1
    killed = tmp_path / "killed"
    verified(killed)
    write_archived(killed, 0, "b1")
    assert numbers_of(killed) == list(range(600))
    assert full_tiles(killed) == []
    assert len(archived_files(killed)) == 2


async def test_rounds_follow_each_other_while_more_is_due(tmp_path: Path) -> None:
    async with archiving(tmp_path, 600) as retention:
        retention.max_bundles, retention.period_seconds = 1, 0.0
        is_done = asyncio.Event()
        loop = asyncio.get_running_loop()

        def after(step: str) -> None:
            if step == "deleted" and retention.archived == 256:
                loop.call_soon_threadsafe(is_done.set)

        retention.after_step = after
        running = asyncio.create_task(retention.run())
        async with asyncio.timeout(60):
            await is_done.wait()
        running.cancel()
        await asyncio.wait({running})
        assert full_tiles(tmp_path) == []
        never = retention_of(retention.audit)
        never.keep_days = 0
        await never.run()


async def test_a_failure_is_counted_and_logged_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with archiving(tmp_path, 300) as retention:
        (tmp_path / "archive").rmdir()
        for _ in range(2):
            assert not await retention.attempt()
        (tmp_path / "archive").mkdir()
        await retention.attempt()
        assert (retention.failures, retention.problem, retention.archived) == (2, "", 256)
    lines = capsys.readouterr().out
    assert lines.count("audit_archive_failed") == lines.count("audit_archive_resumed") == 1
    assert "expected a directory that this user may write" in lines


class SlowStore(DirectoryStore):
    """A store that does not respond until it is released."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.asked, self.released = threading.Event(), threading.Event()

    def create(self, name: str, content: bytes) -> None:
        self.asked.set()
        assert self.released.wait(60)
        super().create(name, content)


async def test_records_are_accepted_while_the_archive_does_not_respond(tmp_path: Path) -> None:
    (tmp_path / "archive").mkdir()
    store = SlowStore(tmp_path / "archive")
    async with archiving(tmp_path, 300, store=store) as retention:
        round_ = asyncio.create_task(retention.attempt())
        assert await run_in_thread(store.asked.wait, 60)
        await append_drafts(retention.audit, [300])
        await retention.audit.sign()
        assert not round_.done()
        store.released.set()
        await round_
        assert retention.archived == 256


async def test_a_file_that_another_program_created_stops_archiving(tmp_path: Path) -> None:
    async with archiving(tmp_path, 300) as retention:
        name, _ = Tiles(tmp_path / "log", 300).archive_name(0)
        store_in(tmp_path).create(name, b"something else")
        await retention.attempt()
        assert "does not contain what was written; fix: check the archive" in retention.problem
        assert full_tiles(tmp_path) == ["000"]
        (tmp_path / "archive" / name).unlink()
        await retention.attempt()
        assert retention.archived == 256


async def test_a_file_changed_before_the_deletion_prevents_it(tmp_path: Path) -> None:
    async with archiving(tmp_path, 300) as retention:

        def change(step: str) -> None:
            if step == "signed":
                (path,) = archived_files(tmp_path)
                path.chmod(0o600)
                path.write_bytes(b"x")

        retention.after_step = change
        await retention.attempt()
        assert "does not contain what was written" in retention.problem
        assert full_tiles(tmp_path) == ["000"]


def test_altered_entries_are_not_archived(tmp_path: Path) -> None:
    async def archive() -> str:
        async with archiving(tmp_path, 300) as retention:
            tile = tmp_path / "log" / "tile" / "entries" / "000"
            tile.write_bytes(tile.read_bytes().replace(b"node-1", b"node-7", 1))
            await retention.attempt()
            return retention.problem

    assert "records 0 to 255 do not match the signed root" in asyncio.run(archive())
    assert archived_files(tmp_path) == []


def test_entries_that_match_altered_hashes_are_not_archived(tmp_path: Path) -> None:
    async def archive() -> str:
        async with archiving(tmp_path, 300) as retention:
            tile = tmp_path / "log" / "tile" / "entries" / "000"
            records = Tiles(tmp_path / "log", 300).records(0)
            records[9] = records[9].replace(b"node-", b"nude-")
            tile.write_bytes(encode_bundle(records))
            leaves = tmp_path / "log" / "tile" / "0" / "000"
            leaves.write_bytes(b"".join(map(leaf_hash, records)))
            await retention.attempt()
            return retention.problem

    assert "records 0 to 255 do not match the signed root" in asyncio.run(archive())
    assert archived_files(tmp_path) == []


async def test_nothing_is_archived_while_the_clock_is_suspect(tmp_path: Path) -> None:
    error_ns = 0
    boot_ns = 1000 * SECOND_NS
    collector_clock = CollectorClock(
        tmp_path,
        list,
        lambda _: None,
        lambda: LATER_NS + boot_ns + error_ns,
        lambda: boot_ns,
        "boot",
    )
    collector_clock.open(LATER_NS)
    async with archiving(tmp_path, 300) as retention:
        retention.clock, retention.wall_ns = collector_clock, lambda: 0
        error_ns = DAY_NS
        await retention.attempt()
        assert (retention.archived, retention.problem) == (None, "")
        error_ns = 0
        boot_ns += 2 * SECOND_NS
        await retention.attempt()
        assert retention.archived == 256


async def test_parts_of_a_tile_are_deleted_with_it(tmp_path: Path) -> None:
    async with archiving(tmp_path, 300) as retention:
        part = tmp_path / "log" / "tile" / "entries" / "000.p" / "7"
        part.parent.mkdir()
        part.write_bytes(encode_bundle(Tiles(tmp_path / "log", 300).records(0)[:7]))
        await retention.attempt()
        assert (retention.archived, part.parent.exists()) == (256, False)


def test_logs_with_one_archive_do_not_share_files(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "archive").symlink_to(store_in(tmp_path).location)

    async def write(name: str) -> None:
        log = open_log(tmp_path / name, boot=name)
        async with running_log(log):
            await append_drafts(log, range(300))
            await log.sign()
            assert not await retention_of(log).attempt()

    for name in ("one", "two"):
        asyncio.run(write(name))
    assert len({path.parent for path in archived_files(tmp_path)}) == 2
    for name in ("one", "two"):
        assert numbers_of(tmp_path / name) == list(range(300))


def test_without_the_archive_its_records_are_not_checked(tmp_path: Path) -> None:
    write_archived(tmp_path)
    found = verify_log(tmp_path / "log", KEY.public)
    assert (found.unchecked, found.findings) == (512, ())
    assert outcome(tmp_path) == (VerifyOutcome.CONSISTENT, "")
    assert outcome(tmp_path, with_archive=False) == (VerifyOutcome.UNCHECKED, "")
    periodic = PeriodicVerification(tmp_path / "log", KEY.public, 1.0, lambda: 1)
    asyncio.run(periodic.read())
    assert periodic.is_valid is None, "no result without the archive"
    periodic.archive = store_in(tmp_path)
    asyncio.run(periodic.read())
    assert periodic.is_valid is True


def of_agent(number: int, kind: str, claim: str) -> RecordDraft:
    source = RecordSource("agent", "n1", "run", number)
    return replace(
        draft(number, source=source),
        type=kind,
        data={"claim": claim, "received_ns": str(NOON_NS + number)},
        subject=RecordSubject("n1", "GPU-1"),
    )


def test_findings_that_archived_records_would_explain_are_omitted(tmp_path: Path) -> None:
    async def write() -> None:
        agent = SecretKey.generate(key_name("n1"))
        async with archiving(tmp_path) as retention:
            log = retention.audit
            await log.append(of_agent(0, "tenancy.assign", "a"))
            witness = RecordSubject("n1")
            data: RecordData = {"key": str(witness_key(agent))}
            await log.append(replace(draft(1, "log.witness"), subject=witness, data=data))
            await append_drafts(log, range(2, 300))
            for number, kind in ((5, "release"), (3, "assign")):
                await log.append(of_agent(number, f"tenancy.{kind}", "a"))
            await log.sign()
            note = add_cosignature(log.publisher.note, agent, NOON_NS // SECOND_NS)
            log.witnesses.put("n1", CosignedCheckpoint(note, str(witness_key(agent))))
            log.witnesses.save()
            await retention.attempt()
            assert retention.archived == 256

    asyncio.run(write())
    found = verified(tmp_path)
    assert [cosigner.node for cosigner in found.witnesses] == ["n1"]
    assert [text.partition(": its records ")[2] for text in found.findings] == [
        "1 to 2 are missing",
        "4 to 4 are missing",
    ]
    unread = verify_log(tmp_path / "log", KEY.public)
    assert unread.findings == ("witnesses whose keys are not in the records that were read: 1",)
    assert (unread.unchecked, unread.witnesses) == (256, ())


def test_hashes_of_archived_records_are_checked_without_the_archive(tmp_path: Path) -> None:
    write_archived(tmp_path)
    tile = tmp_path / "log" / "tile" / "0" / "001"
    tile.write_bytes(bytes(32) + tile.read_bytes()[32:])
    assert outcome(tmp_path, with_archive=False)[0] == VerifyOutcome.ALTERED


def swap(paths: list[Path]) -> None:
    first, second = (path.read_bytes() for path in paths)
    paths[0].write_bytes(second)
    paths[1].write_bytes(first)


HOSTILE = {
    "missing": (lambda paths: paths[0].unlink(), VerifyOutcome.TAIL_MISSING, "missing file"),
    "altered": (
        lambda paths: paths[0].write_bytes(paths[0].read_bytes().replace(b"node-1", b"node-7", 1)),
        VerifyOutcome.ALTERED,
        "do not match the signed ones; fix: restore the file from a copy",
    ),
    "truncated": (
        lambda paths: paths[0].write_bytes(paths[0].read_bytes()[:-1]),
        VerifyOutcome.ALTERED,
        "do not match",
    ),
    "empty": (lambda paths: paths[0].write_bytes(b""), VerifyOutcome.ALTERED, "do not match"),
    "swapped": (swap, VerifyOutcome.ALTERED, "do not match"),
    "enormous": (
        lambda paths: paths[0].write_bytes(bytes(32 << 20)),
        VerifyOutcome.UNREADABLE,
        "expected at most",
    ),
    "unreadable": (
        lambda paths: shutil.rmtree(paths[0].parents[2]),
        VerifyOutcome.UNREADABLE,
        "cannot read",
    ),
}


@pytest.mark.parametrize("change", HOSTILE)
def test_a_hostile_archive_gives_an_error_and_no_record(tmp_path: Path, change: str) -> None:
    write_archived(tmp_path)
    store = store_in(tmp_path)
    paths = archived_files(tmp_path)
    for path in paths:
        path.chmod(0o600)
    attack, expected, text = HOSTILE[change]
    attack(paths)
    with pytest.raises(LogVerificationError, match=text) as failure:
        verify_log(tmp_path / "log", KEY.public, archive=store)
    assert failure.value.outcome == expected
    tiles = Tiles(tmp_path / "log", 601, store)
    for read in (lambda: tiles.record(0), lambda: make_proof(tiles, 0, "")):
        with pytest.raises(ArchivedEntriesError, match=text):
            read()


@pytest.fixture(scope="module")
def archived(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("archived")
    write_archived(directory)
    return directory


@fewer_examples(100)
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), data=st.data())
def test_any_changed_bit_of_log_or_archive_is_found(
    archived: Path, place: float, bit: int, data: st.DataObject
) -> None:
    files = [path for path in archived.rglob("*") if path.is_file() and path.stat().st_size]
    path = data.draw(st.sampled_from(sorted(files)))
    content = path.read_bytes()
    at = int(place * len(content))
    path.chmod(0o600)
    path.write_bytes(content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :])
    try:
        assert outcome(archived)[0] not in {VerifyOutcome.CONSISTENT, VerifyOutcome.UNCHECKED}
    finally:
        path.write_bytes(content)


@fewer_examples(25)
@given(data=st.data())
def test_any_removed_file_of_log_or_archive_is_found(archived: Path, data: st.DataObject) -> None:
    # A partial tile that a longer one has replaced, and an empty lock, are not needed.
    files = [
        path
        for path in archived.rglob("*")
        if path.is_file() and path.stat().st_size and path.name != "88"
    ]
    path = data.draw(st.sampled_from(sorted(files)))
    content = path.read_bytes()
    path.unlink()
    try:
        assert outcome(archived)[0] not in {VerifyOutcome.CONSISTENT, VerifyOutcome.UNCHECKED}
    finally:
        path.write_bytes(content)


def test_a_removed_tile_that_is_not_recorded_as_archived_is_missing(tmp_path: Path) -> None:
    async def write() -> None:
        async with archiving(tmp_path, 600) as retention:
            retention.wall_ns = lambda: NOON_NS + 300 + KEEP_DAYS * DAY_NS
            await retention.attempt()

    asyncio.run(write())
    assert outcome(tmp_path) == (VerifyOutcome.CONSISTENT, "")
    tile = tmp_path / "log" / "tile" / "entries" / "001"
    name, _ = Tiles(tmp_path / "log", 600).archive_name(1)
    store_in(tmp_path).create(name, tile.read_bytes())
    tile.unlink()
    for with_archive in (True, False):
        found, problem = outcome(tmp_path, with_archive=with_archive)
        assert (found, "entries/001" in problem) == (VerifyOutcome.TAIL_MISSING, True)


def test_an_agent_cannot_state_that_entries_are_archived(tmp_path: Path) -> None:
    async def write() -> None:
        async with archiving(tmp_path, 300) as retention:
            stated = of_agent(0, "log.archive", "")
            stated.data.update({"first": 0, "records": 256})
            await retention.audit.append(stated)

    asyncio.run(write())
    (tmp_path / "log" / "tile" / "entries" / "000").unlink()
    assert outcome(tmp_path, with_archive=False)[0] == VerifyOutcome.TAIL_MISSING

    async def restart() -> str:
        async with archiving(tmp_path, boot="b1") as retention:
            await retention.attempt()
            return retention.problem

    assert "expected them, or a record that they are archived" in asyncio.run(restart())


def test_an_altered_local_tile_is_found_although_the_archive_has_it(tmp_path: Path) -> None:
    write_archived(tmp_path)
    tile = tmp_path / "log" / "tile" / "entries" / "000"
    tile.write_bytes(archived_files(tmp_path)[0].read_bytes().replace(b"node-1", b"node-7", 1))
    assert outcome(tmp_path)[0] == VerifyOutcome.ALTERED
    with pytest.raises(ValueError, match="altered tile"):
        Tiles(tmp_path / "log", 601, store_in(tmp_path)).record(3)


def test_a_part_of_an_archived_tile_that_was_left_behind_is_checked(tmp_path: Path) -> None:
    write_archived(tmp_path)
    raws = Tiles(tmp_path / "log", 601, store_in(tmp_path)).records(1)
    partial = tmp_path / "log" / "tile" / "entries" / "001.p" / "44"
    partial.parent.mkdir()
    partial.write_bytes(encode_bundle(raws[:44]))
    assert outcome(tmp_path) == (VerifyOutcome.CONSISTENT, "")
    for content in (encode_bundle(raws[1:45]), encode_bundle(raws[:44])[:-1]):
        partial.write_bytes(content)
        assert outcome(tmp_path)[0] == VerifyOutcome.ALTERED


class HangingArchive:
    """An archive that does not respond until it is released, and then lacks every file."""

    location = "hanging"

    def __init__(self) -> None:
        self.reading, self.released = threading.Semaphore(0), threading.Event()

    def read(self, name: str, max_bytes: int = MAX_FILE_BYTES) -> bytes:
        self.reading.release()
        assert self.released.wait(60)
        message = f"no {name}, and no {max_bytes} bytes"
        raise ArchiveError(message)


async def test_a_hanging_archive_occupies_few_threads(tmp_path: Path) -> None:
    await run_in_thread(write_archived, tmp_path)
    hanging = HangingArchive()
    entries = SignedEntries(tmp_path / "log", KEY.public, archive=hanging)
    waiting = [
        asyncio.create_task(run_in_thread(entries.make_proof, 3, None))
        for _ in range(MAX_ARCHIVE_READS)
    ]
    for _ in waiting:
        assert await run_in_thread(hanging.reading.acquire, timeout=60)
    with pytest.raises(ArchivedEntriesError, match="2 files of the archive are being read"):
        entries.make_proof(3, None)
    assert entries.make_proof(530, None)
    indexing = asyncio.create_task(entries.run())
    assert await run_in_thread(hanging.reading.acquire, timeout=60)
    with pytest.raises(IndexBehindError, match="records are being read for the index"):
        await run_in_thread(entries.select, EntrySelection(0, 1, "vision"))
    hanging.released.set()
    for result in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(result, ArchivedEntriesError)
    indexing.cancel()
    await asyncio.wait({indexing})
    assert "no audit/" in entries.problem


def railscope(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(root, ["audit", *map(str, arguments)])
    return result.exit_code, result.output


def test_commands_read_the_archive(tmp_path: Path) -> None:
    write_archived(tmp_path)
    log, key = tmp_path / "log", ("--key", str(KEY.public))
    archive = ("--archive", tmp_path / "archive")
    code, output = railscope("verify", log, *key)
    assert code == VerifyOutcome.UNCHECKED
    assert output.endswith("512 records archived, not checked; fix: use --archive\n")
    code, output = railscope("verify", log, *key, *archive)
    assert (code, output.startswith("consistent: 601 records")) == (0, True)
    code, output = railscope("verify", log, *key, "--ledger", "sqlite:////missing")
    assert (code, "512 records are archived" in output) == (VerifyOutcome.UNREADABLE, True)
    code, output = railscope("show", log, "--json")
    assert (code, "records 0 to 255 are not in" in output) == (1, True)
    code, output = railscope("show", log, "--json", "--from", 512)
    assert (code, len(output.splitlines())) == (0, 89)
    code, output = railscope("show", log, "--json", *archive)
    assert (code, len(output.splitlines())) == (0, 601)
    assert railscope("tail", log, "--count", 100, *archive)[0] == 0
    code, proof = railscope("prove", log, 7, *key, *archive)
    assert (code, check_proof(proof, KEY.public)) == (0, output.splitlines()[7].encode())
    assert railscope("prove", log, 7, *key)[0] == 1
    code, output = railscope("verify", log, *key, "--archive", "archive")
    assert (code, "expected /DIRECTORY or s3://BUCKET/PREFIX" in output) == (2, True)


def test_proofs_of_hashes_need_no_archive(tmp_path: Path) -> None:
    write_archived(tmp_path)
    with pytest.raises(MissingEntriesError, match="fix: name their archive"):
        Tiles(tmp_path / "log", 601).record(0)
    assert Tiles(tmp_path / "log", 601).node(0, 0) == leaf_hash(
        Tiles(tmp_path / "log", 601, store_in(tmp_path)).record(0)
    )


def test_a_setting_without_an_archive_is_invalid(tmp_path: Path) -> None:
    kept = AuditSettings(keep_entries_days=30)
    with pytest.raises(
        SettingsError, match=r"audit\.keep_entries_days = 30.*fix: set archive\.url"
    ):
        open_entry_archive(CollectorSettings(audit=kept))
    settings = CollectorSettings(audit=kept, archive=ArchiveSettings(url=str(tmp_path)))
    assert open_entry_archive(settings) is not None
    assert open_entry_archive(CollectorSettings()) is None


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3_server.running() as url:
        s3_server.create_bucket(url, "entries")
        yield url


def test_entries_are_archived_in_a_bucket(server: str, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(s3_server.CREDENTIALS)
    settings = ArchiveSettings(
        url="s3://entries/site",
        endpoint=server,
        region="us-east-1",
        credentials_file=str(keys),
    )
    store = open_archive_store(settings)
    assert store is not None

    async def write() -> None:
        async with archiving(tmp_path, 300, store=store) as retention:
            await retention.attempt()
            assert (retention.problem, retention.archived) == ("", 256)

    asyncio.run(write())
    assert full_tiles(tmp_path) == []
    assert verify_log(tmp_path / "log", KEY.public, archive=store).unchecked == 0
    identifier, secret = s3_server.CREDENTIALS.split()
    result = CliRunner().invoke(
        root,
        [
            *("audit", "verify", str(tmp_path / "log"), "--key", str(KEY.public)),
            *("--archive", "s3://entries/site"),
        ],
        env={
            "AWS_ENDPOINT_URL": server,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": identifier,
            "AWS_SECRET_ACCESS_KEY": secret,
        },
    )
    assert (result.exit_code, result.output[:23]) == (0, "consistent: 301 records")
    name, _ = Tiles(tmp_path / "log", 301).archive_name(0)
    obstore, stores = pytest.importorskip("obstore"), pytest.importorskip("obstore.store")
    bucket = stores.S3Store(
        "entries",
        endpoint=server,
        region="us-east-1",
        access_key_id=identifier,
        secret_access_key=secret,
        client_options={"allow_http": True},
    )
    obstore.put(bucket, f"site/{name}", b"altered")
    with pytest.raises(LogVerificationError, match="altered file s3://entries/site/audit/"):
        verify_log(tmp_path / "log", KEY.public, archive=store)


class ArchivedLog:
    """A log and its archive under any order of events; what was acknowledged must stay."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.acknowledged = 0
        self.boots = count()

    async def live(self, events: list[str]) -> None:
        """One run of the collector, which ends at once if it is killed."""
        boot = f"b{next(self.boots)}"
        async with running_log(open_log(self.directory, boot)) as log:
            retention = retention_of(log)
            retention.max_bundles = 2
            for event in events:
                if event == "append":
                    await append_drafts(log, range(self.acknowledged, self.acknowledged + 150))
                    self.acknowledged += 150
                elif event == "sign":
                    await log.sign()
                elif event == "archive":
                    await retention.attempt()
                    assert retention.problem == ""
                elif event == "lose archive":
                    (self.directory / "archive").rename(self.directory / "away")
                    await retention.attempt()
                    (self.directory / "away").rename(self.directory / "archive")
                elif event == "verify":
                    await run_in_thread(verified, self.directory)
                else:
                    retention.after_step = interrupt_after(event)
                    await retention.attempt()
                    if "KilledError" in retention.problem:
                        break
                    retention.after_step = lambda _step: None
            copy = self.directory / "copy"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(self.directory / "log", copy)
        # The log as it was when the collector was killed, not as it was when it stopped.
        shutil.rmtree(self.directory / "log")
        copy.rename(self.directory / "log")

    def check(self) -> None:
        found = verified(self.directory)
        assert (found.unchecked, found.findings) == (0, ())
        local = len(full_tiles(self.directory))
        full = found.checkpoint.tree.size // 256
        unread = verify_log(self.directory / "log", KEY.public)
        assert (unread.unchecked, unread.findings) == (256 * (full - local), ())


@fewer_examples(25)
@given(
    st.lists(
        st.lists(
            st.sampled_from(
                ("append", "append", "sign", "archive", "lose archive", "verify", *STEPS)
            ),
            max_size=8,
        ),
        max_size=4,
    )
)
def test_any_order_of_events_keeps_every_record(
    tmp_path_factory: pytest.TempPathFactory, runs: list[list[str]]
) -> None:
    directory = tmp_path_factory.mktemp("any")
    try:
        one = ArchivedLog(directory)
        for events in runs:
            asyncio.run(one.live(["append", "sign", *events, "sign"]))
            one.check()
        asyncio.run(one.live(["append", "sign", "archive", "archive", "archive", "sign"]))
        one.check()

        async def stop() -> None:
            async with running_log(open_log(directory, "last")):
                pass

        asyncio.run(stop())
        assert numbers_of(directory) == list(range(one.acknowledged))
    finally:
        shutil.rmtree(directory)
