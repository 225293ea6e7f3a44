"""Witness of the collector's audit log: verifies, stores and cosigns its newest checkpoint.

The agent fetches the newest checkpoint periodically over HTTP, and accepts it only with a
consistency proof against the one it has. That detects a log that was rolled back, rewritten or
forked, also by an attacker with the collector and its key: the agent reports it, stores both
checkpoints as evidence, and keeps its own one. It cosigns accepted checkpoints, so that others can check
that a witness received them.
"""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import structlog

from railscope.audit import cosignature, log_checkpoint, merkle, signed_note
from railscope.catalog.agent import CONFLICT_EVENT
from railscope.catalog.entities import NODE
from railscope.frame import Entity, Event
from railscope.timestamps import SECOND_NS
from railscope_agent import config, host
from railscope_agent.sampling.shipping_stats import (
    CONFLICT,
    CONSISTENT,
    NO_CHECKPOINT,
    AuditLogState,
)
from railscope_agent.sampling.worker_thread import WorkerThread
from railscope_agent.witness import witness_store
from railscope_agent.witness.audit_log_client import (
    AuditLogClient,
    AuditLogUnavailableError,
    ReportedConflictError,
)

NEW_LOG_SECONDS = 5.0
ROLLBACK, FORK, OTHER_KEY = "rollback", "fork", "other_key"
_LOG_KEYS = dict.fromkeys(CONFLICT_EVENT.facts, "")

log = structlog.get_logger(__name__)


