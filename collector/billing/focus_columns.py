"""The columns of an export, in order, and the types of their values.

Source: FinOps-Open-Cost-and-Usage-Spec/FOCUS_Spec, tag v1.2, specification/columns. FOCUS columns
come first, in order of name; Railscope's own columns start with x_ and follow them.
"""

from __future__ import annotations

from datetime import datetime
from fractions import Fraction
from typing import TypeAlias

VERSION = "1.2"
DECIMALS = 12
UNIT_OF_DECIMALS = 10**DECIMALS
PRECISION = 38  # total digits: decimal128(38, 12)

Value: TypeAlias = str | Fraction | datetime | None
Row: TypeAlias = dict[str, Value]

NUMBERS = frozenset({
    "BilledCost", "ConsumedQuantity", "ContractedCost", "ContractedUnitPrice", "EffectiveCost",
    "ListCost", "ListUnitPrice", "PricingCurrencyContractedUnitPrice",
    "PricingCurrencyEffectiveCost", "PricingCurrencyListUnitPrice", "PricingQuantity",
    "x_CoverageRatio",
})  # fmt: skip
TIMES = frozenset({
    "BillingPeriodStart", "BillingPeriodEnd", "ChargePeriodStart", "ChargePeriodEnd",
})  # fmt: skip
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
COLUMNS = tuple(
    sorted(NUMBERS | TIMES | _TEXTS, key=lambda name: (name.startswith("x_"), name))
)  # fmt: skip
_ALL = frozenset(COLUMNS)


def complete(row: Row) -> Row:
    """The row, unchanged. Raises ValueError if its columns are not those of an export."""
    if row.keys() != _ALL:
        wrong = sorted(row.keys() ^ _ALL)
        message = f"columns of an export that are missing or too many: {', '.join(wrong)}"
        raise ValueError(message)
    return row
