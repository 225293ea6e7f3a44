"""Store of the billing tables: price books, closings, invoices, credits and adjustments.

Queries, insertion of rows, and the contents of the database other than invoices. `period_closing`
and `administration` decide what is written. All methods block, and raise UnusableLedgerError.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, Select, Table, func, or_, select

from railscope_collector.billing import charges, price_book, price_book_file, tables, undecided_use
from railscope_collector.billing.closing_record import PeriodClosing
from railscope_collector.billing.invoices import Invoice, InvoiceStatus
from railscope_collector.ledger import (
    audit_outbox,
    day_documents,
    schema,
    transactions,
)
from railscope_collector.ledger.database import Database, UnusableLedgerError
from railscope_collector.ledger.day_documents import GpuDay
from railscope_collector.metering.units import Period


class InvoiceHead(NamedTuple):
    """An invoice without its lines."""

    invoice_id: str
    tenant: str
    period: Period
    replaces: str
    currency: str
    total_minor: int
    issued_ns: int
    void_reason: str | None

    @property
    def payable(self) -> Fraction:
        """Payable amount in units of the currency."""
        return Fraction(self.total_minor, 10 ** charges.currency_exponent(self.currency))

    @property
    def void(self) -> bool:
        """True if it is void."""
        return self.void_reason is not None


class PublishedPriceBook(NamedTuple):
    """A price book as it was published."""

    book: price_book.PriceBook
    text: str


class RecordedAdjustment(NamedTuple):
    """A credit or an adjustment: its charge, currency, time of recording and actor."""

    charge: charges.Charge
    currency: str
    recorded_ns: int
    recorded_by: str


class BillingOpening(NamedTuple):
    """Start of the billed time, its reason, time of recording and actor."""

    opening_ns: int
    reason: str
    recorded_ns: int
    recorded_by: str


_LOCK = 0x7261_696C_6269_6C6C
"""`railbill` in ASCII: advisory locks of PostgreSQL are numbers that all applications of a database share."""
ISSUE = "billing.issue/"
"""Prefix of the outbox ids of invoice records."""


@dataclass(frozen=True, slots=True)
class BillingStore:
    """The billing tables of the database."""

    database: Database

    def row_counts(self, connection: Connection) -> dict[str, int]:
        """Rows of the tables that a closing depends on; the counts change with any new row."""
        counted = (
            tables.price_books,
            tables.closings,
            tables.adjustments,
            tables.voids,
            tables.openings,
        )
        return {
            table.name: connection.execute(select(func.count()).select_from(table)).scalar_one()
            for table in counted
        }

    @contextmanager
    def write_transaction(self) -> Iterator[Connection]:
        """Context manager of a transaction that has locked billing."""
        with self.database.transaction(writes=True) as connection:
            transactions.lock(connection, _LOCK)
            yield connection

    @contextmanager
    def _transaction(self, connection: Connection | None) -> Iterator[Connection]:
        """The transaction that the caller has begun, or else a new one."""
        # A read inside the caller's transaction sees its uncommitted rows, and its lock.
        if connection is not None:
            yield connection
            return
        with self.database.transaction() as new_connection:
            yield new_connection

    # Prices --------------------------------------------------------------------------------------

    def book(
        self, version: int | None = None, connection: Connection | None = None
    ) -> PublishedPriceBook | None:
        """The newest price book, or the one of a version; None if there is none."""
        query = select(tables.price_books).order_by(tables.price_books.c.version.desc()).limit(1)
        if version is not None:
            query = query.where(tables.price_books.c.version == version)
        with self._transaction(connection) as reading:
            row = reading.execute(query).first()
        if row is None:
            return None
        book = price_book_file.parse_price_book(row.text, f"price book version {row.version}")
        return PublishedPriceBook(book, row.text)

    def opening(self) -> BillingOpening | None:
        """The newest opening date; None if all time is billed."""
        query = select(tables.openings).order_by(tables.openings.c.opening.desc()).limit(1)
        with self.database.transaction() as connection:
            row = connection.execute(query).first()
        if row is None:
            return None
        return BillingOpening(row.opening_ns, row.reason, row.recorded_ns, row.recorded_by)

    # Closings ------------------------------------------------------------------------------------

    def closings(self, connection: Connection | None = None) -> list[PeriodClosing]:
        """All closings, in order."""
        query = select(tables.closings).order_by(tables.closings.c.closing)
        with self._transaction(connection) as reading:
            return [tables.closing_from_row(row) for row in reading.execute(query)]

    def revisions(self, closing: int, gpus: Iterable[str] | None = None) -> dict[GpuDay, int]:
        """The ledger revisions that a closing used, of all GPUs or of some."""
        table = tables.used_revisions
        query = select(table.c.gpu_uuid, table.c.day, table.c.revision)
        query = query.where(table.c.closing == closing)
        queries = [query]
        if gpus is not None:
            queries = [
                query.where(table.c.gpu_uuid.in_(gpu_group))
                for gpu_group in day_documents.split_items(sorted(gpus))
            ]
        with self.database.transaction() as connection:
            rows = [row for each in queries for row in connection.execute(each)]
        return {GpuDay(row.gpu_uuid, row.day): row.revision for row in rows}

    def reviews(self, closing: int) -> list[undecided_use.UndecidedUse]:
        """Undecided use of a closing."""
        table = tables.reviews
        query = select(table).where(table.c.closing == closing).order_by(table.c.review)
        with self.database.transaction() as connection:
            return [tables.review_from_row(row) for row in connection.execute(query)]

    def undecided_closings(
        self, tenant: str | None = None, connection: Connection | None = None
    ) -> dict[int, set[str]]:
        """Tenants with undecided use, by closing; of one tenant, the closings that have it."""
        table = tables.reviews
        query = select(table.c.closing, table.c.tenant_id).distinct()
        query = query.where(table.c.tenant_id != "")
        if tenant is not None:
            query = query.where(table.c.tenant_id == tenant)
        closings: dict[int, set[str]] = defaultdict(set)
        with self._transaction(connection) as reading:
            for row in reading.execute(query):
                closings[row.closing].add(row.tenant_id)
        return dict(closings)

    # Invoices ------------------------------------------------------------------------------------

    def invoices(self, period: Period | None = None, tenant: str | None = None) -> list[Invoice]:
        """Issued and void invoices that overlap a period, of a tenant; in order of issue.

        Raises UnusableLedgerError for an invoice that differs from what was issued.
        """
        return self._read(_restrict_invoices(_select_invoices(), period, tenant))

    def heads(
        self,
        period: Period | None = None,
        tenant: str | None = None,
        connection: Connection | None = None,
    ) -> list[InvoiceHead]:
        """Invoices as in `invoices`, without their lines, of which there may be many."""
        with self._transaction(connection) as reading:
            rows = reading.execute(_restrict_invoices(_select_invoices(), period, tenant)).all()
        return [schema.from_row(InvoiceHead, row, void_reason=row.reason) for row in rows]

    def valid_invoices(self, since_ns: int, before: PeriodClosing | None = None) -> list[Invoice]:
        """Invoices of periods since a time, without those that are void, or were void before a closing."""
        table, void = tables.invoices, tables.voids
        query = _select_invoices().where(table.c.period_start_ns >= since_ns)
        if before is None:
            query = query.where(void.c.voided_ns.is_(None))
        else:
            # As of the closing: an invoice that was voided after it was valid when it was computed.
            later = or_(void.c.voided_ns.is_(None), void.c.voided_ns > before.closed_ns)
            query = query.where(table.c.closing < before.number, later)
        return [replace(invoice, status=InvoiceStatus.ISSUED) for invoice in self._read(query)]

    def of_closing(self, closing: int) -> list[Invoice]:
        """The invoices that a closing issued."""
        return self._read(_select_invoices().where(tables.invoices.c.closing == closing))

    def invoice(
        self, invoice_id: str, connection: Connection | None = None
    ) -> tuple[Invoice, int] | None:
        """An invoice, and the number of the closing that issued it."""
        query = _select_invoices().where(tables.invoices.c.invoice_id == invoice_id)
        with self._transaction(connection) as reading:
            invoices = self._read(query, reading)
            return (invoices[0], reading.execute(query).one().closing) if invoices else None

    def audit_position(self, invoice_id: str) -> audit_outbox.LogPosition | None:
        """Position of an invoice's record in the audit log; None if it is not recorded yet."""
        with self.database.transaction() as connection:
            return audit_outbox.recorded_position(connection, ISSUE + invoice_id)

    def _read(self, query: Select[Any], connection: Connection | None = None) -> list[Invoice]:
        table = tables.charges
        lines: dict[str, list[Row[Any]]] = defaultdict(list)
        with self._transaction(connection) as reading:
            rows = reading.execute(query).all()
            for id_group in day_documents.split_items([row.invoice_id for row in rows]):
                line_query = (
                    select(table)
                    .where(table.c.invoice_id.in_(id_group))
                    .order_by(table.c.charge_id)
                )
                for row in reading.execute(line_query):
                    lines[row.invoice_id].append(row)
        return [self._invoice(row, lines.pop(row.invoice_id, ())) for row in rows]

    def _invoice(self, row: Row[Any], lines: Iterable[Row[Any]]) -> Invoice:
        try:
            return tables.invoice_from_row(row, map(tables.line_from_row, lines))
        except ValueError as error:
            message = (
                f"the ledger {self.database.name} was altered: {row.invoice_id} does not match"
                f" what was issued: {error}; fix: restore it from a backup"
            )
            raise UnusableLedgerError(message) from error

    def has_tenant(self, connection: Connection, tenant: str) -> bool:
        """True if a tenant has an invoice, or any time in the ledger."""
        tenant_query = (
            select(tables.invoices.c.tenant_id).where(tables.invoices.c.tenant_id == tenant),
            select(day_documents.totals.c.tenant).where(day_documents.totals.c.tenant == tenant),
        )
        return any(connection.execute(query.limit(1)).first() for query in tenant_query)

    def invoiced_tenants(self, connection: Connection) -> list[str]:
        """Tenants with an invoice."""
        return [*connection.execute(select(tables.invoices.c.tenant_id).distinct()).scalars()]

    # Credits and adjustments ---------------------------------------------------------------------

    def adjustments(self, connection: Connection | None = None) -> list[RecordedAdjustment]:
        """All credits and adjustments, in order of recording."""
        table = tables.adjustments
        query = select(table).order_by(table.c.recorded_ns, table.c.charge_id)
        with self._transaction(connection) as reading:
            rows = reading.execute(query).all()
        return [
            RecordedAdjustment(_adjustment(row), row.currency, row.recorded_ns, row.recorded_by)
            for row in rows
        ]

    def invoiced_amount(self, connection: Connection, charge: charges.Charge) -> Fraction:
        """Amount on valid invoices for the dates of a credit, less earlier credits for them."""
        query = _restrict_invoices(_select_invoices(), None, charge.tenant).where(
            tables.voids.c.invoice_id.is_(None)
        )
        amounts = {
            line.charge: Fraction(line.minor, 10 ** charges.currency_exponent(item.currency))
            for item in self._read(query, connection)
            for line in item.lines
        }
        for item in self.adjustments(connection):
            if item.charge.tenant == charge.tenant:
                # One that is on an invoice already counts with its amount there.
                amounts.setdefault(item.charge, item.charge.amount)
        span = Period(charge.service_t0_ns, charge.service_t1_ns)
        line_amounts = (
            amount
            for each, amount in amounts.items()
            if span.overlaps(Period(each.service_t0_ns, each.service_t1_ns))
        )
        return sum(line_amounts, Fraction(0))

    def billed_adjustments(self) -> set[str]:
        """The ids of the credits and adjustments on valid invoices."""
        table, void = tables.charges, tables.voids
        query = select(table.c.charge_id).where(table.c.unit.is_(None), void.c.invoice_id.is_(None))
        joined = query.outerjoin_from(table, void, void.c.invoice_id == table.c.invoice_id)
        with self.database.transaction() as connection:
            return set(connection.execute(joined).scalars())


