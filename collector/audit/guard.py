"""Before it signs, the collector asks those who hold checkpoints of this log what they hold.

A log that was put back to an older copy is whole in itself, and its key is there: only who kept a
checkpoint can tell. So after each start nothing is signed until some agents have shown theirs, or
some time has passed, which is recorded. Where one of them holds what this log has never been,
nothing is signed any more, and what it holds is kept as evidence. Records go on being durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import structlog

from collector.audit.log import AuditError, AuditLog
from collector.audit.publisher import WaitingError
from collector.audit.tiles import TileError, Tiles
from collector.ledger.draft import Draft
from railscope.audit.checkpoint import Checkpoint, read_checkpoint
from railscope.audit.merkle import CompactRange, Tree, leaf_hash, root_of, subtrees
from railscope.audit.record import Actor, Data
from railscope.durable_files import sync_directory, write_durably

DIRECTORY = "disputed"
"""Below the log's directory: checkpoints that agents hold and this log cannot be continued from."""

log = structlog.get_logger(__name__)


class DisputeError(RuntimeError):
    """An agent holds a checkpoint that is none of this log; the message says which."""


@dataclass(slots=True)
class Guard:
    """Says whether the log may be signed. `open` it after the log, `run` it beside it."""

    audit: AuditLog
    ask: int
    """How many agents; fewer where fewer are known."""
    wait_seconds: float
    known: Callable[[], int]
    """How many agents there are."""
    wall_ns: Callable[[], int]
    refused: str = ""
    """Why nothing is signed any more; empty where it is."""
    shown: dict[str, int] = field(default_factory=dict)
    """Size of the checkpoint that each node has shown since the start; 0 where it holds none."""
    _open: bool = False
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def open(self) -> None:
        """Put itself before signing. What was disputed before still is. Blocking; raises OSError."""
        self.audit.publisher.before_signing = self.allow
        disputed = sorted(self._directory.iterdir()) if self._directory.exists() else []
        if disputed:
            self.refused = (
                f"an agent holds a checkpoint that this log has never had: see {disputed[0]}. Find "
                "out what was put back or lost; to go on with this log, move the directory away"
            )
            log.error("audit_log_disputed", problem=self.refused)

    @property
    def _directory(self) -> Path:
        return self.audit.directory / DIRECTORY

    @property
    def wanted(self) -> int:
        """How many agents must have shown what they hold."""
        return min(self.ask, self.known())

    def asks(self, node: str) -> bool:
        """Whether a node has not shown yet what it holds."""
        return node not in self.shown

    def allow(self, _: Tree) -> None:
        """Raise AuditError where nothing may be signed now."""
        if self.refused:
            raise AuditError(self.refused)
        if not self._open:
            message = (
                f"{len(self.shown)} of {self.wanted} agents have shown the checkpoints they hold; "
                "until then nothing is signed"
            )
            raise WaitingError(message)

    async def run(self) -> None:
        """Wait for the agents, then let the log be signed."""
        try:
            async with asyncio.timeout(self.wait_seconds):
                while len(self.shown) < self.wanted:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            await self._record_that_few_came()
        self._open = True
        self.audit.sign_soon()

    async def _record_that_few_came(self) -> None:
        asked, shown = self.wanted, len(self.shown)
        log.warning("audit_log_signed_without_witnesses", asked=asked, shown=shown)
        actor = Actor("collector", self.audit.source.id)
        data: Data = {
            "signed_without": "witnesses", "asked": asked, "shown": shown,
            "waited_seconds": round(self.wait_seconds),
        }  # fmt: skip
        draft = Draft("log.policy", actor, self.wall_ns(), "done", data=data)
        try:
            await self.audit.append(draft)
        except AuditError as error:
            log.error("audit_record_lost", type=draft.type, data=draft.data, problem=str(error))

    async def show(self, node: str, note: str) -> None:
        """Take what a node holds; nothing, where the note is empty.

        Raises NoteError for what this log's key has not signed, DisputeError for what this log has
        never been, OSError.
        """
        size = 0
        if note:
            checkpoint = read_checkpoint(note, self.audit.signer.public)
            problem = await asyncio.to_thread(self._problem, checkpoint)
            if problem:
                await self._dispute(node, note, problem)
            size = checkpoint.tree.size
        self.shown[node] = size
        self._changed.set()

    def _problem(self, held: Checkpoint) -> str:
        """What is wrong with this log by a checkpoint of it; runs off the loop."""
        if held.tree.size > self.audit.size:
            return f"it is over {held.tree.size} records, and this log has {self.audit.size}"
        try:
            root = self._root(held.tree.size)
        except TileError as error:
            return f"this log cannot be read: {error}"
        return "" if root == held.tree.root else f"the first {held.tree.size} records are others"

    def _root(self, size: int) -> bytes:
        """Root over the first records, those included that are durable only."""
        signed = self.audit.signed.size
        tiles = Tiles(self.audit.directory, signed)
        if size <= signed:
            return root_of(tiles.node, size)
        tree = CompactRange(signed, [tiles.node(level, index) for level, index in subtrees(signed)])
        for raw in self.audit.records(signed):
            if tree.size == size:
                break
            tree.append(leaf_hash(raw))
        return tree.root

    def refuse(self, problem: str) -> None:
        """Sign nothing any more: who is not an agent knows that this log is not what it was."""
        if not self.refused:
            log.error("audit_log_disputed", problem=problem,
                      advice="nothing is signed any more; see docs/audit.md")  # fmt: skip
        self.refused = self.refused or problem

    async def _dispute(self, node: str, note: str, problem: str) -> None:
        text = f"{node} holds a signed checkpoint that this log has never had: {problem}"
        if not self.refused:
            log.error("audit_log_disputed", node=node, problem=problem, held=note,
                      advice="nothing is signed any more; was an older copy put back?")  # fmt: skip
        self.refused = self.refused or text
        await asyncio.to_thread(self._keep, node, note)
        raise DisputeError(text)

    def _keep(self, node: str, note: str) -> None:
        if not self._directory.exists():
            self._directory.mkdir(mode=0o700)
            sync_directory(self.audit.directory)
        write_durably(self._directory / quote(node, safe=""), note.encode())
