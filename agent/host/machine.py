"""psutil, for the server itself. Its answers are plain dictionaries here."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

import psutil

from railscope.capture import Json

# Which file of /proc a function needs. Where it is missing, psutil would ask the machine it runs on
# instead of the tree it was pointed to.
_NEEDS = {
    "cpu_times": "stat",
    "cpu_count": "stat",
    "boot_time": "stat",
    "virtual_memory": "meminfo",
    "swap_memory": "meminfo",
    "disk_io_counters": "diskstats",
    "net_io_counters": "net/dev",
}


class Machine:
    """psutil pointed at the /proc of a root."""

    def __init__(self, proc: str) -> None:
        self._proc = proc

    def call(self, function: str) -> Json:
        """The answer of a psutil function. Raises OSError."""
        needed = _NEEDS[function]
        proc = self._proc
        if needed.startswith("net/") and not os.path.exists(f"{proc}/{needed}"):  # noqa: PTH110 - plain text paths
            proc = (
                f"{proc}/self"  # /proc/net is a link to it: a copied tree may have one of the two
            )
        if not os.path.exists(f"{proc}/{needed}"):  # noqa: PTH110 - as above
            raise OSError(errno.ENOENT, f"{self._proc}/{needed} does not exist")
        psutil.PROCFS_PATH = proc  # of the whole process: set it for each question
        return _FUNCTIONS[function]()


def _plain(answer: Any) -> dict[str, Any]:
    return dict(answer._asdict())


def _each(answers: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: _plain(answer) for name, answer in answers.items()}


# nowrap=False: psutil's correction of wrapped counters keeps state, and is ours to do.
_FUNCTIONS: dict[str, Callable[[], Json]] = {
    "cpu_times": lambda: _plain(psutil.cpu_times()),
    "cpu_count": lambda: len(psutil.cpu_times(percpu=True)),
    "boot_time": psutil.boot_time,
    "virtual_memory": lambda: _plain(psutil.virtual_memory()),
    "swap_memory": lambda: _plain(psutil.swap_memory()),
    "disk_io_counters": lambda: _each(psutil.disk_io_counters(perdisk=True, nowrap=False) or {}),
    "net_io_counters": lambda: _each(psutil.net_io_counters(pernic=True, nowrap=False) or {}),
}
