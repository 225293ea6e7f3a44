"""Records of the collector's own operations and of denied requests.

Frequent events are aggregated: repeated identical denials produce one record immediately and one
more for each minute in which they continue, with the count. The counts are complete.
"""

from __future__ import annotations

import asyncio
import time
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace

import structlog

from railscope.audit import record
from railscope.service import run_to_end
from railscope_collector.audit import LogWriteError, log_writer
from railscope_collector.ledger import record_draft
from railscope_collector.work_limits import MinuteCounts, write_for_a_minute

log = structlog.get_logger(__name__)


_MAX_NAMED = 100
"""Lost files that a record names."""


MAX_DENIED = 100
"""Distinct denials recorded per minute; those beyond are counted together."""
MAX_PATHS = 5
"""Distinct paths per address among them; further paths of that address are counted without a path."""
# Paths are chosen by the sender: records of them must stay small.
_MAX_QUOTED = 200


@dataclass(frozen=True, slots=True)
class DeniedRequest:
    """A denied request."""

    address: str
    path: str
    """Path as received, percent-encoded."""
    reason: str
    """The check that failed."""
    name: str = ""
    """Holder of the credential, if the credential is known."""
    credential_kind: str = "token"
    """Credential presented: a token, a certificate, or nothing."""

    def truncated(self) -> DeniedRequest:
        """Return a copy with the path truncated to the recorded length."""
        return replace(self, path=self.path[:_MAX_QUOTED])


_OTHER_SENDERS = DeniedRequest("", "", "more senders than are counted separately")


@dataclass(slots=True)
class AuditTrail:
    """Writes the collector's records; `open` it, `run` it, `close` it."""

    log: log_writer.AuditLog
    version: str
    wall_ns: Callable[[], int] = time.time_ns
    settings: str = ""
    """Hash of the settings: a different one shows that they were changed."""
    lost_records: int = 0
    """Number of records that could not be written; their content is in the system journal."""
    denials: int = 0
    _denials: MinuteCounts[DeniedRequest] = field(default_factory=lambda: MinuteCounts(MAX_DENIED))
    _new_denials: list[DeniedRequest] = field(default_factory=list)
    _repeats: list[tuple[DeniedRequest, int]] = field(default_factory=list)
    _is_ended: bool = False
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    def open(self) -> None:
        """Open the log and record the start. Blocking; raises LogWriteError, OSError."""
        self.log.open()
        self.log.append_before_running(self.draft("admin.config", self._lifecycle_data("started")))

    def _lifecycle_data(self, transition: str) -> record.RecordData:
        settings: record.RecordData = {"settings": self.settings} if self.settings else {}
        return {"collector": self.version, "what": transition, **settings}

    async def run(self) -> None:
        """Record events until cancelled; then the remaining ones, and the stop."""
        async with asyncio.TaskGroup() as group:
            writer = group.create_task(self.log.run())
            try:
                while True:
                    await write_for_a_minute(self._wake, self._write_new_denials)
                    await self._write_repeated()
            finally:
                # The counts of the minute in progress: they are complete only with these.
                await self._write_repeated()
                # Before the last record: a denial that arrives during its write would not be written.
                self._is_ended = True
                await self._record(self.draft("admin.config", self._lifecycle_data("stopped")))
                # Last: the records above need the writer.
                writer.cancel()

    def record_denial(self, denial: DeniedRequest) -> None:
        """Count a denied request. Never waits."""
        self.denials += 1
        counted = denial.truncated()
        if self._is_ended:
            self._report_lost_record("access.denied", asdict(counted), "the collector is stopping")
            return
        repetitions = self._denials.repetitions
        paths = sum(other.address == counted.address for other in repetitions)
        # A scanner that tries many paths would use up the bound for all senders.
        if counted not in repetitions and paths >= MAX_PATHS:
            counted = replace(counted, path="")
        if self._denials.add(counted):
            self._new_denials.append(counted)
            self._wake.set()

    async def _write_new_denials(self) -> None:
        while self._new_denials:
            await self._record_denial(self._new_denials.pop(0), 1)

    async def _write_repeated(self) -> None:
        await self._write_new_denials()
        repeated, excess = self._denials.close()
        self._repeats += repeated + ([(_OTHER_SENDERS, excess)] if excess else [])
        # From a list and not a local variable: what a cancellation interrupts is written at the end.
        while self._repeats:
            await self._record_denial(*self._repeats.pop(0))

    async def _record_denial(self, denial: DeniedRequest, count: int) -> None:
        name = unicodedata.normalize("NFC", denial.name)
        actor = record.RecordActor(
            "credential" if name else "unknown", name, denial.credential_kind, denial.address
        )
        data: record.RecordData = {"path": denial.path, "reason": denial.reason, "count": count}
        await self._record(self.draft("access.denied", data, actor, "denied"))

    async def _record(self, draft: record_draft.RecordDraft) -> None:
        # A pending append is recorded or counted as lost, even if the minute ends.
        await run_to_end(self.append(draft))

    async def append(self, draft: record_draft.RecordDraft) -> bool:
        """Record a draft; if that fails, count and log the loss, and return False."""
        try:
            await self.log.append(draft)
        except (LogWriteError, record.RecordError) as error:
            self._report_lost_record(draft.type, draft.data, str(error))
            return False
        return True

    def _report_lost_record(self, kind: str, data: Mapping[str, object], problem: str) -> None:
        self.lost_records += 1
        log.error("audit_record_lost", type=kind, data=data, problem=problem)

    def draft(
        self,
        kind: str,
        data: record.RecordData,
        actor: record.RecordActor | None = None,
        outcome: str = "done",
    ) -> record_draft.RecordDraft:
        """Return a record of the collector as of now; without an actor it is the collector itself."""
        record_actor = actor or record.RecordActor("collector", self.log.source.id)
        return record_draft.RecordDraft(kind, record_actor, self.wall_ns(), outcome, data=data)

    def draft_missing_files(self, lost: Iterable[str]) -> record_draft.RecordDraft:
        """Return the record of files that were lost."""
        names = sorted(lost)
        data: record.RecordData = {
            "what": "files",
            "count": len(names),
            "files": list(names[:_MAX_NAMED]),
        }
        return self.draft("evidence.gap", data, outcome="failed")
