"""Facts of one batch, and bounds on the facts of one node in memory.

The facts of a batch are the GPUs that were seen, their MIG layouts, and readings of counters.

The index of claims finds earlier reports of a claim without a scan of all claims, and enforces the
bounds of a node: above one, its claims are rejected and counted, and those of other nodes are not
affected.

Spans of samples have bounds by node and GPU. A node determines the distances between its samples.
Each sample that is further than a gap from the others is a separate span, which stays in memory
until its day is in the ledger.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np

from railscope.reading import PRESENT
from railscope.wire import Batch, Envelope
from railscope_collector.evidence import claim_events, gpu_node_history, node_intervals
from railscope_collector.fleet import names, shape_columns, sheets
from railscope_collector.framelog.segment_files import FrameRecord
from railscope_collector.metering.observation import GAP_NS

_VALUE = np.dtype("<i8")
MAX_SNAPPED_NS = 2_000_000_000
"""Maximum uncertainty of a clock that is usable without a flag."""
_SPAN_BYTES, _SPANS_OF_A_GPU = 150, 3
"""Approximate memory of a span, here and with its GPU, and the spans that a new GPU counts as."""


class FactReceiver(Protocol):
    """Receiver of a batch's facts about GPUs."""

    def record_presence(
        self, uuid: str, presence: gpu_node_history.GpuPresence, pci: str
    ) -> int | None:
        """Record a GPU in a node; return its first receipt in that boot.

        None if it is rejected: the node reported too many. `presence` may be shared: it is copied.
        """

    def list_valueless(
        self, node: str, uuid: str, spans: Sequence[node_intervals.SampleSpan]
    ) -> bool:
        """Record that a node listed a GPU without a value; false if that is rejected."""

    def accepts_layout(self, node: str, uuid: str, received_ns: int) -> bool:
        """True if a node may report the MIG layout of a GPU."""

    def record_layout(
        self,
        uuid: str,
        parts: tuple[shape_columns.ReportedMigInstance, ...],
        span: node_intervals.SampleSpan,
    ) -> None:
        """Record the MIG layout of a GPU in a span."""


