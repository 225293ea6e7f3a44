"""Small worlds to bill: evidence in memory, its ledger, prices as files, and dates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction

import msgspec
import numpy as np
from sqlalchemy import select
from support.gpu_evidence import ClaimRelease, Evidence, NodeSighting, NodeStay, timeline_of

from railscope.audit.record import RecordActor
from railscope.claim_terms import ClaimAuthority
from railscope.timestamps import DAY_NS, FOREVER_NS, HOUR_NS, SECOND_NS, format_timestamp
from railscope_collector.billing import administration
from railscope_collector.billing.charges import PriceUnit
from railscope_collector.billing.invoices import CLOSE_AFTER_NS, InvoiceStatus
from railscope_collector.billing.period_closing import BillingBooks
from railscope_collector.billing.price_book import Price, PriceBook
from railscope_collector.files.seller_file import PayerAccount, Seller
from railscope_collector.ledger.audit_outbox import outbox_rows
from railscope_collector.ledger.database import Database
from railscope_collector.ledger.day_documents import GpuDay
from railscope_collector.ledger.ledger_records import HEAD
from railscope_collector.ledger.ledger_store import Ledger
from railscope_collector.ledger.record_draft import TimedActor
from railscope_collector.metering.counter_increments import (
    CountedQuantity,
    CounterIncrements,
    CounterReadings,
    compute_increments,
)
from railscope_collector.metering.evidence import MeteredClaim, NodeEvidence
from railscope_collector.metering.metered_day import MeteredDay
from railscope_collector.metering.observation import BootSampleSpan
from railscope_collector.metering.units import Period

FIRST_DAY = 20_000
START = FIRST_DAY * DAY_NS
ONE = Period(START, START + 3 * DAY_NS)
TWO = Period(ONE.end_ns, ONE.end_ns + 3 * DAY_NS)
THREE = Period(TWO.end_ns, TWO.end_ns + 3 * DAY_NS)
SKU = "h100"
BOSS = RecordActor("operator", "boss", "test")
SELLER = Seller("Hall", {name: PayerAccount(name) for name in ("red", "green", "blue")})
PRICES = """
version = 1
published = 2024-01-01T00:00:00Z
currency = "EUR"

[[price]]
sku = "h100"
tariff = "allocated"
nano_per_gpu_hour = 2_490_000_000
from = 2024-01-01T00:00:00Z
version = 1

[[price]]
sku = "h100"
tariff = "reservation"
nano_per_gpu_hour = 900_000_000
from = 2024-01-01T00:00:00Z
version = 1

[[price]]
sku = "h100"
tariff = "energy"
nano_per_kilowatt_hour = 310_000_000
from = 2024-01-01T00:00:00Z
version = 1
"""


@dataclass
class AssembledGpu:
    """Everything about a GPU: evidence, counted increments, models."""

    evidence: Evidence
    counted: dict[CountedQuantity, CounterIncrements]
    skus: list[tuple[int, str]] = field(default_factory=list)

    def day(self, day: int) -> MeteredDay:
        return timeline_of(self.evidence, self.counted, self.skus).meter(day)

    def increments(self, day: int) -> dict[CountedQuantity, int]:
        return {
            measure: sum(
                amount
                for end_ns, amount in zip(of.ends_ns.tolist(), of.amounts.tolist(), strict=True)
                if day * DAY_NS < end_ns <= (day + 1) * DAY_NS
            )
            for measure, of in self.counted.items()
        }


@dataclass
class SimulatedEvidence:
    """Evidence of all GPUs in memory, in place of the facts in a database."""

    assembled: dict[str, AssembledGpu] = field(default_factory=dict)

    def gpu_days(self, days: range) -> set[GpuDay]:
        return {
            GpuDay(gpu, day)
            for gpu, one in self.assembled.items()
            for day in days
            for stay in one.evidence.stays
            if stay.start_ns < (day + 1) * DAY_NS and day * DAY_NS < stay.end_ns
        }

    def first_day(self) -> int:
        return 0

    def unfinished(self, days: range) -> set[GpuDay]:  # noqa: ARG002 - nothing changes it
        return set()

    def meter(self, day: int) -> Iterator[MeteredDay]:
        for one in self.assembled.values():
            yield one.day(day)

    def recount(self, day: int) -> Iterator[tuple[MeteredDay, dict[CountedQuantity, int]]]:
        for one in self.assembled.values():
            yield one.day(day), one.increments(day)


def manager_after(period: Period) -> TimedActor:
    """The manager, at a time when a period can be closed."""
    return TimedActor(BOSS, period.end_ns + CLOSE_AFTER_NS)


def hours(number: float) -> int:
    """Return the timestamp a number of hours after the start."""
    return START + round(number * HOUR_NS)


def claim(tenant: str, start: float, end: float | None = None, **more: object) -> MeteredClaim:
    """Return a scheduler's claim, in hours after the start."""
    end_ns = FOREVER_NS if end is None else hours(end)
    name = f"{tenant}-{start:g}"
    return MeteredClaim(ClaimAuthority.SCHEDULER, hours(start), name, tenant, end_ns, **more)  # type: ignore[arg-type]


