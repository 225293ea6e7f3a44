"""A collector's core with its finalizer on a database, driven round by round."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path

import sqlalchemy as sa
from support.checkpoints import checkpoint_of, resume_from, state_reader
from support.metered import revision_of
from support.story import Envelopes, accept, at, core_in, no_turns

from railscope_collector.account.account_sums import GpuTimeAccount
from railscope_collector.account.live_account import LiveAccount
from railscope_collector.config import IngestLimits, MeteringSettings
from railscope_collector.evidence.fact_store import FactStore
from railscope_collector.evidence.file_versions import AdministratorInputs, FileStore
from railscope_collector.evidence.waiting_evidence import WaitingEvidence
from railscope_collector.files import (
    calendar_file,
    claims_file,
    inventory_file,
    retirements_file,
    tenants_file,
)
from railscope_collector.files.inventory_file import DeviceInventory
from railscope_collector.finalization.day_finalizer import DayFinalizer, MeteringStores
from railscope_collector.framelog.log_follower import LogPosition
from railscope_collector.ledger.database import Database
from railscope_collector.ledger.ledger_store import Ledger
from railscope_collector.metering.metered_day import MeteredDay
from railscope_collector.state.collector_state import CollectorState
from railscope_collector.state.state_reader import StateReader
from railscope_collector.state_store import StateStore
from railscope_collector.tables import metadata

SETTINGS = MeteringSettings(quiet_seconds=60, finalize_delay_seconds=3600)


class FinalizingCollector:
    """One collector. `now` is a second of the story."""

    limits = IngestLimits()
    reader: StateReader
    end = 0
    """Number of envelopes in the frame log."""

    def __init__(self, directory: Path, url: str, settings: MeteringSettings = SETTINGS) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory, self.url, self.settings = directory, url, settings
        self.texts: dict[str, str] = {}
        self.now = 0.0
        # Open as long as its core, and not on a disk that a test fills or unmounts.
        self.schemas = Path(tempfile.mkdtemp())
        weakref.finalize(self, shutil.rmtree, self.schemas, ignore_errors=True)
        self.store = StateStore(directory)
        self._begin(core_in(self.schemas))

    def _begin(self, core: CollectorState) -> None:
        self.core = core
        self._last_inputs: tuple[dict[str, str], AdministratorInputs] = ({}, AdministratorInputs())
        self.live = LiveAccount(core.evidence, self.files)
        self.store.close()
        self.store.open()
        self.waiting = WaitingEvidence(self.store, self.limits)
        self.waiting.open()
        self.finalizer = DayFinalizer(
            core.evidence,
            self.waiting,
            self.live,
            self._open,
            lambda: dict(self.texts),
            self.settings,
            wall_ns=lambda: at(self.now),
        )

    def begin_positions(self, *, is_incomplete: bool = False) -> None:
        """Name positions in acknowledgements, as a collector of a shared database."""
        self.reader = state_reader(self.core, self.store)
        self.reader.waiting = self.waiting
        self.reader.begin_positions(is_incomplete=is_incomplete)
        self.reader.set_position(LogPosition(1, self.end))

    def receive(self, envelopes: Envelopes) -> None:
        """Apply envelopes, each as a record of the frame log."""
        for envelope in envelopes:
            accept(self.core, [envelope])
            self.end += 1
            self.reader.set_position(LogPosition(1, self.end))

    def _open(self) -> MeteringStores:
        database = Database(self.url, metadata)
        return MeteringStores(Ledger(database), FactStore(database), FileStore(database))

    def files(self) -> AdministratorInputs:
        """Return the administrators' files of this collector."""
        if self._last_inputs[0] != self.texts:
            found = AdministratorInputs(
                claims_file.parse_claims(self.texts.get("claims", "tenant,holds,from,to\n")),
                tenants_file.parse_tenants(
                    self.texts.get("tenants", "tenant,source,owner,from,to\n")
                ),
                calendar_file.parse_calendar(self.texts.get("calendar", "")),
                retirements_file.parse_retirements(
                    self.texts.get("retired", "gpu,from,to,reason\n")
                ),
                inventory_file.parse_inventory(self.texts["inventory"])
                if "inventory" in self.texts
                else DeviceInventory(),
            )
            self._last_inputs = dict(self.texts), found
        return self._last_inputs[1]

    @property
    def stores(self) -> MeteringStores:
        """Return the open database."""
        assert self.finalizer._stores  # noqa: SLF001 - reads its internal state
        return self.finalizer._stores  # noqa: SLF001

    async def round(self, now: float, *, everything: bool = False) -> None:
        """Run one round of the finalizer at a second."""
        self.now = now
        await self.finalizer.round(everything=everything)

    async def account(self, now: float) -> GpuTimeAccount:
        """Return the account at a second."""
        self.now = now
        await self.live.refresh(at(now), no_turns)
        assert self.live.account
        return self.live.account

    def restart(self, checkpoint: list[bytes] | None = None) -> None:
        """Stop, and start again from a checkpoint, or from nothing."""
        self.finalizer.close()
        core = core_in(self.schemas)
        if checkpoint is not None:
            resume_from(core, checkpoint)
        self._begin(core)

    def close(self) -> None:
        """Release the lease and the files."""
        self.finalizer.close()
        self.store.close()

    def checkpoint(self) -> list[bytes]:
        """Return the core's checkpoint."""
        return checkpoint_of(self.core)

    def reject(self, table: sa.Table, column: str, value: str) -> None:
        """Let the database reject rows with a value in a column."""
        statement = f"ALTER TABLE {table.name} ADD CHECK ({column} <> '{value}')"
        if self.url.startswith("sqlite"):
            statement = (
                f"CREATE TRIGGER reject_{table.name} BEFORE INSERT ON {table.name} WHEN CAST(NEW.{column} AS TEXT) = '{value}'"
                " BEGIN SELECT RAISE(ABORT, 'invalid value'); END"
            )
        with self.stores.ledger.database.transaction(writes=True) as connection:
            connection.execute(sa.text(statement))

    def permit(self, table: sa.Table, column: str) -> None:
        """End that."""
        statement = f"ALTER TABLE {table.name} DROP CONSTRAINT {table.name}_{column}_check"
        if self.url.startswith("sqlite"):
            statement = f"DROP TRIGGER reject_{table.name}"
        with self.stores.ledger.database.transaction(writes=True) as connection:
            connection.execute(sa.text(statement))


def content(ledger: Ledger, days: range) -> dict[tuple[str, int], MeteredDay]:
    """Return the content of the newest revisions of days."""
    found = {}
    for (gpu, day), number in ledger.newest(days.start, days.stop).items():
        found[gpu, day] = revision_of(ledger, gpu, day, number).day
    return found
