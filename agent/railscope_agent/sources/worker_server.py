"""Worker servers of PyTorch on this node: dumps of flight recorders while a job stands still, before its watchdog writes files.

Each server is queried once per period for the numbers of its last collectives. Only if a group of a job has a collective that
was not completed at two requests in succession, and no group of the job advanced in between, the dumps of the ranks of the job are
requested; never those of a job that advances. It is off by default: a worker that copies its records delays its next collective.

A server is that of a job as a file is: by the owner of its socket, or by the process on a GPU that listens on its port. Requests are
made one after the other. The time of a period and the places for servers are shared by users, and those of a user by its jobs: servers that
are slow, silent or many take those of their own job, and the time of one request more.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec
import structlog

from railscope import frame, settings as railscope_settings
from railscope.catalog import collectives as c, entities
from railscope.timestamps import SECOND_NS
from railscope_agent.collective_settings import CollectiveSettings
from railscope_agent.host import Host, worker_servers
from railscope_agent.host.job_files import JobFile
from railscope_agent.sampling import probe_result, row_builder, source
from railscope_agent.sources import flight_recorder, rank_places

log = structlog.get_logger(__name__)

MIN_AGE_NS = 60 * SECOND_NS
"""Time since the agent found a server before its first request: process groups are created in the first minute."""
MAX_SERVERS, MAX_SERVERS_PER_JOB = 256, 32
MAX_TIMEOUTS_PER_JOB = 2
MAX_PORTS, MAX_PORT = 64, 65_535
MAX_LOGGED = 16
_READ_SHARE = 0.8
"""Share of the period in which requests may begin: a read has to end before its period does."""
_ANSWERED, _TIMEOUT, _UNREACHABLE = "answered", "timeout", "unreachable"
_FAILURES = {
    errno.EACCES: "denied",
    errno.EAGAIN: _TIMEOUT,
    errno.EBADMSG: "malformed",
    errno.EINVAL: "irregular",
    errno.ELOOP: "irregular",
    errno.EMSGSIZE: "too_large",
    errno.EPERM: "owner",
    errno.EPROTO: "status",
    errno.ETIMEDOUT: _TIMEOUT,
}
_REMEDIES = {
    "denied": "install the drop-in tenancy.conf (CAP_DAC_OVERRIDE), or let the socket be writable by the agent",
    "irregular": "remove it, or start the worker server with this path",
    "malformed": "let PyTorch's worker server listen here",
    "owner": "let one process of the job's user create the socket and listen",
    "status": "let PyTorch's worker server listen here, with TORCH_FR_BUFFER_SIZE above 0",
    "timeout": "resume or end the process; its server does not respond",
    "too_large": "decrease TORCH_FR_BUFFER_SIZE",
    _UNREACHABLE: "remove the socket of the process that has ended",
}
Key = TypeVar("Key", int, rank_places.JobKey)
"""User or job."""
Endpoint = tuple[int | str, ...]
"""Directory, job and name of a socket; or port, process, its user and its start."""


@dataclass(slots=True)
class WorkerServer:
    """A worker server of a rank, and the results of its last requests."""

    job: rank_places.JobKey
    rank: str
    endpoint: Endpoint
    first_seen_ns: int
    file: JobFile | None = None
    """The socket as listed; None of a port."""
    queried_ns: int = 0
    state: str = "excess"
    problem: str = ""
    progress: dict[str, tuple[int, int]] = field(default_factory=dict)
    has_answered: bool = False
    is_still: bool = False
    """True if a group did not complete its last collective, nor enter another one, since the request before."""
    has_advanced: bool = False
    """True if a group entered or completed another collective since the request before."""

    def update(self, progress: dict[str, tuple[int, int]]) -> None:
        """Compare the progress of the groups with that of the last answer."""
        before, self.progress = self.progress, progress
        self.is_still = any(
            enqueued > completed and before.get(group) == (enqueued, completed)
            for group, (enqueued, completed) in progress.items()
        )
        self.has_advanced = any(
            numbers != before.get(group, numbers) for group, numbers in progress.items()
        )


def select_servers(found: Iterable[WorkerServer]) -> list[WorkerServer]:
    """Return at most 256 servers, the places shared by users; of a user those that have answered first, shared by jobs."""
    by_answer = sorted(found, key=lambda server: not server.has_answered)
    by_job = _in_turn(by_answer, lambda server: server.job, MAX_SERVERS_PER_JOB)
    by_job.sort(key=lambda server: not server.has_answered)
    return _in_turn(by_job, lambda server: server.job[1], MAX_SERVERS)[:MAX_SERVERS]


def _in_turn(
    servers: Iterable[WorkerServer], group: Callable[[WorkerServer], object], limit: int
) -> list[WorkerServer]:
    """Return the first server of each group, then the second one of each, and so on up to a limit."""
    groups: dict[object, list[WorkerServer]] = {}
    for server in servers:
        groups.setdefault(group(server), []).append(server)
    return list(rank_places.in_turns(of_group[:limit] for of_group in groups.values()))


def parse_ports(text: str) -> list[int]:
    """Parse ports and ranges of ports. Raises SettingsError."""
    ports: list[int] = []
    for part in text.split():
        first, dash, last = part.partition("-")
        ends = [
            end for end in (first, last if dash else first) if end.isascii() and end.isdecimal()
        ]
        numbers = [int(end) for end in ends if len(end) <= len(str(MAX_PORT))]
        if len(numbers) == 2 and 0 < numbers[0] <= numbers[1] <= MAX_PORT:  # noqa: PLR2004 - first and last
            # Cut to one more than allowed: a range of 65,000 ports is rejected below without a list of them.
            ports += range(numbers[0], min(numbers[1], numbers[0] + MAX_PORTS) + 1)
        else:
            message = (
                f"invalid collectives.worker_ports: {part[: railscope_settings.MAX_QUOTED]!r}: expected ports"
                f" from 1 to {MAX_PORT}, or ranges such as 26000-26007"
            )
            raise railscope_settings.SettingsError(message)
    if len(set(ports)) > MAX_PORTS:
        message = f"invalid collectives.worker_ports: expected at most {MAX_PORTS} ports"
        raise railscope_settings.SettingsError(message)
    return sorted(set(ports))


class WorkerServerSource(source.SourceWithoutResources):
    """Worker servers by result of the last request; their dumps are compared by the source of flight recorders."""

    name = "worker_server"
    family = "worker_server"
    """Its own thread: a server that answers slowly delays no other source."""
    stage = 1

    def __init__(
        self,
        settings: CollectiveSettings,
        places: rank_places.RankPlaces,
        served: flight_recorder.ServedDumps,
    ) -> None:
        self._settings = settings
        self._ports = parse_ports(settings.worker_ports)
        if self._ports and not settings.worker_servers:
            message = "invalid collectives.worker_ports: expected worker_servers = true with it, or no ports"
            raise railscope_settings.SettingsError(message)
        self._places = places
        self._served = served
        self._servers: dict[Endpoint, WorkerServer] = {}
        self._refused: dict[Endpoint, JobFile] = {}
        """Sockets of processes that have ended, which are not connected to again."""
        self._turns: dict[rank_places.JobKey | int, int] = {}
        """Time of the last turn of each job and user on the boot clock."""
        self._began_ns = self._until_ns = 0

    def probe(self, host: Host) -> probe_result.ProbeResult:
        """Create columns if requests are switched on; it connects to nothing."""
        subject = "PyTorch worker servers"
        if not self._settings.worker_servers:
            finding = probe_result.ProbeFinding.absent(subject, "switched off")
            return probe_result.ProbeResult(findings=(finding,))
        try:
            count = len(flight_recorder.list_files(host, "list_sockets", self._settings).files)
        except OSError as error:
            finding = probe_result.ProbeFinding.failed(subject, error, "run the agent as root")
            return probe_result.ProbeResult(findings=(finding,))
        columns = probe_result.ColumnBuilder()
        for state in c.SERVER_STATES:
            columns.add(
                c.FLIGHT_RECORDER_SERVERS, frame.Entity(entities.FLIGHT_RECORDER_SERVER, (state,))
            )
        detail = (
            f"{probe_result.format_count(count, 'socket')} in {self._settings.flight_recorder_directory}"
            f", {probe_result.format_count(len(self._ports), 'port')}"
        )
        return columns.result(probe_result.ProbeFinding.supported(subject, detail))

    def read(self, host: Host, into: row_builder.RowBuilder) -> None:
        """Request the progress of the servers, and the dumps of jobs that stand still."""
        if not into.reasons:
            return
        began_ns = self._began_ns = host.clock.now().boot_ns
        spare_seconds = _READ_SHARE * self.period_seconds - self._settings.worker_timeout_seconds
        until_ns = began_ns + round(spare_seconds * SECOND_NS)
        self._places.update(host)
        before = {endpoint: server.state for endpoint, server in self._servers.items()}
        states: Counter[str] = Counter()
        users: dict[int, dict[rank_places.JobKey, list[WorkerServer]]] = {}
        servers, self._servers = self._servers, {}
        try:
            found = list(self._find(host, states))
        except OSError:
            # Dumps of the last period must not be compared again.
            self._served.dumps = ()
            raise
        pairs = ((servers.get(server.endpoint, server), server) for server in found)
        # A socket that was created again is that of another process: nothing of the former server applies.
        selected = select_servers(
            former if former.file == server.file else server for former, server in pairs
        )
        states["excess"] += len(found) - len(selected)
        for server in selected:
            self._servers[server.endpoint] = server
            users.setdefault(server.job[1], {}).setdefault(server.job, []).append(server)
        dumps: dict[Endpoint, flight_recorder.ServedDump] = {}
        memory = flight_recorder.DumpMemory()
        for user, user_until_ns in self._take_turns(host, users, until_ns):
            for job, job_until_ns in self._take_turns(host, users[user], user_until_ns):
                self._until_ns = job_until_ns
                for server, dump in self._query_job(host, users[user][job]):
                    dumps[server.endpoint] = dump
                    for dropped in memory.add(user, server.endpoint, dump[1]):
                        del dumps[dropped]
                        self._servers[dropped].state = "excess"
        jobs = {job for of_user in users.values() for job in of_user}
        self._turns = {key: turn for key, turn in self._turns.items() if key in jobs | users.keys()}
        self._served.dumps = tuple(dumps.values())
        states.update(server.state for server in self._servers.values())
        into.put_readings(0, [states[state] for state in c.SERVER_STATES])
        self._log_changes(before)

    def _take_turns(
        self, host: Host, keys: Iterable[Key], until_ns: int
    ) -> Iterator[tuple[Key, int]]:
        """Yield users or jobs, longest without a turn first, each with the end of an equal share of the time that is left."""
        waiting = sorted(keys, key=lambda key: self._turns.get(key, 0))
        for position, key in enumerate(waiting):
            now_ns = host.clock.now().boot_ns
            if now_ns <= until_ns:
                self._turns[key] = now_ns
            yield key, now_ns + (until_ns - now_ns) // (len(waiting) - position)

    def _find(self, host: Host, states: Counter[str]) -> Iterator[WorkerServer]:
        """Yield the server of each process on a GPU; count the others."""
        directory, users = self._settings.flight_recorder_directory, self._places.users
        listing = flight_recorder.list_files(host, "list_sockets", self._settings)
        states["excess"] += not listing.is_complete
        refused, self._refused = self._refused, {}
        for file in listing.files:
            endpoint: Endpoint = directory, file.job, file.name
            if file.user not in users:
                states["owner"] += 1
            elif refused.get(endpoint) == file:
                self._refused[endpoint] = file
                states[_UNREACHABLE] += 1
            else:
                job = file.job, file.user
                yield WorkerServer(job, file.subject, endpoint, self._began_ns, file)
        pids = sorted(p for p, s in self._places.processes.items() if s.seen_ns >= self._began_ns)
        if not self._ports or not pids:
            return
        ports = " ".join(map(str, self._ports))
        for port, pid in host.call(worker_servers.WORKER_SERVERS, "listeners", ports, *pids):
            job_of_pid, process = self._places.job_of(pid), self._places.processes[pid].process
            if job_of_pid is None or process.rank is None:
                states["owner"] += 1
            else:
                endpoint = port, pid, process.user, process.started_ns
                yield WorkerServer(job_of_pid, str(process.rank), endpoint, self._began_ns)

    def _query_job(
        self, host: Host, servers: list[WorkerServer]
    ) -> Iterator[tuple[WorkerServer, flight_recorder.ServedDump]]:
        """Query the servers of a job; yield the dumps of its ranks if it stands still."""
        # Those that did not answer come last: a rank that is stopped must not hide the others.
        servers.sort(key=lambda server: (server.state == _TIMEOUT, server.queried_ns))
        for server in servers:
            answer = self._query(host, "progress", server, servers)
            server.update(answer.progress if answer else {})
        if any(s.has_advanced for s in servers) or not any(s.is_still for s in servers):
            return
        for server in servers:
            if server.state != _ANSWERED:
                continue
            # Before the request: what a rank enters while it answers is not missing from its dump.
            requested_ns = host.clock.now().wall_ns
            answer = self._query(host, "dump", server, servers)
            if answer and answer.dump is not None:
                yield server, (_as_file(server, requested_ns), answer.dump)

    def _query(
        self, host: Host, function: str, server: WorkerServer, of_job: list[WorkerServer]
    ) -> worker_servers.WorkerAnswer | None:
        """Return the answer of a server; None if it did not answer, or is queried another time."""
        now_ns = host.clock.now().boot_ns
        if now_ns - server.first_seen_ns < MIN_AGE_NS:
            server.state = "young"
            return None
        timeouts = sum(s.state == _TIMEOUT and s.queried_ns >= self._began_ns for s in of_job)
        if now_ns > self._until_ns or timeouts >= MAX_TIMEOUTS_PER_JOB:
            server.state = _TIMEOUT if server.state == _TIMEOUT else "excess"
            return None
        server.queried_ns, server.problem = now_ns, ""
        timeout_ms = round(self._settings.worker_timeout_seconds * 1000)
        try:
            answer = host.call(
                worker_servers.WORKER_SERVERS, function, timeout_ms, *server.endpoint
            )
        except OSError as error:
            server.state = _FAILURES.get(error.errno or 0, _UNREACHABLE)
            server.problem = error.strerror or str(error)
            # A port has no file that would show a new process: it is asked again.
            if server.file and error.errno == errno.ECONNREFUSED:
                self._refused[server.endpoint] = server.file
            return None
        server.state, server.has_answered = _ANSWERED, True
        return msgspec.convert(answer, worker_servers.WorkerAnswer)

    def _log_changes(self, before: dict[Endpoint, str]) -> None:
        """Log servers that failed or answered again, in a limited number per read."""
        changed = [
            server
            for server in self._servers.values()
            if server.state != before.get(server.endpoint, _ANSWERED)
            and (server.state in _REMEDIES or before.get(server.endpoint) in _REMEDIES)
        ]
        for server in changed[:MAX_LOGGED]:
            if server.state in _REMEDIES:
                log.warning(
                    "worker_server_failed",
                    reason=server.state,
                    problem=server.problem,
                    fix=_REMEDIES[server.state],
                )
            elif server.state == _ANSWERED:
                name = worker_servers.format_endpoint(*server.endpoint)
                log.info("worker_server_recovered", server=name)
        if len(changed) > MAX_LOGGED:
            log.warning("worker_server_changes_suppressed", servers=len(changed) - MAX_LOGGED)


def _as_file(server: WorkerServer, requested_ns: int) -> JobFile:
    """Return the dump's file: it contains at least what the rank had entered when it was requested."""
    job, user = server.job
    name = worker_servers.format_endpoint(*server.endpoint)
    return JobFile(job, name, server.rank, user, 0, requested_ns, 0, is_regular=True)
