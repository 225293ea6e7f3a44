"""Every change of a log is found, with the documented outcome."""

from __future__ import annotations

import asyncio
import base64
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.audit import KEY, append_drafts, audit_log, running_log, write_log

from railscope.audit.log_checkpoint import Checkpoint
from railscope.audit.merkle import TreeHead, root_of
from railscope.audit.record import RecordActor
from railscope.cli import root
from railscope_collector.audit.entry_proof import ProofError, check_proof, make_proof
from railscope_collector.audit.tiles import Tiles
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


# The command line ----------------------------------------------------------------------------


def railscope(*arguments: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(root, ["audit", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


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