@dataclass
class AuditWitness:
    """Witness of one log. Raises CollectorLinkError if the collector link cannot work."""

    settings: config.WitnessSettings
    node: str
    client: AuditLogClient
    store: witness_store.WitnessStore
    clock: host.Clock
    events: list[Event]
    state: AuditLogState
    collector: str = ""
    """URL of the collector, for messages."""
    _note: str = ""
    _checkpoint: log_checkpoint.Checkpoint | None = None
    _key: signed_note.PublicKey | None = None
    _witness: signed_note.SecretKey | None = None
    _configured: list[signed_note.PublicKey] = field(default_factory=list)
    _reported: set[tuple[str, str]] = field(default_factory=set)
    """Kinds of conflicts that were reported, with the checkpoint that the agent held."""
    _problem: str = ""
    _disagreed: str = ""
    _is_beginning: bool = False

    def __post_init__(self) -> None:
        """Start the thread that accesses files."""
        self._disk = WorkerThread("witness")

    async def run(self) -> None:
        """Check the log every period until cancelled. Failures are logged and retried."""
        opened = False
        try:
            while True:
                try:
                    # Retried in each period: the state directory may become writable later.
                    if not opened:
                        await self._disk.submit(self._open)
                        opened = True
                    await self.check()
                    self._problem = ""
                # A collector that is down or a full disk must not end the other tasks of the agent.
                except (AuditLogUnavailableError, signed_note.NoteError, OSError) as error:
                    if str(error) != self._problem:
                        self._problem = str(error)
                        log.warning("audit_checkpoint_check_failed", problem=self._problem)
                spread = random.uniform(0.8, 1.2)  # noqa: S311 - spreads agents over time
                pause_ns = round(self._pause_seconds * spread * SECOND_NS)
                await self.clock.sleep_until(self.clock.now().boot_ns + pause_ns)
        finally:
            self._disk.stop()
            await self.client.close()

    @property
    def _pause_seconds(self) -> float:
        """Pause before the next check. A new log is checked again soon, for its first checkpoint."""
        period_seconds = self.settings.period_seconds
        return min(period_seconds, NEW_LOG_SECONDS) if self._is_beginning else period_seconds

    def _open(self) -> None:
        """Read the stored checkpoint and keys. Raises NoteError, OSError."""
        self.store.open()
        self._witness = self.store.witness(self.node)
        self._configured = _configured_keys(self.settings.log_key)
        stored = self.store.log_key()
        if len(self._configured) == 1:
            (self._key,) = self._configured
        # A stored key that is not configured was replaced by the administrator: it must not verify anything.
        elif not self._configured or str(stored) in map(str, self._configured):
            self._key = stored
        if self._key:
            self._read_checkpoint(self._key)

    def _read_checkpoint(self, key: signed_note.PublicKey) -> None:
        """Read the stored checkpoint, if there is one. Raises NoteError, OSError."""
        note = self.store.read_checkpoint()
        if not note:
            return
        try:
            self._checkpoint = log_checkpoint.read_checkpoint(note, key)
        except signed_note.NoteError as error:
            message = f"invalid checkpoint file {self.store.directory / 'held'}: {error}"
            raise signed_note.NoteError(message) from error
        self._note = note
        self._set_state(CONSISTENT)

    async def check(self) -> None:
        """Check the log once. Raises AuditLogUnavailableError, NoteError, OSError."""
        self._is_beginning = False
        offer = await self.client.newest()
        self._is_beginning = not offer.note
        if not offer.note:
            # A log that had signed a checkpoint and has none now was emptied.
            if self._checkpoint:
                await self._report_conflict(ROLLBACK, "")
            if self._checkpoint or offer.must_submit:
                await self._send_checkpoint()
            return
        key = self._key or await self._first_key(offer.note)
        try:
            offered = log_checkpoint.read_checkpoint(offer.note, key)
        except signed_note.NoteError as error:
            log.error("audit_checkpoint_rejected", problem=str(error))
            await self._report_conflict(OTHER_KEY, offer.note)
            return
        if problem := await self._find_contradiction(offered):
            await self._report_conflict(problem, offer.note)
            # The collector may not know: its disk may have been restored. With the checkpoint, it stops
            # signing a fork.
            await self._send_checkpoint()
        elif self._checkpoint is None or offered.tree.size > self._checkpoint.tree.size:
            await self._store_checkpoint(offered, offer.note)
            # Sent only after it is durable here: a witness that forgot a cosignature could sign a fork after
            # a restart.
            await self._send_checkpoint()
        else:
            self._set_state(CONSISTENT)
            if offer.must_submit:
                await self._send_checkpoint()

    async def _first_key(self, note: str) -> signed_note.PublicKey:
        """Return the configured key that has signed a note, or else fetch and trust the log's key on first use.

        If no configured key has signed it, the first of them is returned. Raises AuditLogUnavailableError, NoteError,
        OSError.
        """
        for configured in self._configured:
            with suppress(signed_note.NoteError):
                log_checkpoint.read_checkpoint(note, configured)
                await self._disk.submit(partial(self._trust, configured))
                return configured
        # With configured keys nothing is trusted on first use; the note is then rejected as signed by another
        # key.
        if self._configured:
            return self._configured[0]
        key = signed_note.PublicKey.parse(await self.client.key())
        # A key that has not signed the note must not be stored as the log's key.
        log_checkpoint.read_checkpoint(note, key)
        await self._disk.submit(lambda: self._trust(key))
        log.warning(
            "audit_log_key_trusted",
            collector=self.collector,
            key=str(key),
            advice="first key received; compare it with audit.pub of the collector",
        )
        return key

    def _trust(self, key: signed_note.PublicKey) -> None:
        """Store the log's key, and what was stored of this log before. Raises NoteError, OSError."""
        # Before the key is stored: after a crash in between, the next start has no key and does this again.
        self.store.adopt(key)
        self.store.write_log_key(key)
        self._read_checkpoint(key)
        self._key = key

    async def _find_contradiction(self, offered: log_checkpoint.Checkpoint) -> str:
        """Return the contradiction of an offered checkpoint with the stored one; empty if there is none."""
        stored = self._checkpoint
        if stored is None:
            return ""
        old, new = stored.tree, offered.tree
        if new.size < old.size:
            return ROLLBACK
        if new.size == old.size:
            return FORK if new.root != old.root else ""
        proof = await self.client.consistency(old.size, new.size)
        return "" if merkle.consistent(old, new, proof) else FORK

    async def _store_checkpoint(self, offered: log_checkpoint.Checkpoint, note: str) -> None:
        assert self._witness is not None  # noqa: S101 - `_open` has made it
        wall_seconds = self.clock.now().wall_ns // SECOND_NS
        note = cosignature.add_cosignature(note, self._witness, wall_seconds)
        # On disk before it is in memory: a failed write leaves the former checkpoint in use, and is tried
        # again.
        await self._disk.submit(lambda: self.store.write_checkpoint(note))
        self._note, self._checkpoint = note, offered
        self._set_state(CONSISTENT)

    async def _send_checkpoint(self) -> None:
        """Send the stored checkpoint to the collector, which must not sign a contradicting one."""
        assert self._witness is not None  # noqa: S101 - `_open` has made it
        try:
            await self.client.submit(self._note, str(cosignature.witness_key(self._witness)))
        except ReportedConflictError as error:
            if str(error) != self._disagreed:
                log.error("checkpoint_conflict_received", problem=str(error))
            self._disagreed = str(error)

    async def _report_conflict(self, kind: str, offered: str) -> None:
        """Report once for the held checkpoint a state that no honest log can have, and store the evidence."""
        self._set_state(CONFLICT)
        # A forked log offers a new checkpoint with each record: that is the same conflict.
        if (kind, self._note) in self._reported or len(
            self._reported
        ) >= witness_store.MAX_EVIDENCE:
            return
        stored = self._note
        directory = await self._disk.submit(
            lambda: self.store.write_evidence(kind, stored, offered)
        )
        # After the evidence is written: if the write fails, the next check reports the conflict again.
        self._reported.add((kind, stored))
        facts = {
            "kind": kind,
            **_checkpoint_facts("held", stored),
            **_checkpoint_facts("offered", offered),
        }
        if self.collector:
            facts["collector"] = self.collector
        now = self.clock.now()
        self.events.append(Event(CONFLICT_EVENT, Entity(NODE), now.wall_ns, now.boot_ns, facts))
        log.error(
            "checkpoint_conflict_detected",
            **_LOG_KEYS | facts,
            evidence=str(directory or ""),
            advice="the collector's audit log contradicts the stored checkpoint: "
            "run `railscope audit verify --anchor` with it",
        )

    def _set_state(self, state: int) -> None:
        self.state.state = state if self._checkpoint or state == CONFLICT else NO_CHECKPOINT
        self.state.records = self._checkpoint.tree.size if self._checkpoint else 0


def _configured_keys(setting: str) -> list[signed_note.PublicKey]:
    """Return the keys of the settings: keys or paths of files, of one log each. Raises NoteError, OSError."""
    texts = (
        Path(each).read_text() if Path(each).is_absolute() else each for each in setting.split()
    )
    return [signed_note.PublicKey.parse(text) for text in texts]


def _checkpoint_facts(name: str, note: str) -> dict[str, str]:
    """Return size and root of a checkpoint, as in its text."""
    lines = note.split("\n")
    if len(lines) < len(("origin", "size", "root")):
        return {}
    return {f"{name}_size": lines[1][:20], f"{name}_root": lines[2][:64]}
