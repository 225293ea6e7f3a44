"""Resources of statements and exports. Enforces access per tenant; `tenant_statements` builds the content."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Literal, TypeVar

import msgspec
from aiohttp import web

from railscope.api.billing import StatementList
from railscope_collector.access.access_trail import DeliveredExport
from railscope_collector.access.credentials import Credential
from railscope_collector.billing import BillingError, billing_reader, period_closing
from railscope_collector.files import seller_file
from railscope_collector.http import ResourceError, list_query
from railscope_collector.http.read_pool import ReadPool
from railscope_collector.http.resource_server import ResourceRequest
from railscope_collector.ledger import ledger_store
from railscope_collector.ledger.database import Database, UnusableLedgerError
from railscope_collector.metering.units import Period, PeriodError, parse_period, period_name

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


UNAVAILABLE = "the ledger is unavailable"


class StatementsQuery(list_query.WholeQuery, frozen=True):
    """Query of the list of statements."""

    tenant: list_query.SearchText = ""
    sort: Literal["", "tenant", "issued_ns", "void"] = ""


class FormQuery(msgspec.Struct, frozen=True):
    """Query of a document of several forms; without one, the first."""

    format: list_query.SearchText = ""


class ExportQuery(FormQuery, frozen=True):
    """Query of an export."""

    tenant: list_query.SearchText = ""


@dataclass(slots=True)
class BillingApi:
    """Functions of statements and exports. `billing` opens the books; it blocks, and raises BillingUnavailableError."""

    billing: Callable[[], billing_reader.BillingReader]
    read_pool: ReadPool
    on_export: Callable[[DeliveredExport], None] = lambda _exported: None

    async def read(
        self, credential: Credential, work: Callable[[billing_reader.BillingReader], BillingResultT]
    ) -> BillingResultT:
        """Return the result of reading the books. Raises ResourceError."""
        try:
            return await self.read_pool.read(credential, lambda: work(self.billing()))
        except (billing_reader.BillingUnavailableError, UnusableLedgerError) as error:
            status = HTTPStatus.SERVICE_UNAVAILABLE
            raise ResourceError(status, UNAVAILABLE, {"Retry-After": "5"}) from error
        except BillingError as error:
            raise ResourceError(HTTPStatus.CONFLICT, str(error)) from error

    async def statement_list(self, request: ResourceRequest) -> StatementList:
        """Return a part of the invoices of all tenants, or of one. Raises ResourceError."""
        tenant, query = request.selected_tenant, request.query

        def make(reader: billing_reader.BillingReader) -> StatementList:
            found = list_query.sort_rows(reader.issued_invoices(tenant), query.sort)
            rows, forms = tuple(found[request.part]), tuple(reader.statement_forms)
            return StatementList(rows, forms, len(found), query.offset, tenant or "")

        return await self.read(request.credential, make)

    async def statement(self, request: ResourceRequest) -> web.Response:
        """Return a statement in one of its forms. Raises ResourceError."""
        tenant, period = request.parts["tenant"], requested_period(request)

        def make(reader: billing_reader.BillingReader) -> web.Response | None:
            form = _requested_format(request, reader.statement_forms)
            content = reader.statement(tenant, period, form)
            return None if content is None else _document_response(content, form)

        found = await self.read(request.credential, make)
        if found is None:
            raise ResourceError(
                HTTPStatus.NOT_FOUND, f"no statement of {tenant} for {period_name(period)}"
            )
        return found

    async def export(self, request: ResourceRequest) -> web.Response:
        """Return an export in one of its forms, and report its delivery. Raises ResourceError."""
        tenant, period = request.selected_tenant, requested_period(request)

        def make(reader: billing_reader.BillingReader) -> tuple[bytes, str, str] | None:
            form = _requested_format(request, reader.export_forms)
            content = reader.export(tenant, period, form)
            return None if content is None else (content, form, hashlib.sha256(content).hexdigest())

        found, name = await self.read(request.credential, make), period_name(period)
        if found is None:
            raise ResourceError(HTTPStatus.NOT_FOUND, f"nothing to export for {name}")
        content, form, digest = found
        # A HEAD request delivers nothing.
        if not request.is_head:
            delivered = request.credential, request.address, name, form, tenant or "", digest
            self.on_export(DeliveredExport(*delivered))
        file = {"Content-Disposition": f'attachment; filename="railscope-{name}.{form}"'}
        return _document_response(content, form, file)


def requested_period(request: ResourceRequest) -> Period:
    """Return the period in the path of a request. Raises ResourceError."""
    try:
        return parse_period(request.parts["period"])
    except PeriodError as error:
        raise ResourceError(HTTPStatus.BAD_REQUEST, str(error)) from error


def _requested_format(request: ResourceRequest, formats: Sequence[str]) -> str:
    form: str = request.query.format or formats[0]
    if form not in formats:
        text = f"invalid format: expected one of {', '.join(formats)}"
        raise ResourceError(HTTPStatus.BAD_REQUEST, text)
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
