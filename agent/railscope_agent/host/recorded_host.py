"""A host that answers from a capture."""

from __future__ import annotations

import contextlib
import errno
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import compress, islice, pairwise
from operator import is_not
from typing import Protocol, TypeVar

from railscope import capture as capture_format, frame, timestamps
from railscope.capture import PENDING, Capture, CaptureTimeline, result
from railscope_agent.host import Clock, Json
from railscope_agent.host.files import PlainFiles

BEFORE_START = -1
REPLAY_POLL_SECONDS = 0.02
_RECORD = re.compile(r"\A(\d+,\d+,)(\d{1,15})(?=[,;])")
"""Priority, sequence number and microseconds since boot (Documentation/ABI/testing/dev-kmsg); no time of a damaged record."""
_NIC_STATISTICS = re.compile(r"ethtool\.statistics\(")
KERNEL_LOG = "kernel_log.open()"
"""Key under which a capture records if the log was readable; a capture without it had a readable log."""


@dataclass(slots=True)
class RecordedClock:
    """Clock of the recorded node; it advances only when a caller sleeps."""

    about: capture_format.CaptureMetadata
    offset_ns: int = 0
    """Offset into the capture."""
    deviation_ns: int = 0
    """Deviation of the wall clock."""

    def now(self) -> frame.NodeTimestamp:
        """Return wall and boot clock of the recorded node."""
        wall_ns = self.about.started_wall_ns + self.offset_ns + self.deviation_ns
        return frame.NodeTimestamp(wall_ns, self.about.started_boot_ns + self.offset_ns)

    async def sleep_until(self, boot_ns: int) -> None:
        """Advance to a time without waiting."""
        self.go_to(boot_ns - self.about.started_boot_ns)

    @property
    def is_running(self) -> bool:
        """False: time does not pass by itself."""
        return False

    def go_to(self, offset_ns: int) -> None:
        """Advance to an offset; never back."""
        self.offset_ns = max(self.offset_ns, offset_ns)


Answer = TypeVar("Answer")

BATCH_FUNCTIONS = frozenset({"nvmlDeviceGetFieldValues", "nvmlGpmMetricsGet"})
"""Calls with arguments that, after the first, are separate queries.

A capture records an answer to each, so that any batch of them can be answered.
"""
_NOT_RECORDED = [3, 0]
MAX_CACHED_KEYS = 1 << 14
"""More than the calls of a node in one sample."""


def call_key(host_interface: str, function: str, arguments: Sequence[int | str]) -> str:
    """Key under which a capture records the result of a call."""
    return f"{host_interface}.{function}({','.join(map(str, arguments))})"


def assemble_batch(answer: Callable[[int | str], Json], entries: Sequence[int | str]) -> Json:
    """Answer to a batch, assembled from the answers to its entries: their values, and their codes.

    An entry that was never queried while recording is unsupported; if that is true of all entries,
    so is the call. A failure of the call as a whole is recorded for every entry, and is raised.
    """
    answers: list[Json] = []
    missing: FileNotFoundError | None = None
    for entry in entries:
        try:
            answers.append(answer(entry))
        except FileNotFoundError as error:
            answers.append(_NOT_RECORDED)
            missing = error
    if missing and all(pair is _NOT_RECORDED for pair in answers):
        raise missing
    return [[value for _, value in answers], [code for code, _ in answers]]


class ReplayState(Protocol):
    """State of a recorded or simulated node at an offset. Thread-safe."""

    def result_at(self, section: str, key: str, offset_ns: int) -> Json:
        """Return the last value at or before an offset. Raises KeyError if there is none."""
        ...

    def log_between(self, after_ns: int, until_ns: int) -> list[str]:
        """Return kernel log records in (after, until]."""
        ...


class ReplayCost:
    """CPU time and memory used for answering from a capture, by calling thread."""

    def __init__(self) -> None:
        self._cpu_ns: dict[int, int] = {}
        self.resident_bytes = 0

    def charge(self, answer: Callable[[], Answer]) -> Answer:
        """Get an answer, and charge its CPU time to the replay."""
        began_ns, thread = time.thread_time_ns(), threading.get_ident()
        try:
            return answer()
        finally:
            spent_ns = time.thread_time_ns() - began_ns
            self._cpu_ns[thread] = self._cpu_ns.get(thread, 0) + spent_ns

    def thread_cpu_ns(self) -> int:
        """CPU time in the calling thread."""
        return self._cpu_ns.get(threading.get_ident(), 0)

    def cpu_ns(self) -> int:
        """CPU time in all threads."""
        return sum(list(self._cpu_ns.values()))


