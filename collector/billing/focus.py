"""FOCUS 1.2 rows of an invoice: columns and values.

Source: FinOps-Open-Cost-and-Usage-Spec/FOCUS_Spec, tag v1.2, specification/columns. Railscope's own
columns start with x_. Costs and quantities are fractions with at most 12 decimals; each row has its
exact cost at 12 decimals, and one rounding row makes the rows of an invoice add up to the payable
amount.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from collector.billing.charges import NANO, Charge, Kind, priced
from collector.billing.focus_columns import PRECISION, UNIT_OF_DECIMALS, Row
from collector.billing.focus_skus import (
    key_values,
    meter,
    price_details,
    price_id,
    resource_id,
    resource_type,
    sku_id,
)
from collector.billing.invoice import Invoice, InvoiceError, Status
from collector.metering.instants import to_datetime

GREATEST = 10**PRECISION  # in units of the last decimal

_COSTS = (
    "BilledCost", "ContractedCost", "EffectiveCost", "ListCost", "PricingCurrencyEffectiveCost",
)  # fmt: skip
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
    """Payer of a tenant's invoices: group, type of tenant (Namespace, Account), and tags."""

    group: str
    group_name: str | None = None
    tenant_type: str = "Account"
    tenant_name: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Region:
    """Location of the GPUs."""

    id: str
    name: str


@dataclass(frozen=True, slots=True)
class Seller:
    """Issuer of invoices: provider, service, and the account that pays for each tenant."""

    provider: str
    invoice_issuer: str
    accounts: Mapping[str, Account]
    publisher: str = ""
    service: str = "GPU Cluster"
    region: Region | None = None


@dataclass(frozen=True, slots=True)
class Provenance:
    """Origin of a charge, for Railscope's own columns; None if unknown.

    `coverage_ratio`: the observed share of the GPU's time on the days of the service.
    `evidence_hash` covers the evidence of these days, `ledger_revisions` are their revisions in the
    ledger.
    """

    coverage_ratio: Fraction | None = None
    evidence_hash: str | None = None
    ledger_revisions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Background:
    """Context of the charges: provenance by charge id, and a checkpoint of the audit log."""

    provenance: Mapping[str, Provenance] = field(default_factory=dict)
    audit_checkpoint: str | None = None


def rows(invoice: Invoice, seller: Seller, background: Background | None = None) -> list[Row]:
    """The rows of an issued invoice, with a rounding row if there is a difference.

    Raises InvoiceError for a draft or void invoice and for a tenant without an account, and
    OverflowError for a number beyond 38 digits.
    """
    return list(iterate(invoice, seller, background))


def iterate(
    invoice: Invoice, seller: Seller, background: Background | None = None
) -> Iterator[Row]:
    """Iterate over the rows of an issued invoice, as `rows`."""
    if invoice.status is not Status.ISSUED:
        message = f"{invoice.invoice_id}: is {invoice.status}; only what is issued is exported"
        raise InvoiceError(message)
    if invoice.tenant not in seller.accounts:
        message = f"{invoice.invoice_id}: no account pays for tenant {invoice.tenant}"
        raise InvoiceError(message)
    known = background or Background()
    common = _common(invoice, seller, known)
    difference = invoice.payable
    for line in invoice.lines:
        difference -= decimal(line.charge.amount)
        yield common | _row(line.charge, known)
    if difference:
        costs: Row = dict.fromkeys(_COSTS, decimal(difference))
        yield common | _row(invoice.rounding, known) | costs


def applicable(seller: Seller) -> tuple[str, ...]:
    """Ids of the FOCUS applicability criteria that this seller's rows meet, in order."""
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
    """Round to 12 decimals, half to even. Raises OverflowError beyond 38 digits."""
    # In integers, for speed: each row has several, and Fraction computes a gcd for every operation.
    counted, rest = divmod(value.numerator * UNIT_OF_DECIMALS, value.denominator)
    if 2 * rest > value.denominator or (2 * rest == value.denominator and counted % 2):
        counted += 1
    if abs(counted) >= GREATEST:
        message = f"{value} has more than 38 digits"
        raise OverflowError(message)
    return Fraction(counted, UNIT_OF_DECIMALS)


