"""Routes of statements and exports: access by tenant is decided here, the content is made elsewhere."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import TypeVar

from aiohttp import web

from collector.access.credential import Credential, Role
from collector.access.trail import Exported
from collector.billing.served import BillingError, ServedBooks
from collector.http.gate import Handlers, json_answer
from collector.http.reading import Reading
from collector.metering.periods import PeriodError, parse

Made = TypeVar("Made")

_MEDIA = {
    "json": "application/json",
    "text": "text/plain; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "csv": "text/csv; charset=utf-8",
    "parquet": "application/vnd.apache.parquet",
    "jsonl": "application/x-ndjson",
    "zip": "application/zip",
}
_SAFE_PAGE = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}


@dataclass(slots=True)
class BillingApi:
    """Handlers of statements and exports. `billing` opens the books; it blocks, and raises BillingError."""

    billing: Callable[[], ServedBooks]
    reading: Reading
    exported: Callable[[Exported], None] = lambda _exported: None

    def handlers(self) -> Handlers:
        """Return the handlers by route name."""
        return {"statements": self._issued, "statement": self._statement, "export": self._export}

    async def _issued(self, request: web.Request, who: Credential) -> web.Response:
        billing, tenant = await self._made(who, self.billing), _whose(request, who)
        issued = await self._made(who, lambda: billing.issued(tenant))
        return json_answer({"statements": issued, "forms": billing.statement_forms})

    async def _statement(self, request: web.Request, who: Credential) -> web.Response:
        billing, period = await self._made(who, self.billing), _period(request)
        form = _form(request, billing.statement_forms)
        tenant = request.match_info["tenant"]
        content = await self._made(who, lambda: billing.statement(tenant, period, form))
        if content is None:
            text = f"no statement of {tenant} for {period}"
            return json_answer({"error": text}, HTTPStatus.NOT_FOUND)
        return _document(content, form)

    async def _export(self, request: web.Request, who: Credential) -> web.Response:
        billing, period = await self._made(who, self.billing), _period(request)
        form = _form(request, billing.export_forms)
        tenant = _whose(request, who)
        found = await self._made(who, lambda: _hashed(billing.export(tenant, period, form)))
        if found is None:
            return json_answer({"error": f"nothing to export for {period}"}, HTTPStatus.NOT_FOUND)
        content, digest = found
        if request.method == "GET":
            self.exported(Exported(who, request.remote or "", period, form, tenant or "", digest))
        name = {"Content-Disposition": f'attachment; filename="railscope-{period}.{form}"'}
        return _document(content, form, name)

    async def _made(self, who: Credential, making: Callable[[], Made]) -> Made:
        try:
            return await self.reading.read(who, making)
        except BillingError as error:
            text = "the ledger cannot be read now\n"
            raise web.HTTPServiceUnavailable(text=text, headers={"Retry-After": "5"}) from error


def _hashed(content: bytes | None) -> tuple[bytes, str] | None:
    return None if content is None else (content, hashlib.sha256(content).hexdigest())


def _whose(request: web.Request, who: Credential) -> str | None:
    """Return the tenant of the requested rows; None for all. A tenant can only request its own."""
    return who.tenant if who.role is Role.TENANT else request.query.get("tenant")


def _period(request: web.Request) -> str:
    period = request.match_info["period"]
    try:
        parse(period)
    except PeriodError as error:
        raise web.HTTPBadRequest(text=f"{error}\n") from error
    return period


def _form(request: web.Request, known: Sequence[str]) -> str:
    form = request.query.get("format", known[0])
    if form not in known:
        raise web.HTTPBadRequest(text=f"format must be one of {', '.join(known)}\n")
    return form


def _document(content: bytes, form: str, more: dict[str, str] | None = None) -> web.Response:
    headers = {"Content-Type": _MEDIA[form], **(_SAFE_PAGE if form == "html" else {})}
    return web.Response(body=content, headers=headers | (more or {}))
