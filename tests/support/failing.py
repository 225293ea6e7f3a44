"""A whole simulated node with calls that fail, hang and recover on command of a test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from support.clock import ManualClock
from support.tree import AROUND

from railscope.capture import Capture
from railscope_agent.host import Json
from railscope_agent.host.file_groups import PlainFiles
from railscope_agent.host.live_host import LiveHost
from railscope_agent.host.recorded_host import RecordedHost, RecordedKernelLog
from railscope_simulator import NodeSpec, simulate

SMART = {
    "critical_warning": 0, "temperature_kelvins": 310, "spare_percent": 100,
    "spare_limit_percent": 10, "used_percent": 1, "data_units_read": 1, "data_units_written": 1,
    "host_reads": 1, "host_writes": 1, "busy_minutes": 1, "power_cycles": 1, "power_on_hours": 1,
    "unsafe_shutdowns": 0, "media_errors": 0, "logged_errors": 0, "warm_minutes": 0,
    "hot_minutes": 0,
}  # fmt: skip
HOLD_SECONDS = 60


@dataclass(frozen=True)
class HostCall:
    """A call to the host: its host interface ("file" for files) and the names in it."""

    host_interface: str
    key: str
    names: tuple[str, ...]


@dataclass
class FailingHost:
    """Answers as a simulated node with filesystems, drives and sensors around its GPUs.

    A call for which `fails` returns an error fails with it; a call that `hangs` selects does not
    return before `release` is called; `answers` changes an answer.
    """

    capture: Capture
    root: Path
    clock: ManualClock = field(default_factory=ManualClock)
    asked: dict[str, HostCall] = field(default_factory=dict)
    fails: Callable[[HostCall], Exception | None] = lambda _: None
    hangs: Callable[[HostCall], bool] = lambda _: False
    answers: Callable[[HostCall, Any], Any] = lambda _, answer: answer
    directories: frozenset[str] = frozenset()
    boot_id: str = "boot-1"
    statistics_period_ns: int = 0

    def __post_init__(self) -> None:
        end_ns = self.capture.about.duration_ns
        self._simulated = RecordedHost(self.capture, self.clock, lambda: end_ns)
        self._around = LiveHost(self.root)
        self._released = threading.Event()

    def release(self) -> None:
        """Let hung calls return, and let no others hang."""
        self.hangs = lambda _: False
        self._released.set()
        self._released = threading.Event()

    def read(self, path: str) -> bytes:
        asked = self._ask("file", path, path.split("/"))
        return self.answers(asked, self._either(lambda host: host.read(path)))

    def names(self, path: str) -> list[str]:
        asked = self._ask("file", path, path.split("/"))
        found: set[str] = set()
        for host in (self._simulated, self._around):
            try:
                found.update(host.names(path))
            except FileNotFoundError:
                continue
        if not found and path in self.directories:
            return self.answers(asked, [])
        return self.answers(asked, sorted(found) or self._around.names(path))

    def resolve(self, path: str) -> str:
        self._ask("file", path, path.split("/"))
        return self._either(lambda host: host.resolve(path))

    def open_file_group(self, paths: Sequence[str]) -> PlainFiles:
        return PlainFiles(self.read, paths)

    def call(self, host_interface: str, function: str, *arguments: int | str) -> Json:
        names = [str(argument) for argument in arguments[:1]]
        asked = self._ask(host_interface, f"{host_interface}.{function}{arguments}", names)
        if host_interface == "nvme":
            return self.answers(asked, SMART)
        return self.answers(asked, self._simulated.call(host_interface, function, *arguments))

    def kernel_log(self) -> RecordedKernelLog:
        return self._simulated.kernel_log()

    def _either(self, ask: Callable[[Any], Any]) -> Any:
        try:
            return ask(self._simulated)
        except FileNotFoundError:
            return ask(self._around)

    def _ask(self, host_interface: str, key: str, names: Sequence[str]) -> HostCall:
        asked = self.asked.setdefault(key, HostCall(host_interface, key, tuple(names)))
        if self.hangs(asked):
            released = self._released
            assert released.wait(HOLD_SECONDS), "the test forgot to release the call"
        if error := self.fails(asked):
            raise error
        return asked


@cache
def _capture(mode: str, nic: str) -> Capture:
    return simulate(NodeSpec("node-1", gpus=2, mode=mode, nic=nic), 20, 10)


@cache
def _directories(mode: str, nic: str) -> frozenset[str]:
    """Return the directories above recorded paths: a real system has those that were not listed, too."""
    paths = {
        path
        for moment in _capture(mode, nic).moments
        for section in (moment.files, moment.names, moment.links)
        for path in section
    }
    return frozenset(str(parent) for path in paths for parent in Path(path).parents)


def failing_host(root: Path, mode: str = "whole", nic: str = "cx7") -> FailingHost:
    """Return a healthy node, with files of a tree beside its GPUs and rails."""
    for path, text in AROUND.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return FailingHost(_capture(mode, nic), root, directories=_directories(mode, nic))
