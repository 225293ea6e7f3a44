"""P30: every changed byte and every removed or exchanged file of an audit directory is detected."""

from __future__ import annotations

import asyncio
import base64
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from support.audit import KEY, NOON_NS, append_drafts, audit_log, running_log

from railscope.audit.cosignature import add_cosignature, key_name, witness_key
from railscope.audit.record import RecordActor, RecordSubject, decode_audit_record
from railscope.audit.signed_note import SecretKey
from railscope.service import run_in_thread
from railscope_collector.audit import LogWriteError
from railscope_collector.audit.acknowledgement import read_acknowledgement
from railscope_collector.audit.audit_trail import AuditTrail
from railscope_collector.audit.cosignatures import CosignedCheckpoint
from railscope_collector.audit.housekeeping_files import HousekeepingError, SignedStatement
from railscope_collector.audit.journal import journal_paths
from railscope_collector.audit.tiles import tile_name
from railscope_collector.audit.verification import verify_log
from railscope_collector.audit.verify_outcome import LogVerificationError, VerifyOutcome
from railscope_collector.ledger.record_draft import RecordDraft

COUNT, ROOT = f"{7:020d}", base64.b64encode(bytes(32)).decode()
RUNS = (300, 290)
TAIL = 5


async def written(directory: Path, copies: Path) -> None:
    """A log of several runs, a cosignature, and a tail that is not signed; a copy after each run."""
    agent = SecretKey.generate(key_name("n1"))
    for number, count in enumerate((*RUNS, TAIL)):
        trail = AuditTrail(audit_log(directory, boot=f"b{number}"), "1.0", lambda: NOON_NS)
        trail.open()
        task = asyncio.create_task(trail.log.run())
        await append_drafts(trail.log, range(count))
        if number < len(RUNS):
            await trail.log.sign()
        if number == 0:
            key = str(witness_key(agent))
            data = {"key": key}
            join = RecordDraft(
                "log.witness",
                RecordActor("agent", "n1"),
                NOON_NS,
                "done",
                RecordSubject("n1"),
                data,
            )
            await trail.log.append(join)
            note = add_cosignature(trail.log.publisher.note, agent, NOON_NS // 10**9)
            trail.log.witnesses.put("n1", CosignedCheckpoint(note, key))
            await run_in_thread(trail.log.witnesses.save)
        await run_in_thread(shutil.copytree, directory, copies / str(number))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        trail.log.close()


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log as of each run, the newest last."""
    found = tmp_path_factory.mktemp("directory")
    asyncio.run(written(found / "log", found))
    return found


@pytest.fixture(scope="module")
def good(copies: Path) -> Path:
    """The log as a killed collector left it."""
    return copies / str(len(RUNS))


def outcome(directory: Path) -> tuple[VerifyOutcome, str]:
    try:
        verify_log(directory, KEY.public)
    except LogVerificationError as error:
        return error.outcome, str(error)
    return VerifyOutcome.CONSISTENT, ""


def files_of(directory: Path) -> list[str]:
    """All files but partial tiles that longer ones have followed."""
    size = verify_log(directory, KEY.public).checkpoint.tree.size
    needed = {
        tile_name(level, (size >> 8 * depth) >> 8, (size >> 8 * depth) % 256)
        for depth, level in ((0, "entries"), (0, 0), (1, 1))
    }
    found = [p.relative_to(directory).as_posix() for p in directory.rglob("*") if p.is_file()]
    return sorted(name for name in found if ".p/" not in name or name in needed)


def test_the_log_itself_is_consistent(good: Path) -> None:
    found = verify_log(good, KEY.public)
    assert (found.unsigned, found.findings) == (TAIL, ())
    assert [witness.node for witness in found.witnesses] == ["n1"]
    housekeeping = {"epoch", "acknowledged", "witnesses", "key.pub", "lock", "checkpoint"}
    assert housekeeping < set(files_of(good))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_any_changed_byte_is_found(
    good: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(files_of(good)), label="file")
    content = bytearray((good / name).read_bytes())
    how = data.draw(st.sampled_from(["flip", "cut", "insert"]), label="how")
    at = data.draw(st.integers(0, max(0, len(content) - 1)), label="offset")
    if how == "flip" and content:
        content[at] ^= data.draw(st.integers(1, 255), label="change")
    elif how == "cut" and content:
        del content[at:]
    else:
        content[at:at] = data.draw(st.binary(min_size=1, max_size=40), label="bytes")
    directory = shutil.copytree(good, tmp_path_factory.mktemp("changed") / "log")
    (directory / name).write_bytes(content)
    assert outcome(directory)[0] != VerifyOutcome.CONSISTENT
    shutil.rmtree(directory.parent)


def test_any_removed_file_is_found(good: Path, tmp_path: Path) -> None:
    for number, name in enumerate(files_of(good)):
        directory = shutil.copytree(good, tmp_path / str(number))
        (directory / name).unlink()
        found, problem = outcome(directory)
        assert (name, found != VerifyOutcome.CONSISTENT) == (name, True)
        assert Path(name).name in problem


def test_any_two_files_exchanged_are_found(good: Path, tmp_path: Path) -> None:
    names = files_of(good)
    for number, (one, other) in enumerate(zip(names, names[1:] + names[:1], strict=True)):
        directory = shutil.copytree(good, tmp_path / str(number))
        (directory / one).write_bytes((good / other).read_bytes())
        (directory / other).write_bytes((good / one).read_bytes())
        assert outcome(directory)[0] != VerifyOutcome.CONSISTENT, (one, other)


def test_any_file_of_an_earlier_run_is_found(copies: Path, good: Path, tmp_path: Path) -> None:
    for run in range(len(RUNS)):
        for name in ("epoch", "acknowledged", "witnesses", "checkpoint"):
            directory = shutil.copytree(good, tmp_path / f"{run}-{name}")
            shutil.copy(copies / str(run) / name, directory / name)
            found, problem = outcome(directory)
            assert (name, found != VerifyOutcome.CONSISTENT) == (name, True)
            if name != "checkpoint":
                assert name in problem


def test_a_journal_swapped_together_with_its_acknowledgement_is_found(
    copies: Path, good: Path, tmp_path: Path
) -> None:
    for run in range(len(RUNS)):
        for more in ((), ("epoch",), ("epoch", "witnesses")):
            directory = shutil.copytree(good, tmp_path / f"{run}-{len(more)}")
            shutil.rmtree(directory / "journal")
            shutil.copytree(copies / str(run) / "journal", directory / "journal")
            for name in ("acknowledged", *more):
                shutil.copy(copies / str(run) / name, directory / name)
            assert outcome(directory)[0] != VerifyOutcome.CONSISTENT, (run, more)
            with pytest.raises(LogWriteError, match="was altered"):
                audit_log(directory).open()


def test_a_journal_written_by_another_key_is_found(good: Path, tmp_path: Path) -> None:
    """The journal and its acknowledgement are consistent with each other, but not the log's."""
    directory = shutil.copytree(good, tmp_path / "log")
    path = directory / "acknowledged"
    stated = read_acknowledgement(path, path.read_bytes(), KEY.public)
    other = SecretKey.generate(KEY.name)
    path.write_bytes(stated.encode(other))
    found, problem = outcome(directory)
    assert (found, "acknowledged" in problem) == (VerifyOutcome.ALTERED, True)
    assert read_acknowledgement(path, path.read_bytes(), other.public) == stated


FOREIGN = [
    "notes.txt", "epoch.old", "tile/readme", "tile/0/000.txt", "tile/0/999", "tile/entries/x001/000",
    "tile/0/002.p/255", "tile/9/000", "journal/notes", "journal/journal-1-2.wal", "tile/1/000.p/3",
    ".hidden", "tile/0/000.p/7", "extra/file", "tile/0/x000/000", "tile/entries/x000/001",
    "tile/0/000.p/256", "tile/entries/001.p/256",
]  # fmt: skip


@pytest.mark.parametrize("name", FOREIGN)
def test_a_foreign_file_is_named(good: Path, tmp_path: Path, name: str) -> None:
    directory = shutil.copytree(good, tmp_path / "log")
    (directory / name).parent.mkdir(parents=True, exist_ok=True)
    (directory / name).write_bytes(b"foreign")
    found, problem = outcome(directory)
    assert (found, name in problem) == (VerifyOutcome.ALTERED, True)


def test_a_copy_of_a_tile_by_another_name_is_named(good: Path, tmp_path: Path) -> None:
    directory = shutil.copytree(good, tmp_path / "log")
    (directory / "tile/0/000.p").mkdir(exist_ok=True)
    shutil.copy(directory / "tile/0/000", directory / "tile/0/000.p/300")
    found, problem = outcome(directory)
    assert (found, "tile/0/000.p/300" in problem) == (VerifyOutcome.ALTERED, True)


def test_a_link_is_not_a_file_of_the_log(good: Path, tmp_path: Path) -> None:
    directory = shutil.copytree(good, tmp_path / "log")
    (tmp_path / "elsewhere").write_bytes((directory / "tile/0/000").read_bytes())
    (directory / "tile/0/000").unlink()
    (directory / "tile/0/000").symlink_to(tmp_path / "elsewhere")
    found, problem = outcome(directory)
    assert (found, "symbolic link or special file" in problem) == (VerifyOutcome.ALTERED, True)


def test_a_named_pipe_is_named_and_not_read(good: Path, tmp_path: Path) -> None:
    """A read of it would wait for a writer, and the check would never end."""
    for number, name in enumerate(files_of(good)):
        directory = shutil.copytree(good, tmp_path / str(number))
        (directory / name).unlink()
        os.mkfifo(directory / name)
        found, problem = outcome(directory)
        expected = f"symbolic link or special file: {directory / name}"
        assert (found, problem) == (VerifyOutcome.ALTERED, expected)


# Remains of a crash at the end of the journal -------------------------------------------------


def newest_journal(directory: Path) -> Path:
    return journal_paths(directory / "journal")[-1]


def torn_frames(marker: bytes) -> dict[str, bytes]:
    frame = marker + struct.pack("<II", 40, 7) + b"x" * 40
    return {
        "begun": frame[:5],
        "head": frame[:24],
        "half": frame[:50],
        "not synchronised": frame,
        "reserved": bytes(60),
    }


@pytest.mark.parametrize("what", ["begun", "head", "half", "not synchronised", "reserved"])
def test_one_torn_frame_behind_the_journal_is_not_damage(
    good: Path, tmp_path: Path, what: str
) -> None:
    directory = shutil.copytree(good, tmp_path / "log")
    path = newest_journal(directory)
    marker = bytes.fromhex(path.stem.split("-")[2])
    path.write_bytes(path.read_bytes() + torn_frames(marker)[what])
    assert outcome(directory) == (VerifyOutcome.CONSISTENT, "")
    log = audit_log(directory)
    log.open()
    assert (log.lost_records, log.damage) == (0, [])
    log.close()


@pytest.mark.parametrize("more", [b"hidden", b"\0\0hidden", b"two", b"long", b"large"])
def test_anything_else_behind_the_journal_is_found(good: Path, tmp_path: Path, more: bytes) -> None:
    directory = shutil.copytree(good, tmp_path / "log")
    path = newest_journal(directory)
    marker = bytes.fromhex(path.stem.split("-")[2])
    torn = torn_frames(marker)["not synchronised"]
    if more == b"two":
        more = torn + torn
    elif more == b"long":
        more = torn + b"x"
    elif more == b"large":
        more = marker + struct.pack("<II", 1 << 31, 7)
    path.write_bytes(path.read_bytes() + more)
    assert outcome(directory)[0] == VerifyOutcome.ALTERED


# The writer --------------------------------------------------------------------------------------


def copied(good: Path, tmp_path: Path, name: str, content: bytes | None) -> Path:
    """Return a copy of a log in which a file has other content, or is missing."""
    directory = shutil.copytree(good, tmp_path / "log")
    (directory / name).unlink()
    if content is not None:
        (directory / name).write_bytes(content)
    return directory


@pytest.mark.parametrize("name", ["epoch", "acknowledged"])
@pytest.mark.parametrize("content", [None, b"", b"7\n", b"00000000000000000000", b"nonsense"])
def test_a_writer_does_not_go_on_from_a_damaged_statement(
    good: Path, tmp_path: Path, name: str, content: bytes | None
) -> None:
    directory = copied(good, tmp_path, name, content)
    with pytest.raises(LogWriteError, match=f"was altered: .*/{name}"):
        audit_log(directory).open()


@pytest.mark.parametrize("name", ["witnesses", "key.pub"])
@pytest.mark.parametrize("content", [None, b"", b"{}", b"nonsense\n"])
def test_damage_that_agents_or_the_key_repair_is_recorded(
    good: Path, tmp_path: Path, name: str, content: bytes | None
) -> None:
    directory = copied(good, tmp_path, name, content)
    assert outcome(directory)[0] == VerifyOutcome.ALTERED
    trail = AuditTrail(audit_log(directory, boot="b9"), "1.0", lambda: NOON_NS)
    size = sum(RUNS) + TAIL + 2 * len(RUNS) + 2
    trail.open()
    found = [decode_audit_record(raw) for raw in trail.log.records(size - 4)]
    trail.log.close()
    (damage,) = [one for one in found if one.type == "log.recovered"]
    assert (damage.out, name in str(damage.data["damaged"])) == ("failed", True)
    findings = verify_log(directory, KEY.public).findings
    assert any(f"{damage.seq}: damage found at a start" in finding for finding in findings)


async def swapped(directory: Path, change: Callable[[], object]) -> str:
    """Return the reason why a running writer does not sign after a change."""
    async with running_log(audit_log(directory)) as log:
        await append_drafts(log, range(3))
        kept = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
        change()
        with pytest.raises((LogWriteError, ValueError)) as caught:
            await log.sign()
        for path, content in kept.items():
            if path.read_bytes() != content:
                path.write_bytes(content)
    return str(caught.value)


async def test_a_running_writer_finds_that_its_files_were_replaced(tmp_path: Path) -> None:
    def shorten() -> None:
        path = newest_journal(tmp_path / "log")
        os.truncate(path, path.stat().st_size - 1)

    def older() -> None:
        path = tmp_path / "log" / "acknowledged"
        path.write_bytes(path.read_bytes()[:-9] + b"AAAAAAAA\n")

    assert "replaced or changed" in await swapped(tmp_path / "log", shorten)
    assert "file replaced or changed during a write" in await swapped(tmp_path / "log", older)


@pytest.mark.parametrize(
    "fields",
    [
        (),
        (COUNT,),
        (COUNT[1:], ROOT),
        (COUNT + "0", ROOT),
        ("-" + COUNT[1:], ROOT),
        (COUNT, ROOT[4:]),
        (COUNT, ROOT + ROOT),
        (COUNT, "!" + ROOT),
        (COUNT, ROOT.rstrip("=")),
    ],
)
def test_a_signed_acknowledgement_of_another_form_is_rejected(fields: tuple[str, ...]) -> None:
    path = Path("acknowledged")
    content = SignedStatement("journal", 1, fields).encode(KEY)
    with pytest.raises(HousekeepingError, match="invalid acknowledgement acknowledged"):
        read_acknowledgement(path, content, KEY.public)
    good = SignedStatement("journal", 1, (COUNT, ROOT, "a")).encode(KEY)
    assert read_acknowledgement(path, good, KEY.public).encode(KEY) == good


# Unsigned files ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content"), [("epoch", b"3\n"), ("acknowledged", b"%020d" % 7), ("epoch", b"{}")]
)
def test_an_unsigned_housekeeping_file_is_not_accepted(
    good: Path, tmp_path: Path, name: str, content: bytes
) -> None:
    directory = shutil.copytree(good, tmp_path / "log")
    (directory / name).write_bytes(content)
    with pytest.raises(LogWriteError) as caught:
        audit_log(directory).open()
    assert str(directory / name) in str(caught.value)
    assert repr(content) in str(caught.value)
    assert "; fix: restore the directory from a backup" in str(caught.value)