@dataclass(slots=True)
class BatchFacts:
    """Extraction of the facts of one batch."""

    book: FactReceiver
    record: FrameRecord
    envelope: Envelope
    batch: Batch
    schema: names.KnownSchema
    since_boot_ns: int
    skew_ns: int
    uncertainty_ns: int
    horizon_ns: int = 0
    """Earlier facts are reported late."""
    has_reports: bool = False
    """True if the time of the node's reports is already recorded."""
    added_bytes: int = 0

    def record_rows(self, interval: node_intervals.EvidenceInterval, rows: Sequence[int]) -> int:
        """Record the rows of one interval; return the approximate number of bytes added."""
        self.added_bytes = 0
        if self.schema.gpus:
            self._record_gpus(interval, rows)
        # Of a schema with GPUs, the presence of a GPU already shows that the node reported.
        elif not self.has_reports:
            self.added_bytes += add_reports(interval, self.join_spans(rows))
        if self.schema.mig_layouts:
            self._record_layouts(interval, rows)
        if self.schema.counters:
            self._record_counters(interval, rows)
        return self.added_bytes

    def join_spans(self, rows: Sequence[int]) -> list[node_intervals.SampleSpan]:
        """Join rows that are at most a gap apart into spans."""
        boot_ns, since_boot_ns = self.batch.boot_ns, self.since_boot_ns
        first_ns, last_ns = since_boot_ns + boot_ns[rows[0]], since_boot_ns + boot_ns[rows[-1]]
        if last_ns - first_ns <= GAP_NS:
            return [node_intervals.SampleSpan(first_ns, last_ns, self.uncertainty_ns, self.skew_ns)]
        spans: list[node_intervals.SampleSpan] = []
        for row in rows:
            timestamp_ns = since_boot_ns + boot_ns[row]
            if spans and timestamp_ns - spans[-1].last_ns <= GAP_NS:
                spans[-1].last_ns = timestamp_ns
            else:
                spans.append(
                    node_intervals.SampleSpan(
                        timestamp_ns, timestamp_ns, self.uncertainty_ns, self.skew_ns
                    )
                )
        return spans

    def _record_gpus(self, interval: node_intervals.EvidenceInterval, rows: Sequence[int]) -> None:
        """Record the GPUs that reported any value in these rows."""
        everywhere = self._build_presence(interval, rows)
        for gpu in self.schema.gpus:
            if not claim_events.is_gpu_name(gpu.uuid):
                continue  # it would be mixed up with other keys
            presence = everywhere
            if self.batch.reasons:
                reporting = self._rows_with_values(gpu, rows)
                spans = everywhere.spans
                is_partial = len(reporting) < len(rows)
                # A GPU that is listed without a value is still in the node: the absence of values is no departure.
                if is_partial and self.book.list_valueless(interval.node, gpu.uuid, spans):
                    interval.list_valueless(gpu.uuid, spans)
                    self.added_bytes += _SPAN_BYTES * len(spans)
                if not reporting:
                    continue
                if is_partial:
                    presence = self._build_presence(interval, reporting)
            first_ns = self.book.record_presence(gpu.uuid, presence, gpu.pci)
            if first_ns is None:
                continue
            reported = interval.gpus.get(gpu.uuid)
            before = len(reported.spans) if reported else -_SPANS_OF_A_GPU
            reported_gpu = node_intervals.ReportedGpu(
                first_ns, gpu.rail, gpu.sku, presence.spans, presence.trusted_start_ns
            )
            interval.record_gpu(gpu.uuid, reported_gpu)
            self.added_bytes += _SPAN_BYTES * (len(interval.gpus[gpu.uuid].spans) - before)

    def _build_presence(
        self, interval: node_intervals.EvidenceInterval, rows: Sequence[int]
    ) -> gpu_node_history.GpuPresence:
        spans = self.join_spans(rows)
        late_ns = self.horizon_ns if spans[0].first_ns < self.horizon_ns else 0
        return gpu_node_history.GpuPresence(
            interval.node, interval.boot, self.record.received_wall_ns, spans, late_ns
        )

    def _rows_with_values(self, gpu: names.SchemaGpu, rows: Sequence[int]) -> Sequence[int]:
        """Return the rows in which a GPU reported any value."""
        columns = self.schema.layout.columns
        if len(self.batch.reasons) == columns:  # all rows have the same reasons
            codes = sheets.reasons_of(self.batch, 0, columns).take(gpu.columns)
            return rows if (codes == PRESENT).any() else ()
        codes = sheets.reasons(self.batch, columns)[:, gpu.columns]
        chosen = np.asarray(rows, np.intp)
        has_values = (codes == PRESENT).any(axis=1)[chosen]
        return rows if has_values.all() else chosen[has_values].tolist()

    def _record_layouts(
        self, interval: node_intervals.EvidenceInterval, rows: Sequence[int]
    ) -> None:
        """Record the MIG layouts of the stream's GPUs in these rows."""
        # Without uncertainty and skew: they depend on the delivery, and equal layouts must be equal facts.
        bare = node_intervals.copy_times(self.join_spans(rows))
        received_ns = self.record.received_wall_ns
        for gpu, parts in self.schema.mig_layouts:
            if not self.book.accepts_layout(interval.node, gpu, received_ns):
                continue
            for span in bare:
                interval.record_layout(gpu, parts, span)
                self.book.record_layout(gpu, parts, span)

    def _record_counters(
        self, interval: node_intervals.EvidenceInterval, rows: Sequence[int]
    ) -> None:
        """Store the first reading of each cell of the grid."""
        batch, columns = self.batch, self.schema.shape.metered.columns
        # Facts of a device may change, of which its counters do not depend.
        counted = self.schema.shape.digest + self.schema.names.keys
        name = f"{self.envelope.run} {batch.stream} {counted.hex()}"
        series = interval.series.get(name)
        if series is None:
            series = interval.series[name] = node_intervals.CounterSeries(
                self.envelope.run, self.schema.counters, {}
            )
        readings: list[tuple[int, int]] = []
        last = -1
        for row in rows:
            number = batch.boot_ns[row] // node_intervals.GRID_NS
            if number != last:
                newest = series.cells.get(number)
                # The first reading of a cell, in whatever order frames arrive: two collectors then store the same fact.
                if newest is None or batch.boot_ns[row] <= newest.boot_ns:
                    readings.append((number, row))
            last = number
        if not readings:
            return
        before = len(series.cells)
        width = self.schema.layout.columns
        table = sheets.rows_at(batch, [row for _, row in readings], columns, width)
        for (number, row), read in zip(readings, table, strict=True):
            codes = sheets.reasons_of(batch, row, width).take(columns)
            # Counters are never negative: -1 stands for an absent reading, which must not look like 0.
            values = np.where(codes == PRESENT, read, -1).astype(_VALUE)
            timestamp_ns = self.since_boot_ns + batch.boot_ns[row]
            series.offer(
                number,
                node_intervals.CounterReading(batch.boot_ns[row], timestamp_ns, values.tobytes()),
            )
        cell_bytes = _SPAN_BYTES + _VALUE.itemsize * len(columns)
        self.added_bytes += cell_bytes * (len(series.cells) - before)


