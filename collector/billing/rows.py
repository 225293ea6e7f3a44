"""Rows of the billing tables from invoices and charges, and back, exactly."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import msgspec
from sqlalchemy import Row

from collector.billing.charges import Charge, Kind, Unit
from collector.billing.closed import Closing
from collector.billing.invoice import Invoice, Line, Status
from collector.billing.undecided import Undecided
from collector.ledger.rows import GpuDay, Values
from collector.metering.instants import Period

_UNITS = {unit.label: unit for unit in Unit}


def closing_row(closing: Closing) -> Values:
    """The row of a closing."""
    corrected = [[period.start_ns, period.end_ns] for period in closing.corrected]
    return {
        "closing": closing.number,
        "period_start_ns": closing.period.start_ns,
        "period_end_ns": closing.period.end_ns,
        "tenant_id": closing.tenant,
        "closed_ns": closing.closed_ns,
        "closed_by": closing.closed_by,
        "currency": closing.currency,
        "price_version": closing.price_version,
        "ledger_root": closing.ledger_root,
        "manifest_root": closing.manifest_root,
        "corrected": msgspec.json.encode(corrected).decode(),
        "missing": msgspec.json.encode(closing.missing).decode(),
    }


def closing_of(row: Row[Any]) -> Closing:
    """The closing of a row."""
    corrected = msgspec.json.decode(row.corrected, type=list[tuple[int, int]])
    return Closing(
        number=row.closing,
        period=Period(row.period_start_ns, row.period_end_ns),
        tenant=row.tenant_id,
        closed_ns=row.closed_ns,
        closed_by=row.closed_by,
        currency=row.currency,
        price_version=row.price_version,
        ledger_root=row.ledger_root,
        manifest_root=row.manifest_root,
        corrected=tuple(Period(*span) for span in corrected),
        missing=tuple(msgspec.json.decode(row.missing, type=list[GpuDay])),
    )


def invoice_row(invoice: Invoice, closing: int) -> Values:
    """The row of an invoice."""
    return {
        "invoice_id": invoice.invoice_id,
        "closing": closing,
        "tenant_id": invoice.tenant,
        "period_start_ns": invoice.period.start_ns,
        "period_end_ns": invoice.period.end_ns,
        "currency": invoice.currency,
        "total_minor": invoice.total_minor,
        "content_hash": invoice.content_hash,
        "replaces": invoice.replaces,
        "issued_ns": invoice.issued_ns,
    }


def charge_row(line: Line, invoice_id: str) -> Values:
    """The row of a line."""
    charge = line.charge
    return {
        "invoice_id": invoice_id,
        "charge_id": charge.charge_id,
        "tenant_id": charge.tenant,
        "kind": charge.kind.value,
        "service_t0_ns": charge.service_t0_ns,
        "service_t1_ns": charge.service_t1_ns,
        "amount": str(charge.amount),
        "amount_minor": line.minor,
        "sku": charge.sku,
        "quantity": str(charge.quantity),
        "unit": charge.unit.label if charge.unit else None,
        "price_nano": charge.price_nano,
        "list_nano": charge.list_nano,
        "price_version": charge.price_version,
        "resource": charge.resource,
        "mig_profile": charge.mig_profile,
        "claim_id": charge.claim,
        "state": str(charge.state),
        "note": charge.note,
        "corrects": charge.corrects,
        "corrected_in_ns": charge.corrected_in_ns,
    }


def line_of(row: Row[Any]) -> Line:
    """The line of a row."""
    charge = Charge(
        tenant=row.tenant_id,
        kind=Kind(row.kind),
        service_t0_ns=row.service_t0_ns,
        service_t1_ns=row.service_t1_ns,
        amount=Fraction(row.amount),
        sku=row.sku,
        quantity=Fraction(row.quantity),
        unit=_UNITS[row.unit] if row.unit else None,
        price_nano=row.price_nano,
        list_nano=row.list_nano,
        price_version=row.price_version,
        resource=row.resource,
        mig_profile=row.mig_profile,
        claim=row.claim_id,
        state=row.state,
        note=row.note,
        corrects=row.corrects,
        corrected_in_ns=row.corrected_in_ns,
    )
    return Line(charge, row.amount_minor)


def invoice_of(row: Row[Any], lines: Sequence[Line]) -> Invoice:
    """The invoice of a row and its lines. Raises InvoiceError if they differ from what was issued."""
    return Invoice(
        tenant=row.tenant_id,
        period=Period(row.period_start_ns, row.period_end_ns),
        currency=row.currency,
        lines=tuple(lines),
        content_hash=row.content_hash,
        replaces=row.replaces,
        status=Status.ISSUED if row.voided_ns is None else Status.VOID,
        issued_ns=row.issued_ns,
        audit_seq=row.leaf,
    )


def review_row(one: Undecided, closing: int, position: int) -> Values:
    """The row of undecided use of a closing."""
    return {
        "closing": closing,
        "review": position,
        "tenant_id": one.tenant,
        "resource": one.resource,
        "sku": one.sku,
        "claim_id": one.claim,
        "state": str(one.state),
        "units": one.units,
        "start_ns": one.start_ns,
        "end_ns": one.end_ns,
        "reason": one.reason,
    }


def review_of(row: Row[Any]) -> Undecided:
    """Undecided use of a closing, from its row."""
    return Undecided(
        resource=row.resource,
        start_ns=row.start_ns,
        end_ns=row.end_ns,
        reason=row.reason,
        tenant=row.tenant_id,
        sku=row.sku,
        claim=row.claim_id,
        state=row.state,
        units=row.units,
    )
