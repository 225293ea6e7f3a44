"""Components of the audit log: its writers, the checks before signing, the witnesses."""

from __future__ import annotations

import hashlib
import secrets
import time
from asyncio import TaskGroup
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from collector.audit import known_head
from collector.audit.drain import Drain
from collector.audit.guard import Guard
from collector.audit.keys import keep, load_or_generate
from collector.audit.ledger_watch import LedgerWatch
from collector.audit.log import NOT_AS_LEFT, AuditLog
from collector.audit.numbers import AuditNumbers
from collector.audit.observed import Observed
from collector.audit.personal import DIRECTORY as PERSONAL
from collector.audit.personal import Salts
from collector.audit.rereading import Rereading
from collector.audit.tiles import TileError
from collector.audit.trail import Trail
from collector.config import CollectorSettings
from collector.http.custody_api import CustodyApi
from collector.ledger.database import Database
from collector.ledger.heads import Head
from collector.state.restart import Restart
from railscope import __version__
from railscope.audit.record import RecordError, Source

OBSERVED = "observed"


@dataclass(slots=True)
class AuditOffice:
    """The log of a collector with its writers and checks; `open` it, then `start` it, then `close` it."""

    key_file: Path
    trail: Trail
    observed: Observed
    guard: Guard
    custody: CustodyApi
    drain: Drain
    rereading: Rereading
    watch: LedgerWatch

    @classmethod
    def of(
        cls,
        settings: CollectorSettings,
        restart: Restart,
        nodes: Callable[[], set[str]],
        database: Callable[[], Database],
    ) -> AuditOffice:
        """Return the components of a state directory; `nodes` have credentials, `database` is the ledger's.

        Raises SettingsError if the key cannot be used.
        """
        directory, core = restart.directory, restart.core
        key_file = Path(settings.audit.key_file or directory / "audit.key")
        key = load_or_generate(key_file, settings.audit.origin)
        source = Source("collector", settings.audit.origin, secrets.token_hex(8), 0)
        audit = AuditLog(directory / "audit", key, source)
        digest = hashlib.sha256(msgspec.json.encode(settings, order="sorted")).hexdigest()
        trail = Trail(audit, __version__, settings=digest)
        witnesses = audit.witnesses
        observed = Observed(
            audit, Salts(directory / PERSONAL), directory / OBSERVED, restart.events
        )
        core.listeners.append(observed.listen)
        core.on_envelope.append(observed.hear)
        restart.copies[observed.file] = observed.snapshot
        guard = Guard(
            audit, settings.audit.ask_agents, settings.audit.ask_seconds,
            lambda: len(nodes() | witnesses.nodes.keys() | core.fleet.nodes.keys()),
            trail.wall_ns,
        )  # fmt: skip
        custody = CustodyApi(audit, guard, witnesses)
        watch = LedgerWatch(database, audit, trail.wall_ns, directory / known_head.FILE)
        drain = Drain(watch.current, audit, refuse=guard.refuse, recorded=watch.check)
        rereading = Rereading(
            audit.directory, key.public, settings.audit.verify_seconds, time.monotonic_ns, database
        )
        return cls(key_file, trail, observed, guard, custody, drain, rereading, watch)

    def open(self) -> None:
        """Open the log and load its state. Blocking; raises SettingsError, OSError."""
        keep(self.key_file, self.trail.log.signer)
        self.trail.open()
        self.guard.open()
        try:
            self.observed.open()
        except (TileError, RecordError) as error:
            raise self.trail.unusable(NOT_AS_LEFT.format(error)) from error
        recorded = Head(*self.observed.recorded.head)
        self.watch.start(recorded if recorded.database else None)

    def start(self, outer: TaskGroup, group: TaskGroup) -> None:
        """Run until cancelled; the writer of the log ends with the outer group, after all others."""
        outer.create_task(self.trail.run())
        for work in (
            self.observed,
            self.guard,
            self.custody,
            self.drain,
            self.rereading,
            self.watch,
        ):
            group.create_task(work.run())

    def numbers(self) -> AuditNumbers:
        """Return the source of the audit log's metrics."""
        return AuditNumbers(
            self.observed,
            self.drain,
            self.guard,
            self.custody.witnesses,
            self.rereading,
            self.watch,
        )

    def close(self) -> None:
        """Close the log."""
        self.trail.log.close()