def add_reports(
    interval: node_intervals.EvidenceInterval, spans: Sequence[node_intervals.SampleSpan]
) -> int:
    """Add time in which a node reported anything but GPUs; return the number of bytes added."""
    before = len(interval.reports)
    node_intervals.add_spans(interval.reports, spans)
    return _SPAN_BYTES * (len(interval.reports) - before)


def uncertainty_of(batch: Batch) -> int:
    """Return the uncertainty of a batch's wall clock, at most that of a usable clock."""
    return min(batch.uncertainty_ns or 0, MAX_SNAPPED_NS)


def group_by_interval(
    boot_ns: Sequence[int], rows: Sequence[int]
) -> Iterator[tuple[int, Sequence[int]]]:
    """Group rows by interval, in the order of the boot clock."""
    if not rows:
        return
    # A sender may order frames as it likes; spans are joined in the order of time.
    if sorted(boot_ns) != list(boot_ns):
        rows = sorted(rows, key=boot_ns.__getitem__)
    first, last = (
        boot_ns[rows[0]] // node_intervals.INTERVAL_NS,
        boot_ns[rows[-1]] // node_intervals.INTERVAL_NS,
    )
    if first == last:
        yield first, rows
        return
    grouped: dict[int, list[int]] = {}
    for row in rows:
        grouped.setdefault(boot_ns[row] // node_intervals.INTERVAL_NS, []).append(row)
    yield from grouped.items()


MAX_IN_FORCE = 1024
"""Claims of one node without an end, including ends received before their claims."""
MAX_IN_FORCE_ON_GPU = 128
"""Limit of these on one GPU: an eighth, as the cost of metering shares grows with the square of their number."""
MAX_REMEMBERED = 65_536
"""Claims of one node, including those that ended and are not in the ledger yet."""
MAX_REPORTS = 16
"""Different reports of one claim, and as many of its end."""
ClaimIdentity: TypeAlias = tuple[str, str, str]
"""GPU, node and id."""


def claim_identity(fact: claim_events.ClaimFact) -> ClaimIdentity:
    """Return the key of the claim of a fact."""
    return fact.gpu, fact.node, fact.id


@dataclass(slots=True)
class _ClaimReports:
    starts: list[claim_events.ReportedClaim] = field(default_factory=list)
    ends: list[claim_events.ReportedEnd] = field(default_factory=list)

    @property
    def in_force(self) -> bool:
        # An end without its start counts too: a node could send ends without limit otherwise.
        return not (self.starts and self.ends)


@dataclass(slots=True)
class _NodeClaims:
    claims: int = 0
    in_force: int = 0
    in_force_on_gpu: Counter[str] = field(default_factory=Counter)

    def count(self, claim: ClaimIdentity, in_force: int) -> None:
        """Add or subtract claims in force."""
        self.in_force += in_force
        self.in_force_on_gpu[claim[0]] += in_force
        # Else the names of GPUs that a node ever claimed would stay in memory.
        if not self.in_force_on_gpu[claim[0]]:
            del self.in_force_on_gpu[claim[0]]


@dataclass(slots=True)
class ClaimIndex:
    """All claims in memory."""

    _claims: dict[ClaimIdentity, _ClaimReports] = field(default_factory=dict)
    _nodes: dict[str, _NodeClaims] = field(default_factory=dict)

    def starts(self, fact: claim_events.ReportedClaim) -> list[claim_events.ReportedClaim]:
        """Return the earlier reports of the claim."""
        found = self._claims.get(claim_identity(fact))
        return found.starts if found else []

    def ends(self, fact: claim_events.ReportedEnd) -> list[claim_events.ReportedEnd]:
        """Return the earlier reports of the claim's end."""
        found = self._claims.get(claim_identity(fact))
        return found.ends if found else []

    def __contains__(self, fact: claim_events.ClaimFact) -> bool:
        """True if a report was added before."""
        found = self._claims.get(claim_identity(fact))
        return found is not None and (fact in found.starts or fact in found.ends)

    def limit_exceeded(self, fact: claim_events.ClaimFact, *, is_ended: bool = False) -> str:
        """Return the reason for which a node's fact is rejected; empty if it is accepted.

        If `is_ended`, both start and end of the claim are added, so that it is not in force.
        """
        reports, node = (
            self._claims.get(claim_identity(fact)),
            self._nodes.get(fact.node, _NodeClaims()),
        )
        if reports is None:
            if node.in_force >= MAX_IN_FORCE and not is_ended:
                return f"the node has {MAX_IN_FORCE} claims in force"
            # Claims without a device have a bound by node only: their key is no GPU.
            on_gpu = node.in_force_on_gpu[fact.gpu] if claim_events.is_gpu(fact.gpu) else 0
            if on_gpu >= MAX_IN_FORCE_ON_GPU and not is_ended:
                return f"the node has {MAX_IN_FORCE_ON_GPU} claims in force on the GPU"
            if node.claims >= MAX_REMEMBERED:
                return f"the node has {MAX_REMEMBERED} claims that are not yet in the ledger"
            return ""
        is_start = isinstance(fact, claim_events.ReportedClaim)
        if len(reports.starts if is_start else reports.ends) >= MAX_REPORTS:
            return f"the claim has {MAX_REPORTS} different reports"
        return ""

    def add(self, fact: claim_events.ClaimFact) -> None:
        """Add a new fact."""
        node = self._nodes.setdefault(fact.node, _NodeClaims())
        reports = self._claims.get(claim_identity(fact))
        if reports is None:
            reports = self._claims[claim_identity(fact)] = _ClaimReports()
            node.claims += 1
        else:
            node.count(claim_identity(fact), -reports.in_force)
        if isinstance(fact, claim_events.ReportedClaim):
            reports.starts.append(fact)
        else:
            reports.ends.append(fact)
        node.count(claim_identity(fact), reports.in_force)

    def remove(self, claims: Iterable[ClaimIdentity]) -> None:
        """Remove claims."""
        for claim in claims:
            reports = self._claims.pop(claim, None)
            if reports is None:
                continue
            node = self._nodes[claim[1]]
            node.claims -= 1
            node.count(claim, -reports.in_force)
            if not node.claims:
                del self._nodes[claim[1]]


MAX_OF_A_GPU = 4096
"""Limit per GPU in one node: more than the samples of a whole day at 31 s each."""
MAX_OF_A_NODE = 65_536
"""About 10 MB; a node of 8 GPUs reaches the bound of its GPUs first."""


def max_new_spans(
    stored: Sequence[node_intervals.SampleSpan], more: Sequence[node_intervals.SampleSpan]
) -> int:
    """Return the maximum number of spans that the samples of a boot add."""
    return len(more) - bool(stored and node_intervals.does_continue(stored[-1], more[0]))


@dataclass(slots=True)
class SpanCounts:
    """Numbers of spans."""

    by_gpu: dict[str, Counter[str]] = field(default_factory=dict)
    """Spans by GPU and node: reports of one node about a GPU do not use up the bound of another."""
    by_node: Counter[str] = field(default_factory=Counter)

    def limit_exceeded(self, node: str, gpu: str, new: int) -> str:
        """Return the reason for which `new` more spans are rejected; empty if they are accepted."""
        if not new:
            return ""
        if self.by_gpu.get(gpu, _NONE)[node] + new > MAX_OF_A_GPU:
            return f"more than {MAX_OF_A_GPU} spans of samples of one GPU wait for the ledger"
        if self.by_node[node] + new > MAX_OF_A_NODE:
            return f"more than {MAX_OF_A_NODE} spans of samples of one node wait for the ledger"
        return ""

    def add(self, node: str, gpu: str, more: int) -> None:
        """Count spans of a node's GPU; negative where samples joined spans."""
        self.by_gpu.setdefault(gpu, Counter())[node] += more
        self.by_node[node] += more

    def count(
        self,
        gpu: str,
        presences: Iterable[gpu_node_history.GpuPresence],
        valueless: Mapping[str, Sequence[node_intervals.SampleSpan]],
    ) -> None:
        """Count all spans of a GPU again; `valueless` has its spans without a value, by node."""
        self.by_node.subtract(self.by_gpu.pop(gpu, _NONE))
        for presence in presences:
            self.add(presence.node, gpu, len(presence.spans))
        for node, spans in valueless.items():
            self.add(node, gpu, len(spans))


_NONE: Counter[str] = Counter()
