"""Two simulated months in a ledger: closed, corrected by late evidence, and reconciled.

The production ledger, rating, closing and reconciliation are used. Only evidence is simulated:
samples, energy counters, claims and outages of two tenants on one node, with faults, stale periods
and late evidence.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction

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
from railscope_collector.evidence import (
    claim_events,
    fact_store,
    file_versions,
    node_intervals,
)
from railscope_collector.evidence.usage_facts import UsageFacts
from railscope_collector.files import seller_file
from railscope_collector.fleet.shape_columns import CounterSubject
from railscope_collector.ledger import ledger_store, record_draft
from railscope_collector.metering import counter_increments, units

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
LATE_RELEASE = claim_events.ReportedEnd(
    _timestamp_ns(9, 29, 12), f"GPU-{FAULTY_GPU + 1}", NODE, "vision-4"
)
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


CALENDAR = f"""[[outage]]
holds = "GPU-{FAULTY_GPU}"
from = 2026-09-20T08:00:00Z
to = 2026-09-20T10:00:00Z

[[reservation]]
name = "vision-6"
tenant = "vision"
holds = "GPU-{GPUS - 2}"
from = 2026-09-07T00:00:00Z
to = 2026-09-21T00:00:00Z
"""
_BOOT = "boot-1"
_READING_NS = 10 * 60 * SECOND_NS
_MILLIJOULES = 1_000
"""Of a watt in a second."""


def write_facts(facts: UsageFacts, days: range) -> None:
    """Write what the node's agent reported on some days, and the administrators' file."""
    facts.files.write("calendar", CALENDAR, lambda: MONTH.start_ns, range(0))
    claims = [claim for index in range(GPUS) for claim in _claims(index)]
    facts.facts.write([_quarter(day) for day in days], claims, range(days.stop))


def write_late_release(facts: UsageFacts) -> None:
    """Write that a claim ended before the month did, as the scheduler reported later."""
    facts.facts.write((), [LATE_RELEASE], range(NEXT_MONTH.end_ns // DAY_NS))


def _quarter(day: int) -> node_intervals.EvidenceInterval:
    """Return the facts of the node's frames of a day."""
    start_ns, end_ns = day * DAY_NS, min((day + 1) * DAY_NS, CLOSED_AGAIN_NS)
    quarter = node_intervals.EvidenceInterval(NODE, _BOOT, day, start_ns, end_ns - SAMPLE_NS)
    for index in range(GPUS):
        spans = list(_sampled(index, start_ns, end_ns))
        quarter.gpus[f"GPU-{index}"] = node_intervals.ReportedGpu(MONTH.start_ns, 0, SKU, spans)
    counters = tuple(
        CounterSubject(counter_increments.CountedQuantity.ENERGY, f"GPU-{index}")
        for index in range(GPUS)
    )
    cells = {}
    for at_ns in range(start_ns, end_ns, _READING_NS):
        values = np.array([_read_energy(index, at_ns) for index in range(GPUS)], "<i8")
        boot_ns = at_ns - MONTH.start_ns
        reading = node_intervals.CounterReading(boot_ns, at_ns, values.tobytes())
        cells[boot_ns // node_intervals.GRID_NS] = reading
    quarter.series["energy"] = node_intervals.CounterSeries("run-1", counters, cells)
    return quarter


def _sampled(index: int, start_ns: int, end_ns: int) -> Iterator[node_intervals.SampleSpan]:
    """Yield the spans of a day in which a GPU had samples."""
    away = [*AGENT_AWAY, *([DOWN] if index == FAULTY_GPU else [])]
    now_ns = start_ns
    for span in sorted(away):
        if start_ns < span.end_ns and span.start_ns < end_ns:
            yield node_intervals.SampleSpan(now_ns, span.start_ns)
            now_ns = span.end_ns
    yield node_intervals.SampleSpan(now_ns, end_ns - SAMPLE_NS)


def _read_energy(index: int, at_ns: int) -> int:
    """Return the energy counter of a GPU in millijoules; -1 while there are no samples."""
    away = [*AGENT_AWAY, *([DOWN] if index == FAULTY_GPU else [])]
    if any(span.start_ns < at_ns < span.end_ns for span in away):
        return -1
    # The counter of the faulty GPU begins again at zero.
    is_reset = index == FAULTY_GPU and at_ns >= DOWN.end_ns
    since_ns = DOWN.end_ns if is_reset else MONTH.start_ns
    held_ns = sum(
        max(0, min(at_ns, claim.end_ns or LAST_CLAIM_ENDS_NS) - max(since_ns, claim.start_ns))
        for claim in _claims(index)[:1]
    )
    nanojoules = IDLE_WATTS * (at_ns - since_ns) + (HELD_WATTS - IDLE_WATTS) * held_ns
    return nanojoules // (SECOND_NS // _MILLIJOULES)


def _claims(index: int) -> list[claim_events.ReportedClaim]:
    def claim(tenant: str, start_ns: int, end_ns: int) -> claim_events.ReportedClaim:
        return claim_events.ReportedClaim(
            start_ns,
            f"GPU-{index}",
            NODE,
            f"{tenant}-{index}",
            ClaimAuthority.SCHEDULER,
            tenant=tenant,
            boot=_BOOT,
            reported_ns=start_ns,
            end_ns=end_ns,
            received_ns=start_ns,
        )

    if index <= FAULTY_GPU:
        return [claim("language", _timestamp_ns(9, 2, 6), _timestamp_ns(9, 25, 18) + 123_456_789)]
    if index == FAULTY_GPU + 1:
        return [claim("vision", _timestamp_ns(9, 5), LAST_CLAIM_ENDS_NS)]
    if index == FAULTY_GPU + 2:
        # Handed over in the middle of the month: both claims have the same end, the later start has
        # precedence.
        return [
            claim("vision", _timestamp_ns(9, 5), LAST_CLAIM_ENDS_NS),
            claim("language", _timestamp_ns(9, 16, 9, 30), LAST_CLAIM_ENDS_NS),
        ]
    if index == GPUS - 1:
        start_ns = _timestamp_ns(9, 8, 14)
        used = claim("", start_ns, start_ns + 2 * HOUR_NS)
        process = {"id": "pid-4711", "source": "process", "authority": ClaimAuthority.PROCESS}
        return [msgspec.structs.replace(used, **process)]
    return []


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
    facts = UsageFacts(
        fact_store.FactStore(ledger.database), file_versions.FileStore(ledger.database)
    )
    books = period_closing.BillingBooks.for_ledger(ledger, facts)
    days = range(first_day, CLOSED_NS // DAY_NS)
    write_facts(facts, days)
    meter_days(ledger, facts, days, CLOSED_NS)
    administration.publish(books, PRICES, "the demo's prices", first)
    closed = books.close(MONTH, first)
    later_days = range(days.stop, CLOSED_AGAIN_NS // DAY_NS)
    write_facts(facts, later_days)
    write_late_release(facts)
    meter_days(ledger, facts, range(first_day, later_days.stop), CLOSED_AGAIN_NS)
    administration.record(books, CREDIT, second)
    later = books.close(NEXT_MONTH, second)
    checks = [
        check
        for period in (MONTH, NEXT_MONTH)
        for check in reconciliation.reconcile_period(books, period, SELLER)
    ]
    return BillingDemo(closed, later, tuple(checks))


def meter_days(ledger: ledger_store.Ledger, facts: UsageFacts, days: range, now_ns: int) -> None:
    """Meter the given days and write them to the ledger."""
    for day in days:
        ledger.write_days(list(facts.meter(day)), now_ns)
    with ledger.database.transaction(writes=True) as connection:
        for day in days:
            fact_store.clear_marks(connection, NODE, day)
