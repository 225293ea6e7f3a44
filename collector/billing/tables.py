"""Billing tables, in the database of the ledger. Rows are added and never changed.

An invoice is issued by its row, and void if a row of `voids` refers to it; drafts are not stored. A
period is closed by a closing; the closing of a single tenant replaces a void invoice. Exact numbers
are text: integers, or fractions such as `7/3`.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Table,
    Text,
)

from collector.ledger.schema import cover, make_append_only, metadata

price_books = Table(
    "billing_price_book",
    metadata,
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    Column("published_ns", BigInteger, nullable=False),
    Column("currency", Text, nullable=False),
    Column("content_hash", Text, nullable=False),
    Column("recorded_ns", BigInteger, nullable=False),
    Column("recorded_by", Text, nullable=False),
    Column("text", Text, nullable=False),
)
"""Price books as they were published."""

closings = Table(
    "billing_closing",
    metadata,
    Column("closing", BigInteger, primary_key=True, autoincrement=False),
    Column("period_start_ns", BigInteger, nullable=False),
    Column("period_end_ns", BigInteger, nullable=False),
    Column("tenant_id", Text, nullable=False),
    Column("closed_ns", BigInteger, nullable=False),
    Column("closed_by", Text, nullable=False),
    Column("currency", Text, nullable=False),
    Column("price_version", ForeignKey("billing_price_book.version"), nullable=False),
    Column("ledger_root", Text, nullable=False),
    Column("manifest_root", Text, nullable=False),
    Column("corrected", Text, nullable=False),
    Column("missing", Text, nullable=False),
    CheckConstraint("period_start_ns < period_end_ns", name="time_passes"),
)
Index(
    "billing_closing_period",
    closings.c.period_start_ns,
    unique=True,
    sqlite_where=closings.c.tenant_id == "",
    postgresql_where=closings.c.tenant_id == "",
)

closing_revisions = Table(
    "billing_closing_revision",
    metadata,
    Column("closing", ForeignKey("billing_closing.closing"), primary_key=True),
    Column("gpu_uuid", Text, primary_key=True),
    Column("day", BigInteger, primary_key=True, autoincrement=False),
    Column("revision", BigInteger, nullable=False),
    ForeignKeyConstraint(
        ["gpu_uuid", "day", "revision"],
        ["ledger_revision.gpu_uuid", "ledger_revision.day", "ledger_revision.revision"],
    ),
    Index("billing_closing_revision_day", "gpu_uuid", "day"),
)
"""The revisions of the ledger that a closing used."""

adjustments = Table(
    "billing_adjustment",
    metadata,
    Column("charge_id", Text, primary_key=True),
    Column("tenant_id", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("service_t0_ns", BigInteger, nullable=False),
    Column("service_t1_ns", BigInteger, nullable=False),
    Column("amount", Text, nullable=False),
    Column("currency", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("recorded_ns", BigInteger, nullable=False),
    Column("recorded_by", Text, nullable=False),
)
"""Credits and adjustments, billed by the next closing."""

invoices = Table(
    "billing_invoice",
    metadata,
    Column("invoice_id", Text, primary_key=True),
    Column("closing", ForeignKey("billing_closing.closing"), nullable=False),
    Column("tenant_id", Text, nullable=False),
    Column("period_start_ns", BigInteger, nullable=False),
    Column("period_end_ns", BigInteger, nullable=False),
    Column("currency", Text, nullable=False),
    Column("total_minor", BigInteger, nullable=False),
    Column("content_hash", Text, nullable=False, unique=True),
    Column("replaces", Text, nullable=False),
    Column("issued_ns", BigInteger, nullable=False),
    Index("billing_invoice_tenant", "tenant_id", "period_start_ns"),
)

charges = Table(
    "billing_charge",
    metadata,
    Column("invoice_id", ForeignKey("billing_invoice.invoice_id"), primary_key=True),
    Column("charge_id", Text, primary_key=True),
    Column("tenant_id", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("service_t0_ns", BigInteger, nullable=False),
    Column("service_t1_ns", BigInteger, nullable=False),
    Column("amount", Text, nullable=False),
    Column("amount_minor", BigInteger, nullable=False),
    Column("sku", Text, nullable=False),
    Column("quantity", Text, nullable=False),
    Column("unit", Text),
    Column("price_nano", BigInteger, nullable=False),
    Column("list_nano", BigInteger, nullable=False),
    Column("price_version", BigInteger, nullable=False),
    Column("resource", Text, nullable=False),
    Column("mig_profile", Text, nullable=False),
    Column("claim_id", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("note", Text, nullable=False),
    Column("corrects", Text, nullable=False),
    Column("corrected_in_ns", BigInteger),
)
"""The lines of invoices; `amount` is exact, `amount_minor` its share of the rounded total."""

reviews = Table(
    "billing_review",
    metadata,
    Column("closing", ForeignKey("billing_closing.closing"), primary_key=True),
    Column("review", BigInteger, primary_key=True, autoincrement=False),
    Column("tenant_id", Text, nullable=False),
    Column("resource", Text, nullable=False),
    Column("sku", Text, nullable=False),
    Column("claim_id", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("units", BigInteger, nullable=False),
    Column("start_ns", BigInteger, nullable=False),
    Column("end_ns", BigInteger, nullable=False),
    Column("reason", Text, nullable=False),
)
"""Use that a closing did not bill because it needs a decision."""

voids = Table(
    "billing_void",
    metadata,
    Column("invoice_id", ForeignKey("billing_invoice.invoice_id"), primary_key=True),
    Column("voided_ns", BigInteger, nullable=False),
    Column("voided_by", Text, nullable=False),
    Column("reason", Text, nullable=False),
)

openings = Table(
    "billing_opening",
    metadata,
    Column("opening", BigInteger, primary_key=True, autoincrement=False),
    Column("opening_ns", BigInteger, nullable=False),
    Column("reason", Text, nullable=False),
    Column("recorded_ns", BigInteger, nullable=False),
    Column("recorded_by", Text, nullable=False),
)
"""Dates before which nothing is billed; the newest row applies."""

ALL = (
    price_books,
    closings,
    closing_revisions,
    adjustments,
    invoices,
    charges,
    reviews,
    voids,
    openings,
)
for _table in ALL:
    make_append_only(_table)
cover("price book", price_books)
cover("closing", closings, closing_revisions, reviews)
cover("adjustment", adjustments)
cover("invoice", invoices, charges)
cover("void", voids)
cover("opening", openings)
