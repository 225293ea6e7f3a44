"""Comparison with the checkpoints that agents hold, before the collector signs.

A log that was replaced by an older copy is consistent in itself, and its key is present: only holders of a
newer checkpoint can detect the rollback. After each start nothing is signed until some agents have
submitted their checkpoints, or a timeout has passed, which is recorded. If one of them holds a checkpoint
that is inconsistent with this log, signing stops and that checkpoint is stored as evidence. Records wait
in `state.sqlite` meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import structlog

from railscope.audit import log_checkpoint, merkle, record
from railscope.durable_files import sync_directory, write_durably
from railscope.service import run_in_thread
from railscope_collector.audit import (
    AuditLogError,
    LogWriteError,
    SigningPostponedError,
    audit_trail,
)
from railscope_collector.audit.tables import LogDamagedError
from railscope_collector.ledger.database import call_database

CONFLICT_DIRECTORY = "disputed"
"""In the state directory: checkpoints held by agents that contradict this log."""

log = structlog.get_logger(__name__)

_POLL_SECONDS = 1.0
_ADVICE = "see docs/audit.md"


class CheckpointConflictError(AuditLogError, RuntimeError):
    """An agent holds a checkpoint that is inconsistent with this log; the message names it."""


@dataclass(slots=True)
class SigningGuard:
    """Decides if the log may be signed: `AuditLog.before_signing` calls it. `open` it before the log, and `run` it."""

    trail: audit_trail.AuditTrail
    directory: Path
    """Directory of checkpoints that contradict the log."""
    required_agents: int
    """Number of agents to wait for; fewer if fewer exist."""
    wait_seconds: float
    count_agents: Callable[[], int]
    """Number of agents of the fleet."""
    stop_reason: str = ""
    """Reason why signing has stopped permanently; empty if it has not."""
    submitters: set[str] = field(default_factory=set)
    """Nodes that have submitted the checkpoint that they hold since the start, or that they hold none."""
    _is_open: bool = False
    _change: asyncio.Event = field(default_factory=asyncio.Event)

    def open(self) -> None:
        """Apply earlier conflicts. Blocking; raises OSError."""
        notes = self._conflict_paths()
        if notes:
            self.stop_reason = (
                f"an agent has a signed checkpoint that is missing in this log: {notes[0]};"
                " fix: find out which copy was restored or what was lost; to continue with this"
                " log, move the directory away"
            )
            log.error("audit_signing_stopped", problem=self.stop_reason, advice=_ADVICE)

    def _conflict_paths(self) -> list[Path]:
        return sorted(self.directory.iterdir()) if self.directory.exists() else []

    def conflicting_notes(self) -> list[str]:
        """Return the checkpoints of agents that contradict this log. Blocking; raises OSError."""
        return [path.read_bytes().decode(errors="replace") for path in self._conflict_paths()]

    @property
    def required_checkpoints(self) -> int:
        """Number of agents that must have submitted their checkpoints."""
        # A fleet may be smaller than the setting: it must not wait for agents that do not exist.
        return min(self.required_agents, self.count_agents())

    def check_allowed(self) -> None:
        """Raise LogWriteError if nothing may be signed now."""
        if self.stop_reason:
            raise LogWriteError(self.stop_reason)
        if not self._is_open:
            message = (
                f"{len(self.submitters)} of {self.required_checkpoints} agents have presented their checkpoints:"
                " signing starts when all have"
            )
            raise SigningPostponedError(message)

    async def run(self) -> None:
        """Wait for the agents, then permit signing; a waiting collector of a group begins when it is active."""
        while not self.trail.log.is_active():  # noqa: ASYNC110 - a poll
            await asyncio.sleep(_POLL_SECONDS)
        try:
            async with asyncio.timeout(self.wait_seconds):
                while len(self.submitters) < self.required_checkpoints:
                    self._change.clear()
                    await self._change.wait()
        except TimeoutError:
            await self._record_missing_checkpoints()
        # After the record of a timeout, so that the next signature covers it.
        self._is_open = True
        self.trail.log.sign_soon()

    async def _record_missing_checkpoints(self) -> None:
        required, received = self.required_checkpoints, len(self.submitters)
        log.warning(
            "audit_witnesses_missed", required_checkpoints=required, received_checkpoints=received
        )
        data: record.RecordData = {
            "signed_without": "witnesses",
            "asked": required,
            "shown": received,
            "waited_seconds": round(self.wait_seconds),
        }
        await self.trail.append(self.trail.draft("log.policy", data))

    async def submit_checkpoint(self, node: str, note: str) -> None:
        """Process the checkpoint that a node holds; an empty note means none.

        Raises NoteError for a note that this log's key has not signed, CheckpointConflictError for a checkpoint that
        is inconsistent with this log, UnusableLedgerError if the log cannot be read now, OSError.
        """
        if note:
            checkpoint = log_checkpoint.read_checkpoint(note, self.trail.log.signer.public)
            problem = await call_database(self._find_conflict, checkpoint)
            if problem:
                await self._report_conflict(node, note, problem)
        self.submitters.add(node)
        self._change.set()

    def _find_conflict(self, checkpoint: log_checkpoint.Checkpoint) -> str:
        """Return the inconsistency between this log and a checkpoint of it. Blocking; raises UnusableLedgerError."""
        size = checkpoint.tree.size
        if size > self.trail.log.signed.size:
            # Before the first record is moved, or after another collector has written.
            try:
                self.trail.log.follow()
            except LogWriteError as error:
                return f"cannot read this log: {error}"
        if size > self.trail.log.signed.size:
            return f"it covers {size} records, and this log has {self.trail.log.signed.size}"
        try:
            with self.trail.log.read() as tree:
                root = merkle.root_of(tree.node, size)
        except LogDamagedError as error:
            return f"cannot read this log: {error}"
        return "" if root == checkpoint.tree.root else f"the first {size} records differ"

    async def _report_conflict(self, node: str, note: str, problem: str) -> None:
        text = f"{node} has a signed checkpoint that is missing in this log: {problem}"
        if not self.stop_reason:
            log.error(
                "checkpoint_conflict_reported",
                node=node,
                problem=problem,
                checkpoint=note,
                advice="signing is stopped; check if an older copy was restored",
            )
        # Before the note is stored: nothing may be signed while that waits for the disk.
        self.stop_reason = self.stop_reason or text
        await run_in_thread(self._store_note, node, note)
        raise CheckpointConflictError(text)

    def _store_note(self, node: str, note: str) -> None:
        if not self.directory.exists():
            self.directory.mkdir(mode=0o700)
            # The conflict must outlast a power failure: a restart would sign again without it.
            sync_directory(self.directory.parent)
        write_durably(self.directory / quote(node, safe=""), note.encode())
