"""A host that answers from a capture, at the current offset into it: by a clock that runs, or from moment to moment."""

from __future__ import annotations

import contextlib
import errno
import re
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, pairwise
from typing import Protocol

from railscope import frame, timestamps
from railscope.capture import (
    PENDING,
    SECTIONS,
    Capture,
    CaptureMetadata,
    CaptureMoment,
    CaptureTimeline,
    result,
)
from railscope_agent.host import MAX_LOG_RECORDS_PER_POLL, Clock, Json
from railscope_agent.host.file_groups import PlainFiles

KERNEL_LOG = "kernel_log.open()"
"""Key under which a capture records if the log was readable; a capture without it had a readable log."""

BATCH_FUNCTIONS = frozenset({"nvmlDeviceGetFieldValues", "nvmlGpmMetricsGet"})
"""Calls with arguments that, after the first, are separate queries.

A capture records an answer to each, so that any batch of them can be answered.
"""
_NOT_RECORDED = [3, 0]  # code NVML_ERROR_NOT_SUPPORTED (nvml.h), no value
BEFORE_START = -1
REPLAY_POLL_SECONDS = 0.02
_RECORD = re.compile(r"\A(\d+,\d+,)(\d{1,15})(?=[,;])")
"""Priority, sequence number and microseconds since boot (Documentation/ABI/testing/dev-kmsg); no time of a damaged record."""
_NIC_STATISTICS = re.compile(r"ethtool\.statistics\(")
_JOB_FILES = "job_files."
"""Calls about jobs: each part of a log has a key of its own, and none is a device."""


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


@dataclass(slots=True)
class RecordedClock:
    """Clock of the recorded node; it advances only when a caller sleeps."""

    about: CaptureMetadata
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
        # A source may ask for a time that has passed: the clocks of a node never go back.
        self.offset_ns = max(self.offset_ns, offset_ns)


class ReplayState(Protocol):
    """State of a recorded or simulated node at an offset. Thread-safe."""

    def result_at(self, section: str, key: str, offset_ns: int) -> Json:
        """Return the last value at or before an offset. Raises KeyError if there is none."""
        ...

    def log_between(self, after_ns: int, until_ns: int) -> list[str]:
        """Return kernel log records in (after, until]."""
        ...


class MomentAnswers:
    """State of a node whose moments come one after the other; earlier ones are not kept."""

    def __init__(self) -> None:
        self._state: dict[str, dict[str, Json]] = {section: {} for section in SECTIONS}
        self._log = deque[str](maxlen=MAX_LOG_RECORDS_PER_POLL)

    def advance(self, moment: CaptureMoment) -> bool:
        """Apply the differences of a moment; return True if devices may have come or gone.

        Then a directory or a link has changed, or there is an answer to a new query.
        """
        has_new_queries = bool(moment.names or moment.links)
        for section, answers in self._state.items():
            before = len(answers)
            answers.update(getattr(moment, section))
            # Dictionaries keep the order of insertion, so the new keys are the last ones.
            new = islice(reversed(answers), len(answers) - before)
            has_new_queries |= any(not key.startswith(_JOB_FILES) for key in new)
        self._log += moment.log
        return has_new_queries

    def result_at(self, section: str, key: str, _offset_ns: int) -> Json:
        """Return the present value. Raises KeyError if there is none."""
        return self._state[section][key]

    def log_between(self, _after_ns: int, _until_ns: int) -> list[str]:
        """Return the kernel log records since the last call."""
        records = [*self._log]
        self._log.clear()
        return records


class RecordedHost:
    """Answers of the recorded node at the current offset into the capture.

    `offset_ns` returns the current offset; when it decreases, the recording has restarted, and
    counters decrease as after a reboot. What was never queried while recording does not exist. A
    call that was still pending in the recording blocks here on the caller's thread, until the
    recording reaches its answer or restarts; without `pause` it fails with a timeout.
    """

    def __init__(
        self,
        capture: Capture,
        clock: Clock,
        offset_ns: Callable[[], int],
        timeline: ReplayState | None = None,
        pause: Callable[[float], None] | None = time.sleep,
    ) -> None:
        self._capture = capture
        self._pause = pause
        self.clock = clock
        self._offset_ns = offset_ns
        self._timeline = timeline or CaptureTimeline(capture.moments)

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
        text: str = self._stored_answer("files", path)
        return text.encode(errors="surrogateescape")

    def names(self, path: str) -> list[str]:
        """Entries of a directory at the current offset."""
        entries: list[str] = self._stored_answer("names", path)
        return entries

    def resolve(self, path: str) -> str:
        """Target of a path at the current offset."""
        target: str = self._stored_answer("links", path)
        return target

    def open_file_group(self, paths: Sequence[str]) -> PlainFiles:
        """Open a group of counter files."""
        return PlainFiles(self.read, paths)

    def call(self, host_interface: str, function: str, *arguments: int | str) -> Json:
        """Result of a call at the current offset."""
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
        while True:
            try:
                stored = self._timeline.result_at(section, key, self._offset_ns())
            except KeyError:
                raise OSError(errno.ENOENT, f"{key} is not in the capture") from None
            # Failures and pending calls are dictionaries: other answers need no comparison.
            if type(stored) is not dict:
                return stored
            if stored != PENDING:
                return result(stored)
            if self._pause is None:
                raise TimeoutError(errno.ETIMEDOUT, f"{key} had not returned")
            self._pause(REPLAY_POLL_SECONDS)  # a thread is not notified of the passage of time


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
        # The recording has restarted.
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
