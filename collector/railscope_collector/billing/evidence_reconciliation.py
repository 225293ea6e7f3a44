"""Ledger days compared with the same days computed again: the rules R1, R2, R4 and R7 of `reconciliation`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from railscope.claim_terms import GPU_CAPACITY
from railscope.timestamps import DAY_NS, format_timestamp
from railscope_collector.billing import period_completeness, period_rating
from railscope_collector.billing.reconciliation_check import ReconciliationCheck, worst_check
from railscope_collector.jobs.imported_lists import is_listed_gpu
from railscope_collector.ledger import ledger_store
from railscope_collector.ledger.day_documents import GpuDay
from railscope_collector.metering.counter_increments import CountedQuantity, CounterIncrements
from railscope_collector.metering.metered_day import MeteredDay
from railscope_collector.metering.units import Period, Units, exact


def evidence_checks(
    ledger: ledger_store.Ledger, evidence: period_completeness.UsageEvidence, period: Period
) -> Iterator[ReconciliationCheck]:
    """Compare the newest ledger revisions of a period with its days, computed again from all evidence."""
    capacity: list[tuple[str, Units, Units]] = []
    counted: dict[CountedQuantity, list[tuple[str, int, int]]] = defaultdict(list)
    same: list[tuple[str, int, int]] = []
    for written, again, increments in _compared_days(ledger, evidence, period):
        name = f"{again.gpu} on {format_timestamp(again.day * DAY_NS)[:10]}"
        present_ns = sum(piece.end_ns - piece.start_ns for piece in again.pieces)
        capacity.append((name, _quantity(written), GPU_CAPACITY * present_ns))
        found = _shared_amounts(written)
        for measure in {*found, *increments}:
            counted[measure].append((name, found[measure], increments.get(measure, 0)))
        if written or again.pieces:
            same.append((name, int(written == again), 1))
    yield worst_check("R1", "states = capacity x time, per GPU and day", capacity)
    found_sum, expected_sum = (
        sum((Fraction(p[at]) for p in capacity), Fraction(0)) for at in (1, 2)
    )
    yield ReconciliationCheck("R2", "cluster = inventory x time", found_sum, expected_sum)
    for measure in sorted(counted):
        title = f"{measure} attributed + idle + unattributed = counted, per GPU and day"
        yield worst_check("R4", title, counted[measure])
    yield worst_check("R7", "GPU-days of the ledger = computed again from evidence", same)


def _compared_days(
    ledger: ledger_store.Ledger, evidence: period_completeness.UsageEvidence, period: Period
) -> Iterator[tuple[MeteredDay | None, MeteredDay, dict[CountedQuantity, int]]]:
    """Yield each GPU-day as in the ledger, None if it is missing, as computed again, and the increments of its counters."""
    days = period_rating.period_days(period)
    by_gpu: dict[str, dict[GpuDay, int]] = defaultdict(dict)
    for key, number in ledger.newest(days.start, days.stop).items():
        by_gpu[key.gpu][key] = number
    gpus = evidence.gpus(period.start_ns, period.end_ns)
    # Days of job lists have no evidence of agents: `bill reconcile --slurm` compares them with jobs.
    only_written = sorted(gpu for gpu in by_gpu.keys() - set(gpus) if not is_listed_gpu(gpu))
    # In the order of the evidence, which reads a node once; then GPUs that only the ledger has.
    for gpu in [*gpus, *only_written]:
        inputs = evidence.evidence(gpu, period.start_ns, period.end_ns)
        metered = inputs.meter()
        written = {revision.day.day: revision.day for revision in ledger.revisions(by_gpu[gpu])}
        for day in days:
            increments = {measure: _increment(of, day) for measure, of in inputs.counted.items()}
            yield written.get(day), metered.day(day), increments


def _quantity(day: MeteredDay | None) -> Units:
    """Capacity times time of all parts of a day."""
    total: Units = 0
    for piece in day.pieces if day else ():
        length_ns = piece.end_ns - piece.start_ns
        total = exact(total + sum(part.size for part in piece.parts) * length_ns)
    return total


def _increment(counted: CounterIncrements, day: int) -> int:
    first, last = np.searchsorted(counted.ends_ns, [day * DAY_NS, (day + 1) * DAY_NS], "right")
    # With Python's integers: the sum of a day may exceed 64 bits.
    return sum(counted.amounts[first:last].tolist())


def _shared_amounts(day: MeteredDay | None) -> Counter[CountedQuantity]:
    """Amounts of a day by measure, of all holders and of none."""
    amounts: Counter[CountedQuantity] = Counter()
    for each in day.amounts if day else ():
        amounts[each.measure] += each.amount
    return amounts
