"""Small worlds to bill: evidence in memory, its ledger, prices as files, and dates."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

import msgspec
import numpy as np
from sqlalchemy import select

from collector.billing import administration
from collector.billing.charges import Unit
from collector.billing.closing import Books, By
from collector.billing.demo_months import KnownGpu, SimulatedEvidence
from collector.billing.invoice import CLOSE_AFTER_NS, Status
from collector.billing.prices import Price, PriceBook
from collector.ledger.database import Database
from collector.ledger.ledger_records import HEAD
from collector.ledger.metered import Computed, MeteredGpu
from collector.ledger.outbox import outbox
from collector.ledger.store import Ledger
from collector.metering.evidence import (
    Claim,
    Evidence,
    Level,
    Release,
    Sighting,
    Stay,
    Stretch,
    Witness,
)
from collector.metering.instants import DAY_NS, HOUR_NS, SECOND_NS, Period, spelled
from collector.metering.measures import Increments, Measure, Readings, increments
from collector.metering.units import FOREVER_NS
from railscope.audit.record import Actor

FIRST_DAY = 20_000
START = FIRST_DAY * DAY_NS
ONE = Period(START, START + 3 * DAY_NS)
TWO = Period(ONE.end_ns, ONE.end_ns + 3 * DAY_NS)
THREE = Period(TWO.end_ns, TWO.end_ns + 3 * DAY_NS)
SKU = "h100"
BOSS = Actor("operator", "boss", "test")
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


def after(period: Period) -> By:
    """The manager, at a time when a period can be closed."""
    return By(BOSS, period.end_ns + CLOSE_AFTER_NS)


def hours(number: float) -> int:
    """Return the timestamp a number of hours after the start."""
    return START + round(number * HOUR_NS)


def claim(tenant: str, start: float, end: float | None = None, **more: object) -> Claim:
    """Return a scheduler's claim, in hours after the start."""
    end_ns = FOREVER_NS if end is None else hours(end)
    name = f"{tenant}-{start:g}"
    return Claim(Level.SCHEDULER, hours(start), name, tenant, end_ns, **more)  # type: ignore[arg-type]


def gpu(name: str, *claims: Claim, releases: Iterable[Release] = (), **more: object) -> KnownGpu:
    """Return a GPU that is always observed and draws 500 W."""
    instants = np.arange(START - DAY_NS, THREE.end_ns + DAY_NS, 30 * SECOND_NS, dtype=np.int64)
    counted = increments([Readings("boot", instants, (instants - instants[0]) // 2_000)])
    usual: dict[str, object] = {
        "stays": (Stay(START, "node-1"),),
        "stretches": (Stretch("boot", START - DAY_NS, THREE.end_ns + DAY_NS),),
        "sightings": (Sighting(Witness.SCHEDULER, START, FOREVER_NS),),
    }
    evidence = Evidence(name, claims=claims, releases=tuple(releases), **{**usual, **more})  # type: ignore[arg-type]
    return KnownGpu(evidence, {Measure.ENERGY: counted}, SKU)


def without_counter(known: KnownGpu) -> KnownGpu:
    """Return the same GPU without an energy counter."""
    nothing: dict[Measure, Increments] = {}
    return KnownGpu(known.evidence, nothing, known.sku)


def released(known: KnownGpu, claim_id: str, at: float) -> KnownGpu:
    """Return the same GPU, with the end of a claim reported."""
    releases = (*known.evidence.releases, Release(claim_id, hours(at)))
    evidence = msgspec.structs.replace(known.evidence, releases=releases)
    return KnownGpu(evidence, known.counted, known.sku)


def world(*gpus: KnownGpu) -> SimulatedEvidence:
    """Return the evidence of these GPUs."""
    return SimulatedEvidence({one.evidence.gpu: one for one in gpus})


def meter(ledger: Ledger, known: SimulatedEvidence, until: Period = THREE) -> None:
    """Write all days up to the end of the one after a period."""
    last_day = until.end_ns // DAY_NS
    computed = Computed("1", (last_day + 1) * DAY_NS)
    days = range(FIRST_DAY, last_day + 1)
    gpus = [
        MeteredGpu.of(one.evidence, one.counted, one.sku, one.profiles, doubts=one.doubts)
        for one in known.known.values()
    ]
    ledger.write_days([each.day(day, computed) for each in gpus for day in days])


def opened(ledger: Ledger, known: SimulatedEvidence, prices: str = PRICES) -> Books:
    """Return books with a ledger of all days of this evidence, and prices."""
    meter(ledger, known)
    books = Books.of(ledger, known)
    administration.publish(books, prices, "prices.toml", By(BOSS, START))
    return books


def told(books: Books, known: SimulatedEvidence) -> Books:
    """Return the books after this evidence has arrived and is in the ledger."""
    meter(books.ledger, known)
    return Books.of(books.ledger, known)


def exact(invoices) -> dict[str, Fraction]:
    """Return the billed amounts by tenant, before rounding."""
    found: dict[str, Fraction] = {}
    for one in invoices:
        if one.status is Status.ISSUED:
            found[one.tenant] = found.get(one.tenant, Fraction(0)) + one.exact
    return found


def in_outbox(database: Database) -> list[str]:
    """Return the records that wait for the audit log, in their order."""
    with database.transaction() as connection:
        return [
            row.id
            for row in connection.execute(
                select(outbox).where(outbox.c.type != HEAD).order_by(outbox.c.number)
            )
        ]


RED, GREEN = claim("red", 5, 60), claim("green", 12)
ALL = world(gpu("GPU-0", RED), gpu("GPU-1", GREEN))
"""Two GPUs, each held by a tenant."""
_KEYS = {
    Unit.GPU_HOURS: "nano_per_gpu_hour",
    Unit.INSTANCE_HOURS: "nano_per_instance_hour",
    Unit.KILOWATT_HOURS: "nano_per_kilowatt_hour",
}


def as_toml(book: PriceBook, shift_ns: int = 0) -> str:
    """Return a price book as a file, with all its dates shifted, to the microsecond."""
    lines = [
        f"version = {book.version}", "published = 2024-01-01T00:00:00Z",
        f'currency = "{book.currency}"',
    ]  # fmt: skip
    for price in book.prices:
        lines += ["", "[[price]]", *_lines(price, shift_ns)]
    return "\n".join(lines)


def _lines(price: Price, shift_ns: int) -> list[str]:
    start = "2000-01-01T00:00:00Z" if price.from_ns < 0 else spelled(price.from_ns + shift_ns)
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
        found.append(f"to = {spelled(price.to_ns + shift_ns)}")
    if price.granularity_ns != 1:
        found.append(f"granularity_seconds = {price.granularity_ns // SECOND_NS}")
    if price.mig_profile:
        found.append(f'mig_profile = "{price.mig_profile}"')
    return found
