"""A GPU is retired within a closed period: the next closing credits the excess."""

from __future__ import annotations

from fractions import Fraction

from support.books import BOSS, PRICES
from support.finalizing import FinalizingCollector
from support.story import DAY_SECONDS, NodeReporter, accept, at, claim_started, gpus_of

from railscope_collector.billing import administration
from railscope_collector.billing.charges import PriceUnit
from railscope_collector.billing.invoices import CLOSE_AFTER_NS
from railscope_collector.billing.period_closing import BillingBooks, ClosedPeriod
from railscope_collector.billing.reconciliation import reconcile_period
from railscope_collector.commands.command_options import read_evidence
from railscope_collector.files.seller_file import PayerAccount, Seller
from railscope_collector.fleet.schema_columns import sku_of
from railscope_collector.ledger.record_draft import TimedActor
from railscope_collector.metering.units import Period

MODEL = "NVIDIA H100 80GB HBM3"
ONE, TWO = (Period(at(n * DAY_SECONDS), at((n + 1) * DAY_SECONDS)) for n in (0, 1))
SELLER = Seller("Hall", {"red": PayerAccount("red")})
HOURS = 3600
PER_HOUR = Fraction("2.49")
LATER = 2 * DAY_SECONDS + 2 * HOURS


def amounts(closed: ClosedPeriod) -> dict[str, Fraction]:
    """Amounts billed for time, by corrected period; empty for the period's own."""
    found: dict[str, Fraction] = {}
    for invoice in closed.invoices:
        for line in invoice.lines:
            charge = line.charge
            if charge.unit is not PriceUnit.GPU_HOURS:
                continue
            found[charge.corrects] = found.get(charge.corrects, Fraction(0)) + charge.amount
    return found


async def test_a_closed_period_gets_an_adjustment_and_everything_reconciles(
    site: FinalizingCollector,
):
    """Red has a GPU for two days; that it was sent back at noon of the first is known after both."""
    claim = {0: [claim_started("GPU-0", "c1", 0, tenant="red")]}
    seconds = range(0, LATER, 30)
    accept(
        site.core,
        NodeReporter().envelopes_of(
            gpus_of("GPU-0", "GPU-1", model=MODEL), seconds, each=200, events=claim
        ),
    )
    await site.round(LATER, everything=True)
    ledger = site.stores.ledger
    books = BillingBooks.for_ledger(ledger, read_evidence(ledger.database))
    prices = PRICES.replace('"h100"', f'"{sku_of(MODEL)}"')
    administration.publish(books, prices, "p", TimedActor(BOSS, at(0)))
    first = books.close(ONE, TimedActor(BOSS, ONE.end_ns + CLOSE_AFTER_NS))
    assert amounts(first) == {"": 24 * PER_HOUR}
    site.texts["retired"] = "gpu,from,to,reason\nGPU-0,2026-09-04T12:00:00Z,,sent back\n"
    await site.round(LATER + 600, everything=True)
    second = books.close(TWO, TimedActor(BOSS, TWO.end_ns + CLOSE_AFTER_NS))
    assert sum(amounts(second).values()) == -12 * PER_HOUR, "and nothing for the second day"
    (corrected,) = amounts(second)
    assert corrected == first.invoices[0].invoice_id
    for period in (ONE, TWO):
        checks = reconcile_period(books, period, SELLER)
        assert [check for check in checks if not check.passes] == []
        assert {"R1", "R2", "R4", "R7"} <= {check.rule for check in checks}
