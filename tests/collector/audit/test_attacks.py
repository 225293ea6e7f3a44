"""Stories of an audit log whose tables are changed: the outcome of its verification, and whether a collector goes on with it.

The log has 604 records of several runs and a witness. Each story begins with a copy of it.

    sql STATEMENT               change the database, without its triggers but with them afterwards
    bare STATEMENT              change the database and its triggers
    older RUN                   put the database of an earlier run in its place
    fork RUN                    let the owner of the key continue the database of an earlier run
    rewrite 5                   let the owner of the key change a record, and sign everything again
    again                       take another copy of the log
    remove; write TEXT          remove the database, or replace it with a text
    export; file NAME TEXT      export the log; replace a file of the export
    verify; open                exit status and first line of `railscope audit verify`; start a collector
    audit COMMAND               exit status and first lines of a command: LOG, EXPORT, KEY, and ANCHOR (a checkpoint kept elsewhere)
"""

from __future__ import annotations

import asyncio
import re
import shlex
import shutil
import sqlite3
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, strategies as st
from support.audit import KEY, NOON_NS, append_drafts, audit_log, running_log, verify_directory
from support.stories import Story

from railscope.audit.cosignature import add_cosignature, key_name, witness_key
from railscope.audit.log_checkpoint import Checkpoint
from railscope.audit.merkle import CompactRange, TreeHead, leaf_hash
from railscope.audit.record import RecordActor, RecordSubject
from railscope.audit.signed_note import SecretKey
from railscope.cli import root
from railscope.service import run_in_thread
from railscope_collector.audit import LogWriteError
from railscope_collector.audit.cosignatures import CosignatureStore, CosignedCheckpoint
from railscope_collector.audit.tiles import complete_root
from railscope_collector.audit.verify_outcome import LogVerificationError
from railscope_collector.ledger.record_draft import RecordDraft

RUNS = (300, 300, 2)
MAX_LINES = 3
FILE = "ledger.sqlite"
HASH = re.compile(r"(?<=log\.example\+)\w{8}(\+[^\s\"]+)?|[A-Za-z0-9+/]{43}=|\b[0-9a-f]{64}\b")
TABLES = (
    "audit_record", "audit_subtree", "audit_archived", "audit_tenant", "audit_head", "audit_witness", "audit_position", "audit_group_key",
)  # fmt: skip


