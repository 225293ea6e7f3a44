"""Facts in memory until the database has them: quarters of nodes, claims, and what holds GPUs now.

The core passes every batch with a new frame. A quarter has the facts of 15 minutes of a node's boot clock; it is written
once nothing is added to it any more, and what is added later is a further quarter. All of it is part of snapshots, so
that nothing is lost between the frame log and the database.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import msgspec
from msgspec.structs import replace

from railscope import claim_terms
from railscope.catalog.tenancy import SOURCES
from railscope.wire import Batch, Envelope
from railscope_collector.evidence import (
    batch_facts,
    claim_events,
    evidence_records,
    gpu_states,
    node_intervals,
    open_claims,
    quarter_memory,
)
from railscope_collector.fleet.names import KnownSchema
from railscope_collector.framelog.segment_files import FrameRecord
from railscope_collector.metering.observation import QUARANTINE_NS

FLAGGED_NS = 2_000_000_000
"""Clock offset of a node above which its samples are flagged; above a minute they are not used."""
_CLAIMS_PER_STEP = 256
_CLAIMS_PER_INTERVAL = 128
"""Claims and ends that take the memory of an interval of usual size."""


class GpuPlace(msgspec.Struct, array_like=True):
    """The node that has a GPU, and its last sample of the GPU.

    As in the database (`gpu_states`), a GPU that two nodes list stays in the first one, and moves once that node has not
    listed it for `LEFT_NS`. Memory does not know whether the node reports at all, so a GPU of a stale node moves after
    this time, and in the database after an hour.
    """

    node: str
    last_ns: int


@dataclass(slots=True)
class OpenQuarters:
    """All facts in memory."""

    quarters: quarter_memory.QuarterMemory = field(default_factory=quarter_memory.QuarterMemory)
    claims: open_claims.OpenClaims = field(default_factory=open_claims.OpenClaims)
    _unwritten: dict[str, dict[claim_events.ClaimFact, int]] = field(default_factory=dict)
    """Claims and ends that are not on disk, by node, with their positions in the frame log."""
    places: dict[str, GpuPlace] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)
    """GPUs with a place whose holders may have changed."""
    problems: quarter_memory.ProblemReports = field(default_factory=quarter_memory.ProblemReports)
    rejected_claims: int = 0
    aged_rows: int = 0
    """Rows that were too old at their receipt to be evidence."""
    excess_gpus: int = 0
    """Sightings of GPUs beyond the maximum of a node."""
    _gpus: dict[str, set[str]] = field(default_factory=dict)
    """GPUs that each node ever reported."""

    # Frames ------------------------------------------------------------------------------------

    def steps(
        self,
        record: FrameRecord,
        envelope: Envelope,
        batches: Sequence[tuple[Batch, KnownSchema]],
    ) -> Iterator[None]:
        """Record the facts of batches of an envelope, one quarter of a batch per step."""
        skew_ns = self._skew(record, envelope.node)
        times = quarter_memory.BootTimes.of_batches(batches)
        # The usual case: one span for all batches of an envelope, in place of one for each.
        is_joined = bool(batches) and times.are_joined(record, envelope)
        if is_joined:
            self.quarters.record_reports(
                record, envelope, times, times.report_spans(record, skew_ns)
            )
        for batch, schema in batches:
            if is_joined and not schema.has_facts:
                continue
            since_boot_ns = _since_boot_ns(record, envelope, batch)
            oldest_ns = record.received_wall_ns - node_intervals.MAX_AGE_NS - since_boot_ns
            taking = batch_facts.BatchFacts(
                self,
                record,
                envelope,
                batch,
                schema,
                since_boot_ns,
                skew_ns,
                batch_facts.uncertainty_of(batch),
                is_joined,
            )
            recent: Sequence[int] = range(batch.rows)
            # Frames older than this would change days that were finalized long ago.
            if min(batch.boot_ns) < oldest_ns:
                recent = [row for row in recent if batch.boot_ns[row] >= oldest_ns]
                self.aged_rows += batch.rows - len(recent)
            for number, rows in batch_facts.group_by_interval(batch.boot_ns, recent):
                self.quarters.record_rows(taking, number, rows)
                yield

    def _skew(self, record: FrameRecord, node: str) -> int:
        """Return the clock error of the node in three steps, so that small changes have no effect.

        0 while the collector's own clock is suspect: the error cannot be measured then.
        """
        if record.doubted_since_ns:
            return 0
        skew_ns = abs(record.sent.wall_ns - record.received_wall_ns)
        if skew_ns <= FLAGGED_NS:
            return 0
        if skew_ns <= QUARANTINE_NS:
            # One value for a range: a skew that varied with each envelope would divide the samples into spans.
            return FLAGGED_NS + 1
        facts = {"skew_ns": str(record.sent.wall_ns - record.received_wall_ns)}
        self._report("quarantine", node, record.received_wall_ns, facts)
        return QUARANTINE_NS + 1

    def _report(self, kind: str, node: str, timestamp_ns: int, facts: dict[str, str]) -> None:
        self.problems.report(evidence_records.EvidenceProblem(kind, "", node, timestamp_ns, facts))

    def accepts_gpu(self, node: str, uuid: str, received_ns: int) -> bool:
        """True if a node may report a GPU: by a name of a GPU, up to the maximum of a node."""
        if not claim_events.is_gpu_name(uuid):
            return False
        names = self._gpus.setdefault(node, set())
        if uuid not in names and len(names) >= node_intervals.MAX_GPUS:
            self.excess_gpus += 1
            self._report("too_many_gpus", node, received_ns, {"max": str(node_intervals.MAX_GPUS)})
            return False
        names.add(uuid)
        return True

    def record_place(
        self, node: str, boot: str, uuid: str, span: node_intervals.SampleSpan
    ) -> None:
        """Record that a GPU is in a node."""
        self._mark_changed(self.claims.record_boot(node, boot, span.first_ns))
        place = self.places.get(uuid)
        if place is not None and place.node == node:
            place.last_ns = max(place.last_ns, span.last_ns)
        elif place is None or span.last_ns >= place.last_ns + gpu_states.LEFT_NS:
            self.places[uuid] = GpuPlace(node, span.last_ns)
            self.changed.add(uuid)

    def _mark_changed(self, gpus: Iterable[str]) -> None:
        """Mark the GPUs that have a place: nodes may claim any name, and a new place marks its GPU itself."""
        self.changed.update(gpu for gpu in gpus if gpu in self.places)

    # Events ------------------------------------------------------------------------------------

    def claim_steps(self, record: FrameRecord, envelope: Envelope, batch: Batch) -> Iterator[None]:
        """Record the claims of a batch, `_CLAIMS_PER_STEP` per step."""
        events = [
            e for e in batch.events if e.name in claim_events.STARTS or e.name in claim_events.ENDS
        ]
        if not events:
            return
        since_boot_ns = _since_boot_ns(record, envelope, batch)
        reporter = claim_events.ReportingBoot(envelope.node, envelope.boot_id, since_boot_ns)
        for number, event in enumerate(events):
            if number % _CLAIMS_PER_STEP == 0:
                yield
            try:
                # No event is later than its frame.
                boot_ns = min(event.boot_ns, batch.boot_ns[event.row])
                fact = claim_events.parse_claim_event(reporter, replace(event, boot_ns=boot_ns))
            except claim_events.ClaimEventError as error:
                self._reject(record, str(error))
                continue
            if problem := self.claims.problem_of(fact, record.received_wall_ns):
                self._reject(record, problem)
                continue
            if isinstance(fact, claim_events.ReportedClaim):
                fact = self._limit_authority(record, fact)
            oldest_ns = record.received_wall_ns - node_intervals.MAX_AGE_NS
            fact = claim_events.with_receipt(fact, oldest_ns, record.received_wall_ns)
            if self.claims.add(fact, record.received_wall_ns):
                self._add_unwritten(fact, self.quarters.applied + 1)
                self._mark_changed([fact.gpu])

    def _add_unwritten(self, fact: claim_events.ClaimFact, position: int) -> None:
        self._unwritten.setdefault(fact.node, {}).setdefault(fact, position)

    @property
    def unwritten(self) -> dict[claim_events.ClaimFact, int]:
        """Return the claims and ends that are not on disk, with their positions in the frame log."""
        return dict(chain.from_iterable(map(dict.items, self._unwritten.values())))

    def unwritten_of_others(
        self, nodes: Collection[str]
    ) -> list[tuple[claim_events.ClaimFact, int]]:
        """Return the claims and ends that are not on disk of all but these nodes, with their positions."""
        found = [of_node for node, of_node in self._unwritten.items() if node not in nodes]
        return [each for of_node in found for each in of_node.items()]

    def leave_memory(self, facts: Iterable[claim_events.ClaimFact]) -> None:
        """Remove claims and ends that are on disk."""
        for fact in facts:
            of_node = self._unwritten[fact.node]
            del of_node[fact]
            if not of_node:
                del self._unwritten[fact.node]

    def pending(self, node: str) -> int:
        """Return the weight of the facts of a node in memory, in intervals of usual size."""
        claims = len(self._unwritten.get(node, ()))
        return self.quarters.counts[node] + claims // _CLAIMS_PER_INTERVAL

    def first_position(self, node: str) -> int | None:
        """Return the lowest position of the facts of a node in memory; None without any."""
        # In the order of their positions: records are applied in the order of the log.
        claims = next(iter(self._unwritten.get(node, {}).values()), None)
        found = [*self.quarters.positions.get(node, {}).values()]
        return min(found if claims is None else [*found, claims], default=None)

    def _reject(self, record: FrameRecord, problem: str) -> None:
        self.rejected_claims += 1
        facts = {"problem": problem}
        self._report("rejected_claim", record.node, record.received_wall_ns, facts)

    def _limit_authority(
        self, record: FrameRecord, claim: claim_events.ReportedClaim
    ) -> claim_events.ReportedClaim:
        """Return the claim with its authority limited to the maximum of the node's token."""
        if claim.authority <= record.max_authority:
            return claim
        limit = claim_terms.ClaimAuthority(record.max_authority)
        source = claim.source if claim.source in SOURCES else "other"
        levels = {"source": source, "reported": claim.authority.name, "accepted": limit.name}
        facts = {name: value.lower() for name, value in levels.items()}
        self._report("rank_lowered", record.node, record.received_wall_ns, facts)
        return replace(claim, authority=limit)

    # Snapshots ---------------------------------------------------------------------------------

    def restore(
        self,
        quarters: Sequence[quarter_memory.QuarterInMemory],
        unwritten: Sequence[claim_events.ClaimFact],
        nodes: Mapping[str, open_claims.NodeClaims],
        places: Mapping[str, GpuPlace],
    ) -> None:
        """Restore from a snapshot."""
        self.quarters.restore(quarters)
        for fact in unwritten:
            self._add_unwritten(fact, 0)
        self.claims = open_claims.OpenClaims(dict(nodes))
        for quarter in quarters:
            for uuid, listed in quarter.interval.gpus.items():
                self.accepts_gpu(quarter.interval.node, uuid, listed.received_ns)
        self.places = dict(places)
        for uuid, place in places.items():
            self.accepts_gpu(place.node, uuid, place.last_ns)
        self.changed = set(places)


def _since_boot_ns(record: FrameRecord, envelope: Envelope, batch: Batch) -> int:
    """Return the zero of the node's boot clock, on the collector's clock."""
    age_ns = record.sent.age_ns(envelope.boot_id, batch.wall_ns[-1], batch.boot_ns[-1])
    return record.received_wall_ns - age_ns - batch.boot_ns[-1]
