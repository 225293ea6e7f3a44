"""The diagnosis of frames as they are received, with its files.

The incidents are saved at every change, and each minute with what they cost; the baselines every ten minutes and at the end.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypeVar

import msgspec
import structlog

from railscope import durable_files, log_output
from railscope.api import GpuDocument
from railscope.timestamps import HOUR_NS, SECOND_NS
from railscope.wire import Batch, WireSchema
from railscope_collector.detector_thresholds import DetectorThresholds
from railscope_collector.diagnosis import saved_state
from railscope_collector.diagnosis.cluster_diagnosis import (
    SLOT_SECONDS,
    ClusterDiagnosis,
    Receipt,
)
from railscope_collector.diagnosis.diagnosis_curves import extend_curves
from railscope_collector.diagnosis.gpu_detectors import USED_EVENTS
from railscope_collector.diagnosis.incident_classes import ChangeKind
from railscope_collector.diagnosis.incident_table import (
    ChangeRecord,
    IncidentTable,
    ReportedIncident,
    incident_facts,
)
from railscope_collector.diagnosis.incidents import IncidentChange
from railscope_collector.diagnosis.jobs import ClaimedGpus
from railscope_collector.diagnosis.rank_events import RANK_EVENTS
from railscope_collector.diagnosis.switch_fabric import LinkedPort
from railscope_collector.fleet.fleet import SWITCH_PREFIX
from railscope_collector.workloads.job_roster import JobKey

log = structlog.get_logger(__name__)

SLOT_NS = SLOT_SECONDS * SECOND_NS
GRACE_NS = 6 * SECOND_NS
"""Wait after a slot for the frames of its last seconds: agents push every five seconds unless they are set otherwise."""
KEPT_SLOTS, OPEN_SLOTS = 36, 8
"""Slots of readings, and those of them that are not compressed."""
MAX_SLOTS_LATE = 6
"""Slots that are evaluated late; after a longer interruption the others are left out."""
MAX_SET_BACK_SLOTS = 24 * HOUR_NS // SLOT_NS
"""Slots by which the clock may be set back, and the incidents continue."""
MAX_EVENT_AGE_NS = HOUR_NS
"""Age at receipt above which an event no longer opens an incident."""
_USED_EVENTS = USED_EVENTS | RANK_EVENTS
MAX_CURVED = 100
"""Incidents with curves."""
MAX_PENDING = 10_000
"""Changes that wait for their acknowledgement; beyond, the oldest are dropped."""
MAX_LOSSES = 10_000
"""Pairs of class and tenant with losses to dropped incidents; further ones are counted without the tenant."""
MAX_INCIDENTS = MAX_CHANGES = 1000
"""Incidents and changes that are kept; open incidents, and changes that are not acknowledged, always are."""
BASELINES_EVERY_SLOTS = 60
SAVE_EVERY_SLOTS = 6
STATE_FILE, BASELINES_FILE = "incidents", "baselines"

ResultT = TypeVar("ResultT")
FindBegin: TypeAlias = Callable[[int], int]
FindSchema: TypeAlias = Callable[[bytes], WireSchema]
"""Returns a schema by its hash. Raises OSError, LookupError."""


class ReceivedBatches(NamedTuple):
    """New frames of one envelope; `offset_ns` is the node's clock minus the collector's."""

    node: str
    run: str
    received_ns: int
    offset_ns: int
    batches: Sequence[Batch]
    boot_id: str = ""


@dataclass(slots=True)
class DiagnosisEngine:
    """The diagnosis with its files; without a directory, nothing is saved."""

    directory: Path | None
    find_schema: FindSchema
    thresholds: DetectorThresholds = DetectorThresholds()
    table: IncidentTable = field(default_factory=IncidentTable)
    changes: list[ChangeRecord] = field(default_factory=list)
    """Newest changes of incidents, oldest first."""
    acknowledged: int = 0
    """Sequence of the last change that is recorded elsewhere."""
    claims: ClaimedGpus | None = None
    """Claims from which the jobs follow while they are not passed."""
    failures: int = 0
    log_limit: log_output.LogRateLimit = field(default_factory=log_output.LogRateLimit)
    _diagnosis: ClusterDiagnosis | None = None
    _next_slot: int = 0
    _evaluated_slot: int = -1
    """Last slot that was evaluated without a failure, before a restart too; -1 without any."""
    _resumed_ns: int = 0
    """End of the last slot that was evaluated before a restart."""
    _opened: Counter[str] = field(default_factory=Counter)
    _dropped_seconds: dict[tuple[str, str], float] = field(default_factory=dict)
    """GPU-seconds lost to incidents that were dropped, by class and tenant."""
    _reported: dict[str, ReportedIncident] = field(default_factory=dict)
    _unsaved: bool = False
    _saved_slot: int = 0
    """Slot after which the incidents were saved last, and the baselines."""
    _baselines_slot: int = 0

    @property
    def ignored_findings(self) -> int:
        """Findings beyond the bound of their node."""
        return self._diagnosis.tracker.ignored_findings if self._diagnosis else 0

    def next_ns(self, now_ns: int) -> int:
        """Return the time of the next evaluation."""
        if self._diagnosis is None:
            return now_ns
        return self._diagnosis.end_of(self._next_slot) + GRACE_NS

    # Files -------------------------------------------------------------------------------------

    def open(self, now_ns: int, find_begin: FindBegin | None = None) -> int:
        """Continue with the saved state, if it can be used; return the time from which slots are evaluated.

        It is the present, or found from the end of the last evaluation. Blocking; raises OSError.
        """
        if self.directory is None:
            self._begin(now_ns)
            return now_ns
        durable_files.make_directory(self.directory)
        for name in (STATE_FILE, BASELINES_FILE):
            durable_files.delete_partial_files(self.directory, name)
        begin_ns = now_ns
        try:
            saved = self._read(STATE_FILE, saved_state.decode_diagnosis)
            first_ns = saved.first_ns if saved else 0
            if saved:
                begin_ns = self._resume(saved, now_ns, find_begin)
            baselines = self._read(BASELINES_FILE, saved_state.decode_baselines)
            if self._diagnosis and baselines and baselines.first_ns == first_ns:
                self._diagnosis.baselines.restore(baselines.rows)
        except saved_state.SavedStateError as error:
            log.warning("incidents_discarded", directory=str(self.directory), problem=str(error))
        self._begin(begin_ns)
        return begin_ns

    def _begin(self, now_ns: int) -> ClusterDiagnosis:
        """Begin evaluations at a time, with the resumed diagnosis or a new one."""
        if self._diagnosis is None:
            self._diagnosis = ClusterDiagnosis(
                now_ns // SLOT_NS * SLOT_NS,
                KEPT_SLOTS,
                thresholds=self.thresholds,
                open_slots=OPEN_SLOTS,
            )
        self._diagnosis.has_receipts = True
        self._diagnosis.claims = self.claims or self._diagnosis.claims
        self._diagnosis.on_fault = self._report
        self._saved_slot = self._baselines_slot = self._next_slot = (
            self._diagnosis.readings.slot_of(now_ns)
        )
        self._publish(self._diagnosis)
        return self._diagnosis

    def _read(self, name: str, decode: Callable[[bytes], ResultT]) -> ResultT | None:
        """Return the content of a file, None without one; a damaged one is renamed."""
        assert self.directory is not None  # noqa: S101 - read by `open`
        path = self.directory / name
        if not path.exists():
            return None
        try:
            return decode(path.read_bytes())
        except saved_state.SavedStateError:
            self._keep_aside(name)
            raise

    def _keep_aside(self, name: str) -> None:
        if self.directory is not None:
            path = self.directory / name
            path.replace(path.with_name(name + durable_files.DAMAGED))

    def _resume(
        self,
        saved: saved_state.SavedDiagnosis,
        now_ns: int,
        find_begin: FindBegin | None = None,
    ) -> int:
        """Continue with a state; return the time from which slots are evaluated. Raises SavedStateError."""
        slot, begin_ns = (now_ns - saved.first_ns) // SLOT_NS, now_ns
        if saved.slot - slot > MAX_SET_BACK_SLOTS:
            self._keep_aside(STATE_FILE)
            message = "the clock is more than a day before the last evaluation"
            raise saved_state.SavedStateError(message)
        if slot < saved.slot:
            saved_state.set_back(saved, (saved.slot - slot) * SLOT_NS)
            slot = saved.slot
        elif find_begin:
            ended_ns = saved.first_ns + (saved.slot + 1) * SLOT_NS
            begin_ns = min(find_begin(ended_ns), now_ns)
            slot = (begin_ns - saved.first_ns) // SLOT_NS
        try:
            diagnosis = saved_state.resume(saved, KEPT_SLOTS, OPEN_SLOTS, slot, self.thresholds)
            for incident in saved.incidents:
                diagnosis.report(incident)
        except Exception as fault:  # a valid form with positions or times of nothing
            self._keep_aside(STATE_FILE)
            message = f"invalid state of the diagnosis: {type(fault).__name__}: {fault}"
            raise saved_state.SavedStateError(message) from fault
        self._diagnosis, self._evaluated_slot = diagnosis, saved.slot
        self._opened = Counter(saved.opened)
        self._dropped_seconds = {(name, tenant): n for name, tenant, n in saved.lost_seconds}
        self.changes, self.acknowledged = saved.changes, saved.acknowledged
        self._resumed_ns = min(diagnosis.end_of(saved.slot), now_ns)
        return begin_ns

    def save(self) -> None:
        """Write the incidents, durable on return. Blocking; raises OSError."""
        if self._diagnosis is None:
            return
        if self.directory is not None:
            content = msgspec.msgpack.encode(self._state(self._diagnosis))
            durable_files.write_durably(self.directory / STATE_FILE, content)
        self._unsaved, self._saved_slot = False, self._next_slot

    def _state(self, diagnosis: ClusterDiagnosis) -> saved_state.SavedDiagnosis:
        devices, groups = diagnosis.devices, diagnosis.groups
        return saved_state.SavedDiagnosis(
            first_ns=diagnosis.first_ns,
            slot=self._evaluated_slot,
            nodes=devices.node_names,
            nics=devices.nics,
            gpus=devices.gpus,
            mounts=devices.mounts,
            leaf_names=groups.leaf_names if groups else [],
            incidents=diagnosis.tracker.incidents,
            opened=dict(self._opened),
            lost_seconds=[(*key, seconds) for key, seconds in self._dropped_seconds.items()],
            changes=self.changes,
            acknowledged=self.acknowledged,
            rank_events=diagnosis.ranks.all(),
            jobs=list(diagnosis.job_histories.items()),
            switch_links=list(diagnosis.fabric.far_switches.items()),
        )

    def save_all(self) -> None:
        """Write the incidents and the baselines, whose positions refer to them. Blocking; raises OSError."""
        self.save()
        if self._diagnosis is not None and self.directory is not None:
            rows = self._diagnosis.baselines.rows()
            saved = saved_state.SavedBaselines(first_ns=self._diagnosis.first_ns, rows=rows)
            content = msgspec.msgpack.encode(saved)
            durable_files.write_durably(self.directory / BASELINES_FILE, content)
            self._baselines_slot = self._next_slot

    def skip_to(self, now_ns: int) -> None:
        """Leave out the slots that ended before a time: their frames are not known."""
        if self._diagnosis is not None:
            self._next_slot = max(self._next_slot, self._diagnosis.readings.slot_of(now_ns))

    def acknowledge(self, sequence: int) -> None:
        """Forget that changes up to one are to be recorded; it is saved with the next evaluation."""
        last = self.changes[-1].sequence if self.changes else 0
        if self.acknowledged < sequence <= last:
            self.acknowledged, self._unsaved = sequence, True

    # Evaluation --------------------------------------------------------------------------------

    def process(
        self,
        items: Iterable[ReceivedBatches],
        jobs: Mapping[JobKey, Sequence[str]] | None,
        now_ns: int,
        links: Sequence[LinkedPort] = (),
    ) -> list[IncidentChange]:
        """Add frames, evaluate the slots that have ended, save; return the changes.

        Without jobs, they are those of the claims in the frames. Blocking.
        """
        diagnosis = self._diagnosis
        assert diagnosis is not None  # noqa: S101 - `open` comes first
        if diagnosis.readings.slot_of(now_ns) < self._next_slot - 1:
            diagnosis = self._set_back(diagnosis, now_ns)
        last_slot = diagnosis.readings.slot_of(now_ns - GRACE_NS) - 1
        diagnosis.begin(diagnosis.readings.slot_of(now_ns) + 1)
        diagnosis.fabric.set_links(links, now_ns)
        for item in items:
            self._add(diagnosis, item, has_jobs=jobs is not None)
        diagnosis.readings.sample_slots.clear()
        diagnosis.arrange()
        changes: list[IncidentChange] = []
        for slot in range(max(self._next_slot, last_slot - MAX_SLOTS_LATE), last_slot + 1):
            changed = diagnosis.evaluate(slot, jobs, now_ns)
            if changed is not None:
                self._evaluated_slot = slot
                changes += changed
                self.attempt("changes", partial(self._note, diagnosis, changed))
            self.attempt("curves", lambda: self._extend_curves(diagnosis))
            self._next_slot = slot + 1
        self._next_slot = max(self._next_slot, last_slot + 1)
        self._unsaved = self._unsaved or bool(changes)
        self.attempt("dropped incidents", lambda: self._drop_closed(diagnosis))
        self.attempt("table", lambda: self._publish(diagnosis))
        self.attempt("state directory", self._save_if_due)
        return changes

    def _set_back(self, diagnosis: ClusterDiagnosis, now_ns: int) -> ClusterDiagnosis:
        """Continue after the clock was set back: incidents keep their ages, and windows fill again."""
        self._diagnosis = None
        try:
            self._resume(self._state(diagnosis), now_ns)
        except (saved_state.SavedStateError, OSError) as error:
            log.warning("incidents_discarded", directory=str(self.directory), problem=str(error))
        self._reported.clear()
        continued = self._begin(now_ns)
        if continued.devices.node_names:
            continued.baselines = diagnosis.baselines
        return continued

    def attempt(self, part: str, work: Callable[[], ResultT]) -> ResultT | None:
        """Do a part of an evaluation; a failure is counted, and must not end the collector."""
        try:
            return work()
        except Exception as fault:  # noqa: BLE001 - the next evaluation may succeed
            self._report(part, fault)
            return None

    def _add(self, diagnosis: ClusterDiagnosis, item: ReceivedBatches, *, has_jobs: bool) -> None:
        """Add the frames of an envelope; none is placed after its receipt."""
        received_ns, offset_ns = item.received_ns, item.offset_ns

        def clock(wall_ns: int) -> int:
            return min(wall_ns - offset_ns, received_ns)

        if item.node.startswith(SWITCH_PREFIX):
            run = f"{item.run} {item.boot_id}"
            add = partial(diagnosis.add_switch, item.node, run, item.batches, self.find_schema)
            self.attempt(item.node, lambda: add(clock))
            return
        diagnosis.add_receipt(Receipt(received_ns, item.node, offset_ns))
        oldest_ns = received_ns + offset_ns - MAX_EVENT_AGE_NS
        add_devices = partial(
            diagnosis.add_devices, item.node, item.batches, self.find_schema, clock
        )
        self.attempt(f"devices of {item.node}", add_devices)
        for batch in item.batches:
            # Events of frames that are read again were evaluated before the restart.
            is_new = received_ns > self._resumed_ns
            events = tuple(
                event
                for event in batch.events
                if (event.name in _USED_EVENTS and is_new and event.wall_ns >= oldest_ns)
                or (event.entity.kind == "claim" and not has_jobs)
            )
            recent = batch
            if len(events) < len(batch.events):
                recent = msgspec.structs.replace(batch, events=events)
            diagnosis.add(item.node, item.run, recent, self.find_schema, clock)

    def _report(self, part: str, fault: Exception) -> None:
        """Count a failure, and log the first of each minute with its origin."""
        self.failures += 1
        repetitions = self.log_limit.count_repetitions(part)
        if repetitions is not None:
            log.error(
                "diagnosis_failed",
                part=part,
                problem=f"{type(fault).__name__}: {fault}",
                repetitions=repetitions,
                exc_info=fault,
            )

    def _extend_curves(self, diagnosis: ClusterDiagnosis) -> None:
        open_incidents = [each for each in diagnosis.tracker.open if not each.explained_by]
        for incident in open_incidents[:MAX_CURVED]:
            if diagnosis.view is not None:
                extend_curves(incident.curves, diagnosis.view, incident.finding)

    def _note(self, diagnosis: ClusterDiagnosis, changes: Iterable[IncidentChange]) -> None:
        """Count changes of the last evaluated slot, and add their records; the oldest are dropped."""
        for change in changes:
            self._opened[change.incident.class_name] += change.kind is ChangeKind.OPENED
            document = diagnosis.report(change.incident).document
            record = ChangeRecord(
                sequence=max(self.changes[-1].sequence if self.changes else 0, self.acknowledged)
                + 1,
                incident=document.id,
                kind=change.kind,
                timestamp_ns=diagnosis.end_of(self._evaluated_slot),
                facts=incident_facts(document),
                gpu=document.cause.uuid if isinstance(document.cause, GpuDocument) else "",
            )
            self.changes.append(record)
        waiting = sum(each.sequence > self.acknowledged for each in self.changes)
        if waiting > MAX_PENDING:
            log.error("incident_records_lost", records=waiting - MAX_PENDING)
        del self.changes[: -min(max(waiting, MAX_CHANGES), MAX_PENDING)]

    def _drop_closed(self, diagnosis: ClusterDiagnosis) -> None:
        """Drop the oldest closed incidents."""
        for incident in diagnosis.tracker.drop_closed(MAX_INCIDENTS, self._next_slot):
            for tenant, seconds in incident.lost_gpu_seconds.items():
                key = incident.class_name, tenant
                if key not in self._dropped_seconds and len(self._dropped_seconds) >= MAX_LOSSES:
                    key = incident.class_name, ""
                self._dropped_seconds[key] = self._dropped_seconds.get(key, 0.0) + seconds
            self._reported.pop(incident.incident_id, None)
        curved = [each for each in diagnosis.tracker.incidents if each.curves]
        for incident in curved[:-MAX_CURVED]:
            if incident.ended_ns:
                incident.curves = []

    def _publish(self, diagnosis: ClusterDiagnosis) -> None:
        lost = defaultdict(float, self._dropped_seconds)
        reported = []
        for incident in diagnosis.tracker.incidents:
            before = self._reported.get(incident.incident_id)
            if before is None or before.is_open or not incident.ended_ns:
                before = self._reported[incident.incident_id] = diagnosis.report(incident)
            reported.append(before)
            for tenant, seconds in incident.lost_gpu_seconds.items():
                lost[incident.class_name, tenant] += seconds
        end_ns = diagnosis.end_of(self._evaluated_slot) if self._evaluated_slot >= 0 else 0
        self.table = IncidentTable(
            end_ns, tuple(reported), dict(self._opened), dict(lost), diagnosis.steps
        )

    def _save_if_due(self) -> None:
        """Save at each change, and periodically what lasts. A failure is repeated with the next evaluation."""
        if self._next_slot - self._baselines_slot >= BASELINES_EVERY_SLOTS:
            self.save_all()
        elif self._unsaved or self._next_slot - self._saved_slot >= SAVE_EVERY_SLOTS:
            self.save()
