"""An archive of old entries that is changed, hostile or hangs: no record is accepted from it."""

from __future__ import annotations

import asyncio
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from entry_archives import (
    KEEP_DAYS,
    archived_files,
    archiving,
    outcome,
    store_in,
    verified,
    write_archived,
)
from hypothesis import given, strategies as st
from support.audit import KEY, NOON_NS, append_drafts, draft
from support.examples import fewer_examples

from railscope.audit.cosignature import add_cosignature, key_name, witness_key
from railscope.audit.merkle import leaf_hash
from railscope.audit.record import RecordData, RecordSource, RecordSubject
from railscope.audit.signed_note import SecretKey
from railscope.cli import root
from railscope.service import run_in_thread
from railscope.timestamps import DAY_NS, SECOND_NS
from railscope_collector.archive_stores import MAX_FILE_BYTES, ArchiveError
from railscope_collector.audit.cosignatures import CosignedCheckpoint
from railscope_collector.audit.entry_proof import check_proof, make_proof
from railscope_collector.audit.periodic_verification import PeriodicVerification
from railscope_collector.audit.tiles import (
    ArchivedEntriesError,
    MissingEntriesError,
    Tiles,
    encode_bundle,
)
from railscope_collector.audit.verification import verify_log
from railscope_collector.audit.verify_outcome import LogVerificationError, VerifyOutcome
from railscope_collector.http.signed_entries import (
    MAX_ARCHIVE_READS,
    EntrySelection,
    IndexBehindError,
    SignedEntries,
)
from railscope_collector.ledger.record_draft import RecordDraft


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
