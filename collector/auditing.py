"""The audit log and all that feeds and guards it, put together for a collector."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import structlog

from collector.audit.custody_api import CustodyApi
from collector.audit.drain import Drain
from collector.audit.guard import Guard
from collector.audit.keys import keep, load_or_generate
from collector.audit.log import AuditLog
from collector.audit.numbers import AuditNumbers
from collector.audit.observed import Observed
from collector.audit.personal import FOLDER as PERSONAL
from collector.audit.personal import Salts
from collector.audit.trail import Trail
from collector.audit.witnesses import WitnessError, Witnesses, read_witnesses
from collector.config import CollectorSettings
from collector.core import Core, SeenEvent
from collector.ledger.database import Database
from railscope import __version__
from railscope.audit.record import Source

OBSERVED = "observed"

log = structlog.get_logger(__name__)


class Auditing:
    """Parts by name; `open` them before the frame log is replayed, `run` them beside the trail."""

    def __init__(
        self, settings: CollectorSettings, folder: Path, ledger_url: Callable[[], str],
        events: Callable[[], Iterator[SeenEvent]], known_nodes: Callable[[], set[str]],
    ) -> None:  # fmt: skip
        """Build all parts; nothing is written yet. Raises SettingsError for a key that is none."""
        audit = settings.audit
        self._key_file = Path(audit.key_file or folder / "audit.key")
        key = load_or_generate(self._key_file, audit.origin)
        source = Source("collector", audit.origin, secrets.token_hex(8), 0)
        digest = hashlib.sha256(msgspec.json.encode(settings, order="sorted")).hexdigest()
        self.trail = Trail(AuditLog(folder / "audit", key, source), __version__, settings=digest)
        self.log = self.trail.log
        self.observed = Observed(self.log, Salts(folder / PERSONAL), folder / OBSERVED, events)
        self._known_nodes = known_nodes
        self.guard = Guard(
            self.log, audit.ask_agents, audit.ask_seconds, self._holders, self.trail.wall_ns
        )
        self.custody = CustodyApi(self.log, self.guard, Witnesses(self.log.folder))
        self.drain = Drain(self._outbox, self.log)
        self._ledger_url = ledger_url
        self._database: Database | None = None
        self.numbers = AuditNumbers(self.observed, self.drain, self.guard, self.custody.witnesses)

    def listen_to(self, core: Core) -> None:
        """Hear of what agents tell."""
        core.listeners.append(self.observed.listen)
        core.on_envelope.append(self.observed.hear)

    def open(self) -> None:
        """Open the log, and all that follows from it. Blocking; raises SettingsError, OSError."""
        keep(self._key_file, self.log.signer)
        self.trail.open()
        self.guard.open()
        try:
            self.custody.witnesses.nodes = read_witnesses(self.log.folder)
        except WitnessError as error:
            log.error("cosignatures_damaged", problem=str(error), advice="agents say them again")
        self.observed.open()

    def start(self, group: asyncio.TaskGroup) -> None:
        """Run all but the trail, which must end last."""
        for part in (self.observed, self.guard, self.custody, self.drain):
            group.create_task(part.run())

    def close(self) -> None:
        """Close the log and the database."""
        self.log.close()
        if self._database:
            self._database.close()

    def _holders(self) -> int:
        """How many agents may hold checkpoints: all that were ever heard of here."""
        return len(self._known_nodes() | self.custody.witnesses.nodes.keys())

    def _outbox(self) -> Database:
        """The database whose changes are to be recorded. Blocking; raises LedgerError."""
        if self._database is None:
            self._database = Database(self._ledger_url())
        return self._database