def gpu(
    name: str, *claims: MeteredClaim, releases: Iterable[ClaimRelease] = (), **more: object
) -> AssembledGpu:
    """Return a GPU that is always observed and draws 500 W."""
    instants = np.arange(START - DAY_NS, THREE.end_ns + DAY_NS, 30 * SECOND_NS, dtype=np.int64)
    counted = compute_increments(
        [CounterReadings("boot", instants, (instants - instants[0]) // 2_000)]
    )
    usual: dict[str, object] = {
        "stays": (NodeStay(START, "node-1"),),
        "sample_spans": (BootSampleSpan("boot", START - DAY_NS, THREE.end_ns + DAY_NS),),
        "sightings": (NodeSighting(NodeEvidence.SCHEDULER, START, FOREVER_NS),),
    }
    evidence = Evidence(name, claims=claims, releases=tuple(releases), **{**usual, **more})  # type: ignore[arg-type]
    return AssembledGpu(evidence, {CountedQuantity.ENERGY: counted}, [(0, SKU)])


def released_gpu(known: AssembledGpu, claim_id: str, at: float) -> AssembledGpu:
    """Return the same GPU, with the end of a claim reported."""
    releases = (*known.evidence.releases, ClaimRelease(claim_id, hours(at)))
    evidence = msgspec.structs.replace(known.evidence, releases=releases)
    return AssembledGpu(evidence, known.counted, known.skus)


def evidence_of(*gpus: AssembledGpu) -> SimulatedEvidence:
    """Return the evidence of these GPUs."""
    return SimulatedEvidence({one.evidence.gpu: one for one in gpus})


def meter(ledger: Ledger, known: SimulatedEvidence, until: Period = THREE) -> None:
    """Write all days up to the end of the one after a period."""
    last_day = until.end_ns // DAY_NS
    days = range(FIRST_DAY, last_day + 1)
    gpus = known.assembled.values()
    ledger.write_days([each.day(day) for each in gpus for day in days], (last_day + 1) * DAY_NS)


def books_with(ledger: Ledger, known: SimulatedEvidence, prices: str = PRICES) -> BillingBooks:
    """Return books with a ledger of all days of this evidence, and prices."""
    meter(ledger, known)
    books = BillingBooks.for_ledger(ledger, known)
    administration.publish(books, prices, "prices.toml", TimedActor(BOSS, START))
    return books


def books_after(books: BillingBooks, known: SimulatedEvidence) -> BillingBooks:
    """Return the books after this evidence has arrived and is in the ledger."""
    meter(books.ledger, known)
    return BillingBooks.for_ledger(books.ledger, known)


def exact_amounts(invoices) -> dict[str, Fraction]:
    """Return the billed amounts by tenant, before rounding."""
    found: dict[str, Fraction] = {}
    for invoice in invoices:
        if invoice.status is InvoiceStatus.ISSUED:
            found[invoice.tenant] = found.get(invoice.tenant, Fraction(0)) + invoice.exact
    return found


def in_outbox(database: Database) -> list[str]:
    """Return the records that wait for the audit log, in their order."""
    with database.transaction() as connection:
        return [
            row.id
            for row in connection.execute(
                select(outbox_rows).where(outbox_rows.c.type != HEAD).order_by(outbox_rows.c.number)
            )
        ]


RED, GREEN = claim("red", 5, 60), claim("green", 12)
ALL = evidence_of(gpu("GPU-0", RED), gpu("GPU-1", GREEN))
"""Two GPUs, each held by a tenant."""
_KEYS = {
    PriceUnit.GPU_HOURS: "nano_per_gpu_hour",
    PriceUnit.INSTANCE_HOURS: "nano_per_instance_hour",
    PriceUnit.KILOWATT_HOURS: "nano_per_kilowatt_hour",
}


def as_toml(book: PriceBook, shift_ns: int = 0) -> str:
    """Return a price book as a file, with all its dates shifted, to the microsecond."""
    lines = [
        f"version = {book.version}",
        "published = 2024-01-01T00:00:00Z",
        f'currency = "{book.currency}"',
    ]
    for price in book.prices:
        lines += ["", "[[price]]", *_lines(price, shift_ns)]
    return "\n".join(lines)


def _lines(price: Price, shift_ns: int) -> list[str]:
    start = (
        "2000-01-01T00:00:00Z" if price.from_ns < 0 else format_timestamp(price.from_ns + shift_ns)
    )
    found = [
        f'sku = "{price.sku}"',
        f'tariff = "{price.tariff}"',
        f'tenant = "{price.tenant}"',
        f"{_KEYS[price.unit]} = {price.nano}",
        f"from = {start}",
        f"version = {price.version}",
        f"minimum_seconds = {price.minimum_ns // SECOND_NS}",
        f"at_claim_start = {str(price.at_claim_start).lower()}",
    ]
    if price.to_ns != FOREVER_NS:
        found.append(f"to = {format_timestamp(price.to_ns + shift_ns)}")
    if price.granularity_ns != 1:
        found.append(f"granularity_seconds = {price.granularity_ns // SECOND_NS}")
    if price.mig_profile:
        found.append(f'mig_profile = "{price.mig_profile}"')
    return found
