"""FOCUS rows: the columns of a charge, sums equal to the payable amount, and CSV that reads back."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import Phase, given, settings, strategies as st
from support.billing import MONTH, TENANTS, book, books, price, timelines, usage
from support.exports import SELLER as EVERY_KIND_SELLER, all_kinds, parse_csv, write_csv

from railscope.timestamps import HOUR_NS
from railscope_collector.billing.charges import ChargeKind, PriceUnit
from railscope_collector.billing.focus_columns import FocusRow, format_number
from railscope_collector.billing.focus_rows import (
    ChargeProvenance,
    ExportContext,
    billed_cost,
    invoice_rows,
    round_decimal,
)
from railscope_collector.billing.invoices import (
    Invoice,
    credit_charge,
    draft_invoice,
    draft_invoices,
    issue_invoice,
)
from railscope_collector.billing.price_book import Tariff
from railscope_collector.billing.rating import rate
from railscope_collector.files.seller_file import PayerAccount, Seller
from railscope_collector.metering.slot_state import SlotState

EUR = 10**9
DUE_NS = 3 * MONTH.end_ns
SELLER = Seller(
    "Example Data Center",
    {holder: PayerAccount("research", tenant_type="Namespace") for holder in TENANTS},
)
MANDATORY = [
    "BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodEnd",
    "BillingPeriodStart", "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargePeriodEnd",
    "ChargePeriodStart", "ContractedCost", "EffectiveCost", "InvoiceIssuerName", "ListCost",
    "PricingQuantity", "PricingUnit", "ProviderName", "PublisherName", "ServiceCategory",
    "ServiceName",
]  # fmt: skip
MAY_BE_NULL = {
    "BillingAccountName",
    "ChargeClass",
    "ChargeDescription",
    "PricingQuantity",
    "PricingUnit",
}
ALLOWED = {
    "ChargeCategory": {"Usage", "Purchase", "Tax", "Credit", "Adjustment"},
    "ChargeClass": {None, "Correction"},
    "ChargeFrequency": {"One-Time", "Recurring", "Usage-Based"},
    "CapacityReservationStatus": {None, "Used", "Unused"},
    "CommitmentDiscountStatus": {None},
    "PricingCategory": {None, "Standard", "Dynamic", "Committed", "Other"},
    "ResourceType": {None, "GPU", "MIG instance"},
    "ServiceCategory": {"AI and Machine Learning"},
    "ServiceSubcategory": {"AI Platforms"},
    "SubAccountType": {"Namespace", "Account"},
}
Write = Callable[[Sequence[FocusRow]], str]


def exported(usages, prices, **background: object) -> list[FocusRow]:
    drafts = draft_invoices(rate(usages, prices, MONTH).charges, MONTH, prices.currency)
    known = ExportContext(**background)  # type: ignore[arg-type]
    return [
        row for draft in drafts for row in invoice_rows(issue_invoice(draft, DUE_NS), SELLER, known)
    ]


def test_every_kind_of_charge_has_its_category():
    charges = rate(
        [
            usage(0, HOUR_NS, energy_millijoules=1),
            usage(HOUR_NS, 2 * HOUR_NS, state=SlotState.RESERVED, claim=""),
        ],
        book(
            price(EUR, granularity_ns=2 * HOUR_NS),
            price(EUR, tariff=Tariff.RESERVATION),
            price(EUR, tariff=Tariff.ENERGY, unit=PriceUnit.KILOWATT_HOURS),
        ),
        MONTH,
    ).charges
    given_back = credit_charge("team-a", Fraction(1, 3), MONTH, "Outage")
    tax = replace(given_back, kind=ChargeKind.TAX, amount=Fraction(1, 7), note="")
    invoice = issue_invoice(
        draft_invoice([*charges, given_back, tax], "team-a", MONTH, "EUR"), DUE_NS
    )
    found = list(invoice_rows(invoice, SELLER))
    columns = ("x_ChargeKind", "ChargeCategory", "SkuId", "SkuMeter", "SkuPriceId", "PricingUnit")
    metered = sorted(tuple(row[name] for name in columns) for row in found if row["SkuMeter"])
    assert metered == [
        ("energy", "Usage", "h100/energy", "Energy", "h100/energy/kWh", "kWh"),
        ("minimum_topup", "Usage", "h100", "GPU Time", "h100/usage/GPU-Hours", "GPU-Hours"),
        ("reservation", "Usage", "h100", "GPU Time", "h100/reservation/GPU-Hours", "GPU-Hours"),
        ("usage", "Usage", "h100", "GPU Time", "h100/usage/GPU-Hours", "GPU-Hours"),
    ]
    others = [row for row in found if row["SkuMeter"] is None]
    assert sorted(str(row["ChargeCategory"]) for row in others) == ["Adjustment", "Credit", "Tax"]
    (unused,) = [row for row in found if row["CapacityReservationStatus"]]
    assert (unused["CapacityReservationStatus"], unused["x_ChargeKind"]) == (
        "Unused",
        "reservation",
    )
    assert billed_cost(found) == invoice.payable


def test_what_is_known_about_a_charge_stands_in_columns_of_ours():
    prices = book(price(2 * EUR))
    (charge,) = rate([usage(0, HOUR_NS)], prices, MONTH).charges
    origin = ChargeProvenance(Fraction(499, 500), "ab12", 3)
    (row,) = exported(
        [usage(0, HOUR_NS)], prices, provenance={charge.charge_id: origin}, audit_checkpoint="cp"
    )
    ours = ("x_CoverageRatio", "x_EvidenceHash", "x_LedgerRevision", "x_AuditCheckpoint")
    assert [row[name] for name in ours] == [Fraction("0.998"), "ab12", "3", "cp"]


def test_each_row_of_every_kind_has_the_values_that_are_allowed():
    """The official validator requires one allowed value in a column; here every value must be allowed."""
    found = list(invoice_rows(all_kinds(), EVERY_KIND_SELLER))
    assert {row["x_ChargeKind"] for row in found} == set(ChargeKind)
    for row in found:
        assert all(row[name] in allowed for name, allowed in ALLOWED.items())
        priced = row["ChargeCategory"] == "Usage"
        for name in ("SkuId", "SkuPriceId", "SkuMeter", "PricingQuantity", "ConsumedQuantity"):
            assert (row[name] is not None) == priced, name
        assert (row["ResourceType"] is None) == (row["ResourceId"] is None)
        assert (row["CapacityReservationStatus"] is None) == (row["CapacityReservationId"] is None)
    parents = {row["SkuPriceId"]: row["SkuId"] for row in found}
    meters = {row["SkuId"]: row["SkuMeter"] for row in found}
    for row in found:
        assert (parents[row["SkuPriceId"]], meters[row["SkuId"]]) == (row["SkuId"], row["SkuMeter"])
    (instance,) = (row for row in found if row["SkuMeter"] == "MIG Instance Time")
    assert instance["SkuId"] == "h100/1g.10gb"
    assert instance["SkuPriceDetails"] == '{"x_MigProfile":"1g.10gb"}'
    assert instance["Tags"] == '{"Beneficiary":"Übung, Köln","CostCenter":"4711"}'
    assert (instance["RegionId"], instance["RegionName"]) == ("hall-1", "Machine hall 1")
    assert (instance["SubAccountName"], instance["ResourceName"]) == ('Team "A"', None)


@given(timelines(), books())
def test_rows_have_the_mandatory_columns_and_costs_that_follow_from_prices(usages, prices):
    for row in exported(usages, prices):
        assert set(MANDATORY) <= row.keys()
        assert all(row[name] is not None for name in MANDATORY if name not in MAY_BE_NULL)
        assert "" not in row.values(), "null is null, and no empty text"
        assert row["PricingCurrencyEffectiveCost"] is not None
        assert all(row[name] in allowed for name, allowed in ALLOWED.items())
        if row["ChargeCategory"] == "Usage":
            # A quantity of 12 decimals is off by half of the last one; a price multiplies that.
            slack = Fraction(1, 10**12)
            for cost, unit in (
                ("ContractedCost", "ContractedUnitPrice"),
                ("ListCost", "ListUnitPrice"),
            ):
                product = row["PricingQuantity"] * row[unit]
                assert abs(product - row[cost]) <= slack * (1 + row[unit]) / 2


def exports_read_back(implementation: Write) -> Callable[[], None]:
    """P18, for any implementation of writing CSV."""

    @given(timelines(), books(), st.text(max_size=20))
    def holds(usages, prices, note) -> None:
        charges = [*rate(usages, prices, MONTH).charges]
        if note.isprintable() and note:
            charges.append(credit_charge("team-a", Fraction(1, 3), MONTH, note + '";,\r\n"'))
        for draft in draft_invoices(charges, MONTH, prices.currency):
            adds_up(issue_invoice(draft, DUE_NS), implementation)

    return holds


def adds_up(invoice: Invoice, implementation: Write) -> None:
    found = list(invoice_rows(invoice, SELLER))
    read = parse_csv(implementation(found))
    assert read == found
    assert {row["InvoiceId"] for row in read} == {invoice.invoice_id}
    assert billed_cost(read) == invoice.payable
    adjusted = [row for row in read if row["ChargeCategory"] == "Adjustment"]
    assert len(adjusted) <= 1
    exact = sum((line.charge.amount for line in invoice.lines), Fraction(0))
    assert abs(sum(row["BilledCost"] for row in adjusted) - (invoice.payable - exact)) <= Fraction(
        len(invoice.lines), 2 * 10**12
    )


def test_exports_read_back_to_the_same_rows_and_totals():
    exports_read_back(write_csv)()


def float_money(found: Sequence[FocusRow]) -> str:
    """Wrong: numbers were formatted through floating point."""
    costs = ("BilledCost", "ContractedCost", "EffectiveCost", "ListCost")
    through = [
        row | {name: round_decimal(Fraction(float(row[name]))) for name in costs if row[name]}
        for row in found
    ]
    return write_csv(through)


def two_decimals(found: Sequence[FocusRow]) -> str:
    """Wrong: every row shows whole cents."""
    return write_csv([row | {"BilledCost": Fraction(round(row["BilledCost"], 2))} for row in found])


@pytest.mark.parametrize("wrong", [float_money, two_decimals])
def test_wrong_exports_are_detected(wrong):
    search = settings(max_examples=500, derandomize=True, database=None, phases=[Phase.generate])
    with pytest.raises(AssertionError):
        search(exports_read_back(wrong))()


def test_csv_as_it_stands():
    (row,) = exported([usage(0, HOUR_NS, capacity_units=420)], book(price(3 * EUR)))
    header, line, rest = write_csv([row]).split("\r\n")
    assert rest == ""
    names = header.split(",")
    cells = dict(zip(names, line.split(","), strict=True))
    assert cells["BilledCost"] == "1.500000000000"
    assert cells["PricingQuantity"] == "0.500000000000"
    assert cells["ChargePeriodEnd"] == "1970-01-01T01:00:00Z"
    assert cells["ChargeClass"] == ""
    first_of_ours = next(at for at, name in enumerate(names) if name.startswith("x_"))
    assert all(name.startswith("x_") for name in names[first_of_ours:])
    assert names[:first_of_ours] == sorted(names[:first_of_ours])


@pytest.mark.parametrize("claim", ["=1+1", "@SUM(A1)", "-7", "'quoted", "slurm/1"])
def test_no_cell_is_a_formula_of_a_spreadsheet(claim: str):
    """Nodes choose the names of claims."""
    (row,) = exported([usage(0, HOUR_NS, claim=claim)], book(price(3 * EUR)))
    text = write_csv([row])
    (cells,) = csv.DictReader(io.StringIO(text))
    assert cells["x_ClaimId"] == (claim if claim == "slurm/1" else f"'{claim}")
    assert parse_csv(text) == [row]


@given(st.integers(-(10**38) + 1, 10**38 - 1))
def test_any_decimal_of_38_digits_is_spelled_exactly(counted):
    text = format_number(Fraction(counted, 10**12))
    assert Fraction(text) == Fraction(counted, 10**12)
    assert len(text.split(".")[1]) == 12
