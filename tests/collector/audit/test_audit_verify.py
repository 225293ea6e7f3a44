"""Every change of a log is found, with the documented outcome."""

from __future__ import annotations

import asyncio
import base64
import os
import pty
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings, strategies as st
from support.audit import KEY, append_drafts, audit_log, draft, running_log, write_log

from railscope.audit.log_checkpoint import Checkpoint
from railscope.audit.merkle import HASH_BYTES, CompactRange, TreeHead, leaf_hash, root_of
from railscope.audit.record import RecordActor, RecordSource
from railscope.audit.signed_note import SecretKey, signature_line
from railscope.cli import root
from railscope.durable_files import PARTIAL
from railscope_collector.audit.entry_proof import ProofError, check_proof, make_proof
from railscope_collector.audit.tiles import Tiles, decode_bundle, encode_bundle, tile_name
from railscope_collector.audit.verification import verify_log
from railscope_collector.audit.verify_outcome import LogVerificationError, VerifyOutcome
from railscope_collector.ledger.record_draft import RecordDraft

SIZE = 600
UNSIGNED = 5


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log with full and partial tiles, two checkpoints behind it, and a tail not signed yet."""
    directory = tmp_path_factory.mktemp("good") / "log"
    write_log(directory, [300, 300])

    async def crash_with_a_tail() -> None:
        async with running_log(audit_log(directory, boot="b1")) as log:
            await append_drafts(log, range(SIZE, SIZE + UNSIGNED))
            shutil.copytree(directory, directory.with_name("with-tail"))

    asyncio.run(crash_with_a_tail())
    return directory.with_name("with-tail")


def outcome(directory: Path, *anchors: str) -> tuple[VerifyOutcome, str]:
    try:
        verify_log(directory, KEY.public, anchors)
    except LogVerificationError as error:
        return error.outcome, str(error)
    return VerifyOutcome.CONSISTENT, ""


def test_a_good_log_is_consistent(good: Path) -> None:
    found = verify_log(good, KEY.public, [(good / "checkpoint").read_text()])
    assert found.checkpoint.tree.size == SIZE
    assert (found.unsigned, found.anchors, found.findings) == (UNSIGNED, 1, ())
    assert {path.name for path in good.rglob("*.p")} == {"000.p", "002.p"}, "001 is full"


def checked_files(directory: Path) -> list[Path]:
    """All files that a verdict rests on; the rest is lock and epoch."""
    names = [f"tile/{what}/{at}" for what in ("0", "entries") for at in ("000", "001", "002.p/88")]
    names += ["tile/1/000.p/1", "tile/1/000.p/2", "checkpoint"]
    return [directory / name for name in names] + list((directory / "journal").iterdir())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_changed_byte_goes_unnoticed(
    good: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    directory = tmp_path_factory.mktemp("changed") / "log"
    shutil.copytree(good, directory)
    path = data.draw(st.sampled_from(checked_files(directory)), label="file")
    content = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1), label="offset")
    content[at] ^= data.draw(st.integers(1, 255), label="change")
    path.write_bytes(content)
    found, _ = outcome(directory)
    if path.parent.name == "journal":
        # The last group of the newest file may be torn: nothing was signed over it.
        left = None if found else verify_log(directory, KEY.public).unsigned
        assert found == VerifyOutcome.ALTERED or left == 0
    elif path.name == "checkpoint":
        assert found in {VerifyOutcome.ALTERED, VerifyOutcome.KEY_PROBLEM}
    else:
        assert found in {VerifyOutcome.ALTERED, VerifyOutcome.TAIL_MISSING}
    shutil.rmtree(directory)


@pytest.mark.parametrize(
    ("name", "position", "record"),
    [("tile/0/001", 44, 300), ("tile/0/002.p/88", 0, 512), ("tile/1/000.p/2", 1, 256)],
)
def test_an_altered_hash_is_named_with_the_first_of_its_records(
    good: Path, tmp_path: Path, name: str, position: int, record: int
) -> None:
    directory = shutil.copytree(good, tmp_path / "log")
    content = bytearray((directory / name).read_bytes())
    content[position * HASH_BYTES] ^= 1
    (directory / name).write_bytes(content)
    found, problem = outcome(directory)
    assert found == VerifyOutcome.ALTERED
    expected = f"{name}: hash {position} does not match the stored data from record {record} on"
    assert problem.endswith(expected)


@pytest.mark.parametrize("size", [0, 1, 100, 7000])
@pytest.mark.parametrize("name", ["tile/entries/001", "tile/entries/002.p/88"])
def test_a_truncated_tile_is_found(good: Path, tmp_path: Path, name: str, size: int) -> None:
    directory = shutil.copytree(good, tmp_path / "log")
    (directory / name).write_bytes((directory / name).read_bytes()[:size])
    assert outcome(directory)[0] == VerifyOutcome.TAIL_MISSING


def test_records_that_were_signed_and_are_gone_are_missing(good: Path, tmp_path: Path) -> None:
    directory = shutil.copytree(good, tmp_path / "log")
    last = directory / tile_name("entries", 2, 88)
    last.write_bytes(encode_bundle(decode_bundle(last.read_bytes())[:-1]))
    assert outcome(directory)[0] == VerifyOutcome.TAIL_MISSING
    last.unlink()
    assert outcome(directory)[0] == VerifyOutcome.TAIL_MISSING
    (directory / "checkpoint").unlink()
    assert outcome(directory)[0] == VerifyOutcome.TAIL_MISSING


def test_an_older_copy_is_a_rollback_if_a_checkpoint_was_kept_elsewhere(tmp_path: Path) -> None:
    write_log(tmp_path / "log", [300])
    shutil.copytree(tmp_path / "log", tmp_path / "older")
    write_log(tmp_path / "log", [300], boot="b1")
    anchor = (tmp_path / "log" / "checkpoint").read_text()
    assert outcome(tmp_path / "older") == (VerifyOutcome.CONSISTENT, "")
    found, message = outcome(tmp_path / "older", anchor)
    assert found == VerifyOutcome.FORKED
    assert "\n300\n" in message
    assert "\n600\n" in message
    older = (tmp_path / "older" / "checkpoint").read_text()
    assert verify_log(tmp_path / "log", KEY.public, [older, anchor]).anchors == 2


def rewritten(good: Path, directory: Path) -> Path:
    """The log as its owner could rewrite it: another record 5, and all signatures made again."""
    records = [raw for index in range(3) for raw in Tiles(good, SIZE).records(index)]
    records[5] = records[5].replace(b'"number":5', b'"number":4')
    tree = CompactRange()
    for raw in records:
        tree.append(leaf_hash(raw))
    directory.mkdir()
    Tiles(directory).grow(records)
    note = Checkpoint(KEY.name, TreeHead(SIZE, tree.root)).sign(KEY)
    (directory / "checkpoint").write_text(note)
    return directory


def test_a_rewritten_log_is_a_fork_if_a_checkpoint_was_kept_elsewhere(
    good: Path, tmp_path: Path
) -> None:
    directory = rewritten(good, tmp_path / "forked")
    assert outcome(directory) == (
        VerifyOutcome.ALTERED,
        f"missing housekeeping file {directory}/acknowledged",
    )
    assert outcome(directory, (good / "checkpoint").read_text())[0] == VerifyOutcome.FORKED
    longer = tmp_path / "longer"
    write_log(longer, [SIZE + 100], boot="b9")
    assert outcome(longer)[0] == VerifyOutcome.CONSISTENT
    assert outcome(longer, (good / "checkpoint").read_text())[0] == VerifyOutcome.FORKED


def test_the_wrong_key_is_a_problem_of_the_key(good: Path) -> None:
    other = SecretKey.generate(KEY.name)
    with pytest.raises(LogVerificationError) as caught:
        verify_log(good, SecretKey.generate("other.example").public)
    assert caught.value.outcome == VerifyOutcome.KEY_PROBLEM
    with pytest.raises(LogVerificationError) as caught:
        verify_log(good, other.public)
    assert caught.value.outcome == VerifyOutcome.KEY_PROBLEM


# The command line ----------------------------------------------------------------------------


def railscope(*arguments: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(root, ["audit", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


def test_the_command_prints_the_finding_and_exits_with_it(good: Path, tmp_path: Path) -> None:
    key = str(KEY.public)
    code, output, _ = railscope("verify", good, "--key", key)
    assert code == 0
    assert output.startswith("consistent: 600 records of log.example, root ")
    assert f"not signed yet: {UNSIGNED}" in output
    directory = shutil.copytree(good, tmp_path / "log")
    tile = directory / "tile/entries/001"
    flipped = bytearray(tile.read_bytes())
    flipped[1000] ^= 1
    tile.write_bytes(flipped)
    code, _, problem = railscope("verify", directory, "--key", key)
    assert (code, problem.split(":")[0]) == (1, "altered")
    shutil.rmtree(directory / "tile/entries/002.p")
    tile.write_bytes((good / "tile/entries/001").read_bytes())
    assert railscope("verify", directory, "--key", key)[0] == 2
    assert railscope("verify", good, "--key", "nonsense")[0] == 3


def test_the_command_takes_keys_and_checkpoints_from_files(good: Path, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(f"{KEY.public}\n")
    code, note, _ = railscope("checkpoint", good, "--key", tmp_path / "key")
    assert (code, note) == (0, (good / "checkpoint").read_text())
    (tmp_path / "anchor").write_text(note)
    anchored = ("verify", good, "--key", tmp_path / "key", "--anchor", tmp_path / "anchor")
    assert "kept elsewhere: 1 consistent" in railscope(*anchored)[1]
    forked = rewritten(good, tmp_path / "forked")
    assert railscope("verify", forked, *map(str, anchored[2:]))[0] == 4


def test_a_record_is_proven_with_the_key_only(good: Path, tmp_path: Path) -> None:
    key = str(KEY.public)
    code, proof, _ = railscope("prove", good, "417", "--key", key)
    assert code == 0
    (tmp_path / "proof").write_text(proof)
    code, output, stated = railscope("check-proof", tmp_path / "proof", "--key", key)
    assert stated.startswith(f"proven: record 417 of {SIZE}, signed by {KEY.public.name}, ")
    assert (code, output.strip().encode()) == (0, Tiles(good, SIZE).record(417))
    path = proof.split("\n")[3]
    respelled = f"{path[:-2]}{chr(ord(path[-2]) + 1)}="
    assert base64.b64decode(respelled) == base64.b64decode(path)
    for old, new in (
        ("index 417", "index 416"),
        ("extra ", "extra AAAA"),
        ("\n\n", "\nAAAA\n\n"),
        (path, respelled),
    ):
        (tmp_path / "forged").write_text(proof.replace(old, new, 1))
        assert railscope("check-proof", tmp_path / "forged", "--key", key)[0] == 1
    code, _, problem = railscope("prove", good, str(SIZE), "--key", key)
    assert (code, problem.strip()) == (
        1,
        "Error: invalid record index: 600: expected less than 600, the size of the tree",
    )


def test_a_record_is_proven_at_its_own_index_only(good: Path, tmp_path: Path) -> None:
    """A log could contain one record twice: each proof states the index, and so does the record."""
    records = Tiles(good, SIZE).records(0)[:3]
    tiles = Tiles(tmp_path)
    tiles.grow([*records[:2], records[1]])
    note = Checkpoint(KEY.name, TreeHead(3, root_of(tiles.node, 3))).sign(KEY)
    assert check_proof(make_proof(tiles, 1, note), KEY.public) == records[1]
    with pytest.raises(ProofError, match="record 1 at index 2"):
        check_proof(make_proof(tiles, 2, note), KEY.public)


def test_a_record_of_a_later_release_is_proven(good: Path, tmp_path: Path) -> None:
    """A type and a field that this release does not have; a second number makes no proof."""
    first = Tiles(good, SIZE).record(0)
    later = first.replace(b'"src":', b'"site":"west","src":').replace(b"log.genesis", b"log.moved")
    doubled = first.replace(b'"seq":0', b'"seq":7,"seq":0')
    assert len({first, later, doubled}) == 3
    for number, record in enumerate((later, doubled)):
        (tmp_path / str(number)).mkdir()
        tiles = Tiles(tmp_path / str(number))
        tiles.grow([record])
        note = Checkpoint(KEY.name, TreeHead(1, root_of(tiles.node, 1))).sign(KEY)
        (tmp_path / f"proof{number}").write_text(make_proof(tiles, 0, note))
    code, output, stated = railscope("check-proof", tmp_path / "proof0", "--key", str(KEY.public))
    assert (code, output.strip().encode()) == (0, later)
    assert stated.startswith("proven: record 0 of 1")
    code, _, stated = railscope("check-proof", tmp_path / "proof1", "--key", str(KEY.public))
    assert (code, stated.strip()) == (
        1,
        (
            "not proven: invalid proof: invalid encoding of an audit record: expected sorted keys, "
            "no spaces and each field once"
        ),
    )


def test_records_are_shown_signed_or_not(good: Path) -> None:
    lines = railscope("show", good, "--json")[1].splitlines()
    assert len(lines) == SIZE + UNSIGNED
    assert railscope("show", good, "--json", "--from", "590")[1].splitlines() == lines[590:]
    assert railscope("tail", good, "--json", "--count", "7")[1].splitlines() == lines[-7:]
    of_one = railscope("show", good, "--node", "node-1", "--type", "tenancy")[1].splitlines()
    assert len(of_one) == sum('"node":"node-1"' in line for line in lines) > 0
    assert not railscope("show", good, "--type", "billing")[1]


def test_a_record_is_shown_to_be_read(good: Path) -> None:
    assert railscope("tail", good, "--count", "1")[1] == (
        "     604  2026-09-21 14:13:20 UTC  GPU assigned, by Slurm  done  node-1  number=604\n"
    )


@pytest.mark.parametrize("command", ["show", "tail"])
def test_records_fit_a_terminal_unless_whole_lines_are_requested(good: Path, command: str) -> None:
    widths = {}
    for option in ((), ("--wide",)):
        reader, writer = pty.openpty()
        program = (sys.executable, "-P", "-m", "railscope", "audit", command, str(good), *option)
        with subprocess.Popen(program, stdout=writer, env=os.environ | {"COLUMNS": "60"}):
            os.close(writer)
            content = b"".join(iter(partial(_read_terminal, reader), b""))
        os.close(reader)
        widths[option] = max(map(len, content.decode().splitlines()))
    assert widths[()] == 60 < widths["--wide",]


def _read_terminal(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:  # Linux: the program has closed its end
        return b""


def test_an_invalid_log_is_shown_as_an_error(good: Path, tmp_path: Path) -> None:
    directory = shutil.copytree(good, tmp_path / "log")
    tile = directory / "tile/entries/000"
    tile.write_bytes(tile.read_bytes().replace(b"tenancy.assign", b"tenancy.assigm", 1))
    code, _, problem = railscope("show", directory)
    assert (code, "run `railscope audit verify`" in problem) == (1, True)
    (directory / "checkpoint").write_text("nonsense")
    assert railscope("tail", directory)[0] == 1


HIDDEN = encode_bundle([b"hidden"])
SIGNED_TILES = [f"tile/{what}/{at}" for what in ("0", "entries") for at in ("000", "002.p/88")]


@pytest.mark.parametrize("name", [*SIGNED_TILES, "tile/1/000.p/2"])
@pytest.mark.parametrize("more", [HIDDEN, bytes(32)])
def test_nothing_hides_behind_the_records_of_a_tile(
    good: Path, tmp_path: Path, name: str, more: bytes
) -> None:
    directory = shutil.copytree(good, tmp_path / "log")
    (directory / name).write_bytes((directory / name).read_bytes() + more)
    assert outcome(directory)[0] == VerifyOutcome.ALTERED


@pytest.mark.parametrize("count", [1, -1])
def test_line_feeds_of_a_checkpoint_are_what_was_signed(
    good: Path, tmp_path: Path, count: int
) -> None:
    directory = shutil.copytree(good, tmp_path / "log")
    path = directory / "checkpoint"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r", count))
    assert outcome(directory)[0] == VerifyOutcome.ALTERED


def test_nothing_hides_behind_the_signature_of_a_checkpoint(good: Path, tmp_path: Path) -> None:
    """Signatures by other keys are not verified, so the log's own checkpoint has none."""
    note = (good / "checkpoint").read_text()
    for more in (note.rpartition("\n\n")[2], signature_line(SecretKey.generate("x").public, b"?")):
        directory = shutil.copytree(good, tmp_path / "log", dirs_exist_ok=True)
        (directory / "checkpoint").write_text(note + more)
        found, problem = outcome(directory)
        assert (found, "expected one, that of log.example" in problem) == (
            VerifyOutcome.ALTERED,
            True,
        )
        # Kept elsewhere it may have any: those of witnesses.
        assert outcome(good, note + more) == (VerifyOutcome.CONSISTENT, "")


