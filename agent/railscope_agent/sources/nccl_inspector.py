"""Logs of NCCL Inspector: calls of each communicator by kind and size, and the ranks of this node that arrive last.

Each process of a job appends a line per call to a log of its own. The agent follows the logs: in each read it takes whole
lines from where it stopped. It changes no log. A log counts if its number is that of a process on a GPU of this node, of the user and the job of the log: so a
tenant can state something false about its own processes only.

Communicators have columns of their own on the metrics endpoint only: every job would add a schema that all collectors have
to store. The numbers of files and lines are sent to the collector.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import msgspec

from railscope import frame, reading
from railscope.catalog import collectives as c, entities
from railscope.timestamps import SECOND_NS
from railscope.untrusted_text import printable
from railscope_agent.collective_settings import CollectiveSettings
from railscope_agent.collectives import inspector
from railscope_agent.host import JOB_FILES, Host
from railscope_agent.host.job_files import JobFile, JobFileListing, OpenedLog
from railscope_agent.sampling import fact_readers, probe_result, row_builder, source
from railscope_agent.sources import followed_communicators, source_bases
from railscope_agent.sources.rank_places import JobKey, RankPlaces

MAX_READ_BYTES, MAX_READ_LINES = 4 << 20, 10_000
"""Maximum of one read: 2,000 lines per second, some 1 % of a core."""
MAX_BEHIND_BYTES = 4 << 20
"""Bytes of a log that may wait; older ones are skipped, so that all ranks of a job are read at the same place."""
MAX_JOBS, MAX_LOGS = 32, 128
"""Maximum numbers of jobs, and of logs of a job."""
MAX_JOB_ENTITIES, MAX_ENTITIES = 512, 2048
"""Maximum numbers of kinds and ranks of all communicators, of a job and of the node."""
OPEN_READS = 2
"""Number of reads for which a comparison waits for other ranks."""
MAX_EVENTS = 64
KEEP_NS = 900 * SECOND_NS
"""Time for which a communicator without new lines has series."""


@dataclass(slots=True)
class FollowedLog:
    """A log, the place of its process, and where the next line begins."""

    file: JobFile
    facts: dict[str, str]
    offset: int = 0
    is_midline: bool = False
    header: inspector.InspectorHeader | None = None

    @property
    def job(self) -> JobKey:
        """Job of the log."""
        return self.file.job, self.file.user

    @property
    def waiting_bytes(self) -> int:
        """Bytes that were not read."""
        return max(self.file.bytes - self.offset, 0)


class NcclInspectorSource(source.Source):
    """Logs by state, and lines by state."""

    name = "nccl_inspector"
    """It is read after the sources of processes and claims."""

    def __init__(
        self,
        settings: CollectiveSettings,
        places: RankPlaces,
        results: source_bases.ReportedReadings,
    ) -> None:
        self._directory = settings.nccl_inspector_directory
        self._places = places
        self._results = results
        self._logs: dict[tuple[str, str], FollowedLog] = {}
        self._jobs: dict[JobKey, dict[str, followed_communicators.FollowedCommunicator]] = {}
        self._sizes: Counter[JobKey] = Counter()
        """Numbers of kinds and ranks of each job."""
        self._states: Counter[str] = Counter()
        self._lines: Counter[str] = Counter()
        self._skipped_bytes = self._replaced = self._dropped = self._reads = 0
        self._slow_paths = followed_communicators.SlowPaths()

    def probe(self, host: Host) -> probe_result.ProbeResult:
        """Create the columns. Raises OSError if the directory cannot be read."""
        self._list(host)
        return self._columns().result()

    def _columns(self) -> probe_result.ColumnBuilder:
        columns = probe_result.ColumnBuilder()
        for state in c.INSPECTOR_FILE_STATES:
            columns.add(c.INSPECTOR_FILES, frame.Entity(entities.INSPECTOR_FILE, (state,)))
        for state in c.INSPECTOR_LINE_STATES:
            columns.add(c.INSPECTOR_LINES, frame.Entity(entities.INSPECTOR_LINE, (state,)))
        node = (
            c.INSPECTOR_SKIPPED,
            c.INSPECTOR_WAITING,
            c.INSPECTOR_REPLACED,
            c.INSPECTOR_DROPPED,
        )
        columns.add_each(node, frame.Entity(entities.NODE))
        return columns

    def _list(self, host: Host) -> JobFileListing:
        answer = host.call(JOB_FILES, "list_inspector", self._directory)
        return msgspec.convert(answer, JobFileListing)

    def read(self, host: Host, into: row_builder.RowBuilder) -> None:
        """Read new lines, and report the totals."""
        if not into.reasons:
            return
        listing = self._list(host)
        self._places.update(host)
        self._reads += 1
        self._states = Counter(excess=not listing.is_complete)
        self._follow(listing.files)
        self._read_new_lines(host)
        now = host.clock.now()
        self._close_comparisons(now.boot_ns)
        events = (
            *followed_communicators.find_stragglers(self._jobs, now),
            *self._slow_paths.find(self._jobs, now),
        )
        into.events = list(islice(events, MAX_EVENTS))
        self._results.readings = dict(self._readings())
        waiting = sum(followed.waiting_bytes for followed in self._logs.values())
        readings = [self._states[state] for state in c.INSPECTOR_FILE_STATES]
        readings += [self._lines[state] for state in c.INSPECTOR_LINE_STATES]
        readings += [self._skipped_bytes, waiting, self._replaced, self._dropped]
        into.put_readings(0, readings)

    def _follow(self, files: Iterable[JobFile]) -> None:
        """Find the logs to read, and where their next lines begin."""
        before, self._logs = self._logs, {}
        logs_of_job: Counter[JobKey] = Counter()
        for file in sorted(files, key=lambda file: (file.job, file.name)):
            job = file.job, file.user
            followed = before.get((file.job, file.name))
            facts = self._places.of_own_pid(job, int(file.subject))
            if not file.is_regular:
                self._states["irregular"] += 1
            elif not facts:
                self._states["owner"] += 1
            elif logs_of_job[job] >= MAX_LOGS or len(logs_of_job.keys() | {job}) > MAX_JOBS:
                self._states["excess"] += 1
            else:
                logs_of_job[job] += 1
                self._states["read"] += 1
                # A smaller file was truncated, another inode is a new log: both begin at their start.
                if followed and file.inode == followed.file.inode and file.bytes >= followed.offset:
                    del before[file.job, file.name]
                    followed.file, followed.facts = file, facts
                else:
                    self._replaced += followed is not None
                    followed = FollowedLog(file, facts)
                self._logs[file.job, file.name] = followed
                if (excess := followed.waiting_bytes - MAX_BEHIND_BYTES) > 0:
                    self._skipped_bytes += excess
                    followed.offset += excess
                    # The skipped part may have contained another header: calls before the next header cannot
                    # be assigned.
                    followed.is_midline, followed.header = True, None
        self._skipped_bytes += sum(gone.waiting_bytes for gone in before.values())

    def _read_new_lines(self, host: Host) -> None:
        """Read one part of each log, those with most waiting bytes first, until all are read or the limits are reached."""
        waiting = (followed for followed in self._logs.values() if followed.waiting_bytes)
        logs = deque(sorted(waiting, key=lambda followed: -followed.waiting_bytes))
        remaining_bytes, remaining_lines = MAX_READ_BYTES, MAX_READ_LINES
        while logs and remaining_bytes > 0 and remaining_lines > 0:
            followed = logs.popleft()
            offset = followed.offset
            part = self._read_part(host, followed)
            if part and part.end > offset:
                remaining_bytes -= part.end - offset
                remaining_lines -= sum(part.lines.values())
                if followed.waiting_bytes:
                    logs.append(followed)

    def _read_part(self, host: Host, followed: FollowedLog) -> inspector.InspectorPart | None:
        file = followed.file
        try:
            answer = host.call(
                JOB_FILES, "inspector_log", self._directory, file.job, file.name, followed.offset
            )
        except OSError as error:
            if reading.reason_of(error) is not reading.Absent.GONE:
                # It was counted when it was listed.
                self._states["read"] -= 1
                self._states["unreadable"] += 1
            return None
        opened = msgspec.convert(answer, OpenedLog)
        if (opened.user, opened.inode) != (file.user, file.inode):
            return None  # replaced since it was listed: the next list shows it
        part = opened.part
        skipped_bytes = part.start - followed.offset
        if skipped_bytes and not followed.is_midline:  # overwritten: no line began there before
            self._replaced += 1
            followed.offset, followed.header = 0, None
            return None
        self._skipped_bytes += skipped_bytes
        followed.offset, followed.is_midline = part.end, part.is_midline
        self._add(followed, part, host.clock.now().boot_ns)
        return part

    def _add(self, followed: FollowedLog, part: inspector.InspectorPart, now_ns: int) -> None:
        lines, used = Counter(part.lines), set()
        for call in part.calls:
            header = followed.header if call.header < 0 else part.headers[call.header]
            state = self._add_call(followed, header, call) if header else "headless"
            if header and state == "read":
                used.add(header)
            else:
                lines["read"] -= 1
                lines[state] += 1
        if part.last_header != -1:
            last = part.last_header
            followed.header = None if last is None else part.headers[last]
        for header in used:
            communicator = self._jobs[followed.job][header.id]
            communicator.updated_ns = now_ns
            names = fact_readers.nonempty_facts(communicator_name=printable(header.comm_name))
            communicator.facts[header.rank] = followed.facts | names
            communicator.ranks = header.n_ranks
        self._lines += lines
        self._dropped += part.dropped

    def _add_call(
        self,
        followed: FollowedLog,
        header: inspector.InspectorHeader,
        call: inspector.InspectedCall,
    ) -> str:
        """Add a call to its communicator; return the state of its line."""
        of_job = self._jobs.setdefault(followed.job, {})
        communicator = of_job.get(header.id) or followed_communicators.FollowedCommunicator()
        # Two processes state the same rank: neither can be believed, so the first one keeps it.
        if communicator.facts.get(header.rank, followed.facts)["pid"] != followed.facts["pid"]:
            return "conflict"
        totals, rank, ranks = communicator.totals, header.rank, header.n_ranks
        if not totals.add(call, rank, self._reads, ranks=ranks, may_grow=False):
            if self._sizes[followed.job] >= MAX_JOB_ENTITIES or self._sizes.total() >= MAX_ENTITIES:
                return "excess"
            before = totals.size
            totals.add(call, rank, self._reads, ranks=ranks)
            self._sizes[followed.job] += totals.size - before
            communicator.facts.setdefault(rank, followed.facts)
            of_job[header.id] = communicator
        return "read"

    def _close_comparisons(self, now_ns: int) -> None:
        """Compare the ranks in older collectives, and forget the communicators of jobs that have ended."""
        for key, of_job in list(self._jobs.items()):
            for communicator in of_job.values():
                communicator.totals.close_until(self._reads - OPEN_READS)
            self._jobs[key] = {
                name: communicator
                for name, communicator in of_job.items()
                if now_ns - communicator.updated_ns < KEEP_NS
            }
        self._jobs = {key: of_job for key, of_job in self._jobs.items() if of_job}
        # Counted again rather than subtracted, so that no error accumulates.
        self._sizes = Counter(
            {
                key: sum(communicator.totals.size for communicator in of_job.values())
                for key, of_job in self._jobs.items()
            }
        )

    def _readings(self) -> Iterator[tuple[frame.Entity, tuple[int, ...]]]:
        """Yield the readings of all communicators."""
        for (job, user), of_job in sorted(self._jobs.items()):
            for name, communicator in sorted(of_job.items()):
                key = job, str(user), name
                for kind, of_kind in sorted(communicator.totals.kinds.items()):
                    entity = frame.Entity(entities.COMMUNICATOR_CALL, (*key, *kind))
                    yield (
                        entity,
                        (of_kind.calls, of_kind.bytes, of_kind.duration_ns, of_kind.bus_bytes),
                    )
                for rank, arrivals in sorted(communicator.totals.ranks.items()):
                    facts = communicator.facts[rank]
                    entity = frame.Entity(entities.COMMUNICATOR_RANK, (*key, str(rank)), facts)
                    yield (
                        entity,
                        (
                            arrivals.compared,
                            arrivals.last_arrivals,
                            arrivals.duration_ns,
                            arrivals.late_ns,
                        ),
                    )
