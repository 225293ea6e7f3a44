"""Metrics files of NCCL Inspector: bandwidth and duration of collectives as the plugin reports them for each GPU.

A file counts if a process of its owner and its job is on the GPU that its name names, and while it is renewed. Labels in it
are those of the job, and never select the GPU. The plugin truncates a file and writes it again: one that has just
changed is read later, and keeps its series.

The series are on the metrics endpoint only: every job would add a schema that all collectors have to store.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice

import msgspec

from railscope import frame, reading
from railscope.catalog import collectives as c, entities
from railscope.timestamps import SECOND_NS
from railscope_agent.collective_settings import CollectiveSettings
from railscope_agent.collectives.inspector_metrics import InspectorMetrics, ReportedCalls
from railscope_agent.host import Host
from railscope_agent.host.job_files import JOB_FILES, JobFile, JobFileListing, OpenedMetrics
from railscope_agent.sampling import probe_result, row_builder, source
from railscope_agent.sources.rank_places import JobKey, RankPlaces, in_turns_of_jobs

MAX_AGE_NS = 300 * SECOND_NS
"""Age at which a file has no series: the plugin renews it every 30 s by default."""
SETTLED_NS = SECOND_NS
"""Age at which the plugin has written a file completely."""
MAX_FILES = 64
"""Maximum number of files of a job."""
MAX_JOB_REPORTS, MAX_REPORTS = 512, 2048
"""Maximum numbers of combinations of communicator, kind and size, of a job and of the node."""
_FAILURES = {
    errno.EBADMSG: "incomplete",
    errno.EFBIG: "too_large",
    errno.EINVAL: "irregular",
    errno.ELOOP: "irregular",
}
FoundMetrics = tuple[JobFile, InspectorMetrics | str]
"""File as read, with its content or the reason why that is not usable."""


class NcclMetricsSource(source.SourceWithoutResources):
    """Metrics files, and their reports."""

    name = "nccl_metrics"
    family = "collectives"
    stage = 1
    """It is read after the sources of processes and claims."""

    def __init__(
        self,
        settings: CollectiveSettings,
        places: RankPlaces,
    ) -> None:
        self._directory = settings.nccl_inspector_directory
        self._places = places
        self._files: dict[tuple[str, str], FoundMetrics] = {}
        self._has_files = False
        self._readings: dict[frame.Column, int] = {}
        self._columns: tuple[frame.Column, ...] = ()

    def probe(self, host: Host) -> probe_result.ProbeResult:
        """Create columns for the reports of the last read, if there is a file."""
        self._columns = ()
        try:
            self._has_files = bool(self._directory and self._list(host).files)
        except OSError:
            self._has_files = False  # the source of the logs reports it
        columns = probe_result.ColumnBuilder()
        if self._has_files or self._files:
            for state in c.METRICS_FILE_STATES:
                columns.add(
                    c.METRICS_FILES, frame.Entity(entities.INSPECTOR_METRICS_FILE, (state,))
                )
            for state in c.METRICS_LINE_STATES:
                columns.add(
                    c.METRICS_LINES, frame.Entity(entities.INSPECTOR_METRICS_LINE, (state,))
                )
            columns.columns += self._readings
        self._columns = tuple(columns.columns)
        return columns.result()

    def _list(self, host: Host) -> JobFileListing:
        answer = host.call(JOB_FILES, "list_inspector_metrics", self._directory)
        return msgspec.convert(answer, JobFileListing)

    def read(self, host: Host, into: row_builder.RowBuilder) -> None:
        """Read the files that have changed, and report all."""
        if not into.reasons:
            return
        is_listed = self._has_files or self._files
        listing = self._list(host) if is_listed else JobFileListing()
        self._places.update(host)
        states = self._read_files(host, listing.files)
        states["excess"] += not listing.is_complete
        lines = self._report()
        numbers = [states[state] for state in c.METRICS_FILE_STATES]
        numbers += [lines[state] for state in c.METRICS_LINE_STATES]
        into.put_readings(0, numbers)
        columns = self._columns[len(numbers) :]
        into.needs_probe = columns != tuple(self._readings)
        readings = (self._readings.get(column, reading.Absent.GONE) for column in columns)
        into.put_readings(len(numbers), readings)

    def _read_files(self, host: Host, files: Iterable[JobFile]) -> Counter[str]:
        """Read the files that are new or have changed; return the number of files by state."""
        now_ns = host.clock.now().wall_ns
        before, self._files = self._files, {}
        of_job: Counter[JobKey] = Counter()
        states: Counter[str] = Counter()
        for file in sorted(files, key=lambda file: (file.job, file.name)):
            found = before.get((file.job, file.name))
            state = self._rejection(file, now_ns - file.modified_ns)
            of_job[file.job, file.user] += not state
            if not state and of_job[file.job, file.user] > MAX_FILES:
                state = "excess"
            if not state:
                if found is None or found[0] != file or found[1] == "waiting":
                    if now_ns - file.modified_ns >= SETTLED_NS:
                        found = file, self._read_file(host, file)
                    # The former content of the same user stays until the plugin has written the new one; that
                    # of another user does not.
                    elif found is None or found[0].user != file.user:
                        found = file, "waiting"
                self._files[file.job, file.name] = found
                state = found[1] if isinstance(found[1], str) else "read"
            states[state] += 1
        return states

    def _rejection(self, file: JobFile, age_ns: int) -> str:
        """Return the state of a file that is not read."""
        if not file.is_regular:
            return "irregular"
        if not self._places.find_gpu((file.job, file.user), file.subject):
            return "owner"
        return "" if -MAX_AGE_NS < age_ns < MAX_AGE_NS else "outdated"

    def _read_file(self, host: Host, file: JobFile) -> InspectorMetrics | str:
        try:
            answer = host.call(JOB_FILES, "inspector_metrics", self._directory, file.job, file.name)
        except OSError as error:
            return _FAILURES.get(error.errno or 0, "unreadable")
        opened = msgspec.convert(answer, OpenedMetrics)
        return opened.metrics if opened.user == file.user else "owner"

    def _report(self) -> Counter[str]:
        """Compute the readings; return the number of lines by state."""
        lines: Counter[str] = Counter()
        of_jobs: dict[JobKey, list[tuple[frame.Entity, ReportedCalls]]] = {}
        self._readings = {}
        for job, gpu, metrics in self._found():
            lines.update(metrics.lines)
            key = gpu, job[0], str(job[1])
            of_jobs.setdefault(job, []).extend(
                (frame.Entity(entities.NCCL_GPU_CALL, (*key, *report.key)), report)
                for report in metrics.reports
            )
            of_gpu = frame.Entity(entities.NCCL_GPU, key)
            if metrics.calls is not None:
                self._readings[c.REPORTED_CALLS, of_gpu] = metrics.calls
            if metrics.dropped is not None:
                self._readings[c.REPORTED_DROPPED, of_gpu] = metrics.dropped
        within = {job: reports[:MAX_JOB_REPORTS] for job, reports in of_jobs.items()}
        shown = list(islice(in_turns_of_jobs(within), MAX_REPORTS))
        lines["excess"] += sum(map(len, of_jobs.values())) - len(shown)
        for entity, report in sorted(shown, key=lambda each: each[0].key):
            if report.bus_bytes_per_second is not None:
                self._readings[c.REPORTED_BANDWIDTH, entity] = report.bus_bytes_per_second
            if report.duration_ns is not None:
                self._readings[c.REPORTED_DURATION, entity] = report.duration_ns
        return lines

    def _found(self) -> Iterator[tuple[JobKey, str, InspectorMetrics]]:
        """Yield job, GPU and content of each file."""
        for file, metrics in self._files.values():
            if not isinstance(metrics, str):
                job = file.job, file.user
                yield job, self._places.find_gpu(job, file.subject), metrics
