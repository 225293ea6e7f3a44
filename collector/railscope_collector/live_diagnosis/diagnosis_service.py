"""The diagnosis as a part of the collector: fed every 2 seconds and evaluated every 10 in a thread, recorded, and published.

Every change of an incident becomes an event and an audit record. A change is saved before it is recorded, and
is recorded again after a crash between both: the incident, the kind of the change and its time identify it.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from railscope import service
from railscope.audit.record import RecordActor, RecordData, RecordError, RecordSubject
from railscope.catalog import incidents as catalog
from railscope.timestamps import SECOND_NS
from railscope.wire import Batch, Envelope
from railscope_collector.audit import LogWriteError
from railscope_collector.audit.audit_trail import AuditTrail
from railscope_collector.audit.event_records import normalize_text
from railscope_collector.detector_thresholds import DetectorThresholds
from railscope_collector.diagnosis.incident_report import GpuDocument
from railscope_collector.diagnosis.incident_table import IncidentTable, cause_labels, incident_facts
from railscope_collector.diagnosis.incidents import IncidentChange
from railscope_collector.diagnosis.saved_state import PendingRecord
from railscope_collector.diagnosis.switch_evidence import LinkedPort
from railscope_collector.fleet.recent_events import SeenEvent, characters_of
from railscope_collector.fleet.view_cells import ViewCell
from railscope_collector.framelog.segment_files import FrameRecord
from railscope_collector.ledger.record_draft import RecordDraft
from railscope_collector.live_diagnosis.diagnosis_engine import DiagnosisEngine, QueuedBatches
from railscope_collector.state.collector_state import CollectorState
from railscope_collector.switches.link_ends import CabledLink
from railscope_collector.switches.links import CABLING_FILE, HOST_LLDP, JoinedLinks
from railscope_collector.switches.switch_view import LinkEnds
from railscope_collector.workloads.job_roster import JobKey, RunningJob

log = structlog.get_logger(__name__)

MAX_WAIT_SECONDS = 2.0
"""Time for which frames wait in the queue: a node sends more in 10 seconds than the diagnosis keeps of it."""

MAX_NODE_QUEUE_BYTES, MAX_QUEUE_BYTES = 8 << 20, 256 << 20
ENVELOPE_BYTES = 1024
"""Memory of a queued envelope, and of an event, in addition to their content."""

_RECORD_TYPES = {
    "opened": "evidence.incident_open",
    "reopened": "evidence.incident_open",
    "closed": "evidence.incident_close",
}
_UPDATE_TYPE = "evidence.incident_update"


@dataclass(slots=True)
class BatchQueue:
    """New frames since the last evaluation, bounded for each node and for all."""

    items: list[QueuedBatches] = field(default_factory=list)
    dropped: int = 0
    _bytes: int = 0
    _bytes_of: Counter[str] = field(default_factory=Counter)

    def put(self, item: QueuedBatches) -> None:
        """Add the new batches of an envelope, unless the queue is full."""
        size = ENVELOPE_BYTES + sum(map(_size_of, item.batches))
        node_bytes = self._bytes_of[item.node] + size
        if node_bytes > MAX_NODE_QUEUE_BYTES or self._bytes + size > MAX_QUEUE_BYTES:
            self.dropped += 1
            return
        self._bytes += size
        self._bytes_of[item.node] = node_bytes
        self.items.append(item)

    def take(self) -> list[QueuedBatches]:
        """Return all items and forget them."""
        taken, self.items = self.items, []
        self._bytes = 0
        self._bytes_of.clear()
        return taken


def _size_of(batch: Batch) -> int:
    values = len(batch.base) + len(batch.steps) + len(batch.reasons) + 16 * batch.rows
    return values + sum(ENVELOPE_BYTES + 4 * characters_of(event) for event in batch.events)


@dataclass(slots=True)
class DiagnosisService:
    """Evaluates the diagnosis periodically, and records what changes."""

    core: CollectorState
    directory: Path
    trail: AuditTrail
    wall_ns: Callable[[], int]
    jobs: Callable[[], Iterable[RunningJob]]
    """Running jobs; none while they are unknown."""
    thresholds: DetectorThresholds = DetectorThresholds()
    cabling: Callable[[], Sequence[CabledLink]] = tuple
    queue: BatchQueue = field(default_factory=BatchQueue)
    duration_ns: int = 0
    """Duration of the last evaluation, with the frames that were added since the one before."""
    opened_ns: int = 0
    _spent_ns: int = 0
    engine: DiagnosisEngine = field(init=False)
    _ends: LinkEnds = field(init=False)
    _links: tuple[JoinedLinks, Sequence[LinkedPort]] = field(
        init=False, default_factory=lambda: (JoinedLinks({}, ()), ())
    )

    def __post_init__(self) -> None:
        """Create the engine."""
        self._ends = LinkEnds(self.core, wall_ns=self.wall_ns)
        self.engine = DiagnosisEngine(self.directory, self.core.schemas.read, self.thresholds)

    @property
    def table(self) -> IncidentTable:
        """Incidents as of the last evaluation."""
        return self.engine.table

    def open(self) -> None:
        """Read the saved state. Blocking; raises OSError."""
        self.opened_ns = self.wall_ns()
        self.engine.open(self.opened_ns)
        self._add_events()

    def close(self) -> None:
        """Save the state. Blocking."""
        try:
            self.engine.save_all()
        except Exception as error:  # noqa: BLE001 - the frame log and the lock are released after it
            log.error("incidents_not_saved", directory=str(self.directory), problem=str(error))

    def _add_events(self) -> None:
        """Add the changes of incidents to the events of the collector, which adds each once."""
        for node, event in self.engine.new_events:
            self.core.add_event(SeenEvent(node, "", event))

    def add(self, record: FrameRecord, envelope: Envelope, batches: Sequence[Batch]) -> None:
        """Queue the new batches of an envelope."""
        received_ns = record.received_wall_ns
        offset_ns = record.sent.wall_ns - received_ns
        self.queue.put(
            QueuedBatches(
                envelope.node, envelope.run, received_ns, offset_ns, batches, envelope.boot_id
            )
        )

    async def run(self) -> None:
        """Evaluate until cancelled."""
        self.core.on_new_batches.append(self.add)
        while True:
            await self.record_changes()
            now_ns = self.wall_ns()
            wait_seconds = (self.engine.next_ns(now_ns) - now_ns) / SECOND_NS
            await asyncio.sleep(min(max(wait_seconds, 0.0), MAX_WAIT_SECONDS))
            await self.evaluate()

    async def evaluate(self) -> None:
        """Add the frames that wait, and evaluate the slots that have ended."""
        started, evaluated_ns = time.perf_counter_ns(), self.table.timestamp_ns
        jobs = {job.key: [place.gpu for place in job.places] for job in self.jobs()}
        changes = await service.run_in_thread(
            self._process, self.queue.take(), jobs, self.wall_ns(), self._take_links()
        )
        self._spent_ns += time.perf_counter_ns() - started
        if self.table.timestamp_ns != evaluated_ns:
            self.duration_ns, self._spent_ns = self._spent_ns, 0
        for change in changes:
            reported = self.table.find(change.incident.incident_id)
            if reported is not None:
                document = reported.document
                _, node, device, _ = cause_labels(document.cause)
                log.info(
                    "incident_changed",
                    change=str(change.kind),
                    incident=document.id,
                    incident_class=document.incident_class,
                    severity=document.severity,
                    node=node,
                    device=device,
                )
        self._add_events()

    def _take_links(self) -> Callable[[], JoinedLinks] | None:
        """Return a function that joins the links as of now; None without switches and a cabling file."""
        self._ends.cabling = self.cabling()
        return self._ends.take() if self.core.fleet.switches or self._ends.cabling else None

    def _process(
        self,
        items: Sequence[QueuedBatches],
        jobs: Mapping[JobKey, Sequence[str]],
        now_ns: int,
        join: Callable[[], JoinedLinks] | None,
    ) -> list[IncidentChange]:
        """Evaluate with the present links. Blocking."""
        if join is not None and (joined := join()) is not self._links[0]:
            self._links = joined, linked_ports(joined)
        return self.engine.process(items, jobs, now_ns, self._links[1])

    async def record_changes(self) -> None:
        """Record pending changes in the audit log; those that it does not accept now are tried again."""
        pending = self.engine.pending
        while pending:
            try:
                await self.trail.log.append(self._draft(pending[0]))
            except LogWriteError:
                return
            except RecordError as error:
                self.trail.lost_records += 1
                log.error("incident_not_recorded", incident=pending[0].incident, problem=str(error))
            pending.pop(0)

    def _draft(self, pending: PendingRecord) -> RecordDraft:
        kind = _RECORD_TYPES.get(pending.kind, _UPDATE_TYPE)
        data: RecordData = {"change": pending.kind, "incident": pending.incident}
        subject = RecordSubject()
        reported = self.table.find(pending.incident)
        if reported is not None:
            document = reported.document
            data |= {name: normalize_text(text) for name, text in incident_facts(document).items()}
            gpu = document.cause.uuid if isinstance(document.cause, GpuDocument) else ""
            node = cause_labels(document.cause)[1]
            subject = RecordSubject(normalize_text(node), normalize_text(gpu))
        actor = RecordActor("collector", self.trail.log.source.id)
        return RecordDraft(kind, actor, pending.timestamp_ns, "seen", subject, data)

    def cells(self) -> Iterator[ViewCell]:
        """Yield the metrics of the diagnosis itself."""
        engine = self.engine
        yield ViewCell(catalog.DIAGNOSIS_DROPPED, (), self.queue.dropped)
        yield ViewCell(catalog.DIAGNOSIS_FAULTS, (), engine.failures)
        yield ViewCell(catalog.FINDINGS_IGNORED, (), engine.ignored_findings)
        if self.duration_ns:
            yield ViewCell(catalog.EVALUATION_TIME, (), self.duration_ns / SECOND_NS)
        if self.opened_ns:
            last_ns = self.table.timestamp_ns or self.opened_ns
            age_ns = max(self.wall_ns() - last_ns, 0)
            yield ViewCell(catalog.EVALUATION_AGE, (), age_ns / SECOND_NS)


def linked_ports(joined: JoinedLinks) -> Sequence[LinkedPort]:
    """Return the links of switch ports and NICs, as the diagnosis uses them."""
    return [
        LinkedPort(*link.port, *link.nic, not {HOST_LLDP, CABLING_FILE}.isdisjoint(link.evidence))
        for link in joined.links.values()
    ]