@pytest.mark.parametrize(
    "number", ["\N{SUPERSCRIPT TWO}", "\N{ARABIC-INDIC DIGIT THREE}", "9" * 5000]
)
def test_a_text_that_is_no_number_does_not_end_the_check(tmp_path: Path, number: str) -> None:
    """The key signs any text: numbers of records are those of the format, or are reported."""
    agent = RecordSource("agent", "n1", "b", 0)
    row = "billing.head"
    times = draft(0, source=agent)
    lost = {"database": "d", "n": 1, "head": "h"}

    async def write() -> None:
        async with running_log(audit_log(tmp_path / "log")) as log:
            await log.append(replace(times, data={"received_ns": number}))
            for _ in range(2):
                references = (f"outbox-row/d/{number}/h",)
                await log.append(replace(draft(1, row), data=lost, references=references))
            await log.sign()

    asyncio.run(write())
    found = verify_log(tmp_path / "log", KEY.public)
    assert [finding for finding in found.findings if "received_ns" in finding]
    assert found.ledger.repeated == ["record 2: ('d', 1) was already recorded"]


def test_an_unreadable_value_is_not_a_verdict(good: Path, tmp_path: Path) -> None:
    key = str(KEY.public)
    for name in ("checkpoint", "tile/0/000", "tile/entries/000", "journal"):
        directory = shutil.copytree(good, tmp_path / name.replace("/", "-"))
        path = directory / name
        if path.is_dir():
            shutil.rmtree(path)
            path.touch()
        else:
            path.unlink()
            path.mkdir()
        code, _, problem = railscope("verify", directory, "--key", key)
        assert (code, problem.split(":")[0], name in problem) == (5, "unreadable", True)
    (tmp_path / "anchor").write_bytes(b"\xff\xfe")
    arguments = ("verify", good, "--key", key, "--anchor", tmp_path / "anchor")
    assert railscope(*arguments)[0] == 3


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_journal_that_must_not_be_read_is_not_taken_for_none(good: Path, tmp_path: Path) -> None:
    directory = shutil.copytree(good, tmp_path / "log")
    (directory / "journal").chmod(0)
    allowed = [*Path(tmp_path).parents, tmp_path]
    before = [(path, path.stat().st_mode) for path in allowed if path.stat().st_uid == os.geteuid()]
    try:
        for path, mode in before:
            path.chmod(mode | 0o711)
        directory.chmod(0o755)
        os.seteuid(65_534)
        found, problem = outcome(directory)
    finally:
        os.seteuid(0)
        for path, mode in before:
            path.chmod(mode)
    assert (found, "journal" in problem) == (VerifyOutcome.UNREADABLE, True)


