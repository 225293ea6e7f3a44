"""Two simulated months in a ledger: closed, corrected by late evidence, and reconciled.

The production ledger, rating, closing and reconciliation are used.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from collector.billing import administration, demo_months, records
from collector.billing.checks import Check
from collector.billing.closing import Books, By, Closed
from collector.billing.corrections import credit
from collector.billing.demo_months import (
    CLOSED_AGAIN_NS,
    CLOSED_NS,
    MONTH,
    NEXT_MONTH,
    PRICES,
    SimulatedEvidence,
)
from collector.billing.focus import Account, Region, Seller
from collector.billing.reconcile import reconcile
from collector.ledger.metered import Computed, MeteredGpu
from collector.ledger.store import Ledger
from collector.metering.instants import DAY_NS

ENGINE = "demo"
SELLER = Seller(
    provider="Example Cluster",
    invoice_issuer="Example Cluster",
    accounts={
        "language": Account("research", "Research", tags={"CostCenter": "4711"}),
        "vision": Account("product", "Product", tags={"CostCenter": "0815"}),
    },
    region=Region("hall-1", "Machine hall 1"),
)
CREDIT = credit("vision", Fraction(50), MONTH, "three hours without an agent")


@dataclass(frozen=True, slots=True)
class Demo:
    """A closed month, the next one with corrections from late evidence, and their reconciliation."""

    closed: Closed
    later: Closed
    checks: tuple[Check, ...]

    @property
    def balances(self) -> bool:
        """True if all checks pass."""
        return all(check.passes for check in self.checks)


def run(ledger: Ledger) -> Demo:
    """Simulate, meter, rate, close, correct and reconcile, in an empty ledger."""
    actor = records.operator("demo")
    known = demo_months.simulated()
    books = Books.of(ledger, known)
    meter(ledger, known, range(MONTH.start_ns // DAY_NS, CLOSED_NS // DAY_NS), CLOSED_NS)
    administration.publish(books, PRICES, "the demo's prices", By(actor, CLOSED_NS))
    closed = books.close(MONTH, By(actor, CLOSED_NS))
    known = demo_months.with_late_news(known)
    books = Books.of(ledger, known)
    days = range(MONTH.start_ns // DAY_NS, CLOSED_AGAIN_NS // DAY_NS)
    meter(ledger, known, days, CLOSED_AGAIN_NS)
    administration.record(books, CREDIT, By(actor, CLOSED_AGAIN_NS))
    later = books.close(NEXT_MONTH, By(actor, CLOSED_AGAIN_NS))
    checks = [check for period in (MONTH, NEXT_MONTH) for check in reconcile(books, period, SELLER)]
    return Demo(closed, later, tuple(checks))


def meter(ledger: Ledger, known: SimulatedEvidence, days: range, now_ns: int) -> None:
    """Meter the given days and write them to the ledger."""
    computed = Computed(ENGINE, now_ns)
    gpus = [MeteredGpu.of(one.evidence, one.counted, one.sku) for one in known.known.values()]
    ledger.write_days([gpu.day(day, computed) for gpu in gpus for day in days])