def _select_invoices() -> Select[Any]:
    table, void = tables.invoices, tables.voids
    record = audit_outbox.placed_rows.c.id == ISSUE + table.c.invoice_id
    joined = table.outerjoin(void, void.c.invoice_id == table.c.invoice_id)
    columns = (*table.c, void.c.voided_ns, void.c.reason, audit_outbox.placed_rows.c.leaf)
    order = (table.c.closing, table.c.tenant_id)
    return (
        select(*columns)
        .select_from(joined.outerjoin(audit_outbox.placed_rows, record))
        .order_by(*order)
    )


def _restrict_invoices(
    query: Select[Any], period: Period | None, tenant: str | None
) -> Select[Any]:
    """Restrict a query to invoices that overlap a period, of a tenant; None selects all."""
    table = tables.invoices
    if period is not None:
        query = query.where(
            table.c.period_start_ns < period.end_ns, table.c.period_end_ns > period.start_ns
        )
    return query if tenant is None else query.where(table.c.tenant_id == tenant)


def _adjustment(row: Row[Any]) -> charges.Charge:
    return charges.Charge(
        row.tenant_id,
        charges.ChargeKind(row.kind),
        row.service_t0_ns,
        row.service_t1_ns,
        Fraction(row.amount),
        note=row.reason,
    )


def insert_rows(connection: Connection, table: Table, rows: Iterable[dict[str, Any]]) -> None:
    """Insert rows, if there are any."""
    if values := list(rows):
        connection.execute(table.insert(), values)
