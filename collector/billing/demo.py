"""A simulated month of two tenants on one server, with faults, silence, and news that come late.

What is simulated is the evidence alone: samples, energy counters, claims, outages. Metering, rating,
closing and reconciliation are the real ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np

from collector.billing import invoice as invoices_of
from collector.billing.corrections import corrections
from collector.billing.focus import Account, Seller
from collector.billing.instants import HOUR_NS, SECOND_NS, Period, from_datetime
from collector.billing.invoice import CLOSE_AFTER_NS, Invoice
from collector.billing.metered import usages
from collector.billing.price_file import parse
from collector.billing.prices import PriceBook
from collector.billing.rating import Rating, Review, rate
from collector.billing.reconcile import Check, amounts, capacity, energy, recomputed
from collector.metering.evidence import (
    Claim,
    Evidence,
    Level,
    Outage,
    Release,
    Reservation,
    Sighting,
    Stay,
    Witness,
)
from collector.metering.measures import Increments, Readings, increments
from collector.metering.observation import stretches

NODE = "gpu-node-1"
GPUS = 8
SKU = "h100-sxm"
SAMPLE_NS = 10 * SECOND_NS
HELD_WATTS, IDLE_WATTS = 620, 75


def _instant(month: int, day: int, hour: int = 0, minute: int = 0) -> int:
    return from_datetime(datetime(2026, month, day, hour, minute, tzinfo=UTC))


MONTH = Period(_instant(9, 1), _instant(10, 1))
NEXT_MONTH = Period(_instant(10, 1), _instant(11, 1))
CLOSED_NS = MONTH.end_ns + CLOSE_AFTER_NS
SELLER = Seller(
    "Example Cluster", "Example Cluster", {"language": Account("research"), "vision": Account("product")}
)  # fmt: skip
AGENT_AWAY = (
    Period(_instant(9, 10, 3), _instant(9, 10, 3, 40)),
    Period(_instant(9, 14, 12), _instant(9, 14, 15)),
)
FAULTY_GPU = 3
DOWN = Period(_instant(9, 20, 8), _instant(9, 20, 10))
LATE_RELEASE = Release("vision-4", _instant(9, 29, 12))
PRICES = """
version = 1
published = 2026-08-20T09:00:00Z
currency = "EUR"

[[price]]
sku = "h100-sxm"
tariff = "allocated"
nano_per_gpu_hour = 2_490_000_000
from = 2026-01-01T00:00:00Z
to = 2026-09-16T00:00:00Z
version = 1

[[price]]
sku = "h100-sxm"
tariff = "allocated"
nano_per_gpu_hour = 2_590_000_000
from = 2026-09-16T00:00:00Z
version = 1

[[price]]
sku = "h100-sxm"
tariff = "allocated"
tenant = "language"
nano_per_gpu_hour = 2_290_000_000
from = 2026-01-01T00:00:00Z
version = 1

[[price]]
sku = "h100-sxm"
tariff = "reservation"
nano_per_gpu_hour = 900_000_000
from = 2026-01-01T00:00:00Z
version = 1

