"""Hung calls: a call that does not return keeps its thread, and only its device becomes stale.

Each device family has its own thread: a call into a faulty driver can block permanently, and a
thread that is stuck in it cannot be ended. Waits for the thread have a deadline, and the thread is
a daemon: it never keeps the agent from stopping. The family continues with a new thread.

Limitation: a lock that the driver or the library shares between devices. NVML may hold one for all
GPUs, and the kernel holds the RTNL lock during ethtool calls. Calls about other devices then hang
as well, each in its own thread, up to `MAX_HUNG_CALLS`; beyond that a family waits.
"""

from __future__ import annotations

import errno
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import groupby
from typing import TypeVar

from railscope.reading import Absent, reason_of
from railscope.timestamps import SECOND_NS
from railscope_agent.host import FileGroup, Host, HostWrapper, Json, NvmlError
from railscope_agent.sampling import answer_rosters, answer_shapes
from railscope_agent.sampling.call_devices import (
    MAX_CACHED_DEVICES,
    device_of,
    device_of_call,
    device_of_path,
)
from railscope_agent.sampling.call_time import CallTime
from railscope_agent.sampling.read_times import ReadTimes
from railscope_agent.sampling.worker_thread import CallAbandonedError

MAX_HUNG_CALLS = 24
"""Maximum number of stuck threads: three for each GPU of a node with eight."""
_NVML_TIMEOUT = 10
"""NVML_ERROR_TIMEOUT of nvml.h."""

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class HungCall:
    """A call that has not returned, and its start on the boot clock."""

    device: str
    call: str
    since_ns: int


@dataclass(slots=True)
class HungCalls:
    """Hung calls of all families, by their device."""

    by_device: dict[str, HungCall] = field(default_factory=dict)
    _reported: dict[str, HungCall] = field(default_factory=dict)

    def changes(self) -> list[tuple[HungCall, bool]]:
        """Return calls that began to hang (True) or returned (False) since the last call."""
        # A copy: threads of reads change the table meanwhile.
        now, before = dict(self.by_device), self._reported
        self._reported = now
        # A device can hang again between two calls of this function: both changes are reported, the return
        # first.
        returned = [(call, False) for device, call in before.items() if now.get(device) != call]
        return returned + [(c, True) for device, c in now.items() if before.get(device) != c]


class GuardedHost(HostWrapper):
    """Host of one family: records the current call of its thread, and blocks calls about hung devices.

    Answers of calls are complete or fail: see agent/railscope_agent/sampling/answer_shapes.py and
    agent/railscope_agent/sampling/answer_rosters.py.

    A device with a hung call is not read again before the call has returned: until then every call about
    it fails at once with a timeout. When the call returns, its thread unwinds by `CallAbandonedError` and
    ends. In the usual case the only cost is a record of the current call of each thread.
    """

    def __init__(self, host: Host, hung: HungCalls, time: CallTime) -> None:
        super().__init__(host)
        self._hung = hung
        self._time = time
        self._rosters = answer_rosters.Rosters()
        self.read_times = ReadTimes()
        self._rejected: set[str] = set()
        """Hung devices that sources of this family requested since the last probe."""
        self._running: list[tuple[str, str, float]] = []
        """Calls in progress: at most one, of the present thread.

        Removing it decides whether a call has returned or is abandoned: the removal succeeds in one thread
        only.
        """

    @property
    def running_seconds(self) -> float:
        """Duration of the present call so far; 0 between two calls."""
        try:
            return self._time.seconds() - self._running[-1][2]
        except IndexError:
            return 0.0

    def take_returned(self) -> bool:
        """Return True once after a hung device that was requested has returned."""
        returned = {device for device in self._rejected if device not in self._hung.by_device}
        self._rejected -= returned
        return bool(returned)

    def abandon(self) -> HungCall | None:
        """Leave the present call to its thread; None if it returned or too many are hung."""
        # Each hung call costs a thread that never ends; beyond the bound the family waits for its call
        # instead.
        if len(self._hung.by_device) >= MAX_HUNG_CALLS:
            return None
        running = self._running[:]
        # The call has returned between the check of its duration and now.
        if not running:
            return None
        device, call, since = running[0]
        age_ns = round((self._time.seconds() - since) * SECOND_NS)
        hung = HungCall(device, call, self.clock.now().boot_ns - age_ns)
        # Stored before the removal: a call that returns afterwards finds its device, and removes it.
        self._hung.by_device[device] = hung
        try:
            self._running.remove(running[0])
        except ValueError:
            self._hung.by_device.pop(device, None)
            return None
        # The stuck thread keeps the former list, so its late return cannot remove a call of the new thread.
        self._running = []
        return hung

    def read(self, path: str) -> bytes:
        """Return the content of a small file."""
        return answer_shapes.well_formed_file(path, self._query(path, self._host.read))

    def names(self, path: str) -> list[str]:
        """Return the entries of a directory."""
        return self._query(path, self._host.names)

    def resolve(self, path: str) -> str:
        """Return a path with all links followed."""
        return self._query(path, self._host.resolve)

    def _query(self, path: str, call: Callable[[str], Answer]) -> Answer:
        answer_shapes.checked_path(path)
        return self.make_call(device_of(path), path, call, path)

    def open_file_group(self, paths: Sequence[str]) -> FileGroup:
        """Open a group of files for frequent reads."""
        return GuardedFiles(self, self._host, paths)

    def call(self, host_interface: str, function: str, *arguments: int | str) -> Json:
        """Return a well-formed and complete answer of a call. Raises OSError or NvmlError."""
        device, name, shape, has_roster = _describe_call(host_interface, function, arguments[:1])
        answer = self.make_call(device, name, self._host.call, host_interface, function, *arguments)
        if shape:
            answer = answer_shapes.well_formed(host_interface, function, shape, answer)
        if has_roster:
            answer = self._rosters.complete_answer(
                self, host_interface, function, arguments, answer
            )
        return answer

    def make_call(
        self, device: str, name: str, call: Callable[..., Answer], *arguments: int | str
    ) -> Answer:
        """Make a call about a device. Raises OSError or NvmlError at once if one is hung."""
        if device in self._hung.by_device:
            self._reject(device)
        if device not in self.read_times.by_device:
            self.read_times.by_device[device] = self.clock.now().boot_ns
        # Kept in a local variable: `abandon` replaces the attribute while this call runs.
        running = self._running
        running.append((device, name, self._time.seconds()))
        try:
            return call(*arguments)
        finally:
            try:
                running.pop()
            except IndexError:
                # The entry was removed by `abandon`: this thread has been replaced, and the device answers
                # again.
                self._hung.by_device.pop(device, None)
                raise CallAbandonedError from None

    def _reject(self, device: str) -> None:
        # The call may have returned since the check: then the device is called as usual.
        hung = self._hung.by_device.get(device)
        if hung is None:
            return
        self._rejected.add(device)
        seconds = (self.clock.now().boot_ns - hung.since_ns) / SECOND_NS
        problem = f"{hung.call} has not returned for {seconds:.0f} s"
        # Callers of NVML expect its error type, and map the code to the absence reason timeout.
        if device.partition("/")[0] == "nvml":
            raise NvmlError(_NVML_TIMEOUT, problem)
        raise TimeoutError(errno.ETIMEDOUT, problem)


