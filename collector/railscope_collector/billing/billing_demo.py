"""Two simulated months in a ledger: closed, corrected by late evidence, and reconciled.

The production ledger, rating, closing and reconciliation are used. Only evidence is simulated:
samples, energy counters, claims and outages of two tenants on one node, with faults, stale periods
and late evidence.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

import msgspec
import numpy as np

from railscope.audit.record import RecordActor
from railscope.claim_terms import ClaimAuthority
from railscope.timestamps import DAY_NS, HOUR_NS, SECOND_NS, from_datetime
from railscope_collector.billing import (
    administration,
    invoices,
    period_closing,
    reconciliation,
    reconciliation_check,
)
from railscope_collector.evidence.gpu_evidence import AssembledGpu
from railscope_collector.files import seller_file
from railscope_collector.ledger import ledger_store, record_draft
from railscope_collector.metering import (
    counter_increments,
    evidence as usage_evidence,
    observation,
    units,
)

NODE = "gpu-node-1"
GPUS = 8
SKU = "h100-sxm"
SAMPLE_NS = 10 * SECOND_NS
HELD_WATTS, IDLE_WATTS = 620, 75


def _timestamp_ns(month: int, day: int, hour: int = 0, minute: int = 0) -> int:
    return from_datetime(datetime(2026, month, day, hour, minute, tzinfo=UTC))


MONTH = units.Period(_timestamp_ns(9, 1), _timestamp_ns(10, 1))
NEXT_MONTH = units.Period(_timestamp_ns(10, 1), _timestamp_ns(11, 1))
CLOSED_NS = MONTH.end_ns + invoices.CLOSE_AFTER_NS
CLOSED_AGAIN_NS = NEXT_MONTH.end_ns + invoices.CLOSE_AFTER_NS
AGENT_AWAY = (
    units.Period(_timestamp_ns(9, 10, 3), _timestamp_ns(9, 10, 3, 40)),
    units.Period(_timestamp_ns(9, 14, 12), _timestamp_ns(9, 14, 15)),
)
FAULTY_GPU = 3
DOWN = units.Period(_timestamp_ns(9, 20, 8), _timestamp_ns(9, 20, 10))
LATE_RELEASE = usage_evidence.ClaimRelease("vision-4", _timestamp_ns(9, 29, 12))
LAST_CLAIM_ENDS_NS = _timestamp_ns(10, 3, 18)
_PRICE_ROWS = (
    ("allocated", "nano_per_gpu_hour = 2_490_000_000", "2026-01-01", "to = 2026-09-16T00:00:00Z\n"),
    ("allocated", "nano_per_gpu_hour = 2_590_000_000", "2026-09-16", ""),
    ("allocated", "nano_per_gpu_hour = 2_290_000_000", "2026-01-01", 'tenant = "language"\n'),
    ("reservation", "nano_per_gpu_hour = 900_000_000", "2026-01-01", ""),
    ("energy", "nano_per_kilowatt_hour = 310_000_000", "2026-01-01", ""),
)
PRICES = 'version = 1\npublished = 2026-08-20T09:00:00Z\ncurrency = "EUR"\n' + "".join(
    f'\n[[price]]\nsku = "{SKU}"\ntariff = "{tariff}"\n{price}\n'
    f"from = {start}T00:00:00Z\n{more}version = 1\n"
    for tariff, price, start, more in _PRICE_ROWS
)


@dataclass(slots=True)
class SimulatedEvidence:
    """Evidence of all GPUs, in memory."""

    assembled: dict[str, AssembledGpu] = field(default_factory=dict)

    def gpus(self, start_ns: int, end_ns: int) -> list[str]:
        """GPUs that were in a node in [start, end)."""
        return sorted(
            gpu
            for gpu, assembled in self.assembled.items()
            if any(s.start_ns < end_ns and s.end_ns > start_ns for s in assembled.evidence.stays)
        )

    def evidence(self, gpu: str, start_ns: int, end_ns: int) -> AssembledGpu:  # noqa: ARG002 - all of it
        """Evidence of a GPU."""
        return self.assembled[gpu]


def simulate_evidence() -> SimulatedEvidence:
    """Evidence at the first closing, and all that follows except the late release."""
    gpus = [_evidence(index) for index in range(GPUS)]
    energy = counter_increments.CountedQuantity.ENERGY
    return SimulatedEvidence(
        {gpu.gpu: AssembledGpu(gpu, {energy: _simulate_counter(gpu)}, [(0, SKU)]) for gpu in gpus}
    )


def with_late_release(simulated: SimulatedEvidence) -> SimulatedEvidence:
    """The same evidence, after the scheduler reported that a claim ended before the month did."""
    gpus = dict(simulated.assembled)
    for name, gpu in simulated.assembled.items():
        if any(claim.id == LATE_RELEASE.claim for claim in gpu.evidence.claims):
            evidence = msgspec.structs.replace(gpu.evidence, releases=(LATE_RELEASE,))
            gpus[name] = msgspec.structs.replace(gpu, evidence=evidence)
    return SimulatedEvidence(gpus)


def _evidence(index: int) -> usage_evidence.Evidence:
    """Evidence of one GPU."""
    boots = _simulate_boots(index)
    return usage_evidence.Evidence(
        gpu=f"GPU-{index}",
        stays=(usage_evidence.NodeStay(MONTH.start_ns, NODE),),
        claims=_claims(index),
        sample_spans=tuple(
            part
            for boot, timestamps_ns in boots
            for part in observation.join_samples(boot, timestamps_ns)
        ),
        outages=(
            usage_evidence.GpuOutage(announced=False, start_ns=DOWN.start_ns, end_ns=DOWN.end_ns),
        )
        if index == FAULTY_GPU
        else (),
        reservations=(
            usage_evidence.SlotReservation(
                _timestamp_ns(9, 7), "vision-6", "vision", _timestamp_ns(9, 21)
            ),
        )
        if index == GPUS - 2
        else (),
        sightings=(
            usage_evidence.NodeSighting(
                usage_evidence.NodeEvidence.SCHEDULER, MONTH.start_ns, CLOSED_AGAIN_NS
            ),
        ),
    )


def _claims(index: int) -> tuple[usage_evidence.MeteredClaim, ...]:
    def claim(tenant: str, start_ns: int, **more: Any) -> usage_evidence.MeteredClaim:
        return usage_evidence.MeteredClaim(
            ClaimAuthority.SCHEDULER, start_ns, f"{tenant}-{index}", tenant, **more
        )

    if index <= FAULTY_GPU:
        ends_ns = _timestamp_ns(9, 25, 18) + 123_456_789
        return (claim("language", _timestamp_ns(9, 2, 6), end_ns=ends_ns),)
    if index == FAULTY_GPU + 1:
        return (claim("vision", _timestamp_ns(9, 5), end_ns=LAST_CLAIM_ENDS_NS),)
    if index == FAULTY_GPU + 2:
        # Handed over in the middle of the month: both claims have the same end, the later start has
        # precedence.
        ends = {"end_ns": LAST_CLAIM_ENDS_NS}
        return (
            claim("vision", _timestamp_ns(9, 5), **ends),
            claim("language", _timestamp_ns(9, 16, 9, 30), **ends),
        )
    if index == GPUS - 1:
        start_ns = _timestamp_ns(9, 8, 14)
        metered_claim = usage_evidence.MeteredClaim(
            ClaimAuthority.PROCESS, start_ns, "pid-4711", "", end_ns=start_ns + 2 * HOUR_NS
        )
        return (metered_claim,)
    return ()


def _simulate_boots(index: int) -> list[tuple[str, Any]]:
    """Boots of the GPU's node with the timestamps of its samples."""
    timestamps_ns = np.arange(MONTH.start_ns, CLOSED_AGAIN_NS, SAMPLE_NS, dtype=np.int64)
    is_sampled = np.ones(len(timestamps_ns), np.bool_)
    away = [*AGENT_AWAY, *([DOWN] if index == FAULTY_GPU else [])]
    for span in away:
        is_sampled &= ~((timestamps_ns > span.start_ns) & (timestamps_ns < span.end_ns))
    timestamps_ns = timestamps_ns[is_sampled]
    if index != FAULTY_GPU:
        return [("boot-1", timestamps_ns)]
    before = timestamps_ns <= DOWN.start_ns
    return [("boot-1", timestamps_ns[before]), ("boot-2", timestamps_ns[~before])]


