"""A closed month with every kind of row that an export can have, for the tests of exports."""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction

from support.billing import MONTH, book, price, usage

from railscope.timestamps import HOUR_NS
from railscope_collector.billing import billing_demo, focus_csv
from railscope_collector.billing.charges import Charge, ChargeKind, PriceUnit
from railscope_collector.billing.focus_columns import FocusRow
from railscope_collector.billing.focus_csv import read_csv
from railscope_collector.billing.invoices import (
    Invoice,
    credit_charge,
    draft_invoice,
    issue_invoice,
)
from railscope_collector.billing.period_closing import BillingBooks
from railscope_collector.billing.price_book import Tariff
from railscope_collector.billing.rating import rate
from railscope_collector.files.seller_file import GpuRegion, PayerAccount, Seller
from railscope_collector.ledger.ledger_store import Ledger
from railscope_collector.metering.slot_state import SlotState

EUR = 10**9
DUE_NS = 3 * MONTH.end_ns
SELLER = Seller(
    provider="Example Data Center",
    accounts={
        **billing_demo.SELLER.accounts,
        "team-a": PayerAccount(
            "research",
            "Research & Development",
            tenant_type="Namespace",
            tenant_name='Team "A"',
            tags={"CostCenter": "4711", "Beneficiary": "Übung, Köln"},
        ),
        "team-b": PayerAccount("product", "Product", tenant_type="Namespace"),
    },
    publisher="Example Data Center Software",
    region=GpuRegion("hall-1", "Machine hall 1"),
)


def all_kinds() -> Invoice:
    """MIG by the instance and by capacity, a minimum, a reservation, energy, credit and tax."""
    mig = {"resource": "MIG-41b3359c", "mig_profile": "1g.10gb", "capacity_units": 120}
    used = [
        usage(0, HOUR_NS, energy_millijoules=1_234_567),
        usage(HOUR_NS, 3 * HOUR_NS, state=SlotState.RESERVED, claim="standing-order"),
        usage(0, HOUR_NS // 3, claim="c2", **mig),
        usage(0, HOUR_NS // 7, claim="c3", sku="a100", **(mig | {"resource": "MIG-9ad1"})),
    ]
    prices = book(
        price(3 * EUR + 1, granularity_ns=2 * HOUR_NS),
        price(2 * EUR, tenant="team-a", granularity_ns=2 * HOUR_NS),
        price(EUR // 3, mig_profile="1g.10gb", unit=PriceUnit.INSTANCE_HOURS),
        price(2 * EUR, sku="a100", mig_profile="1g.10gb"),
        price(EUR, tariff=Tariff.RESERVATION),
        price(310_000_000, tariff=Tariff.ENERGY, unit=PriceUnit.KILOWATT_HOURS),
    )
    charges: list[Charge] = [*rate(used, prices, MONTH).charges]
    given_back = credit_charge(
        "team-a", Fraction(1, 3), MONTH, 'Outage of the 3rd, "power"; see mail'
    )
    charges.append(given_back)
    charges.append(replace(given_back, kind=ChargeKind.TAX, amount=Fraction(19, 70), note="VAT"))
    charges.append(
        replace(given_back, kind=ChargeKind.ADJUSTMENT, amount=Fraction(-1, 9), note="Deal")
    )
    return issue_invoice(draft_invoice(charges, "team-a", MONTH, "EUR"), DUE_NS)


def write_csv(rows: Iterable[FocusRow]) -> str:
    """Return the rows as CSV with a header."""
    file = io.BytesIO()
    focus_csv.Writer(file).add(rows)
    return file.getvalue().decode()


def parse_csv(text: str) -> list[FocusRow]:
    """Return the rows of a CSV."""
    return list(read_csv(io.BytesIO(text.encode())))


def closed_months(ledger: Ledger) -> tuple[Invoice, ...]:
    """Return the demo's two months, the second with corrections and a credit, and an invoice of all kinds."""
    return (*BillingBooks.for_ledger(ledger).store.invoices(), all_kinds())
