"""NCCL's RAS subsystem of the jobs on this node: ranks that are late, missing or dead, as events and metrics.

A query makes a job gather data from all of its ranks, and has crashed jobs in some versions of NCCL. So it is off by
default, made for allowed versions only, never in the first minute of a job, once per job and period, and by the node of
rank 0. A job is what this node identifies: the processes of one user and one claim on its GPUs. What its processes
report is attributed to that job only, so a tenant can state something false about its own jobs only. A process that cannot be
queried is counted with the reason; its ranks are unknown, not healthy.

Ranks have columns of their own on the metrics endpoint only, as those of flight recorders.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice

import msgspec

from railscope import frame, reading
from railscope.catalog import collectives as c, entities
from railscope.timestamps import SECOND_NS
from railscope_agent.collective_settings import CollectiveSettings
from railscope_agent.collectives import ras_report, ras_verdicts
from railscope_agent.collectives.ras_verdicts import NcclRankState, NcclRankVerdict
from railscope_agent.host import Host
from railscope_agent.host.nccl_ras import ANSWERED, NCCL_RAS, PROTOCOL, NcclProcess, RasAnswer
from railscope_agent.sampling import fact_readers, probe_result, row_builder, source
from railscope_agent.sources import flight_recorder, rank_places, source_bases

MIN_AGE_NS = 60 * SECOND_NS
"""Time for which a process must have run, and been listed by this agent: communicators are created in the first minute."""
MIN_INTERVAL_NS = 15 * SECOND_NS
MAX_REPORTED = 1024
MAX_EVENTS, MAX_LATE_EVENTS = 64, 8
MAX_WAITING_EVENTS = 256
"""Events of a job that wait for the next reads."""
MAX_DEAD = 1024
FIRST_SAFE_VERSION = (2, 27, 8)
"""In earlier versions a query may crash the job while communicators are created, or corrupt its memory (2.24 to 2.27.7)."""
CRASHED_VERSIONS = frozenset({"2.29.7"})
"""Later versions in which a query crashed jobs (NVIDIA/nccl#2346)."""
FIRST_MONITOR_VERSION = (2, 29, 2)
_READ_SHARE = 0.8
"""Share of the period in which queries may begin: a read has to end before its period does."""
_EVENTS = {
    NcclRankState.LATE: c.NCCL_LATE_EVENT,
    NcclRankState.MISMATCHED: c.NCCL_MISMATCH_EVENT,
    NcclRankState.MISSING: c.NCCL_MISSING_EVENT,
    NcclRankState.DEAD: c.NCCL_DEAD_EVENT,
    NcclRankState.FAILED: c.NCCL_FAILED_EVENT,
}
JobKey = tuple[str | int, ...]
"""Workload of the claim, or else the name of the job in the environment; user; holder."""


def is_allowed(version: str, allowed: Iterable[str]) -> bool:
    """True if a version may be connected to: it is listed, or below a listed one and without a known crash."""
    # Listed in full: the administrator has decided about exactly this version.
    if version in allowed:
        return bool(version)
    has_crashed = _numbers(version) < FIRST_SAFE_VERSION or version in CRASHED_VERSIONS
    return not has_crashed and any(version.startswith(f"{entry}.") for entry in allowed)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split("."))) if version else ()


@dataclass(frozen=True, slots=True)
class NcclRankReport:
    """State of a rank in a communicator."""

    entity: frame.Entity
    verdict: NcclRankVerdict


@dataclass(slots=True)
class JobProcess:
    """Process of a job on this node, with the facts of its place and holder."""

    listed: rank_places.SeenProcess
    nccl: NcclProcess
    first_seen_ns: int


