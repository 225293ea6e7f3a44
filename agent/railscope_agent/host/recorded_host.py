"""A host that answers from a capture, at the current offset into it."""

from __future__ import annotations

import contextlib
import errno
import re
import threading
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Protocol, TypeVar

from railscope import timestamps
from railscope.capture import PENDING, Capture, CaptureTimeline, result
from railscope_agent.host import Clock, Json
from railscope_agent.host.file_groups import PlainFiles
from railscope_agent.host.recorded_calls import (
    BATCH_FUNCTIONS,
    KERNEL_LOG,
    assemble_batch,
    call_key,
)

BEFORE_START = -1
REPLAY_POLL_SECONDS = 0.02
_RECORD = re.compile(r"\A(\d+,\d+,)(\d{1,15})(?=[,;])")
"""Priority, sequence number and microseconds since boot (Documentation/ABI/testing/dev-kmsg); no time of a damaged record."""
_NIC_STATISTICS = re.compile(r"ethtool\.statistics\(")


Answer = TypeVar("Answer")


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
            # By thread: each one writes its own entry only, so no lock is needed.
            self._cpu_ns[thread] = self._cpu_ns.get(thread, 0) + spent_ns

    def thread_cpu_ns(self) -> int:
        """CPU time in the calling thread."""
        return self._cpu_ns.get(threading.get_ident(), 0)

    def cpu_ns(self) -> int:
        """CPU time in all threads."""
        # A copy: threads add entries meanwhile.
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
