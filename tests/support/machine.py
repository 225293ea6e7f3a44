"""A host made of dictionaries."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Sequence
from typing import Any

from support.clock import ManualClock

from railscope_agent.host import Json, NvmlError
from railscope_agent.host.file_groups import PlainFiles
from railscope_agent.host.recorded_host import BATCH_FUNCTIONS, assemble_batch, call_key

DENIED = PermissionError(errno.EACCES, "Permission denied")
NO_DEVICE = OSError(errno.ENODEV, "No such device")
_UNKNOWN: dict[str, Any] = {
    "nvml": NvmlError(3, "Not Supported"),
    "ethtool": OSError(errno.EOPNOTSUPP, "Operation not supported"),
    "netlink": OSError(errno.EOPNOTSUPP, "Operation not supported"),
    "nvme": OSError(errno.EOPNOTSUPP, "Operation not supported"),
    "psutil": FileNotFoundError(errno.ENOENT, "no such file of /proc"),
    "lldp": {},
    "kubelet": FileNotFoundError(errno.ENOENT, "no kubelet.sock"),
    "job_files": FileNotFoundError(errno.ENOENT, "no directory of dumps"),
    "owner": FileNotFoundError(errno.ENOENT, "no such process or file"),
    "textfile": FileNotFoundError(errno.ENOENT, "no such file or directory"),
}


class FakeHost:
    """A host with files, links, calls and kernel log set by a test.

    An exception in place of an answer is raised, a function is called. `asked` counts calls.
    """

    def __init__(self, clock: ManualClock | None = None, boot_id: str = "boot-1") -> None:
        self.clock = clock or ManualClock()
        self.boot_id = boot_id
        self.files: dict[str, Any] = {}
        self.links: dict[str, str] = {}
        self.calls: dict[str, Any] = {"nvml.nvmlDeviceGetCount()": NvmlError(12, "no library")}
        self.asked: Counter[str] = Counter()
        self.log = FakeLog()

    def read(self, path: str) -> bytes:
        content = _answer(self.files.get(self._real(path), _missing(path)))
        return content.encode() if isinstance(content, str) else bytes(content)

    def names(self, path: str) -> list[str]:
        directory = self._real(path) + "/"
        inside = [known[len(directory) :] for known in self._known() if known.startswith(directory)]
        if not inside:
            raise _missing(path)
        return sorted({rest.split("/", 1)[0] for rest in inside})

    def resolve(self, path: str) -> str:
        real = self._real(path)
        if not any(known == real or known.startswith(real + "/") for known in self._known()):
            raise _missing(path)
        return real

    def open_file_group(self, paths: Sequence[str]) -> PlainFiles:
        return PlainFiles(self.read, paths)

    def call(self, host_interface: str, function: str, *arguments: int | str) -> Json:
        if function not in BATCH_FUNCTIONS:
            return self._one(host_interface, function, arguments)
        device, *entries = arguments
        return assemble_batch(
            lambda entry: self._entry(host_interface, function, (device, entry)), entries
        )

    def _one(self, host_interface: str, function: str, arguments: Sequence[int | str]) -> Json:
        key = call_key(host_interface, function, arguments)
        self.asked[key] += 1
        return _answer(self.calls.get(key, _UNKNOWN[host_interface]))

    def _entry(self, host_interface: str, function: str, arguments: Sequence[int | str]) -> Json:
        """Return one entry of a batch: a value, or a pair of code and value."""
        key = call_key(host_interface, function, arguments)
        self.asked[key] += 1
        if key not in self.calls:
            raise FileNotFoundError(errno.ENOENT, key)
        answer = _answer(self.calls[key])
        return answer if isinstance(answer, list) else [0, answer]

    @property
    def statistics_period_ns(self) -> int:
        return 0

    def kernel_log(self) -> FakeLog:
        if self.log.closed is not None:
            raise self.log.closed
        return self.log

    def _known(self) -> list[str]:
        return [*self.files, *self.links]

    def _real(self, path: str) -> str:
        parts = path.split("/")
        for length in range(len(parts), 1, -1):
            head = "/".join(parts[:length])
            if head in self.links:
                return self._real("/".join([self.links[head], *parts[length:]]))
        return path


class FakeLog:
    """A kernel log; added records are returned at the next poll."""

    def __init__(self) -> None:
        self.waiting: list[str] = []
        self.closed: OSError | None = None
        self.broken: OSError | None = None
        self.times_closed = 0

    def poll(self) -> list[str]:
        if self.broken is not None:
            raise self.broken
        records, self.waiting = self.waiting, []
        return records

    def close(self) -> None:
        self.times_closed += 1


def _answer(stored: Any) -> Any:
    if callable(stored):
        return stored()
    if isinstance(stored, Exception):
        raise stored
    return stored


def _missing(path: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "No such file or directory", path)
