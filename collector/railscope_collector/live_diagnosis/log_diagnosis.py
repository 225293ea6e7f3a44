"""The diagnosis of a frame log while it grows: records in, lines of JSON out (`DiagnosisLine`).

Slots are evaluated in the time of the log: with the frames that were received until a few seconds after their end, however late
they are read. So a restart evaluates what was received meanwhile. A collector states its time, jobs and links; without
one, time is that of this machine if the log grows, and jobs follow from the claims in the log.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import msgspec

from railscope import envelopes
from railscope.timestamps import FOREVER_NS, SECOND_NS
from railscope_collector.diagnosis.incident_report import MAX_LISTED
from railscope_collector.diagnosis.incident_table import (
    DiagnosisLine,
    DiagnosisState,
    ReportedIncident,
)
from railscope_collector.diagnosis.switch_fabric import LinkedPort
from railscope_collector.framelog.log_follower import LogFollower
from railscope_collector.framelog.received_frames import ReceivedFrames, count_new
from railscope_collector.framelog.segment_files import FrameRecord
from railscope_collector.live_diagnosis.diagnosis_engine import (
    GRACE_NS,
    SLOT_NS,
    STATE_FILE,
    DiagnosisEngine,
    ReceivedBatches,
)
from railscope_collector.live_diagnosis.diagnosis_input import DiagnosisInput
from railscope_collector.workloads.job_roster import JobKey

MAX_BACKLOG_NS = 900 * SECOND_NS
"""Age of records at which a collector's diagnosis leaves them out: it reads ten times faster than they arrive."""
MAX_PAUSE_NS = 60 * SECOND_NS
"""Time without any record after which nothing follows from it: the collector did not run."""
REFILL_NS = 7 * SLOT_NS
"""Time before the first evaluation whose frames are read, to fill the windows of the detectors."""
MAX_WAIT_NS, MAX_WAITING_BYTES = 2 * SECOND_NS, 8 << 20
"""Time and bytes of frames that are added together: a node sends more in 10 seconds than the diagnosis keeps of it."""
LIVE_NS = 60 * SECOND_NS
"""Age of the newest record up to which a log is taken to grow."""
MIN_WAIT_SECONDS = 0.05
STATE_SECONDS = 10.0
"""Period of the state while nothing is evaluated."""
MAX_ENVELOPE_BYTES = 256 << 20
MAX_LINE_BYTES = 16 << 20
_encoder = msgspec.json.Encoder()


