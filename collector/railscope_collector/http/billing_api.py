"""Handlers for statements and exports. Enforces access per tenant; `tenant_statements` builds the content."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import TypeVar

from aiohttp import web

from railscope.api.billing import StatementList
from railscope_collector.access.access_trail import DeliveredExport
from railscope_collector.access.credentials import Credential
from railscope_collector.billing import billing_reader, period_closing
from railscope_collector.files import seller_file
from railscope_collector.http.access_control import selected_tenant
from railscope_collector.http.json_responses import json_error, json_response
from railscope_collector.http.read_pool import ReadPool
from railscope_collector.http.route_table import RouteHandlers
from railscope_collector.ledger import ledger_store
from railscope_collector.ledger.database import Database, UnusableLedgerError
from railscope_collector.metering.units import PeriodError, parse_period

BillingResultT = TypeVar("BillingResultT")

MEDIA = {
    "json": "application/json",
    "text": "text/plain; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "csv": "text/csv; charset=utf-8",
    "parquet": "application/vnd.apache.parquet",
    "jsonl": "application/x-ndjson",
    "zip": "application/zip",
}
# A statement contains names that tenants chose: no script may run, whatever they are.
_SAFE_PAGE = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}


@dataclass(slots=True)
class BillingApi:
    """Handlers of statements and exports. `billing` opens the books; it blocks, and raises BillingUnavailableError."""

    billing: Callable[[], billing_reader.BillingReader]
    read_pool: ReadPool
    on_export: Callable[[DeliveredExport], None] = lambda _exported: None

    def handlers(self) -> RouteHandlers:
        """Return the handlers by route name."""
        return {"statements": self._issued, "statement": self._statement, "export": self._export}

    async def _issued(self, request: web.Request, credential: Credential) -> web.Response:
        billing, tenant = (
            await self._read(credential, self.billing),
            selected_tenant(request, credential),
        )
        issued = await self._read(credential, lambda: billing.issued_invoices(tenant))
        forms = tuple(billing.statement_forms)
        return json_response(StatementList(tuple(issued), forms, len(issued), tenant=tenant or ""))

    async def _statement(self, request: web.Request, credential: Credential) -> web.Response:
        billing, period = await self._read(credential, self.billing), _requested_period(request)
        form = _requested_format(request, billing.statement_forms)
        tenant = request.match_info["tenant"]
        content = await self._read(credential, lambda: billing.statement(tenant, period, form))
        if content is None:
            text = f"no statement of {tenant} for {period}"
            return json_error(HTTPStatus.NOT_FOUND, text)
        return _document_response(content, form)

    async def _export(self, request: web.Request, credential: Credential) -> web.Response:
        billing, period = await self._read(credential, self.billing), _requested_period(request)
        form = _requested_format(request, billing.export_forms)
        tenant = selected_tenant(request, credential)
        hashed = await self._read(
            credential, lambda: _with_digest(billing.export(tenant, period, form))
        )
        if hashed is None:
            return json_error(HTTPStatus.NOT_FOUND, f"nothing to export for {period}")
        content, digest = hashed
        # A HEAD request delivers nothing.
        if request.method == "GET":
            address, holder = request.remote or "", tenant or ""
            self.on_export(DeliveredExport(credential, address, period, form, holder, digest))
        name = {"Content-Disposition": f'attachment; filename="railscope-{period}.{form}"'}
        return _document_response(content, form, name)

    async def _read(
        self, credential: Credential, making: Callable[[], BillingResultT]
    ) -> BillingResultT:
        try:
            return await self.read_pool.read(credential, making)
        except billing_reader.BillingUnavailableError as error:
            text = "the ledger is unavailable\n"
            raise web.HTTPServiceUnavailable(text=text, headers={"Retry-After": "5"}) from error


def _with_digest(content: bytes | None) -> tuple[bytes, str] | None:
    return None if content is None else (content, hashlib.sha256(content).hexdigest())


def _requested_period(request: web.Request) -> str:
    period = request.match_info["period"]
    try:
        parse_period(period)
    except PeriodError as error:
        raise web.HTTPBadRequest(text=f"{error}\n") from error
    return period


def _requested_format(request: web.Request, formats: Sequence[str]) -> str:
    form = request.query.get("format", formats[0])
    if form not in formats:
        raise web.HTTPBadRequest(text=f"invalid format: expected one of {', '.join(formats)}\n")
    return form


def _document_response(
    content: bytes, form: str, extra_headers: dict[str, str] | None = None
) -> web.Response:
    headers = {"Content-Type": MEDIA[form], **(_SAFE_PAGE if form == "html" else {})}
    return web.Response(body=content, headers=headers | (extra_headers or {}))


@dataclass(frozen=True, slots=True)
class LedgerBooks:
    """Statements and exports of the ledger in a database."""

    database: Callable[[], Database]
    """Opens the database; raises UnusableLedgerError."""
    sellers: str = ""
    """File with the sellers and paying accounts; without one, each tenant pays for itself."""

    def open(self) -> billing_reader.BillingReader:
        """Open the books. Blocking; raises BillingUnavailableError if they are unavailable."""
        try:
            return billing_reader.BillingReader(
                period_closing.BillingBooks.for_ledger(ledger_store.Ledger(self.database())),
                lambda tenants: seller_file.find_seller(self.sellers, tenants),
            )
        except UnusableLedgerError as error:
            raise billing_reader.BillingUnavailableError(str(error)) from error
