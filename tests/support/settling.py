"""A collector's core with its settler on a database, driven round by round."""

from __future__ import annotations

from pathlib import Path

from support.checkpoints import checkpoint_of, resume_from
from support.story import at, core_in, no_turns

from collector.account.live import LiveAccount
from collector.account.tally import Account
from collector.config import MeteringSettings
from collector.evidence.assemble import Files
from collector.evidence.decisions import Decision, decide, waiting
from collector.evidence.review import Decisions
from collector.evidence.store import EvidenceStore
from collector.files import calendar_file, claims_file, inventory_file, retired_file, tenants_file
from collector.files.inventory_file import Inventory
from collector.ledger.database import Database
from collector.ledger.store import Ledger
from collector.ledger.tiling import DAY_NS
from collector.settlement.days import Door
from collector.settlement.settle import Settler
from collector.state.core import Core
from collector.tables import metadata
from railscope.audit.record import Actor

SETTINGS = MeteringSettings(quiet_seconds=60, settle_delay_seconds=3600)


class Site:
    """One collector. `now` is a second of the story."""

    def __init__(self, directory: Path, url: str, settings: MeteringSettings = SETTINGS) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory, self.url, self.settings = directory, url, settings
        self.texts: dict[str, str] = {}
        self.decisions = Decisions()
        self.now = 0.0
        self._begin(core_in(directory / "schemas"))

    def _begin(self, core: Core) -> None:
        self.core = core
        self._said: tuple[dict[str, str], Files] = ({}, Files())
        self.live = LiveAccount(core.evidence, self.files, ready=False)
        self.settler = Settler(
            core.evidence, self.live, self._open, lambda: dict(self.texts), self.settings,
            self.directory / "seen", wall_ns=lambda: at(self.now), decided=self._decided,
        )  # fmt: skip

    def _decided(self, decisions: Decisions) -> None:
        if decisions != self.decisions:
            self.decisions = decisions
            self._said = ({"": ""}, Files())

    def _open(self) -> Door:
        database = Database(self.url, metadata)
        return Door(Ledger(database), EvidenceStore(database))

    def files(self) -> Files:
        """Return the administrators' files of this collector."""
        if self._said[0] != self.texts:
            found = Files(
                claims_file.parse(self.texts.get("claims", "tenant,holds,from,to\n")),
                tenants_file.parse(self.texts.get("tenants", "tenant,source,owner,from,to\n")),
                calendar_file.parse(self.texts.get("calendar", "")),
                retired_file.parse(self.texts.get("retired", "gpu,from,to,why\n")),
                inventory_file.parse(self.texts["inventory"])
                if "inventory" in self.texts
                else Inventory(),
                self.decisions,
            )
            self._said = dict(self.texts), found
        return self._said[1]

    @property
    def door(self) -> Door:
        """Return the open database."""
        assert self.settler._door  # noqa: SLF001 - reads its internal state
        return self.settler._door  # noqa: SLF001

    async def round(self, now: float, *, everything: bool = False) -> None:
        """Run one round of the settler at a second."""
        self.now = now
        await self.settler.round(everything=everything)

    async def account(self, now: float) -> Account:
        """Return the account at a second."""
        self.now = now
        return await self.live.refresh(at(now), no_turns)

    def accept_all(self, second: float) -> int:
        """Accept everything that waits, as a person would; return the count."""
        found = waiting(self.door.store, self.door.ledger.database, at(second))
        decision = Decision(accepted=True, actor=Actor("operator", "x"), now_ns=at(second))
        return decide(self.door.ledger.database, found, decision)

    def restart(self, checkpoint: bytes | None = None) -> None:
        """Stop, and start again from a checkpoint, or from nothing."""
        self.settler.close()
        core = core_in(self.directory / "schemas")
        if checkpoint is not None:
            resume_from(core, checkpoint)
        self._begin(core)

    def checkpoint(self) -> bytes:
        """Return the core's checkpoint."""
        return checkpoint_of(self.core)


def content(ledger: Ledger, days: range) -> dict[tuple[str, int], tuple]:
    """Return the content of the newest revisions of days."""
    found = {}
    for (gpu, day), number in ledger.newest(days.start, days.stop).items():
        tiling = ledger.revision(gpu, day, number).tiling
        found[gpu, day] = (tiling.entries, tiling.shares, tiling.claims, tiling.sku)
    return found


__all__ = ["DAY_NS", "SETTINGS", "Site", "content"]
