"""Stories of an audit log whose files are changed: the outcome of its verification, and whether a collector goes on with it.

The log has 595 signed records, a witness, and five records that are not signed. Each story begins with a copy of it.

    flip tile/0/001 44          change a byte of a file; `journal` is the newest file of the journal
    cut NAME SIZE               keep the beginning of a file
    add NAME TEXT               append a text to a file
    write NAME TEXT             replace or create a file
    torn 24 1                   append the beginning of a frame to the journal, as often
    older NAME RUN              put a file or directory of an earlier run in its place
    again                       take another copy of the log
    remove NAME; pipe NAME      remove a file or directory, or put a named pipe in its place
    rewrite 5                   let the owner of the key change a record, and sign everything again
    verify; open                exit status and first line of `railscope audit verify`; start a collector
    audit COMMAND               exit status and first lines of a command: LOG, KEY, and ANCHOR (a checkpoint kept elsewhere)
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import struct
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, strategies as st
from support.audit import KEY, NOON_NS, append_drafts, audit_log
from support.stories import Story

from railscope.audit.cosignature import add_cosignature, key_name, witness_key
from railscope.audit.log_checkpoint import Checkpoint
from railscope.audit.merkle import CompactRange, TreeHead, leaf_hash
from railscope.audit.record import RecordActor, RecordSubject
from railscope.audit.signed_note import SecretKey
from railscope.cli import root
from railscope.service import run_in_thread
from railscope_collector.audit import LogWriteError
from railscope_collector.audit.audit_trail import AuditTrail
from railscope_collector.audit.cosignatures import CosignedCheckpoint
from railscope_collector.audit.journal import journal_paths
from railscope_collector.audit.tiles import Tiles, tile_name
from railscope_collector.audit.verification import verify_log
from railscope_collector.audit.verify_outcome import LogVerificationError
from railscope_collector.ledger.record_draft import RecordDraft

RUNS = (300, 290, 5)
MAX_LINES = 3
HASH = re.compile(
    r"(?<=log\.example\+)\w{8}\+[^\s\"]+|[A-Za-z0-9+/]{43}=|(?<=-)[0-9a-f]{32}(?=\.wal)|\b[0-9a-f]{64}\b"
)


async def written(directory: Path, copies: Path) -> None:
    """A log of several runs, a cosignature, and a tail that is not signed; a copy after each run."""
    agent = SecretKey.generate(key_name("n1"))
    for number, count in enumerate(RUNS):
        trail = AuditTrail(audit_log(directory, boot=f"b{number}"), "1.0", lambda: NOON_NS)
        trail.open()
        task = asyncio.create_task(trail.log.run())
        await append_drafts(trail.log, range(count))
        if number < len(RUNS) - 1:
            await trail.log.sign()
        if number == 0:
            key = str(witness_key(agent))
            actor, node = RecordActor("agent", "n1"), RecordSubject("n1")
            await trail.log.append(
                RecordDraft("log.witness", actor, NOON_NS, "done", node, {"key": key})
            )
            note = add_cosignature(trail.log.publisher.note, agent, NOON_NS // 10**9)
            trail.log.witnesses.put("n1", CosignedCheckpoint(note, key))
            await run_in_thread(trail.log.witnesses.save)
        await run_in_thread(shutil.copytree, directory, copies / str(number))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        trail.log.close()


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log as of each run, the last one as a killed collector left it."""
    found = tmp_path_factory.mktemp("directory")
    asyncio.run(written(found / "log", found))
    return found


