"""FOCUS 1.2 rows of an invoice: columns and values.

Source: FinOps-Open-Cost-and-Usage-Spec/FOCUS_Spec, tag v1.2, specification/columns. Columns of
ours start with x_. Costs and quantities are fractions with at most 12 decimals; each row carries
its exact cost at 12 decimals, and one row of rounding makes the rows of an invoice add up to what
is to be paid.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from collector.billing.charges import NANO, Charge, Kind
from collector.billing.focus_columns import DECIMALS, PRECISION, UNIT_OF_DECIMALS, Row
from collector.billing.focus_skus import (
    key_values,
    meter,
    price_details,
    price_id,
    resource_type,
    sku_id,
)
from collector.billing.instants import to_datetime
from collector.billing.invoice import Invoice, InvoiceError, Status
from collector.billing.rounding import to_minor

GREATEST = 10**PRECISION  # counted in the last decimal

_ALWAYS_APPLICABLE = (
    "BILLING_BASED_ON_PROVISIONED_RESOURCES_SUPPORTED", "CAPACITY_RESERVATION_SUPPORTED",
    "MULTIPLE_SUB_ACCOUNT_TYPES_SUPPORTED", "NEGOTIATED_PRICING_SUPPORTED",
    "PUBLIC_PRICE_LIST_SUPPORTED", "RESOURCE_TYPE_ASSIGNMENT_SUPPORTED", "SUB_ACCOUNT_SUPPORTED",
    "UNIT_PRICING_SUPPORTED", "USAGE_MEASUREMENT_SUPPORTED",
)  # fmt: skip
_CATEGORIES = {
    Kind.CREDIT: "Credit",
    Kind.ADJUSTMENT: "Adjustment",
    Kind.ROUNDING: "Adjustment",
    Kind.TAX: "Tax",
}
_DESCRIPTIONS = {
    Kind.USAGE: "GPU time",
    Kind.MINIMUM_TOPUP: "GPU time up to the minimum or the granularity of a claim",
    Kind.RESERVATION: "Reserved GPU time that was not used",
    Kind.ENERGY: "Energy",
    Kind.TAX: "Tax",
}


@dataclass(frozen=True, slots=True)
class Account:
    """Who pays for a tenant: the group, the kind of tenant (Namespace, Account), and tags."""

    group: str
    group_name: str | None = None
    tenant_type: str = "Account"
    tenant_name: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Region:
    """Where the GPUs stand."""

    id: str
    name: str


@dataclass(frozen=True, slots=True)
class Seller:
    """Who bills, for what service, and which account pays for each tenant."""

    provider: str
    invoice_issuer: str
    accounts: Mapping[str, Account]
    publisher: str = ""
    service: str = "GPU Cluster"
    region: Region | None = None


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a charge comes from, for the columns of ours; None where it is not known."""

    coverage_ratio: Fraction | None = None
    evidence_hash: str | None = None
    ledger_revision: int | None = None


@dataclass(frozen=True, slots=True)
class Background:
    """What is known beside the charges.

    Provenance by charge id, display names by resource, and the checkpoint of the audit log.
    """

    provenance: Mapping[str, Provenance] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    audit_checkpoint: str | None = None


def rows(invoice: Invoice, seller: Seller, background: Background | None = None) -> list[Row]:
    """The rows of an issued invoice, and one of rounding if there is a difference.

    Raises InvoiceError for a draft or void invoice and for a tenant without an account, and
    OverflowError for a number beyond 38 digits.
    """
    if invoice.status is not Status.ISSUED:
        message = f"{invoice.invoice_id}: is {invoice.status}; only what is issued is exported"
        raise InvoiceError(message)
    if invoice.tenant not in seller.accounts:
        message = f"{invoice.invoice_id}: no account pays for tenant {invoice.tenant}"
        raise InvoiceError(message)
    known = background or Background()
    found = [_row(line.charge, invoice, seller, known) for line in invoice.lines]
    difference = invoice.payable - billed(found)
    if difference:
        rounding = _row(invoice.rounding, invoice, seller, known)
        costs = ("BilledCost", "ContractedCost", "EffectiveCost", "ListCost")
        found.append(rounding | dict.fromkeys(costs, decimal(difference)))
    return found


def applicable(seller: Seller) -> tuple[str, ...]:
    """What FOCUS may expect of this seller's rows: ids of its applicability criteria, in order."""
    accounts = seller.accounts.values()
    depends = {
        "ACCOUNT_NAMING_SUPPORTED": all(account.group_name for account in accounts),
        "REGION_SUPPORTED": seller.region is not None,
        "TAGGING_SUPPORTED": any(account.tags for account in accounts),
    }
    return tuple(sorted([*_ALWAYS_APPLICABLE, *(name for name, is_so in depends.items() if is_so)]))


def billed(found: Iterable[Row]) -> Fraction:
    """The sum of BilledCost."""
    costs = (row["BilledCost"] for row in found)
    return sum((cost for cost in costs if isinstance(cost, Fraction)), Fraction(0))


