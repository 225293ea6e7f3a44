"""A machine that answers from a capture."""

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

from agent.host import Clock, Json
from agent.host.files import PlainFiles
from railscope.capture import PENDING, Capture, Timeline, result

BEFORE_START = -1
LOOK_AGAIN_SECONDS = 0.02
_NS_PER_US = 1000
_RECORD = re.compile(r"\A(\d+,\d+,)(\d+)(?=[,;])")
"""Priority, sequence number and microseconds since boot (Documentation/ABI/testing/dev-kmsg)."""
_OF_A_CARD = re.compile(r"ethtool\.statistics\(")
KERNEL_LOG = "kernel_log.open()"
"""Where a capture keeps whether the log could be read; one that says nothing had one."""


Answer = TypeVar("Answer")

BATCHES = frozenset({"nvmlDeviceGetFieldValues", "nvmlGpmMetricsGet"})
"""Calls whose arguments, but for the first, are questions of their own.

A capture keeps an answer for each, so that it can answer any batch of them.
"""
_NOT_ASKED = [3, 0]


def call_key(seam: str, function: str, arguments: Sequence[int | str]) -> str:
    """The name under which a capture keeps the result of a call."""
    return f"{seam}.{function}({','.join(map(str, arguments))})"


def batch(answer: Callable[[int | str], Json], entries: Sequence[int | str]) -> Json:
    """The answer to a batch, made of the answers to its entries: their values, and their codes.

    An entry that nobody asked while recording is not supported; where that is all of them, neither
    is the call. A failure of the call as a whole stands for every entry, and is raised.
    """
    answers: list[Json] = []
    missing: FileNotFoundError | None = None
    for entry in entries:
        try:
            answers.append(answer(entry))
        except FileNotFoundError as error:
            answers.append(_NOT_ASKED)
            missing = error
    if missing and all(pair is _NOT_ASKED for pair in answers):
        raise missing
    return [[value for _, value in answers], [code for code, _ in answers]]


class Present(Protocol):
    """The state of a recorded or simulated machine at an offset. Safe to use from many threads."""

    def look(self, section: str, key: str, offset_ns: int) -> Json:
        """Return what is known last at or before an offset; raises KeyError where nothing is."""
        ...

    def log_between(self, after_ns: int, until_ns: int) -> list[str]:
        """Return kernel log records in (after, until]."""
        ...


class ReplayCost:
    """Processor time and memory that answering from a capture takes, by the thread that asks."""

    def __init__(self) -> None:
        self._cpu_ns: dict[int, int] = {}
        self.resident_bytes = 0

    def charge(self, answer: Callable[[], Answer]) -> Answer:
        """Get an answer, and charge its processor time to the replay."""
        began_ns, thread = time.thread_time_ns(), threading.get_ident()
        try:
            return answer()
        finally:
            spent_ns = time.thread_time_ns() - began_ns
            self._cpu_ns[thread] = self._cpu_ns.get(thread, 0) + spent_ns

    def thread_cpu_ns(self) -> int:
        """Processor time in the calling thread."""
        return self._cpu_ns.get(threading.get_ident(), 0)

    def cpu_ns(self) -> int:
        """Processor time in all threads."""
        return sum(list(self._cpu_ns.values()))