class AttackedLog:
    """A copy of the log."""

    def __init__(self, copies: Path, directory: Path) -> None:
        self.copies, self.log = copies, directory / "log"
        self.run("again")
        (directory / "anchor").write_bytes((self.log / "checkpoint").read_bytes())

    def path(self, name: str) -> Path:
        return journal_paths(self.log / "journal")[-1] if name == "journal" else self.log / name

    def run(self, command: str) -> list[str]:
        """Play a command."""
        name, *words = command.split(" ", 2)
        match name:
            case "verify":
                return self._command(f"verify LOG --key KEY {' '.join(words)}")[:1]
            case "audit":
                return self._command(" ".join(words))
            case "open":
                return [self._open()]
            case "again":
                shutil.rmtree(self.log, ignore_errors=True)
                shutil.copytree(self.copies / str(len(RUNS) - 1), self.log)
            case "rewrite":
                self._rewrite(int(words[0]))
            case _:
                self._change(name, self.path(words[0]), words[0], " ".join(words[1:]))
        return []

    def _change(self, name: str, path: Path, stated: str, text: str) -> None:
        content = path.read_bytes() if path.is_file() else b""
        match name:
            case "flip":
                changed = bytearray(content)
                changed[int(text)] ^= 1
                path.write_bytes(changed)
            case "cut":
                path.write_bytes(content[: int(text)])
            case "add":
                path.write_bytes(content + text.encode())
            case "write":
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(text.encode())
            case "torn":
                path = self.path("journal")
                marker = bytes.fromhex(path.stem.split("-")[2])
                frame = marker + struct.pack("<II", 40, 7) + b"x" * 40
                path.write_bytes(path.read_bytes() + frame[: int(stated)] * int(text or 1))
            case "remove" | "pipe" | "older":
                (shutil.rmtree if path.is_dir() else Path.unlink)(path)
                if name == "pipe":
                    os.mkfifo(path)
                elif name == "older":
                    kept = self.copies / text / stated
                    (shutil.copytree if kept.is_dir() else shutil.copy)(kept, path)
            case _:
                pytest.fail(f"unknown command {name!r}")

    def _rewrite(self, number: int) -> None:
        size = int((self.log / "checkpoint").read_text().splitlines()[1])
        records = [*Tiles(self.log, size).records_from(0)]
        records[number] = records[number].replace(b'"number":', b'"number":7')
        tree = CompactRange()
        for raw in records:
            tree.append(leaf_hash(raw))
        shutil.rmtree(self.log / "tile")
        Tiles(self.log).grow(records)
        note = Checkpoint(KEY.name, TreeHead(size, tree.root)).sign(KEY)
        (self.log / "checkpoint").write_text(note)

    def _open(self) -> str:
        log = audit_log(self.log, boot="b9")
        try:
            log.open()
        except LogWriteError as error:
            return self._shown(str(error))
        log.close()
        return f"{log.size} records, {log.lost_records} lost"

    def _command(self, arguments: str) -> list[str]:
        places = {"LOG": str(self.log), "KEY": str(KEY.public)}
        places["ANCHOR"] = str(self.log.with_name("anchor"))
        words = [places.get(word, word) for word in shlex.split(arguments)]
        found = CliRunner().invoke(root, ["audit", *words])
        lines = [*map(self._shown, found.output.splitlines())]
        more = [f"and {len(lines) - MAX_LINES} more lines"] * (len(lines) > MAX_LINES)
        return [f"{found.exit_code} {line}" for line in lines[:1]] + lines[1:MAX_LINES] + more

    def _shown(self, line: str) -> str:
        return HASH.sub("HASH", line.replace(str(self.log), "LOG")).rstrip()


def test_attacks(story: Story, copies: Path, tmp_path: Path) -> None:
    story.play(AttackedLog(copies, tmp_path).run)


def files_of(directory: Path) -> list[str]:
    """All files but partial tiles that longer ones have followed."""
    size = verify_log(directory, KEY.public).checkpoint.tree.size
    needed = {
        tile_name(level, (size >> 8 * depth) >> 8, (size >> 8 * depth) % 256)
        for depth, level in ((0, "entries"), (0, 0), (1, 1))
    }
    found = [p.relative_to(directory).as_posix() for p in directory.rglob("*") if p.is_file()]
    return sorted(name for name in found if ".p/" not in name or name in needed)


@given(data=st.data())
def test_any_change_of_a_file_is_found(
    copies: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    log = AttackedLog(copies, tmp_path_factory.mktemp("changed")).log
    path = log / data.draw(st.sampled_from(files_of(log)), label="file")
    content = bytearray(path.read_bytes())
    how = data.draw(st.sampled_from(["flip", "cut", "insert", "remove"]), label="how")
    at = data.draw(st.integers(0, max(0, len(content) - 1)), label="offset")
    if how == "flip" and content:
        content[at] ^= data.draw(st.integers(1, 255), label="change")
    elif how == "cut" and content:
        del content[at:]
    else:
        content[at:at] = data.draw(st.binary(min_size=1, max_size=40), label="bytes")
    path.write_bytes(content)
    if how == "remove":
        path.unlink()
    with pytest.raises(LogVerificationError):
        verify_log(log, KEY.public)
    shutil.rmtree(log.parent)