def _simulate_counter(evidence: usage_evidence.Evidence) -> counter_increments.CounterIncrements:
    """Increments of the energy counter, which restarts at zero with every boot."""
    index = int(evidence.gpu.removeprefix("GPU-"))
    claim_spans = [(claim.start_ns, claim.end_ns) for claim in evidence.claims]
    runs = []
    for boot, timestamps_ns in _simulate_boots(index):
        busy = np.zeros(len(timestamps_ns), np.bool_)
        for start_ns, end_ns in claim_spans:
            busy |= (timestamps_ns >= start_ns) & (timestamps_ns < end_ns)
        watts = np.where(busy, HELD_WATTS, IDLE_WATTS)
        elapsed_ns = np.diff(timestamps_ns, prepend=timestamps_ns[0])
        # Watts times nanoseconds are nanojoules; a millijoule is a million of them.
        counters = np.cumsum(watts * (elapsed_ns // 1_000_000))
        runs.append(counter_increments.CounterReadings(boot, timestamps_ns, counters))
    return counter_increments.compute_increments(runs)


SELLER = seller_file.Seller(
    provider="Example Cluster",
    accounts={
        "language": seller_file.PayerAccount("research", "Research", tags={"CostCenter": "4711"}),
        "vision": seller_file.PayerAccount("product", "Product", tags={"CostCenter": "0815"}),
    },
    region=seller_file.GpuRegion("hall-1", "Machine hall 1"),
)
CREDIT = invoices.credit_charge("vision", Fraction(50), MONTH, "three hours without an agent")


@dataclass(frozen=True, slots=True)
class BillingDemo:
    """A closed month, the next one with corrections from late evidence, and their reconciliation."""

    closed: period_closing.ClosedPeriod
    later: period_closing.ClosedPeriod
    checks: tuple[reconciliation_check.ReconciliationCheck, ...]

    @property
    def balances(self) -> bool:
        """True if all checks pass."""
        return all(check.passes for check in self.checks)


def run_demo(ledger: ledger_store.Ledger) -> BillingDemo:
    """Simulate, meter, rate, close, correct and reconcile, in an empty ledger."""
    actor = RecordActor("operator", "demo", "command line")
    first, second = (
        record_draft.TimedActor(actor, CLOSED_NS),
        record_draft.TimedActor(actor, CLOSED_AGAIN_NS),
    )
    first_day = MONTH.start_ns // DAY_NS
    simulated = simulate_evidence()
    books = period_closing.BillingBooks.for_ledger(ledger, simulated)
    meter_days(ledger, simulated, range(first_day, CLOSED_NS // DAY_NS), CLOSED_NS)
    administration.publish(books, PRICES, "the demo's prices", first)
    closed = books.close(MONTH, first)
    simulated = with_late_release(simulated)
    books = period_closing.BillingBooks.for_ledger(ledger, simulated)
    meter_days(ledger, simulated, range(first_day, CLOSED_AGAIN_NS // DAY_NS), CLOSED_AGAIN_NS)
    administration.record(books, CREDIT, second)
    later = books.close(NEXT_MONTH, second)
    checks = [
        check
        for period in (MONTH, NEXT_MONTH)
        for check in reconciliation.reconcile_period(books, period, SELLER)
    ]
    return BillingDemo(closed, later, tuple(checks))


def meter_days(
    ledger: ledger_store.Ledger, simulated: SimulatedEvidence, days: range, now_ns: int
) -> None:
    """Meter the given days and write them to the ledger."""
    gpus = [assembled.meter() for assembled in simulated.assembled.values()]
    ledger.write_days([gpu.day(day) for gpu in gpus for day in days], now_ns)