def test_a_partial_file_of_a_killed_writer_is_not_an_alteration(good: Path, tmp_path: Path) -> None:
    directory = shutil.copytree(good, tmp_path / "log")
    found = verify_log(directory, KEY.public)
    for tile in [path for path in (directory / "tile").rglob("*") if path.is_file()]:
        half = tile.with_name(f"{tile.name}.1a2b3c4d{PARTIAL}")
        half.write_bytes(tile.read_bytes()[:7])
    assert verify_log(directory, KEY.public) == found


def test_the_next_writer_deletes_unfinished_files_of_a_killed_one(tmp_path: Path) -> None:
    """A writer that is killed again and again must not fill the disk."""
    write_log(tmp_path, [300])
    unfinished = [
        tmp_path / f"{name}.1a2b3c4d{PARTIAL}"
        for name in ("acknowledged", "tile/0/001", "tile/0/001.p/44", "tile/entries/002.p/13")
    ]
    for path in unfinished:
        path.parent.mkdir(exist_ok=True)
        path.touch()
    write_log(tmp_path, [1])
    assert [path for path in unfinished if path.exists()] == []


def test_a_log_without_its_journal_has_lost_what_was_not_signed(good: Path, tmp_path: Path) -> None:
    directory = shutil.copytree(good, tmp_path / "log")
    shutil.rmtree(directory / "journal")
    found, problem = outcome(directory)
    assert (found, problem.startswith("missing journal file")) == (VerifyOutcome.ALTERED, True)
    (directory / "acknowledged").unlink()
    assert outcome(directory) == (
        VerifyOutcome.ALTERED,
        f"missing housekeeping file {directory}/acknowledged",
    )


