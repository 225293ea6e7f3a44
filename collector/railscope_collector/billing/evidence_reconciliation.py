"""Ledger days compared with all evidence of them: the rules R1, R2, R4 and R7 of `reconciliation`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction

import numpy as np

from railscope.claim_terms import GPU_CAPACITY
from railscope.timestamps import DAY_NS, format_timestamp
from railscope_collector.billing import period_completeness, period_rating
from railscope_collector.billing.reconciliation_check import ReconciliationCheck, worst_check
from railscope_collector.evidence import gpu_evidence, review_rules
from railscope_collector.jobs.imported_lists import is_listed_gpu
from railscope_collector.ledger import ledger_store
from railscope_collector.ledger.day_documents import GpuDay, Revision
from railscope_collector.metering import counter_increments, holders, timeline
from railscope_collector.metering.evidence import Evidence
from railscope_collector.metering.units import Period, Units, exact

_Pair = tuple[str, Units, Units]


def evidence_checks(
    ledger: ledger_store.Ledger, evidence: period_completeness.UsageEvidence, period: Period
) -> list[ReconciliationCheck]:
    """Compare the newest ledger revisions of a period with all evidence of it."""
    comparison = _EvidenceComparison()
    days = period_rating.period_days(period)
    newest = ledger.newest(days.start, days.stop)
    by_gpu: dict[str, dict[GpuDay, int]] = defaultdict(dict)
    for key, number in newest.items():
        by_gpu[key.gpu][key] = number
    gpus = evidence.gpus(period.start_ns, period.end_ns)
    # Days of job lists have no evidence of agents: `bill reconcile --slurm` compares them with jobs.
    only_written = sorted(gpu for gpu in by_gpu.keys() - set(gpus) if not is_listed_gpu(gpu))
    # In the order of the evidence, which reads a node once; then GPUs that only the ledger has.
    for gpu in [*gpus, *only_written]:
        inputs = evidence.evidence(gpu, period.start_ns, period.end_ns)
        written = {revision.day.day: revision for revision in ledger.revisions(by_gpu[gpu])}
        comparison.compare(inputs, written, days)
    return list(comparison.checks())


class _EvidenceComparison:
    """Pairs of actual and expected ledger values, GPU by GPU."""

    def __init__(self) -> None:
        self._capacity: list[_Pair] = []
        self._found, self._expected = Fraction(0), Fraction(0)
        """Sums found and expected, of GPUs in service."""
        self._counted: dict[counter_increments.CountedQuantity, list[_Pair]] = defaultdict(list)
        self._roots: list[_Pair] = []

    def compare(
        self,
        inputs: gpu_evidence.AssembledGpu,
        written: dict[int, Revision],
        days: range,
    ) -> None:
        """Compare all days of a GPU."""
        metered = inputs.meter()
        places = [(stay.start_ns, stay.end_ns) for stay in holders.resolve_stays(inputs.evidence)]
        outside = _find_review_time(inputs.evidence, places)
        counted = {measure: _by_day(inputs.counted[measure], days) for measure in inputs.counted}
        for day in days:
            revision = written.get(day)
            name = f"{inputs.evidence.gpu} on {format_timestamp(day * DAY_NS)[:10]}"
            start_ns, end_ns = day * DAY_NS, (day + 1) * DAY_NS
            present, absent = (_overlap_ns(p, start_ns, end_ns) for p in (places, outside))
            self._capacity.append((name, _quantity(revision), GPU_CAPACITY * present))
            self._found += _quantity(revision) - _quantity(revision, outside)
            self._expected += GPU_CAPACITY * (present - absent)
            of_day = {measure: amounts.get(day, 0) for measure, amounts in counted.items()}
            self._shares(revision, of_day, name)
            again = metered.day(day)
            if revision is not None or again.pieces:
                same = revision is not None and revision.day == again
                self._roots.append((name, int(same), 1))

    def _shares(
        self,
        revision: Revision | None,
        counted: dict[counter_increments.CountedQuantity, int],
        name: str,
    ) -> None:
        shared: dict[counter_increments.CountedQuantity, int] = dict.fromkeys(counted, 0)
        for each in revision.day.amounts if revision else ():
            shared[each.measure] = shared.get(each.measure, 0) + each.amount
        for measure, amount in shared.items():
            self._counted[measure].append((name, amount, counted.get(measure, 0)))

    def checks(self) -> Iterator[ReconciliationCheck]:
        """The comparisons, each as its largest difference."""
        yield worst_check("R1", "states = capacity x time, per GPU and day", self._capacity)
        yield ReconciliationCheck("R2", "cluster = inventory x time", self._found, self._expected)
        for measure in sorted(self._counted):
            title = f"{measure} attributed + idle + unattributed = counted, per GPU and day"
            yield worst_check("R4", title, self._counted[measure])
        yield worst_check(
            "R7", "GPU-days of the ledger = computed again from evidence", self._roots
        )


def _quantity(revision: Revision | None, places: Sequence[tuple[int, int]] | None = None) -> Units:
    """Quantity of a revision, in total or within disjoint spans."""
    total: Units = 0
    for piece in revision.day.pieces if revision else ():
        spans = [(piece.start_ns, piece.end_ns)] if places is None else places
        time_ns = _overlap_ns(spans, piece.start_ns, piece.end_ns)
        total = exact(total + sum(part.size for part in piece.parts) * time_ns)
    return total


def _find_review_time(
    evidence: Evidence, places: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Time within these spans in which the GPU is metered only for claims under review."""
    spans = (
        timeline.TimePiece(max(start, claim.begins_ns), min(end, claim.ceases_ns), 0)
        for claim in evidence.claims
        if claim.review in review_rules.NOT_IN_SERVICE
        for start, end in places
    )
    return [(piece.start_ns, piece.end_ns) for piece in timeline.resolve_overlaps(spans)]


def _overlap_ns(spans: Iterable[tuple[int, int]], start_ns: int, end_ns: int) -> int:
    """Nanoseconds of disjoint spans in [start, end)."""
    return sum(max(0, min(end, end_ns) - max(start, start_ns)) for start, end in spans)


def _by_day(counted: counter_increments.CounterIncrements, days: range) -> dict[int, int]:
    """Counter increments of each day."""
    ends = counted.ends_ns
    picked = (ends > days.start * DAY_NS) & (ends <= days.stop * DAY_NS)
    total_by_day: dict[int, int] = defaultdict(int)
    day_of = (ends[picked] - 1) // DAY_NS
    amounts = counted.amounts[picked]
    for day in np.unique(day_of).tolist():
        # With Python's integers: the sum of a day may exceed 64 bits.
        total_by_day[day] = sum(amounts[day_of == day].tolist())
    return total_by_day
