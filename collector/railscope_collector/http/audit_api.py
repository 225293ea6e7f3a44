"""Routes of the audit log: entries with inclusion proofs, the checkpoint, and consistency proofs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import TypeVar

from aiohttp import web

from railscope.audit import log_checkpoint
from railscope_collector.access.credentials import Credential, Role
from railscope_collector.audit.tiles import ArchivedEntriesError, MissingEntriesError
from railscope_collector.http.access_control import selected_tenant
from railscope_collector.http.json_responses import json_error, json_response
from railscope_collector.http.read_pool import ReadPool
from railscope_collector.http.route_table import RouteHandlers
from railscope_collector.http.signed_entries import (
    MAX_ENTRIES,
    EntrySelection,
    IndexBehindError,
    SignedEntries,
)

ARCHIVE_UNREADABLE = "these records are archived, and the archive cannot be read now; fix: try again, or see the collector's log"
UNREADABLE = "cannot read the audit log; fix: run `railscope audit verify` on the collector's state directory"
READ_ERRORS = (IndexBehindError, MissingEntriesError, ArchivedEntriesError, OSError, ValueError)
ResponseT = TypeVar("ResponseT")


@dataclass(slots=True)
class AuditApi:
    """Handlers of the audit log's routes."""

    entries: SignedEntries
    read_pool: ReadPool

    def handlers(self) -> RouteHandlers:
        """Return the handlers by route name."""
        return {
            "audit": self._audit,
            "audit_entry": self._entry,
            "audit_checkpoint": self._checkpoint,
            "audit_consistency": self._consistency,
        }

    async def _audit(self, request: web.Request, credential: Credential) -> web.Response:
        selection = EntrySelection(
            _query_number(request, "from", 0),
            max(1, min(MAX_ENTRIES, _query_number(request, "limit", MAX_ENTRIES))),
            selected_tenant(request, credential),
            credential.role is Role.TENANT,
        )
        return json_response(await self._read(credential, lambda: self.entries.select(selection)))

    async def _entry(self, request: web.Request, credential: Credential) -> web.Response:
        tenant = credential.tenant if credential.role is Role.TENANT else None
        index = request.match_info["index"]
        proof = None
        if log_checkpoint.SIZE.fullmatch(index):
            proof = await self._read(
                credential, lambda: self.entries.make_proof(int(index), tenant)
            )
        if proof is None:
            # One answer for both cases, as a tenant must not find out which records exist.
            return json_error(HTTPStatus.NOT_FOUND, "unknown entry, or access denied")
        return web.Response(text=proof)

    async def _checkpoint(self, _: web.Request, credential: Credential) -> web.Response:
        return web.Response(text=(await self._read(credential, self.entries.read_checkpoint))[0])

    async def _consistency(self, request: web.Request, credential: Credential) -> web.Response:
        old = _query_number(request, "old", 0)
        proof = await self._read(credential, lambda: self.entries.make_consistency_proof(old))
        if proof is None:
            text = f"the signed log has fewer than {old} records"
            return json_error(HTTPStatus.NOT_FOUND, text)
        return json_response(proof)

    async def _read(self, credential: Credential, reading: Callable[[], ResponseT]) -> ResponseT:
        """Read off the loop. Raises HTTPServiceUnavailable if the log cannot be read now."""
        try:
            return await self.read_pool.read(credential, reading)
        except READ_ERRORS as error:
            text = f"{unreadable_reason(error)}\n"
            raise web.HTTPServiceUnavailable(text=text, headers={"Retry-After": "1"}) from error


def unreadable_reason(error: Exception) -> str:
    """Return why the log cannot be read now, by one of the errors of reading it."""
    match error:
        case IndexBehindError():
            return f"{error}; try again"
        case FileNotFoundError():
            return log_checkpoint.NOTHING_SIGNED
        case MissingEntriesError() | ArchivedEntriesError():
            return ARCHIVE_UNREADABLE
    return UNREADABLE


def _query_number(request: web.Request, name: str, default: int) -> int:
    text = request.query.get(name)
    if text is None:
        return default
    if not log_checkpoint.SIZE.fullmatch(text):
        raise web.HTTPBadRequest(text=f"invalid {name}: expected a whole number\n")
    return int(text)
