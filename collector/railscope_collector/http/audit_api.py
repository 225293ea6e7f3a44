"""Resources of the audit log: entries with inclusion proofs, the checkpoint, and consistency proofs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, TypeVar

import msgspec
from aiohttp import web

from railscope.api import audit
from railscope.audit import log_checkpoint
from railscope_collector.access.credentials import Credential
from railscope_collector.audit.tables import ArchivedEntriesError
from railscope_collector.http import ResourceError, list_query
from railscope_collector.http.read_pool import ReadPool
from railscope_collector.http.resource_server import ResourceRequest
from railscope_collector.http.signed_entries import (
    MAX_ENTRIES,
    EntrySelection,
    SignedEntries,
)
from railscope_collector.ledger.database import UnusableLedgerError

ARCHIVE_UNREADABLE = "these records are archived, and the archive cannot be read now; fix: try again, or see the collector's log"
UNREADABLE = "cannot read the audit log; fix: run `railscope audit verify` on the ledger's database"
_READ_ERRORS = (UnusableLedgerError, OSError, ValueError)
ResponseT = TypeVar("ResponseT")
EntryIndex = Annotated[int, msgspec.Meta(ge=0, le=(1 << 53) - 1)]


class AuditQuery(msgspec.Struct, frozen=True, rename={"from_": "from"}):
    """Query of entries: the first one, the number of them, and the tenant that they name."""

    from_: EntryIndex = 0
    limit: EntryIndex = MAX_ENTRIES
    """More than the largest number returns that number."""
    tenant: list_query.SearchText = ""


class ConsistencyQuery(msgspec.Struct, frozen=True):
    """Query of a consistency proof: the number of records of the older checkpoint."""

    old: EntryIndex = 0


@dataclass(slots=True)
class AuditApi:
    """Functions of the audit log's resources."""

    entries: SignedEntries
    read_pool: ReadPool

    async def entry_list(self, request: ResourceRequest) -> audit.AuditEntries:
        """Return the selected entries. Raises ResourceError."""
        selection = EntrySelection(
            request.query.from_,
            max(1, min(MAX_ENTRIES, request.query.limit)),
            request.selected_tenant,
            request.tenant is not None,
        )
        return await self.read(request.credential, lambda: self.entries.select(selection))

    async def entry(self, request: ResourceRequest) -> web.Response:
        """Return an entry with its inclusion proof as text. Raises ResourceError."""
        index, proof = request.parts["index"], None
        if log_checkpoint.SIZE.fullmatch(index):
            proof = await self.read(
                request.credential, lambda: self.entries.make_proof(int(index), request.tenant)
            )
        if proof is None:
            # One answer for both cases, as a tenant must not find out which records exist.
            raise ResourceError(HTTPStatus.NOT_FOUND, "unknown entry, or access denied")
        return web.Response(text=proof)

    async def checkpoint(self, request: ResourceRequest) -> web.Response:
        """Return the newest checkpoint as text. Raises ResourceError."""
        text = await self.read(request.credential, self.entries.read_checkpoint)
        return web.Response(text=text)

    async def consistency(self, request: ResourceRequest) -> audit.ConsistencyProof:
        """Return the proof that an older checkpoint is part of the newest one. Raises ResourceError."""
        old = request.query.old
        proof = await self.read(
            request.credential, lambda: self.entries.make_consistency_proof(old)
        )
        if proof is None:
            text = f"the signed log has fewer than {old} records"
            raise ResourceError(HTTPStatus.NOT_FOUND, text)
        return proof

    async def read(self, credential: Credential, work: Callable[[], ResponseT]) -> ResponseT:
        """Return the result of reading the log. Raises ResourceError if it cannot be read now."""
        try:
            return await self.read_pool.read(credential, work)
        except _READ_ERRORS as error:
            status, headers = HTTPStatus.SERVICE_UNAVAILABLE, {"Retry-After": "1"}
            raise ResourceError(status, _unreadable_reason(error), headers) from error


def _unreadable_reason(error: Exception) -> str:
    """Return why the log cannot be read now, by one of the errors of reading it."""
    match error:
        case FileNotFoundError():
            return log_checkpoint.NOTHING_SIGNED
        case ArchivedEntriesError():
            return ARCHIVE_UNREADABLE
    return UNREADABLE