@dataclass
class RasJob:
    """Processes of a job on this node, and what is remembered of its answers."""

    key: JobKey
    processes: dict[int, JobProcess] = field(default_factory=dict)
    ended: dict[int, JobProcess] = field(default_factory=dict)
    """Processes that ended recently: the others report them as dead later."""
    queried_ns: int = -MIN_INTERVAL_NS
    state: str = "excess"
    histories: dict[str, ras_verdicts.CommunicatorHistory] = field(default_factory=dict)
    reports: list[NcclRankReport] = field(default_factory=list)
    unknown: int = 0
    """Ranks that the last answer did not contain."""
    damaged: int = 0
    """Communicators that were left out of the last answer."""
    reported: set[tuple[str, ...]] = field(default_factory=set)
    dead: set[tuple[str, int]] = field(default_factory=set)
    events: deque[frame.Event] = field(default_factory=deque)
    """Events that were not sent yet."""

    def take_events(self) -> Iterator[frame.Event]:
        """Remove and yield the events that were not sent yet."""
        while self.events:
            yield self.events.popleft()

    def shown_reports(self) -> list[NcclRankReport]:
        """Return the reports of the metrics endpoint, those of ranks that do not run first."""
        shown = [report for report in self.reports if _is_shown(report)]
        return sorted(shown, key=lambda report: report.verdict.state is NcclRankState.RUNNING)

    @property
    def entity_key(self) -> tuple[str, str]:
        """Key of the job in entities."""
        return str(self.key[0]), str(self.key[1])

    @property
    def holder(self) -> dict[str, str]:
        """Facts of the claim on its GPUs."""
        facts = next(iter(self.processes.values())).listed.facts
        return {name: facts[name] for name in c.HOLDER if name in facts}

    def place(self, host: str, pid: int, own_host: str) -> dict[str, str]:
        """Return the facts of a reported process if it is one of this job on this node."""
        if not own_host or host != own_host:
            return {}
        processes = (*self.processes.values(), *self.ended.values())
        listed = [process.listed for process in processes]
        # NCCL reports process numbers of the job's own namespace, which several containers of a node may
        # share.
        found = [process.facts for process in listed if process.process.own_pid == pid > 0]
        return found[0] if len(found) == 1 else {}

    def own_host(self, pid: int, communicators: Iterable[ras_report.ReportedCommunicator]) -> str:
        """Return the address that NCCL reports for this node: that of the process which answered."""
        own_pid = self.processes[pid].listed.process.own_pid
        hosts = {r.host for found in communicators for r in found.ranks if r.pid == own_pid}
        return hosts.pop() if len(hosts) == 1 else ""


