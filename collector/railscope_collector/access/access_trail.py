"""Audit records of credentials: enrolment, revocation, use, misuse.

Frequent events are aggregated. The use of a credential is recorded once per day for each address; the use
of an expired one and requests of a tenant for data of others, once immediately and once more for each
minute in which they continue, with the count.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from itertools import islice

import structlog

from railscope.audit.record import RecordActor, RecordData, RecordSubject
from railscope.service import run_in_thread, run_to_end
from railscope.timestamps import DAY_NS
from railscope_collector.access.credentials import Credential, CredentialKey, Credentials, Role
from railscope_collector.access.recorded_credentials import (
    CredentialChange,
    RecordedCredentials,
    find_changes,
)
from railscope_collector.audit.audit_trail import AuditTrail, DeniedRequest
from railscope_collector.ledger.record_draft import RecordDraft
from railscope_collector.work_limits import MinuteCounts, write_for_a_minute

MAX_MISUSES_PER_MINUTE = 100
"""Distinct misuses recorded per minute; those beyond are counted together."""
MAX_EVENTS_PER_DAY = 100_000
"""Distinct credentials by address, and exports, per day; those beyond are counted together."""
_GROUP_RECORDS = 256
_MAX_QUOTED = 200

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class DeliveredExport:
    """An export that was delivered."""

    credential: Credential
    address: str
    period: str
    form: str
    tenant: str
    """Tenant of the exported rows; empty for those of all tenants."""
    digest: str
    """SHA-256 of the export, in hex."""


@dataclass(frozen=True, slots=True)
class CredentialMisuse:
    """Use of a credential that is expired or does not permit the request."""

    type: str
    credential: Credential
    address: str
    key: str = ""
    path: str = ""


@dataclass(slots=True)
class AccessTrail:
    """Writes through an `AuditTrail`: `open` it, `run` it while that runs. Noting an event never waits."""

    trail: AuditTrail
    identities: RecordedCredentials
    wall_ns: Callable[[], int] = time.time_ns
    max_events_per_day: int = MAX_EVENTS_PER_DAY
    _day: int = -1
    _seen_today: set[Hashable] = field(default_factory=set)
    _uncounted_today: int = 0
    _misuses: MinuteCounts[CredentialMisuse] = field(
        default_factory=lambda: MinuteCounts(MAX_MISUSES_PER_MINUTE)
    )
    _drafts: list[RecordDraft] = field(default_factory=list)
    _current: Credentials | None = None
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    # Noting events --------------------------------------------------------------------------------

    def record_denial(self, denial: DeniedRequest) -> None:
        """Record a denied request."""
        self.trail.record_denial(denial)

    def record_use(self, credential: Credential, key: CredentialKey, address: str) -> None:
        """Record a successful authentication: recorded the first time per day from this address."""
        if self._is_first_today((credential, address)):
            role = credential.role.value
            data: RecordData = {"key": key.short, "role": role, **_tenant(credential)}
            kind = "access.token" if key.kind == "token" else "access.login"
            self._add_draft(self._draft(kind, _actor(credential, key.kind, address), "done", data))

    def record_session(
        self, credential: Credential, key: CredentialKey, address: str, action: str
    ) -> None:
        """Record that a session of the web console begins (`sign_in`) or is ended by its holder (`sign_out`)."""
        data: RecordData = {"console": action, "key": key.short, "role": credential.role.value}
        data |= _tenant(credential)
        actor = _actor(credential, key.kind, address)
        self._add_draft(self._draft("access.login", actor, "done", data))

    def record_export(self, export: DeliveredExport) -> None:
        """Record a delivered export: recorded the first time per day, while its content is the same."""
        if self._is_first_today(export):
            data: RecordData = {"period": export.period, "format": export.form}
            data["sha256"] = export.digest
            data |= {"tenant": export.tenant} if export.tenant else {}
            actor = _actor(export.credential, "", export.address)
            self._add_draft(self._draft("billing.export", actor, "done", data))

    def _is_first_today(self, event: Hashable) -> bool:
        day = self.wall_ns() // DAY_NS
        if day != self._day:
            self._draft_more_today()
            self._day = day
            self._seen_today.clear()
        if event in self._seen_today:
            return False
        # Bounds the memory: addresses are chosen by the sender.
        if len(self._seen_today) >= self.max_events_per_day:
            self._uncounted_today += 1
            return False
        self._seen_today.add(event)
        return True

    def record_expired_use(self, credential: Credential, key: CredentialKey, address: str) -> None:
        """Record the use of an expired credential."""
        self._record_misuse(CredentialMisuse("identity.expired", credential, address, key.short))

    def record_cross_tenant_request(self, credential: Credential, path: str, address: str) -> None:
        """Record a tenant's request for the data of another."""
        quoted = path[:_MAX_QUOTED]
        self._record_misuse(
            CredentialMisuse("access.cross_tenant", credential, address, path=quoted)
        )

    def set_credentials(self, credentials: Credentials) -> None:
        """Set the current credentials; changes are recorded."""
        self._current = credentials
        self._wake.set()

    def _record_misuse(self, misuse: CredentialMisuse) -> None:
        if self._misuses.add(misuse):
            self._add_draft(self._draft_misuse(misuse, 1))

    def _add_draft(self, draft: RecordDraft) -> None:
        self._drafts.append(draft)
        self._wake.set()

    # Writing records ------------------------------------------------------------------------------

    async def run(self) -> None:
        """Record noted events until cancelled; then the remaining ones."""
        try:
            while True:
                await write_for_a_minute(self._wake, lambda: run_to_end(self._write()))
                self._close_minute()
                self._wake.set()
        finally:
            self._close_minute()
            self._draft_more_today()
            await run_to_end(self._write())

    def open(self) -> None:
        """Read the credentials that were recorded before. Blocking; before `run`."""
        try:
            self.identities.read()
        except (OSError, ValueError) as error:
            log.error(
                "identities_read_failed",
                file=str(self.identities.path),
                problem=str(error),
                advice="all entries of the tokens file are recorded again",
            )

    def _close_minute(self) -> None:
        """Draft the counts of repeated misuses."""
        repeated, excess = self._misuses.close()
        self._drafts += [self._draft_misuse(misuse, count) for misuse, count in repeated]
        self._draft_more("access.denied", "unknown", "denied", excess)

    def _draft_more_today(self) -> None:
        self._draft_more("access.token", "credential", "done", self._uncounted_today)
        self._uncounted_today = 0

    def _draft_more(self, kind: str, actor: str, outcome: str, count: int) -> None:
        """Draft the count of events that were not distinguished, if there were any."""
        if count:
            reason = "more senders than are counted separately"
            data: RecordData = {"reason": reason, "count": count}
            self._add_draft(self._draft(kind, RecordActor(actor, ""), outcome, data))

    async def _write(self) -> None:
        drafts, self._drafts = self._drafts, []
        await self._append(iter(drafts))
        current = self._current
        if current is None or current is self.identities.credentials:
            return
        # In a thread: a tokens file may have thousands of nodes.
        changes = await run_in_thread(find_changes, self.identities.credentials, current)
        # Stored only if all were recorded: changes are recorded again rather than lost.
        if await self._append(map(self._draft_change, changes)):
            try:
                await run_in_thread(self.identities.store, current)
            except OSError as error:
                log.error(
                    "identities_write_failed",
                    file=str(self.identities.path),
                    problem=str(error),
                    advice="changes of the tokens file are recorded again after a restart",
                )

    async def _append(self, drafts: Iterator[RecordDraft]) -> bool:
        """Record all drafts, in groups; return True if none was lost."""
        complete = True
        while group := list(islice(drafts, _GROUP_RECORDS)):
            complete &= all(await asyncio.gather(*map(self.trail.append, group)))
        return complete

    # Form of the records --------------------------------------------------------------------------

    def _draft_misuse(self, misuse: CredentialMisuse, count: int) -> RecordDraft:
        origin = {"key": misuse.key} if misuse.key else {"path": misuse.path}
        data: RecordData = {**origin, "count": count, **_tenant(misuse.credential)}
        actor = _actor(misuse.credential, "", misuse.address)
        return self._draft(misuse.type, actor, "denied", data)

    def _draft_change(self, change: CredentialChange) -> RecordDraft:
        data: RecordData = {"added": list(change.added), "removed": list(change.removed)}
        subject = RecordSubject()
        if change.holder:
            data |= {"holder": change.holder.label, "role": change.holder.role.value}
            data |= _tenant(change.holder)
            subject = RecordSubject(change.holder.name if change.holder.role is Role.NODE else "")
        actor = RecordActor("administrator", "", "tokens file")
        return RecordDraft(change.type, actor, self.wall_ns(), "done", subject, data)

    def _draft(self, kind: str, actor: RecordActor, outcome: str, data: RecordData) -> RecordDraft:
        return RecordDraft(kind, actor, self.wall_ns(), outcome, data=data)


def _actor(credential: Credential, kind: str, address: str) -> RecordActor:
    return RecordActor("credential", credential.label, kind, address)


def _tenant(credential: Credential) -> dict[str, str]:
    """Return the tenant of a credential as record data; empty for other roles."""
    return {"tenant": credential.tenant} if credential.tenant else {}
