"""FOCUS 1.2 rows of an invoice: columns, identifiers and values, with the seller and the payers.

Source: FinOps-Open-Cost-and-Usage-Spec/FOCUS_Spec, tag v1.2, specification/columns. Railscope's own
columns start with x_. Costs and quantities are fractions with at most 12 decimals; each row has its
exact cost at 12 decimals, and one rounding row makes the rows of an invoice add up to the payable
amount.

A SKU is one metered quantity: the time of a GPU model, the time of one MIG profile of it, the
energy of that model. The prices of a SKU differ by tariff. A price id contains neither the tenant nor
the version of the price book: FOCUS requires the same id for all payers at all times.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from railscope.timestamps import to_datetime
from railscope_collector.billing import charges, focus_columns, invoices
from railscope_collector.files.seller_file import Seller

_METERS = {
    charges.PriceUnit.GPU_HOURS: "GPU Time",
    charges.PriceUnit.INSTANCE_HOURS: "MIG Instance Time",
    charges.PriceUnit.KILOWATT_HOURS: "Energy",
}
_MIG_UUID = "MIG-"  # prefix of the driver's ids of MIG instances


def sku_id(charge: charges.Charge) -> str | None:
    """The SKU; None for a charge without one (FOCUS requires null for taxes)."""
    if not charge.sku or charge.kind is charges.ChargeKind.TAX:
        return None
    if charge.unit is None or charge.unit is charges.PriceUnit.GPU_HOURS:
        return charge.sku
    if charge.unit is charges.PriceUnit.INSTANCE_HOURS:
        return f"{charge.sku}/{charge.mig_profile}"
    return f"{charge.sku}/{charge.kind.value}"


def price_id(charge: charges.Charge) -> str | None:
    """The price: SKU, tariff and unit, by which a price list has one price at a time.

    A minimum is billed at the price of the time that it tops up.
    """
    if charge.unit is None:
        return None
    kind = (
        charges.ChargeKind.USAGE if charge.kind is charges.ChargeKind.MINIMUM_TOPUP else charge.kind
    )
    parts = (charge.sku, charge.mig_profile, kind.value, charge.unit.label)
    return "/".join(part for part in parts if part)


def price_details(charge: charges.Charge) -> str | None:
    """Properties of one pricing unit: GPUs in a GPU-hour, the profile of an instance-hour."""
    if charge.unit is charges.PriceUnit.GPU_HOURS:
        return key_values({"GpuCount": 1})
    if charge.unit is charges.PriceUnit.INSTANCE_HOURS:
        return key_values({"x_MigProfile": charge.mig_profile})
    return None


def resource_id(charge: charges.Charge) -> str | None:
    """The UUID of the GPU or of the MIG instance; without one, the GPU's with the MIG profile.

    So no id denotes a whole GPU in one row and an instance in another.
    """
    if charge.mig_profile and not charge.resource.startswith(_MIG_UUID):
        return f"{charge.resource}/{charge.mig_profile}" if charge.resource else None
    return charge.resource or None


def resource_type(charge: charges.Charge) -> str | None:
    """Type of the resource."""
    if not charge.resource:
        return None
    shared = charge.mig_profile or charge.resource.startswith(_MIG_UUID)
    return "MIG instance" if shared else "GPU"


def key_values(values: Mapping[str, str | int]) -> str | None:
    """FOCUS KeyValueFormat: one flat JSON object with sorted keys; None if empty."""
    if not values:
        return None
    return json.dumps(dict(values), ensure_ascii=False, separators=(",", ":"), sort_keys=True)


MAX_DECIMAL_UNITS = 10**focus_columns.PRECISION  # in units of the last decimal

_COSTS = (
    "BilledCost",
    "ContractedCost",
    "EffectiveCost",
    "ListCost",
    "PricingCurrencyEffectiveCost",
)
_ALWAYS_APPLICABLE = (
    "BILLING_BASED_ON_PROVISIONED_RESOURCES_SUPPORTED", "CAPACITY_RESERVATION_SUPPORTED",
    "MULTIPLE_SUB_ACCOUNT_TYPES_SUPPORTED", "NEGOTIATED_PRICING_SUPPORTED",
    "PUBLIC_PRICE_LIST_SUPPORTED", "RESOURCE_TYPE_ASSIGNMENT_SUPPORTED", "SUB_ACCOUNT_SUPPORTED",
    "UNIT_PRICING_SUPPORTED", "USAGE_MEASUREMENT_SUPPORTED",
)  # fmt: skip
_CATEGORIES = {
    charges.ChargeKind.CREDIT: "Credit",
    charges.ChargeKind.ADJUSTMENT: "Adjustment",
    charges.ChargeKind.ROUNDING: "Adjustment",
    charges.ChargeKind.TAX: "Tax",
}
_DESCRIPTIONS = {
    charges.ChargeKind.USAGE: "GPU time",
    charges.ChargeKind.MINIMUM_TOPUP: "GPU time up to the minimum or the granularity of a claim",
    charges.ChargeKind.RESERVATION: "Reserved GPU time that was not used",
    charges.ChargeKind.ENERGY: "Energy",
    charges.ChargeKind.TAX: "Tax",
}


@dataclass(frozen=True, slots=True)
class ChargeProvenance:
    """Origin of a charge, for Railscope's own columns; None if unknown.

    `coverage_ratio`: the observed share of the GPU's time on the day of the service.
    `evidence_hash` is the hash of that day in the ledger, `ledger_revision` its revision.
    """

    coverage_ratio: Fraction | None = None
    evidence_hash: str | None = None
    ledger_revision: int | None = None


@dataclass(frozen=True, slots=True)
class ExportContext:
    """Context of the charges: provenance by charge id, and a checkpoint of the audit log."""

    provenance: Mapping[str, ChargeProvenance] = field(default_factory=dict)
    audit_checkpoint: str | None = None


def invoice_rows(
    invoice: invoices.Invoice, seller: Seller, background: ExportContext | None = None
) -> Iterator[focus_columns.FocusRow]:
    """Yield the rows of an issued invoice, with a rounding row if there is a difference.

    Raises InvoiceError for a draft or void invoice and for a tenant without an account, and
    OverflowError for a number beyond 38 digits.
    """
    if invoice.status is not invoices.InvoiceStatus.ISSUED:
        message = (
            f"cannot export {invoice.invoice_id}: status {invoice.status}: expected an"
            " issued invoice"
        )
        raise invoices.InvoiceError(message)
    if invoice.tenant not in seller.accounts:
        message = f"cannot export {invoice.invoice_id}: unknown billing account of tenant {invoice.tenant}"
        raise invoices.InvoiceError(message)
    context = background or ExportContext()
    common = _invoice_columns(invoice, seller, context)
    difference = invoice.payable
    for line in invoice.lines:
        difference -= round_decimal(line.charge.amount)
        yield common | _charge_columns(line.charge, context)
    # The rounding of the invoice to minor units, and of each row to 12 decimals, together.
    if difference:
        costs: focus_columns.FocusRow = dict.fromkeys(_COSTS, round_decimal(difference))
        yield common | _charge_columns(invoice.rounding, context) | costs


def applicability_criteria(seller: Seller) -> tuple[str, ...]:
    """Ids of the FOCUS applicability criteria that this seller's rows meet, in order."""
    accounts = seller.accounts.values()
    depends = {
        "ACCOUNT_NAMING_SUPPORTED": all(account.group_name for account in accounts),
        "REGION_SUPPORTED": seller.region is not None,
        "TAGGING_SUPPORTED": any(account.tags for account in accounts),
    }
    return tuple(sorted([*_ALWAYS_APPLICABLE, *(name for name, is_so in depends.items() if is_so)]))