async def written(directory: Path, copies: Path) -> None:
    """A log of several runs and a cosignature; a copy after each run."""
    agent = SecretKey.generate(key_name("n1"))
    for number, count in enumerate(RUNS):
        async with running_log(audit_log(directory, boot=f"b{number}")) as log:
            await append_drafts(log, range(count))
            await log.sign()
            if number == 0:
                key = str(witness_key(agent))
                actor, node = RecordActor("agent", "n1"), RecordSubject("n1")
                await log.append(
                    RecordDraft("log.witness", actor, NOON_NS, "done", node, {"key": key})
                )
                await log.sign()
                note = add_cosignature(log.note, agent, NOON_NS // 10**9)
                witnesses = CosignatureStore(log.database, log.name)
                witnesses.put("n1", CosignedCheckpoint(note, key))
                await run_in_thread(witnesses.save)
            log.database().close()
        await run_in_thread(shutil.copytree, directory, copies / str(number))


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state directory as of each run."""
    found = tmp_path_factory.mktemp("directory")
    asyncio.run(written(found / "log", found))
    return found


class AttackedLog:
    """A copy of the log."""

    def __init__(self, copies: Path, directory: Path) -> None:
        self.copies, self.log = copies, directory / "log"
        self.run("again")
        note = self._connect().execute("SELECT note FROM audit_head").fetchone()[0]
        (directory / "anchor").write_text(note)

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.log / FILE, isolation_level=None)

    def run(self, command: str) -> list[str]:  # noqa: C901, PLR0912 - one for each command
        """Play a command."""
        name, _, rest = command.partition(" ")
        match name:
            case "verify":
                return self._command(f"verify LOG --key KEY {rest}")[:1]
            case "audit":
                return self._command(rest)
            case "open":
                return [asyncio.run(self._open())]
            case "again":
                shutil.rmtree(self.log, ignore_errors=True)
                shutil.copytree(self.copies / str(len(RUNS) - 1), self.log)
            case "sql" | "bare":
                self._change(rest, has_triggers=name == "sql")
            case "older" | "fork":
                shutil.copy(self.copies / rest / FILE, self.log / FILE)
                if name == "fork":
                    (self.log / "state.sqlite").unlink()
                    asyncio.run(self._fork())
            case "rewrite":
                self._rewrite(int(rest))
            case "remove":
                (self.log / FILE).unlink()
            case "write":
                (self.log / FILE).write_text(rest)
            case "export":
                exported = self.log.with_name("export")
                shutil.rmtree(exported, ignore_errors=True)
                return self._command("export LOG --key KEY EXPORT")
            case "file":
                path, _, text = rest.partition(" ")
                (self.log.with_name("export") / path).write_text(text)
            case _:
                pytest.fail(f"unknown command {name!r}")
        return []

    def _change(self, statement: str, *, has_triggers: bool) -> None:
        connection = self._connect()
        query = (
            "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name LIKE 'audit_%'"
        )
        triggers = connection.execute(query).fetchall() if has_triggers else []
        for name, _ in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute(statement)
        for _, sql in triggers:
            connection.execute(sql)
        connection.close()

    async def _fork(self) -> None:
        async with running_log(audit_log(self.log, boot="b8")) as log:
            await append_drafts(log, range(400, 800))
            await log.sign()
            log.database().close()

    def _rewrite(self, number: int) -> None:
        connection = self._connect()
        query = "SELECT content FROM audit_record WHERE number = ?"
        (content,) = connection.execute(query, (number,)).fetchone()
        raw = content.replace(b'"number":', b'"number":7')
        change = "UPDATE audit_record SET content = x'{}', leaf = x'{}' WHERE number = {}"
        self._change(change.format(raw.hex(), leaf_hash(raw).hex(), number), has_triggers=True)
        tree, hashes = CompactRange(), list[bytes]()
        leaves = connection.execute("SELECT leaf FROM audit_record ORDER BY number").fetchall()
        for (leaf,) in leaves:
            tree.append(leaf)
            hashes.append(leaf)
        for place in range(len(leaves) // 256):
            hashed = complete_root(hashes[place * 256 : place * 256 + 256])
            change = f"UPDATE audit_subtree SET hash = x'{hashed.hex()}' WHERE place = {place}"  # noqa: S608 - our own
            self._change(change, has_triggers=True)
        note = Checkpoint(KEY.name, TreeHead(tree.size, tree.root)).sign(KEY)
        self._change(f"UPDATE audit_head SET note = '{note}'", has_triggers=True)  # noqa: S608 - our own
        connection.close()

    async def _open(self) -> str:
        log = audit_log(self.log, boot="b9")
        async with running_log(log):
            try:
                await run_in_thread(log.follow)
                log.database().close()
            except LogWriteError as error:
                return self._shown(str(error))
        return f"{log.size} records"

    def _command(self, arguments: str) -> list[str]:
        places = {"LOG": str(self.log / FILE), "KEY": str(KEY.public)}
        places |= {name.upper(): str(self.log.with_name(name)) for name in ("anchor", "export")}
        words = [places.get(word, word) for word in shlex.split(arguments)]
        found = CliRunner().invoke(root, ["audit", *words])
        lines = [*map(self._shown, found.output.splitlines())]
        more = [f"and {len(lines) - MAX_LINES} more lines"] * (len(lines) > MAX_LINES)
        return [f"{found.exit_code} {line}" for line in lines[:1]] + lines[1:MAX_LINES] + more

    def _shown(self, line: str) -> str:
        shown = line.replace(str(self.log / FILE), "LOG").replace(str(self.log.parent), "DIRECTORY")
        return HASH.sub("HASH", shown).rstrip()


def test_attacks(story: Story, copies: Path, tmp_path: Path) -> None:
    story.play(AttackedLog(copies, tmp_path).run)


def contents(path: Path) -> list[object]:
    """What the tables of the log have."""
    connection = sqlite3.connect(path)
    try:
        query = "SELECT name FROM sqlite_master WHERE type = 'table' OR name LIKE 'audit%' ORDER BY name"
        schema = connection.execute(query).fetchall()
        return [
            schema,
            *(connection.execute(f"SELECT * FROM {name}").fetchall() for name in TABLES),  # noqa: S608 - our own
        ]
    finally:
        connection.close()


@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_any_changed_bit_of_what_the_log_has_is_found(
    copies: Path, tmp_path_factory: pytest.TempPathFactory, place: float, bit: int
) -> None:
    """Bytes of pages that no table uses, other tables of the ledger, and statements of triggers are not covered."""
    directory = tmp_path_factory.mktemp("changed")
    try:
        good = (copies / str(len(RUNS) - 1) / FILE).read_bytes()
        changed = bytearray(good)
        changed[int(place * len(good))] ^= 1 << bit
        (directory / FILE).write_bytes(changed)
        try:
            same = contents(directory / FILE) == contents(copies / str(len(RUNS) - 1) / FILE)
        except (sqlite3.Error, UnicodeDecodeError):
            same = False
        try:
            found = verify_directory(directory)
        except LogVerificationError:
            return
        assert same or found.findings, "a doubtful witness is a finding"
    finally:
        shutil.rmtree(directory)
