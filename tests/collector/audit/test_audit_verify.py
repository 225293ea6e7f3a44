"""Every change of a log is found, with the documented outcome."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.audit import KEY, audit_log, database_in, running_log, write_log

from railscope.audit.log_checkpoint import Checkpoint
from railscope.audit.merkle import CompactRange, TreeHead, root_of
from railscope.audit.record import RecordActor
from railscope.cli import root
from railscope_collector.audit.entry_proof import ProofError, check_proof, make_proof
from railscope_collector.audit.tables import StoredTree, insert_records, log_name
from railscope_collector.ledger.database import open_read_only
from railscope_collector.ledger.record_draft import RecordDraft

SIZE = 601


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The database of a log with full and partial bundles, and a checkpoint behind it."""
    directory = tmp_path_factory.mktemp("good")
    write_log(directory, [300, 300])
    return directory / "ledger.sqlite"


def tree_in(path: Path, size: int = SIZE) -> contextlib.AbstractContextManager[StoredTree]:
    return contextlib.contextmanager(_tree_in)(path, size)


def _tree_in(path: Path, size: int) -> Iterator[StoredTree]:
    with open_read_only(f"sqlite:///{path}") as transaction, transaction() as connection:
        yield StoredTree(connection, log_name(KEY.public), size)


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
    with tree_in(good) as tree:
        assert (code, output.strip().encode()) == (0, tree.record(417))
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
        "Error: invalid record index: 601: expected less than 601, the size of the tree",
    )


def test_a_record_is_proven_at_its_own_index_only(good: Path, tmp_path: Path) -> None:
    """A log could contain one record twice: each proof states the index, and so does the record."""
    with tree_in(good) as tree:
        records = [tree.record(number) for number in range(2)]
    with database_in(tmp_path) as database, database.transaction(writes=True) as connection:
        insert_records(connection, "log", CompactRange(), [*records, records[1]])
        twice = StoredTree(connection, "log", 3)
        note = Checkpoint(KEY.name, TreeHead(3, root_of(twice.node, 3))).sign(KEY)
        assert check_proof(make_proof(twice, 1, note), KEY.public) == records[1]
        with pytest.raises(ProofError, match="record 1 at index 2"):
            check_proof(make_proof(twice, 2, note), KEY.public)


def test_an_unreadable_value_is_not_a_verdict(good: Path, tmp_path: Path) -> None:
    key = str(KEY.public)
    code, _, problem = railscope("verify", tmp_path / "missing", "--key", key)
    assert (code, problem.split(":")[0]) == (5, "unreadable")
    (tmp_path / "anchor").write_bytes(b"\xff\xfe")
    arguments = ("verify", good, "--key", key, "--anchor", tmp_path / "anchor")
    assert railscope(*arguments)[0] == 3


async def test_a_record_shown_is_one_line_for_any_content(tmp_path: Path) -> None:
    actor = RecordActor("operator", "eve\n     9  forged\x1b[2J\u202e")
    async with running_log(audit_log(tmp_path)) as log:
        await log.append(RecordDraft("access.login", actor, 10**25, "done"))
    code, output, _ = railscope("show", tmp_path / "ledger.sqlite", "--from", "1")
    assert (code, output) == (
        0,
        (
            f"       1  {10**25} ns  Sign-in, by operator "
            "eve\\n     9  forged\\u001b[2J\\u202e  done\n"
        ),
    )