class RecordedHost:
    """Answers as the recorded machine did at the present offset into the capture.

    `offset_ns` says how far into the capture we are; when it falls, the recording has started over,
    and counters fall back as after a reboot. What was never asked while recording does not exist.
    What had no answer yet has none here: whoever asks is kept waiting on their own thread, until the
    recording has got to the answer or has started over.
    """

    def __init__(
        self,
        capture: Capture,
        clock: Clock,
        offset_ns: Callable[[], int],
        timeline: Present | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._capture = capture
        self._pause = pause
        self._clock = clock
        self._offset_ns = offset_ns
        self._timeline = timeline or Timeline(capture.moments)
        self.cost = ReplayCost()

    @property
    def clock(self) -> Clock:
        """The clock handed in."""
        return self._clock

    @property
    def node(self) -> str:
        """The name of the recorded machine."""
        return self._capture.about.node

    @property
    def boot_id(self) -> str:
        """The boot id of the recorded machine."""
        return self._capture.about.boot_id

    def read(self, path: str) -> bytes:
        """The content of a file at the present offset."""
        text: str = self.cost.charge(lambda: self._look("files", path))
        return text.encode(errors="surrogateescape")

    def names(self, path: str) -> list[str]:
        """The entries of a directory at the present offset."""
        entries: list[str] = self.cost.charge(lambda: self._look("names", path))
        return entries

    def resolve(self, path: str) -> str:
        """What a path led to at the present offset."""
        target: str = self.cost.charge(lambda: self._look("links", path))
        return target

    def keep(self, paths: Sequence[str]) -> PlainFiles:
        """A group of counter files."""
        return PlainFiles(self.read, paths)

    def call(self, seam: str, function: str, *arguments: int | str) -> Json:
        """What a call returned at the present offset."""
        return self.cost.charge(lambda: self._called(seam, function, arguments))

    def _called(self, seam: str, function: str, arguments: Sequence[int | str]) -> Json:
        if function in BATCHES:
            device, *entries = arguments
            return batch(lambda entry: self._answer(seam, function, (device, entry)), entries)
        return self._answer(seam, function, arguments)

    def _answer(self, seam: str, function: str, arguments: Sequence[int | str]) -> Json:
        return self._look("calls", call_key(seam, function, arguments))

    @cached_property
    def grain_ns(self) -> int:
        """The usual time between two answers about the statistics of one card, the busiest one's."""
        answered: dict[str, list[int]] = {}
        for moment in self._capture.moments:
            for key in filter(_OF_A_CARD.match, moment.calls):
                answered.setdefault(key, []).append(moment.offset_ns)
        apart = (
            sorted(later - earlier for earlier, later in pairwise(offsets))
            for offsets in answered.values()
        )
        return min((gaps[len(gaps) // 2] for gaps in apart if gaps), default=0)

    def kernel_log(self) -> RecordedKernelLog:
        """The recorded kernel log. Raises OSError where it could not be read then either."""
        with contextlib.suppress(KeyError):
            result(self._timeline.look("calls", KERNEL_LOG, self._offset_ns()))
        return RecordedKernelLog(self._timeline, self._offset_ns, self._shift_ns)

    def _shift_ns(self) -> int:
        """How far the recorded machine's boot clock must be put forward to agree with ours."""
        started_ns = self._clock.now().boot_ns - self._offset_ns()
        return started_ns - self._capture.about.started_boot_ns

    def _look(self, section: str, key: str) -> Json:
        try:
            while (stored := self._timeline.look(section, key, self._offset_ns())) == PENDING:
                self._pause(LOOK_AGAIN_SECONDS)  # nothing tells a thread that time has passed
        except KeyError:
            raise OSError(errno.ENOENT, f"{key} is not in the capture") from None
        return result(stored)


class RecordedKernelLog:
    """The kernel log of a recorded machine, as if it were written now.

    Records carry the time since boot; it is put on the present clock, so that what the log says and
    what was read beside it are of one time.
    """

    def __init__(
        self, timeline: Present, offset_ns: Callable[[], int], shift_ns: Callable[[], int]
    ) -> None:
        self._timeline = timeline
        self._offset_ns = offset_ns
        self._shift_ns = shift_ns
        self._seen_until = BEFORE_START

    def poll(self) -> list[str]:
        """Records since the last call; all over again when the recording starts over."""
        now = self._offset_ns()
        if now < self._seen_until:
            self._seen_until = BEFORE_START
        records = self._timeline.log_between(self._seen_until, now)
        self._seen_until = now
        shift_us = self._shift_ns() // _NS_PER_US
        return [_RECORD.sub(lambda match: _later(match, shift_us), record) for record in records]

    def close(self) -> None:
        """Nothing is held open."""


def _later(record: re.Match[str], shift_us: int) -> str:
    # A machine that had been up for longer than ours has records from before our boot.
    return f"{record[1]}{max(int(record[2]) + shift_us, 0)}"