@pytest.mark.parametrize("content", [b"\xff\xfe", b"log\n" + b"9" * 5000 + b"\nroot\n"])
def test_a_checkpoint_that_is_none_is_an_error_of_every_command(
    good: Path, tmp_path: Path, content: bytes
) -> None:
    directory = shutil.copytree(good, tmp_path / "log")
    (directory / "checkpoint").write_bytes(content)
    key = ("--key", str(KEY.public))
    commands = [("show", directory), ("tail", directory), ("prove", directory, "3", *key)]
    for command in (*commands, ("checkpoint", directory, *key)):
        code, _, problem = railscope(*command)
        assert (code, problem.startswith("Error: "), "checkpoint" in problem) == (1, True, True)


def test_a_proof_that_is_not_text_proves_nothing(good: Path, tmp_path: Path) -> None:
    key = ("--key", str(KEY.public))
    proof = railscope("prove", good, "417", *key)[1].encode()
    changes = [(b"index 417", b"index " + b"9" * 5000), (b"extra ", b"\xff"), (b"\n", b"\r\n")]
    for old, new in changes:
        (tmp_path / "proof").write_bytes(proof.replace(old, new))
        code, _, problem = railscope("check-proof", tmp_path / "proof", *key)
        assert (code, problem.startswith("not proven: ")) == (1, True)


async def test_a_record_shown_is_one_line_for_any_content(tmp_path: Path) -> None:
    actor = RecordActor("operator", "eve\n     9  forged\x1b[2J\u202e")
    async with running_log(audit_log(tmp_path)) as log:
        await log.append(RecordDraft("access.login", actor, 10**25, "done"))
    code, output, _ = railscope("show", tmp_path)
    assert (code, output) == (
        0,
        (
            f"       0  {10**25} ns  Sign-in, by operator "
            "eve\\n     9  forged\\u001b[2J\\u202e  done\n"
        ),
    )