[[price]]
sku = "h100-sxm"
tariff = "energy"
nano_per_kilowatt_hour = 310_000_000
from = 2026-01-01T00:00:00Z
version = 1
"""


@dataclass(frozen=True, slots=True)
class Demo:
    """The month, closed; what late news changed about it; and how it was reconciled."""

    invoices: tuple[Invoice, ...]
    later: tuple[Invoice, ...]
    reviews: tuple[Review, ...]
    checks: tuple[Check, ...]
    root: str

    @property
    def balances(self) -> bool:
        """Whether nothing differs from what it must be."""
        return all(check.difference == 0 for check in self.checks)


def run() -> Demo:
    """Simulate, meter, rate, close, correct and reconcile."""
    book = parse(PRICES, "the demo's prices")
    gpus = [_evidence(index) for index in range(GPUS)]
    counted = [_counted(evidence) for evidence in gpus]
    rating = _rate(gpus, counted, book)
    closed = _close(rating, book)
    late = [_with_release(evidence) for evidence in gpus]
    news = corrections(closed, _rate(late, counted, book).charges, MONTH, NEXT_MONTH.start_ns)
    later = tuple(
        invoices_of.issue(one, NEXT_MONTH.end_ns + CLOSE_AFTER_NS)
        for one in invoices_of.close(news, NEXT_MONTH, book.currency)
    )
    checks = (
        *capacity(gpus, MONTH),
        energy(zip(gpus, counted, strict=True), MONTH),
        *amounts(rating.charges, closed, SELLER),
        recomputed(closed, _close(_rate(gpus, counted, book), book)),
    )
    return Demo(closed, later, rating.reviews, checks, invoices_of.root(closed))


def _rate(gpus: Sequence[Evidence], counted: Sequence[Increments], book: PriceBook) -> Rating:
    used = [
        usage
        for evidence, own in zip(gpus, counted, strict=True)
        for usage in usages(evidence, SKU, CLOSED_NS, own)
    ]
    return rate(used, book, MONTH)


def _close(rating: Rating, book: PriceBook) -> tuple[Invoice, ...]:
    drafts = invoices_of.close(rating.charges, MONTH, book.currency)
    return tuple(invoices_of.issue(one, CLOSED_NS) for one in drafts)


# The server and its month ------------------------------------------------------------------------


def _evidence(index: int) -> Evidence:
    """What is known of one GPU when the month is closed."""
    boots = _sampled(index)
    return Evidence(
        gpu=f"GPU-{index}",
        stays=(Stay(MONTH.start_ns, NODE),),
        claims=_claims(index),
        stretches=tuple(part for boot, instants in boots for part in stretches(boot, instants)),
        outages=(Outage(announced=False, start_ns=DOWN.start_ns, end_ns=DOWN.end_ns),)
        if index == FAULTY_GPU
        else (),
        reservations=(Reservation(_instant(9, 7), "vision-6", "vision", _instant(9, 21)),)
        if index == GPUS - 2
        else (),
        sightings=(Sighting(Witness.SCHEDULER, MONTH.start_ns, CLOSED_NS),),
    )


def _claims(index: int) -> tuple[Claim, ...]:
    def claim(tenant: str, start_ns: int, **more: Any) -> Claim:
        return Claim(Level.SCHEDULER, start_ns, f"{tenant}-{index}", tenant, **more)

    if index <= FAULTY_GPU:
        ends_ns = _instant(9, 25, 18) + 123_456_789
        return (claim("language", _instant(9, 2, 6), end_ns=ends_ns),)
    if index == FAULTY_GPU + 1:
        return (claim("vision", _instant(9, 5)),)
    if index == FAULTY_GPU + 2:
        # Handed over in the middle of the month: the earlier claim ends where the later begins.
        return (claim("vision", _instant(9, 5)), claim("language", _instant(9, 16, 9, 30)))
    if index == GPUS - 1:
        start_ns = _instant(9, 8, 14)
        seen = Claim(Level.PROCESS, start_ns, "pid-4711", "", end_ns=start_ns + 2 * HOUR_NS)
        return (seen,)
    return ()


def _sampled(index: int) -> list[tuple[str, Any]]:
    """Boots of the GPU's node with the instants of its samples: to an hour after the month."""
    instants = np.arange(MONTH.start_ns, CLOSED_NS + HOUR_NS, SAMPLE_NS, dtype=np.int64)
    seen = np.ones(len(instants), np.bool_)
    away = [*AGENT_AWAY, *([DOWN] if index == FAULTY_GPU else [])]
    for span in away:
        seen &= ~((instants > span.start_ns) & (instants < span.end_ns))
    instants = instants[seen]
    if index != FAULTY_GPU:
        return [("boot-1", instants)]
    before = instants <= DOWN.start_ns
    return [("boot-1", instants[before]), ("boot-2", instants[~before])]


def _counted(evidence: Evidence) -> Increments:
    """What the energy counter counted: it starts anew with every boot."""
    index = int(evidence.gpu.removeprefix("GPU-"))
    held = [(claim.start_ns, claim.end_ns) for claim in evidence.claims]
    runs = []
    for boot, instants in _sampled(index):
        busy = np.zeros(len(instants), np.bool_)
        for start_ns, end_ns in held:
            busy |= (instants >= start_ns) & (instants < end_ns)
        watts = np.where(busy, HELD_WATTS, IDLE_WATTS)
        elapsed_ns = np.diff(instants, prepend=instants[0])
        # Watts times nanoseconds are nanojoules; a millijoule is a million of them.
        counters = np.cumsum(watts * (elapsed_ns // 1_000_000))
        runs.append(Readings(boot, instants, counters))
    return increments(runs)


def _with_release(evidence: Evidence) -> Evidence:
    """The same, once the scheduler has told that a claim had ended before the month did."""
    held = any(claim.id == LATE_RELEASE.claim for claim in evidence.claims)
    return msgspec.structs.replace(evidence, releases=(LATE_RELEASE,)) if held else evidence