class GuardedFiles:
    """Open files in groups by device, so that one hung device does not delay the others."""

    def __init__(self, guard: GuardedHost, host: Host, paths: Sequence[str]) -> None:
        self._guard = guard
        self._groups: list[tuple[str, int, FileGroup]] = []
        self._starts: list[int] = []
        start = 0
        # Only consecutive files form a group: the order of the files is the order of the columns.
        for device, members in groupby(paths, device_of_path):
            group = list(members)
            self._groups.append((device, len(group), host.open_file_group(group)))
            self._starts.append(start)
            start += len(group)

    def read_into(self, values: list[int], reasons: bytearray, start: int) -> None:
        """Write each file's integer, or its reason code, into consecutive columns."""
        for device, count, files in self._groups:
            try:
                self._guard.make_call(
                    device, device, partial(files.read_into, values, reasons, start)
                )
            except TimeoutError:
                values[start : start + count] = [0] * count
                reasons[start : start + count] = bytes([Absent.TIMEOUT.value]) * count
            start += count

    def text(self, index: int) -> bytes:
        """Return the content of one file."""
        group = bisect_right(self._starts, index) - 1
        device, _, files = self._groups[group]
        within = index - self._starts[group]
        content = self._guard.make_call(device, device, lambda: files.text(within))
        return answer_shapes.well_formed_file(device, content)

    def texts(self) -> list[bytes | Absent]:
        """Return the content of each file, or the reason why it cannot be read."""
        contents: list[bytes | Absent] = []
        for device, count, files in self._groups:
            try:
                contents += self._guard.make_call(device, device, files.texts)
            except TimeoutError:
                contents += [Absent.TIMEOUT] * count
        return [
            content if isinstance(content, Absent) else _well_formed_text(content)
            for content in contents
        ]

    def close(self) -> None:
        """Close the open files."""
        for _, _, files in self._groups:
            files.close()


def _well_formed_text(content: bytes) -> bytes | Absent:
    try:
        return answer_shapes.well_formed_file("", content)
    except OSError as error:
        return reason_of(error)


@lru_cache(MAX_CACHED_DEVICES)
def _describe_call(
    host_interface: str, function: str, arguments: tuple[int | str, ...]
) -> tuple[str, str, answer_shapes.Shape | None, bool]:
    """Return the device and the name of a call, the shape of its answer, and True if it lists devices."""
    name = f"{host_interface}.{function}"
    return (
        device_of_call(host_interface, function, arguments),
        name,
        answer_shapes.SHAPES.get(name),
        name in answer_rosters.ROSTERS,
    )
