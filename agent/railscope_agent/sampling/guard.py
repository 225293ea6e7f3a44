"""Calls of one lane: the one in progress, those about hung devices, and the failures of a probe.

A call into a faulty driver can block permanently, and a thread that is stuck in it cannot be ended. Such a call keeps its
thread, and the lane goes on with another one: until the call returns, every other call about its device fails at once with
a timeout. When it returns, its thread unwinds by `CallAbandonedError` and ends.

Limitation: a lock that a driver shares between devices. Calls about other devices then hang as well, each in a thread of
its own, up to `MAX_HUNG_CALLS`; beyond that the lane waits.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import groupby
from typing import TypeVar

from railscope.reading import Absent, is_failure
from railscope.timestamps import SECOND_NS
from railscope_agent.host import FileGroup, Host, HostWrapper, Json, NvmlError
from railscope_agent.sampling.answer_readings import reason_for
from railscope_agent.sampling.read_times import ReadTimes

MAX_HUNG_CALLS = 24
"""Maximum number of stuck threads: three for each GPU of a node with eight."""
MAX_CACHED_DEVICES = 2048
_NVML_TIMEOUT = 10
_HARMLESS = {Absent.UNSUPPORTED, Absent.NOT_DUE, Absent.GONE}
"""Reasons of a call that has answered: the device has no such thing, as a NIC without a transceiver."""
_CLASSES = {"ethtool": "net", "netlink": "net"}
"""Host interfaces whose first argument names a device that also has files."""
Answer = TypeVar("Answer")


class CallAbandonedError(BaseException):
    """Raised in a thread whose call returns after the thread was replaced: no source may catch it."""


@dataclass(frozen=True, slots=True)
class HungCall:
    """A call that has not returned, and its start on the boot clock."""

    device: str
    call: str
    since_ns: int


@dataclass(slots=True)
class HungCalls:
    """Hung calls of all lanes, by their device."""

    by_device: dict[str, HungCall] = field(default_factory=dict)
    _reported: dict[str, HungCall] = field(default_factory=dict)

    def changes(self) -> list[tuple[HungCall, bool]]:
        """Return calls that began to hang (True) or returned (False) since the last call, the returns first."""
        if not (self.by_device or self._reported):
            return []
        now, before = dict(self.by_device), self._reported
        self._reported = now
        returned = [(call, False) for device, call in before.items() if now.get(device) != call]
        return returned + [(c, True) for device, c in now.items() if before.get(device) != c]


class GuardedHost(HostWrapper):
    """Host of one lane."""

    def __init__(self, host: Host, hung: HungCalls | None = None) -> None:
        super().__init__(host)
        self.machine = host
        self.failures: dict[str, Absent] = {}
        """Devices about which a call has failed since the dictionary was replaced; "" for a call that names none."""
        self.read_times = ReadTimes()
        self._hung = hung or HungCalls()
        self._running: list[tuple[str, str, float]] = []
        """The call in progress. Removed once: by its thread when it returns, or by `abandon`."""

    @property
    def running(self) -> tuple[str, str, float] | None:
        """The call in progress, with its device and its start: another object for each call."""
        running = self._running[:]
        return running[0] if running else None

    def abandon(self, call: tuple[str, str, float]) -> bool:
        """Leave a call to its thread; False if it has returned, or too many are hung."""
        if len(self._hung.by_device) >= MAX_HUNG_CALLS:
            return False
        device, name, since = call
        since_ns = self.clock.now().boot_ns - round((time.monotonic() - since) * SECOND_NS)
        # Stored before the removal: a call that returns afterwards finds its device, and removes it.
        self._hung.by_device[device] = HungCall(device, name, since_ns)
        try:
            self._running.remove(call)
        except ValueError:
            self._hung.by_device.pop(device, None)
            return False
        self._running = []  # the stuck thread keeps the former list
        return True

    def make_call(
        self, device: str, name: str, call: Callable[..., Answer], *arguments: int | str
    ) -> Answer:
        """Make a call about a device. Raises OSError or NvmlError at once if one is hung."""
        if device in self._hung.by_device:
            self._reject(device)
        if device not in self.read_times.by_device:
            self.read_times.by_device[device] = self.clock.now().boot_ns
        running = self._running
        running.append((device, name, time.monotonic()))
        try:
            return call(*arguments)
        except (OSError, NvmlError) as error:
            is_failed = isinstance(error, NvmlError) or is_failure(error)
            if is_failed and (reason := reason_for(error)) not in _HARMLESS:
                self.failures.setdefault(device if "/" in device else "", reason)
            raise
        finally:
            try:
                running.pop()
            except IndexError:
                self._hung.by_device.pop(device, None)
                raise CallAbandonedError from None

    def _reject(self, device: str) -> None:
        hung = self._hung.by_device.get(device)
        if hung is None:
            return
        self.failures.setdefault(device, Absent.TIMEOUT)
        seconds = (self.clock.now().boot_ns - hung.since_ns) / SECOND_NS
        problem = f"{hung.call} has not returned for {seconds:.0f} s"
        if device.startswith("nvml"):
            raise NvmlError(_NVML_TIMEOUT, problem)
        raise TimeoutError(errno.ETIMEDOUT, problem)

    def read(self, path: str) -> bytes:
        """Return the content of a small file."""
        return self.make_call(device_of(path), path, self._host.read, path)

    def names(self, path: str) -> list[str]:
        """Return the entries of a directory."""
        return self.make_call(device_of(path), path, self._host.names, path)

    def resolve(self, path: str) -> str:
        """Return a path with all links followed."""
        return self.make_call(device_of(path), path, self._host.resolve, path)

    def open_file_group(self, paths: Sequence[str]) -> FileGroup:
        """Open a group of files for frequent reads."""
        return GuardedFiles(self, self._host, paths)

    def call(self, host_interface: str, function: str, *arguments: int | str) -> Json:
        """Call a function of a host interface."""
        device, name = device_of_call(host_interface, function, *arguments[:1])
        return self.make_call(device, name, self._host.call, host_interface, function, *arguments)


class GuardedFiles:
    """Open files in groups by device, so that one hung device does not delay the others."""

    def __init__(self, guard: GuardedHost, host: Host, paths: Sequence[str]) -> None:
        self._guard = guard
        self._groups: list[tuple[str, int, FileGroup]] = []
        for device, members in groupby(paths, device_of.__wrapped__):
            group = list(members)
            self._groups.append((device, len(group), host.open_file_group(group)))

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

    def texts(self) -> list[bytes | Absent]:
        """Return the content of each file, or the reason why it cannot be read."""
        contents: list[bytes | Absent] = []
        for device, count, files in self._groups:
            try:
                contents += self._guard.make_call(device, device, files.texts)
            except TimeoutError:
                contents += [Absent.TIMEOUT] * count
        return contents

    def close(self) -> None:
        """Close the open files."""
        for _, _, files in self._groups:
            files.close()


@lru_cache(MAX_CACHED_DEVICES)
def device_of_call(host_interface: str, function: str, *arguments: int | str) -> tuple[str, str]:
    """Return the device that a call is about, or the function if it names none, and the name of the call."""
    name = f"{host_interface}.{function}"
    if not arguments:
        return name, name
    if function == "rdma_statistics":
        return f"infiniband/{arguments[0]}", name
    return f"{_CLASSES.get(host_interface, host_interface)}/{arguments[0]}", name


@lru_cache(MAX_CACHED_DEVICES)
def device_of(path: str) -> str:
    """Return the device of a file as class and name; the file itself if it names none."""
    parts = path.split("/")
    if path.startswith("/sys/class/") and len(parts) > 4:  # noqa: PLR2004 - /sys/class/CLASS/NAME
        return f"{parts[3]}/{parts[4]}"
    if path.startswith("/sys/bus/") and len(parts) > 5:  # noqa: PLR2004 - /sys/bus/BUS/devices/NAME
        return f"{parts[3]}/{parts[5]}"
    if path.startswith("/sys/block/"):
        return f"block/{parts[3]}"
    if path.startswith(("/sys/devices/", "/sys/kernel/debug/", "/proc/fs/")):
        for position, part in enumerate(parts):
            # Directories of devices have a number (mc0, 0000:9d:00.0); those above them are shared.
            if any(map(str.isdigit, part)):
                return "/".join(parts[: position + 1])
    return path


def failures_of(host: Host) -> dict[str, Absent]:
    """Return the failures that a host has noted; none of a host without a guard."""
    return host.failures if isinstance(host, GuardedHost) else {}