class NcclRasSource(source.Source):
    """Processes by what is known of them, ranks by state, and events about ranks."""

    name = "nccl_ras"

    def __init__(
        self,
        settings: CollectiveSettings,
        places: rank_places.RankPlaces,
        results: source_bases.ReportedReadings,
    ) -> None:
        self._settings = settings
        self._places = places
        self._results = results
        self._jobs: dict[JobKey, RasJob] = {}

    def probe(self, host: Host) -> probe_result.ProbeResult:  # noqa: ARG002 - it connects to nothing
        """Create the columns."""
        columns = probe_result.ColumnBuilder()
        for state in c.NCCL_PROCESS_STATES:
            columns.add(c.NCCL_PROCESSES, frame.Entity(entities.NCCL_PROCESS_STATE, (state,)))
        for state in c.NCCL_RANK_STATES.values():
            columns.add(c.NCCL_RANKS, frame.Entity(entities.NCCL_RANK_STATE, (state,)))
        columns.add(c.NCCL_DAMAGED, frame.Entity(entities.NODE))
        return columns.result()

    def read(self, host: Host, into: row_builder.RowBuilder) -> None:
        """Query each job that is due, compare its ranks, and report what is new."""
        began_ns = host.clock.now().boot_ns
        self._places.update(host)
        states = self._find_jobs(host, began_ns)
        # The job that was queried longest ago first: those that find no time in this read are first in the
        # next.
        for job in sorted(self._jobs.values(), key=lambda job: job.queried_ns):
            found = self._query_job(host, job, began_ns)
            job.events += found[: MAX_WAITING_EVENTS - len(job.events)]
            states[job.state] += len(job.processes)
        ranks = Counter(r.verdict.state for job in self._jobs.values() for r in job.reports)
        ranks[NcclRankState.UNKNOWN] += sum(job.unknown for job in self._jobs.values())
        jobs = self._jobs.values()
        into.events = list(
            islice(chain.from_iterable(job.take_events() for job in jobs), MAX_EVENTS)
        )
        shown = chain.from_iterable(job.shown_reports() for job in jobs)
        by_job = sorted(islice(shown, MAX_REPORTED), key=lambda report: report.entity.key[:2])
        self._results.readings = {
            report.entity: _rank_readings(report.verdict) for report in by_job
        }
        into.put_readings(0, [states[state] for state in c.NCCL_PROCESS_STATES])
        damaged = sum(job.damaged for job in self._jobs.values())
        of_states = [ranks[state] for state in NcclRankState]
        into.put_readings(len(c.NCCL_PROCESS_STATES), [*of_states, damaged])

    def _find_jobs(self, host: Host, now_ns: int) -> Counter[str]:
        """Assign the processes that can be queried to jobs; return the number of the others by reason."""
        states: Counter[str] = Counter()
        before, self._jobs = self._jobs, {}
        earlier = {key: job.ended | job.processes for key, job in before.items()}
        first_seen = {
            pid: process.first_seen_ns
            for job in before.values()
            for pid, process in job.processes.items()
        }
        for pid, listed_process in sorted(self._places.processes.items()):
            if listed_process.seen_ns < now_ns:
                continue  # it has ended
            try:
                answer = host.call(NCCL_RAS, "process", pid)
            except OSError as error:
                states["denied"] += reading.reason_of(error) is reading.Absent.DENIED
                continue
            if answer is None:
                continue
            nccl = msgspec.convert(answer, NcclProcess)
            # Its loopback address is that of another network namespace: a connection would reach another
            # process.
            if not nccl.has_same_network:
                states["namespace"] += 1
                continue
            key = _job_key(listed_process)
            if key not in self._jobs:
                job = self._jobs[key] = before.get(key) or RasJob(key)
                job.processes = {}
            process = JobProcess(listed_process, nccl, first_seen.get(pid, now_ns))
            self._jobs[key].processes[pid] = process
        for key, job in self._jobs.items():
            listed = earlier.get(key, {})
            is_ended = (self._places.processes.keys() & listed.keys()) - job.processes.keys()
            job.ended = {pid: listed[pid] for pid in is_ended}
        return states

    def _query_job(self, host: Host, job: RasJob, began_ns: int) -> list[frame.Event]:
        """Query a job if it is due; return new events."""
        now_ns = host.clock.now().boot_ns
        if now_ns - job.queried_ns < MIN_INTERVAL_NS:
            return []
        job.state = self._not_due(job, now_ns, began_ns)
        if job.state:
            job.reports, job.unknown, job.damaged = [], 0, 0
            return []
        # Before the query: one that fails is not repeated within the interval either.
        job.queried_ns = now_ns
        events: list[frame.Event] = []
        # The kernel chooses the process that answers: the oldest library decides.
        lowest = min(_numbers(process.nccl.version) for process in job.processes.values())
        job.state = "version"  # monitoring is not available
        if lowest >= FIRST_MONITOR_VERSION:
            answer = self._call(host, job, "events")
            job.state = answer.state
            own_host = self._last_host(job, answer.pid)
            events += self._dead_processes(host, job, answer.dead, own_host)
        if self._settings.ras == "query" and job.state in {"version", ANSWERED, PROTOCOL}:
            answer = self._call(host, job, "query")
            job.state = answer.state
            if answer.report is not None:
                return events + self._take_report(host, job, answer.pid, answer.report)
        # No answer: the former states must not be shown as present ones.
        job.reports, job.unknown, job.damaged = [], 0, 0
        return events

    def _not_due(self, job: RasJob, now_ns: int, began_ns: int) -> str:
        """Return the reason why a job is not queried; empty if it is."""
        processes = job.processes.values()
        versions = {process.nccl.version for process in processes}
        allowed = self._settings.ras_versions.split()
        if not all(is_allowed(version, allowed) for version in versions):
            return "version"
        youngest_ns = max(max(p.nccl.started_ns, p.first_seen_ns) for p in processes)
        if now_ns - youngest_ns < MIN_AGE_NS:
            return "young"
        # A query gathers the whole job: one per node would be as many as the job has nodes.
        if not any(process.listed.process.rank == 0 for process in processes):
            return "other_node"
        # Both calls of the next job may take their whole time.
        spent_ns = now_ns - began_ns + 2 * self._settings.ras_timeout_seconds * SECOND_NS
        return "excess" if spent_ns > _READ_SHARE * self.period_seconds * SECOND_NS else ""

    def _call(self, host: Host, job: RasJob, function: str) -> RasAnswer:
        timeout_ms = round(self._settings.ras_timeout_seconds * 1000)
        pids = sorted(job.processes)
        try:
            answer = host.call(
                NCCL_RAS, function, self._settings.ras_port, timeout_ms, job.key[1], *pids
            )
        except OSError:
            return RasAnswer("unreachable")
        return msgspec.convert(answer, RasAnswer)

    def _last_host(self, job: RasJob, pid: int) -> str:
        communicators = [history.report for history in job.histories.values()]
        return job.own_host(pid, communicators) if pid in job.processes else ""

    def _take_report(
        self, host: Host, job: RasJob, pid: int, report: ras_report.RasReport
    ) -> list[frame.Event]:
        now = host.clock.now()
        before, job.histories, job.damaged = job.histories, {}, report.damaged
        for found in report.communicators:
            if found.name in job.histories:
                job.damaged += 1  # a name identifies one communicator of a job
                continue
            history = before.get(found.name) or ras_verdicts.CommunicatorHistory(found, now.boot_ns)
            if found.name in before:
                history.update(found, now.boot_ns)
            job.histories[found.name] = history
        own_host = self._last_host(job, pid)
        limit_ns = round(self._settings.late_seconds * SECOND_NS)
        job.reports, job.unknown = [], 0
        for name, history in job.histories.items():
            verdicts = history.verdicts(now.boot_ns, limit_ns)
            job.unknown += max(history.report.size - len(verdicts), 0)
            for verdict in verdicts:
                rank = verdict.rank
                facts = job.place(rank.host, rank.pid, own_host) | fact_readers.nonempty_facts(
                    host=rank.host, collective=verdict.kinds
                )
                entity = frame.Entity(
                    entities.NCCL_RANK, (*job.entity_key, name, str(rank.rank)), facts
                )
                job.reports.append(NcclRankReport(entity, verdict))
        return list(_new_events(job, now))

    def _dead_processes(
        self, host: Host, job: RasJob, dead: Iterable[ras_report.ReportedPeer], own_host: str
    ) -> list[frame.Event]:
        """Return an event for each process that was not reported as dead before."""
        now = host.clock.now()
        events = []
        for peer in dead:
            if (peer.host, peer.pid) in job.dead or len(job.dead) >= MAX_DEAD:
                continue
            job.dead.add((peer.host, peer.pid))
            facts = fact_readers.nonempty_facts(
                host=peer.host, detail=peer.detail, pid=str(peer.pid)
            )
            facts |= job.holder | job.place(peer.host, peer.pid, own_host)
            about = frame.Entity(entities.NCCL_JOB, job.entity_key)
            events.append(frame.Event(c.NCCL_PEER_EVENT, about, now.wall_ns, now.boot_ns, facts))
        return events


