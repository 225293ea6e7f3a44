"""Routes of the audit log: entries with inclusion proofs, the checkpoint, and consistency proofs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import TypeVar

from aiohttp import web

from collector.access.credential import Credential, Role
from collector.http.entries import MAX_SHOWN, Entries, NotYetError, Wanted
from collector.http.gate import Handlers, json_answer
from collector.http.reading import Reading
from railscope.audit.checkpoint import SIZE

Answer = TypeVar("Answer")

_LATER = {"Retry-After": "1"}


@dataclass(slots=True)
class AuditApi:
    """Handlers of the audit log's routes."""

    entries: Entries
    reading: Reading

    def handlers(self) -> Handlers:
        """Return the handlers by route name."""
        return {
            "audit": self._audit,
            "audit_entry": self._entry,
            "audit_checkpoint": self._checkpoint,
            "audit_consistency": self._consistency,
        }

    async def _audit(self, request: web.Request, who: Credential) -> web.Response:
        own = who.role is Role.TENANT
        wanted = Wanted(
            _number(request, "from", 0),
            max(1, min(MAX_SHOWN, _number(request, "limit", MAX_SHOWN))),
            who.tenant if own else request.query.get("tenant"),
            own,
        )
        return json_answer(await self._read(who, lambda: self.entries.page(wanted)))

    async def _entry(self, request: web.Request, who: Credential) -> web.Response:
        tenant = who.tenant if who.role is Role.TENANT else None
        index = request.match_info["index"]
        proof = None
        if SIZE.fullmatch(index):
            proof = await self._read(who, lambda: self.entries.proof(int(index), tenant))
        if proof is None:
            return json_answer({"error": "no such entry that you may see"}, HTTPStatus.NOT_FOUND)
        return web.Response(text=proof)

    async def _checkpoint(self, _: web.Request, who: Credential) -> web.Response:
        return web.Response(text=(await self._read(who, self.entries.checkpoint))[0])

    async def _consistency(self, request: web.Request, who: Credential) -> web.Response:
        old = _number(request, "old", 0)
        found = await self._read(who, lambda: self.entries.consistency(old))
        if found is None:
            text = f"the log that is signed is smaller than {old} records"
            return json_answer({"error": text}, HTTPStatus.NOT_FOUND)
        return json_answer(found)

    async def _read(self, who: Credential, reading: Callable[[], Answer]) -> Answer:
        """Read off the loop. Raises HTTPServiceUnavailable if the log cannot be read now."""
        try:
            return await self.reading.read(who, reading)
        except NotYetError as error:
            raise _unavailable(str(error)) from error
        except FileNotFoundError as error:
            text = "nothing has been signed yet"
            raise _unavailable(text) from error
        except (OSError, ValueError) as error:
            text = "the audit log cannot be read; the administrator runs `railscope audit verify`"
            raise _unavailable(text) from error


def _unavailable(text: str) -> web.HTTPServiceUnavailable:
    return web.HTTPServiceUnavailable(text=f"{text}\n", headers=_LATER)


def _number(request: web.Request, name: str, default: int) -> int:
    text = request.query.get(name)
    if text is None:
        return default
    if not SIZE.fullmatch(text):
        raise web.HTTPBadRequest(text=f"{name} must be a whole number\n")
    return int(text)