def _common(invoice: Invoice, seller: Seller, known: Background) -> Row:
    """Columns that are equal in all rows of an invoice."""
    account = seller.accounts[invoice.tenant]
    return {
        "BillingAccountId": account.group,
        "BillingAccountName": account.group_name,
        "BillingCurrency": invoice.currency,
        "BillingPeriodStart": to_datetime(invoice.period.start_ns),
        "BillingPeriodEnd": to_datetime(invoice.period.end_ns),
        "CommitmentDiscountStatus": None,
        "InvoiceId": invoice.invoice_id,
        "InvoiceIssuerName": seller.invoice_issuer,
        "PricingCurrency": invoice.currency,
        "ProviderName": seller.provider,
        "PublisherName": seller.publisher or seller.provider,
        "RegionId": seller.region.id if seller.region else None,
        "RegionName": seller.region.name if seller.region else None,
        "ServiceCategory": "AI and Machine Learning",
        "ServiceName": seller.service,
        "ServiceSubcategory": "AI Platforms",
        "SubAccountId": invoice.tenant,
        "SubAccountName": account.tenant_name or invoice.tenant,
        "SubAccountType": account.tenant_type,
        "Tags": key_values(account.tags),
        "x_AuditCheckpoint": known.audit_checkpoint,
        "x_AuditRecord": None if invoice.audit_seq is None else str(invoice.audit_seq),
    }


def _row(charge: Charge, known: Background) -> Row:
    row: Row = {
        "CapacityReservationId": _reservation(charge),
        "CapacityReservationStatus": "Unused" if charge.kind is Kind.RESERVATION else None,
        "ChargeCategory": _CATEGORIES.get(charge.kind, "Usage"),
        "ChargeClass": "Correction" if charge.corrects else None,
        "ChargeDescription": charge.note or _DESCRIPTIONS.get(charge.kind),
        "ChargeFrequency": "Usage-Based" if charge.unit else "One-Time",
        "ChargePeriodStart": to_datetime(charge.service_t0_ns),
        "ChargePeriodEnd": to_datetime(charge.service_t1_ns),
        "ResourceId": resource_id(charge),
        "ResourceName": None,  # GPUs have no names other than the driver's
        "ResourceType": resource_type(charge),
    }
    return row | _priced(charge) | _ours(charge, known)


def _priced(charge: Charge) -> Row:
    """Costs, quantities and unit prices; without a price all costs are the amount."""
    unit = charge.unit
    quantity = decimal(charge.quantity / unit.size) if unit else None
    price = Fraction(charge.price_nano, NANO) if unit else None
    list_price, cost = price, decimal(charge.amount)
    list_cost = cost
    if unit and charge.list_nano != charge.price_nano:
        list_price = Fraction(charge.list_nano, NANO)
        list_cost = decimal(priced(charge.quantity, unit, charge.list_nano))
    return {
        **dict.fromkeys(_COSTS, cost),
        "ConsumedQuantity": quantity,
        "ConsumedUnit": unit.label if unit else None,
        "ContractedUnitPrice": price,
        "ListCost": list_cost,
        "ListUnitPrice": list_price,
        "PricingCategory": "Standard" if unit else None,
        "PricingCurrencyContractedUnitPrice": price,
        "PricingCurrencyListUnitPrice": list_price,
        "PricingQuantity": quantity,
        "PricingUnit": unit.label if unit else None,
        "SkuId": sku_id(charge),
        "SkuMeter": meter(charge),
        "SkuPriceDetails": price_details(charge),
        "SkuPriceId": price_id(charge),
    }


def _ours(charge: Charge, known: Background) -> Row:
    origin = known.provenance.get(charge.charge_id, Provenance())
    ratio = origin.coverage_ratio
    return {
        "x_AllocationState": charge.state or None,
        "x_CoverageRatio": None if ratio is None else decimal(ratio),
        "x_EvidenceHash": origin.evidence_hash,
        "x_LedgerRevision": ",".join(map(str, origin.ledger_revisions)) or None,
        "x_ChargeId": charge.charge_id,
        "x_ChargeKind": charge.kind.value,
        "x_ClaimId": charge.claim or None,
        "x_CorrectsInvoiceId": _corrected(charge),
    }


def _corrected(charge: Charge) -> str | None:
    """The corrected invoice; None if the tenant had none and `corrects` names the period instead."""
    return None if charge.corrects.startswith("period:") else charge.corrects or None


def _reservation(charge: Charge) -> str | None:
    if charge.kind is not Kind.RESERVATION:
        return None
    return charge.claim or charge.resource