def billed_cost(found: Iterable[focus_columns.FocusRow]) -> Fraction:
    """The sum of BilledCost."""
    costs = (row["BilledCost"] for row in found)
    return sum((cost for cost in costs if isinstance(cost, Fraction)), Fraction(0))


def round_decimal(value: Fraction) -> Fraction:
    """Round to 12 decimals, half to even. Raises OverflowError beyond 38 digits."""
    # In integers, for speed: each row has several, and Fraction computes a gcd for every operation.
    counted, rest = divmod(value.numerator * focus_columns.UNIT_OF_DECIMALS, value.denominator)
    if 2 * rest > value.denominator or (2 * rest == value.denominator and counted % 2):
        counted += 1
    if abs(counted) >= MAX_DECIMAL_UNITS:
        message = f"invalid amount {value}: expected at most 38 digits"
        raise OverflowError(message)
    return Fraction(counted, focus_columns.UNIT_OF_DECIMALS)


def _invoice_columns(
    invoice: invoices.Invoice, seller: Seller, context: ExportContext
) -> focus_columns.FocusRow:
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
        "InvoiceIssuerName": seller.provider,
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
        "x_AuditCheckpoint": context.audit_checkpoint,
        "x_AuditRecord": None if invoice.audit_seq is None else str(invoice.audit_seq),
    }


def _charge_columns(charge: charges.Charge, context: ExportContext) -> focus_columns.FocusRow:
    is_reservation = charge.kind is charges.ChargeKind.RESERVATION
    row: focus_columns.FocusRow = {
        "CapacityReservationId": (charge.claim or charge.resource) if is_reservation else None,
        "CapacityReservationStatus": "Unused" if is_reservation else None,
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
    return row | _cost_columns(charge) | _own_columns(charge, context)


def _cost_columns(charge: charges.Charge) -> focus_columns.FocusRow:
    """Costs, quantities and unit prices; without a price all costs are the amount."""
    unit = charge.unit
    quantity = round_decimal(charge.quantity / unit.size) if unit else None
    price = Fraction(charge.price_nano, charges.NANO) if unit else None
    list_price, cost = price, round_decimal(charge.amount)
    list_cost = cost
    if unit and charge.list_nano != charge.price_nano:
        list_price = Fraction(charge.list_nano, charges.NANO)
        list_cost = round_decimal(charges.price_quantity(charge.quantity, unit, charge.list_nano))
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
        "SkuMeter": _METERS.get(unit, unit.label) if unit else None,  # the same for a whole SKU
        "SkuPriceDetails": price_details(charge),
        "SkuPriceId": price_id(charge),
    }


def _own_columns(charge: charges.Charge, context: ExportContext) -> focus_columns.FocusRow:
    origin = context.provenance.get(charge.charge_id, ChargeProvenance())
    ratio = origin.coverage_ratio
    return {
        "x_AllocationState": charge.state or None,
        "x_CoverageRatio": None if ratio is None else round_decimal(ratio),
        "x_EvidenceHash": origin.evidence_hash,
        "x_LedgerRevision": None if origin.ledger_revision is None else str(origin.ledger_revision),
        "x_ChargeId": charge.charge_id,
        "x_ChargeKind": charge.kind.value,
        "x_ClaimId": charge.claim or None,
        # A tenant without an invoice: `corrects` names the period instead.
        "x_CorrectsInvoiceId": None
        if charge.corrects.startswith("period:")
        else charge.corrects or None,
    }
