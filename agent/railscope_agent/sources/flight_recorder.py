"""Dumps of PyTorch's flight recorders on this node: ranks that are late, mismatched or stuck, as events and metrics.

A dump counts if a process of its owner is or was on a GPU of this node. Ranks are compared within a job: a directory
and an owner. So a tenant can state something false about its own jobs only. The comparison with GPU, NIC, rail and claim is by
the process of the rank.

Ranks have columns of their own on the metrics endpoint only: every job would add a schema that all collectors have to
store. Their numbers by state, and events, are sent to the collector.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import msgspec

from railscope import frame, reading
from railscope.catalog import collectives as c, entities
from railscope.timestamps import SECOND_NS
from railscope_agent.collective_settings import CollectiveSettings
from railscope_agent.collectives import (
    COMPARED_KINDS,
    flight_recorder as recorder,
    rank_verdicts,
)
from railscope_agent.collectives.rank_verdicts import RankRecord, RankState, RankVerdict
from railscope_agent.host import JOB_FILES, Host
from railscope_agent.host.job_files import JobFile, JobFileListing, OpenedDump
from railscope_agent.sampling import fact_readers, probe_result, row_builder, source
from railscope_agent.sources import source_bases
from railscope_agent.sources.rank_places import JobKey, RankPlaces

MAX_DUMPS = 1024
"""Maximum number of dumps that are kept and compared: eight jobs of 128 ranks on a node."""
MAX_KEPT_BYTES = 32 << 20
"""Memory of the dumps that are kept."""
MAX_READ_BYTES = 8 << 20
"""Bytes of dumps read at one time, twice those of eight ranks; the others are read next time."""
MAX_REPORTED = 1024
MAX_EVENTS = 64
MAX_STACK_FRAMES = 8
_FAILURES = {
    errno.EBADMSG: "malformed",
    errno.EFBIG: "too_large",
    errno.EINVAL: "irregular",
    errno.ELOOP: "irregular",
}
_EVENTS = {
    RankState.LATE: c.LATE_EVENT,
    RankState.MISMATCHED: c.MISMATCH_EVENT,
    RankState.STUCK: c.STUCK_EVENT,
    RankState.WAITING: c.WAIT_EVENT,
}
DumpKey = tuple[int | str, ...]
"""Directory and name of a file."""


@dataclass(frozen=True, slots=True)
class RankReport:
    """State of a rank in a process group."""

    entity: frame.Entity
    verdict: RankVerdict
    record: RankRecord | None


class FlightRecorderSource(source.Source):
    """Dumps by state, ranks by state, and events about ranks."""

    name = "flight_recorder"
    """It is read after the sources of processes and claims."""

    def __init__(
        self,
        settings: CollectiveSettings,
        places: RankPlaces,
        results: source_bases.ReportedReadings,
    ) -> None:
        self._settings = settings
        self._places = places
        self._results = results
        self._reports: tuple[RankReport, ...] = ()
        self._dumps: dict[DumpKey, tuple[JobFile, recorder.FlightRecorderDump | str]] = {}
        """Each file as read, with its content or the reason why that is not usable."""
        self._reported: set[tuple[str, ...]] = set()

    def probe(self, host: Host) -> probe_result.ProbeResult:
        """Create the columns. Raises OSError if the directory of dumps cannot be read."""
        self._list(host)
        columns = probe_result.ColumnBuilder()
        for state in c.FILE_STATES:
            columns.add(
                c.FLIGHT_RECORDER_FILES, frame.Entity(entities.FLIGHT_RECORDER_FILE, (state,))
            )
        for state in c.RANK_STATES.values():
            columns.add(c.COLLECTIVE_RANKS, frame.Entity(entities.COLLECTIVE_STATE, (state,)))
        return columns.result()

    def _list(self, host: Host) -> JobFileListing:
        answer = host.call(JOB_FILES, "list", self._settings.flight_recorder_directory)
        return msgspec.convert(answer, JobFileListing)

    def read(self, host: Host, into: row_builder.RowBuilder) -> None:
        """Read new dumps, compare the ranks of each process group, and report what is new."""
        listing = self._list(host)
        self._places.update(host)
        states = self._read_dumps(host, listing.files)
        states["excess"] += not listing.is_complete
        self._reports = tuple(islice(self._compare(), MAX_REPORTED))
        by_group = sorted(self._reports, key=lambda report: report.entity.key[:3])
        self._results.readings = {report.entity: _rank_readings(report) for report in by_group}
        by_state = Counter(report.verdict.state for report in self._reports)
        into.put_readings(0, [states[state] for state in c.FILE_STATES])
        into.put_readings(len(c.FILE_STATES), [by_state[state] for state in RankState])
        into.events = self._new_events(host)

    def _read_dumps(self, host: Host, files: Iterable[JobFile]) -> Counter[str]:
        """Read the files that are new or have changed, the newest first; return the number of files by state."""
        now = host.clock.now()
        users, before, self._dumps = self._places.users, self._dumps, {}
        states: Counter[str] = Counter()
        remaining_bytes, kept_bytes = MAX_READ_BYTES, 0
        for file in sorted(files, key=lambda file: -file.modified_ns):
            key = file.job, file.name
            age_ns = now.wall_ns - file.modified_ns
            state = self._rejection(file, age_ns, users)
            # The same inode, size and time: a dump of megabytes is not parsed again.
            if not state and key in before and before[key][0] == file:
                self._dumps[key] = before[key]
            elif not state and remaining_bytes < file.bytes:
                state = "waiting" if file.bytes <= MAX_READ_BYTES else "too_large"
            elif not state:
                remaining_bytes -= file.bytes
                self._dumps[key] = file, self._read_dump(host, file)
            if state:
                states[state] += 1
            elif not isinstance(content := self._dumps[key][1], str):
                kept_bytes += content.memory_bytes
                if kept_bytes > MAX_KEPT_BYTES:
                    self._dumps[key] = file, "excess"
        contents = (content for _, content in self._dumps.values())
        states.update(content if isinstance(content, str) else "read" for content in contents)
        return states

    def _rejection(self, file: JobFile, age_ns: int, users: set[int]) -> str:
        """Return the state of a file that is not read."""
        if not file.is_regular:
            return "irregular"
        # Any local user could write a dump that blames ranks: only those with processes on a GPU are
        # believed.
        if file.user not in users:
            return "owner"
        # A minute of the future is allowed: the directory may be on a file server with a clock of its own.
        if not -60 * SECOND_NS < age_ns < self._settings.max_age_seconds * SECOND_NS:
            return "outdated"
        return "excess" if len(self._dumps) >= MAX_DUMPS else ""

    def _read_dump(self, host: Host, file: JobFile) -> recorder.FlightRecorderDump | str:
        directory = self._settings.flight_recorder_directory
        try:
            answer = host.call(JOB_FILES, "flight_recorder", directory, file.job, file.name)
        except OSError as error:
            return _FAILURES.get(error.errno or 0, "unreadable")
        opened = msgspec.convert(answer, OpenedDump)
        # The file may have been replaced by another user's since it was listed.
        return opened.dump if opened.user == file.user else "owner"

    def _compare(self) -> Iterator[RankReport]:
        """Yield the states of the ranks of each job."""
        jobs: dict[JobKey, dict[str, dict[int, RankRecord]]] = {}
        found = sorted(self._dumps.values(), key=lambda dump: dump[0].modified_ns)
        for file, dump in found:  # of several dumps of a rank, the newest counts
            if not isinstance(dump, str):
                of_job = jobs.setdefault((file.job, file.user), {})
                for group in dump.groups:
                    of_group = of_job.setdefault(group.name, {})
                    of_group[int(file.subject)] = RankRecord(group, file.modified_ns)
        for job, groups in sorted(jobs.items()):
            yield from self._compare_job(job, groups)

    def _compare_job(
        self, job: JobKey, groups: dict[str, dict[int, RankRecord]]
    ) -> Iterator[RankReport]:
        """Yield the state of each rank of a job that has a dump, or a process on this node, in each group."""
        limit = round(self._settings.late_seconds * SECOND_NS)
        is_shared = self._places.is_shared(job)
        places = {} if is_shared else self._places.of_job(job)
        for name, records in sorted(groups.items()):
            declared = {rank for record in records.values() for rank in record.group.ranks}
            is_whole = name == rank_verdicts.WHOLE_JOB
            here = {r for r in places if r in declared or (is_whole and not declared)}
            # Dumps of two jobs in one directory have the same names: comparing them would blame ranks of the
            # other job.
            verdicts = {} if is_shared else rank_verdicts.compare_ranks(records, declared, limit)
            for rank in sorted({*records, *here}):
                verdict = verdicts.get(rank, rank_verdicts.NO_RECORD)
                collective = verdict.collective
                facts = places.get(rank, {}) | fact_readers.nonempty_facts(
                    description=next(iter(records.values())).group.description,
                    collective=collective.name if collective else "",
                    shapes=collective.shapes if collective else "",
                    types=collective.types if collective else "",
                )
                key = (job[0], str(job[1]), name, str(rank))
                entity = frame.Entity(entities.COLLECTIVE_RANK, key, facts)
                yield RankReport(entity, verdict, records.get(rank))

    def _new_events(self, host: Host) -> list[frame.Event]:
        """Return an event for each verdict that was not reported before; of a group that waits, one for all ranks."""
        now, keys = host.clock.now(), set()
        events: list[frame.Event] = []
        late = {r.entity.key[:3] for r in self._reports if r.verdict.state in _BLAMED}
        for report in self._reports:
            verdict, collective = report.verdict, report.verdict.collective
            group = report.entity.key[:3]
            if verdict.state not in _EVENTS or collective is None:
                continue
            is_blamed = verdict.state in _BLAMED
            # The late rank is the cause: the others of its group wait for it.
            if not is_blamed and group in late:
                continue
            if verdict.state is RankState.WAITING and collective.name not in COMPARED_KINDS:
                continue  # waits by design
            about = report.entity if is_blamed else frame.Entity(entities.COLLECTIVE_GROUP, group)
            key = (verdict.state.name, str(collective.sequence), *about.key)
            # Not added to the reported ones, so that it is sent with the next read.
            if key in keys or (key not in self._reported and len(events) >= MAX_EVENTS):
                continue
            keys.add(key)
            if key not in self._reported:
                facts = _event_facts(report, with_place=is_blamed)
                if verdict.state is RankState.LATE:
                    facts |= fact_readers.nonempty_facts(waits_in=self._waits_in(report))
                events.append(
                    frame.Event(_EVENTS[verdict.state], about, now.wall_ns, now.boot_ns, facts)
                )
        self._reported = keys
        return events

    def _waits_in(self, late: RankReport) -> str:
        """Return the collectives of other groups in which a late rank itself waits: then it is not the cause."""
        job, user, _, rank = late.entity.key
        return ", ".join(
            f"{other.verdict.collective.name} {other.verdict.collective.sequence} of group {other.entity.key[2]}"
            for other in self._reports
            if other.entity.key[:2] == (job, user)
            and other.entity.key[3] == rank
            and other.verdict.state in {RankState.WAITING, RankState.STUCK}
            and other.verdict.collective
        )


_BLAMED = {RankState.LATE, RankState.MISMATCHED}


def _event_facts(report: RankReport, *, with_place: bool) -> dict[str, str]:
    verdict = report.verdict
    collective, last = verdict.collective, verdict.last
    assert collective is not None  # noqa: S101 - there is one in every reported state
    rank_of_event = [] if with_place else [int(report.entity.key[-1])]
    facts = fact_readers.nonempty_facts(
        collective=collective.name,
        sequence=str(collective.sequence),
        shapes=collective.shapes,
        types=collective.types,
        stack=" < ".join(collective.stack[:MAX_STACK_FRAMES]),
        waited_seconds=str(verdict.waited_ns // SECOND_NS),
        waiting_ranks=format_ranks(sorted({*verdict.peers, *rank_of_event})),
        description=report.entity.facts.get("description", ""),
    )
    if verdict.state is RankState.LATE and last:
        facts |= fact_readers.nonempty_facts(
            last_collective=last.name,
            last_sequence=str(last.sequence),
            last_stack=" < ".join(last.stack[:MAX_STACK_FRAMES]),
        )
    names = set(c.LATE_EVENT.facts if with_place else c.HOLDER)
    place = names & report.entity.facts.keys() - facts.keys()
    return facts | {name: report.entity.facts[name] for name in place}


def format_ranks(ranks: list[int]) -> str:
    """Return ranks as ranges: `0-2 4`."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1][1:] = [rank]
        else:
            runs.append([rank])
    return " ".join("-".join(map(str, run)) for run in runs)


def _rank_readings(report: RankReport) -> tuple[reading.Reading, ...]:
    record, verdict = report.record, report.verdict
    absent = reading.Absent.UNSUPPORTED
    wait = absent if verdict.collective is None else verdict.waited_ns
    sequences = (record.group.enqueued, record.group.completed) if record else (-1, -1)
    return (
        verdict.state.value,
        wait,
        *(number if number >= 0 else absent for number in sequences),
    )
