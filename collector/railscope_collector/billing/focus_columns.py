"""Columns of a FOCUS export, in order, and their types.

Source: FinOps-Open-Cost-and-Usage-Spec/FOCUS_Spec, tag v1.2, specification/columns. FOCUS columns
come first, in order of name; Railscope's own columns start with x_ and follow them.
"""

from __future__ import annotations

from datetime import datetime
from fractions import Fraction
from typing import TypeAlias

FOCUS_VERSION = "1.2"
DECIMALS = 12
UNIT_OF_DECIMALS = 10**DECIMALS
PRECISION = 38  # total digits: decimal128(38, 12)

FocusValue: TypeAlias = str | Fraction | datetime | None
FocusRow: TypeAlias = dict[str, FocusValue]

NUMBERS = frozenset({
    "BilledCost", "ConsumedQuantity", "ContractedCost", "ContractedUnitPrice", "EffectiveCost",
    "ListCost", "ListUnitPrice", "PricingCurrencyContractedUnitPrice",
    "PricingCurrencyEffectiveCost", "PricingCurrencyListUnitPrice", "PricingQuantity",
    "x_CoverageRatio",
})  # fmt: skip
TIMES = frozenset(
    {"BillingPeriodStart", "BillingPeriodEnd", "ChargePeriodStart", "ChargePeriodEnd"}
)
_TEXTS = frozenset({
    "BillingAccountId", "BillingAccountName", "BillingCurrency", "CapacityReservationId",
    "CapacityReservationStatus", "ChargeCategory", "ChargeClass", "ChargeDescription",
    "ChargeFrequency", "CommitmentDiscountStatus", "ConsumedUnit", "InvoiceId",
    "InvoiceIssuerName", "PricingCategory", "PricingCurrency", "PricingUnit", "ProviderName",
    "PublisherName", "RegionId", "RegionName", "ResourceId", "ResourceName", "ResourceType",
    "ServiceCategory", "ServiceName", "ServiceSubcategory", "SkuId", "SkuMeter",
    "SkuPriceDetails", "SkuPriceId", "SubAccountId", "SubAccountName", "SubAccountType", "Tags",
    "x_AllocationState", "x_AuditCheckpoint", "x_AuditRecord", "x_ChargeId", "x_ChargeKind", "x_ClaimId",
    "x_CorrectsInvoiceId", "x_EvidenceHash", "x_LedgerRevision",
})  # fmt: skip
COLUMNS = tuple(sorted(NUMBERS | TIMES | _TEXTS, key=lambda name: (name.startswith("x_"), name)))
_ALL = frozenset(COLUMNS)


def check_columns(row: FocusRow) -> FocusRow:
    """The row, unchanged. Raises ValueError if its columns are not those of an export."""
    if row.keys() != _ALL:
        wrong = sorted(row.keys() ^ _ALL)
        message = f"missing or unknown columns of an export: {', '.join(wrong)}"
        raise ValueError(message)
    return row


def format_number(value: Fraction) -> str:
    """A number with 12 decimals, exactly. Raises ValueError if it needs more."""
    counted, rest = divmod(value.numerator * UNIT_OF_DECIMALS, value.denominator)
    if rest:
        message = f"invalid number {value}: expected at most {DECIMALS} decimals"
        raise ValueError(message)
    whole, decimals = divmod(abs(counted), UNIT_OF_DECIMALS)
    return f"{'-' if counted < 0 else ''}{whole}.{decimals:0{DECIMALS}}"