def _job_key(listed_process: rank_places.SeenProcess) -> JobKey:
    names = [
        *filter(None, (listed_process.facts.get("workload"),)),
        *listed_process.process.jobs,
        "",
    ]
    return names[0], listed_process.process.user, *listed_process.holder


def _is_shown(report: NcclRankReport) -> bool:
    """True for ranks of this node, and for those of other nodes that do not run."""
    return "pid" in report.entity.facts or report.verdict.state is not NcclRankState.RUNNING


def _new_events(job: RasJob, now: frame.NodeTimestamp) -> Iterator[frame.Event]:
    """Yield an event for each verdict that was not reported before; of a communicator, for the first late ranks."""
    keys: set[tuple[str, ...]] = set()
    late: dict[str, list[int]] = {}
    for report in job.reports:
        if report.verdict.state in {NcclRankState.LATE, NcclRankState.MISMATCHED}:
            late.setdefault(report.entity.key[2], []).append(report.verdict.rank.rank)
    for report in job.reports:
        verdict, communicator = report.verdict, report.entity.key[2]
        number = verdict.rank.rank
        history = job.histories[communicator]
        if verdict.state not in _EVENTS:
            continue
        if (
            number in late.get(communicator, ())
            and late[communicator].index(number) >= MAX_LATE_EVENTS
        ):
            continue
        is_missing = verdict.state is NcclRankState.MISSING
        if is_missing and history.missing.get(number, 0) < ras_verdicts.MIN_MISSING_REPORTS:
            continue
        key = (verdict.state.name, str(verdict.launched), *report.entity.key)
        keys.add(key)
        if key in job.reported:
            continue
        facts = job.holder | fact_readers.nonempty_facts(
            size=str(history.report.size),
            launched=str(verdict.launched) if verdict.launched is not None else "",
            detail=verdict.rank.detail,
        )
        if number in late.get(communicator, ()):
            facts |= fact_readers.nonempty_facts(
                lag=str(verdict.lag),
                late_ranks=flight_recorder.format_ranks(late[communicator]),
                waiting_ranks=flight_recorder.format_ranks(list(verdict.peers)),
                waited_seconds=str(verdict.unchanged_ns // SECOND_NS),
                waits_in=_waits_in(job, report),
            )
        place = report.entity.facts.items()
        facts |= {name: fact for name, fact in place if name in c.NCCL_LATE_EVENT.facts}
        yield frame.Event(_EVENTS[verdict.state], report.entity, now.wall_ns, now.boot_ns, facts)
    job.reported = keys


def _waits_in(job: RasJob, late: NcclRankReport) -> str:
    """Return the other communicators in which the process of a late rank waits: then it is not the cause."""
    rank = late.verdict.rank
    return ", ".join(
        f"{other.verdict.kinds} of communicator {other.entity.key[2]}"
        for other in job.reports
        if other.verdict.state is NcclRankState.WAITING
        and rank.pid >= 0
        and (other.verdict.rank.host, other.verdict.rank.pid) == (rank.host, rank.pid)
        and other.entity.key[2] != late.entity.key[2]
    )


def _rank_readings(verdict: NcclRankVerdict) -> tuple[reading.Reading, ...]:
    has_count = verdict.launched is not None
    counts = (verdict.launched, verdict.lag, verdict.unchanged_ns)
    absent = reading.Absent.UNSUPPORTED
    return (verdict.state.value, *(n if has_count and n is not None else absent for n in counts))