def decimal(value: Fraction) -> Fraction:
    """The nearest number with 12 decimals. Raises OverflowError beyond 38 digits."""
    counted = to_minor(value, DECIMALS)
    if abs(counted) >= GREATEST:
        message = f"{value} has more than 38 digits"
        raise OverflowError(message)
    return Fraction(counted, UNIT_OF_DECIMALS)


def _row(charge: Charge, invoice: Invoice, seller: Seller, known: Background) -> Row:
    account = seller.accounts[invoice.tenant]
    row: Row = {
        "BilledCost": decimal(charge.amount),
        "BillingAccountId": account.group,
        "BillingAccountName": account.group_name,
        "BillingCurrency": invoice.currency,
        "BillingPeriodStart": to_datetime(invoice.period.start_ns),
        "BillingPeriodEnd": to_datetime(invoice.period.end_ns),
        "CapacityReservationId": _reservation(charge),
        "CapacityReservationStatus": "Unused" if charge.kind is Kind.RESERVATION else None,
        "ChargeCategory": _CATEGORIES.get(charge.kind, "Usage"),
        "ChargeClass": "Correction" if charge.corrects else None,
        "ChargeDescription": charge.note or _DESCRIPTIONS.get(charge.kind),
        "ChargeFrequency": "Usage-Based" if charge.unit else "One-Time",
        "ChargePeriodStart": to_datetime(charge.service_t0_ns),
        "ChargePeriodEnd": to_datetime(charge.service_t1_ns),
        "CommitmentDiscountStatus": None,
        "EffectiveCost": decimal(charge.amount),
        "InvoiceId": invoice.invoice_id,
        "InvoiceIssuerName": seller.invoice_issuer,
        "ProviderName": seller.provider,
        "PublisherName": seller.publisher or seller.provider,
        "ResourceId": charge.resource or None,
        "RegionId": seller.region.id if seller.region else None,
        "RegionName": seller.region.name if seller.region else None,
        "ResourceName": known.names.get(charge.resource),
        "ResourceType": resource_type(charge),
        "ServiceCategory": "AI and Machine Learning",
        "ServiceName": seller.service,
        "ServiceSubcategory": "AI Platforms",
        "SubAccountId": invoice.tenant,
        "SubAccountName": account.tenant_name or invoice.tenant,
        "SubAccountType": account.tenant_type,
        "Tags": key_values(account.tags),
    }
    return row | _priced(charge, invoice.currency) | _ours(charge, known)


def _priced(charge: Charge, currency: str) -> Row:
    """Quantities and unit prices; without a price all costs are the amount."""
    unit = charge.unit
    quantity = Fraction(charge.quantity, unit.size) if unit else None
    list_cost = quantity * charge.list_nano / NANO if quantity is not None else charge.amount
    list_price = Fraction(charge.list_nano, NANO) if unit else None
    price = Fraction(charge.price_nano, NANO) if unit else None
    shown = None if quantity is None else decimal(quantity)
    return {
        "ConsumedQuantity": shown,
        "ConsumedUnit": unit.label if unit else None,
        "ContractedCost": decimal(charge.amount),
        "ContractedUnitPrice": price,
        "ListCost": decimal(list_cost),
        "ListUnitPrice": list_price,
        "PricingCategory": "Standard" if unit else None,
        "PricingCurrency": currency,
        "PricingCurrencyContractedUnitPrice": price,
        "PricingCurrencyEffectiveCost": decimal(charge.amount),
        "PricingCurrencyListUnitPrice": list_price,
        "PricingQuantity": shown,
        "PricingUnit": unit.label if unit else None,
        "SkuId": sku_id(charge),
        "SkuMeter": meter(charge),
        "SkuPriceDetails": price_details(charge),
        "SkuPriceId": price_id(charge),
    }


def _ours(charge: Charge, known: Background) -> Row:
    origin = known.provenance.get(charge.charge_id, Provenance())
    ratio, revision = origin.coverage_ratio, origin.ledger_revision
    return {
        "x_AllocationState": charge.state or None,
        "x_CoverageRatio": None if ratio is None else decimal(ratio),
        "x_EvidenceHash": origin.evidence_hash,
        "x_LedgerRevision": None if revision is None else str(revision),
        "x_AuditCheckpoint": known.audit_checkpoint,
        "x_ChargeId": charge.charge_id,
        "x_ChargeKind": charge.kind.value,
        "x_ClaimId": charge.claim or None,
        "x_CorrectsInvoiceId": _corrected(charge),
    }


def _corrected(charge: Charge) -> str | None:
    """The invoice; None where the tenant had none in that period, and the period stands for it."""
    return None if charge.corrects.startswith("period:") else charge.corrects or None


def _reservation(charge: Charge) -> str | None:
    if charge.kind is not Kind.RESERVATION:
        return None
    return charge.claim or charge.resource