@dataclass(slots=True)
class LogDiagnosis:
    """Feeds an engine, and writes what changes. All methods block."""

    engine: DiagnosisEngine
    write: Callable[[bytes], object]
    """Writes a line."""
    follower: LogFollower
    is_fed: bool = False
    """True if a collector states time and jobs."""
    links: Sequence[LinkedPort] = ()
    from_ns: int = 0
    """Receipt before which records are left out."""
    monotonic: Callable[[], float] = time.monotonic
    jobs: Mapping[JobKey, Sequence[str]] | None = None
    """None: those of the claims in the log."""
    dropped: int = 0
    """Records that were left out because they were read too late."""
    evaluation_seconds: float = 0.0
    _received: ReceivedFrames = field(default_factory=ReceivedFrames)
    _items: list[ReceivedBatches] = field(default_factory=list)
    _item_bytes: int = 0
    _last_received_ns: int = 0
    _added_ns: int = 0
    """Receipt of the last record that was added to the engine."""
    _evaluated_ns: int = FOREVER_NS
    """End of the last evaluation before the start; records after it are missing if they are left out."""
    _is_live: bool = False
    _begin_ns: int = 0
    """Time from which slots are evaluated; 0 once a record of it was read."""
    _now_ns: int = 0
    _written: dict[str, tuple[ReportedIncident, int]] = field(default_factory=dict)
    _written_sequence: int = 0
    _written_at: float = 0.0
    _spent_seconds: float = 0.0

    def apply(self, message: DiagnosisInput) -> None:
        """Apply what the collector states; the thresholds before `open`."""
        engine = self.engine
        engine.acknowledge(message.acknowledged)
        engine.thresholds = message.thresholds or engine.thresholds
        if message.jobs is not None:
            self.jobs = dict(message.jobs)
        self.links = self.links if message.links is None else message.links

    def open(self, now_ns: int) -> None:
        """Continue with the saved state, or begin: now, or for a log alone with its first record. Raises OSError."""
        if self.is_fed:
            begin_ns = self.engine.open(now_ns, partial(self._find_begin, now_ns))
            self.jobs = self.jobs or {}
        else:
            directory = self.engine.directory
            is_new = directory is None or not (directory / STATE_FILE).exists()
            begin_ns = self.engine.open(
                (is_new and self._first_receipt()) or now_ns, partial(self._find_begin, now_ns)
            )
        self._begin_ns, self._now_ns = begin_ns, now_ns
        is_resumed = bool(self.engine.table.timestamp_ns)
        if is_resumed:
            self._evaluated_ns = self.engine.table.timestamp_ns
        if self.is_fed or is_resumed:
            self.from_ns = max(self.from_ns, begin_ns - REFILL_NS)
        self.follower.skip_before(self.from_ns)
        self._write_lines()

    def _find_begin(self, now_ns: int, ended_ns: int) -> int:
        """Return the time from which slots are evaluated after a restart: the end of the last one or of a later pause."""
        begin_ns = max(ended_ns, now_ns - MAX_BACKLOG_NS) if self.is_fed else ended_ns
        last_ns = begin_ns
        follower = LogFollower(self.follower.directory)
        follower.skip_before(begin_ns)
        while records := follower.read():
            for received_ns in (each.received_wall_ns for each in records):
                if received_ns - last_ns > MAX_PAUSE_NS:
                    begin_ns = received_ns
                last_ns = max(last_ns, received_ns)
        follower.close()
        return now_ns if self.is_fed and now_ns - last_ns > MAX_PAUSE_NS else begin_ns

    def _first_receipt(self) -> int:
        """Return the receipt of the first record of the log that is used; 0 without one."""
        follower = LogFollower(self.follower.directory)
        follower.skip_before(self.from_ns)
        try:
            while records := follower.read():
                for record in records:
                    if record.received_wall_ns >= self.from_ns:
                        return record.received_wall_ns
        finally:
            follower.close()
        return 0

    def step(self, now_ns: int) -> bool:
        """Read records, and evaluate the slots that have ended; true if more records may follow at once."""
        self._now_ns = now_ns
        records = self.follower.read()
        for record in records:
            self._add(record)
        if records:
            self._write_if_due()
            return True
        at_ns = self._end_of_log(now_ns)
        if at_ns and (self._items or self.engine.next_ns(at_ns) <= at_ns):
            self._process(at_ns)
        self._write_if_due()
        return False

    def wait_seconds(self, now_ns: int) -> float:
        """Return the time until the next evaluation."""
        at_ns = self._end_of_log(now_ns) or now_ns
        return max((self.engine.next_ns(at_ns) - at_ns) / SECOND_NS, MIN_WAIT_SECONDS)

    def close(self) -> None:
        """Save the state. Raises OSError."""
        self.follower.close()
        self.engine.save_all()

    def _end_of_log(self, now_ns: int) -> int:
        """Return the time at the end of the log; 0 without a record. It does not continue after that of a copied log."""
        self._is_live |= now_ns - self._last_received_ns <= LIVE_NS
        if self.is_fed or self._is_live:
            return now_ns
        return self._last_received_ns + GRACE_NS if self._last_received_ns else 0

    def _add(self, record: FrameRecord) -> None:
        """Add a record, after the evaluation of the slots that ended before it was received."""
        received_ns = self._last_received_ns = record.received_wall_ns
        if received_ns < self.from_ns:
            self.dropped += received_ns > self._evaluated_ns
            return
        if self.is_fed and received_ns < self._now_ns - MAX_BACKLOG_NS - 2 * REFILL_NS:
            self.from_ns, self._evaluated_ns = self._now_ns - REFILL_NS, received_ns - 1
            self._begin_ns = self._now_ns
            self.engine.skip_to(self._now_ns)
            self.dropped += 1
            return
        is_due = self.engine.next_ns(received_ns) <= received_ns
        if (
            is_due
            or received_ns - self._added_ns > MAX_WAIT_NS
            or self._item_bytes > MAX_WAITING_BYTES
        ):
            self._process(received_ns)
        item = self.engine.attempt(f"envelope of {record.node}", lambda: self._open_record(record))
        if item is not None:
            self._items.append(item)
            self._item_bytes += len(record.body)

    def _open_record(self, record: FrameRecord) -> ReceivedBatches:
        """Return the batches of a record that have new frames. Raises WireError."""
        envelope = envelopes.open_body(record.body, MAX_ENVELOPE_BYTES).decode_envelope()
        node, run, received_ns = envelope.node, envelope.run, record.received_wall_ns
        streams = self._received.run_streams(node, run)
        batches = [batch for batch in envelope.batches if count_new(streams, batch)]
        for batch in batches:
            first = batch.first_sequence
            self._received.add(node, run, batch.stream, first, first + batch.rows - 1, received_ns)
        offset_ns = record.sent.wall_ns - received_ns
        return ReceivedBatches(node, run, received_ns, offset_ns, batches, envelope.boot_id)

    def _process(self, at_ns: int) -> None:
        # Frames that fill the windows are older: by their time, the clock would have been set back.
        at_ns, self._begin_ns = (
            max(at_ns, self._begin_ns),
            self._begin_ns * (at_ns < self._begin_ns),
        )
        started, evaluated_ns = self.monotonic(), self.engine.table.timestamp_ns
        items, self._items, self._item_bytes = self._items, [], 0
        self._added_ns = at_ns
        self.engine.process(items, self.jobs, at_ns, self.links)
        self._spent_seconds += self.monotonic() - started
        if self.engine.table.timestamp_ns != evaluated_ns:
            self.evaluation_seconds, self._spent_seconds = self._spent_seconds, 0.0
            self._write_lines()

    # Lines --------------------------------------------------------------------------------------

    def _write_if_due(self) -> None:
        if self.monotonic() - self._written_at >= STATE_SECONDS:
            self._write_lines()

    def _write_lines(self) -> None:
        """Write the incidents that have changed, curves, the state, and changes."""
        table, written, self._written = self.engine.table, self._written, {}
        for each in table.incidents:
            before, digest = written.get(each.document.id, (None, 0))
            if each is not before:
                line = _line(DiagnosisLine(incident=each))
                if len(line) > MAX_LINE_BYTES:
                    line = _line(DiagnosisLine(incident=_shortened(each)))
                if hash(line) != digest:
                    self.write(line)
                digest = hash(line)
            self._written[each.document.id] = each, digest
        self.write(_line(DiagnosisLine(state=self._state())))
        for change in self.engine.changes:
            if change.sequence > self._written_sequence:
                self._written_sequence = change.sequence
                self.write(_line(DiagnosisLine(change=change)))
        self._written_at = self.monotonic()

    def _state(self) -> DiagnosisState:
        engine, table, follower = self.engine, self.engine.table, self.follower
        lag_bytes = follower.count_waiting_bytes()
        lag_ns = max(self._now_ns - self._last_received_ns, 0) if lag_bytes else 0
        missing = follower.damaged_records + follower.lost_segments
        return DiagnosisState(
            timestamp_ns=table.timestamp_ns,
            acknowledged=engine.acknowledged,
            evaluation_seconds=self.evaluation_seconds,
            lag_seconds=lag_ns / SECOND_NS if self._last_received_ns else 0.0,
            lag_bytes=lag_bytes,
            failures=engine.failures,
            ignored_findings=engine.ignored_findings,
            dropped=self.dropped + missing,
            incidents=[each.document.id for each in table.incidents],
            opened=dict(table.opened),
            lost_seconds=[(*key, seconds) for key, seconds in table.lost_seconds.items()],
            steps=list(table.steps.items()),
        )


def _line(content: DiagnosisLine) -> bytes:
    return _encoder.encode(content) + b"\n"


def _shortened(incident: ReportedIncident) -> ReportedIncident:
    """Return an incident without curves, and with the victims that its document lists."""
    nics, jobs = incident.victim_nics[:MAX_LISTED], incident.jobs[:MAX_LISTED]
    return replace(incident, victim_nics=nics, jobs=jobs, curves=())
