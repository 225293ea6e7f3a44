"""R1, R2, R4, R7 and R9: the ledger compared with the evidence it was computed from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np

from collector.billing.checks import Check, worst
from collector.billing.completeness import EvidenceStore, Known
from collector.billing.rated import days_of
from collector.evidence.review import NOT_IN_SERVICE
from collector.ledger.metered import Computed, MeteredGpu
from collector.ledger.rows import GpuDay
from collector.ledger.store import Ledger, Revision
from collector.ledger.tiling import root_in
from collector.metering.evidence import Evidence
from collector.metering.holders import stays
from collector.metering.instants import DAY_NS, Period, spelled
from collector.metering.measures import Increments, Measure
from collector.metering.units import GPU_CAPACITY, Tiling, Units, exact

_Pair = tuple[str, Units, Units]


def evidence_checks(ledger: Ledger, evidence: EvidenceStore, period: Period) -> list[Check]:
    """Compare the newest ledger revisions of a period with all evidence of it."""
    found = _Comparison()
    days = days_of(period)
    newest = ledger.newest(days.start, days.stop)
    by_gpu: dict[str, dict[GpuDay, int]] = defaultdict(dict)
    for key, number in newest.items():
        by_gpu[key.gpu][key] = number
    seen = evidence.gpus(period.start_ns, period.end_ns)
    for gpu in [*seen, *sorted(by_gpu.keys() - set(seen))]:
        known = evidence.evidence(gpu, period.start_ns, period.end_ns)
        written = {one.tiling.day: one for one in ledger.revisions(by_gpu[gpu])}
        found.compare(known, written, days)
    return list(found.checks())


class _Comparison:
    """Pairs of actual and expected ledger values, GPU by GPU."""

    def __init__(self) -> None:
        self._capacity: list[_Pair] = []
        self._found, self._expected = Fraction(0), Fraction(0)
        """Of GPUs in service."""
        self._requested: list[_Pair] = []
        self._counted: dict[Measure, list[_Pair]] = defaultdict(list)
        self._roots: list[_Pair] = []

    def compare(self, known: Known, written: dict[int, Revision], days: range) -> None:
        """Compare all days of a GPU."""
        metered = _metered(known)
        places = [(stay.start_ns, stay.end_ns) for stay in stays(known.evidence)]
        outside = _outside(known.evidence, places)
        counted = {measure: _by_day(known.counted[measure], days) for measure in known.counted}
        for day in days:
            revision = written.get(day)
            name = _name(GpuDay(known.evidence.gpu, day))
            present, absent = _within(places, day), _within(outside, day)
            for tiling in Tiling:
                self._capacity.append((
                    f"{name}, {tiling}", _quantity(revision, tiling), GPU_CAPACITY * present,
                ))  # fmt: skip
                held = _quantity(revision, tiling) - _quantity(revision, tiling, outside)
                self._found += held
                self._expected += GPU_CAPACITY * (present - absent)
            self._claims(revision, name)
            self._shares(revision, {m: own.get(day, 0) for m, own in counted.items()}, name)
            again = metered.day(day, Computed("", 0))
            if revision is not None or again.entries:
                same = revision is not None and revision.content_root == root_in(
                    again, revision.tiling.capacity_units
                )
                self._roots.append((name, int(same), 1))

    def _claims(self, revision: Revision | None, name: str) -> None:
        """Compare the requested quantity of each claim with the sum of held and moved, by tiling."""
        if revision is None:
            return
        found: dict[tuple[str, Tiling], Fraction] = defaultdict(Fraction)
        for entry in revision.tiling.entries:
            found[entry.claim, entry.tiling] += Fraction(entry.quantity) / GPU_CAPACITY
        for one in revision.tiling.overlaps:
            found[one.claim, one.tiling] += Fraction(one.quantity) / GPU_CAPACITY
        for claim in revision.tiling.claims:
            for tiling, asked in zip(Tiling, claim.requested, strict=True):
                if asked:
                    where = f"{name}, {claim.id}, {tiling}"
                    self._requested.append((where, found[claim.id, tiling], Fraction(asked)))

    def _shares(self, revision: Revision | None, counted: dict[Measure, int], name: str) -> None:
        shared: dict[Measure, int] = dict.fromkeys(counted, 0)
        for one in revision.tiling.shares if revision else ():
            shared[one.measure] = shared.get(one.measure, 0) + one.share.amount
        for measure, amount in shared.items():
            self._counted[measure].append((name, amount, counted.get(measure, 0)))

    def checks(self) -> Iterator[Check]:
        """The comparisons, each as its largest difference."""
        yield worst("R1", "states = capacity x time, per GPU, day and tiling", self._capacity)
        yield Check("R2", "cluster = inventory x time", self._found, self._expected)
        for measure in sorted(self._counted):
            what = f"{measure} attributed + idle + unattributed = counted, per GPU and day"
            yield worst("R4", what, self._counted[measure])
        yield worst("R9", "requested = held + moved, per claim, day and tiling", self._requested)
        yield worst("R7", "GPU-days of the ledger = computed again from evidence", self._roots)


def _metered(known: Known) -> MeteredGpu:
    return MeteredGpu.of(
        known.evidence, known.counted, known.sku, known.profiles, doubts=known.doubts
    )


def _quantity(
    revision: Revision | None, tiling: Tiling, places: Sequence[tuple[int, int]] | None = None
) -> Units:
    """Quantity of one tiling of a revision, in total or within disjoint spans."""
    if revision is None:
        return 0
    found = Fraction(0)
    for entry in revision.tiling.entries:
        if entry.tiling is tiling:
            spans = [(entry.t0_ns, entry.t1_ns)] if places is None else places
            time_ns = sum(
                max(0, min(end, entry.t1_ns) - max(start, entry.t0_ns)) for start, end in spans
            )
            found += Fraction(entry.slot_hi - entry.slot_lo) * time_ns
    return exact(found)


def _outside(evidence: Evidence, places: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Time within these spans in which the GPU is metered only for claims under review."""
    spans = sorted(
        (max(start, claim.begins_ns), min(end, claim.ceases_ns))
        for claim in evidence.claims
        if claim.review in NOT_IN_SERVICE
        for start, end in places
    )
    found: list[tuple[int, int]] = []
    for start, end in spans:
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        elif start < end:
            found.append((start, end))
    return found


def _within(places: list[tuple[int, int]], day: int) -> int:
    """Nanoseconds of a day in which the GPU was in a node."""
    start_ns, end_ns = day * DAY_NS, (day + 1) * DAY_NS
    return sum(max(0, min(end, end_ns) - max(start, start_ns)) for start, end in places)


def _by_day(counted: Increments, days: range) -> dict[int, int]:
    """Counter increments of each day."""
    ends = counted.ends_ns
    picked = (ends > days.start * DAY_NS) & (ends <= days.stop * DAY_NS)
    found: dict[int, int] = defaultdict(int)
    day_of = (ends[picked] - 1) // DAY_NS
    amounts = counted.amounts[picked]
    for day in np.unique(day_of).tolist():
        found[day] = sum(amounts[day_of == day].tolist())
    return found


def _name(key: GpuDay) -> str:
    return f"{key.gpu} on {spelled(key.day * DAY_NS)[:10]}"
