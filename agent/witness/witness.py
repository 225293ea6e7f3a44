"""Witness of the collector's audit log: verifies, stores and cosigns its newest checkpoint.

The agent fetches the newest checkpoint periodically, and accepts it only with a consistency proof against
the one it has. That detects a log that was rolled back, rewritten or forked, also by an attacker with the
collector and its key: the agent reports it, stores both checkpoints as evidence, and keeps its own one. It
cosigns accepted checkpoints, so that others can check that a witness has seen them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from agent.config import CustodySettings
from agent.host import Clock
from agent.sampling.device_thread import DeviceThread
from agent.sampling.stats import DISPUTED, HOLDS, HOLDS_NONE, CustodyState
from agent.witness.witness_client import AwayError, CustodyClient, DisagreesError
from agent.witness.witness_store import MAX_EVIDENCE, CustodyStore
from railscope.audit.checkpoint import Checkpoint, read_checkpoint
from railscope.audit.cosignature import cosigned, witness_key
from railscope.audit.merkle import consistent
from railscope.audit.note import NoteError, PublicKey, SecretKey
from railscope.catalog.agent import DISPUTE_EVENT
from railscope.catalog.entities import NODE
from railscope.entity import Entity
from railscope.frame import Event

NS = 1_000_000_000
BEGINNING_SECONDS = 5.0
ROLLBACK, FORK, OTHER_KEY = "rollback", "fork", "other_key"

log = structlog.get_logger(__name__)


@dataclass
class Custody:
    """Witness of one log. Raises LinkError if the collector link cannot work."""

    settings: CustodySettings
    node: str
    client: CustodyClient
    store: CustodyStore
    clock: Clock
    tell: list[Event]
    state: CustodyState
    _held: str = ""
    _checkpoint: Checkpoint | None = None
    _key: PublicKey | None = None
    _witness: SecretKey | None = None
    _told: set[tuple[str, str, str]] = field(default_factory=set)
    _problem: str = ""
    _disagreed: str = ""
    _beginning: bool = False

    def __post_init__(self) -> None:
        """Start the thread that accesses files."""
        self._disk = DeviceThread("custody")

    async def run(self) -> None:
        """Check the log every period until cancelled. Failures are logged and retried."""
        opened = False
        try:
            while True:
                try:
                    if not opened:
                        await self._disk.submit(self._open)
                        opened = True
                    await self.look()
                    self._problem = ""
                except (AwayError, NoteError, OSError) as error:
                    self._cannot(str(error))
                spread = random.uniform(0.8, 1.2)  # noqa: S311 - spreads agents over time
                pause_ns = round(self._pause_seconds * spread * NS)
                await self.clock.sleep_until(self.clock.now().boot_ns + pause_ns)
        finally:
            self._disk.stop()
            await self.client.close()

    @property
    def _pause_seconds(self) -> float:
        """Pause before the next check. A new log is checked again soon, for its first checkpoint."""
        period_seconds = self.settings.period_seconds
        return min(period_seconds, BEGINNING_SECONDS) if self._beginning else period_seconds

    def _open(self) -> None:
        """Read the stored checkpoint and keys. Raises NoteError, OSError."""
        self.store.open()
        self._witness = self.store.witness(self.node)
        self._key = _configured(self.settings.log_key) or self.store.log_key()
        note = self.store.held()
        if note and self._key:
            try:
                self._checkpoint = read_checkpoint(note, self._key)
            except NoteError as error:
                message = f"{self.store.directory / 'held'} cannot be used: {error}"
                raise NoteError(message) from error
            self._held = note
            self._show(HOLDS)

    async def look(self) -> None:
        """Check the log once. Raises AwayError, NoteError, OSError."""
        self._beginning = False
        offer = await self.client.newest()
        self._beginning = not offer.note
        if not offer.note:
            if self._checkpoint:
                await self._dispute(ROLLBACK, "")
            if self._checkpoint or offer.show:
                await self._present()
            return
        key = self._key or await self._first_key(offer.note)
        try:
            offered = read_checkpoint(offer.note, key)
        except NoteError as error:
            log.error("audit_checkpoint_refused", problem=str(error))
            await self._dispute(OTHER_KEY, offer.note)
            return
        if problem := await self._contradiction(offered):
            await self._dispute(problem, offer.note)
            await self._present()
        elif self._checkpoint is None or offered.tree.size > self._checkpoint.tree.size:
            await self._hold(offered, offer.note)
            await self._present()
        else:
            self._show(HOLDS)
            if offer.show:
                await self._present()

    async def _first_key(self, note: str) -> PublicKey:
        """Fetch and trust the log's key on first use. Raises AwayError, NoteError, OSError."""
        key = PublicKey.parse(await self.client.key())
        read_checkpoint(note, key)
        await self._disk.submit(lambda: self.store.trust(key))
        self._key = key
        log.warning("audit_log_key_trusted", key=str(key),
                    advice="it is the first that was seen; compare it with the log's key.pub")  # fmt: skip
        return key

    async def _contradiction(self, offered: Checkpoint) -> str:
        """Return the contradiction of an offered checkpoint with the stored one; empty if there is none."""
        held = self._checkpoint
        if held is None:
            return ""
        old, new = held.tree, offered.tree
        if new.size < old.size:
            return ROLLBACK
        if new.size == old.size:
            return FORK if new.root != old.root else ""
        proof = await self.client.consistency(old.size, new.size)
        return "" if consistent(old, new, proof) else FORK

    async def _hold(self, offered: Checkpoint, note: str) -> None:
        note = self._cosigned(note)
        await self._disk.submit(lambda: self.store.hold(note))
        self._held, self._checkpoint = note, offered
        self._show(HOLDS)

    def _cosigned(self, note: str) -> str:
        assert self._witness is not None  # noqa: S101 - `_open` has made it
        return cosigned(note, self._witness, self.clock.now().wall_ns // NS)

    async def _present(self) -> None:
        """Send the stored checkpoint to the collector, which must not sign a contradicting one."""
        assert self._witness is not None  # noqa: S101 - `_open` has made it
        try:
            await self.client.show(self._held, str(witness_key(self._witness)))
        except DisagreesError as error:
            if str(error) != self._disagreed:
                log.error("audit_log_disputed_by_both", problem=str(error))
            self._disagreed = str(error)

    async def _dispute(self, kind: str, offered: str) -> None:
        """Report once a state that no honest log can have, and store the evidence."""
        self._show(DISPUTED)
        if (kind, self._held, offered) in self._told or len(self._told) >= MAX_EVIDENCE:
            return
        held = self._held
        directory = await self._disk.submit(lambda: self.store.keep_evidence(kind, held, offered))
        self._told.add((kind, held, offered))
        facts = {"kind": kind, **_facts("held", held), **_facts("offered", offered)}
        now = self.clock.now()
        self.tell.append(Event(DISPUTE_EVENT, Entity(NODE), now.wall_ns, now.boot_ns, facts))
        log.error("audit_log_disputed", **facts, evidence=str(directory or ""),
                  advice="the collector's audit log is not the one it was: check it with "
                  "`railscope audit verify --anchor` and the checkpoint held here")  # fmt: skip

    def _show(self, state: int) -> None:
        self.state.state = state if self._checkpoint or state == DISPUTED else HOLDS_NONE
        self.state.records = self._checkpoint.tree.size if self._checkpoint else 0

    def _cannot(self, problem: str) -> None:
        if problem != self._problem:
            log.warning("audit_checkpoint_not_checked", problem=problem)
            self._problem = problem


def _configured(setting: str) -> PublicKey | None:
    """Return the log's key from the settings: a key or the path of a file. Raises NoteError, OSError."""
    if not setting:
        return None
    path = Path(setting)
    return PublicKey.parse(path.read_text() if path.is_absolute() else setting)


def _facts(name: str, note: str) -> dict[str, str]:
    """Return size and root of a checkpoint, as in its text."""
    lines = note.split("\n")
    if len(lines) < len(("origin", "size", "root")):
        return {}
    return {f"{name}_size": lines[1][:20], f"{name}_root": lines[2][:64]}