class RecordedHost:
    """Answers of the recorded node at the current offset into the capture.

    `offset_ns` returns the current offset; when it decreases, the recording has restarted, and
    counters decrease as after a reboot. What was never queried while recording does not exist. A
    call that was still pending in the recording blocks here on the caller's thread, until the
    recording reaches its answer or restarts.
    """

    def __init__(
        self,
        capture: Capture,
        clock: Clock,
        offset_ns: Callable[[], int],
        timeline: ReplayState | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._capture = capture
        self._pause = pause
        self.clock = clock
        self._offset_ns = offset_ns
        self._timeline = timeline or CaptureTimeline(capture.moments)
        self.cost = ReplayCost()

    @property
    def node(self) -> str:
        """Name of the recorded node."""
        return self._capture.about.node

    @property
    def boot_id(self) -> str:
        """Boot ID of the recorded node."""
        return self._capture.about.boot_id

    def read(self, path: str) -> bytes:
        """Content of a file at the current offset."""
        text: str = self.cost.charge(lambda: self._stored_answer("files", path))
        return text.encode(errors="surrogateescape")

    def names(self, path: str) -> list[str]:
        """Entries of a directory at the current offset."""
        entries: list[str] = self.cost.charge(lambda: self._stored_answer("names", path))
        return entries

    def resolve(self, path: str) -> str:
        """Target of a path at the current offset."""
        target: str = self.cost.charge(lambda: self._stored_answer("links", path))
        return target

    def open_file_group(self, paths: Sequence[str]) -> PlainFiles:
        """Open a group of counter files."""
        return PlainFiles(self.read, paths)

    def call(self, host_interface: str, function: str, *arguments: int | str) -> Json:
        """Result of a call at the current offset."""
        return self.cost.charge(lambda: self._answer_call(host_interface, function, arguments))

    def _answer_call(
        self, host_interface: str, function: str, arguments: Sequence[int | str]
    ) -> Json:
        if function in BATCH_FUNCTIONS:
            device, *entries = arguments
            return assemble_batch(
                lambda entry: self._answer(host_interface, function, (device, entry)), entries
            )
        return self._answer(host_interface, function, arguments)

    def _answer(self, host_interface: str, function: str, arguments: Sequence[int | str]) -> Json:
        return self._stored_answer("calls", call_key(host_interface, function, arguments))

    @cached_property
    def statistics_period_ns(self) -> int:
        """Median time between two statistics answers of one NIC: the shortest of all NICs."""
        answered: dict[str, list[int]] = {}
        for moment in self._capture.moments:
            for key in filter(_NIC_STATISTICS.match, moment.calls):
                answered.setdefault(key, []).append(moment.offset_ns)
        apart = (
            sorted(later - earlier for earlier, later in pairwise(offsets))
            for offsets in answered.values()
        )
        return min((gaps[len(gaps) // 2] for gaps in apart if gaps), default=0)

    def kernel_log(self) -> RecordedKernelLog:
        """The recorded kernel log. Raises OSError if it could not be read during the recording."""
        with contextlib.suppress(KeyError):
            result(self._timeline.result_at("calls", KERNEL_LOG, self._offset_ns()))
        return RecordedKernelLog(self._timeline, self._offset_ns, self._shift_ns)

    def _shift_ns(self) -> int:
        """Offset to add to the recorded node's boot clock to align it with the current one."""
        started_ns = self.clock.now().boot_ns - self._offset_ns()
        return started_ns - self._capture.about.started_boot_ns

    def _stored_answer(self, section: str, key: str) -> Json:
        try:
            while (stored := self._timeline.result_at(section, key, self._offset_ns())) == PENDING:
                self._pause(REPLAY_POLL_SECONDS)  # a thread is not notified of the passage of time
        except KeyError:
            raise OSError(errno.ENOENT, f"{key} is not in the capture") from None
        return result(stored)


class RecordedKernelLog:
    """Kernel log of a recorded node, as if it were written now.

    Records contain the time since boot; it is shifted to the current clock, so that the log and the
    samples read at the same offset have consistent times.
    """

    def __init__(
        self, timeline: ReplayState, offset_ns: Callable[[], int], shift_ns: Callable[[], int]
    ) -> None:
        self._timeline = timeline
        self._offset_ns = offset_ns
        self._shift_ns = shift_ns
        self._seen_until = BEFORE_START

    def poll(self) -> list[str]:
        """Records since the last call; all of them again after the recording restarts."""
        now = self._offset_ns()
        if now < self._seen_until:
            self._seen_until = BEFORE_START
        records = self._timeline.log_between(self._seen_until, now)
        self._seen_until = now
        shift_us = self._shift_ns() // timestamps.MICROSECOND_NS
        return [
            _RECORD.sub(lambda match: _shift_record(match, shift_us), record) for record in records
        ]

    def close(self) -> None:
        """Do nothing: no file is held open."""


def _shift_record(record: re.Match[str], shift_us: int) -> str:
    # A recorded node with a longer uptime than this one has records from before this boot.
    return f"{record[1]}{max(int(record[2]) + shift_us, 0)}"


class SteppedHost:
    """Answers of a recorded node at one moment after another; earlier moments are not kept.

    Nothing waits, and its clock is that of the recording: the log and the samples have their recorded times.
    A call that was still pending in the recording fails with a timeout.
    """

    statistics_period_ns = 0

    def __init__(self, about: capture_format.CaptureMetadata) -> None:
        self.boot_id = about.boot_id
        self.clock = RecordedClock(about)
        self._state: dict[str, dict[str, Json]] = {
            section: {} for section in capture_format.SECTIONS
        }
        self._settings: set[str] = set()
        """Keys of the queries of settings so far."""
        self._log = SteppedKernelLog()
        self.used: set[str] = set()
        """Keys of the queries since the set was cleared."""

    def advance(self, moment: capture_format.CaptureMoment) -> bool:
        """Apply the differences of a moment; return True if devices may have come or gone.

        Then a directory or a link has changed, or there is an answer to a new query.
        """
        self.clock.go_to(moment.offset_ns)
        has_new_queries = bool(moment.names or moment.links)
        for section, answers in self._state.items():
            before = len(answers)
            answers.update(getattr(moment, section))
            new = tuple(islice(reversed(answers), len(answers) - before))
            has_new_queries |= any(not key.startswith(_JOB_FILES) for key in new)
            self._settings.update(key for key in new if key.startswith(_SETTINGS))
        self._log.records += moment.log
        return has_new_queries

    def changed_keys(self, moment: capture_format.CaptureMoment) -> set[str]:
        """Return the keys of the files and calls that a moment changes, other than counts in settings."""
        before = self._state["calls"]
        same = {
            key
            for key in self._settings & moment.calls.keys()
            if _without_counts(moment.calls[key]) == _without_counts(before[key])
        }
        return (moment.calls.keys() | moment.files.keys()) - same

    def read(self, path: str) -> bytes:
        """Content of a file."""
        text: str = self._stored_answer("files", path)
        return text.encode(errors="surrogateescape")

    def names(self, path: str) -> list[str]:
        """Entries of a directory."""
        entries: list[str] = self._stored_answer("names", path)
        return entries

    def resolve(self, path: str) -> str:
        """Target of a path."""
        target: str = self._stored_answer("links", path)
        return target

    def open_file_group(self, paths: Sequence[str]) -> SteppedFiles:
        """Open a group of counter files."""
        return SteppedFiles(self, paths, self._state["files"])

    def call(self, host_interface: str, function: str, *arguments: int | str) -> Json:
        """Result of a call."""
        if function not in BATCH_FUNCTIONS:
            key = _cached_call_key(host_interface, function, arguments)
            return self._stored_answer("calls", key)
        keys = _entry_keys(host_interface, function, arguments)
        self.used.update(keys)
        pairs: list[Json] = list(map(self._state["calls"].get, keys))
        if set(map(type, pairs)) == {list}:
            return [[value for _, value in pairs], [code for code, _ in pairs]]
        return assemble_batch(lambda key: self._stored_answer("calls", str(key)), keys)

    def _stored_answer(self, section: str, key: str) -> Json:
        self.used.add(key)
        try:
            stored = self._state[section][key]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, f"{key} is not in the capture") from None
        if type(stored) is not dict:
            return stored
        if stored == PENDING:
            raise TimeoutError(errno.ETIMEDOUT, f"{key} had not returned")
        return result(stored)

    def kernel_log(self) -> SteppedKernelLog:
        """The recorded kernel log. Raises OSError if it could not be read during the recording."""
        result(self._state["calls"].get(KERNEL_LOG))
        return self._log


_SETTINGS = ("netlink.dcb(", "netlink.fec(", "netlink.pause(")
_JOB_FILES = ("job_files.", "worker_server.")
"""Calls about jobs: each part of a log and each server has a key of its own, and none is a device."""
_COUNTS = {"statistics", "requests", "indications"}
"""Members of these answers about settings that are counters."""


def _without_counts(answer: Json) -> Json:
    if type(answer) is not dict:
        return answer
    return {key: _without_counts(part) for key, part in answer.items() if key not in _COUNTS}


_cached_call_key = lru_cache(MAX_CACHED_KEYS)(call_key)


@lru_cache(MAX_CACHED_KEYS)
def _entry_keys(
    host_interface: str, function: str, arguments: tuple[int | str, ...]
) -> tuple[str, ...]:
    device, *entries = arguments
    return tuple(call_key(host_interface, function, (device, entry)) for entry in entries)


class SteppedFiles(PlainFiles):
    """Files of a recorded node: their integers are parsed when their text has changed."""

    def __init__(self, host: SteppedHost, paths: Sequence[str], texts: dict[str, Json]) -> None:
        super().__init__(host.read, paths)
        self._host, self._stored, self._last = host, texts, [object()] * len(paths)
        self._values, self._reasons = [0] * len(paths), bytearray(len(paths))

    def read_into(self, values: list[int], reasons: bytearray, start: int) -> None:
        """Write the integers of all files; one that did not change has the same text object."""
        self._host.used.update(self._paths)
        texts = list(map(self._stored.get, self._paths))
        for index in compress(range(len(texts)), map(is_not, texts, self._last)):
            self.read_one(index, self._values, self._reasons, index)
        self._last = texts
        values[start : start + len(texts)] = self._values
        reasons[start : start + len(texts)] = self._reasons


class SteppedKernelLog:
    """Kernel log of a recorded node."""

    def __init__(self) -> None:
        self.records: list[str] = []
        """Records that were not polled yet."""

    def poll(self) -> list[str]:
        """Records since the last call."""
        records, self.records = self.records, []
        return records

    def close(self) -> None:
        """Do nothing: no file is held open."""
