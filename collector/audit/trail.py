"""The collector's own audit trail: records of its operations and of denied requests.

Frequent events are aggregated: repeated identical denials produce one record immediately and one more for
each minute in which they continue, with the count. The counts are complete.
"""

from __future__ import annotations

import asyncio
import time
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace

import structlog

from collector.audit.log import AuditError, AuditLog
from collector.audit.ownership import EPOCH
from collector.ledger.draft import Draft
from collector.turns import to_its_end
from railscope.audit.record import Actor, Data, RecordError
from railscope.settings import SettingsError

DENIALS_EVERY_SECONDS = 60.0
MAX_DENIED = 100
"""Distinct denials recorded per minute; those beyond are counted together."""
MAX_PATHS = 5
"""Distinct paths per address among them; further paths of that address are counted without a path."""
_MAX_QUOTED = 200

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Denial:
    """A denied request."""

    address: str
    path: str
    """Path as received, percent-encoded."""
    reason: str
    """The check that failed."""
    name: str = ""
    """Holder of the credential, if the credential is known."""
    shown: str = "token"
    """Credential presented: a token, a certificate, or nothing."""

    def quoted(self) -> Denial:
        """Return a copy with the path truncated to the recorded length."""
        return replace(self, path=self.path[:_MAX_QUOTED])


_THE_REST = Denial("", "", "more senders than are told apart")


@dataclass(slots=True)
class Trail:
    """Writes the collector's records; `open` it, `run` it, `close` it."""

    log: AuditLog
    version: str
    wall_ns: Callable[[], int] = time.time_ns
    settings: str = ""
    """Hash of the settings: a different one shows that they were changed."""
    lost: int = 0
    """Number of records that could not be written; their content is in the system journal."""
    denied: int = 0
    _repeated: dict[Denial, int] = field(default_factory=dict)
    _fresh: list[Denial] = field(default_factory=list)
    _due: list[tuple[Denial, int]] = field(default_factory=list)
    _ended: bool = False
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    def open(self) -> None:
        """Open the log and record the start. Blocking.

        Raises SettingsError.
        """
        try:
            self._open()
        except OSError as error:
            message = f"the audit log {self.log.directory} cannot be written: {error.strerror}"
            raise SettingsError(message) from error

    def unusable(self, why: str) -> SettingsError:
        """Return the error for an audit log with which the collector cannot continue."""
        return SettingsError(
            f"{why}. To start without it, move {self.log.directory} away and keep it"
        )

    def _open(self) -> None:
        try:
            self.log.open()
        except AuditError as error:
            raise self.unusable(str(error)) from error
        if self.log.size == 0:
            signer = self.log.signer
            genesis: Data = {"origin": signer.name, "key": str(signer.public)}
            self.log.append_before_running(self._draft("log.genesis", genesis))
        if self.log.lost:
            self._report_loss()
        for problem in self.log.damage:
            self._report_damage(problem)
        self.log.append_before_running(self._draft("admin.config", self._life("started")))

    def _report_loss(self) -> None:
        """Report that the end of the journal was damaged, not torn: its records had been acknowledged."""
        size, lost = self.log.size, self.log.lost
        log.error("audit_records_missing", directory=str(self.log.directory), missing=lost,
                  advice="they had been acknowledged; was the disk damaged, or a copy put back?")  # fmt: skip
        data: Data = {"missing": lost, "from": size}
        self.log.append_before_running(self._draft("log.recovered", data, outcome="failed"))

    def _report_damage(self, problem: str) -> None:
        """Record that a housekeeping file was missing or wrong, and was written again."""
        log.error("audit_file_damaged", problem=problem,
                  advice="it was written again; who has access to the audit directory?")  # fmt: skip
        data: Data = {"damaged": unicodedata.normalize("NFC", problem)}
        self.log.append_before_running(self._draft("log.recovered", data, outcome="failed"))

    def _life(self, what: str) -> Data:
        known: Data = {"settings": self.settings} if self.settings else {}
        epoch = self.log.publisher.ownership.epoch
        return {"collector": self.version, "what": what, EPOCH: epoch, **known}

    async def run(self) -> None:
        """Record events until cancelled; then the remaining ones, and the stop."""
        async with asyncio.TaskGroup() as group:
            writer = group.create_task(self.log.run())
            try:
                while True:
                    await self._write_denials()
            finally:
                await self._write_repeated()
                self._ended = True
                await self._record("admin.config", self._life("stopped"))
                writer.cancel()

    def deny(self, denial: Denial) -> None:
        """Count a denied request. Never waits."""
        self.denied += 1
        known = denial.quoted()
        if self._ended:
            self._lose("access.denied", asdict(known), "the collector is stopping")
            return
        if known not in self._repeated and self._paths_of(known.address) >= MAX_PATHS:
            known = replace(known, path="")
        if known in self._repeated:
            self._repeated[known] += 1
        elif len(self._repeated) >= MAX_DENIED:
            self._repeated[_THE_REST] = self._repeated.get(_THE_REST, 0) + 1
        else:
            self._repeated[known] = 0
            self._fresh.append(known)
            self._wake.set()

    def _paths_of(self, address: str) -> int:
        return sum(known.address == address for known in self._repeated)

    async def _write_denials(self) -> None:
        """Record each new denial immediately; after a minute, the counts of repeated ones."""
        deadline = asyncio.get_running_loop().time() + DENIALS_EVERY_SECONDS
        try:
            async with asyncio.timeout_at(deadline):
                while True:
                    await self._wake.wait()
                    self._wake.clear()
                    await self._write_fresh()
        except TimeoutError:
            await self._write_repeated()

    async def _write_fresh(self) -> None:
        while self._fresh:
            await self._record_denial(self._fresh.pop(0), 1)

    async def _write_repeated(self) -> None:
        await self._write_fresh()
        self._due += [(denial, count) for denial, count in self._repeated.items() if count]
        self._repeated.clear()
        while self._due:
            await self._record_denial(*self._due.pop(0))

    async def _record_denial(self, denial: Denial, count: int) -> None:
        who = unicodedata.normalize("NFC", denial.name)
        actor = Actor("credential" if who else "unknown", who, denial.shown, denial.address)
        data: Data = {"path": denial.path, "reason": denial.reason, "count": count}
        await self._record("access.denied", data, actor, "denied")

    async def _record(
        self, kind: str, data: Data, actor: Actor | None = None, outcome: str = "done"
    ) -> None:
        # A pending append is recorded or counted as lost, even if the minute ends.
        await to_its_end(self._append(self._draft(kind, data, actor, outcome)))

    async def _append(self, draft: Draft) -> None:
        try:
            await self.log.append(draft)
        except (AuditError, RecordError) as error:
            self._lose(draft.type, draft.data, str(error))

    def _lose(self, kind: str, data: Mapping[str, object], problem: str) -> None:
        self.lost += 1
        log.error("audit_record_lost", type=kind, data=data, problem=problem)

    def _draft(
        self, kind: str, data: Data, actor: Actor | None = None, outcome: str = "done"
    ) -> Draft:
        who = actor or Actor("collector", self.log.source.id)
        return Draft(kind, who, self.wall_ns(), outcome, data=data)
