"""The process of the diagnosis, as the collector runs it: started, fed, read, restarted, and recorded.

The child reads the frame log and evaluates; nothing of the collector waits for it. Its lines become the table of
incidents, events and audit records. Every change of an incident is sent again until it is acknowledged: the incident, the kind of
the change and its time identify it. Notifications are decided here, and saved here.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import structlog

from railscope import api, durable_files, log_output, service, untrusted_text
from railscope.audit.record import RecordActor, RecordData, RecordError, RecordSubject
from railscope.catalog import incidents as catalog
from railscope.timestamps import SECOND_NS
from railscope.wire import WireEntity, WireEvent
from railscope_collector import work_limits
from railscope_collector.audit import LogWriteError
from railscope_collector.audit.audit_trail import AuditTrail
from railscope_collector.audit.event_records import normalize_text
from railscope_collector.detector_thresholds import DetectorThresholds
from railscope_collector.diagnosis.incident_table import (
    ChangeRecord,
    DiagnosisLine,
    DiagnosisState,
    IncidentTable,
    ReportedIncident,
)
from railscope_collector.diagnosis.switch_fabric import LinkedPort
from railscope_collector.fleet.recent_events import SeenEvent
from railscope_collector.fleet.view_cells import ViewCell
from railscope_collector.ledger.record_draft import RecordDraft
from railscope_collector.live_diagnosis.diagnosis_input import DiagnosisInput, encode_input
from railscope_collector.state.collector_state import CollectorState
from railscope_collector.switches.link_ends import CabledLink
from railscope_collector.switches.links import CABLING_FILE, HOST_LLDP, JoinedLinks
from railscope_collector.switches.switch_view import LinkEnds
from railscope_collector.workloads.job_roster import RunningJob

log = structlog.get_logger(__name__)

SEND_SECONDS = 2.0
"""Period of the messages to the child."""
SILENCE_SECONDS = 180.0
"""Time without a line after which the child is replaced: an evaluation of 10,000 nodes takes 8 seconds of a core."""
MIN_DELAY_SECONDS, MAX_DELAY_SECONDS = 1.0, 60.0
"""Delay before a restart, which doubles while the child does not evaluate."""
STOP_SECONDS = 10.0
"""Time in which the child saves its state at the end."""
MAX_LINE_BYTES = 32 << 20
MAX_CHANGES = 10_000
"""Changes that wait for the audit log, and those that are recognized if they are sent again."""
DECISIONS_FILE = "decisions"
RESOLVED = "resolved"
"""State of which the webhook is notified at the end of an incident."""

_RECORD_TYPES = {
    "opened": "evidence.incident_open",
    "reopened": "evidence.incident_open",
    "closed": "evidence.incident_close",
}
_UPDATE_TYPE = "evidence.incident_update"
NOTHING_SENT = DiagnosisInput(wall_ns=0)
_decoder = msgspec.json.Decoder(DiagnosisLine)


class IncidentDecisions(msgspec.Struct):
    """Actions of the collector about incidents."""

    notified: dict[str, str] = {}
    """State of which the webhook was notified, by incident."""


@dataclass(slots=True)
class DiagnosisService:
    """Runs the process of the diagnosis."""

    core: CollectorState
    directory: Path
    """State of the diagnosis."""
    trail: AuditTrail
    wall_ns: Callable[[], int]
    jobs: Callable[[], Iterable[RunningJob]]
    """Running jobs; none while they are unknown."""
    thresholds: DetectorThresholds = DetectorThresholds()
    cabling: Sequence[CabledLink] = ()
    program: Sequence[str] = ()
    """Program of the child; by default `railscope`, which ends with this process."""
    silence_seconds: float = SILENCE_SECONDS
    min_delay_seconds: float = MIN_DELAY_SECONDS
    monotonic: Callable[[], float] = time.monotonic
    table: IncidentTable = field(init=False, default_factory=IncidentTable)
    """Incidents as of the last evaluation."""
    state: DiagnosisState | None = field(init=False, default=None)
    """Last state that the child stated."""
    decisions: IncidentDecisions = field(init=False, default_factory=IncidentDecisions)
    restarts: int = field(init=False, default=0)
    pid: int = field(init=False, default=0)
    """Process id of the child; 0 while there is none."""
    problem: str = field(init=False, default="")
    """Reason of the last restart."""
    opened_ns: int = field(init=False, default=0)
    invalid_lines: int = field(init=False, default=0)
    _acknowledged: int = field(init=False, default=0)
    _incidents: dict[str, ReportedIncident] = field(init=False, default_factory=dict)
    _unrecorded: dict[tuple[str, str, int], ChangeRecord] = field(init=False, default_factory=dict)
    _recorded: dict[tuple[str, str, int], None] = field(init=False, default_factory=dict)
    _changed: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    _saved: bytes = field(init=False, default=b"")
    _log_limit: log_output.LogRateLimit = field(init=False, default_factory=log_output.LogRateLimit)
    _ends: LinkEnds = field(init=False)
    _links: tuple[JoinedLinks, list[LinkedPort]] = field(
        init=False, default_factory=lambda: (JoinedLinks({}, ()), [])
    )

    def __post_init__(self) -> None:
        """Create the reader of links."""
        self._ends = LinkEnds(self.core, self.cabling, self.wall_ns)

    # Decisions ----------------------------------------------------------------------------------

    def open(self) -> None:
        """Read the decisions. Blocking; raises OSError."""
        self.opened_ns = self.wall_ns()
        durable_files.make_directory(self.directory)
        durable_files.delete_partial_files(self.directory, DECISIONS_FILE)
        path = self.directory / DECISIONS_FILE
        found = IncidentDecisions()
        try:
            if path.exists():
                found = msgspec.msgpack.decode(path.read_bytes(), type=IncidentDecisions)
        except untrusted_text.DECODING_ERRORS as error:
            path.replace(path.with_name(path.name + durable_files.DAMAGED))
            log.error("decisions_discarded", file=str(path), problem=str(error))
        self.decisions = found
        self.save_decisions()

    def take_over(self) -> None:
        """Continue with the files of another collector. Blocking; raises OSError."""
        self.table, self.state = IncidentTable(), None
        self.open()

    def save_decisions(self) -> None:
        """Write the decisions if they have changed. Blocking; raises OSError."""
        content = msgspec.msgpack.encode(self.decisions)
        if content != self._saved:
            durable_files.write_durably(self.directory / DECISIONS_FILE, content)
            self._saved = content

    # The child ----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run the child until cancelled, and start it again when it ends or is silent."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._run_recording())
                group.create_task(self._supervise())
        finally:
            await self._save()

    async def _supervise(self) -> None:
        delay_seconds = self.min_delay_seconds
        while True:
            evaluated_ns = self.table.timestamp_ns
            self.problem = await self._run_child()
            self.restarts += 1
            if self.table.timestamp_ns != evaluated_ns:
                delay_seconds = self.min_delay_seconds
            log.error("diagnosis_ended", problem=self.problem, restart_seconds=delay_seconds)
            await asyncio.sleep(delay_seconds)
            delay_seconds = min(2 * delay_seconds, MAX_DELAY_SECONDS)

    def _command(self) -> list[str]:
        child = (sys.executable, "-P", "-m", "railscope.child_process", str(os.getpid()))
        return [
            *(self.program or child),
            *("diagnose", "--follow", "--messages"),
            *("--frame-log", str(self.directory.parent), "--state", str(self.directory)),
        ]

    async def _run_child(self) -> str:
        """Run the child until it ends, and return the reason."""
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command(),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=MAX_LINE_BYTES,
                start_new_session=True,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"},
            )
        except OSError as error:
            return f"did not start: {error}"
        self.pid, self._acknowledged = process.pid, 0
        for key, change in self._unrecorded.items():  # its number is that of the former child
            self._unrecorded[key] = msgspec.structs.replace(change, sequence=0)
        reading = asyncio.create_task(self._read(process))
        sending = asyncio.create_task(self._send(process))
        try:
            await asyncio.wait({reading, sending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await service.run_to_end(self._stop(process, reading, sending))
            self.pid = 0
        status = process.returncode
        ended = f"ended with {signal.Signals(-status).name}" if status and status < 0 else ""
        problems = [_problem_of(each) for each in (reading, sending)]
        return next(filter(None, problems), "") or ended or f"ended with exit status {status}"

    async def _stop(
        self,
        process: asyncio.subprocess.Process,
        reading: asyncio.Task[None],
        sending: asyncio.Task[None],
    ) -> None:
        """Let the child save its state and end; kill it if it does not, or if it is defective."""
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        if process.stdin is not None:
            process.stdin.close()
        if not reading.done():  # it must be able to write its last lines
            await asyncio.wait({reading}, timeout=STOP_SECONDS)
        if process.returncode is None and not (reading.done() and not _problem_of(reading)):
            with suppress(ProcessLookupError):
                process.kill()
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        """Apply the lines of the child until its end. Raises TimeoutError, and ValueError for a line that is too long."""
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        slices = work_limits.TimeSlices()
        while True:
            async with asyncio.timeout(self.silence_seconds):
                line = await process.stdout.readline()
            if not line:
                return
            self.receive(line)
            await slices.yield_if_due()

    async def _send(self, process: asyncio.subprocess.Process) -> None:
        """Send what has changed, one message at a time: while the child does not read, only the newest waits."""
        assert process.stdin is not None  # noqa: S101 - it is a pipe
        sent = NOTHING_SENT
        while True:
            sent, message = await self.next_message(sent)
            process.stdin.write(encode_input(message))
            await process.stdin.drain()
            await asyncio.sleep(SEND_SECONDS)

    async def next_message(self, sent: DiagnosisInput) -> tuple[DiagnosisInput, DiagnosisInput]:
        """Return what is to be known, and the message with what differs from what was sent."""
        if (join := self._take_links()) is not None:
            joined = await service.run_in_thread(join)
            if joined is not self._links[0]:
                self._links = joined, linked_ports(joined)
        jobs = [(job.key, [place.gpu for place in job.places]) for job in self.jobs()]
        known = DiagnosisInput(
            wall_ns=self.wall_ns(),
            acknowledged=self._acknowledged,
            thresholds=self.thresholds,
            jobs=jobs,
            links=self._links[1],
        )
        message = msgspec.structs.replace(
            known,
            thresholds=None if sent.thresholds else self.thresholds,
            jobs=None if jobs == sent.jobs else jobs,
            links=None if known.links is sent.links else known.links,
        )
        return known, message

    def _take_links(self) -> Callable[[], JoinedLinks] | None:
        """Return a function that joins the links as of now; None without switches and a cabling file."""
        return self._ends.take() if self.core.fleet.switches or self.cabling else None

    async def _save(self) -> None:
        try:
            await service.run_in_thread(self.save_decisions)
        except OSError as error:
            if self._log_limit.count_repetitions("decisions") is not None:
                log.error("decisions_not_saved", directory=str(self.directory), problem=str(error))

    # Lines of the child -------------------------------------------------------------------------

    def receive(self, line: bytes) -> None:
        """Apply a line."""
        try:
            found = _decoder.decode(line)
        except (*untrusted_text.DECODING_ERRORS, ValueError) as error:
            self.invalid_lines += 1
            if self._log_limit.count_repetitions("line") is not None:
                log.error(
                    "diagnosis_line_invalid",
                    problem=str(error),
                    line=line[:200].decode(errors="replace"),
                )
            return
        if found.incident is not None:
            self._incidents[found.incident.document.id] = found.incident
        if found.state is not None:
            self._publish(found.state)
        if found.change is not None:
            self._add_change(found.change)

    def _publish(self, state: DiagnosisState) -> None:
        self._acknowledged = max(self._acknowledged, state.acknowledged)
        known, self.state = self._incidents, state
        self._incidents = {name: known[name] for name in state.incidents if name in known}
        lost = {(name, tenant): seconds for name, tenant, seconds in state.lost_seconds}
        self.table = IncidentTable(
            state.timestamp_ns,
            tuple(self._incidents.values()),
            state.opened,
            lost,
            dict(state.steps),
            frozenset(state.incidents) - self._incidents.keys(),
        )
        if state.timestamp_ns:
            for name in self.decisions.notified.keys() - set(state.incidents):
                # The receiver of any other one still takes it for open.
                if self.decisions.notified[name] == RESOLVED:
                    del self.decisions.notified[name]

    def _add_change(self, change: ChangeRecord) -> None:
        """Add a change to the events, which have each once, and to what is to be recorded."""
        facts = {"change": change.kind, **change.facts}
        entity = WireEntity("incident", (change.incident,))
        at_ns = change.timestamp_ns
        event = WireEvent(f"incident_{change.kind}", 0, entity, at_ns, at_ns, facts)
        self.core.add_event(SeenEvent(facts.get("node", ""), "", event))
        if change.sequence <= self._acknowledged:
            return
        if change.key not in self._recorded:
            names = {name: facts.get(name, "") for name in ("class", "severity", "node", "device")}
            log.info("incident_changed", change=change.kind, incident=change.incident, **names)
        self._unrecorded[change.key] = change
        if len(self._unrecorded) > MAX_CHANGES:
            self.trail.lost_records += 1
            del self._unrecorded[next(iter(self._unrecorded))]
        self._changed.set()

    # Audit records ------------------------------------------------------------------------------

    async def _run_recording(self) -> None:
        while True:
            self._changed.clear()
            await self.record_changes()
            await self._save()
            with suppress(TimeoutError):
                async with asyncio.timeout(SEND_SECONDS):
                    await self._changed.wait()

    async def record_changes(self) -> None:
        """Record changes in the audit log; those that it does not accept now are tried again."""
        while self._unrecorded:
            key, change = next(iter(self._unrecorded.items()))
            if key not in self._recorded:
                try:
                    await self.trail.log.append(self._draft(change))
                except LogWriteError:
                    return
                except RecordError as error:
                    self.trail.lost_records += 1
                    log.error("incident_not_recorded", incident=change.incident, problem=str(error))
                self._recorded[key] = None
                if len(self._recorded) > MAX_CHANGES:
                    del self._recorded[next(iter(self._recorded))]
            # The child may have been replaced, and have sent the change again under another number.
            current = self._unrecorded.pop(key, change)
            self._acknowledged = max(self._acknowledged, current.sequence)

    def _draft(self, change: ChangeRecord) -> RecordDraft:
        kind = _RECORD_TYPES.get(change.kind, _UPDATE_TYPE)
        data: RecordData = {"change": change.kind, "incident": change.incident}
        data |= {name: normalize_text(text) for name, text in change.facts.items()}
        node = normalize_text(change.facts.get("node", ""))
        subject = RecordSubject(node, normalize_text(change.gpu))
        actor = RecordActor("collector", self.trail.log.source.id)
        return RecordDraft(kind, actor, change.timestamp_ns, "seen", subject, data)

    # Metrics ------------------------------------------------------------------------------------

    @property
    def progress(self) -> api.DiagnosisProgress:
        """Age of the incidents, and the process that evaluates them."""
        last_ns, state = self.table.timestamp_ns or self.opened_ns, self.state
        return api.DiagnosisProgress(
            running=bool(self.pid),
            age_seconds=max(self.wall_ns() - last_ns, 0) / SECOND_NS if last_ns else None,
            lag_seconds=state.lag_seconds if state else None,
            lag_bytes=state.lag_bytes if state else None,
            restarts=self.restarts,
            problem=self.problem,
        )

    def cells(self) -> Iterator[ViewCell]:
        """Yield the metrics of the diagnosis itself."""
        state, progress = self.state or DiagnosisState(timestamp_ns=0), self.progress
        yield ViewCell(catalog.DIAGNOSIS_DROPPED, (), state.dropped)
        yield ViewCell(catalog.DIAGNOSIS_FAULTS, (), state.failures + self.invalid_lines)
        yield ViewCell(catalog.FINDINGS_IGNORED, (), state.ignored_findings)
        yield ViewCell(catalog.DIAGNOSIS_RUNNING, (), int(progress.running))
        yield ViewCell(catalog.DIAGNOSIS_RESTARTS, (), progress.restarts)
        if progress.lag_seconds is not None and progress.lag_bytes is not None:
            yield ViewCell(catalog.DIAGNOSIS_LAG, (), progress.lag_seconds)
            yield ViewCell(catalog.DIAGNOSIS_LAG_BYTES, (), progress.lag_bytes)
        if state.evaluation_seconds:
            yield ViewCell(catalog.EVALUATION_TIME, (), state.evaluation_seconds)
        if progress.age_seconds is not None:
            yield ViewCell(catalog.EVALUATION_AGE, (), progress.age_seconds)


def _problem_of(task: asyncio.Task[None]) -> str:
    """Return the reason for which a task has failed; empty if it has not."""
    if not task.done() or task.cancelled():
        return ""
    match task.exception():
        case None | BrokenPipeError() | ConnectionResetError():
            return ""
        case TimeoutError():
            return "was silent for too long"
        case error:
            return f"failed: {type(error).__name__}: {error}"


def linked_ports(joined: JoinedLinks) -> list[LinkedPort]:
    """Return the links of switch ports and NICs, as the diagnosis uses them."""
    return [
        LinkedPort(
            *link.port,
            *link.nic,
            not {HOST_LLDP, CABLING_FILE}.isdisjoint(link.evidence),
            HOST_LLDP in link.evidence,
        )
        for link in joined.links.values()
    ]
